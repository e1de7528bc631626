"""Retries of transient store errors: how many, with which pauses."""

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
"""Random part of each pause, so that competing clients spread out."""

_counting = threading.Lock()
_count = 0
os.register_at_fork(after_in_child=lambda: globals().__setitem__("_counting", threading.Lock()))


def retries() -> int:
    """Number of store retries of this process so far."""
    return _count


def note_retry() -> None:
    """Called once per retry."""
    global _count
    with _counting:
        _count += 1


@dataclass(frozen=True, slots=True)
class Retry:
    """Pauses of base, 2·base, 4·base … seconds, none above cap, each randomly up to a quarter shorter.

    `attempts` counts retries after the first try; 0 means no retry. The default of five retries within 1.5 s survives a
    throttled prefix and a dropped connection; callers that can wait longer pass their own.
    """

    attempts: int = 4
    base: float = 0.1
    cap: float = 5.0

    def __post_init__(self) -> None:
        if self.attempts < 0 or self.base < 0 or self.cap < 0:
            raise InvalidInput(f"Retry: attempts, base and cap must be 0 or more, got {self}.")

    @classmethod
    def lasting(cls, seconds: float) -> Retry:
        """Enough retries for a store that is unreachable for this many seconds; 0 means none. The time of each try
        comes on top.
        """
        usual = cls()
        attempts, total, delay = 0, 0.0, usual.base
        while total < seconds and delay < usual.cap:
            attempts, total, delay = attempts + 1, total + delay * (1 - JITTER), delay * 2
        return cls(attempts + math.ceil(max(0.0, seconds - total) / (usual.cap * (1 - JITTER))))

    def delays(self) -> Iterator[float]:
        """The pause in seconds before each retry."""
        return (delay * random.uniform(1 - JITTER, 1) for delay in self._longest())

    @property
    def deadline(self) -> float:
        """Seconds to wait for an outstanding answer: all pauses, plus `cap` for the current try."""
        return sum(self._longest()) + self.cap

    def run(self, operation: Callable[[], T]) -> T:
        """Run the operation and retry it while it raises Transient. Only for idempotent operations."""
        return self._run(operation, math.inf)

    def run_steps(self, operation: Callable[[], T]) -> T:
        """The same for several steps that may retry themselves: no retry starts once the total time of all pauses has
        passed.
        """
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
