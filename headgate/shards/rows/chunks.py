"""Tables with many chunks: taking some rows, and comparing values. Pure, on Arrow tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

Places = npt.NDArray[Any]
"""Row numbers, counted from 0."""


class ChunkedRows:
    """A table to take rows from: the cost of pyarrow's own take depends on all chunks, the cost of this one only on
    those that are touched.
    """

    def __init__(self, rows: pa.Table) -> None:
        self._batches = rows.to_batches()
        self._empty = rows.slice(0, 0)
        sizes = np.array([0, *(batch.num_rows for batch in self._batches)], np.uint64)
        self._starts = np.cumsum(sizes)[:-1]

    def take(self, places: Places, columns: Sequence[str]) -> pa.Table:
        """The rows with these numbers, in this order."""
        if not len(places):
            return self._empty.select(list(columns))
        places = places.astype(np.uint64)
        at = np.searchsorted(self._starts, places, side="right") - 1
        order = np.argsort(at, kind="stable")
        found = []
        for number in np.unique(at):
            here = places[order[at[order] == number]] - self._starts[number]
            found.append(self._batches[number].select(list(columns)).take(pa.array(here, pa.uint64())))
        return pa.Table.from_batches(found).take(pa.array(np.argsort(order)))


def identity_of(columns: Sequence[pa.Array]) -> bytes:
    """Bytes that are equal only for equal values. Equal values with another memory layout may differ; they are indexed
    again.
    """
    hashed = xxhash.xxh3_128()
    for column in columns:
        hashed.update(f"{column.type}:{column.offset}:{len(column)};".encode())
        for buffer in column.buffers():
            hashed.update(b"-" if buffer is None else f"{buffer.size}:".encode())
            if buffer is not None:
                hashed.update(buffer)
    return hashed.digest()
