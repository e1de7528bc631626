"""A table at one instant: scan, lookup, search, clone and checkpoint share this.

Promises:
1. Every row of a committed batch, and every durable row of a direct writer, is in it exactly once; a batch is in it
   whole or not at all, over all shards; no row of an uncommitted one is.
2. Reading writes nothing and fences nobody.
3. Memory holds the unflushed tail of the WALs, never the base; of an instant without rows, nothing of either.
4. The cache of an earlier read saves reads and changes nothing: each step reads the current state from the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias
from uuid import UUID

import pyarrow as pa

from headgate import parallel
from headgate.checkpoints.log.dead_letters import PREFIX
from headgate.checkpoints.log.positions import is_stale
from headgate.checkpoints.log.state import LogState
from headgate.checkpoints.log.visibility import Visible
from headgate.checkpoints.snapshots.cache import TableCache
from headgate.errors import DataLoss, Transient
from headgate.shards.manifest.model import Manifest
from headgate.shards.rows.view import ShardDelta, TableView
from headgate.shards.shard import Shard, TableHome
from headgate.shards.wal.moved import check_place
from headgate.shards.wal.tailer import WalTailer
from headgate.shards.wal.tip import listed_tip
from headgate.steps import step

TRIES = 8
"""A try fails if a flush, fold or compaction came in between, which does not happen that often."""


@dataclass(frozen=True)
class ShardInstant:
    """One shard at the instant: its manifest, and its tail [replay_after + 1, end)."""

    shard: Shard
    manifest: Manifest
    end: int
    """The first position that was free."""


@dataclass(frozen=True)
class Instant:
    """A table at one instant, as far as it can be told without reading rows."""

    shards: tuple[ShardInstant, ...]
    logs: tuple[LogState, ...]
    view: TableView
    """The base at its version, and what the shards add; their tails only where rows were read."""

    @property
    def base_version(self) -> int:
        """Of the base."""
        return int(self.view.base.dataset.version)


class _Moved(Exception):
    """The table was flushed, folded or compacted, or grew by a shard, since its manifests were read."""

    def __init__(self, appeared: Iterable[UUID] = ()) -> None:
        self.appeared = frozenset(appeared)
        super().__init__()


def read_snapshot(home: TableHome, shard_ids: Iterable[UUID], *, cache: TableCache | None = None) -> TableView:
    """The table as it is now, with the rows of its tails; see `read_instant`. `cache` is of earlier reads of it."""
    return _read(home, shard_ids, _rows, cache or TableCache()).view


TailStart: TypeAlias = Callable[[Shard, Manifest, Visible], int]
"""The first position of a shard's tail that must be there."""


def above_replay(shard: Shard, manifest: Manifest, visible: Visible) -> int:
    """Every entry that SSTables do not cover must be there."""
    return manifest.replay_after + 1


def read_instant(home: TableHome, shard_ids: Iterable[UUID], *, tail_start: TailStart = above_replay) -> Instant:
    """The table as it is now, without rows (R11):

    1. the manifests of all shards.
    2. the commit logs of all streams: a log that was folded beyond a manifest, or that lists a shard which was
       claimed meanwhile, means from 1 again.
    3. per shard where the tail of its WAL ends. Entries that were flushed and collected meanwhile
       mean from 1 again; missing ones at or above `tail_start` are DataLoss.
    4. the base. A mark on it for SSTables that a manifest does not know means from 1 again.

    Raises DataLoss, Corrupt, InvalidInput if the base is not this table's any more, and Transient if the table keeps
    moving.
    """
    return _read(home, shard_ids, _ends, TableCache(), tail_start)


def visible_now(home: TableHome) -> Visible:
    """What the commit logs of all streams list."""
    return Visible.of(TableCache().logs(home), home.uri)


_ReadTail: TypeAlias = Callable[[Shard, Manifest, Visible, int, TableCache], ShardDelta]
"""What a shard adds, of which the tail ends at a position."""


def _read(
    home: TableHome,
    shard_ids: Iterable[UUID],
    read_tail: _ReadTail,
    cache: TableCache,
    tail_start: TailStart = above_replay,
) -> Instant:
    ids = set(shard_ids)
    for _ in range(TRIES):
        try:
            return _try(home, [Shard(home, shard_id) for shard_id in sorted(ids)], read_tail, cache, tail_start)
        except _Moved as moved:
            ids |= moved.appeared
    raise Transient(f"The table changed during each of {TRIES} reads.", table=home.uri)


