"""The cache of a reader between snapshots, so that it reads only what is new.

Promises:
1. It never supplies the current state: that is read from the store each time, in the order of R11. It contains only
   immutable objects: manifests by version, log records by sequence, entries by position, SSTables by path, the base by
   version; all of one table, identified by its id. If the base belongs to another table (created again in the same
   place, or overwritten by native Lance), that is an error, and nothing of it is kept.
2. Visibility of entries is not cached: it is decided again from the logs.
3. Tails, and what Lance holds of the base, count against the budget of `headgate.caches`; a tail takes at most a
   quarter of it, and what does not fit is read each time.
4. Thread-safe. A pickled copy is empty, and its content is freed with it. Nothing native is made before the first read.
"""

from __future__ import annotations

import threading
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, count
from typing import Any, TypeAlias
from uuid import UUID

import pyarrow as pa

from headgate import parallel
from headgate.caches import Cache, cache_bytes
from headgate.checkpoints.log.commit_log import CommitLog
from headgate.checkpoints.log.names import ROOT, list_streams, stream_folder
from headgate.checkpoints.log.state import LogState
from headgate.connectors.lance.datasets import new_session, open_dataset
from headgate.errors import InvalidInput
from headgate.shards.manifest.model import Manifest
from headgate.shards.rows.base import Base, check_own
from headgate.shards.rows.sstable import StoredRows
from headgate.shards.rows.view import ShardDelta
from headgate.shards.shard import TABLE_ID, Shard, TableHome
from headgate.shards.wal.tailer import WalEntry

TAIL_SHARE = 4
"""One tail may take at most one part in this many of the budget. Of the default budget, that is the default size at
which a shard is flushed.
"""

INDEX_SHARE = 2
"""Lance may hold of the base's indexes at most one part in this many of the budget, as Lance counts: it counts the
codebook of a vector index once per partition, so 60 MB of an index of 1 million vectors count as 450. With less room
each search reads partitions again. What is really held counts against the budget.
"""

METADATA_BYTES, METADATA_SHARE = 64 << 20, 8
"""Maximum bytes that Lance may hold of the metadata of the base's files; at most one part in METADATA_SHARE of the
budget.
"""

OPENED_BYTES = 50_000
"""About the size of an opened SSTable."""

LOG_ENTRIES = 20_000
"""Maximum entries above its fold for which a log's state is kept: some megabytes. A larger state is read from the
newest fold again.
"""


Read: TypeAlias = Callable[[int, int], Iterator[WalEntry]]
"""Reads exactly the entries [start, stop)."""


@dataclass(frozen=True)
class _Tail:
    """Consecutive entries of one shard from position `first` on, and the delta last made of them."""

    first: int
    entries: tuple[WalEntry, ...] = ()
    sizes: tuple[int, ...] = ()
    state: object = None
    delta: ShardDelta | None = None

    @property
    def stop(self) -> int:
        return self.first + len(self.entries)

    @property
    def tables(self) -> tuple[pa.Table, ...]:
        return () if self.delta is None else self.delta.tables

    @property
    def nbytes(self) -> int:
        """Bytes of the entries."""
        return sum(self.sizes)

    @property
    def own_bytes(self) -> int:
        """Size without the tables' rows, which are those of the entries; with the keys, which a lookup copies into one
        piece, and with the SSTables that reads have opened.
        """
        key = () if self.delta is None else self.delta.shard.home.schema.primary_key
        keys = sum(int(table.column(name).nbytes) for table in self.tables for name in key)
        opened = 0 if self.delta is None else OPENED_BYTES * len(self.delta.sstables)
        return 1_000 + opened + max(0, self.nbytes - sum(int(table.nbytes) for table in self.tables)) + keys

    def cut(self, start: int, stop: int) -> _Tail:
        """The entries of [start, stop) alone, if they follow on without a gap."""
        if not self.first <= start <= self.stop:
            return _Tail(start)
        part = slice(start - self.first, max(start, stop) - self.first)
        return _Tail(start, self.entries[part], self.sizes[part])


@dataclass(frozen=True)
class _Opened:
    """The base, and what Lance holds of it and of its earlier versions."""

    session: Any
    base: Base | None = None


_tails: Cache[_Tail] = Cache(
    "tails", lambda tail: tail.own_bytes, lambda tail: ((table, int(table.nbytes)) for table in tail.tables)
)
_bases: Cache[_Opened] = Cache("bases", lambda opened: 100_000 + int(opened.session.size_bytes()))

_serials = count()


