"""The interface of decoders, and their results. See `decode.api` for the promises."""

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
    """The positions of bad records in the input, ascending, and the reason of each."""

    indices: pa.Int64Array
    errors: pa.StringArray

    def __len__(self) -> int:
        return len(self.indices)


@dataclass(frozen=True, eq=False)
class Decoded:
    """What became of every input value. All positions are ascending."""

    rows: pa.RecordBatch
    """The good rows, in the decoder's schema."""
    indices: pa.Int64Array
    """Each row's position in the input."""
    bad: BadRecords
    nulls: pa.Int64Array
    """Positions of null values: tombstones, which delete the record's key."""
    deletes: pa.RecordBatch | None = None
    """Key columns of rows that the values themselves mark as deleted; None if there are none."""
    deleted: pa.Int64Array | None = None
    """The position of each of those in the input."""


@runtime_checkable
class KeyDecoder(Protocol):
    """A decoder that reads the keys of tombstones itself; for other decoders, `keys` reads them."""

    def decode_keys(self, keys: pa.Array, schema: RowSchema) -> Decoded:
        """The table's key columns, from each key. Never raises because of a key's content."""
        ...


@runtime_checkable
class Decoder(Protocol):
    """Turns record values into rows. Picklable, stateless, thread-safe."""

    @property
    def schema(self) -> pa.Schema:
        """The schema of the rows."""
        ...

    def decode(self, values: pa.Array) -> Decoded:
        """The rows of the values (binary or string). Never raises because of a value's content."""
        ...


@dataclass(frozen=True)
class DecoderKind:
    """A built-in decoder: how it is made for a table, and made again from a stream's open record."""

    name: str
    decoder: type
    for_columns: Callable[[pa.Schema, str | None, str | None], Decoder]
    """Takes the table's columns, the schema registry's URL and its credentials. Raises InvalidInput."""
    remake: Callable[[pa.Schema, Mapping[str, Any], str | None], Decoder]
    """Takes the decoder's columns, the recorded `options`, and the registry's credentials."""
    options: Callable[[Any], dict[str, Any]] = lambda decoder: {}
    """What the record stores besides the columns, as JSON values: no credentials, and nothing executable."""
    takes_registry: bool = False
    follows_table: bool = True
    """False if its columns stay the same when the table gains a column."""
    in_format: bool = False
    """True if `format("headgate")` supports it: it needs nothing but the table's columns."""
    coercing: Callable[[Any, Iterable[str]], Decoder] | None = None
    """Makes a decoder with coercions, given by name; None if the decoder has none."""

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
    """Makes a decoder for a table, for ShardSink's `decode=`. Picklable if `make` is."""

    make: Callable[[Table], Decoder] = field(repr=False)
    """May hold credentials."""

    def of(self, table: Table) -> Decoder:
        """The decoder for the table's current columns. Raises InvalidInput for a column that it cannot fill."""
        return self.make(table)


def decoder_of(decode: Decoder | TableDecoder | None, table: Table) -> Decoder | None:
    """The decoder for the table's current columns; None if there is none. Raises InvalidInput."""
    return decode.of(table) if isinstance(decode, TableDecoder) else decode


def bad_records(errors: Mapping[int, str]) -> BadRecords:
    """Bad records from reasons by position."""
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
