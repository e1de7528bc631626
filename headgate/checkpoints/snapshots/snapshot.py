"""A table at one instant: scan, lookup, search, clone and checkpoint share this.

Promises:
1. It contains every row of a committed batch, and every durable row of a direct writer, exactly once; a batch is in it
   whole or not at all, over all shards; rows of uncommitted batches are not in it.
2. Reading writes nothing and fences nobody.
3. Memory holds the unflushed tail of the WALs, never the base; of an instant without rows, nothing of either.
4. The cache of an earlier read saves reads but changes no result: each step reads the current state from the store.
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
from headgate.errors import DataLoss, HeadgateError, Transient
from headgate.shards.manifest.model import Manifest
from headgate.shards.rows.base import Base
from headgate.shards.rows.view import ShardDelta, TableView
from headgate.shards.shard import Shard, TableHome
from headgate.shards.wal.moved import check_place
from headgate.shards.wal.tailer import WalTailer
from headgate.shards.wal.tip import listed_tip
from headgate.steps import step

TRIES = 8
"""A try fails if a flush, fold or compaction came in between, which is rare."""


@dataclass(frozen=True)
class ShardInstant:
    """One shard at the instant: its manifest, and its tail [replay_after + 1, end)."""

    shard: Shard
    manifest: Manifest
    end: int
    """The first free position."""


@dataclass(frozen=True)
class Instant:
    """A table at one instant, without reading rows."""

    shards: tuple[ShardInstant, ...]
    logs: tuple[LogState, ...]
    view: TableView
    """The base at its version, and what the shards add; their tails only if rows were read."""

    @property
    def base_version(self) -> int:
        return int(self.view.base.dataset.version)


class _Moved(Exception):
    """The table was flushed, folded or compacted, or grew by a shard, since its manifests were read."""

    def __init__(self, asked: Iterable[UUID] = (), appeared: Iterable[UUID] = ()) -> None:
        self.asked, self.appeared = frozenset(asked), frozenset(appeared)
        super().__init__()


def read_snapshot(
    home: TableHome, shard_ids: Iterable[UUID] | Callable[[], Iterable[UUID]], *, cache: TableCache | None = None
) -> TableView:
    """The table as it is now, with the rows of its tails; see `read_instant`. `cache` is from earlier reads of it;
    `shard_ids` may be a function that looks for them.
    """
    return _read(home, shard_ids if callable(shard_ids) else set(shard_ids).copy, _rows, cache or TableCache()).view


TailStart: TypeAlias = Callable[[Shard, Manifest, Visible], int]
"""Returns the first position of a shard's tail that must exist."""


def above_replay(shard: Shard, manifest: Manifest, visible: Visible) -> int:
    """Every entry that SSTables do not cover must exist."""
    return manifest.replay_after + 1


def read_instant(
    home: TableHome,
    shard_ids: Iterable[UUID],
    *,
    tail_start: TailStart = above_replay,
    cache: TableCache | None = None,
) -> Instant:
    """The table as it is now, without rows (R11). `cache` is from earlier reads.

    1. read the manifests of all shards.
    2. read the commit logs of all streams. If a log was folded beyond a manifest, or lists a shard that was claimed
       meanwhile: from 1 again.
    3. per shard find the end of its WAL's tail; if a log lists more than was found before 2, look again. If entries
       were flushed and collected meanwhile: from 1 again; missing ones at or above `tail_start` are DataLoss.
    4. read the base. A mark on it for SSTables that a manifest does not know: from 1 again.

    Raises DataLoss, Corrupt, InvalidInput if the base is no longer this table's, and Transient if the table keeps
    moving.
    """
    return _read(home, set(shard_ids).copy, _ends, cache or TableCache(), tail_start)


def visible_now(home: TableHome) -> Visible:
    """Entries that the commit logs of all streams list."""
    return Visible.of(TableCache().logs(home), home.uri)


_ReadTail: TypeAlias = Callable[[Shard, Manifest, Visible, int, TableCache], ShardDelta]
"""Returns what a shard adds, given the end of its tail."""


def _read(
    home: TableHome,
    shard_ids: Callable[[], Iterable[UUID]],
    read_tail: _ReadTail,
    cache: TableCache,
    tail_start: TailStart = above_replay,
) -> Instant:
    for _ in range(TRIES):
        try:
            return _try(home, shard_ids, read_tail, cache, tail_start)
        except _Moved as moved:
            if moved.asked:
                shard_ids = moved.asked.union(moved.appeared).copy
    raise Transient(f"The table changed during each of {TRIES} reads.", table=home.uri)


