"""What a compaction takes next and what of the base may be tidied, as tables of cases."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from headgate.checkpoints.jobs.policy import (
    UNKNOWN_BYTES,
    BasePolicy,
    CompactLimits,
    ListedVersion,
    chosen,
    old_versions,
    size_of,
    untouched_fragments,
)
from headgate.connectors.lance.base.tidy import FragmentSize
from headgate.errors import InvalidInput
from headgate.shards.manifest.model import SsTable

A, B, C = UUID(int=1), UUID(int=2), UUID(int=3)


def sstables(*sizes: int | None, first: int = 1) -> list[SsTable]:
    return [SsTable(generation, f"g{generation}", in_memory_bytes=size) for generation, size in enumerate(sizes, first)]


@pytest.mark.parametrize(
    ("fresh", "limits", "expected"),
    [
        ({}, {}, {}),
        ({A: (1, 1, 1)}, {}, {A: 3}),
        ({A: (1, 1, 1)}, {"max_bytes": 2}, {A: 2}),
        ({A: (10, 1)}, {"max_bytes": 2}, {A: 1}),  # one that is larger goes alone
        ({A: (1, 10, 1)}, {"max_bytes": 2}, {A: 1}),  # and never an older one after a newer one
        ({A: (2, 2, 2), B: (2,)}, {"max_bytes": 4}, {A: 1, B: 1}),  # by turns
        ({A: (3, 3), B: (1, 1, 1)}, {"max_bytes": 6}, {A: 1, B: 3}),
        ({A: (1,), B: (1, 1)}, {"min_sstables": 2}, {B: 2}),
        ({A: (1,)}, {"min_sstables": 2}, {}),
        ({A: (None, None), B: (1,)}, {"max_bytes": UNKNOWN_BYTES + 1}, {A: 1, B: 1}),
    ],
)
def test_oldest_sstables_first_by_turns_and_up_to_a_size(
    fresh: dict[UUID, tuple[int, ...]], limits: dict[str, int], expected: dict[UUID, int]
) -> None:
    known = {shard: sstables(*sizes) for shard, sizes in fresh.items()}
    taken = chosen(known, CompactLimits(**limits))
    assert {shard: len(found) for shard, found in taken.items()} == expected
    for shard, found in taken.items():
        assert list(found) == known[shard][: len(found)], "a prefix"


def test_something_is_always_taken_so_that_rounds_come_to_an_end() -> None:
    left = {A: sstables(5, 9, 1), B: sstables(100), C: sstables(None, 3)}
    rounds = 0
    while any(left.values()):
        taken = chosen({shard: rest for shard, rest in left.items() if rest}, CompactLimits(max_bytes=1))
        assert sum(map(size_of, (one for found in taken.values() for one in found))) > 0
        left = {shard: rest[len(taken.get(shard, ())) :] for shard, rest in left.items()}
        rounds += 1
    assert rounds == 6


POLICY = BasePolicy(small_rows=10, max_small=3, target_rows=100, max_deleted=0.3)


@pytest.mark.parametrize(
    ("fragments", "expected"),
    [
        ([], None),
        ([(5, 0), (5, 0)], None),
        ([(5, 0), (5, 0), (5, 0)], {()}),
        ([(50, 0), (5, 0), (5, 0), (60, 0), (5, 0)], {(0, 3)}),
        ([(50, 15), (60, 0)], None),
        ([(50, 16), (60, 0)], {(1,)}),
        ([(12, 3), (5, 0), (5, 0)], {()}),  # small without its deleted rows
    ],
)
def test_small_and_hollow_fragments_are_written_anew_once_there_are_enough(
    fragments: list[tuple[int, int]], expected: set[tuple[int, ...]] | None
) -> None:
    found = untouched_fragments([FragmentSize(number, *one) for number, one in enumerate(fragments)], POLICY)
    assert (None if found is None else {tuple(sorted(found))}) == expected


NOW = datetime(2024, 1, 1, tzinfo=UTC)


def listed(**ages: int) -> list[ListedVersion]:
    """Versions v1, v2 … with the hours since they were made."""
    return [ListedVersion(int(name[1:]), NOW - timedelta(hours=age)) for name, age in ages.items()]


@pytest.mark.parametrize(
    ("versions", "held", "expected"),
    [
        ({}, (), []),
        ({"v1": 100}, (), []),  # the latest stays
        ({"v1": 100, "v2": 50}, (), [1]),
        ({"v1": 100, "v2": 1}, (), []),  # replaced an hour ago, whatever its own age
        ({"v1": 100, "v2": 50, "v3": 1}, (), [1]),
        ({"v1": 100, "v2": 50, "v3": 40, "v4": 30}, (2,), [1, 3]),
        ({"v4": 24, "v1": 100, "v3": 30}, (), [1, 3]),  # the border counts as old; in any order
    ],
)
def test_a_version_is_old_when_a_later_one_replaced_it_long_ago_and_no_tag_holds_it(
    versions: dict[str, int], held: tuple[int, ...], expected: list[int]
) -> None:
    assert old_versions(listed(**versions), held, NOW - timedelta(hours=24)) == expected


@pytest.mark.parametrize("limits", [{"max_bytes": 0}, {"min_sstables": 0}])
def test_limits_that_cannot_be_are_refused(limits: dict[str, int]) -> None:
    with pytest.raises(InvalidInput):
        CompactLimits(**limits)


@pytest.mark.parametrize(
    "policy",
    [
        {"small_rows": 0},
        {"small_rows": 11, "target_rows": 10},
        {"max_small": 1},
        {"max_deleted": 0.0},
        {"keep_versions": timedelta(seconds=-1)},
    ],
)
def test_a_policy_that_cannot_be_is_refused(policy: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        BasePolicy(**policy)
