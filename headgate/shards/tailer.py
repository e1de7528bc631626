"""WalTailer: entries in order, read ahead in parallel, exactly up to the tip.

Promises:
1. Entries come in order of position, each once, none skipped.
2. The end is the tip: the first position that is free. A free position below one that
   is taken is a hole, and a hole is DataLoss, told with shard and position.
3. Reading writes nothing and fences nobody.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from headgate.errors import DataLoss, HeadgateError, NotFound
from headgate.shards.entry import Entry, decode_entry
from headgate.shards.retry import Retry
from headgate.shards.shard import Shard

PREFETCH = 8
"""Entries read ahead. Hides a store's latency, and bounds memory to that many entries."""


@dataclass(frozen=True)
class WalEntry:
    """An entry and where it stands."""

    position: int
    entry: Entry


class WalTailer:
    """Reads one shard's WAL. Holds no state between calls of `read`."""

    def __init__(self, shard: Shard, *, prefetch: int = PREFETCH, retry: Retry = Retry()) -> None:  # noqa: B008
        self._shard = shard
        self._prefetch = prefetch
        self._retry = retry

    def read(self, start: int, stop: int | None = None) -> Iterator[WalEntry]:
        """Entries from `start` up to the tip, or exactly [start, stop).

        Raises DataLoss for a hole, and for any missing entry below a given `stop`;
        Corrupt for an entry whose bytes are not what was written.
        """
        ahead: deque[tuple[int, Future[Entry | None]]] = deque()
        upcoming = start
        with ThreadPoolExecutor(self._prefetch, thread_name_prefix="headgate-tail") as pool:
            try:
                while True:
                    while len(ahead) < self._prefetch and (stop is None or upcoming < stop):
                        ahead.append((upcoming, pool.submit(self._get, upcoming)))
                        upcoming += 1
                    if not ahead:
                        return
                    position, future = ahead.popleft()
                    entry = future.result()
                    if entry is None:
                        if stop is None and not any(later.result() is not None for _, later in ahead):
                            return
                        entry = self._filled_meanwhile(position)
                    yield WalEntry(position, entry)
            finally:
                for _, waiting in ahead:
                    waiting.cancel()

    def _get(self, position: int) -> Entry | None:
        try:
            return decode_entry(self._retry.run(lambda: self._shard.wal.get(self._shard.wal_key(position))))
        except NotFound:
            return None
        except HeadgateError as error:
            raise self._shard.blame(error, position)  # noqa: B904 - the same error, located

    def _filled_meanwhile(self, position: int) -> Entry:
        """A later entry is there, so this one must be by now: entries are put one after the other."""
        entry = self._get(position)
        if entry is None:
            raise DataLoss(
                f"The WAL has a hole: entry {position} is missing.", **self._shard.where(), position=position
            )
        return entry
