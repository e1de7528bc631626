"""The pieces of a text that a search matched, for display. Pure, except for the tokenizer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

_PIECE = re.compile(r"\w+(?:[-_'’.]\w+)*")
"""A word as people read it; an index may split it further."""

Cut = Callable[[str], Sequence[str]]
"""Splits a text into the index's words."""


def highlighted(text: str, wanted: Iterable[str], cut: Cut) -> list[tuple[str, bool]]:
    """Split the text into pieces, each with True if it matched. Joined, the pieces are the text.

    A word matches if the index turns it into one of the wanted words: "running" if "run" is wanted. If the index turns
    it into several, the parts that look like a wanted word match.
    """
    words = set(wanted)
    marked = [False] * len(text)
    for piece in _PIECE.finditer(text):
        start, stop = piece.span()
        made = cut(piece.group())
        found = words.intersection(made)
        if found and len(made) == 1:
            marked[start:stop] = [True] * (stop - start)
        elif found:
            _mark_parts(text, start, stop, words, cut, marked)
    return [("".join(text[i] for i in run), on) for on, run in groupby(range(len(text)), marked.__getitem__)]


def _mark_parts(text: str, start: int, stop: int, words: set[str], cut: Cut, marked: list[bool]) -> None:
    for part in re.finditer(r"[^\W_]+", text[start:stop]):
        first, last = start + part.start(), start + part.end()
        if words.intersection(cut(part.group())[:1]) and len(cut(part.group())) == 1:
            marked[first:last] = [True] * (last - first)
            continue
        low = text[first:last].lower()
        # Lower-casing may change the length of a few letters; then nothing here is marked.
        for word in words if len(low) == last - first else ():
            at = low.find(word)
            while at >= 0:
                marked[first + at : first + at + len(word)] = [True] * len(word)
                at = low.find(word, at + 1)
