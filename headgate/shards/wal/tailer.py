"""WalTailer: entries in order, read ahead in parallel, exactly up to the tip.

Promises:
1. Entries come in order of position, each once, none skipped.
2. The end is the tip: the first free position. A free position below a taken one is a hole, and a hole is DataLoss,
   with shard and position. If the end is not given, one LIST proves that nothing lies above it, however wide a hole
   would be.
3. Reading writes nothing and fences nobody.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias

from headgate.errors import DataLoss, HeadgateError, NotFound
from headgate.parallel import Pool
from headgate.shards.shard import Shard
from headgate.shards.wal.decoder import decode_entry
from headgate.shards.wal.entry import Entry
from headgate.shards.wal.tip import listed_tip

PREFETCH = 8
"""Concurrent reads. Hides a store's latency."""

BLOCK = 8
"""Small entries that one read takes together after the WAL has turned out to be long: handing over each one would cost
more than reading it.
"""

SMALL = 64 << 10
"""Average bytes of an entry up to which entries are read in blocks: limits memory to a few MiB."""

_Found: TypeAlias = Entry | HeadgateError | None


@dataclass(frozen=True)
class WalEntry:
    """An entry and its position."""

    position: int
    entry: Entry


class WalTailer:
    """Reads one shard's WAL. Holds no state between calls of `read`."""

    def __init__(self, shard: Shard, *, prefetch: int = PREFETCH) -> None:
        self._shard = shard
        self._prefetch = prefetch

    def read(self, start: int, stop: int | None = None) -> Iterator[WalEntry]:
        """Entries from `start` up to the tip, or exactly [start, stop).

        Raises DataLoss for a hole, and for any missing entry below a given `stop`;
        Corrupt for an entry whose bytes are not what was written.
        """
        ahead: deque[tuple[range, Future[list[_Found]]]] = deque()
        upcoming, read, nbytes, least = start, 0, 0, start
        pool = Pool("tail", self._prefetch)
        try:
            while True:
                while len(ahead) < self._prefetch and (stop is None or upcoming < stop):
                    small = read >= BLOCK * self._prefetch and nbytes < read * SMALL
                    end = upcoming + (BLOCK if small else 1)
                    block = range(upcoming, end if stop is None else min(end, stop))
                    ahead.append((block, pool.submit(self._get_all, block)))
                    upcoming = block.stop
                if not ahead:
                    return
                block, future = ahead.popleft()
                found = future.result()
                for index, position in enumerate(block):
                    entry = found[index]
                    if isinstance(entry, HeadgateError):
                        raise entry
                    if entry is None:
                        later = (there for _, waiting in ahead for there in waiting.result())
                        free = all(there is None for there in chain(found[index:], later))
                        if stop is None and position >= least and free:
                            least = listed_tip(self._shard, position)
                            if least == position:
                                return
                        entry = self._filled_meanwhile(position)
                    read, nbytes = read + 1, nbytes + entry.nbytes
                    yield WalEntry(position, entry)
        finally:
            # Does not wait: an abandoned generator ends wherever the garbage collector runs, and that may be inside the
            # very locks that a join needs.
            pool.shutdown(wait=False, cancel_futures=True)

    def _get_all(self, block: range) -> list[_Found]:
        """For each position the entry, None, or its error, which is raised when its turn comes."""
        found: list[_Found] = []
        for position in block:
            try:
                found.append(self._get(position))
            except HeadgateError as error:
                found.append(error)
        return found

    def _get(self, position: int) -> Entry | None:
        try:
            return decode_entry(self._shard.wal.get(self._shard.wal_key(position)))
        except NotFound:
            return None
        except HeadgateError as error:
            raise self._shard.at_position(error, position)  # noqa: B904 - the same error, told where

    def _filled_meanwhile(self, position: int) -> Entry:
        """A later entry exists, so this one must exist by now: entries are put one after the other."""
        entry = self._get(position)
        if entry is None:
            raise DataLoss(
                f"The WAL has a hole: entry {position} is missing.", **self._shard.where(), position=position
            )
        return entry
