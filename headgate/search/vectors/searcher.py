"""Vector search over all visible rows: base, SSTables and the visible tail of the WALs.

Promises:
1. The rows are the nearest of those that a scan at the same instant returns, and the distances are exact. If no index
   of the base is used, they are exactly the nearest.
2. A filter is applied before the nearest rows are taken: k rows are returned if so many pass it.
3. Memory besides the cache: one block of vectors at a time, and a few numbers for each fresh row.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from headgate import parallel
from headgate.connectors.lance.filters import Filter
from headgate.connectors.lance.rows import RowIds
from headgate.errors import InvalidInput
from headgate.search.query.parts import Source, StoredSource, rows_from
from headgate.search.query.ranking import Hits
from headgate.search.vectors.base import DISTANCE, nearest_in_base
from headgate.search.vectors.distances import Floats, nearest, query_of
from headgate.search.vectors.layers import Layer, layers_of
from headgate.shards.rows.view import TableView
from headgate.shards.vectors import VectorColumn

AT_ONCE = min(os.cpu_count() or 1, 4)
"""Layers searched at the same time; each may hold the vectors of an SSTable meanwhile."""


class VectorSearcher:
    """Searches a table by vectors at one instant. Thread-safe."""

    def __init__(self, view: TableView) -> None:
        """Raises InvalidInput if the base's columns have changed since the table was opened."""
        if not view.base.as_today:
            what = "The table's columns have changed since it was opened."
            raise InvalidInput(what, table=view.home.uri, advice="open the table again")
        self._view = view

    def nearest(
        self,
        vector: Any,
        column: str | None = None,
        k: int = 10,
        *,
        filter: Filter | None = None,
        columns: Sequence[str] | None = None,
        nprobes: int | None = None,
        refine: int | None = None,
    ) -> pa.Table:
        """The k nearest rows, nearest first: the columns, and `_distance`. See `Table.nearest`."""
        result = self._view.scan(columns, filter).schema
        chosen = self.column(column)
        query = self.query(vector, chosen)
        sources, hits = self.find(chosen, query, k, filter=filter, nprobes=nprobes, refine=refine)
        values = result.empty_table()
        if len(hits):
            values = rows_from(sources, hits.parts, hits.rows, result.names or [chosen.column])
        shown = [values.column(field.name).cast(field.type) for field in result]
        distance = pa.array(hits.scores, pa.float32())
        return pa.Table.from_arrays([*shown, distance], schema=result.append(pa.field(DISTANCE, pa.float32())))

    def query(self, vector: Any, column: VectorColumn) -> Floats:
        """The query vector for the column. Raises InvalidInput."""
        return query_of(vector, self._view.home.schema.logical.field(column.column).type, column.metric)

    def column(self, name: str | None) -> VectorColumn:
        """The vector column of that name, or the only one. Raises InvalidInput."""
        home = self._view.home
        known = {one.column: one for one in home.vectors}
        if name is None and len(known) == 1:
            return next(iter(known.values()))
        if name is None:
            what = f"The table has {len(known)} vector columns, so the search must name one."
            raise InvalidInput(what, table=home.uri, known=sorted(known) or None)
        if name not in known:
            raise InvalidInput(
                f"Column {name!r} is not a vector column of the table.",
                table=home.uri,
                known=sorted(known) or None,
                advice='declare it when you create the table: create_table(vector={"embedding": vector("cosine")})',
            )
        return known[name]

    def find(
        self,
        column: VectorColumn,
        query: Floats,
        k: int,
        *,
        filter: Filter | None = None,
        nprobes: int | None = None,
        refine: int | None = None,
    ) -> tuple[list[Source], Hits]:
        """The sources, and the k nearest rows in them; the scores of these hits are distances."""
        for name, number in (("k", k), ("nprobes", nprobes), ("refine", refine)):
            if number is not None and (not isinstance(number, int) or isinstance(number, bool) or number < 1):
                raise InvalidInput(f"{name} must be at least 1, got {number!r}.")
        layers, dataset = layers_of(self._view), self._view.base.dataset

        def search_base() -> list[tuple[RowIds, Floats]]:
            return [nearest_in_base(dataset, column, query, k, layers, filter=filter, nprobes=nprobes, refine=refine)]

        def search(layer: Layer) -> tuple[RowIds, Floats]:
            shown = layer.counts if filter is None else layer.passing(filter)
            vectors = layer.vectors(column.column)
            places, found = nearest(vectors.runs, query, column.metric, k, shown, vectors.lengths)
            return layer.rows[places], found

        # Lance searches the base at the same time; more tasks than cores would only cost threads.
        several = max(1, AT_ONCE - 1)
        groups = [layers.fresh[number::several] for number in range(several)]
        fresh = [layer for group in groups for layer in group]
        tasks = [search_base, *(partial(list, map(search, group)) for group in groups if group)]
        found_by = parallel.each("nearest", lambda task: task(), tasks, workers=AT_ONCE)
        answers = [answer for task in found_by for answer in task]
        found = np.concatenate([distances for _, distances in answers])
        order = np.argsort(found, kind="stable")[:k]
        numbers = np.repeat(np.arange(len(answers)), [len(rows) for rows, _ in answers])
        rows = np.concatenate([rows for rows, _ in answers])
        sources = [StoredSource(dataset), *(layer.source for layer in fresh)]
        return sources, Hits(numbers[order], rows[order], found[order])
