"""Rows that no stored index covers, indexed in memory: in runs, so that rows that are added cost only themselves.

Promises:
1. The words are those of the stored index: native indexes each run with the same parameters.
2. A run is known by the texts in it. Whoever asks for the same texts again, in whatever table at whatever time,
   gets the run that is held.
3. Where rows are only added at the end, each row is indexed a few times in all, and a search has few runs to look
   at: neighbours of equal rank are joined, up to a size.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import xxhash

from headgate.connectors import full_text
from headgate.connectors.byte_cache import ByteCache
from headgate.connectors.full_text import OpenIndex
from headgate.connectors.postings import BLOCK

RUN_ROWS = 100_000
"""Runs are not joined beyond it: indexing that many takes a second or two, which one search has to wait."""

_HELD = 512 << 20
"""Bytes of indexed runs: those of some 500 MB of texts."""

_runs: ByteCache[OpenIndex] = ByteCache(_HELD, lambda run: run.nbytes)


@dataclass(frozen=True)
class Stretch:
    """Texts that are read together, and always in this form: the rows of a batch, of a fragment."""

    identity: bytes
    """Of the texts, or of the immutable place that they come from."""
    rows: int
    texts: Callable[[], Sequence[pa.Array]]


@dataclass(frozen=True)
class Run:
    """Neighbouring stretches, indexed. Rows of the index count from `first`, a place among all rows."""

    first: int
    rows: int
    index: OpenIndex


def indexed_runs(stretches: Sequence[Stretch], parameters: Mapping[str, Any]) -> Iterator[Run]:
    """All the stretches, indexed. Those without rows are left out."""
    filled = [stretch for stretch in stretches if stretch.rows]
    first = 0
    for start, stop in run_bounds([stretch.rows for stretch in filled]):
        run = filled[start:stop]
        rows = sum(stretch.rows for stretch in run)
        yield Run(first, rows, _indexed(run, parameters))
        first += rows


def run_bounds(sizes: Sequence[int], limit: int = RUN_ROWS) -> list[tuple[int, int]]:
    """Which neighbours are joined: like a binary counter, two of equal rank become one of the next.

    It depends on the stretches before alone, so that a run stays until it is joined.
    """
    runs: list[tuple[int, int, int, int]] = []
    for place, size in enumerate(sizes):
        runs.append((place, place + 1, size, 0))
        while len(runs) > 1 and runs[-1][3] == runs[-2][3] and runs[-1][2] + runs[-2][2] <= limit:
            (start, _, one, rank), (_, stop, two, _) = runs[-2:]
            runs[-2:] = [(start, stop, one + two, rank + 1)]
    return [(start, stop) for start, stop, _, _ in runs]


def identity_of(columns: Sequence[pa.Array]) -> bytes:
    """Equal only for equal values. Values that lie in memory in another way may differ, and are indexed anew."""
    hashed = xxhash.xxh3_128()
    for column in columns:
        hashed.update(f"{column.type}:{column.offset}:{len(column)};".encode())
        for buffer in column.buffers():
            hashed.update(b"-" if buffer is None else f"{buffer.size}:".encode())
            if buffer is not None:
                hashed.update(buffer)
    return hashed.digest()


def _indexed(run: Sequence[Stretch], parameters: Mapping[str, Any]) -> OpenIndex:
    # How posting lists are stored changes no result, and one way of the two is known here.
    parameters = {**parameters, "block_size": BLOCK}
    key = (json.dumps(parameters, sort_keys=True), *(stretch.identity for stretch in run))
    return _runs.get_or_make(
        key,
        lambda: full_text.index_texts(
            pa.chunked_array([array for stretch in run for array in stretch.texts()]), parameters
        ),
    )
