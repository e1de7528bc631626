"""When a stream's shards are flushed, its SSTables compacted, and its batches delayed. Pure: no store, no clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from headgate.checkpoints.stream.backlog import MAX_ENTRIES
from headgate.checkpoints.stream.shards import ShardLoad
from headgate.errors import InvalidInput
from headgate.streaming.options import SinkOptions

DEFAULTS = SinkOptions()
"""Of the options that set the thresholds."""

BASE_START = 0.8
"""Rows start on their way into the base at this share of the age that they may have: the rest is for the jobs."""

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 300.0
"""Seconds before a job that failed is tried again: 1, 2, 4 … up to five minutes."""

Reason = Literal["unflushed bytes", "sstables"]


@dataclass(frozen=True)
class MaintenanceLimits:
    """The thresholds. Sizes in bytes, times in seconds."""

    flush_bytes: int = DEFAULTS.max_memtable_size
    """A shard with so many unflushed bytes is flushed."""
    flush_seconds: float = DEFAULTS.memtable_seconds
    """A shard whose oldest unflushed entry is so old is flushed."""
    max_unflushed_bytes: int = DEFAULTS.max_unflushed_memtable_bytes
    """With so many in all shards together, batches wait."""
    compact_sstables: int = DEFAULTS.compact_sstables
    """A shard with so many SSTables is compacted."""
    max_sstables: int = DEFAULTS.max_sstables
    """While a shard has more, batches wait."""
    base_seconds: float = DEFAULTS.base_seconds
    """Rows that are so old should be in the base, where plain Lance readers see them."""

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
    """The shards to flush now, largest first: those that are large, old, many or unknown; and, where the budget is used
    up though none is large, the largest until half of it is free.
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
    """Whether the SSTables of a shard are so many, or their oldest row so old, that they should go into the base."""
    return any(
        load.sstables >= limits.compact_sstables
        or (load.sstables > 0 and ages.get(load.name, 0.0) >= limits.base_seconds * BASE_START)
        for load in loads
    )


def delay(loads: Sequence[ShardLoad], limits: MaintenanceLimits) -> Delay | None:
    """Why the next batch must wait; None where it need not."""
    unflushed = sum(load.nbytes for load in loads)
    if unflushed >= limits.max_unflushed_bytes:
        return Delay("unflushed bytes", unflushed, limits.max_unflushed_bytes)
    sstables = max((load.sstables for load in loads), default=0)
    if sstables > limits.max_sstables:
        return Delay("sstables", sstables, limits.max_sstables)
    return None


def cores_beside(cores: int) -> int:
    """How many of them maintenance may use at once, so that one is left for batches. On one core that cannot be."""
    return max(1, cores - 1)


def tasks_beside(asked: int, cores: int) -> int:
    """So many tasks of one maintenance job at once that one for the shards and one for the base run side by side in
    the cores that maintenance may use. On fewer than three cores they take turns.
    """
    return max(1, min(asked, cores_beside(cores) // 2))


def pause_after(failures: int) -> float:
    """Seconds to wait after so many failures in a row."""
    return min(FIRST_PAUSE * 2.0 ** min(failures - 1, 16), LONGEST_PAUSE)


def _is_due(load: ShardLoad, age: float, limits: MaintenanceLimits) -> bool:
    return (
        not load.known
        or load.nbytes >= limits.flush_bytes
        or load.entries >= MAX_ENTRIES
        # Half of the way into the base is the flush.
        or age >= min(limits.flush_seconds, limits.base_seconds / 2)
    )
