"""Searches by vector: what comes, what is refused, what is read."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import headgate
from headgate.caches import cache_usage
from headgate.errors import InvalidInput
from headgate.search.build.plan import Limits
from headgate.search.vectors import layers as layers_module
from headgate.search.vectors.distances import distances
from headgate.search.vectors.layers import ShardLayers, layers_of
from headgate.shards.rows.view import ShardDelta
from headgate.table.table import Table
from tests.search.vectors.histories import Oracle, check_nearest, differ, make_table, schema_of, told


def rows(table: Table, vectors: dict[int, Any]) -> pa.Table:
    plain = pa.schema([field.remove_metadata() for field in table.schema])
    return pa.table(
        [list(vectors), list(vectors.values()), [i % 7 for i in vectors], [None] * len(vectors)], schema=plain
    )


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """1 in the base, 2 in an SSTable, 3 in the tail; 4 and 5 superseded by newer rows of 1 and 2."""
    table = make_table(tmp_path / "t", dimension=2)
    with table.writer("single") as writer:
        writer.put(rows(table, {1: [1, 0], 2: [9, 9], 3: [9, 9], 4: [0, 0]}))
    table.flush()
    table.compact()
    with table.writer("single") as writer:
        writer.put(rows(table, {2: [2, 0], 4: [0, 1]}))
        writer.flush_memtable()
        writer.put(rows(table, {3: [3, 0]}))
        writer.delete(pa.record_batch({"id": pa.array([4], pa.int64())}))
    return table


def test_every_layer_is_searched_and_older_versions_and_deletes_are_hidden(table: Table) -> None:
    found = table.nearest([0, 0], k=10)
    assert found.column("id").to_pylist() == [1, 2, 3]
    assert found.column("_distance").to_pylist() == [1.0, 4.0, 9.0]
    assert found.schema.names == ["id", "embedding", "size", "note", "_distance"]
    assert table.nearest([0, 0], k=1, columns="id").to_pydict() == {"id": [1], "_distance": [1.0]}
    assert table.nearest([0, 0], k=1, columns=[]).to_pydict() == {"_distance": [1.0]}


def test_the_filter_is_applied_before_the_nearest_are_taken(table: Table) -> None:
    assert table.nearest([0, 0], k=1, filter="id > 1").column("id").to_pylist() == [2]
    assert table.nearest([0, 0], k=1, filter="embedding is not null and id > 2").column("id").to_pylist() == [3]
    # Those that are gone would pass.
    assert table.nearest([9, 9], k=1, filter="size = 4").num_rows == 0


def test_a_checkpoint_is_searched_as_it_was(table: Table) -> None:
    table.checkpoint("durable", name="before", expires="1h")
    with table.writer("single") as writer:
        writer.put(rows(table, {7: [0, 0]}))
    assert table.nearest([0, 0], k=1).column("id").to_pylist() == [7]
    then = headgate.open_table(table.uri, checkpoint="before")
    assert then.nearest([0, 0]).column("id").to_pylist() == [1, 2, 3]


def test_rows_that_do_not_count_take_no_place_among_the_nearest(tmp_path: Path) -> None:
    """More of the base's nearest rows are superseded than are asked for at first."""
    table = make_table(tmp_path / "t", dimension=2)
    lance.write_dataset(rows(table, {i: [i, 0] for i in range(500)}).cast(table.schema), table.uri, mode="append")
    with table.writer("single") as writer:
        writer.put(rows(table, {i: [-1000, 0] for i in range(400)}))
    assert table.nearest([0, 0], k=3).column("id").to_pylist() == [400, 401, 402]


