"""What a reader keeps of a table from one snapshot to the next, so that it reads only what is new.

Promises:
1. It never says how the table stands: that is asked of the store each time, in the order of R11. Taken from here is
   only what never changes once it is there: manifests by version, log records by sequence, entries by position,
   SSTables by path, the base by version; all of one table, known by its id. Where the base is another table's (made
   again in the same place, or overwritten by native Lance), that is told, and nothing is kept from then on.
2. Whether an entry counts is not kept: it is judged anew against the logs.
3. Of the WALs' tails `limit` bytes are kept at most; what does not fit is read each time. On top of that come the keys
   of the tails once more where keys are looked up, and INDEX_BYTES and METADATA_BYTES of Lance's own.
4. Thread-safe. Pickled it is empty. Nothing native is made before the first read.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, TypeAlias
from uuid import UUID

from headgate.checkpoints.jobs.columns import check_own
from headgate.checkpoints.log.commit_log import CommitLog
from headgate.checkpoints.log.names import ROOT, list_streams, stream_folder
from headgate.checkpoints.log.state import LogState
from headgate.connectors.lance.datasets import new_session, open_dataset
from headgate.errors import InvalidInput
from headgate.shards.manifest.model import Manifest
from headgate.shards.rows.base import Base
from headgate.shards.rows.sstable import StoredRows
from headgate.shards.rows.view import Fresh
from headgate.shards.shard import TABLE_ID, Shard, TableHome
from headgate.shards.wal.tailer import WalEntry

LIMIT = 256 << 20
"""Bytes of WAL tails that a Table keeps: what one shard is flushed at by default."""

INDEX_BYTES, METADATA_BYTES = 64 << 20, 64 << 20
"""Bytes that Lance may hold of the base's indexes and of its files' metadata."""

LOG_ENTRIES = 20_000
"""Entries that the state of a log lists above its fold, up to which it is kept: some megabytes. Beyond, it is read from
the newest fold again."""


Read: TypeAlias = Callable[[int, int], Iterator[WalEntry]]
"""Reads exactly the entries from a position to another."""


@dataclass(frozen=True)
class _Tail:
    """Entries of one shard, one after the other from the first position on, and what was last made of them."""

    first: int
    entries: tuple[WalEntry, ...] = ()
    sizes: tuple[int, ...] = ()
    state: object = None
    fresh: Fresh | None = None

    @property
    def stop(self) -> int:
        return self.first + len(self.entries)

    @property
    def nbytes(self) -> int:
        return sum(self.sizes)

    def cut(self, start: int, stop: int) -> _Tail:
        """The entries of [start, stop) alone, as far as they are here without a gap."""
        if not self.first <= start <= self.stop:
            return _Tail(start)
        part = slice(start - self.first, max(start, stop) - self.first)
        return _Tail(start, self.entries[part], self.sizes[part])


class Kept:
    """Of one table. A limit of 0 keeps nothing."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._empty()

    def _empty(self) -> None:
        self._tails: dict[UUID, _Tail] = {}
        self._manifests: dict[UUID, Manifest] = {}
        self._logs: dict[str, LogState] = {}
        self._base: Base | None = None
        self._session: Any = None

    @property
    def limit(self) -> int:
        """Bytes of WAL tails that are kept at most."""
        return self._limit

    @property
    def nbytes(self) -> int:
        """Bytes of WAL tails that are kept now."""
        with self._lock:
            return sum(tail.nbytes for tail in self._tails.values())

    def resize(self, limit: int) -> None:
        """Set the limit, and begin empty."""
        with self._lock:
            self._limit = limit
            self._empty()

    # -- manifests and logs --------------------------------------------------------------

    def latest(self, shard: Shard) -> Manifest | None:
        """The shard's latest manifest: one LIST, and a GET where it is new."""
        found = shard.manifests.latest(self._manifests.get(shard.id) if self._limit else None)
        if found is not None:
            self._manifests[shard.id] = found
        return found

    def logs(self, home: TableHome) -> list[LogState]:
        """The commit logs of all streams: a LIST each, and a GET for each record that is new."""
        known = self._logs if self._limit else {}
        names = {stream_folder(stream).removeprefix(ROOT): stream for stream in known}
        found = [
            CommitLog(home.records, stream, home.uri).read(known.get(stream))
            for stream in list_streams(home.records, known=names)
        ]
        self._logs = {log.stream: log for log in found if log.entries_above_fold <= LOG_ENTRIES}
        return found

    # -- tails ----------------------------------------------------------------------------

    def fresh(self, shard: Shard, stop: int, state: object, make: Callable[[], Fresh]) -> Fresh:
        """What was made of the tail up to `stop` in this state, or is made of it now; its SSTables stay open.

        States are equal only where all is equal that it is made of.
        """
        if not self._limit:
            return make()
        before = self._tail(shard.id)
        if before.fresh is not None and before.state == state:
            return before.fresh
        made = make()
        if before.fresh is not None:
            paths = {sstable.path for sstable in made.sstables}
            made.opened.update({path: one for path, one in before.fresh.opened.copy().items() if path in paths})
        with self._lock:
            tail = self._tails.get(shard.id)
            # Rows that are not kept as entries are not kept as tables either.
            if tail and tail.stop >= stop and sum(table.nbytes for table in made.tables) <= tail.nbytes:
                self._tails[shard.id] = replace(tail, state=state, fresh=made)
        return made

    def entries(self, shard: Shard, start: int, stop: int, read: Read) -> Iterator[WalEntry]:
        """Those of [start, stop): first the kept ones, then what is read; as many as fit are kept."""
        known = self._tail(shard.id).cut(start, stop)
        yield from known.entries
        kept, sizes = list(known.entries), list(known.sizes)
        room = self._limit - known.nbytes
        for found in read(known.stop, stop):
            if room > 0:
                kept.append(found)
                sizes.append(_size(found))
                room -= sizes[-1]
            yield found
        self._keep(shard.id, _Tail(start, tuple(kept), tuple(sizes)))

    def _tail(self, shard_id: UUID) -> _Tail:
        with self._lock:
            return self._tails.get(shard_id, _Tail(0))

    def _keep(self, shard_id: UUID, tail: _Tail) -> None:
        """As much of it as there is room for beside the others."""
        with self._lock:
            room = self._limit - sum(other.nbytes for one, other in self._tails.items() if one != shard_id)
            count = bisect_right(list(accumulate(tail.sizes)), room)
            self._tails[shard_id] = tail.cut(tail.first, tail.first + count)

    # -- the base ---------------------------------------------------------------------------

    def base(self, home: TableHome) -> Base:
        """The base as it is now: Lance looks for its latest version, and what it held of it before is used again.

        Raises InvalidInput where it is no longer this table's, and nothing is kept from then on; DataLoss, Transient.
        """
        if self._limit and self._session is None:
            self._session = new_session(INDEX_BYTES, METADATA_BYTES)
        dataset = open_dataset(home.store, session=self._session)
        base = self._base
        # A version of this table never changes; one of another table may have the same number.
        if (
            base
            and base.rows.dataset.version == dataset.version
            and dataset.config().get(TABLE_ID) == str(home.table_id)
        ):
            return base
        try:
            check_own(home, dataset)
        except InvalidInput:
            self.resize(0)
            raise
        base = Base(home, StoredRows(home.schema, dataset))
        if self._limit:
            self._base = base
        return base

    # -- pickling: nothing goes along ---------------------------------------------------------

    def __reduce__(self) -> tuple[type[Kept], tuple[int]]:
        return Kept, (self._limit,)


def _size(found: WalEntry) -> int:
    """Bytes that it holds in memory: those that were read, or more where they were compressed."""
    return max(found.entry.nbytes, sum(int(batch.nbytes) for batch in found.entry.batches))
