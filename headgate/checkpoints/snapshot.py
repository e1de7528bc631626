"""A table at one instant, for whoever reads it: scan, lookup, search, clone and checkpoint share this.

Promises:
1. Every row of a committed batch, and every durable row of a direct writer, is in it exactly once;
   a batch is in it whole or not at all, over all shards; no row of an uncommitted one is.
2. Reading writes nothing and fences nobody.
3. Memory holds the unflushed tail of the WALs, never the base.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from uuid import UUID

import pyarrow as pa

from headgate.checkpoints.commit_log import CommitLog
from headgate.checkpoints.streams import list_streams
from headgate.checkpoints.visibility import Visible
from headgate.errors import DataLoss, Transient
from headgate.shards.appender import Pause, no_pause
from headgate.shards.manifest import Manifest
from headgate.shards.merge import Fresh, View
from headgate.shards.replay import uncovered
from headgate.shards.shard import Shard, TableHome
from headgate.shards.tailer import WalEntry, WalTailer

READERS = 16
"""Shards read together: hides a store's latency."""

TRIES = 8
"""Each lost try means that a flush, a fold or a compaction came in between; they do not run that often."""


class _Moved(Exception):
    """The shard was flushed, folded or compacted since its manifest was read."""


def read_snapshot(home: TableHome, shard_ids: Iterable[UUID], *, pause: Pause = no_pause) -> View:
    """The table as it is now (R11):

    1. the manifests of all shards.
    2. the commit logs of all streams: a log that was folded beyond a manifest means from 1 again.
    3. per shard the visible rows of its WAL above replay_after. Entries that were flushed and
       collected meanwhile mean from 1 again; missing ones are DataLoss.
    4. the base. A mark on it for SSTables that a manifest does not know means from 1 again.

    Raises DataLoss, Corrupt, and Transient where the table keeps moving.
    """
    shards = [Shard(home, shard_id) for shard_id in sorted(shard_ids)]
    for _ in range(TRIES):
        try:
            return _try(home, shards, pause)
        except _Moved:
            continue
    raise Transient(f"The table moved on during each of {TRIES} reads.", table=home.uri)


def visible_now(home: TableHome) -> Visible:
    """What the commit logs of all streams list."""
    logs = (CommitLog(home.records, stream, home.uri) for stream in list_streams(home.records))
    return Visible.of([log.read() for log in logs], home.uri)


@dataclass(frozen=True)
class _Tail:
    rows: pa.Table
    end: int
    """The first position that was free."""


def _try(home: TableHome, shards: Sequence[Shard], pause: Pause) -> View:
    with ThreadPoolExecutor(READERS, thread_name_prefix="headgate-snapshot") as pool:
        pause("manifests")
        found = list(pool.map(lambda shard: shard.manifests.latest(), shards))
        claimed = [(shard, manifest) for shard, manifest in zip(shards, found, strict=True) if manifest is not None]
        pause("logs")
        visible = visible_now(home)
        pause("tails")
        fresh = list(pool.map(lambda one: _fresh(one[0], one[1], visible), claimed))
    pause("base")
    view = View.of(home, fresh)
    if view is None:
        raise _Moved
    return view


def _fresh(shard: Shard, manifest: Manifest, visible: Visible) -> Fresh:
    if not visible.covers(shard.id, manifest.replay_after):
        raise _Moved
    try:
        tail = _tail(shard, manifest, visible)
    except DataLoss:
        if _replay_after(shard) > manifest.replay_after:
            raise _Moved from None
        raise
    if tail.end <= _replay_after(shard):
        # What looked like the tip was a collected range.
        raise _Moved
    return Fresh(shard, manifest.generation, manifest.sstables, (tail.rows,))


def _tail(shard: Shard, manifest: Manifest, visible: Visible) -> _Tail:
    start = end = manifest.replay_after + 1

    def counted(entries: Iterable[WalEntry]) -> Iterable[WalEntry]:
        nonlocal end
        for found in entries:
            end = found.position + 1
            yield found

    entries = visible.visible_entries(shard.id, counted(WalTailer(shard).read(start)), start)
    batches = [batch for part in uncovered(shard, manifest, entries) for batch in part.batches]
    return _Tail(pa.Table.from_batches(batches, schema=shard.home.schema.storage), end)


def _replay_after(shard: Shard) -> int:
    latest = shard.manifests.latest()
    return latest.replay_after if latest else 0
