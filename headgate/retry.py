"""How often, and after which pauses, a passing fault of the store is tried again."""

from __future__ import annotations

import math
import os
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from headgate import clock
from headgate.errors import InvalidInput, Transient

T = TypeVar("T")

JITTER = 0.25
"""The part of a pause that is left to chance, so that rivals part."""

_counting = threading.Lock()
_count = 0
os.register_at_fork(after_in_child=lambda: globals().__setitem__("_counting", threading.Lock()))


def retries() -> int:
    """How often this process has tried something of a store again."""
    return _count


def note_retry() -> None:
    """Once for every further try."""
    global _count
    with _counting:
        _count += 1


@dataclass(frozen=True, slots=True)
class Retry:
    """Pauses of base, 2·base, 4·base … seconds, none above cap, each up to a quarter shorter by chance.

    `attempts` counts the tries after the first one; 0 means that nothing is tried again. The usual five tries within
    a second and a half outlast a throttled prefix and a restarted connection; who can wait longer says so.
    """

    attempts: int = 4
    base: float = 0.1
    cap: float = 5.0

    def __post_init__(self) -> None:
        if self.attempts < 0 or self.base < 0 or self.cap < 0:
            raise InvalidInput(f"A retry needs attempts, base and cap of 0 or more, not {self}.")

    @classmethod
    def lasting(cls, seconds: float) -> Retry:
        """As many tries as outlast a store that is away for so long; 0 means none. What a try takes comes on top."""
        usual = cls()
        attempts, total, delay = 0, 0.0, usual.base
        while total < seconds and delay < usual.cap:
            attempts, total, delay = attempts + 1, total + delay * (1 - JITTER), delay * 2
        return cls(attempts + math.ceil(max(0.0, seconds - total) / (usual.cap * (1 - JITTER))))

    def delays(self) -> Iterator[float]:
        """One pause in seconds before each further try."""
        return (delay * random.uniform(1 - JITTER, 1) for delay in self._longest())

    @property
    def deadline(self) -> float:
        """Seconds to wait for an answer that is outstanding: all pauses, and `cap` for the try under way."""
        return sum(self._longest()) + self.cap

    def run(self, operation: Callable[[], T]) -> T:
        """The operation's result, tried again while it raises Transient. For what may be done twice."""
        return self._run(operation, math.inf)

    def run_steps(self, operation: Callable[[], T]) -> T:
        """The same for several steps, some as patient themselves: once all of the pauses' time has passed, no more."""
        return self._run(operation, clock.monotonic() + sum(self._longest()) * (1 - JITTER))

    def _run(self, operation: Callable[[], T], until: float) -> T:
        delays: Iterator[float] | None = None
        while True:
            try:
                return operation()
            except Transient:
                delays = delays or self.delays()
                delay = next(delays, None)
                if delay is None or clock.monotonic() > until:
                    raise
            note_retry()
            clock.sleep(delay)

    def _longest(self) -> Iterator[float]:
        delay = self.base
        for _ in range(self.attempts):
            yield min(delay, self.cap)
            delay = min(delay * 2, self.cap)
