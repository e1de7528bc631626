"""Maintenance: flushes, checkpoints, compactions and collections of a running stream, by threads beside its batches.

Promises:
1. No batch waits for a job, with two exceptions that are told: the budget of unflushed bytes, and the cap on SSTables.
   (On a Spark of one core it waits for the task that runs.)
2. A job that fails never fails the stream: it is tried again after a pause that grows, and the state says so.
3. One thread works on the shards (flush, checkpoint, fold), one on the base (compaction, tidying, indexing), one
   collects garbage: a long compaction or collection delays no flush, unless there are fewer than three cores, where a
   core for batches comes first. A collection needs none of Spark's.
4. A driver that was fenced maintains nothing any more; the next batch learns it by itself.
5. A stream whose table was dropped and made anew ends: the next batch, or the one under way, raises Fenced (R23). No
   other look ends a stream.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import structlog
from structlog.contextvars import bind_contextvars

from headgate import clock, parallel
from headgate.checkpoints.gc.base import RunMerge, tidy_base
from headgate.checkpoints.gc.collect import Collection
from headgate.checkpoints.jobs.columns import difference, stream_schema
from headgate.checkpoints.jobs.compact import RunCompaction
from headgate.checkpoints.jobs.flush import RunJobs, run_here
from headgate.checkpoints.jobs.policy import BasePolicy, CompactLimits
from headgate.checkpoints.snapshots.checkpoint import TableCheckpoint
from headgate.checkpoints.stream.driver import StreamDriver
from headgate.errors import Fenced, HeadgateError, Transient
from headgate.search.build.jobs import Job, Runner, in_process
from headgate.search.build.plan import Limits
from headgate.search.build.upkeep import index_base, neglected
from headgate.search.finalize.finalize import Report
from headgate.search.finalize.segment import Segment
from headgate.streaming.maintenance.cores import CalledOff, at_once
from headgate.streaming.maintenance.rules import (
    Delay,
    MaintenanceLimits,
    delay,
    is_compaction_due,
    pause_after,
    to_flush,
)
from headgate.streaming.maintenance.state import (
    Collected,
    Delayed,
    Failure,
    MaintenanceState,
    now_told,
    seconds_since,
)

IDLE_SECONDS = 1.0
"""How soon an age that has passed, the end of the query or a stop is noticed."""

COMPLAIN_SECONDS = 30.0
"""A batch that waits says so in the log, at once and then as often as this."""

_log = structlog.get_logger("headgate.streaming")


Collect: TypeAlias = Callable[[Callable[[int, int], None]], Collection]
"""Collects the table's garbage, and calls what it is given after each object that went: it raises to end it early."""


@dataclass(frozen=True)
class Jobs:
    """Who does the work. Without Spark: this process."""

    flush: RunJobs = run_here
    compact: RunCompaction | None = None
    merge: RunMerge | None = None
    index: Runner = in_process
    checkpoint: Callable[[], TableCheckpoint] | None = None
    """Takes a checkpoint of scope all; None where none is taken while the stream runs."""
    collect: Collect | None = None
    """None where the stream collects no garbage."""
    turn: Callable[[Callable[[], bool]], AbstractContextManager[None]] = at_once
    """Waits until a job may run beside the batches; raises CalledOff where it is over before. Nobody holds a shard
    while it waits, and a job's time counts from its turn on."""


@dataclass(frozen=True)
class Schedule:
    """How often, and how much at once."""

    limits: MaintenanceLimits = field(default_factory=MaintenanceLimits)
    rounds: CompactLimits = field(default_factory=CompactLimits)
    base: BasePolicy = field(default_factory=BasePolicy)
    segments: Limits = field(default_factory=Limits)
    """Of full-text indexes."""
    checkpoint_seconds: float = 600.0
    tidy_seconds: float = 600.0
    """Between two looks at the base's fragments and versions."""
    index_seconds: float = 600.0
    """Between two looks for rows of the base that its full-text indexes miss, besides one after every compaction:
    others may have put them there."""
    gc_seconds: float = 3600.0
    """Between two collections of garbage, over restarts."""
    columns_seconds: float = 60.0
    """Between two looks whether it is still the same table, and whether somebody has changed its columns."""
    memtables: bool = True
    """False: a WAL-only stream, which is neither flushed nor compacted."""


