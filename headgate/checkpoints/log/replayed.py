"""Which dead letters of one log became rows: what a replay's record says of it, as text. Pure.

A letter is known by the position of its entry and its number in there. Everything below `next` was looked at; of that,
`left` names the letters that could not become rows, by position as runs of numbers. All others were replayed, and
never are again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from headgate.checkpoints.log.records import Span
from headgate.errors import Corrupt


@dataclass(frozen=True)
class Replayed:
    """How far the replays of one dead-letter log are."""

    next: int = 0
    left: Mapping[int, tuple[Span, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, text: str | None) -> Replayed:
        """As a record has it; None before the first replay. Raises Corrupt."""
        if text is None:
            return cls()
        try:
            told = json.loads(text)
            left = {int(at): tuple((int(a), int(b)) for a, b in runs) for at, runs in told["left"].items()}
            return cls(int(told["next"]), left)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Corrupt(f"What was replayed of a dead-letter log cannot be understood: {text!r:.80}.") from error

    @property
    def text(self) -> str:
        """For a record."""
        left = {str(at): [list(run) for run in runs] for at, runs in sorted(self.left.items())}
        return json.dumps({"next": self.next, "left": left}, separators=(",", ":"))

    def waiting(self, position: int, letters: int) -> npt.NDArray[np.bool_]:
        """For each letter of an entry whether it is still to be replayed."""
        if position >= self.next:
            return np.ones(letters, bool)
        found = np.zeros(letters, bool)
        for first, last in self.left.get(position, ()):
            found[first : last + 1] = True
        return found

    def after(self, position: int, refused: npt.NDArray[np.bool_]) -> Replayed:
        """When an entry was replayed, all but the letters that were refused."""
        left = {at: runs for at, runs in self.left.items() if at != position}
        if refused.any():
            left[position] = _runs(np.flatnonzero(refused))
        return Replayed(max(self.next, position + 1), left)


def _runs(numbers: npt.NDArray[np.int64]) -> tuple[Span, ...]:
    cuts = np.flatnonzero(np.diff(numbers) > 1) + 1
    return tuple((int(part[0]), int(part[-1])) for part in np.split(numbers, cuts))