def _try(
    home: TableHome,
    shard_ids: Callable[[], Iterable[UUID]],
    read_tail: _ReadTail,
    cache: TableCache,
    tail_start: TailStart,
) -> Instant:
    step("manifests")
    found = cache.manifests(home, shard_ids)
    shards = [Shard(home, shard_id) for shard_id in found]
    claimed = [(shard, manifest) for shard in shards if (manifest := found[shard.id]) is not None]
    step("logs")
    with parallel.beside("snapshot", near=home.store.is_near) as begin:
        base = begin(_marked, cache, home, frozenset(shard.id for shard, _ in claimed))
        early = {shard.id: begin(_early_end, shard, manifest, tail_start) for shard, manifest in claimed}
        logs = cache.logs(home)
        visible = Visible.of(logs, home.uri)
        _check_known(shards, [shard.id for shard, _ in claimed], visible)
        step("tails")

        def tail(shard: Shard, manifest: Manifest) -> tuple[ShardDelta, int]:
            end = None if home.store.is_near else early[shard.id]()
            return _tail(shard, manifest, visible, read_tail, cache, tail_start, end)

        tails = parallel.each("snapshot", lambda one: tail(*one), claimed)
        step("base")
        view = TableView.over(base(), [delta for delta, _ in tails])
    if view is None:
        raise _Moved
    parts = (ShardInstant(*one, end) for one, (_, end) in zip(claimed, tails, strict=True))
    return Instant(tuple(parts), tuple(logs), view)


def _check_known(asked: Sequence[Shard], claimed: Sequence[UUID], visible: Visible) -> None:
    """A batch must be read whole: if a log lists a shard that was claimed after the manifests were read, that shard is
    needed too.
    """
    listed = {shard_id for shard_id, one in visible.shards.items() if not one.shard.startswith(PREFIX)}
    known = {shard.id for shard in asked}
    if appeared := listed - known:
        raise _Moved(known, appeared)
    unclaimed = [shard for shard in asked if shard.id in listed.difference(claimed)]
    for shard in unclaimed:
        if shard.manifests.latest() is None:
            raise DataLoss("A commit record lists rows of a shard without a manifest.", **shard.where())
    if unclaimed:
        raise _Moved


def _tail(
    shard: Shard,
    manifest: Manifest,
    visible: Visible,
    read_tail: _ReadTail,
    cache: TableCache,
    tail_start: TailStart,
    early: int | None,
) -> tuple[ShardDelta, int]:
    """What the shard adds, and the first free position. `early` is the end of its tail before the logs were read: it
    holds unless they list more.
    """
    check_place(shard, manifest)
    if not visible.covers(shard.id, manifest.replay_after):
        raise _Moved
    try:
        listed = visible.shards.get(shard.id)
        if early is not None and (listed is None or listed.last < early):
            end = early
        else:
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
    """End of the tail. A LIST proves it, and that nothing is missing from `start` on."""
    end = listed_tip(shard, start)
    if end <= manifest.last_seen:
        what = f"The manifest names entry {manifest.last_seen}, but the WAL ends before {end}."
        raise DataLoss(what, **shard.where(), position=end)
    return end


def _early_end(shard: Shard, manifest: Manifest, tail_start: TailStart) -> int | None:
    """End of the tail, if it can be found without the logs; None if it must be looked for after they were read."""
    try:
        return _end(shard, manifest, manifest.replay_after + 1) if tail_start is above_replay else None
    except HeadgateError:
        return None


def _marked(cache: TableCache, home: TableHome, shard_ids: frozenset[UUID]) -> Base:
    """The base; reads its compacted marks of the shards as well."""
    base = cache.base(home)
    base.compacted(shard_ids)
    return base


def _rows(shard: Shard, manifest: Manifest, visible: Visible, end: int, cache: TableCache) -> ShardDelta:
    start = manifest.replay_after + 1

    def made() -> ShardDelta:
        entries = cache.entries(shard, start, end, WalTailer(shard).read)
        parts = [*visible.tail(shard, manifest, entries)]
        batches = [batch for part in parts for batch in part.batches]
        rows = pa.Table.from_batches(batches, schema=shard.home.schema.storage)
        return ShardDelta.of(shard, manifest, rows, entries=tuple((part.position, part.rows) for part in parts))

    # Everything that a tail's delta is made of, besides its entries, which never change.
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
