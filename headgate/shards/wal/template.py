"""Headers that differ in a few known places only, so that they are not built or parsed again for each entry.

Building and parsing the schema message is most of the cost of a small entry. Two headers of one writer differ only in
the entry's id, row count, checksums and tags; if these are equally long, the rest is equal. Promise: `filled` gives the
bytes that the encoder would make of these values; `values` gives what the decoder would find, or None: then the header
must be parsed.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

ID, ROWS, BODY, CHECKSUM, ATTEMPT, SOURCES = "id", "rows", "body", "checksum", "attempt", "sources"

MOST = 64
"""Templates kept per process and direction: a shard's entries come from one writer or a few."""


class Template:
    """One header with its known places."""

    def __init__(self, raw: bytes, values: Mapping[str, bytes]) -> None:
        spans = sorted((raw.find(value), len(value), name) for name, value in values.items())
        # A value that occurs twice, or overlaps another, has no unique place.
        self.usable = all(raw.count(value) == 1 for value in values.values()) and all(
            start + size <= after for (start, size, _), (after, _, _) in pairwise(spans)
        )
        self._places = {name: slice(start, start + size) for start, size, name in spans}
        edges = [0, *(edge for start, size, _ in spans for edge in (start, start + size)), len(raw)]
        self._fixed = [slice(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True)]
        self._like = [raw[part] for part in self._fixed]

    def at(self, name: str) -> int:
        return int(self._places[name].start)

    def filled(self, values: Mapping[str, bytes]) -> bytes:
        """The header with these values, each as long as the original one."""
        parts = [self._like[0]]
        for name, fixed in zip(self._places, self._like[1:], strict=True):
            parts += (values[name], fixed)
        return b"".join(parts)

    def values(self, raw: bytes) -> dict[str, bytes] | None:
        """The values in a header that is equal in everything else; None if it is not."""
        if not self.usable or [raw[part] for part in self._fixed] != self._like:
            return None
        return {name: raw[place] for name, place in self._places.items()}