def test_what_was_found_out_is_used_until_the_table_changes(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    make = layers_module._made

    def counted(delta: ShardDelta) -> ShardLayers:
        made.append(delta)
        return make(delta)

    monkeypatch.setattr(layers_module, "_made", counted)
    table = headgate.open_table(table.uri)
    for _ in range(3):
        table.nearest([0, 0])
    assert len(made) == 1
    assert cache_usage().nbytes["sstable_vectors"] > 0
    with table.writer("single") as writer:
        writer.put(rows(table, {8: [0, 0]}))
    assert table.nearest([0, 0], k=1).column("id").to_pylist() == [8]


def test_an_instant_with_new_rows_computes_only_their_lengths(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", "cosine", dimension=2)
    with table.writer("single") as writer:
        writer.put(rows(table, {1: [1, 0], 2: [3, 4]}))
        writer.flush_memtable()
        table.nearest([1, 0])
        (sstable,) = layers_of(table._snapshot()).fresh
        lengths = sstable.vectors("embedding").lengths
        assert lengths.tolist() == [1, 5]
        for number in range(3, 9):
            writer.put(rows(table, {number: [0, number]}))
        assert table.nearest([0, 1], k=6).column("id").to_pylist() == [3, 4, 5, 6, 7, 8]
        fresh, sstable = layers_of(table._snapshot()).fresh
        assert sstable.vectors("embedding").lengths is lengths
        assert len(list(fresh.vectors("embedding").runs)) == 1, "single puts are copied into one run"


@pytest.mark.parametrize("budget", [0, 1 << 30])
def test_vectors_that_are_not_held_are_read_and_the_answer_is_the_same(
    tmp_path: Path, cache_budget: Callable[[int], None], budget: int
) -> None:
    cache_budget(budget)
    chance = random.Random(5)
    table = make_table(tmp_path / "t", "cosine", dimension=4)
    with table.writer("single") as writer:
        for number in range(3):
            writer.put(rows(table, {i: [chance.gauss(0, 1) for _ in range(4)] for i in range(number * 7, 40)}))
            writer.flush_memtable()
    check_nearest(table, Oracle(table, "cosine"), chance, 10)


def test_rows_from_before_a_column_change_are_searched(table: Table) -> None:
    table.add_column("colour string")
    table = headgate.open_table(table.uri)
    found = table.nearest([0, 0], columns=["id", "colour"])
    assert found.to_pydict() == {"id": [1, 2, 3], "colour": [None] * 3, "_distance": [1.0, 4.0, 9.0]}


def test_long_runs_and_short_ones_are_measured_alike(tmp_path: Path) -> None:
    """Blocks of a megabyte, of which some are put row by row, and native's distances to 32 bits."""
    chance = np.random.default_rng(3)
    vectors = chance.standard_normal((9_000, 64), dtype=np.float32)
    schema = schema_of(pa.float32(), 64)
    table = make_table(tmp_path / "t", "l2", keyed=False, dimension=64)
    column = pa.FixedSizeListArray.from_arrays(vectors.ravel(), 64)
    every = pa.table([np.arange(9_000), column, np.zeros(9_000, np.int32), [None] * 9_000], schema=schema)
    with table.writer("single") as writer:
        writer.put(every.slice(0, 8_990))
        for number in range(8_990, 9_000):
            writer.put(every.slice(number, 1))
    query = vectors[8_995] + np.float32(0.01)
    ours = told(table.nearest(query, k=20))
    assert ours[0][1] == 8_995
    assert differ(ours, Oracle(table, "l2").answer(query), 20) is None


def test_distances_of_vectors_that_have_none_are_not_numbers() -> None:
    query = np.array([1, 0], np.float32)
    odd = np.array([[0, 0], [np.nan, 1], [2, 0]], np.float32)
    assert np.isnan(distances(odd, query, "cosine")).tolist() == [True, True, False]
    assert distances(odd, query, "dot").tolist()[::2] == [1.0, -1.0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"vector": [1.0]}, "vectors of 2 numbers, got one of 1"),
        ({"vector": [[1.0, 2.0]]}, "one of 1×2"),
        ({"vector": 1.0}, "one of no"),
        ({"vector": "near"}, "a list or an array of numbers"),
        ({"vector": [1.0, float("nan")]}, "finite"),
        ({"vector": [1.0, 1e300]}, "finite"),
        ({"k": 0}, "k must be"),
        ({"k": True}, "k must be"),
        ({"nprobes": 0}, "nprobes must be"),
        ({"refine": 0}, "refine must be"),
        ({"column": "size"}, "'size' is not a vector column"),
        ({"columns": ["nothing"]}, "Column 'nothing' not found"),
        ({"filter": "nowhere = 1"}, "rejects the filter"),
        ({"filter": "1 / (size - size) = 1"}, "fails on a row"),
    ],
)
def test_what_cannot_be_is_refused(table: Table, arguments: dict[str, Any], said: str) -> None:
    given = {"vector": [0, 0], **arguments}
    with pytest.raises(InvalidInput, match=said):
        table.nearest(given.pop("vector"), **given)


