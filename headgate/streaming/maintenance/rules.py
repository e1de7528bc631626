"""Rules that decide when shards are flushed, SSTables compacted and batches delayed. Pure: no store, no clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from headgate.checkpoints.stream.backlog import MAX_ENTRIES
from headgate.checkpoints.stream.shards import ShardLoad
from headgate.errors import InvalidInput
from headgate.streaming.options import SinkOptions

DEFAULTS = SinkOptions()
"""The default thresholds."""

BASE_START = 0.8
"""Compaction starts at this share of the maximum age, to leave time for the jobs."""

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 300.0
"""Seconds before a failed job is retried: 1, 2, 4 … up to five minutes."""

Reason = Literal["unflushed bytes", "sstables"]


@dataclass(frozen=True)
class MaintenanceLimits:
    """The thresholds. Sizes in bytes, times in seconds."""

    flush_bytes: int = DEFAULTS.max_memtable_size
    """A shard with this many unflushed bytes is flushed."""
    flush_seconds: float = DEFAULTS.memtable_seconds
    """A shard whose oldest unflushed entry has this age is flushed."""
    max_unflushed_bytes: int = DEFAULTS.max_unflushed_memtable_bytes
    """If all shards together have this many unflushed bytes, batches wait."""
    compact_sstables: int = DEFAULTS.compact_sstables
    """A shard with this many SSTables is compacted."""
    max_sstables: int = DEFAULTS.max_sstables
    """While a shard has more SSTables, batches wait."""
    base_seconds: float = DEFAULTS.base_seconds
    """Rows of this age should be in the base, where plain Lance readers see them."""

    def __post_init__(self) -> None:
        if self.max_sstables < self.compact_sstables:
            raise InvalidInput(
                f"max_sstables ({self.max_sstables}) must be at least compact_sstables "
                f"({self.compact_sstables}): otherwise batches wait for a compaction that never starts.",
                advice="raise max_sstables or lower compact_sstables",
            )


@dataclass(frozen=True, slots=True)
class Delay:
    """Why batches wait."""

    reason: Reason
    value: int
    limit: int

    def __str__(self) -> str:
        what = "bytes are not flushed yet" if self.reason == "unflushed bytes" else "SSTables of a shard wait"
        return f"{self.value:,} {what}, the limit is {self.limit:,}"


def to_flush(loads: Sequence[ShardLoad], ages: Mapping[str, float], limits: MaintenanceLimits) -> list[str]:
    """The shards to flush now, largest first: those with many bytes or entries, old ones, and unknown ones. If the
    budget is used up, also the largest others until half of it is free.
    """
    waiting = sorted((load for load in loads if load.entries or not load.known), key=lambda load: -load.nbytes)
    due = [load for load in waiting if _is_due(load, ages.get(load.name, 0.0), limits)]
    left = sum(load.nbytes for load in waiting)
    if left >= limits.max_unflushed_bytes:
        left -= sum(load.nbytes for load in due)
        for load in waiting:
            if left <= limits.max_unflushed_bytes // 2:
                break
            if load not in due:
                due.append(load)
                left -= load.nbytes
    return [load.name for load in due]


def is_compaction_due(loads: Sequence[ShardLoad], ages: Mapping[str, float], limits: MaintenanceLimits) -> bool:
    """True if a shard has so many SSTables, or so old rows in them, that they should be compacted into the base."""
    return any(
        load.sstables >= limits.compact_sstables
        or (load.sstables > 0 and ages.get(load.name, 0.0) >= limits.base_seconds * BASE_START)
        for load in loads
    )


def delay(loads: Sequence[ShardLoad], limits: MaintenanceLimits) -> Delay | None:
    """Why the next batch must wait; None if it need not."""
    unflushed = sum(load.nbytes for load in loads)
    if unflushed >= limits.max_unflushed_bytes:
        return Delay("unflushed bytes", unflushed, limits.max_unflushed_bytes)
    sstables = max((load.sstables for load in loads), default=0)
    if sstables > limits.max_sstables:
        return Delay("sstables", sstables, limits.max_sstables)
    return None


def cores_beside(cores: int) -> int:
    """Cores that maintenance may use at once: one is left for batches, unless there is only one."""
    return max(1, cores - 1)


def tasks_beside(asked: int, cores: int) -> int:
    """Maximum tasks of one maintenance job, so that a job on shards and one on the base run side by side within the
    cores of maintenance. With fewer than three cores they take turns.
    """
    return max(1, min(asked, cores_beside(cores) // 2))


def pause_after(failures: int) -> float:
    """Seconds to wait after this many consecutive failures."""
    return min(FIRST_PAUSE * 2.0 ** min(failures - 1, 16), LONGEST_PAUSE)


def _is_due(load: ShardLoad, age: float, limits: MaintenanceLimits) -> bool:
    return (
        not load.known
        or load.nbytes >= limits.flush_bytes
        or load.entries >= MAX_ENTRIES
        # A row may wait half of its maximum age for the flush; the rest is for the compaction.
        or age >= min(limits.flush_seconds, limits.base_seconds / 2)
    )
