"""The jobs of maintenance and when they are due: for shards, base, the table's columns and garbage."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import structlog

from headgate import clock
from headgate.checkpoints.gc.base import tidy_base
from headgate.checkpoints.jobs.columns import difference, stream_schema
from headgate.checkpoints.jobs.state import Collected, seconds_since, timestamp
from headgate.checkpoints.snapshots.checkpoint import TableCheckpoint
from headgate.checkpoints.stream.driver import StreamDriver
from headgate.errors import Fenced
from headgate.search.build.jobs import Job
from headgate.search.build.upkeep import index_base, neglected
from headgate.search.finalize.finalize import Report
from headgate.search.finalize.segment import Segment
from headgate.streaming.maintenance.board import Board
from headgate.streaming.maintenance.cores import CalledOff
from headgate.streaming.maintenance.loop import Chore
from headgate.streaming.maintenance.rules import is_compaction_due, to_flush
from headgate.streaming.maintenance.schedule import Collect, Jobs, Schedule

_log = structlog.get_logger("headgate.streaming")

_NOW = float("-inf")


@dataclass
class ShardUpkeep:
    """Flushes, checkpoints and folds of the commit log."""

    driver: StreamDriver
    jobs: Jobs
    schedule: Schedule
    board: Board
    _turn: threading.Lock = field(default_factory=threading.Lock)
    """Held while working on the shards: by the thread, or by a caller of `checkpoint_now`."""
    _batches: int = 0
    """Batches since the last checkpoint."""
    _checkpointed: float = field(default_factory=clock.monotonic)

    def chores(self) -> list[Chore]:
        chores = [Chore("checkpoint", self._checkpoint_due, self._checkpoint)]
        if self.schedule.memtables:
            chores.append(Chore("flush", lambda: bool(self._to_flush()), self._flush))
        chores.append(Chore("fold of the log", lambda: self.driver.fold_is_due, self._fold, quiet=True))
        return chores

    def batch_done(self) -> None:
        """Count a committed batch."""
        with self.board.changed:
            self._batches += 1

    def checkpoint_now(self, take: Callable[[], TableCheckpoint]) -> TableCheckpoint:
        """Take a checkpoint in this thread, once no job works on the shards."""
        with self._turn:
            taken = take()
        with self.board.changed:
            self._checkpointed, self._batches = clock.monotonic(), 0
        return taken

    def _to_flush(self) -> list[str]:
        return to_flush(self.driver.loads(), self.board.unflushed_ages(), self.schedule.limits)

    def _flush(self) -> None:
        with (
            self.jobs.turn(self.board.is_over),
            self._turn,
            self.driver.maintenance("a flush"),
        ):
            jobs = self.driver.flush_jobs(self.schedule.limits.flush_bytes, self._to_flush())
            done = self.jobs.flush(jobs)
            self.driver.flushed(done)
        self.board.see_ages(flushed=done)
        self.board.count(flushes=len(done))

    def _checkpoint_due(self) -> bool:
        with self.board.changed:
            waited = clock.monotonic() - self._checkpointed >= self.schedule.checkpoint_seconds
            return self.jobs.checkpoint is not None and self._batches > 0 and waited

    def _checkpoint(self) -> None:
        assert self.jobs.checkpoint is not None
        with self.jobs.turn(self.board.is_over):
            taken = self.checkpoint_now(self.jobs.checkpoint)
        self.board.see_ages()
        self.board.count(checkpoints=1)
        _log.info("checkpoint taken", stream=self.driver.stream, checkpoint=taken.name, note=taken.note or None)

    def _fold(self) -> None:
        with self._turn:
            self.driver.fold_if_due()


@dataclass
class BaseUpkeep:
    """Compaction into the base, and the base's cleanup and indexes."""

    driver: StreamDriver
    jobs: Jobs
    schedule: Schedule
    board: Board
    _tidied: float = field(default_factory=clock.monotonic)
    _untidied: int = 0
    """Compactions since the last cleanup of the base."""
    _indexes_seen: float = _NOW
    """At once after the start: an earlier driver may have compacted without indexing."""
    _stale_indexes: tuple[str, ...] = ()
    """Columns whose index lacks rows."""

    def chores(self) -> list[Chore]:
        """The chores of the base's thread. Cleanup and indexing come before the next compaction: otherwise they would
        never run while SSTables pile up.
        """
        return [
            Chore("cleanup of the base", self._tidy_due, self._tidy),
            Chore("check of the indexes", self._index_look_due, self._look_at_indexes, quiet=True),
            Chore("indexing", lambda: bool(self._stale_indexes), self._index),
            Chore("compaction", self._compaction_due, self._compact),
        ]

    def _compaction_due(self) -> bool:
        return is_compaction_due(self.driver.loads(), self.board.sstable_ages(), self.schedule.limits)

    def _compact(self) -> None:
        with self.jobs.turn(self.board.is_over):
            done = self.driver.compact(self.schedule.rounds, self.jobs.compact)
        self.board.see_ages()
        if done is not None:
            self._untidied += 1
            self._indexes_seen = _NOW
            self.board.count(compactions=1, sstables_compacted=done.sstables)

    def _tidy_due(self) -> bool:
        return self._untidied > 0 and clock.monotonic() - self._tidied >= self.schedule.tidy_seconds

    def _tidy(self) -> None:
        with self.jobs.turn(self.board.is_over):
            tidy_base(self.driver.home, self.schedule.base, self.jobs.merge)
        self._tidied, self._untidied = clock.monotonic(), 0
        self._indexes_seen = _NOW

    def _index_look_due(self) -> bool:
        return clock.monotonic() - self._indexes_seen >= self.schedule.index_seconds

    def _look_at_indexes(self) -> None:
        self._stale_indexes = neglected(self.driver.home, self.schedule.segments)
        self._indexes_seen = clock.monotonic()

    def _index(self) -> None:
        """Index new fragments as segments and merge surplus segments, in rounds; each round waits for its own turn."""

        def in_turn(jobs: Sequence[Job], report: Report) -> Sequence[Segment]:
            with self.jobs.turn(self.board.is_over):
                return self.jobs.index(jobs, report)

        def report(stage: str, done: int, total: int) -> None:
            self.board.moved("indexing", done, total)

        done = index_base(self.driver.home, runner=in_turn, limits=self.schedule.segments, report=report)
        self.board.count(indexed=done.segments)
        self._stale_indexes = ()


