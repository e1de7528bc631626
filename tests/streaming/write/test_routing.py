"""Which shards a batch touches and which task reads what: pure, by tables."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.errors import InvalidInput
from headgate.shards.sharding import Bucket, ByPartition, Sharding, Single
from headgate.shards.wal.entry import SourceRange
from headgate.streaming.write.routing import balance, check_routing, shards_of, shards_of_made_rows, size, task_count

RANGES = [SourceRange("t", 0, 0, 10), SourceRange("t", 1, 5, 5), SourceRange("t", 2, 0, 1), SourceRange("u", 0, 3, 9)]


@pytest.mark.parametrize(
    ("sharding", "shards"),
    [
        (ByPartition(), {"partition:t:0": [0], "partition:t:2": [2], "partition:u:0": [3]}),
        (ByPartition(max_shards=2), {"partition:t:0": [0, 2], "partition:u:0": [3]}),
        (Bucket("id", 2), {"bucket-00000": [0, 2, 3], "bucket-00001": [0, 2, 3]}),
        (Single(), {"single": [0, 2, 3]}),
    ],
)
def test_a_batch_touches_the_shards_that_its_offsets_may_reach(
    sharding: Sharding, shards: dict[str, list[int]]
) -> None:
    assert shards_of(sharding, RANGES) == {name: tuple(RANGES[i] for i in at) for name, at in shards.items()}


@pytest.mark.parametrize("sharding", [ByPartition(), Bucket("id", 2), Single()])
def test_a_batch_without_offsets_touches_none(sharding: Sharding) -> None:
    assert shards_of(sharding, [SourceRange("t", 0, 5, 5)]) == {}


@pytest.mark.parametrize(
    ("rows", "cores", "groups", "tasks"),
    [(0, 2, 4, 1), (9_999, 2, 4, 1), (10_001, 2, 4, 2), (10**9, 2, 4, 2), (10**9, 8, 4, 4), (10**9, 8, 0, 1)],
)
def test_small_batches_get_few_tasks_and_none_gets_more_than_cores_or_groups(
    rows: int, cores: int, groups: int, tasks: int
) -> None:
    assert task_count(rows, cores, groups) == tasks


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=20), st.integers(1, 6))
def test_groups_stay_whole_and_every_range_is_read_by_one_task(sizes: list[int], tasks: int) -> None:
    groups = {f"g{i}": (SourceRange("t", i, 0, n), SourceRange("u", i, 0, 1)) for i, n in enumerate(sizes)}
    shares = balance(groups, min(tasks, len(groups)))
    assert sorted(part.partition for share in shares for part in share) == sorted([*range(len(sizes))] * 2)
    for parts in groups.values():
        assert sum(set(parts) <= set(share) for share in shares) == 1
    assert max(map(size, shares)) <= sum(sizes) / len(shares) + max(sizes) + len(sizes), "no task gets much more"


@pytest.mark.parametrize("sharding", [ByPartition(key_is_partitioned=True), ByPartition(2, key_is_partitioned=True)])
def test_on_a_table_with_a_key_a_grown_topic_is_refused_with_its_new_partitions(sharding: Sharding) -> None:
    with pytest.raises(InvalidInput, match=r"new partitions \(t/2, t/3\).*two shards"):
        check_routing(sharding, True, [("t", 0), ("t", 1)], [("t", n) for n in range(4)])


@pytest.mark.parametrize(
    ("sharding", "keyed", "known", "now"),
    [
        (ByPartition(), False, [("t", 0)], [("t", 0), ("t", 1)]),
        (Bucket("id", 2), True, [("t", 0)], [("t", 0), ("t", 1)]),
        (Single(), True, [("t", 0)], [("t", 0), ("t", 1)]),
        (ByPartition(), True, [], [("t", 0), ("t", 1)]),
        (ByPartition(), True, [("t", 0)], [("t", 0), ("u", 0), ("u", 1)]),
    ],
    ids=["no key", "bucket", "single", "first batch", "another topic"],
)
def test_growth_that_moves_no_key_is_welcome(
    sharding: Sharding, keyed: bool, known: list[tuple[str, int]], now: list[tuple[str, int]]
) -> None:
    check_routing(sharding, keyed, known, now)


def test_rows_that_spark_made_may_go_to_shards_the_batch_reads_nothing_for() -> None:
    nothing_new = [SourceRange("t", 0, 5, 5), SourceRange("t", 1, 7, 7)]
    assert set(shards_of_made_rows(ByPartition(), nothing_new)) == {"partition:t:0", "partition:t:1"}
    assert set(shards_of_made_rows(Single(), nothing_new)) == {"single"}
    assert set(shards_of_made_rows(Single(), [])) == {"single"}