def test_what_cannot_be_fused_is_refused(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", dimension=2, full_text="note")
    assert table.hybrid("late", [0, 0]).num_rows == 0
    for arguments, said in (
        ({"fuse": "sum"}, "fuse must be one of rrf, weighted"),
        ({"weight": 2}, "weight must be"),
        ({"k": 0}, "k must be at least 1"),
        ({"match": "some"}, "any, all or phrase"),
    ):
        with pytest.raises(InvalidInput, match=said):
            table.hybrid("late", [0, 0], **arguments)


def test_a_vector_without_direction_is_refused_where_the_metric_is_cosine(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="all zeros"):
        make_table(tmp_path / "t", "cosine").nearest([0] * 6)


def test_a_table_without_vectors_says_how_to_name_them(tmp_path: Path) -> None:
    table = headgate.create_table(str(tmp_path / "t"), "id bigint")
    with pytest.raises(InvalidInput, match="0 vector columns"):
        table.nearest([1])
    with pytest.raises(InvalidInput, match="not a vector column"):
        table.nearest([1], column="id")


def test_with_an_index_all_rows_come_where_all_are_asked_for(tmp_path: Path) -> None:
    """Whatever an index leaves out would be missing then: newer rows, deletes, odd vectors, rows it does not cover."""
    chance = random.Random(3)
    table = headgate.create_table(
        str(tmp_path / "t"),
        schema_of(pa.float32(), 8),
        primary_key="id",
        vector={"embedding": headgate.vector("cosine", train_rows=512)},
    )

    def some(numbers: range) -> pa.Table:
        odd: list[Any] = [None, [0.0] * 8, [float("nan")] * 8]
        return rows(table, {i: odd[i % 30] if i % 30 < 3 else [chance.gauss(0, 1) for _ in range(8)] for i in numbers})

    for numbers in (range(700), range(700, 1000)):
        lance.write_dataset(some(numbers).cast(table.schema), table.uri, mode="append")
        table.build_index("embedding", limits=Limits(tasks=2, task_rows=1))
    lance.write_dataset(some(range(1000, 1050)).cast(table.schema), table.uri, mode="append")
    lance.dataset(table.uri).delete("id % 50 = 7")
    with table.writer("single") as writer:
        writer.put(some(range(100, 200)))
        writer.flush_memtable()
        writer.put(some(range(150, 170)))
        writer.delete(pa.record_batch({"id": pa.array(range(300, 400), pa.int64())}))
    oracle = Oracle(table, "cosine")
    for filter in (None, "size = 3", "id > 900 OR id < 200"):
        query = np.array([chance.gauss(0, 1) for _ in range(8)], np.float32)
        ours = told(table.nearest(query, k=2_000, filter=filter))
        assert differ(ours, oracle.answer(query, filter=filter), 2_000) is None
        few = told(table.nearest(query, k=5, filter=filter, nprobes=100, refine=100))
        assert differ(few, oracle.answer(query, filter=filter), 5) is None


def test_a_table_of_vectors_alone_is_filtered_by_what_names_no_column(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("embedding", pa.list_(pa.float32(), 2))])
    table = headgate.create_table(str(tmp_path / "t"), schema, vector={"embedding": headgate.vector("l2")})
    with table.writer("single") as writer:
        writer.put(pa.table([pa.array([[1, 0], [2, 0]], schema[0].type)], schema=schema))
    for filter, count in (("1 = 1", 2), ("1 = 2", 0), ("embedding IS NOT NULL", 2)):
        assert table.nearest([0, 0], filter=filter).num_rows == count


def test_vectors_of_great_numbers_are_as_far_as_native_says(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", "l2", dimension=2)
    with table.writer("single") as writer:
        writer.put(rows(table, {1: [1e30, 0], 2: [-3e38, 3e38], 3: [1, 1], 4: [float("inf"), 0]}))
    query = np.array([1, 0], np.float32)
    assert differ(told(table.nearest(query)), Oracle(table, "l2").answer(query), 10) is None
