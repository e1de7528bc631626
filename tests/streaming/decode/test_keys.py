"""Keys of tombstones: JSON objects or bare values, and whatever is neither is told."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from headgate.shards.rows.schema import PRIMARY_KEY, RowSchema
from headgate.streaming.decode.keys import decode_keys


def schema(**kinds: pa.DataType) -> RowSchema:
    key = {PRIMARY_KEY: b"true"}
    return RowSchema.of(
        pa.schema([pa.field(n, k, False, metadata=key) for n, k in kinds.items()] + [pa.field("x", pa.int8())])
    )


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        (pa.int64(), b"7", 7),
        (pa.int64(), b"-7", -7),
        (pa.int64(), b'{"id": 7, "other": 1}', 7),
        (pa.string(), b"text", "text"),
        (pa.string(), "ä".encode(), "ä"),
        (pa.string(), b"", ""),
        (pa.string(), b'{"id": "text"}', "text"),
        (pa.large_string(), b"text", "text"),
        (pa.binary(), b"\xff\x00", b"\xff\x00"),
        (pa.bool_(), b"true", True),
        (pa.decimal128(5, 2), b"1.25", Decimal("1.25")),
        (pa.date32(), b"2024-02-29", date(2024, 2, 29)),
    ],
)
def test_a_key_is_a_json_object_or_the_bare_value(kind: pa.DataType, key: bytes, value: Any) -> None:
    found = decode_keys(pa.array([key], pa.binary()), schema(id=kind))
    assert found.rows.to_pydict() == {"id": [value]}
    assert found.rows.schema.types == [kind]
    assert len(found.bad) == 0


@pytest.mark.parametrize(
    ("kind", "key", "error"),
    [
        (pa.int64(), None, "nothing to delete"),
        (pa.int64(), b"seven", "or a plain int64"),
        (pa.int64(), b"7.5", "or a plain int64"),
        (pa.int8(), b"300", "or a plain int8"),
        (pa.int64(), b'{"id": "seven"}', "id"),
        (pa.int64(), b'{"other": 7}', "id"),
        (pa.int64(), b"{", "JSON"),
        (pa.string(), b"\xff", "or a plain string"),
        (pa.decimal128(5, 2), b"1.255", "or a plain decimal"),
    ],
)
def test_a_key_that_is_neither_is_bad_and_costs_no_other(kind: pa.DataType, key: bytes | None, error: str) -> None:
    good = {pa.string(): b"a", pa.decimal128(5, 2): b"1"}.get(kind, b"1")
    found = decode_keys(pa.array([good, key, good], pa.binary()), schema(id=kind))
    assert found.indices.to_pylist() == [0, 2]
    assert found.rows.num_rows == 2
    assert found.bad.indices.to_pylist() == [1]
    assert error in found.bad.errors[0].as_py()


def test_keys_of_several_columns_are_json_objects_only() -> None:
    two = schema(a=pa.int64(), b=pa.string())
    found = decode_keys(pa.array([b'{"b": "x", "a": 1}', b"1"], pa.binary()), two)
    assert found.rows.to_pylist() == [{"a": 1, "b": "x"}]
    assert found.bad.errors.to_pylist() == ["the key must be a JSON object with ['a', 'b'] or a plain int64"]


def test_objects_and_bare_values_keep_the_order_they_came_in() -> None:
    found = decode_keys(pa.array([b"3", b'{"id": 1}', b"2", b"x", b'{"id": 0}'], pa.binary()), schema(id=pa.int64()))
    assert found.rows.column("id").to_pylist() == [3, 1, 2, 0]
    assert found.indices.to_pylist() == [0, 1, 2, 4]


def test_no_keys_are_no_rows() -> None:
    found = decode_keys(pa.array([], pa.binary()), schema(id=pa.int64()))
    assert found.rows.num_rows == 0
    assert found.rows.schema.names == ["id"]
