"""Distances of vectors from a query, as native Lance measures them, and the nearest vectors. Pure, on Arrow buffers.

Promises:
1. Every distance is exact, computed in 32 bits from the stored numbers: no index, no quantization.
2. Memory besides the vectors: one block of them, and a number for each row.
3. Nulls are skipped, and vectors without a distance: zeros with cosine, NaN.

Products are `np.einsum`'s: for one vector it reads memory as fast as the machine can, where `np.dot` calls a BLAS that
takes several times as long and starts threads of its own, which then spin on the cores that Lance searches with.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.errors import InvalidInput
from headgate.shards.vectors import Metric

Floats = npt.NDArray[np.float32]
Places = npt.NDArray[np.int64]
Shown = npt.NDArray[np.bool_]

UNKNOWN = -1.0
"""The length of a vector that was not computed yet."""

BLOCK_BYTES = 1 << 20
"""Bytes processed together: they stay in a core's cache from one step to the next."""


def query_of(vector: Any, kind: pa.DataType, metric: Metric) -> Floats:
    """The query vector with the column's precision. Raises InvalidInput."""
    try:
        found = np.asarray(vector, np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInput("vector must be a list or an array of numbers.") from error
    if found.shape != (kind.list_size,):
        shape = "×".join(map(str, found.shape)) or "no"
        raise InvalidInput(f"The column has vectors of {kind.list_size} numbers, got one of {shape}.")
    with np.errstate(over="ignore"):
        # Native rounds to 32 bits first, also if it then rounds to 16.
        query = found.astype(np.float32).astype(kind.value_type.to_pandas_dtype()).astype(np.float32)
    if not np.isfinite(query).all():
        raise InvalidInput(f"vector must contain finite numbers of type {kind.value_type}.")
    if metric == "cosine" and not query.any():
        raise InvalidInput("vector must not be all zeros: the column's metric is cosine.")
    return query


def distances(vectors: npt.NDArray[Any], query: Floats, metric: Metric, lengths: Floats | None = None) -> Floats:
    """The distance of each row of a matrix; NaN if there is none. `lengths` are the rows' lengths, for cosine: UNKNOWN
    ones are computed and stored there.
    """
    if lengths is None:
        lengths = np.full(len(vectors), UNKNOWN, np.float32)
    found = np.empty(len(vectors), np.float32)
    # 32 bits are multiplied where they are; everything else makes copies, of one block at a time.
    whole = metric != "l2" and vectors.dtype == np.float32
    rows = max(1, len(vectors) if whole else BLOCK_BYTES // (query.nbytes or 1))
    room = np.empty((0 if whole else min(rows, len(vectors)), len(query)), np.float32)
    length = np.sqrt(np.einsum("i,i", query, query))
    with np.errstate(all="ignore"):
        for start in range(0, len(vectors), rows):
            block, here = vectors[start : start + rows], found[start : start + rows]
            if metric == "l2":
                apart = np.subtract(block, query, out=room[: len(block)])
                np.einsum("ij,ij->i", apart, apart, out=here)
                continue
            if not whole:
                room[: len(block)] = block
                block = room[: len(block)]
            np.einsum("ij,j->i", block, query, out=here)
            if metric == "cosine":
                known = lengths[start : start + rows]
                if (known == UNKNOWN).any():
                    np.sqrt(np.einsum("ij,ij->i", block, block), out=known)
                here /= known * length
            np.subtract(1, here, out=here)
    return found


def nearest(
    runs: Iterable[pa.FixedSizeListArray],
    query: Floats,
    metric: Metric,
    k: int,
    shown: Shown,
    lengths: Floats,
) -> tuple[Places, Floats]:
    """The k nearest of all runs, nearest first: their indexes, counted over all runs, and distances. `shown` says which
    rows are visible; `lengths` are those of all vectors, see `distances`.
    """
    found, first = np.full(len(shown), np.nan, np.float32), 0
    for run in runs:
        here = slice(first, first + len(run))
        found[here] = distances(matrix(run), query, metric, lengths[here])
        if run.null_count:
            found[here][run.is_null().to_numpy(zero_copy_only=False)] = np.nan
        first += len(run)
    places = np.flatnonzero(shown & ~np.isnan(found))
    places = places[_best(found[places], k)]
    return places, found[places]


def matrix(vectors: pa.FixedSizeListArray) -> npt.NDArray[Any]:
    """The numbers as a matrix. The row of a null vector is undefined, and a null number is 0."""
    width = vectors.type.list_size
    values = vectors.values.slice(vectors.offset * width, len(vectors) * width)
    numbers: npt.NDArray[Any] = (values.fill_null(0) if values.null_count else values).to_numpy()
    return numbers.reshape(len(vectors), width)


def _best(measured: Floats, k: int) -> npt.NDArray[np.int64]:
    """The indexes of the k smallest, in order; of equal ones the first."""
    if len(measured) > k:
        bound = np.partition(measured, k - 1)[k - 1]
        among = np.flatnonzero(measured <= bound)
        return among[np.argsort(measured[among], kind="stable")[:k]]
    return np.argsort(measured, kind="stable")
