"""Time and sleep. No other module imports `time`, so that tests can replace the clock."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """A source of time. `monotonic` never goes backwards; `wall` may."""

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
    """Use this clock in the block and in threads started in it."""
    token = _clock.set(clock)
    try:
        yield
    finally:
        _clock.reset(token)


def monotonic() -> float:
    """Seconds since an arbitrary moment. For measuring durations."""
    return _clock.get().monotonic()


def wall() -> float:
    """Seconds since 1970, by this machine's clock. No protocol step reads it."""
    return _clock.get().wall()


def now() -> datetime:
    """The same as a UTC time."""
    return datetime.fromtimestamp(wall(), UTC)


def sleep(seconds: float) -> None:
    _clock.get().sleep(seconds)
