"""The shared state of one driver's maintenance: used by its threads and by the batches."""

from __future__ import annotations

import threading
from collections.abc import Callable, Container
from dataclasses import dataclass, field, replace

import structlog

from headgate import clock
from headgate.caches import cache_usage
from headgate.checkpoints.jobs.state import JobFailure, JobProgress, MaintenanceState, timestamp
from headgate.checkpoints.stream.driver import StreamDriver
from headgate.errors import Fenced

PROGRESS_SECONDS = 10.0
"""Minimum time between two reports of a running job's progress: each is a request to the store."""

_log = structlog.get_logger("headgate.streaming")


@dataclass
class Board:
    """Any thread may read and change it. `changed` is the lock, and wakes threads that wait for work."""

    driver: StreamDriver
    _state: MaintenanceState
    _report: Callable[[MaintenanceState], None]
    changed: threading.Condition = field(default_factory=threading.Condition)
    stopping: bool = False
    fenced: Fenced | None = None
    _reporting: threading.Lock = field(default_factory=threading.Lock)
    """Held from reading the state until it is reported."""
    _unflushed: dict[str, float] = field(default_factory=dict)
    """Per shard, when its oldest unflushed entry was first seen."""
    _in_sstables: dict[str, float] = field(default_factory=dict)
    """Per shard, when the oldest row that only its SSTables hold was first seen."""
    _reported: float = float("-inf")

    # -- stopping --------------------------------------------------------------------

    def is_over(self) -> bool:
        """True if no further job may start."""
        with self.changed:
            return self.stopping or self.fenced is not None

    def stop(self) -> None:
        """Let no further job start."""
        with self.changed:
            self.stopping = True
            self.changed.notify_all()

    def fence(self, error: Fenced) -> None:
        """Note that another driver took over the stream."""
        with self.changed:
            self.fenced = error
            self.changed.notify_all()

    def wake(self) -> None:
        """Wake all threads: there may be work."""
        with self.changed:
            self.changed.notify_all()

    # -- state -----------------------------------------------------------------------

    @property
    def state(self) -> MaintenanceState:
        """The current state, to report."""
        loads, lag, caches = self.driver.loads(), self.base_lag, cache_usage()
        with self.changed:
            return replace(
                self._state,
                unflushed_bytes=sum(load.nbytes for load in loads),
                sstables=max((load.sstables for load in loads), default=0),
                base_since=timestamp(lag) if lag else None,
                cached_bytes=caches.total,
                cache_limit=caches.limit,
                at=timestamp(),
            )

    def update(self, **changes: object) -> None:
        """Change some fields of the state."""
        with self.changed:
            self._state = replace(self._state, **changes)  # type: ignore[arg-type]

    def count(self, **more: int) -> None:
        """Add to counts of the state."""
        with self.changed:
            self.update(**{name: getattr(self._state, name) + number for name, number in more.items()})

    def began(self, job: str) -> None:
        """Note that a job started."""
        with self.changed:
            progress = JobProgress(job, timestamp())
            self.update(running=(*self._state.running, job), progress=(*self._state.progress, progress))

    def moved(self, job: str, done: int, total: int) -> None:
        """Note how much of a running job is done, and report it from time to time."""
        with self.changed:
            moved = tuple(
                replace(one, done=done, total=total) if one.job == job else one for one in self._state.progress
            )
            self.update(progress=moved)
            is_due = clock.monotonic() - self._reported >= PROGRESS_SECONDS
        if is_due:
            self.report()

    def ended(self, job: str) -> None:
        """Note that a job ended."""
        with self.changed:
            self.update(
                running=tuple(one for one in self._state.running if one != job),
                progress=tuple(one for one in self._state.progress if one.job != job),
            )
            self.changed.notify_all()

    def failed(self, job: str, failure: JobFailure | None) -> None:
        """Set a job's last failure; None if it works."""
        with self.changed:
            others = tuple(one for one in self._state.failures if one.job != job)
            self.update(failures=others if failure is None else (*others, failure))

    @property
    def is_busy(self) -> bool:
        with self.changed:
            return bool(self._state.running)

    def note(self, text: str) -> None:
        """Show a message that the operator must act on, once."""
        with self.changed:
            if text in self._state.notes:
                return
            self._state = replace(self._state, notes=(*self._state.notes, text))
        _log.warning(text, stream=self.driver.stream)
        self.report()

    def report(self) -> None:
        """Report the state. Reports are made one at a time, so the last one reported is the newest."""
        with self._reporting:
            self._reported = clock.monotonic()
            self._report(self.state)

    # -- ages of rows ----------------------------------------------------------------

    def see_ages(self, flushed: Container[str] = ()) -> None:
        """Update since when each shard has unflushed entries and SSTables. Entries that shards still have after a flush
        arrived during that flush.
        """
        now, loads = clock.monotonic(), self.driver.loads()
        with self.changed:
            rows = {one.name: self._in_sstables.get(one.name, self._unflushed.get(one.name, now)) for one in loads}
            self._in_sstables = {one.name: rows[one.name] for one in loads if one.sstables}
            self._unflushed = {
                one.name: now if one.name in flushed else self._unflushed.get(one.name, now)
                for one in loads
                if one.entries or not one.known
            }

    def unflushed_ages(self) -> dict[str, float]:
        """The age of each shard's oldest unflushed entry, in seconds."""
        now = clock.monotonic()
        with self.changed:
            return {name: now - since for name, since in self._unflushed.items()}

    def sstable_ages(self) -> dict[str, float]:
        """The age of each shard's oldest row that only SSTables hold, in seconds."""
        now = clock.monotonic()
        with self.changed:
            return {name: now - since for name, since in self._in_sstables.items()}

    @property
    def base_lag(self) -> float:
        """Seconds since the oldest row was seen that plain Lance readers do not see yet; 0 if there is none."""
        return max((0.0, *self.unflushed_ages().values(), *self.sstable_ages().values()))
