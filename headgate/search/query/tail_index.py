"""Indexes rows that no stored index covers in memory, in segments, so that added rows cost little.

Promises:
1. The words are those of the stored index: native indexes each segment with the same parameters.
2. A segment is identified by its texts. A later request for the same texts, from any table, gets the cached segment.
3. If rows are only added at the end, each row is indexed only a few times in all, and a search has few segments:
   neighbours of equal rank are merged, up to a size.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import pyarrow as pa

from headgate import parallel
from headgate.caches import Cache
from headgate.connectors.lance.fts import index as full_text
from headgate.connectors.lance.fts.index import OpenIndex
from headgate.connectors.lance.fts.postings import BLOCK

SEGMENT_ROWS = 100_000
"""Segments are not merged beyond this, and longer ones are split: indexing so many rows takes a second or two, for
which a search waits."""

AT_ONCE = min(os.cpu_count() or 1, 8)
"""Segments indexed at the same time; each takes some hundred megabytes meanwhile."""

_segments: Cache[OpenIndex] = Cache("tail_indexes", lambda index: 0, lambda index: index.memory)


@dataclass(frozen=True)
class TextBlock:
    """Texts that are always read together: the rows of a batch or of a fragment."""

    identity: bytes
    """Identifies the texts, or the immutable place that they come from."""
    rows: int
    texts: Callable[[], Sequence[pa.Array]]


@dataclass(frozen=True)
class TailSegment:
    """Neighbouring blocks, indexed. Row 0 of the index is row `first` of all rows."""

    first: int
    rows: int
    index: OpenIndex


def tail_segments(blocks: Sequence[TextBlock], parameters: Mapping[str, Any]) -> Iterator[TailSegment]:
    """Index all blocks, up to AT_ONCE segments at the same time. Blocks without rows are skipped."""
    filled = [block for block in blocks if block.rows]
    # The block size of posting lists changes no result, and only one is supported here.
    known = {**parameters, "block_size": BLOCK}
    bounds = segment_bounds([block.rows for block in filled], SEGMENT_ROWS)
    pieces = [piece for start, stop in bounds for piece in _pieces(filled[start:stop])]
    first = 0
    for piece, index in zip(pieces, _indexed(pieces, known), strict=True):
        yield TailSegment(first, piece.rows, index)
        first += piece.rows


def segment_bounds(sizes: Sequence[int], limit: int = SEGMENT_ROWS) -> list[tuple[int, int]]:
    """Which neighbours are merged: like a binary counter, two of equal rank become one of the next rank.

    This depends only on the preceding blocks, so a segment stays the same until it is merged.
    """
    segments: list[tuple[int, int, int, int]] = []
    for place, size in enumerate(sizes):
        segments.append((place, place + 1, size, 0))
        while len(segments) > 1 and segments[-1][3] == segments[-2][3] and segments[-1][2] + segments[-2][2] <= limit:
            (start, _, one, rank), (_, stop, two, _) = segments[-2:]
            segments[-2:] = [(start, stop, one + two, rank + 1)]
    return [(start, stop) for start, stop, _, _ in segments]


@dataclass(frozen=True)
class _Piece:
    """What native indexes in one call."""

    identity: tuple[object, ...]
    rows: int
    texts: Callable[[], pa.ChunkedArray]


def _pieces(segment: Sequence[TextBlock]) -> Iterator[_Piece]:
    """The segment as one piece, or in equal pieces if it is too long."""
    rows, identity = sum(block.rows for block in segment), tuple(block.identity for block in segment)
    texts = _Texts(segment)
    if rows <= SEGMENT_ROWS:
        yield _Piece(identity, rows, texts.read)
        return
    count = -(-rows // SEGMENT_ROWS)
    for number, (start, stop) in enumerate(pairwise(rows * part // count for part in range(count + 1))):
        yield _Piece((*identity, number), stop - start, partial(texts.cut, start, stop - start))


class _Texts:
    """The texts of a segment, read once even if several pieces use them."""

    def __init__(self, segment: Sequence[TextBlock]) -> None:
        self._segment = segment
        self._lock = threading.Lock()
        self._read: pa.ChunkedArray | None = None

    def read(self) -> pa.ChunkedArray:
        return pa.chunked_array([array for block in self._segment for array in block.texts()])

    def cut(self, start: int, rows: int) -> pa.ChunkedArray:
        with self._lock:
            self._read = self.read() if self._read is None else self._read
        return self._read.slice(start, rows)


def _indexed(pieces: Sequence[_Piece], parameters: Mapping[str, Any]) -> list[OpenIndex]:
    """Index the pieces that are not cached, several at once: native uses little more than one core for a piece."""
    told = json.dumps(parameters, sort_keys=True)

    def index(piece: _Piece) -> OpenIndex:
        return _segments.get_or_make((told, *piece.identity), lambda: full_text.index_texts(piece.texts(), parameters))

    new = [piece for piece in pieces if _segments.get((told, *piece.identity)) is None]
    made = dict(zip(map(id, new), parallel.each("index", index, new, workers=AT_ONCE), strict=True))
    return [made[id(piece)] if id(piece) in made else index(piece) for piece in pieces]
