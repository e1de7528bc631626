"""Decoders: the values of Kafka records become rows inside the task that writes them.

Promises of every decoder:
1. Each position of the input is in exactly one of good, bad and null; order is kept.
2. One bad record costs no other row, and its fate does not depend on its neighbours.
3. No silent wrong value: what a column cannot hold exactly is a bad record. (A JSON
   number in a float or double column is the nearest such number, as everywhere.)
4. A null value is a Kafka tombstone, not a bad record.
5. Errors are short and show at most 80 characters of a value.

JSON: one object per value, UTF-8. Names match exactly; unknown fields are ignored; a
missing field is null. Missing or null in a field that is not nullable is bad, at any
depth; so is a column's name given twice. Any syntax error is bad, in ignored fields too
(there alone the words NaN and Inf and any depth of nesting pass).

| Arrow type | JSON |
|---|---|
| bool | true, false |
| int8 … int64, uint8 … uint64 | a number without fraction or exponent, in range (1.0 is bad) |
| float, double | a number, finite in that type; NaN, Infinity and 1e39 in a float are bad |
| decimal128, decimal256 | a number or a string, exact from its text; \
more digits than the type has (zeros at the end aside) are bad |
| string, large_string | a string; numbers and objects are not turned into text |
| binary, large_binary | a string of standard Base64 with padding, as Spark and Kafka Connect write it |
| timestamp with a zone | a string, ISO 8601: date, 'T' or ' ', time to hours, minutes, seconds or a fraction, \
and Z or an offset; without one it is UTC |
| timestamp without a zone | the same without Z or offset; with one it is bad |
| date32, date64 | a string YYYY-MM-DD |
| struct | an object |
| list, large_list | an array |
| fixed_size_list | an array of that length |
| map with string keys | an object; a key given twice is bad; row by row, several times slower than the rest |

Numbers are never times: the unit would be a guess. Declare int64 and convert later. A
fraction finer than the column's unit is bad, not cut. Dictionary, time, duration, null,
half-float, view, union and extension types are refused when the decoder is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa

from headgate.errors import InvalidInput
from headgate.streaming.decode_pass import Pass
from headgate.streaming.decode_schema import arrow_schema
from headgate.streaming.decode_types import check_types

__all__ = ["BadRecords", "Decoded", "Decoder", "JsonDecoder", "json"]


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
    """Positions of the null values: tombstones."""


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


def json(schema: Any) -> JsonDecoder:
    """A decoder for JSON objects.

    `schema` is a pyarrow Schema, a pyspark StructType or a Spark DDL string
    ("id bigint NOT NULL, at timestamp, tags array<string>"); no Spark is started.
    Raises InvalidInput for a type that JSON cannot fill, naming the column.
    """
    return JsonDecoder(arrow_schema(schema))


@dataclass(frozen=True)
class JsonDecoder:
    """Decodes JSON objects by the table above."""

    schema: pa.Schema

    def __post_init__(self) -> None:
        check_types(self.schema)

    def decode(self, values: pa.Array) -> Decoded:
        """The rows of the values. Raises InvalidInput only for an array that holds neither bytes nor text.

        1. Null values are set aside.
        2. Window by window: what is no JSON object is refused, the rest joined and parsed in one go.
        3. A window that does not parse is parsed in pieces; where a piece does not, its records
           are looked at one by one, and those that fit are parsed again together.
        """
        values = _as_bytes(values)
        is_null = values.is_null().to_numpy(zero_copy_only=False)
        found = Pass(self.schema)
        found.decode(values.drop_null() if values.null_count else values, np.flatnonzero(~is_null))
        bad = sorted(found.bad.items())
        return Decoded(
            found.rows(),
            pa.array(found.positions(), pa.int64()),
            BadRecords(pa.array([at for at, _ in bad], pa.int64()), pa.array([why for _, why in bad], pa.string())),
            pa.array(np.flatnonzero(is_null), pa.int64()),
        )


def _as_bytes(values: pa.Array) -> pa.Array:
    if isinstance(values, pa.ChunkedArray):
        values = values.chunk(0) if values.num_chunks == 1 else values.combine_chunks()
    kind = getattr(values, "type", None)
    if kind in (pa.binary(), pa.large_binary()):
        return values
    if kind in (pa.string(), pa.binary_view(), pa.string_view()):
        return values.cast(pa.binary())
    if kind == pa.large_string():
        return values.cast(pa.large_binary())
    raise InvalidInput(f"Record values are binary or string, not {kind or type(values).__name__}.")
