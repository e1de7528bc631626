"""What commit records list for one shard, kept so that its WAL can be compared with it in one pass. Values."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias
from uuid import UUID

from headgate.checkpoints.log.records import Span

Fences: TypeAlias = Mapping[UUID, Mapping[int, int]]
"""Per shard the positions of the barriers that open records name, with their epochs."""


@dataclass(frozen=True, slots=True)
class ListedPart:
    """What one batch wrote to the shard."""

    sequence: int
    batch_id: int
    positions: tuple[int, ...]
    attempt_id: str
    rows: int


@dataclass
class Listed:
    """Everything that the logs list for one shard. Folded runs have no attempts; up to `known_above`
    nothing is known.
    """

    name: str
    folded: tuple[Span, ...] = ()
    known_above: int = -1
    last: int = -1
    """Highest position ever listed; -1 if none."""
    parts: list[ListedPart] = field(default_factory=list)
    """Batches above the fold, ascending."""

    def add(self, part: ListedPart) -> None:
        self.parts.append(part)
        self.last = max(self.last, part.positions[-1])

    def positions(self) -> Iterator[int]:
        """Every listed position, folded ones first."""
        for first, last in self.folded:
            yield from range(first, last + 1)
        for part in self.parts:
            yield from part.positions

    def part_at(self, position: int) -> ListedPart | None:
        """The batch that lists the position; None if no batch does, or it was folded."""
        index = bisect_right(self.parts, position, key=lambda part: part.positions[0]) - 1
        if index < 0 or position not in self.parts[index].positions:
            return None
        return self.parts[index]

    def parts_in(self, low: int, high: int) -> Iterator[ListedPart]:
        """The batches that list a position in [low, high]."""
        for part in self.parts:
            if part.positions[0] > high:
                return
            if any(low <= position <= high for position in part.positions):
                yield part

    def is_folded(self, position: int) -> bool:
        """True if a fold lists the position."""
        index = bisect_right(self.folded, position, key=lambda run: run[0]) - 1
        return index >= 0 and position <= self.folded[index][1]

    def lists(self, position: int) -> bool:
        """True if any record or fold lists the position."""
        return self.part_at(position) is not None or self.is_folded(position)


def joined(lists: Iterable[Listed]) -> Listed:
    """Joins the lists of streams that owned the shard one after the other."""
    found = list(lists)
    if not found:
        return Listed("")
    return Listed(
        found[0].name,
        tuple(sorted(run for one in found for run in one.folded)),
        max(one.known_above for one in found),
        max(one.last for one in found),
        sorted((part for one in found for part in one.parts), key=lambda part: part.positions[0]),
    )
