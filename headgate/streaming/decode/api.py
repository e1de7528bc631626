"""Decoders: the values of Kafka records become rows inside the task that writes them.

Promises of every decoder:
1. Each position of the input is in exactly one of good, deleted, bad and null; order is kept.
2. A bad record does not affect other rows, and its result does not depend on its neighbours.
3. No silent wrong value: a value that a column cannot hold exactly makes a bad record. (A JSON number in a half, float
   or double column becomes the nearest such number, as usual.)
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
| halffloat, float, double | a number, finite in that type; NaN, Infinity, 1e39 in a float and 65520 in a half are bad |
| decimal128, decimal256 | a number or a string, exact from its text; more digits than the type has \
(zeros at the end aside) are bad |
| string, large_string | a string; numbers and objects are not turned into text |
| binary, large_binary | a string of standard Base64 with padding, as Spark and Kafka Connect write it |
| timestamp with a zone | a string, ISO 8601: date, 'T' or ' ', time to hours, minutes, seconds or a \
fraction, and Z or an offset; without one it is UTC |
| timestamp without a zone | the same without Z or offset; with one it is bad |
| date32, date64 | a string YYYY-MM-DD |
| struct | an object |
| list, large_list | an array |
| fixed_size_list | an array of that length: a vector of another one is bad, like one with NaN |
| map with string keys | an object; a key given twice is bad; row by row, several times slower than the rest |

Numbers are never converted to times, because the unit is unknown: declare int64 and convert later. A fraction finer
than the column's unit is bad, not truncated. Dictionary, time, duration, null, view, union and extension types are not
supported.

`raw` stores the values unchanged, `debezium` reads change events in JSON, `avro` reads Avro in the wire format of a
schema registry: see `raw`, `debezium` and `avro`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, overload

import pyarrow as pa

from headgate.streaming.decode.avro.decoder import AvroDecoder, WriterSchemas
from headgate.streaming.decode.contract import BadRecords, Decoded, Decoder, KeyDecoder, TableDecoder
from headgate.streaming.decode.debezium import DebeziumDecoder, key_of
from headgate.streaming.decode.json.decoder import JsonDecoder
from headgate.streaming.decode.metadata import Metadata, metadata_columns, with_metadata
from headgate.streaming.decode.raw import RawDecoder
from headgate.table.ddl import arrow_schema

if TYPE_CHECKING:
    from headgate.table.table import Table

__all__ = [
    "BadRecords",
    "Decoded",
    "Decoder",
    "TableDecoder",
    "JsonDecoder",
    "KeyDecoder",
    "avro",
    "debezium",
    "json",
    "raw",
]


@overload
def json(schema: None = None, *, metadata: Metadata = ()) -> TableDecoder: ...
@overload
def json(schema: Any, *, metadata: Metadata = ()) -> Decoder: ...
def json(schema: Any = None, *, metadata: Metadata = ()) -> Decoder | TableDecoder:
    """A decoder for JSON objects.

    `schema` is a pyarrow Schema, a pyspark StructType or a Spark DDL string ("id bigint NOT NULL, at timestamp, tags
    array<string>"); no Spark is started. Raises InvalidInput for a type that JSON cannot represent.

    Without a schema (for ShardSink) it follows the table: a column that is added while the stream runs is filled from
    the next committed batch on, without a restart.

    `metadata`, for every decoder, names columns filled by Kafka: ("key", "timestamp"), or {"at": "timestamp"} if the
    column has another name. Columns that are not in the schema are added. See `decode.metadata`.
    """
    if schema is None:
        return TableDecoder(partial(_json_of, metadata=metadata_columns(metadata)))
    return with_metadata(arrow_schema(schema), metadata, JsonDecoder)


def _json_of(table: Table, metadata: Metadata) -> Decoder:
    return with_metadata(table.schema, metadata, JsonDecoder)


def raw(column: str = "value", *, kind: pa.DataType | None = None, metadata: Metadata = ()) -> Decoder:
    """A decoder that stores each value unchanged in one column: binary, or text that must be UTF-8 (`kind`).

    The table's other columns must be filled by Kafka or be nullable. Raises InvalidInput for another kind.
    """
    decoder = RawDecoder(column, pa.binary() if kind is None else kind)
    return with_metadata(pa.schema([]), metadata, lambda none: decoder)


def debezium(schema: Any, *, primary_key: str | Sequence[str] | None = None, metadata: Metadata = ()) -> Decoder:
    """A decoder for Debezium's change events in JSON, for tables with a key.

    `schema` is as for `json`: the columns of `after`. `primary_key` are the key columns; without it, those marked in
    the schema, as in `table.schema`. Raises InvalidInput if there is no key.
    """
    given = (primary_key,) if isinstance(primary_key, str) else primary_key

    def make(columns: pa.Schema) -> DebeziumDecoder:
        return DebeziumDecoder(columns, key_of(columns) if given is None else tuple(given))

    return with_metadata(arrow_schema(schema), metadata, make)


def avro(
    schema: Any,
    *,
    registry: str | None = None,
    schemas: Mapping[int, str] | None = None,
    auth: str | None = None,
    metadata: Metadata = (),
) -> Decoder:
    """A decoder for Avro in the wire format of a schema registry: a zero byte, the schema's id, the value.

    `schema` has the wanted columns, as for `json`. Writers' schemas come from `registry` (its URL; `auth` is
    "user:password") or from `schemas`, by id. Needs no other package. Raises InvalidInput if neither is given.
    """
    writers = WriterSchemas.of(registry, schemas, auth)
    return with_metadata(arrow_schema(schema), metadata, lambda columns: AvroDecoder(columns, writers))
