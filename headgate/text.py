"""How values look in text that people read."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby


def printable(text: str) -> str:
    """Names come from outside: what would move the cursor, or turn the text around, is shown as an escape."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def runs(positions: Sequence[int]) -> str:
    """Positions in few characters: 4, 6-9."""
    found = []
    for _, group in groupby(enumerate(sorted(positions)), key=lambda pair: pair[1] - pair[0]):
        run = [position for _, position in group]
        found.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
    return ", ".join(found)
