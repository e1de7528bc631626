"""The time, and waiting. Nothing else in the package imports `time`, so that a test may bring a clock of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """What tells the time. `monotonic` never steps back; `wall` may."""

    def monotonic(self) -> float: ...

    def wall(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...


class _System:
    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


_clock: ContextVar[Clock] = ContextVar("headgate-clock", default=_System())  # noqa: B039


@contextmanager
def using(clock: Clock) -> Iterator[None]:
    """Tell the time by this clock, here and in the threads that are started here."""
    token = _clock.set(clock)
    try:
        yield
    finally:
        _clock.reset(token)


def monotonic() -> float:
    """Seconds from some moment on. For measuring."""
    return _clock.get().monotonic()


def wall() -> float:
    """Seconds since 1970, as this machine believes. No protocol step reads it."""
    return _clock.get().wall()


def now() -> datetime:
    """The same as a UTC time."""
    return datetime.fromtimestamp(wall(), UTC)


def sleep(seconds: float) -> None:
    """Wait."""
    _clock.get().sleep(seconds)
