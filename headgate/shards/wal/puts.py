"""Puts: the handles that callers wait for, and the queue that holds them until their rows are durable."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from headgate import clock
from headgate.shards.wal.appender import Sent
from headgate.shards.wal.entry import EncodedRows, Tags

Wait: TypeAlias = "Callable[[Put, float | None], tuple[int, ...]]"


@dataclass(frozen=True, slots=True)
class FlusherStats:
    """Counts since the writer was made."""

    puts: int
    entries: int
    rows: int
    nbytes: int
    pending_puts: int
    pending_bytes: int
    peak_pending_bytes: int
    waits: int


class Put:
    """The handle of a put. Done when its rows are durable."""

    def __init__(self, number: int, chunk: EncodedRows, tags: Tags, wait: Wait) -> None:
        self.number = number
        """Numbers the puts of one writer from 1: errors name the puts that were not made durable."""
        self.rows = chunk.rows
        self.nbytes = chunk.nbytes
        self.chunk: EncodedRows | None = chunk
        """None once the rows are durable."""
        self.tags = tags
        self.queued = clock.monotonic()
        self._wait = wait
        self._position: int | None = None

    @property
    def done(self) -> bool:
        """True if the rows are durable."""
        return self._position is not None

    def wait(self, timeout: float | None = None) -> tuple[int, ...]:
        """Wait until the rows are durable; returns their positions. Raises the writer's error, or TimeoutError."""
        return self._wait(self, timeout)

    @property
    def positions(self) -> tuple[int, ...]:
        """The positions of the entries that hold the rows, once they are durable; empty before."""
        return () if self._position is None else (self._position,)


class NoRows(Put):
    """A put without rows: nothing is written, and it is done at once."""

    def __init__(self) -> None:
        self.number = 0
        self.rows = self.nbytes = 0
        self._position = None

    @property
    def done(self) -> bool:
        """Always true."""
        return True

    def wait(self, timeout: float | None = None) -> tuple[int, ...]:
        return ()


class PendingQueue:
    """Puts that are not durable yet, oldest first. Guarded by the flusher's lock."""

    def __init__(self) -> None:
        self._puts: deque[Put] = deque()
        self.nbytes = 0
        self.peak = 0

    def __len__(self) -> int:
        return len(self._puts)

    def push(self, put: Put) -> None:
        """Add a put at the end."""
        self._puts.append(put)
        self.nbytes += put.nbytes
        self.peak = max(self.peak, self.nbytes)

    def oldest(self) -> Put:
        """The put that has waited longest."""
        return self._puts[0]

    def waiting(self) -> list[Put]:
        """All waiting puts."""
        return list(self._puts)

    def snapshot(self, limit: int) -> list[Put]:
        """The oldest puts that fit into one entry: equal tags, up to `limit` bytes, at least one put. They stay in the
        queue.
        """
        taken: list[Put] = []
        size = 0
        for put in self._puts:
            if taken and (size + put.nbytes > limit or put.tags != taken[0].tags):
                break
            taken.append(put)
            size += put.nbytes
        return taken

    def commit(self, taken: list[Put], position: int) -> None:
        """The puts of a snapshot are durable: remove them."""
        for put in taken:
            assert self._puts.popleft() is put
            self.nbytes -= put.nbytes
            put.chunk = None
            put._position = position


@dataclass(frozen=True, slots=True)
class InFlight:
    """Puts whose append is running or has failed: the oldest of the queue."""

    entry_id: str
    puts: tuple[Put, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all puts."""
        return sum(put.nbytes for put in self.puts)


@dataclass(frozen=True, slots=True)
class Unfinished:
    """What a failed pipeline has not made durable. `sent` is where the unknown puts may be."""

    failed: tuple[Put, ...] = ()
    unknown: tuple[Put, ...] = ()
    sent: Sent | None = None
