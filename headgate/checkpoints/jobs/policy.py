"""What compaction takes next, and what is tidied in the base. Pure: no store, no clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from uuid import UUID

from headgate.connectors.lance.base.tidy import FragmentSize
from headgate.errors import InvalidInput
from headgate.shards.manifest.model import SsTable

UNKNOWN_BYTES = 64 << 20
"""Size assumed for an SSTable if its manifest does not say it."""


@dataclass(frozen=True)
class CompactLimits:
    """Limits of one round: memory holds this many bytes of SSTables (a larger SSTable goes alone)."""

    max_bytes: int = 256 << 20
    min_sstables: int = 1
    """A shard with fewer SSTables is skipped."""

    def __post_init__(self) -> None:
        if self.max_bytes < 1 or self.min_sstables < 1:
            raise InvalidInput(f"Compaction limits must be above zero, got {self}.")


def chosen(fresh: Mapping[UUID, Sequence[SsTable]], limits: CompactLimits) -> dict[UUID, tuple[SsTable, ...]]:
    """Per shard the SSTables that go into the base together: its oldest ones, oldest first; at least one in total.

    A newer one must never go before an older one of its shard: the mark says "up to here". Shards are served by turns,
    so that a long one does not starve the others.
    """
    taken: dict[UUID, list[SsTable]] = {}
    waiting = {
        shard: list(sstables) for shard, sstables in sorted(fresh.items()) if len(sstables) >= limits.min_sstables
    }
    room = limits.max_bytes
    while waiting:
        for shard, left in list(waiting.items()):
            size = size_of(left[0])
            if taken and size > room:
                del waiting[shard]
                continue
            taken.setdefault(shard, []).append(left.pop(0))
            room -= size
            if not left:
                del waiting[shard]
    return {shard: tuple(sstables) for shard, sstables in taken.items()}


def size_of(sstable: SsTable) -> int:
    """Bytes of its rows in memory."""
    return UNKNOWN_BYTES if sstable.in_memory_bytes is None else sstable.in_memory_bytes


# -- the base ----------------------------------------------------------------------


@dataclass(frozen=True)
class BasePolicy:
    """When the base is tidied."""

    small_rows: int = 256 << 10
    """A fragment with fewer rows is small."""
    max_small: int = 8
    """Number of small fragments at which they are merged."""
    target_rows: int = 1 << 20
    """Maximum rows of a merged fragment."""
    max_deleted: float = 0.3
    """A fragment with a larger share of deleted rows is rewritten."""
    keep_versions: timedelta = timedelta(days=1)
    """How long a version stays after a later one replaced it; held versions stay as long as they are held."""

    def __post_init__(self) -> None:
        sizes = 0 < self.small_rows <= self.target_rows and self.max_small > 1 and 0 < self.max_deleted <= 1
        if not sizes or self.keep_versions < timedelta(0):
            raise InvalidInput(f"Invalid base policy: {self}.")


def untouched_fragments(fragments: Iterable[FragmentSize], policy: BasePolicy) -> frozenset[int] | None:
    """The fragments that stay when small ones and those with many deletes are rewritten; None if nothing is due."""
    known = list(fragments)
    hollow = {one.id for one in known if one.deleted > policy.max_deleted * one.rows}
    small = {one.id for one in known if one.rows - one.deleted < policy.small_rows}
    rewritten = hollow | small if len(small) >= policy.max_small else hollow
    return frozenset(one.id for one in known if one.id not in rewritten) if rewritten else None


@dataclass(frozen=True, slots=True)
class ListedVersion:
    """A version of the base as LIST shows it."""

    version: int
    modified: datetime


def old_versions(listed: Iterable[ListedVersion], held: Iterable[int], before: datetime) -> list[int]:
    """Versions that no reader needs any more: a later one replaced them before `before`, and no tag holds them (R12).

    Never the latest. Their own age does not count: a reader may have opened the base just before it was replaced.
    """
    rising = sorted(listed, key=lambda one: one.version)
    kept = frozenset(held)
    return [one.version for one, later in pairwise(rising) if later.modified <= before and one.version not in kept]
