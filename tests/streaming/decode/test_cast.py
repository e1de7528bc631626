"""Typed columns in the table's types: the same values, or a refusal that names the column."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from headgate.errors import InvalidInput
from headgate.shards.rows.schema import RowSchema
from headgate.streaming.decode.cast import cast_column

UTC = pa.timestamp("us", "UTC")


def fit(values: list[Any], old: pa.DataType, new: pa.DataType) -> pa.Array:
    return cast_column(pa.array(values, old), RowSchema.of(pa.schema([pa.field("c", new)])), "c")


@pytest.mark.parametrize(
    ("values", "old", "new"),
    [
        ([1, None], pa.int32(), pa.int64()),
        ([1, 255], pa.int64(), pa.uint8()),
        ([1, 2], pa.int32(), pa.float64()),
        ([1.5, None], pa.float32(), pa.float64()),
        (["a", None], pa.string(), pa.large_string()),
        ([b"a"], pa.binary(), pa.large_binary()),
        ([1_000], UTC, pa.timestamp("ms", "Europe/Berlin")),
        ([Decimal("1.5")], pa.decimal128(10, 2), pa.decimal128(20, 4)),
        ([[1, 2]], pa.list_(pa.int32()), pa.large_list(pa.int64())),
        ([{"a": 1}], pa.struct([("a", pa.int32())]), pa.struct([("a", pa.int64())])),
        ([None], pa.null(), pa.string()),
    ],
)
def test_a_wider_type_takes_the_same_values(values: list[Any], old: pa.DataType, new: pa.DataType) -> None:
    made = fit(values, old, new)
    assert made.type == new
    back = made.to_pylist() if not pa.types.is_timestamp(new) else made.cast(pa.int64()).to_pylist()
    assert back == (values if not pa.types.is_timestamp(new) else [1])


@pytest.mark.parametrize(
    ("values", "old", "new"),
    [
        ([300], pa.int64(), pa.int8()),
        ([2**60 + 1], pa.int64(), pa.float64()),
        ([1.5], pa.float64(), pa.int64()),
        ([1.1], pa.float64(), pa.float32()),
        (["12"], pa.string(), pa.int64()),
        ([12], pa.int64(), pa.string()),
        ([1], UTC, pa.timestamp("us")),
        ([1], pa.timestamp("us"), UTC),
        ([1], UTC, pa.timestamp("ms", "UTC")),
        ([Decimal("1.25")], pa.decimal128(10, 2), pa.float64()),
        ([Decimal("1.25")], pa.decimal128(10, 2), pa.decimal128(10, 1)),
        ([{"a": 1}], pa.struct([("a", pa.int32())]), pa.struct([("b", pa.int32())])),
        ([[1.5]], pa.list_(pa.float64()), pa.list_(pa.int64())),
    ],
)
def test_a_value_that_would_change_is_refused_by_column(values: list[Any], old: pa.DataType, new: pa.DataType) -> None:
    with pytest.raises(InvalidInput, match="Column 'c'"):
        fit(values, old, new)
