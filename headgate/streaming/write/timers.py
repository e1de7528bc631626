"""Where the time of a batch goes, by phase, in seconds, and of when its records are. Used by one thread."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

from headgate import clock

T = TypeVar("T")


class Phases:
    """Seconds by phase; and how old what was read is."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.times: tuple[int, int] | None = None
        """The oldest and the newest timestamp that was seen, in milliseconds."""

    def see(self, times: Sequence[int] | None) -> None:
        """Timestamps of records."""
        if times:
            self.times = (
                (min(times), max(times)) if self.times is None else (min(*times, *self.times), max(*times, *self.times))
            )

    @contextmanager
    def in_phase(self, name: str) -> Iterator[None]:
        """What the block takes, even if it fails."""
        began = clock.monotonic()
        try:
            yield
        finally:
            self.add({name: clock.monotonic() - began})

    def over(self, name: str, items: Iterable[T]) -> Iterator[T]:
        """The items; what it takes to make them counts, what is done with them does not."""
        source = iter(items)
        while True:
            with self.in_phase(name):
                try:
                    item = next(source)
                except StopIteration:
                    return
            yield item

    def add(self, seconds: Mapping[str, float] | None) -> None:
        """What somebody else has measured."""
        for name, took in (seconds or {}).items():
            self.seconds[name] = self.seconds.get(name, 0.0) + took
