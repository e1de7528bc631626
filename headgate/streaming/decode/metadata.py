"""Kafka's own columns of a record as columns of the table, besides those decoded from its value.

| Kafka | type |
|---|---|
| key | binary; or string, where every key must be UTF-8 |
| topic | string |
| partition | int32, or a wider number |
| offset | int64 |
| timestamp | timestamp in UTC; Kafka counts milliseconds |
| headers | a list of structs of key (string) and value (binary); null where a record has none |

A record with a value that does not fit its column is a bad record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from headgate.errors import InvalidInput, nearest
from headgate.streaming.decode.cast import cast_each, keeps_values
from headgate.streaming.decode.contract import Decoded, Decoder, bad_records

KAFKA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", "UTC")),
        pa.field("headers", pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))),
    ]
)
"""Kafka's columns of a record, besides its value."""

Metadata: TypeAlias = "Sequence[str] | Mapping[str, str]"
"""Kafka's names, if the columns have the same; or a mapping from column to Kafka's name."""

D = TypeVar("D", bound=Decoder)

_KEPT = frozenset({"key", "timestamp", "headers"})
"""Columns that a dead letter has only if its stream read them. The timestamp is read with each, and shows that they
were read.
"""


@dataclass(frozen=True)
class WithMetadata:
    """A decoder with additional columns from Kafka. Picklable if the decoder is."""

    decoder: Decoder
    columns: pa.Schema
    sources: tuple[str, ...]
    """Kafka's name for each column."""

    def __post_init__(self) -> None:
        for field, source in zip(self.columns, self.sources, strict=True):
            kind = KAFKA.field(source).type
            if not _can_hold(field.type, kind, source):
                raise InvalidInput(
                    f"Column {field.name!r} has type {field.type}, but Kafka's {source} has type {kind}.",
                    advice=f"declare the column as {kind}, or leave it out of metadata",
                )

    @cached_property
    def schema(self) -> pa.Schema:
        """The decoder's columns, then Kafka's."""
        return pa.schema([*self.decoder.schema, *self.columns])

    @property
    def primary_key(self) -> tuple[str, ...] | None:
        """The decoder's key; None if it has none."""
        return getattr(self.decoder, "primary_key", None)

    @property
    def reads(self) -> frozenset[str]:
        """The Kafka columns to read of each record."""
        return frozenset(self.sources) | ({"timestamp"} if _KEPT & set(self.sources) else set())

    def decode(self, values: pa.Array) -> Decoded:
        """The rows of the values, without Kafka's columns: `filled` adds them."""
        return self.decoder.decode(values)

    def filled(self, decoded: Decoded, records: pa.RecordBatch, topic: str | None, missing: pa.Array | None) -> Decoded:
        """The result of `decode`, with Kafka's columns added.

        `topic` is the topic of all records, if they have no such column. `missing` is true for each record whose Kafka
        columns were not stored.
        """
        rows, at = decoded.rows, decoded.indices
        errors = dict(zip(decoded.bad.indices.to_pylist(), decoded.bad.errors.to_pylist(), strict=True))
        fits = np.ones(len(at), bool)
        if missing is not None:
            gone = missing.take(at).to_numpy(zero_copy_only=False)
            fits &= ~gone
            why = "the dead letter has no Kafka columns: its stream did not read them then"
            errors.update(dict.fromkeys(at.filter(pa.array(gone)).to_pylist(), why))
        found = [_taken(records, source, topic, at) for source in self.sources]
        for field, source, column in zip(self.columns, self.sources, found, strict=True):
            try:
                column.cast(field.type)
            except pa.ArrowInvalid:
                _, held = cast_each(column, field.type)
                fits &= held
                why = f"column {field.name!r}: {field.type} cannot hold the record's {source}"
                errors.update(dict.fromkeys(at.filter(pa.array(~held)).to_pylist(), why))
        if not fits.all():
            keep = pa.array(fits)
            rows, at, found = rows.filter(keep), at.filter(keep), [column.filter(keep) for column in found]
        columns = [column.cast(field.type) for field, column in zip(self.columns, found, strict=True)]
        whole = pa.RecordBatch.from_arrays([*rows.columns, *columns], schema=pa.schema([*rows.schema, *self.columns]))
        return Decoded(whole, at, bad_records(errors), decoded.nulls, decoded.deletes, decoded.deleted)

    def not_kept(self, letters: pa.RecordBatch, *, has_keys: bool) -> pa.Array | None:
        """True for each dead letter without stored Kafka columns; None if none of them is needed. Set `has_keys` if
        letters always have keys.
        """
        wanted = _KEPT & set(self.sources) - ({"key"} if has_keys else set())
        return letters.column("timestamp").is_null() if wanted else None


def with_metadata(columns: pa.Schema, metadata: Metadata, make: Callable[[pa.Schema], D]) -> D | WithMetadata:
    """A decoder: `make` gets the columns that are not Kafka's, and Kafka's columns are added.

    A Kafka column that is not in `columns` is added with Kafka's own type. Raises InvalidInput.
    """
    sources = metadata_columns(metadata)
    if not sources:
        return make(columns)
    own = pa.schema([field for field in columns if field.name not in sources], columns.metadata)
    fields = [
        columns.field(name) if name in columns.names else KAFKA.field(source).with_name(name)
        for name, source in sources.items()
    ]
    return WithMetadata(make(own), pa.schema(fields), tuple(sources.values()))


def metadata_columns(metadata: Metadata) -> dict[str, str]:
    """Kafka's name for each column. Raises InvalidInput."""
    if isinstance(metadata, str):
        raise InvalidInput(f"metadata must be a list of names, got the text {metadata[:40]!r}.", advice="pass a list")
    named = dict(metadata) if isinstance(metadata, Mapping) else {name: name for name in metadata}
    for source in named.values():
        if source not in KAFKA.names:
            near = nearest(str(source), KAFKA.names)
            advice = f"did you mean {near!r}?" if near else f"Kafka's fields are {', '.join(KAFKA.names)}"
            raise InvalidInput(f"A Kafka record has no field {str(source)[:40]!r}.", advice=advice)
    return named


def parse_metadata(texts: Sequence[str]) -> dict[str, str]:
    """The same, from texts such as `FIELD` or `COLUMN=FIELD`. Raises InvalidInput."""
    pairs = (text.strip().partition("=") for text in texts)
    return metadata_columns({column: field or column for column, _, field in pairs})


def _taken(records: pa.RecordBatch, source: str, topic: str | None, at: pa.Array) -> pa.Array:
    if source == "topic" and "topic" not in records.schema.names:
        return pa.repeat(pa.scalar(topic, pa.string()), len(at))
    return records.column(source).take(at)


def _can_hold(column: pa.DataType, kind: pa.DataType, source: str) -> bool:
    if source == "key" and _is_text(column):
        return True
    # A narrower number would fit the first offsets, but not later ones.
    return keeps_values(kind, column) and not (pa.types.is_integer(kind) and column.bit_width < kind.bit_width)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
