"""A table's columns in Spark's types, and batches converted to exactly those types.

Unsigned integers become the next wider signed type and half floats become floats, also in lists and structs; times are
truncated to microseconds; everything else keeps its value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import StructField, StructType

from headgate.errors import InvalidInput
from headgate.spark import versions

_WIDER = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
}


def spark_schema(columns: pa.Schema) -> StructType:
    """The Spark schema; all columns are nullable. Raises InvalidInput for a type that Spark does not have."""
    fields = []
    for column in columns:
        try:
            kind = from_arrow_type(_widened(column.type), prefer_timestamp_ntz=True)
        except PySparkTypeError as error:
            raise InvalidInput(
                f"Column {column.name!r} has type {column.type}, which Spark does not support.",
                advice="leave it out: select the columns to read with .schema(…)",
            ) from error
        fields.append(StructField(column.name, kind, nullable=True))
    return StructType(fields)


def as_spark(batches: Iterable[pa.RecordBatch], schema: StructType) -> Iterator[pa.RecordBatch]:
    """The batches in the columns and types of a Spark schema. Raises InvalidInput if a value does not fit."""
    target = to_arrow_schema(schema, **versions.arrow_arguments())
    for batch in batches:
        columns = [_fitted(batch.column(field.name), field) for field in target]
        yield pa.RecordBatch.from_arrays(columns, schema=target)


def check_columns(schema: StructType, columns: pa.Schema) -> None:
    """Raises InvalidInput if the given schema has a missing column."""
    unknown = [name for name in schema.fieldNames() if name not in columns.names]
    if unknown:
        raise InvalidInput(f"Column {unknown[0]!r} not found; the table has {columns.names}.")


def _widened(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(_widened_field(kind.value_field))
    if pa.types.is_struct(kind):
        return pa.struct([_widened_field(kind.field(i)) for i in range(kind.num_fields)])
    if pa.types.is_map(kind):
        return pa.map_(_widened_field(kind.key_field), _widened_field(kind.item_field))
    return _WIDER.get(kind, kind)


def _widened_field(field: pa.Field) -> pa.Field:
    return field.with_type(_widened(field.type))


def _fitted(column: pa.Array, field: pa.Field) -> pa.Array:
    if column.type == field.type:
        return column
    try:
        return column.cast(field.type, safe=not pa.types.is_timestamp(field.type))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidInput(f"Column {field.name!r} has type {column.type}, which does not fit {field.type}.") from error
