"""What every decoder gives, and what it promises. See `decode` for the promises in words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import pyarrow as pa

from headgate.errors import InvalidInput
from headgate.shards.rows.schema import RowSchema

if TYPE_CHECKING:
    from headgate.table.table import Table


@dataclass(frozen=True, eq=False)
class BadRecords:
    """Positions in the input, ascending, and for each one why it is bad."""

    indices: pa.Int64Array
    errors: pa.StringArray

    def __len__(self) -> int:
        return len(self.indices)


@dataclass(frozen=True, eq=False)
class Decoded:
    """Where every value of the input went. All positions are ascending."""

    rows: pa.RecordBatch
    """The good rows, of the decoder's schema."""
    indices: pa.Int64Array
    """For each row its position in the input."""
    bad: BadRecords
    nulls: pa.Int64Array
    """Positions of the null values: tombstones, which delete what the record's key names."""
    deletes: pa.RecordBatch | None = None
    """Key columns of rows that the values themselves say are gone; None where there are none."""
    deleted: pa.Int64Array | None = None
    """For each of those its position in the input."""


@runtime_checkable
class KeyDecoder(Protocol):
    """A decoder that also reads the keys of tombstones in its own way; others' are read as `keys` says."""

    def decode_keys(self, keys: pa.Array, schema: RowSchema) -> Decoded:
        """The key columns of the table, for each key. Never raises for what a key holds."""
        ...


@runtime_checkable
class Decoder(Protocol):
    """Turns record values into rows. A picklable value without state; may be used by many threads."""

    @property
    def schema(self) -> pa.Schema:
        """The schema of the rows."""
        ...

    def decode(self, values: pa.Array) -> Decoded:
        """The rows of the values (binary or string). Never raises for what a value holds."""
        ...


@dataclass(frozen=True)
class DecoderKind:
    """A decoder of headgate's own: how it is made for a table, and again from what an open record says of it."""

    name: str
    decoder: type
    for_columns: Callable[[pa.Schema, str | None, str | None], Decoder]
    """Takes columns of a table, the URL of a schema registry and its credentials. Raises InvalidInput."""
    remake: Callable[[pa.Schema, Mapping[str, Any], str | None], Decoder]
    """Takes the decoder's columns, what `options` gave, and a registry's credentials."""
    options: Callable[[Any], dict[str, Any]] = lambda decoder: {}
    """What the record holds of it beside the columns, as JSON values: no credentials, and nothing that is executed."""
    takes_registry: bool = False
    follows_table: bool = True
    """False: its columns stay what they are when the table gains one."""
    in_format: bool = False
    """Whether `format("headgate")` has it: it needs nothing but the table's columns."""
    coercing: Callable[[Any, Iterable[str]], Decoder] | None = None
    """The decoder whose columns take values of another kind as well, by the names of coercions. None: it has none."""

    def made(
        self, columns: pa.Schema, registry: str | None = None, auth: str | None = None, coerce: Iterable[str] = ()
    ) -> Decoder:
        """As `for_columns`, with coercions. Raises InvalidInput."""
        decoder = self.for_columns(columns, registry, auth)
        if not coerce:
            return decoder
        if self.coercing is None:
            raise InvalidInput(f"coerce is for the decoder json, not for {self.name}.")
        return self.coercing(decoder, coerce)


@dataclass(frozen=True)
class TableDecoder:
    """Makes the decoder of a table. Picklable where `make` is; for ShardSink's `decode=`."""

    make: Callable[[Table], Decoder] = field(repr=False)
    """May hold credentials."""

    def of(self, table: Table) -> Decoder:
        """The decoder for the columns that the table has. Raises InvalidInput for one that it cannot fill."""
        return self.make(table)


def decoder_of(decode: Decoder | TableDecoder | None, table: Table) -> Decoder | None:
    """What turns records into rows of the table as it is now. Raises InvalidInput."""
    return decode.of(table) if isinstance(decode, TableDecoder) else decode


def bad_records(errors: Mapping[int, str]) -> BadRecords:
    """Of why, by position."""
    at = sorted(errors)
    return BadRecords(pa.array(at, pa.int64()), pa.array([errors[i] for i in at], pa.string()))


def as_bytes(values: pa.Array) -> pa.Array:
    """The values as one binary array. Raises InvalidInput for an array that holds neither bytes nor text."""
    if isinstance(values, pa.ChunkedArray):
        values = values.chunk(0) if values.num_chunks == 1 else values.combine_chunks()
    kind = getattr(values, "type", None)
    if kind in (pa.binary(), pa.large_binary()):
        return values
    if kind in (pa.string(), pa.binary_view(), pa.string_view()):
        return values.cast(pa.binary())
    if kind == pa.large_string():
        return values.cast(pa.large_binary())
    raise InvalidInput(f"Record values must be binary or string, got {kind or type(values).__name__}.")