@dataclass
class _Chore:
    """One kind of job of a thread."""

    name: str
    is_due: Callable[[], bool]
    run: Callable[[], None]
    quiet: bool = False
    """Nobody wants to know when it runs."""
    failures: int = 0
    """In a row."""
    since: str = ""
    not_before: float = float("-inf")


class Maintenance:
    """The threads of one driver. `start` them once; `stop` ends them."""

    def __init__(
        self,
        driver: StreamDriver,
        jobs: Jobs,
        schedule: Schedule,
        *,
        follows: bool = False,
        is_active: Callable[[], bool] = lambda: True,
        tell: Callable[[MaintenanceState], None] = lambda state: None,
        before: MaintenanceState | None = None,
        clock: Callable[[], float] = clock.monotonic,
        pause_after: Callable[[int], float] = pause_after,
    ) -> None:
        """`follows`: batches take over columns that a look finds changed. `is_active` says whether the query still
        runs; `tell` is called with the state when it changes for people; `before` is what an earlier driver of the
        stream told last.
        """
        self._driver = driver
        self._jobs = jobs
        self._schedule = schedule
        self._is_active = is_active
        self._tell = tell
        self._clock = clock
        self._pause_after = pause_after
        self._changed = threading.Condition()
        self._turn = threading.Lock()
        """Who works on the shards: the thread, or somebody who asked for a checkpoint."""
        self._telling = threading.Lock()
        """From a look at the state until it is told."""
        self._stopping = False
        self._fenced: Fenced | None = None
        self._another_table: Fenced | None = None
        self._follows = follows
        self._other_columns = False
        self._since: dict[str, float] = {}
        """Per shard, when its oldest unflushed entry was first seen."""
        self._sstables_since: dict[str, float] = {}
        """Per shard, when the oldest row that only its SSTables hold was first seen."""
        self._batches = 0
        """Since the last checkpoint."""
        self._checkpointed = self._tidied = self._looked = clock()
        self._indexes_looked = float("-inf")
        """An earlier driver may have compacted, and not indexed any more."""
        self._neglected: tuple[str, ...] = ()
        """Columns whose index misses rows."""
        self._untidied = 0
        """Compactions since the base was tidied."""
        since = before.collects_since if before is not None else ""
        waited = seconds_since(since)
        self._collected = clock() - (waited or 0.0)
        self._state = MaintenanceState(
            driver.stream,
            collected=None if before is None else before.collected,
            collects_since=now_told() if waited is None else since,
        )
        shards = [_Chore("checkpoint", self._checkpoint_due, self._checkpoint)]
        base: list[_Chore] = []
        if schedule.memtables:
            shards.append(_Chore("flush", lambda: bool(self._to_flush()), self._flush))
            # What follows a compaction comes before the next one, else it would never come while SSTables pile up.
            base = [
                _Chore("tidying of the base", self._tidy_due, self._tidy),
                _Chore("look at the indexes", self._look_at_indexes_due, self._look_at_indexes, quiet=True),
                _Chore("indexing", lambda: bool(self._neglected), self._index),
                _Chore("compaction", self._compaction_due, self._compact),
            ]
        shards.append(_Chore("fold of the log", lambda: driver.fold_is_due, self._fold, quiet=True))
        shards.append(_Chore("look at the table", self._look_due, self._look, quiet=True))
        garbage = [] if jobs.collect is None else [_Chore("garbage collection", self._collection_due, self._collect)]
        self._chores = {"shards": shards, "base": base, "garbage": garbage}
        self._threads = [parallel.thread(name, self._loop, chores) for name, chores in self._chores.items() if chores]

    # -- for the stream ------------------------------------------------------------

    def start(self) -> Maintenance:
        """Begin."""
        self._see_ages()
        for thread in self._threads:
            thread.start()
        return self

    def batch_done(self) -> None:
        """A batch was committed: there may be something to do."""
        self._see_ages()
        with self._changed:
            self._batches += 1
            self._changed.notify_all()

    def wait_for_room(self) -> None:
        """Before a batch: until the budget has room for it. Usually returns at once, and reads nothing.

        Raises Fenced where a successor has the stream or the table is another one, Transient where the query was
        stopped meanwhile.
        """
        self.check_table()
        if not self._schedule.memtables or (found := self._delay()) is None:
            return
        began, told = self._clock(), float("-inf")
        self._note_delay(found)
        try:
            while (found := self._delay()) is not None:
                if self._clock() - told >= COMPLAIN_SECONDS:
                    told = self._clock()
                    failing = [one.error for one in self.state.failures]
                    _log.warning(
                        "a batch waits for maintenance",
                        stream=self._driver.stream,
                        why=str(found),
                        seconds=round(told - began),
                        failing=failing or None,
                    )
                self._wait_a_little()
        finally:
            self._note_delay(None)

    def check_table(self) -> None:
        """Raises Fenced where a look has found another table in the place of the stream's (R23). Reads nothing."""
        with self._changed:
            if self._another_table is not None:
                raise self._another_table

    def saw_other_columns(self) -> bool:
        """Whether a look since the last call has found other columns than the driver writes: whoever changed them died
        before it had told the streams, or was native Lance (R22). Reads nothing.
        """
        with self._changed:
            seen, self._other_columns = self._other_columns, False
        return seen

    def checkpoint_now(self, take: Callable[[], TableCheckpoint]) -> TableCheckpoint:
        """Take a checkpoint in this thread, once the shards are free."""
        with self._turn:
            taken = take()
        with self._changed:
            self._checkpointed, self._batches = self._clock(), 0
        return taken

    def wait_until_idle(self, timeout: float | None = None) -> bool:
        """Until nothing runs and nothing is due, jobs that pause after a failure aside. False: not within the time."""
        end = None if timeout is None else clock.monotonic() + timeout
        while not self._is_idle():
            if end is not None and clock.monotonic() >= end:
                return False
            with self._changed:
                self._changed.notify_all()
                self._changed.wait(0.05)
        return True

    def _is_idle(self) -> bool:
        if self._is_over() or not any(thread.is_alive() for thread in self._threads):
            return not self._state.running
        due = (self._next_of(chores) for chores in self._chores.values())
        return not self._state.running and all(chore is None for chore in due)

    def stop(self, *, wait: bool = True) -> None:
        """Start no further job; `wait` for those that run."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        for thread in self._threads if wait else ():
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join()

    @property
    def base_lag(self) -> float:
        """Seconds since the oldest row was seen that plain Lance readers do not see yet; 0 where there is none."""
        with self._changed:
            oldest = min((*self._since.values(), *self._sstables_since.values()), default=None)
        return 0.0 if oldest is None else self._clock() - oldest

    @property
    def state(self) -> MaintenanceState:
        """How it stands."""
        loads, lag = self._driver.loads(), self.base_lag
        with self._changed:
            return replace(
                self._state,
                unflushed_bytes=sum(load.nbytes for load in loads),
                sstables=max((load.sstables for load in loads), default=0),
                base_since=now_told(lag) if lag else None,
                at=now_told(),
            )

    def note(self, text: str) -> None:
        """Something that the stream's operator should do; shown once."""
        with self._changed:
            if text in self._state.notes:
                return
            self._state = replace(self._state, notes=(*self._state.notes, text))
        _log.warning(text, stream=self._driver.stream)
        self._say()

    def _say(self) -> None:
        """Tell how it stands. One at a time: what is told last is the newest."""
        with self._telling:
            self._tell(self.state)

    # -- the threads -----------------------------------------------------------------

    def _loop(self, chores: list[_Chore]) -> None:
        """One job after the other, the first that is due; rest where none is. A query that ended leaves nothing due."""
        opened = self._driver.head.opened
        bind_contextvars(stream=self._driver.stream, query=None if opened is None else opened.query_id)
        while not self._is_over():
            active = self._is_active()
            if (chore := self._next_of(chores)) is not None:
                self._run(chore)
            elif not active:
                return
            else:
                with self._changed:
                    if not self._stopping:
                        self._changed.wait(IDLE_SECONDS)

    def _is_over(self) -> bool:
        with self._changed:
            return self._stopping or self._fenced is not None

    def _next_of(self, chores: list[_Chore]) -> _Chore | None:
        return next((one for one in chores if one.not_before <= self._clock() and one.is_due()), None)

    def _run(self, chore: _Chore) -> None:
        with self._changed:
            self._update(running=(*self._state.running, chore.name))
        failed = bool(chore.failures)
        if not chore.quiet:
            self._say()
        try:
            chore.run()
        except CalledOff:
            _log.debug("the stream is over: what was due is for the next run", stream=self._driver.stream)
        except Fenced as error:
            _log.info("maintenance ends: the stream is not this driver's", stream=self._driver.stream, error=error.what)
            with self._changed:
                self._fenced = error
        except Exception as error:
            self._note_failure(chore, error)
        else:
            if chore.failures:
                _log.info("a maintenance job works again", stream=self._driver.stream, job=chore.name)
            chore.failures, chore.not_before = 0, float("-inf")
            with self._changed:
                self._update(failures=self._other_failures(chore))
        finally:
            with self._changed:
                self._update(running=tuple(one for one in self._state.running if one != chore.name))
                self._changed.notify_all()
            if not chore.quiet or failed or chore.failures:
                self._say()

    def _note_failure(self, chore: _Chore, error: Exception) -> None:
        chore.failures += 1
        pause = self._pause_after(chore.failures)
        chore.not_before = self._clock() + pause
        chore.since = chore.since if chore.failures > 1 else now_told()
        # What Spark or Lance says may quote options, hence credentials.
        told = str(error) if isinstance(error, HeadgateError) else type(error).__name__
        failure = Failure(chore.name, chore.failures, told, chore.since, f"in {pause:.0f} s")
        with self._changed:
            self._update(failures=(*self._other_failures(chore), failure))
        _log.warning(
            "a maintenance job failed; it is tried again",
            stream=self._driver.stream,
            job=chore.name,
            times=chore.failures,
            seconds=pause,
            error=told,
        )

    def _other_failures(self, chore: _Chore) -> tuple[Failure, ...]:
        return tuple(one for one in self._state.failures if one.job != chore.name)

    def _update(self, **changes: object) -> None:
        with self._changed:
            self._state = replace(self._state, **changes)  # type: ignore[arg-type]

    # -- the shards ------------------------------------------------------------------

    def _to_flush(self) -> list[str]:
        now = self._clock()
        with self._changed:
            ages = {name: now - since for name, since in self._since.items()}
        return to_flush(self._driver.loads(), ages, self._schedule.limits)

    def _flush(self) -> None:
        with self._jobs.turn(self._is_over), self._turn, self._driver.maintenance("a flush"):
            jobs = self._driver.flush_jobs(self._schedule.limits.flush_bytes, self._to_flush())
            done = self._jobs.flush(jobs)
            self._driver.flushed(done)
        self._see_ages(flushed=done)
        self._update(flushes=self._state.flushes + len(done))

    def _see_ages(self, flushed: Container[str] = ()) -> None:
        """What is left of shards that were just flushed came while they were."""
        now, loads = self._clock(), self._driver.loads()
        with self._changed:
            rows = {one.name: self._sstables_since.get(one.name, self._since.get(one.name, now)) for one in loads}
            self._sstables_since = {one.name: rows[one.name] for one in loads if one.sstables}
            self._since = {
                one.name: now if one.name in flushed else self._since.get(one.name, now)
                for one in loads
                if one.entries or not one.known
            }

    def _checkpoint_due(self) -> bool:
        with self._changed:
            waited = self._clock() - self._checkpointed >= self._schedule.checkpoint_seconds
            return self._jobs.checkpoint is not None and self._batches > 0 and waited

    def _checkpoint(self) -> None:
        assert self._jobs.checkpoint is not None
        with self._jobs.turn(self._is_over):
            taken = self.checkpoint_now(self._jobs.checkpoint)
        self._see_ages()
        self._update(checkpoints=self._state.checkpoints + 1)
        _log.info("checkpoint taken", stream=self._driver.stream, checkpoint=taken.name, note=taken.note or None)

    def _fold(self) -> None:
        with self._turn:
            self._driver.fold_if_due()

    def _look_due(self) -> bool:
        return self._clock() - self._looked >= self._schedule.columns_seconds

    def _look(self) -> None:
        self._looked = self._clock()
        try:
            columns = stream_schema(self._driver.home)
        except Fenced as error:
            with self._changed:
                self._another_table = error
            raise
        changed = difference(self._driver.home.schema, columns)
        if changed is not None and self._follows:
            with self._changed:
                self._other_columns = True
        elif changed is not None:
            self.note(
                f"The table's columns changed since the query started: {changed}. Rows are stored as before: an added "
                "column is null in them, a dropped one is left out wherever they are read, flushed or compacted. "
                "Restart the query with the new columns, and without dropped ones, in its decoder or frame."
            )

    # -- the base --------------------------------------------------------------------

    def _compaction_due(self) -> bool:
        now = self._clock()
        with self._changed:
            ages = {name: now - since for name, since in self._sstables_since.items()}
        return is_compaction_due(self._driver.loads(), ages, self._schedule.limits)

    def _compact(self) -> None:
        with self._jobs.turn(self._is_over):
            done = self._driver.compact(self._schedule.rounds, self._jobs.compact)
        self._see_ages()
        if done is not None:
            self._untidied += 1
            self._indexes_looked = float("-inf")
            taken = self._state.sstables_compacted + done.sstables
            self._update(compactions=self._state.compactions + 1, sstables_compacted=taken)

    def _tidy_due(self) -> bool:
        return self._untidied > 0 and self._clock() - self._tidied >= self._schedule.tidy_seconds

    def _tidy(self) -> None:
        with self._jobs.turn(self._is_over):
            tidy_base(self._driver.home, self._schedule.base, self._jobs.merge)
        self._tidied, self._untidied = self._clock(), 0
        self._indexes_looked = float("-inf")

    def _look_at_indexes_due(self) -> bool:
        return self._clock() - self._indexes_looked >= self._schedule.index_seconds

    def _look_at_indexes(self) -> None:
        self._neglected = neglected(self._driver.home.store, self._schedule.segments)
        self._indexes_looked = self._clock()

    def _index(self) -> None:
        """New fragments become segments, and segments that are too many become few, in rounds; each has its turn."""

        def in_turn(jobs: Sequence[Job], report: Report) -> Sequence[Segment]:
            with self._jobs.turn(self._is_over):
                return self._jobs.index(jobs, report)

        done = index_base(self._driver.home.store, runner=in_turn, limits=self._schedule.segments)
        self._update(indexed=self._state.indexed + done.segments)
        self._neglected = ()

    # -- garbage -----------------------------------------------------------------------

    def _collection_due(self) -> bool:
        return self._clock() - self._collected >= self._schedule.gc_seconds

    def _collect(self) -> None:
        assert self._jobs.collect is not None

        def go_on(done: int, total: int) -> None:
            if self._is_over():
                raise CalledOff

        done = self._jobs.collect(go_on)
        self._collected = self._clock()
        told = Collected(now_told(), len(done.found), done.nbytes, done.kept)
        self._update(collected=told, collects_since=told.at)
        _log.info("garbage collected", stream=self._driver.stream, objects=told.objects, bytes=told.nbytes)
        for one in told.kept:
            _log.warning("garbage collection kept what it could not judge", stream=self._driver.stream, kept=one)

    # -- waiting -----------------------------------------------------------------------

    def _delay(self) -> Delay | None:
        return delay(self._driver.loads(), self._schedule.limits)

    def _wait_a_little(self) -> None:
        with self._changed:
            if self._fenced is not None:
                raise self._fenced
            self._changed.notify_all()
            self._changed.wait(IDLE_SECONDS)
            stopping = self._stopping
        if stopping or not self._is_active():
            raise Transient(
                "The query was stopped while a batch waited for maintenance.",
                table=self._driver.home.uri,
                stream=self._driver.stream,
                advice="start the query again; the batch was not written",
            )

    def _note_delay(self, found: Delay | None) -> None:
        self._update(delayed=None if found is None else Delayed(found.reason, str(found), now_told()))
        self._say()
