"""The time that a batch spends per phase, in seconds, and the age of its records. For one thread."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

from headgate import clock

T = TypeVar("T")


class Phases:
    """Seconds by phase, and the timestamps of the records that were read."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.times: tuple[int, int] | None = None
        """The oldest and newest timestamp so far, in milliseconds."""

    def see(self, times: Sequence[int] | None) -> None:
        """Note timestamps of records."""
        if times:
            self.times = (
                (min(times), max(times)) if self.times is None else (min(*times, *self.times), max(*times, *self.times))
            )

    @contextmanager
    def in_phase(self, name: str) -> Iterator[None]:
        """Add the time of the block to a phase, even if the block fails."""
        began = clock.monotonic()
        try:
            yield
        finally:
            self.add({name: clock.monotonic() - began})

    def over(self, name: str, items: Iterable[T]) -> Iterator[T]:
        """Yield the items. Only the time to produce them counts, not what the caller does with them."""
        source = iter(items)
        while True:
            with self.in_phase(name):
                try:
                    item = next(source)
                except StopIteration:
                    return
            yield item

    def add(self, seconds: Mapping[str, float] | None) -> None:
        """Add seconds that were measured elsewhere."""
        for name, took in (seconds or {}).items():
            self.seconds[name] = self.seconds.get(name, 0.0) + took
