"""Turns of maintenance jobs on Spark's cores, so that batches always find one: Spark takes none back from a task.

Promises:
1. The jobs of one Spark application that run at once, of whatever stream, have together at most one task less than it
   has cores. On one core one task of them runs at a time, and a batch waits for it.
2. First come, first served: a long compaction after the other keeps no flush waiting forever.
3. Who is called off leaves the line, and takes no turn.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LOOK_SECONDS = 0.2
"""How soon who waits notices that it was called off."""


class CalledOff(Exception):
    """What waited for its turn is not wanted any more."""


@contextmanager
def at_once(is_over: Callable[[], bool]) -> Iterator[None]:
    """A turn where nobody has to wait. Raises CalledOff."""
    if is_over():
        raise CalledOff
    yield


class CoreTurns:
    """Who has how many cores, and who waits."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._taken = 0
        self._waiting: deque[object] = deque()

    @property
    def waiting(self) -> int:
        """How many jobs wait."""
        with self._changed:
            return len(self._waiting)

    @contextmanager
    def turn(self, tasks: int, cores: int, is_over: Callable[[], bool] = lambda: False) -> Iterator[None]:
        """Wait until so many tasks fit into `cores`, which is what all together may have now; then hold their place.

        Raises CalledOff as soon as `is_over` says so.
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
