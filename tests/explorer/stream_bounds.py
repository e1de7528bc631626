"""How much of a stream is explored, and what every piece of its model shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headgate.shards.manifest.decisions import Slot
from tests.explorer.rules import Rules
from tests.explorer.stream_parts import Planned, Tasks, Written


@dataclass(frozen=True)
class Bounds:
    """How much may happen."""

    name: str
    plans: tuple[tuple[Planned, ...], ...]
    """Per driver what its Spark would do. They differ only where a checkpoint was lost or rebuilt."""
    shards: int = 1
    retries: int = 0
    """Second attempts, of whichever tasks."""
    flushes: int = 0
    checkpoints: int = 0
    folds: int = 0
    stops: int = 0
    """Clean stops, after which native may open the shards."""
    collects: bool = False
    parallel: bool = False
    """Whether a driver claims its shards in any order, as it does, or one after the other."""

    @property
    def alike(self) -> bool:
        """Whether one driver is like the other, so that they may as well come in order."""
        return len(set(self.plans)) == 1


class Piece:
    """A part of the model, by what it is about."""

    def __init__(self, bounds: Bounds, rules: Rules) -> None:
        self.bounds = bounds
        self.rules = rules
        self.drivers = range(len(bounds.plans))
        self.shards = range(bounds.shards)

    def per_shard(self, name: str) -> tuple[str, ...]:
        """The parts of that name, one per shard."""
        return tuple(f"{name}{s}" for s in self.shards)

    def halves(self, values: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """One value per shard, and the rest."""
        return values[: len(self.shards)], values[len(self.shards) :]

    def in_the_way(self, s: int, mine: Written, stored: Written) -> Slot:
        """What an entry that has the slot means for ours."""
        return self.rules.entry_in_the_way(
            entry_id=mine.entry_id(s), epoch=mine.epoch, stored_id=stored.entry_id(s), stored_epoch=stored.epoch
        )


def with_task(tasks: Tasks, *more: Any) -> Tasks:
    """The tasks and one more, in order."""
    return tuple(sorted((*tasks, *more)))


def replaced(values: tuple[Any, ...], at: int, value: Any) -> tuple[Any, ...]:
    """The values with another one at a place."""
    return (*values[:at], value, *values[at + 1 :])
