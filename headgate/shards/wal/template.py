"""Headers of entries that differ in a few known places: neither written nor read again for each entry.

Making the schema message of an entry, and parsing it, is most of what a small entry costs. Two headers of one writer
differ in the entry's id, row count, checksums and tags alone, and where these are equally long the rest is equal.

Promise: `filled` gives the bytes that the encoder would make of these values, and `values` is what the decoder would
find, or None: then it must look for itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

ID, ROWS, BODY, CHECKSUM, ATTEMPT, SOURCES = "id", "rows", "body", "checksum", "attempt", "sources"

MOST = 64
"""Templates kept by one process and direction: a shard's entries come from one writer or few."""


class Template:
    """One header whose places are known."""

    def __init__(self, raw: bytes, values: Mapping[str, bytes]) -> None:
        spans = sorted((raw.find(value), len(value), name) for name, value in values.items())
        # A value that stands twice, or within another, could not be distinguished from its surroundings.
        self.usable = all(raw.count(value) == 1 for value in values.values()) and all(
            start + size <= after for (start, size, _), (after, _, _) in pairwise(spans)
        )
        self._places = {name: slice(start, start + size) for start, size, name in spans}
        edges = [0, *(edge for start, size, _ in spans for edge in (start, start + size)), len(raw)]
        self._fixed = [slice(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True)]
        self._like = [raw[part] for part in self._fixed]

    def at(self, name: str) -> int:
        """Where the value begins."""
        return int(self._places[name].start)

    def filled(self, values: Mapping[str, bytes]) -> bytes:
        """The header with these values, each as long as its like was."""
        parts = [self._like[0]]
        for name, fixed in zip(self._places, self._like[1:], strict=True):
            parts += (values[name], fixed)
        return b"".join(parts)

    def values(self, raw: bytes) -> dict[str, bytes] | None:
        """What stands in the places of a header that is equal in all else."""
        if not self.usable or [raw[part] for part in self._fixed] != self._like:
            return None
        return {name: raw[place] for name, place in self._places.items()}