def _try(
    home: TableHome,
    shards: Sequence[Shard],
    read_tail: _ReadTail,
    cache: TableCache,
    tail_start: TailStart,
) -> Instant:
    step("manifests")
    found = parallel.each("snapshot", cache.latest, shards)
    claimed = [(shard, manifest) for shard, manifest in zip(shards, found, strict=True) if manifest is not None]
    step("logs")
    logs = cache.logs(home)
    visible = Visible.of(logs, home.uri)
    _check_known(shards, [shard.id for shard, _ in claimed], visible)
    step("tails")
    tails = parallel.each("snapshot", lambda one: _tail(one[0], one[1], visible, read_tail, cache, tail_start), claimed)
    step("base")
    view = TableView.over(cache.base(home), [delta for delta, _ in tails])
    if view is None:
        raise _Moved
    parts = (ShardInstant(*one, end) for one, (_, end) in zip(claimed, tails, strict=True))
    return Instant(tuple(parts), tuple(logs), view)


def _check_known(asked: Sequence[Shard], claimed: Sequence[UUID], visible: Visible) -> None:
    """A batch counts whole: a shard that a log lists and that was claimed after the manifests were read is read too."""
    listed = {shard_id for shard_id, one in visible.shards.items() if not one.shard.startswith(PREFIX)}
    if appeared := listed - {shard.id for shard in asked}:
        raise _Moved(appeared)
    unclaimed = [shard for shard in asked if shard.id in listed.difference(claimed)]
    for shard in unclaimed:
        if shard.manifests.latest() is None:
            raise DataLoss("A commit record lists rows of a shard without a manifest.", **shard.where())
    if unclaimed:
        raise _Moved


def _tail(
    shard: Shard, manifest: Manifest, visible: Visible, read_tail: _ReadTail, cache: TableCache, tail_start: TailStart
) -> tuple[ShardDelta, int]:
    """What the shard adds, and the first position that was free."""
    check_place(shard, manifest)
    if not visible.covers(shard.id, manifest.replay_after):
        raise _Moved
    try:
        end = _end(shard, manifest, tail_start(shard, manifest, visible))
        delta = read_tail(shard, manifest, visible, end, cache)
    except DataLoss:
        if is_stale(manifest.replay_after, _replay_after(shard, manifest), None):
            raise _Moved from None
        raise
    if is_stale(manifest.replay_after, _replay_after(shard, manifest), end):
        # What looked like the tip was a collected range.
        raise _Moved
    return delta, end


def _end(shard: Shard, manifest: Manifest, start: int) -> int:
    """Where the tail ends. A LIST proves it, and that nothing of it is missing from the start on."""
    end = listed_tip(shard, start)
    if end <= manifest.last_seen:
        what = f"The manifest names entry {manifest.last_seen}, but the WAL ends before {end}."
        raise DataLoss(what, **shard.where(), position=end)
    return end


def _rows(shard: Shard, manifest: Manifest, visible: Visible, end: int, cache: TableCache) -> ShardDelta:
    start = manifest.replay_after + 1

    def made() -> ShardDelta:
        entries = cache.entries(shard, start, end, WalTailer(shard).read)
        parts = [*visible.tail(shard, manifest, entries)]
        batches = [batch for part in parts for batch in part.batches]
        rows = pa.Table.from_batches(batches, schema=shard.home.schema.storage)
        return ShardDelta.of(shard, manifest, rows, entries=tuple((part.position, part.rows) for part in parts))

    # All that a tail is made of, besides its entries, which never change.
    state = (start, end, manifest.generation, manifest.sstables, visible.shards.get(shard.id))
    return cache.delta(shard, end, state, made)


def _ends(shard: Shard, manifest: Manifest, visible: Visible, end: int, cache: TableCache) -> ShardDelta:
    for first, last in visible.runs(shard.id, manifest.replay_after + 1):
        if last >= end:
            missing = max(first, end)
            raise DataLoss(
                f"The entry at position {missing}, which a commit record lists, is missing.",
                **shard.where(),
                position=missing,
            )
    return ShardDelta.of(shard, manifest)


def _replay_after(shard: Shard, known: Manifest) -> int:
    latest = shard.manifests.latest(known)
    return latest.replay_after if latest else 0