class TableCache:
    """The cache of one table."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._serial = next(_serials)
        self._manifests: dict[UUID, Manifest] = {}
        self._logs: dict[str, LogState] = {}
        self._kept: set[UUID] = set()
        """Shards whose tails are in the budget."""
        weakref.finalize(self, _forget, self._serial, self._kept).atexit = False

    @property
    def nbytes(self) -> int:
        """Bytes of the entries of WAL tails that are kept now."""
        return sum(self._tail(shard_id).nbytes for shard_id in self._kept.copy())

    def clear(self) -> None:
        with self._lock:
            _forget(self._serial, self._kept)
            self._kept.clear()
            self._manifests, self._logs = {}, {}

    # -- manifests and logs --------------------------------------------------------------

    def manifests(self, home: TableHome, shard_ids: Callable[[], Iterable[UUID]]) -> dict[UUID, Manifest | None]:
        """The latest manifests of the existing shards, by id: known shards are read while `shard_ids`
        looks for others.
        """
        with parallel.beside("snapshot", near=home.store.is_near) as begin:
            begun = {shard_id: begin(self.latest, Shard(home, shard_id)) for shard_id in tuple(self._manifests)}
            ids = sorted(shard_ids())
            reading = {one: begun.get(one) or begin(self.latest, Shard(home, one)) for one in ids}
            return {one: manifest() for one, manifest in reading.items()}

    def latest(self, shard: Shard) -> Manifest | None:
        """The shard's latest manifest: one LIST, and a GET if it is new."""
        found = shard.manifests.latest(self._manifests.get(shard.id))
        if found is not None:
            self._manifests[shard.id] = found
        return found

    def logs(self, home: TableHome) -> list[LogState]:
        """The commit logs of all streams: one LIST each, and a GET for each new record."""
        known = self._logs
        names = {stream_folder(stream).removeprefix(ROOT): stream for stream in known}

        def read(stream: str) -> LogState:
            return CommitLog(home.records, stream, home.uri).read(known.get(stream))

        with parallel.beside("logs", near=home.store.is_near) as begin:
            begun = {stream: begin(read, stream) for stream in known}
            listed = list_streams(home.records, known=names)
            reading = [begun.get(stream) or begin(read, stream) for stream in listed]
            found = [log() for log in reading]
        self._logs = {log.stream: log for log in found if log.entries_above_fold <= LOG_ENTRIES}
        return found

    # -- tails ----------------------------------------------------------------------------

    def delta(self, shard: Shard, stop: int, state: object, make: Callable[[], ShardDelta]) -> ShardDelta:
        """The delta made of the tail up to `stop` in this state, cached or made now; its SSTables stay open. States
        must be equal only if everything that the delta is made of is equal.
        """
        before = self._tail(shard.id)
        if before.delta is not None and before.state == state:
            return before.delta
        made = make()
        if before.delta is not None:
            paths = {sstable.path for sstable in made.sstables}
            made.opened.update({path: one for path, one in before.delta.opened.copy().items() if path in paths})
        with self._lock:
            tail = self._tail(shard.id)
            # If the entries are not kept, neither are the tables with their rows.
            if tail.stop >= stop and sum(table.nbytes for table in made.tables) <= tail.nbytes:
                self._keep(shard.id, replace(tail, state=state, delta=made))
        return made

    def entries(self, shard: Shard, start: int, stop: int, read: Read) -> Iterator[WalEntry]:
        """The entries of [start, stop): first the kept ones, then the rest, read from the store; as many as fit are
        kept.
        """
        known = self._tail(shard.id).cut(start, stop)
        yield from known.entries
        kept, sizes = list(known.entries), list(known.sizes)
        limit = cache_bytes() // TAIL_SHARE
        room = limit - known.nbytes
        for found in read(known.stop, stop):
            if room > 0:
                kept.append(found)
                sizes.append(_size(found))
                room -= sizes[-1]
            yield found
        fitting = bisect_right(list(accumulate(sizes)), limit)
        with self._lock:
            self._keep(shard.id, _Tail(start, tuple(kept[:fitting]), tuple(sizes[:fitting])))

    def _tail(self, shard_id: UUID) -> _Tail:
        return _tails.get((self._serial, shard_id)) or _Tail(0)

    def _keep(self, shard_id: UUID, tail: _Tail) -> None:
        self._kept.add(shard_id)
        _tails.put((self._serial, shard_id), tail)

    # -- the base ---------------------------------------------------------------------------

    def base(self, home: TableHome) -> Base:
        """The base as it is now: Lance looks for its latest version, and reuses what it held of it before.

        Raises InvalidInput if it is no longer this table's, and then nothing is kept; DataLoss, Transient.
        """
        opened = _bases.get(self._serial) or _Opened(_session())
        dataset = open_dataset(home.store, session=opened.session)
        base = opened.base
        # A version of this table never changes; one of another table may have the same number.
        if (
            base is None
            or base.rows.dataset.version != dataset.version
            or dataset.config().get(TABLE_ID) != str(home.table_id)
        ):
            try:
                check_own(home, dataset)
            except InvalidInput:
                self.clear()
                raise
            base = Base(home, StoredRows(home.schema, dataset))
        _bases.put(self._serial, _Opened(opened.session, base))  # which measures the session again
        return base

    # -- pickling: the content is left behind --------------------------------------------------

    def __reduce__(self) -> tuple[type[TableCache], tuple[()]]:
        return TableCache, ()


def _forget(serial: int, shards: Iterable[UUID]) -> None:
    _bases.drop(serial)
    for shard_id in tuple(shards):
        _tails.drop((serial, shard_id))


def _session() -> Any:
    budget = cache_bytes()
    return new_session(budget // INDEX_SHARE, min(METADATA_BYTES, budget // METADATA_SHARE))


def _size(found: WalEntry) -> int:
    """Bytes that it holds in memory: those that were read, or more if they were compressed."""
    return max(found.entry.nbytes, sum(int(batch.nbytes) for batch in found.entry.batches))
