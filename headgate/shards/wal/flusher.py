"""WalFlusher: puts of many threads become entries, one after the other.

A thread of its own writes them. It starts with the first put. If every put is waited for and there is no MemTable, it
starts with the first two concurrent puts: a lone putter writes its entries itself, which saves a thread switch.

Promises:
1. Puts become durable in the order they were queued; one put is never split.
2. While one entry is being written, the puts that arrive gather for the next (group commit).
3. The queue has snapshot/commit semantics: batches leave it only when they are durable.
4. What waits in memory stays below `max_wal_buffer_size` plus one put while the store works, and below the budget while
   an append is being retried.
5. The first final error stops everything: each waiting and later call raises it.
6. A put is named not durable only if it cannot become so (R24). If an append is running when the flush of a MemTable
   fails, it is waited for within the retry deadline: if it landed, its puts are acknowledged; without an answer they
   raise OutcomeUnknown.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa
import structlog

from headgate import clock, parallel
from headgate.errors import Closed, Fenced, HeadgateError, InvalidInput, OutcomeUnknown, Poisoned
from headgate.shards.config import WriterConfig
from headgate.shards.manifest.decisions import Fate, fate
from headgate.shards.memtable.memtables import MemTables
from headgate.shards.wal.appender import Appended, WalAppender
from headgate.shards.wal.entry import EncodedRows, Tags
from headgate.shards.wal.pending import entry_name
from headgate.shards.wal.puts import FlusherStats, InFlight, PendingQueue, Put, Unfinished

_log = structlog.get_logger("headgate.shards")


class WalFlusher:
    """The pipeline between put and the appender."""

    def __init__(self, appender: WalAppender, config: WriterConfig, tables: MemTables | None = None) -> None:
        self._appender = appender
        self._tables = tables
        self._config = config
        self._where = appender.shard.where()
        self._queue = PendingQueue()
        self._changed = threading.Condition()
        self._may_write_alone = config.durable_write and tables is None
        """Not with a MemTable: its flush may fail while the store does not answer (promise 6)."""
        self._alone = False
        """True while a putter writes an entry itself."""
        self._thread: threading.Thread | None = None
        self._stopping: HeadgateError | None = None
        """A MemTable's flush has failed: nothing new begins, and a running append is waited for."""
        self._error: HeadgateError | None = None
        self._doubt: OutcomeUnknown | None = None
        """The error of puts whose outcome is unknown."""
        self._closing = False
        self._ended = False
        self._retrying = False
        self._wanted = 0
        """Number of the last put that someone waits for: entries up to it are written without delay."""
        self._numbered = 0
        self._in_flight: InFlight | None = None
        self._waits = 0
        self._last_complaint = float("-inf")
        self._entries = self._rows = self._nbytes = 0
        if tables is not None:
            tables.listen(self._tables_changed)

    # -- for putters ---------------------------------------------------------

    def submit(self, chunk: EncodedRows, tags: Tags) -> Put:
        """Queue the chunk, waiting for room. Raises the stored error, or Closed."""
        with self._changed:
            self._raise_if_stopped()
            self._wait_for_room(chunk.nbytes)
            self._numbered += 1
            put = Put(self._numbered, chunk, tags, self.wait)
            alone = self._may_write_alone and not len(self._queue)
            self._queue.push(put)
            if self._thread is None:
                if not alone:
                    self._start_thread()
            elif self._due():
                self._changed.notify_all()
            return put

    def wait(self, put: Put, timeout: float | None = None) -> tuple[int, ...]:
        """Wait until the put is durable. Raises the stored error, or OutcomeUnknown."""
        if self._writes_alone(put):
            try:
                self._guarded(self._write_entry)
            finally:
                with self._changed:
                    self._alone = False
                    self._changed.notify_all()
        with self._changed:
            if not put.done and self._error is None:
                self._wanted = max(self._wanted, put.number)
                self._changed.notify_all()
                if not self._changed.wait_for(lambda: put.done or self._error is not None, timeout):
                    raise TimeoutError(f"put {put.number} is not durable after {timeout} s")
            if put.done:
                return put.positions
            # Rows of an attempt are visible only once a commit record lists them, so no one needs to ask for their
            # outcome.
            if self._doubt is not None and put.tags.attempt_id is None and put in self._unfinished().unknown:
                raise self._doubt
            assert self._error is not None
            raise self._error

    def _writes_alone(self, put: Put) -> bool:
        """True if the caller must write the entry of its put itself."""
        with self._changed:
            if put.done or self._alone or self._thread is not None or self._error is not None:
                return False
            self._alone = True
            return True

    def flush(self) -> None:
        """Wait until every put queued before this call is durable. Raises the stored error."""
        with self._changed:
            if self._error is not None:
                raise self._error
            last = self._queue.waiting()[-1] if len(self._queue) else None
        if last is not None:
            try:
                self.wait(last)
            except OutcomeUnknown:
                assert self._error is not None
                raise self._error from None

    def close(self) -> None:
        """Make everything durable and end the thread. Raises the stored error, also when called again.

        A thread whose request the store never answers is left behind once the writer has failed.
        """
        with self._changed:
            self._closing = True
            if self._thread is None and len(self._queue):
                self._start_thread()
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._error is not None or (self._idle and self._stopping is None))
            if self._error is not None:
                raise self._error

    @property
    def _idle(self) -> bool:
        return self._thread is None or self._ended

    def _start_thread(self) -> None:
        self._thread = parallel.thread("wal", self._run)
        self._thread.start()

    def take_unfinished(self) -> Unfinished:
        """What is not durable, and never will be through this pipeline, which then forgets it. Empty after a clean
        close.

        Waits for an append that is being settled. Raises InvalidInput while the pipeline works.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None or self._stopping is None)
            if self._error is None:
                if self._closing and self._idle:
                    return Unfinished()
                raise InvalidInput(
                    "The writer has not failed: its pending puts are still being written.",
                    **self._where,
                    advice="wait for the puts, or flush(); take_pending() is for failed writers",
                )
            unfinished = self._unfinished()
            self._queue, self._in_flight = PendingQueue(), None
            return unfinished

    @property
    def closed(self) -> bool:
        """True if close was called."""
        return self._closing

    def _note_retry(self) -> None:
        """The appender is retrying: the store does not work at the moment."""
        with self._changed:
            self._retrying = True
            self._changed.notify_all()

    def _tables_changed(self) -> None:
        """MemTables have left memory, or their flush has failed. In that case this returns when no append is running,
        or the retry deadline has passed.
        """
        assert self._tables is not None
        error = self._tables.error
        with self._changed:
            self._changed.notify_all()
            if error is None or self._error is not None:
                return
            self._stopping = error
            if self._in_flight is not None:
                self._appender.halt(error)
                self._changed.wait_for(
                    lambda: self._in_flight is None or self._error is not None, self._config.retry.deadline
                )
        self._fail(error)

    @contextmanager
    def paused(self) -> Iterator[list[pa.RecordBatch]]:
        """The batches that are not durable yet; while it is open, no put moves from the queue into a MemTable."""
        with self._changed:
            chunks = [put.chunk for put in self._queue.waiting() if put.chunk is not None]
            yield [batch for chunk in chunks for batch in chunk.batches]

    def stats(self) -> FlusherStats:
        """Available at any time, also after close."""
        with self._changed:
            return FlusherStats(
                puts=self._numbered,
                entries=self._entries,
                rows=self._rows,
                nbytes=self._nbytes,
                pending_puts=len(self._queue),
                pending_bytes=self._queue.nbytes,
                peak_pending_bytes=self._queue.peak,
                waits=self._waits,
            )

    def check_open(self) -> None:
        """Raise the stored error, or Closed."""
        with self._changed:
            self._raise_if_stopped()

    def _raise_if_stopped(self) -> None:
        if (error := self._error or self._stopping) is not None:
            raise error
        if self._closing:
            raise Closed("This writer is closed.", **self._where)

    def _wait_for_room(self, nbytes: int) -> None:
        if self._has_room(nbytes):
            return
        self._waits += 1
        interval = self._config.backpressure_log_interval
        started = clock.monotonic()
        while not self._has_room(nbytes):
            over_budget = self._over_budget(nbytes)
            # Short waits for the buffer are normal; only a long one is logged.
            if over_budget or clock.monotonic() - started >= interval:
                self._complain()
            if over_budget and self._tables is not None:
                self._tables.freeze_early()
            self._changed.wait(interval)
            self._raise_if_stopped()

    def _has_room(self, nbytes: int) -> bool:
        fits = self._retrying or not len(self._queue) or self._queue.nbytes < self._config.max_wal_buffer_size
        return fits and not self._over_budget(nbytes)

    def _over_budget(self, nbytes: int) -> bool:
        held = self._queue.nbytes + (self._tables.nbytes if self._tables else 0)
        return held > 0 and held + nbytes > self._config.max_unflushed_memtable_bytes

    def _complain(self) -> None:
        now = clock.monotonic()
        if now - self._last_complaint >= self._config.backpressure_log_interval:
            self._last_complaint = now
            _log.warning(
                "puts wait: the memory limit for bytes that are not durable yet is reached",
                pending_bytes=self._queue.nbytes,
                buffer=self._config.max_wal_buffer_size,
                budget=self._config.max_unflushed_memtable_bytes,
                retrying=self._retrying,
                **self._where,
            )

    # -- writing ----------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._guarded(self._write_all)
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _guarded(self, write: Callable[[], None]) -> None:
        """Any error becomes the pipeline's error."""
        try:
            write()
        except HeadgateError as error:
            self._fail(error)
        except BaseException as error:
            poisoned = Poisoned(f"Writing to the WAL was interrupted: {error!r}.", **self._where)
            poisoned.__cause__ = error
            self._fail(poisoned)
            if self._alone and not isinstance(error, Exception):
                raise

    def _write_all(self) -> None:
        while True:
            with self._changed:
                while self._stopping is None and (self._alone or not self._due()):
                    if self._closing and not len(self._queue):
                        return
                    self._changed.wait(None if self._alone else self._time_left())
                if self._stopping is not None:
                    return
            self._write_entry()

    def _write_entry(self) -> None:
        """Make the oldest puts durable. In a separate function, so that an idle thread holds no rows."""
        with self._changed:
            if self._stopping is not None:
                return
            taken = self._queue.snapshot(self._config.max_wal_buffer_size)
            entry = self._in_flight = InFlight(uuid.uuid4().hex, tuple(taken))
        chunks = [put.chunk for put in taken if put.chunk is not None]
        planned = self._appender.next_position
        appended = self._appender.append(chunks, taken[0].tags, entry.entry_id, self._note_retry)
        try:
            if self._tables is not None and appended.position > planned:
                self._tables.insert_skipped(planned, appended.position)
        except BaseException:
            with self._changed:
                self._acknowledge(entry, appended)
            raise
        with self._changed:
            self._acknowledge(entry, appended)
            if self._tables is not None and self._error is None:
                batches = [batch for chunk in chunks for batch in chunk.batches]
                self._tables.insert(batches, appended.position, len(taken))

    def _acknowledge(self, entry: InFlight, appended: Appended) -> None:
        """The entry has landed, possibly after it was named unknown. Does nothing if its rows were given back."""
        if self._in_flight is not entry:
            return
        self._queue.commit(list(entry.puts), appended.position)
        self._retrying = False
        self._in_flight = None
        self._entries += 1
        self._rows += appended.rows
        self._nbytes += appended.nbytes
        self._changed.notify_all()

    def _due(self) -> bool:
        if not len(self._queue):
            return False
        queued = self._queue.nbytes - (self._in_flight.nbytes if self._in_flight else 0)
        return (
            self._closing
            or self._queue.oldest().number <= self._wanted
            or queued >= self._config.max_wal_buffer_size / 2
            or self._time_left() == 0
        )

    def _time_left(self) -> float | None:
        if not len(self._queue):
            return None
        age = clock.monotonic() - self._queue.oldest().queued
        return max(0.0, self._config.max_wal_flush_interval - age)

    def _fail(self, error: HeadgateError) -> None:
        with self._changed:
            if self._error is not None:
                return
            if self._stopping is not None and not isinstance(error, Fenced):
                error = self._stopping
            left = self._unfinished()
            if left.failed:
                error.with_context(not_durable=_named(left.failed))
            if left.sent is not None:
                name = entry_name(self._where["shard"], left.sent.position, left.sent.entry_id)
                elsewhere = "The writer stopped before the store answered the put of a WAL entry."
                what, cause = (elsewhere, error) if self._stopping is not None else (error.what, error.__cause__)
                self._doubt = OutcomeUnknown(what, **self._where, position=left.sent.position, epoch=error.epoch)
                self._doubt.__cause__ = cause
                for one in (error, self._doubt):
                    one.with_context(unknown=_named(left.unknown), unknown_entry=name)
            self._stopping = self._error = error
            self._changed.notify_all()

    def _unfinished(self) -> Unfinished:
        waiting, entry, sent = tuple(self._queue.waiting()), self._in_flight, self._appender.sent
        if entry is None or sent is None or sent.entry_id != entry.entry_id:
            return Unfinished(waiting)
        if fate(sent=True, slot=sent.slot) is Fate.FAILED:
            return Unfinished(waiting)
        return Unfinished(waiting[len(entry.puts) :], entry.puts, sent)


def _named(puts: tuple[Put, ...]) -> str:
    return f"puts {puts[0].number} to {puts[-1].number} ({sum(put.rows for put in puts)} rows)"
