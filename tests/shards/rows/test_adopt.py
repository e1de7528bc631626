"""Stored columns in today's shape: by field id at every depth."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from headgate.errors import Corrupt
from headgate.shards.rows.schema import RowSchema


def _adopted(
    then: pa.DataType, now: pa.DataType, ids_now: list[int], values: list[Any], *, ids: bool = True
) -> list[Any]:
    """Values stored as one type, whose fields are numbered 0, 1, 2 …, read as another with these ids."""
    stored = RowSchema.of(pa.schema([pa.field("v", then)]))
    today = RowSchema.of(pa.schema([pa.field("v", now)]), ids_now)
    batch = stored.stored_rows(pa.record_batch([pa.array(values, then)], names=["v"]))[0]
    if ids:
        # Through bytes, as entries come: only then the arrays carry the ids of their inner fields.
        batch = pa.ipc.read_record_batch(batch.serialize(), stored.storage)
    else:
        batch = pa.record_batch([pa.array(values, then)], names=["v"])
    result = today.adopted(batch)
    result.validate(full=True)
    sliced = today.adopted(batch.slice(1)) if batch.num_rows > 1 else result
    assert sliced.column("v").to_pylist() == result.column("v").to_pylist()[-sliced.num_rows :]
    return result.column("v").to_pylist()


STRUCT = pa.struct([("a", pa.int32()), ("b", pa.string())])
RENAMED = pa.struct([("b", pa.int32()), ("c", pa.string())])


def test_a_renamed_inner_field_keeps_its_values() -> None:
    values = [{"a": 1, "b": "x"}, None, {"a": None, "b": "y"}]
    assert _adopted(STRUCT, RENAMED, [0, 1, 2], values) == [{"b": 1, "c": "x"}, None, {"b": None, "c": "y"}]


def test_inner_fields_that_were_dropped_or_added() -> None:
    now = pa.struct([("b", pa.string()), ("new", pa.int8())])
    assert _adopted(STRUCT, now, [0, 2, 9], [{"a": 1, "b": "x"}, None]) == [{"b": "x", "new": None}, None]


@pytest.mark.parametrize("make", [pa.list_, pa.large_list])
def test_inside_lists(make: Any) -> None:
    values = [[{"a": 1, "b": "x"}, None], None, [], [{"a": 2, "b": None}]]
    expected = [[{"b": 1, "c": "x"}, None], None, [], [{"b": 2, "c": None}]]
    assert _adopted(make(STRUCT), make(RENAMED), [0, 1, 2, 3], values) == expected


def test_inside_maps() -> None:
    values = [[("k", {"a": 1, "b": "x"})], None, [("l", None), ("m", {"a": 2, "b": "y"})]]
    expected = [[("k", {"b": 1, "c": "x"})], None, [("l", None), ("m", {"b": 2, "c": "y"})]]
    then, now = pa.map_(pa.string(), STRUCT), pa.map_(pa.string(), RENAMED)
    assert _adopted(then, now, [0, 1, 2, 3, 4, 5], values) == expected


def test_without_ids_names_decide() -> None:
    now = pa.struct([("b", pa.string()), ("z", pa.int32())])
    assert _adopted(STRUCT, now, [0, 2, 9], [{"a": 1, "b": "x"}], ids=False) == [{"b": "x", "z": None}]


def test_a_wider_type_is_cast_and_one_that_cannot_be_is_corrupt() -> None:
    assert _adopted(pa.int32(), pa.int64(), [0], [1, None]) == [1, None]
    with pytest.raises(Corrupt, match="cannot be read as"):
        _adopted(pa.string(), pa.int64(), [0], ["x"])
    with pytest.raises(Corrupt, match="cannot be read as"):
        _adopted(pa.list_(pa.int32()), STRUCT, [0, 1, 2], [[1]])
