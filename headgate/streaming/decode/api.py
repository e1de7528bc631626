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

Numbers are never times: the unit would be a guess. Declare int64 and convert later.
Dictionary, time, duration, null, view, union and extension types are refused when the
decoder is made.

Which type takes what is said by `json.types.RULES`, rendered as docs/reference/decoding.md.

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
from headgate.streaming.decode.json.coerce import Coerce, check_coerce
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
def json(schema: None = None, *, coerce: str | Sequence[str] = (), metadata: Metadata = ()) -> TableDecoder: ...
@overload
def json(schema: Any, *, coerce: str | Sequence[str] = (), metadata: Metadata = ()) -> Decoder: ...
def json(schema: Any = None, *, coerce: str | Sequence[str] = (), metadata: Metadata = ()) -> Decoder | TableDecoder:
    """A decoder for JSON objects.

    `schema` is a pyarrow Schema, a pyspark StructType or a Spark DDL string ("id bigint NOT NULL, at timestamp, tags
    array<string>"); no Spark is started. Raises InvalidInput for a type that JSON cannot represent.

    Without a schema (for ShardSink) it follows the table: a column that is added while the stream runs is filled from
    the next committed batch on, without a restart.

    `coerce` names what columns take beside values of their own kind: "string_to_number" fills integers and floats from
    "12" too, "number_to_string" strings from 12. Such columns are read row by row, several times slower.

    `metadata`, of every decoder, names columns that are Kafka's own: ("key", "timestamp"), or {"at": "timestamp"} where
    the column has another name. Those that the schema leaves out are added. See `decode.metadata`.
    """
    if schema is None:
        return TableDecoder(partial(_json_of, coerce=check_coerce(coerce), metadata=metadata_columns(metadata)))
    return with_metadata(arrow_schema(schema), metadata, partial(JsonDecoder, coerce=check_coerce(coerce)))


def _json_of(table: Table, coerce: Coerce, metadata: Metadata) -> Decoder:
    return with_metadata(table.schema, metadata, partial(JsonDecoder, coerce=coerce))


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
