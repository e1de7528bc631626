"""Turns of maintenance jobs on Spark's cores, so that a core stays free for batches: Spark cannot take a core from a
running task.

Promises:
1. All running jobs of one Spark application, of all its streams, have together at most one task less than the
   application has cores. With one core, one task runs at a time, and a batch waits for it.
2. First come, first served: long compactions never keep a flush waiting forever.
3. A job that is called off leaves the queue without a turn.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LOOK_SECONDS = 0.2
"""How often a waiting job checks if it was called off."""


class CalledOff(Exception):
    """The job is no longer wanted. Raised before its turn."""


@contextmanager
def at_once(is_over: Callable[[], bool]) -> Iterator[None]:
    """A turn that never waits. Raises CalledOff."""
    if is_over():
        raise CalledOff
    yield


class CoreTurns:
    """The cores in use, and the queue of waiting jobs."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._taken = 0
        self._waiting: deque[object] = deque()

    @property
    def waiting(self) -> int:
        """Number of waiting jobs."""
        with self._changed:
            return len(self._waiting)

    @contextmanager
    def turn(self, tasks: int, cores: int, is_over: Callable[[], bool] = lambda: False) -> Iterator[None]:
        """Wait until `tasks` more tasks fit into `cores`, the limit for all jobs together; then hold that many.

        Raises CalledOff as soon as `is_over` returns true.
        """
        wanted, ticket = min(tasks, cores), object()
        with self._changed:
            self._waiting.append(ticket)
            try:
                while True:
                    if is_over():
                        raise CalledOff
                    if self._waiting[0] is ticket and self._taken + wanted <= cores:
                        break
                    self._changed.wait(LOOK_SECONDS)
                self._taken += wanted
            finally:
                self._waiting.remove(ticket)
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._taken -= wanted
                self._changed.notify_all()
