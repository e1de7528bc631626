"""A table at one instant, cut into parts that tasks read by themselves: base fragments, SSTables, WAL tails.

Promises:
1. The parts together are the table at that instant, each row once: newest row per key, deletes applied.
2. The instant is fixed here. If it is pinned, later flushes, compactions and collections change nothing.
3. Planning reads no rows.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias
from uuid import UUID

from headgate.checkpoints.snapshots.at_checkpoint import home_at, without_tails
from headgate.checkpoints.snapshots.checkpoint import CheckpointStore, TableCheckpoint
from headgate.checkpoints.snapshots.snapshot import read_instant
from headgate.checkpoints.snapshots.take import READ_PREFIX, describe, drop, take
from headgate.errors import NotFound
from headgate.shards.manifest.model import SsTable
from headgate.shards.rows.view import ShardDelta
from headgate.shards.shard import TableHome

HOLD = 6 * 3600.0
"""Seconds that a read holds its instant: longer than most queries run, because the end of a read is not reported."""

PART_BYTES = 128 << 20
"""Small fragments share a part up to this size, as Spark packs files (spark.sql.files.maxPartitionBytes)."""


@dataclass(frozen=True, slots=True)
class BasePart:
    """Some fragments of the base."""

    fragments: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SsTablePart:
    """One SSTable; `newer` are the shard's SSTables that hide its rows, as its WAL tail does."""

    shard_id: UUID
    sstable: SsTable
    newer: tuple[SsTable, ...]


@dataclass(frozen=True, slots=True)
class TailPart:
    """The rows of one shard's WAL that no SSTable has."""

    shard_id: UUID


ReadPart: TypeAlias = BasePart | SsTablePart | TailPart


@dataclass(frozen=True)
class ReadPlan:
    """What the tasks of one read share. Picklable."""

    home: TableHome
    """With the columns of the instant; read-only."""
    at: TableCheckpoint
    deltas: tuple[ShardDelta, ...]
    """Per shard the SSTables that the base has not taken in; no rows."""
    parts: tuple[ReadPart, ...]
    pinned: bool
    """True if the checkpoint is stored. Otherwise only the minimum age of garbage collection protects the instant."""


def plan_read(
    home: TableHome, shard_ids: Iterable[UUID], hold: float | None = HOLD, *, part_bytes: int = PART_BYTES
) -> ReadPlan:
    """The table as it is now, held for `hold` seconds. THIS WRITES a checkpoint that expires, and drops expired ones of
    earlier reads. With `hold=None` it writes nothing, and the read must finish before a collection takes its files.

    Raises DataLoss, Corrupt, Transient.
    """
    if hold is None:
        return plan_at(home, describe(home, read_instant(home, shard_ids)), pinned=False, part_bytes=part_bytes)
    name = f"{READ_PREFIX}{uuid.uuid4().hex}"
    taken = take(home, shard_ids, name=name, expires_after=hold, note="a read by Spark")
    drop_expired_reads(home, name)
    return plan_at(home, taken, part_bytes=part_bytes)


def plan_at(
    home: TableHome, checkpoint: TableCheckpoint, *, pinned: bool = True, part_bytes: int = PART_BYTES
) -> ReadPlan:
    """The table at a checkpoint. Writes nothing. Raises DataLoss, Corrupt."""
    then, _ = home_at(home, checkpoint)
    view = without_tails(then, checkpoint)
    sizes = [(one.fragment_id, _nbytes(one)) for one in view.base.dataset.get_fragments()]
    parts: list[ReadPart] = [BasePart(ids) for ids in grouped(sizes, part_bytes)]
    for delta in view.deltas:
        for place, sstable in enumerate(delta.sstables):
            parts.append(SsTablePart(delta.shard.id, sstable, delta.sstables[place + 1 :]))
        if has_tail(checkpoint, delta.shard.id):
            parts.append(TailPart(delta.shard.id))
    return ReadPlan(then, checkpoint, view.deltas, tuple(parts), pinned)


def grouped(sizes: Sequence[tuple[int, int]], limit: int) -> list[tuple[int, ...]]:
    """Groups neighbours up to a size; a larger one goes alone. Order is kept."""
    groups: list[tuple[int, ...]] = []
    held = 0
    for number, size in sizes:
        if groups and held + size <= limit:
            groups[-1] = (*groups[-1], number)
            held += size
        else:
            groups.append((number,))
            held = size
    return groups


def has_tail(checkpoint: TableCheckpoint, shard_id: UUID) -> bool:
    """True if a shard's WAL continues above what SSTables cover; it may have no visible row there."""
    pinned = checkpoint.shards[shard_id]
    return pinned.end > pinned.manifest.replay_after + 1


def drop_expired_reads(home: TableHome, own: str) -> None:
    """Drop expired checkpoints of earlier reads, by the store's clock, taken from the own record."""
    stored = CheckpointStore(home.records, home.uri).list()
    now = next((one.taken_at for one in stored if one.checkpoint.name == own), None)
    for one in stored:
        if now is not None and one.checkpoint.name.startswith(READ_PREFIX) and one.expired(now):
            with suppress(NotFound):
                drop(home, one.checkpoint.name)


def _nbytes(fragment: object) -> int:
    """Bytes of the fragment's files; estimated from its rows if an old version of Lance did not note them."""
    files = [file.file_size_bytes for file in fragment.metadata.files]  # type: ignore[attr-defined]
    return sum(files) if all(files) else int(fragment.physical_rows) * 128  # type: ignore[attr-defined]