@dataclass
class TableLook:
    """Checks if the table was re-created, and if its columns changed."""

    driver: StreamDriver
    schedule: Schedule
    board: Board
    follows: bool
    """True if batches adopt changed columns."""
    _last: float = field(default_factory=clock.monotonic)
    _another_table: Fenced | None = None
    _other_columns: bool = False

    def chore(self) -> Chore:
        return Chore("check of the table", self._is_due, self._look, quiet=True)

    def check_table(self) -> None:
        """Raises Fenced if a check found that the table was re-created (R23). Reads nothing."""
        with self.board.changed:
            if self._another_table is not None:
                raise self._another_table

    def saw_other_columns(self) -> bool:
        """True if a check since the last call found columns that differ from those that the driver writes. Reads
        nothing.
        """
        with self.board.changed:
            seen, self._other_columns = self._other_columns, False
        return seen

    def _is_due(self) -> bool:
        return clock.monotonic() - self._last >= self.schedule.columns_seconds

    def _look(self) -> None:
        self._last = clock.monotonic()
        try:
            columns = stream_schema(self.driver.home)
        except Fenced as error:
            with self.board.changed:
                self._another_table = error
            raise
        changed = difference(self.driver.home.schema, columns)
        if changed is not None and self.follows:
            with self.board.changed:
                self._other_columns = True
        elif changed is not None:
            self.board.note(
                f"The table's columns changed since the query started: {changed}. The query writes rows as "
                "before: an added column is null, a dropped column is ignored. Restart the query with a "
                "decoder or frame that has the new columns and not the dropped ones."
            )


@dataclass
class GarbageUpkeep:
    """Garbage collections of the table. The interval is kept across restarts."""

    collect: Collect
    schedule: Schedule
    board: Board

    def __post_init__(self) -> None:
        self._last = clock.monotonic() - (seconds_since(self.board.state.collects_since) or 0.0)

    def chores(self) -> list[Chore]:
        return [Chore("garbage collection", self._is_due, self._run)]

    def _is_due(self) -> bool:
        return clock.monotonic() - self._last >= self.schedule.gc_seconds

    def _run(self) -> None:
        def go_on(done: int, total: int) -> None:
            if self.board.is_over():
                raise CalledOff
            self.board.moved("garbage collection", done, total)

        done = self.collect(go_on)
        self._last = clock.monotonic()
        collected = Collected(timestamp(), len(done.found), done.nbytes, done.kept)
        self.board.update(collected=collected, collects_since=collected.at)
        _log.info(
            "garbage collected", stream=self.board.driver.stream, objects=collected.objects, bytes=collected.nbytes
        )
        for one in collected.kept:
            _log.warning(
                "garbage collection kept files that it could not check", stream=self.board.driver.stream, kept=one
            )
