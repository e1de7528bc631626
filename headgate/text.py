"""Formatting of values for people."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby


def printable(text: str) -> str:
    """Escape control characters: names come from outside and could move the cursor or reverse the text."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def runs(positions: Sequence[int]) -> str:
    """Positions as short ranges: 4, 6-9."""
    found = []
    for _, group in groupby(enumerate(sorted(positions)), key=lambda pair: pair[1] - pair[0]):
        run = [position for _, position in group]
        found.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
    return ", ".join(found)
