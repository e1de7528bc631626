from __future__ import annotations

import random
from collections import Counter
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.shards.rows.schema import PRIMARY_KEY, RowSchema
from headgate.streaming.verify.compare import Prints, compare, newest
from headgate.streaming.verify.fingerprints import row_fingerprints

NESTED = pa.schema(
    [
        ("int", pa.int32()),
        ("text", pa.string()),
        ("flag", pa.bool_()),
        ("money", pa.decimal128(20, 2)),
        ("list", pa.list_(pa.int64())),
        ("struct", pa.struct([("x", pa.int8()), ("y", pa.large_string())])),
        ("vector", pa.list_(pa.float32(), 2)),
        ("map", pa.map_(pa.string(), pa.int64())),
        ("deep", pa.large_list(pa.list_(pa.string()))),
        ("at", pa.timestamp("us", "UTC")),
    ]
)
VALUES: dict[str, list[Any]] = {
    "int": [None, 0, 1, -1],
    "text": [None, "", "a", "ab", "ba", "\0", "\0\0"],
    "flag": [None, True, False],
    "money": [None, Decimal("0.00"), Decimal("1.10"), Decimal("-1.10")],
    "list": [None, [], [None], [0], [0, 0], [1, 0], [0, 1], [None, 0]],
    "struct": [None, {"x": None, "y": None}, {"x": 0, "y": None}, {"x": None, "y": ""}],
    "vector": [None, [0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [None, 0.0]],
    "map": [None, [], [("k", None)], [("k", 0)], [("k", 0), ("j", 0)], [("j", 0), ("k", 0)]],
    "deep": [None, [], [[]], [None], [[], []], [["a"], []], [[], ["a"]], [["a", ""]]],
    "at": [None, 0, 1],
}


@pytest.mark.parametrize("columns", [*([name] for name in NESTED.names), NESTED.names], ids=str)
def test_fingerprints_are_equal_exactly_where_values_are(columns: list[str]) -> None:
    source = random.Random(7)
    rows = [{name: source.choice(VALUES[name]) for name in NESTED.names} for _ in range(3_000)]
    prints: dict[str, set[int]] = {}
    batch = pa.RecordBatch.from_pylist(rows, schema=NESTED)
    for row, found in zip(batch.select(columns).to_pylist(), row_fingerprints(batch, columns), strict=True):
        prints.setdefault(repr(row), set()).add(int(found))
    assert len(prints) > 2
    assert all(len(found) == 1 for found in prints.values())
    assert len(set().union(*prints.values())) == len(prints)


def test_a_fingerprint_does_not_depend_on_the_batch_it_is_in() -> None:
    source = random.Random(8)
    rows = [{name: source.choice(VALUES[name]) for name in NESTED.names} for _ in range(500)]
    batch = pa.RecordBatch.from_pylist(rows, schema=NESTED)
    whole = row_fingerprints(batch, NESTED.names)
    sliced = [row_fingerprints(batch.slice(start, 37), NESTED.names) for start in range(0, 500, 37)]
    order = np.random.default_rng(9).permutation(500)
    assert (np.concatenate(sliced) == whole).all()
    assert (row_fingerprints(batch.take(pa.array(order)), NESTED.names) == whole[order]).all()
    assert len(row_fingerprints(batch.slice(0, 0), NESTED.names)) == 0


PLAIN = RowSchema.of(pa.schema([("k", pa.int64()), ("v", pa.int64())]))
KEYED = RowSchema.of(
    pa.schema([pa.field("k", pa.int64(), nullable=False, metadata={PRIMARY_KEY: b"true"}), ("v", pa.int64())])
)
_pairs = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2)), max_size=20)


def _prints(schema: RowSchema, pairs: list[tuple[int, int]]) -> Prints:
    batch = pa.record_batch({"k": pa.array([k for k, _ in pairs], pa.int64()), "v": pa.array([v for _, v in pairs])})
    return Prints.of(schema, [batch.cast(pa.schema([("k", pa.int64()), ("v", pa.int64())]))])


@given(_pairs, _pairs)
@settings(max_examples=200, print_blob=True)
def test_rows_without_a_key_are_compared_as_multisets(expected: list[Any], found: list[Any]) -> None:
    told = compare(_prints(PLAIN, expected), _prints(PLAIN, found), keyed=False)
    wanted, there = Counter(expected), Counter(found)
    assert told.lost == (wanted - there).total()
    assert told.wrong == sum(times for row, times in there.items() if row not in wanted)
    assert told.duplicates == (there - wanted).total() - told.wrong
    assert bool(told) == (wanted != there)


@given(_pairs, _pairs)
@settings(max_examples=200, print_blob=True)
def test_rows_with_a_key_are_compared_by_key(expected: list[Any], found: list[Any]) -> None:
    wanted = dict(expected)
    told = compare(_prints(KEYED, list(wanted.items())), _prints(KEYED, found), keyed=True)
    first = {k: v for k, v in reversed(found)}
    assert told.duplicates == len(found) - len(first)
    assert told.lost == len(wanted.keys() - first.keys())
    assert told.wrong == sum(k not in wanted or wanted[k] != v for k, v in first.items())


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2), st.booleans()), max_size=30))
@settings(max_examples=200, print_blob=True)
def test_the_newest_change_of_a_key_counts_and_deletes_count(changes: list[tuple[int, int, bool]]) -> None:
    table: dict[int, int] = {}
    for key, value, deleted in changes:
        table.pop(key, None)
        if not deleted:
            table[key] = value
    left = newest(
        _prints(KEYED, [(k, v) for k, v, _ in changes]), np.array([deleted for _, _, deleted in changes], bool)
    )
    assert not compare(_prints(KEYED, list(table.items())), left, keyed=True)
    assert len(left) == len(table)
