"""A thread that keeps an external system up to date with a stream, and never delays the stream.

Promises: `update` only stores the value and returns; a failed try is repeated after a doubling pause, always with the
newest value; no thread is started before the first `update`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from structlog.contextvars import bound_contextvars

from headgate import clock, parallel

Wanted = TypeVar("Wanted")

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
"""Seconds between tries: doubled from the first to the longest."""


class Follower(Generic[Wanted]):
    """The thread calls `work` with the last value of `update`; its errors go to `report`, and it is tried again.

    `report` gets None after a success, and the error after a failure, with whether it is the first in a row.
    Every log line of the thread has the `facts`.
    """

    patience = 15.0
    """Seconds that a clean stop waits for the last value."""

    def __init__(
        self,
        name: str,
        work: Callable[[Wanted], None],
        report: Callable[[Exception | None, bool], None],
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        self._name = name
        self._work = work
        self._report = report
        self._facts = dict(facts or {})
        self._wanted: Wanted | None = None
        self._done: Wanted | None = None
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stopped = False
        self.is_failing = False
        """True if the last try failed."""
        self.failures = 0
        """Tries that failed since the start."""

    def update(self, wanted: Wanted) -> None:
        """Set the newest value. Returns at once."""
        with self._changed:
            self._wanted = wanted
            if self._thread is None and not self._stopped:
                self._thread = parallel.thread(self._name, self._run)
                self._thread.start()
            self._changed.notify_all()

    @property
    def is_current(self) -> bool:
        """True if the external system has the newest value."""
        with self._changed:
            return self._done == self._wanted

    @property
    def is_stopped(self) -> bool:
        """True if nothing more is tried."""
        return self._stopped

    def stop(self, *, wait: bool = True) -> bool:
        """End the thread. With `wait`, wait for the newest value, unless the last try failed. Returns whether the
        external system has it.
        """
        seconds = self.patience if wait and not self.is_failing else 0.0
        until = clock.monotonic() + seconds
        with self._changed:
            self._changed.wait_for(lambda: self._thread is None or self._stopped or self._done == self._wanted, seconds)
            self._stopped = True
            self._changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(max(0.0, until - clock.monotonic()))
        return self.is_current

    def give_up(self) -> None:
        """Called by the work itself: stop trying."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    # -- the thread ----------------------------------------------------------------

    def _run(self) -> None:
        with bound_contextvars(**self._facts):
            self._follow()

    def _follow(self) -> None:
        pause = 0.0
        while (wanted := self._next(pause)) is not None:
            failed = self._try(wanted)
            if failed is not None and self._stopped:
                return  # nothing is retried after a stop, and stop() returns if the value was written
            first = failed is not None and not pause
            pause = 0.0 if failed is None else min(LONGEST_PAUSE, max(FIRST_PAUSE, 2 * pause))
            self._report(failed, first)
            self.is_failing = failed is not None

    def _next(self, pause: float) -> Wanted | None:
        """The next value, after a pause; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped, pause)
            self._changed.wait_for(lambda: self._stopped or self._done != self._wanted)
            return None if self._stopped else self._wanted

    def _try(self, wanted: Wanted) -> Exception | None:
        try:
            self._work(wanted)
        except Exception as error:  # any error: the stream continues
            self.failures += 1
            return error
        with self._changed:
            self._done = wanted
            self._changed.notify_all()
        return None
