"""Order within a batch: noticed where it is broken, put right after a shuffle."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.streaming.write.ordering import OrderWatch, in_order


def order(*pairs: tuple[int, int]) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "_partition": pa.array([p for p, _ in pairs], pa.int32()),
            "_offset": pa.array([o for _, o in pairs], pa.int64()),
        }
    )


def watched(*batches: pa.RecordBatch | None) -> bool:
    watch = OrderWatch()
    for batch in batches:
        watch.see(batch)
    return watch.kept


@pytest.mark.parametrize(
    ("batches", "kept"),
    [
        ([order((0, 1), (0, 2)), order((0, 3))], True),
        ([order((0, 1), (0, 1))], True),  # one record may become several rows
        ([order((0, 2), (0, 1))], False),
        ([order((0, 2)), order((0, 1))], False),
        ([order((0, 5), (1, 1), (0, 6), (1, 2))], True),  # partitions have no order among each other
        ([order((0, 5), (1, 1), (0, 4), (1, 2))], False),
        ([order((1, 5)), order((0, 1)), order((1, 6))], True),
        ([order((1, 5)), order((0, 1)), order((1, 4))], False),
        ([None, order((0, 5)), None], True),
        ([order()], True),
    ],
)
def test_offsets_must_rise_within_each_partition(batches: list[Any], kept: bool) -> None:
    assert watched(*batches) is kept


def test_one_partition_number_of_two_topics_is_two_partitions() -> None:
    def of(topics: str, *offsets: int) -> pa.RecordBatch:
        partitions = pa.array([0] * len(offsets), pa.int32())
        return pa.record_batch({"_topic": list(topics), "_partition": partitions, "_offset": list(offsets)})

    assert watched(of("ab", 5, 1), of("ba", 2, 6))
    assert not watched(of("ab", 5, 1), of("ba", 2, 4))


@pytest.mark.parametrize(
    ("values", "kept"),
    [([[1, 2, 2], [2, 3]], True), ([[1, 3, 2]], False), ([[3], [2]], False), ([[1, None]], False), ([[5]], True)],
)
def test_a_sequence_must_not_fall(values: list[list[int | None]], kept: bool) -> None:
    assert watched(*(pa.record_batch({"_sequence": pa.array(one, pa.int64())}) for one in values)) is kept


def stays(*pairs: tuple[int, bool]) -> pa.RecordBatch:
    return pa.record_batch({"_sequence": [n for n, _ in pairs], "_stays": [stays for _, stays in pairs]})


@pytest.mark.parametrize(
    ("batches", "kept"),
    [
        ([stays((1, False), (1, True), (2, False))], True),
        ([stays((1, True), (1, False))], False),
        ([stays((1, True)), stays((1, False))], False),
        ([stays((1, True)), stays((2, False))], True),
        ([stays((1, False)), stays((1, False), (1, True))], True),
    ],
)
def test_of_one_sequence_what_is_deleted_comes_first(batches: list[Any], kept: bool) -> None:
    assert watched(*batches) is kept
    rows = pa.Table.from_batches(batches).to_pylist()
    made = [(pa.record_batch({"at": [at]}), batch.slice(i, 1)) for at, (batch, i) in enumerate(_each(batches))]
    found = [rows[at] for one in in_order(made) for at in one.column("at").to_pylist()]
    assert found == sorted(rows, key=lambda row: (row["_sequence"], row["_stays"]))


def _each(batches: list[pa.RecordBatch]) -> list[tuple[pa.RecordBatch, int]]:
    return [(batch, i) for batch in batches for i in range(batch.num_rows)]


@settings(max_examples=200, deadline=None, print_blob=True)
@given(
    st.lists(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 50)), min_size=1, max_size=8), min_size=1, max_size=6)
)
def test_parts_in_any_order_and_overlapping_come_out_sorted_and_stable(found: list[list[tuple[int, int]]]) -> None:
    number = 0
    parts = []
    for keys in found:
        ids = list(range(number, number + len(keys)))
        number += len(keys)
        parts.append((pa.record_batch({"id": ids}), order(*keys)))
    keyed = [(key, i) for i, key in enumerate(key for keys in found for key in keys)]
    wanted = sorted(keyed, key=lambda one: one[0])
    ids = [row for batch in in_order(parts) for row in batch.column("id").to_pylist()]
    assert [keyed[i][0] for i in ids] == [key for key, _ in wanted]
    assert sorted(ids) == list(range(number))


def test_parts_that_do_not_overlap_are_not_copied() -> None:
    parts = [(pa.record_batch({"id": [i]}), order((0, i))) for i in (3, 1, 2)]
    assert in_order(parts) == [parts[1][0], parts[2][0], parts[0][0]]
    assert [id(batch) for batch in in_order(parts)] == [id(parts[i][0]) for i in (1, 2, 0)]


def test_without_an_order_rows_stay_as_they_came() -> None:
    parts = [(pa.record_batch({"id": [i]}), None) for i in (3, 1, 2)]
    assert [batch.column("id")[0].as_py() for batch in in_order(parts)] == [3, 1, 2]


def test_a_null_in_the_sequence_comes_last() -> None:
    sequence = [pa.record_batch({"_sequence": pa.array([value], pa.int64())}) for value in (None, 2, 1)]
    parts = [(pa.record_batch({"id": [i]}), one) for i, one in enumerate(sequence)]
    assert [row for batch in in_order(parts) for row in batch.column("id").to_pylist()] == [2, 1, 0]
