"""Newest row per key, against a dictionary."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.shards.rows.dedup import KeySet, living, newest_places, newest_rows
from headgate.shards.rows.schema import TOMBSTONE

KEYS: dict[str, tuple[pa.DataType, Any]] = {
    "int64": (pa.int64(), st.integers(-3, 3)),
    "uint64": (pa.uint64(), st.integers(2**64 - 4, 2**64 - 1)),
    "bool": (pa.bool_(), st.booleans()),
    "string": (pa.string(), st.sampled_from(["", "a", "é", "a\x00", "A"])),
    "large_string": (pa.large_string(), st.sampled_from(["", "a", "b"])),
    "binary": (pa.binary(), st.sampled_from([b"", b"\x00", b"\x00\x00", b"\xff"])),
}


@pytest.mark.parametrize("kinds", [*[(kind,) for kind in KEYS], ("int64", "string"), ("binary", "bool", "uint64")])
@settings(max_examples=15, deadline=None, print_blob=True)
@given(data=st.data())
def test_the_last_row_of_each_key_stays_in_its_place(kinds: tuple[str, ...], data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.tuples(*[KEYS[kind][1] for kind in kinds]), max_size=12))
    names = [f"k{i}" for i in range(len(kinds))]
    table = _table(kinds, rows)
    model = {key: number for number, key in enumerate(rows)}
    assert newest_rows(table, names).column("n").to_pylist() == sorted(model.values())


@pytest.mark.parametrize("kinds", [*[(kind,) for kind in KEYS], ("int64", "string"), ("binary", "bool", "uint64")])
@settings(max_examples=15, deadline=None, print_blob=True)
@given(data=st.data())
def test_a_key_set_knows_exactly_the_keys_that_were_added(kinds: tuple[str, ...], data: st.DataObject) -> None:
    drawn = st.lists(st.tuples(*[KEYS[kind][1] for kind in kinds]), max_size=8)
    first, second, asked = data.draw(drawn), data.draw(drawn), data.draw(drawn)
    keys = KeySet([f"k{i}" for i in range(len(kinds))])
    table = _table(kinds, asked)
    assert keys.unseen(table).num_rows == len(asked)
    assert keys.seen(table).num_rows == 0
    for added in (first, second):
        keys.add(_table(kinds, added))
        known = set(first) if added is first else {*first, *second}
        assert keys.seen(table).column("n").to_pylist() == [n for n, key in enumerate(asked) if key in known]
        assert keys.unseen(table).column("n").to_pylist() == [n for n, key in enumerate(asked) if key not in known]


@settings(max_examples=60, deadline=None, print_blob=True)
@given(data=st.data())
@pytest.mark.parametrize("kind", [pa.int8(), pa.int64(), pa.uint64()])
def test_numbers_near_and_far_are_known_alike(kind: pa.DataType, data: st.DataObject) -> None:
    bits = kind.bit_width
    low, high = (0, 2**bits - 1) if kind == pa.uint64() else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    near = st.one_of(
        st.integers(low, low + 5), st.integers(high - 5, high), st.integers(0, 100), st.integers(low, high)
    )
    added = data.draw(st.lists(st.lists(near, max_size=4), max_size=4))
    asked = data.draw(st.lists(near, max_size=6)) + [one for some in added for one in some]
    keys, schema = KeySet(["k"]), pa.schema([pa.field("k", kind, nullable=False)])
    for some in added:
        keys.add(pa.table({"k": some}, schema=schema))
    known = {one for some in added for one in some}
    rows = pa.table({"k": pa.array(asked, kind)})
    last = {one: number for number, one in enumerate(asked)}
    assert newest_places(rows, ["k"]).tolist() == sorted(last.values())
    assert keys.seen(rows).column("k").to_pylist() == [one for one in asked if one in known]
    assert keys.unseen(rows).column("k").to_pylist() == [one for one in asked if one not in known]


def test_without_a_key_every_row_counts() -> None:
    table = _table(("int64",), [(1,), (1,), (1,)])
    assert newest_rows(table, ()).num_rows == 3
    keys = KeySet(())
    keys.add(table)
    assert keys.unseen(table).num_rows == 3


def test_tombstones_are_no_living_rows() -> None:
    table = pa.table({"id": [1, 2, 3], TOMBSTONE: [False, True, False]})
    assert living(table).to_pydict() == {"id": [1, 3]}
    assert living(table.slice(0, 1)).to_pydict() == {"id": [1]}
    assert living(table.slice(0, 0)).column_names == ["id"]


def _table(kinds: tuple[str, ...], rows: list[tuple[Any, ...]]) -> pa.Table:
    columns = {f"k{i}": pa.array([row[i] for row in rows], KEYS[kind][0]) for i, kind in enumerate(kinds)}
    table = pa.table({**columns, "n": pa.array(range(len(rows)), pa.int64())})
    # In two chunks, as tables of several puts are.
    half = len(rows) // 2
    return pa.concat_tables([table.slice(0, half), table.slice(half)])
