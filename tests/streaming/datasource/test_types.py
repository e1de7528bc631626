"""Columns of a table as Spark has them. No Spark is started."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from headgate.errors import InvalidInput
from headgate.streaming.datasource.types import as_spark, spark_schema

WIDER: list[tuple[pa.DataType, str, list[Any]]] = [
    (pa.uint64(), "decimal(20,0)", [2**64 - 1, None]),
    (pa.float16(), "float", [0.5, None, 65504.0]),
    (pa.list_(pa.float16(), 2), "array<float>", [[0.5, 1.0], None, [1.0, None]]),
    (pa.list_(pa.float32(), 2), "array<float>", [[0.5, 1.0], None]),
    (pa.large_list(pa.uint8()), "array<smallint>", [[255], [], None]),
    (pa.struct([("v", pa.list_(pa.float16(), 1))]), "struct<v:array<float>>", [{"v": [0.5]}, None]),
    (pa.map_(pa.string(), pa.uint16()), "map<string,int>", [[("a", 65535)], None]),
]


@pytest.mark.parametrize(("kind", "spark", "values"), WIDER, ids=[str(kind) for kind, _, _ in WIDER])
def test_a_type_that_spark_lacks_becomes_a_wider_one_at_any_depth(
    kind: pa.DataType, spark: str, values: list[Any]
) -> None:
    column = pa.array(values, kind)
    schema = spark_schema(pa.schema([("c", kind)]))
    assert schema["c"].dataType.simpleString() == spark
    (batch,) = as_spark([pa.RecordBatch.from_arrays([column.slice(0, 1)], names=["c"])], schema)
    (whole,) = as_spark([pa.RecordBatch.from_arrays([column], names=["c"])], schema)
    assert whole.column("c").to_pylist() == values
    assert batch.column("c").to_pylist() == values[:1]


def test_a_type_without_a_wider_one_is_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match="'c' has type list<item: month_day"):
        spark_schema(pa.schema([("c", pa.list_(pa.month_day_nano_interval()))]))
