"""The base's part of a vector search: its nearest visible rows, with or without an index.

Promises:
1. Distances are exact: rows found by an index are measured again with the stored numbers.
2. Rows that a shard has newer versions of, or deleted, are skipped, and further rows replace them.
3. Lance applies the filter before it takes the nearest rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.connectors.lance.errors import reading
from headgate.connectors.lance.filters import Filter, applying
from headgate.connectors.lance.rows import ROW_ID, RowIds
from headgate.connectors.lance.vectors import partitions_for
from headgate.search.vectors.distances import Floats
from headgate.search.vectors.layers import Layers
from headgate.shards.vectors import VectorColumn

DISTANCE = "_distance"

REFINE = 10
"""So many times k of the rows that the index finds and that may be shown are measured again with the stored numbers;
each costs a read."""

PROBED = 0.1
"""The default share of an index's partitions that is read; at least LEAST_PROBES partitions."""

LEAST_PROBES = 20

WIDER = 4
"""The request grows by this factor if too many of the rows found are superseded."""


def nearest_in_base(
    dataset: Any,
    column: VectorColumn,
    query: Floats,
    k: int,
    layers: Layers,
    *,
    filter: Filter | None = None,
    nprobes: int | None = None,
    refine: int | None = None,
) -> tuple[RowIds, Floats]:
    """The row ids of the k nearest rows that are not superseded, nearest first, and their distances."""
    superseded, count = layers.superseded, max(1, layers.base_rows)
    most = k + len(superseded)
    # Twice as many additional rows as would be superseded if these were spread evenly; each one costs a read.
    more = 2 + 2 * k * len(superseded) // max(1, count - len(superseded))
    asked = min(most, k + more) if len(superseded) else k
    probes = max(LEAST_PROBES, round(PROBED * partitions_for(column.index, count)))
    groups = _groups(dataset, column)
    # So that on average REFINE times k of the measured rows are not superseded.
    visible = max(0.01, 1 - len(superseded) / count)
    factor = refine or max(1, min(REFINE, math.ceil(REFINE * k / (visible * asked))))
    while True:
        wanted: dict[str, Any] = {
            "column": column.column,
            "q": query,
            "k": asked,
            "metric": column.metric,
            "refine_factor": factor,
            "minimum_nprobes": nprobes or probes,
        }
        found = _found(dataset, wanted, filter, groups)
        rows = found.column(ROW_ID).to_numpy()
        counting = np.flatnonzero(~_among(rows, superseded))[:k]
        if len(counting) == k or len(rows) < asked or asked == most:
            return rows[counting], found.column(DISTANCE).to_numpy()[counting]
        asked, factor = min(most, WIDER * asked), refine or REFINE


def _among(rows: RowIds, known: RowIds) -> npt.NDArray[np.bool_]:
    """For each row, True if it is known. `known` ascends, so a few rows need a few looks only."""
    if not len(known):
        return np.zeros(len(rows), np.bool_)
    found: npt.NDArray[np.bool_] = known[np.minimum(np.searchsorted(known, rows), len(known) - 1)] == rows
    return found


def _found(dataset: Any, wanted: dict[str, Any], filter: Filter | None, groups: Sequence[Any]) -> pa.Table:
    """The nearest of all groups of fragments, nearest first."""
    answers = []
    for fragments in groups:
        scanner = dataset.scanner(
            columns=[DISTANCE], nearest=wanted, filter=filter, prefilter=True, with_row_id=True, fragments=fragments
        )
        with applying(filter), reading("Searching a Lance dataset failed.", uri=dataset.uri):
            answers.append(scanner.to_table())
    if len(answers) == 1:
        return answers[0]
    return pa.concat_tables(answers).sort_by([(DISTANCE, "ascending")]).slice(0, wanted["k"])


def _groups(dataset: Any, column: VectorColumn) -> list[Any]:
    """Groups of fragments to search one after the other; one group of all fragments if that gives right results.

    With several segments of IVF_PQ native 14.0.2 estimates dot products wrongly and finds fewer rows (a canary test
    shows when that is fixed); searched one by one, the segments give right results.
    """
    if (column.metric, column.index) != ("dot", "IVF_PQ"):
        return [None]
    covered = [
        set(segment.fragment_ids)
        for index in dataset.describe_indices()
        if index.field_names == [column.column]
        for segment in index.segments
    ]
    if len(covered) < 2:
        return [None]
    fragments = dataset.get_fragments()
    inside = [[one for one in fragments if one.fragment_id in segment] for segment in covered]
    outside = [one for one in fragments if not any(one.fragment_id in segment for segment in covered)]
    return [group for group in (*inside, outside) if group]
