"""What the base adds to a search by vector: its nearest rows that still count, by its index or without one.

Promises:
1. Distances are exact: what an index finds is measured again by the stored numbers.
2. Rows that a shard has newer ones of, or deleted, are left out, and others come up for them.
3. The filter goes to Lance, which applies it before the nearest are taken.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headgate.connectors.lance.errors import reading
from headgate.connectors.lance.filters import Filter, applying
from headgate.connectors.lance.rows import ROW_ID, RowIds
from headgate.search.vectors.distances import Floats
from headgate.shards.vectors import VectorColumn

DISTANCE = "_distance"

REFINE = 10
"""So many times k of what an index thinks nearest are measured by the stored numbers."""

WIDER = 4
"""So many times more rows are asked for where too many of those that came do not count."""


def nearest_in_base(
    dataset: Any,
    column: VectorColumn,
    query: Floats,
    k: int,
    superseded: RowIds,
    *,
    filter: Filter | None = None,
    nprobes: int | None = None,
    refine: int | None = None,
) -> tuple[RowIds, Floats]:
    """The row ids of the k nearest that count, nearest first, and their distances."""
    most = k + len(superseded)
    asked = min(most, 2 * k) if len(superseded) else k
    while True:
        wanted: dict[str, Any] = {
            "column": column.column,
            "q": query,
            "k": asked,
            "metric": column.metric,
            "refine_factor": refine or REFINE,
        }
        if nprobes is not None:
            wanted["minimum_nprobes"] = nprobes
        scanner = dataset.scanner(columns=[DISTANCE], nearest=wanted, filter=filter, prefilter=True, with_row_id=True)
        with applying(filter), reading("A Lance dataset could not be searched.", uri=dataset.uri):
            found = scanner.to_table()
        rows = found.column(ROW_ID).to_numpy()
        counting = np.flatnonzero(~np.isin(rows, superseded))[:k]
        if len(counting) == k or len(rows) < asked or asked == most:
            return rows[counting], found.column(DISTANCE).to_numpy()[counting]
        asked = min(most, WIDER * asked)
