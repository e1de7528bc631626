"""How often, and after which pauses, a passing fault of the store is tried again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from headgate.errors import InvalidInput, Transient

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Retry:
    """Pauses of base, 2·base, 4·base … seconds, none above cap. The defaults are native Lance's.

    `attempts` counts the tries after the first one; 0 means that nothing is tried again.
    """

    attempts: int = 3
    base: float = 0.05
    cap: float = 5.0

    def __post_init__(self) -> None:
        if self.attempts < 0 or self.base < 0 or self.cap < 0:
            raise InvalidInput(f"A retry needs attempts, base and cap of 0 or more, not {self}.")

    def delays(self) -> Iterator[float]:
        """One pause in seconds before each further try."""
        delay = self.base
        for _ in range(self.attempts):
            yield min(delay, self.cap)
            delay = min(delay * 2, self.cap)

    def run(self, operation: Callable[[], T]) -> T:
        """The operation's result, tried again while it raises Transient. For what may be done twice: reads."""
        for delay in self.delays():
            try:
                return operation()
            except Transient:
                time.sleep(delay)
        return operation()
