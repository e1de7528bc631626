"""When shards are flushed, SSTables compacted and batches delayed, as tables of cases."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headgate.checkpoints.stream.backlog import MAX_ENTRIES
from headgate.checkpoints.stream.shards import ShardLoad
from headgate.errors import InvalidInput
from headgate.streaming.maintenance.rules import (
    LONGEST_PAUSE,
    MaintenanceLimits,
    cores_beside,
    delay,
    is_compaction_due,
    pause_after,
    tasks_beside,
    to_flush,
)
from headgate.streaming.maintenance.spark import schedule_of
from headgate.streaming.options import sink_options

LIMITS = MaintenanceLimits(
    flush_bytes=100,
    flush_seconds=60.0,
    max_unflushed_bytes=1000,
    compact_sstables=4,
    max_sstables=8,
    base_seconds=200.0,
)


def load(name: str, nbytes: int = 0, entries: int = 1, known: bool = True, sstables: int = 0) -> ShardLoad:
    return ShardLoad(name, nbytes, entries, known, sstables)


@pytest.mark.parametrize(
    ("loads", "ages", "expected"),
    [
        ([], {}, []),
        ([load("a", 99)], {"a": 59.0}, []),
        ([load("a", 100)], {}, ["a"]),
        ([load("a", 1)], {"a": 60.0}, ["a"]),
        ([load("a", 0, entries=0)], {"a": 1000.0}, []),  # nothing to flush
        ([load("a", 1, entries=MAX_ENTRIES)], {}, ["a"]),
        ([load("a", 0, entries=0, known=False)], {}, ["a"]),  # of an earlier driver
        ([load("a", 100), load("b", 300), load("c", 5)], {}, ["b", "a"]),  # the largest first
        # The budget is used up, and none is large: the largest until half of it is free.
        ([load(str(n), 99) for n in range(10)] + [load("z", 10)], {}, [str(n) for n in range(6)]),
        ([load("a", 99), load("b", 901)], {}, ["b"]),
    ],
)
def test_shards_that_are_large_old_many_or_unknown_are_flushed_and_any_where_the_budget_is_used_up(
    loads: list[ShardLoad], ages: dict[str, float], expected: list[str]
) -> None:
    assert to_flush(loads, ages, LIMITS) == expected


def test_whatever_delays_a_batch_by_its_bytes_is_due_for_a_flush() -> None:
    """Otherwise it would wait for ever."""
    for sizes in ([1000], [99] * 11, [1] * 1000, [500, 500], [99] * 10 + [10]):
        loads = [load(str(number), size) for number, size in enumerate(sizes)]
        assert delay(loads, LIMITS) is not None
        flushed = set(to_flush(loads, {}, LIMITS))
        assert delay([one for one in loads if one.name not in flushed], LIMITS) is None


def test_whatever_delays_a_batch_by_its_sstables_is_due_for_a_compaction() -> None:
    for count in range(20):
        loads = [load("a", sstables=count)]
        assert delay(loads, LIMITS) is None or is_compaction_due(loads, {}, LIMITS)


@pytest.mark.parametrize(
    ("loads", "expected"),
    [
        ([], None),
        ([load("a", 999)], None),
        ([load("a", 500), load("b", 500)], ("unflushed bytes", 1000, 1000)),
        ([load("a", sstables=8)], None),
        ([load("a", sstables=9), load("b", sstables=1)], ("sstables", 9, 8)),
    ],
)
def test_batches_wait_for_the_budget_of_bytes_and_the_cap_on_sstables_alone(
    loads: list[ShardLoad], expected: tuple[str, int, int] | None
) -> None:
    found = delay(loads, LIMITS)
    assert (None if found is None else (found.reason, found.value, found.limit)) == expected
    assert found is None or str(found.limit) in str(found).replace(",", "")


@pytest.mark.parametrize(("count", "due"), [(0, False), (3, False), (4, True), (9, True)])
def test_a_shard_with_many_sstables_is_compacted(count: int, due: bool) -> None:
    assert is_compaction_due([load("a", sstables=1), load("b", sstables=count)], {}, LIMITS) is due


@pytest.mark.parametrize(
    ("sstables", "age", "due"), [(1, 159.0, False), (1, 160.0, True), (0, 10_000.0, False), (3, 160.0, True)]
)
def test_rows_that_are_old_go_into_the_base_before_they_pass_the_age_that_is_promised(
    sstables: int, age: float, due: bool
) -> None:
    assert is_compaction_due([load("a", sstables=sstables)], {"a": age}, LIMITS) is due


def test_rows_are_flushed_in_time_for_the_base() -> None:
    limits = replace(LIMITS, flush_seconds=10_000.0)
    assert to_flush([load("a", 1)], {"a": 99.0}, limits) == []
    assert to_flush([load("a", 1)], {"a": 100.0}, limits) == ["a"]


def test_pauses_after_failures_grow_and_end() -> None:
    assert [pause_after(times) for times in (1, 2, 3, 4)] == [1.0, 2.0, 4.0, 8.0]
    assert pause_after(10**6) == LONGEST_PAUSE


def test_the_options_of_a_stream_are_the_thresholds() -> None:
    found = schedule_of(
        sink_options(
            {
                "max_memtable_size": 5,
                "max_memtable_age": "2 minutes",
                "max_unflushed_memtable_bytes": 7,
                "compact_sstables": 3,
                "max_sstables": 9,
                "checkpoint_interval": 11,
                "max_base_age": "1 hour",
                "gc_interval": "2 hours",
            },
            {},
        )
    )
    limits = found.limits
    assert (limits.flush_bytes, limits.flush_seconds, limits.max_unflushed_bytes) == (5, 120.0, 7)
    assert limits.base_seconds == 3600.0
    assert (limits.compact_sstables, limits.max_sstables, found.checkpoint_seconds) == (3, 9, 11.0)
    assert found.gc_seconds == 7200.0


@pytest.mark.parametrize("given", [{"max_sstables": 3, "compact_sstables": 4}])
def test_thresholds_that_would_block_for_ever_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="wait"):
        schedule_of(sink_options(given, {}))


@pytest.mark.parametrize(
    ("asked", "cores", "tasks"), [(2, 1, 1), (2, 2, 1), (2, 3, 1), (2, 4, 1), (2, 5, 2), (2, 64, 2), (8, 9, 4)]
)
def test_two_jobs_at_once_leave_a_core_for_batches(asked: int, cores: int, tasks: int) -> None:
    assert tasks_beside(asked, cores) == tasks
    assert cores < 3 or 2 * tasks <= cores_beside(cores) < cores
