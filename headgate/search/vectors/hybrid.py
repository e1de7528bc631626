"""Hybrid search by words and by a vector, at one instant.

Promises:
1. The rows are the best candidates of `search` and of `nearest` at that instant. Each row gets both its score and its
   distance: if one search did not return it, the value is looked up.
2. A row is identified by its place at the instant, with or without a key: fresh rows have no row id.
3. The filter is applied before candidates are taken, and changes no score.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.connectors.lance.filters import Filter
from headgate.search.query.parts import SCORE, Source, TextPart, rows_from
from headgate.search.query.ranking import Hits, Match, Ranking
from headgate.search.query.searcher import searcher_of
from headgate.search.vectors.base import DISTANCE
from headgate.search.vectors.distances import Floats, distances, matrix
from headgate.search.vectors.fusion import Fuse, check_fuse, relevance
from headgate.search.vectors.searcher import VectorSearcher
from headgate.shards.rows.view import TableView
from headgate.shards.vectors import VectorColumn

RELEVANCE = "_relevance"

CANDIDATES = 100
"""Minimum candidates of each search."""

_PLACE = np.dtype([("source", np.int64), ("row", np.uint64)])


def search_both(
    view: TableView,
    text: str,
    vector: Any,
    *,
    column: str | None = None,
    vector_column: str | None = None,
    columns: Sequence[str] | None = None,
    filter: Filter | None = None,
    k: int = 10,
    match: Match = "any",
    fuse: Fuse = "rrf",
    weight: float = 0.5,
    nprobes: int | None = None,
    refine: int | None = None,
) -> pa.Table:
    """The k best rows, best first: the columns, `_score`, `_distance` and `_relevance`. See `Table.hybrid`."""
    check_fuse(fuse, weight)
    result = view.scan(columns, filter).schema
    texts, vectors = searcher_of(view), VectorSearcher(view)
    text_column, chosen = column or texts.only_column(), vectors.column(vector_column)
    query = vectors.query(vector, chosen)
    candidates = max(CANDIDATES, 4 * k) if isinstance(k, int) and k > 0 else k
    parts, ranking, matching = texts.ranked(text, text_column, candidates, match, filter)
    sources, near = vectors.find(chosen, query, candidates, filter=filter, nprobes=nprobes, refine=refine)
    pool = _Pool(parts, sources, matching, near)
    scores, away = pool.scores(ranking), pool.distances(chosen, query)
    relevant = relevance(scores, away, fuse, weight)
    order = np.lexsort((away, -relevant))[:k]
    told = [(SCORE, scores), (DISTANCE, away), (RELEVANCE, relevant)]
    added = [
        pa.array(numbers[order].astype(np.float32), pa.float32(), mask=np.isnan(numbers[order])) for _, numbers in told
    ]
    values = pool.values(order, result.names or [text_column]) if len(order) else result.empty_table()
    shown = [values.column(field.name).cast(field.type) for field in result]
    schema = pa.schema([*result, *(pa.field(name, pa.float32()) for name, _ in told)])
    return pa.Table.from_arrays([*shown, *added], schema=schema)


class _Pool:
    """The rows that either search returned, each once."""

    def __init__(self, parts: Sequence[TextPart], sources: Sequence[Source], matching: Hits, near: Hits) -> None:
        every = {source.place: source for source in [*(part.source for part in parts), *sources]}
        numbers = {place: number for number, place in enumerate(every)}
        self._sources = list(every.values())
        self._of_parts = np.array([numbers[part.source.place] for part in parts], np.int64)
        of_sources = np.array([numbers[source.place] for source in sources], np.int64)
        self._matching, self._near = _places(self._of_parts, matching), _places(of_sources, near)
        self._scores, self._distances = matching.scores, near.scores
        self._rows = np.unique(np.concatenate([self._matching, self._near]))

    def values(self, order: np.ndarray[Any, Any], columns: Sequence[str]) -> pa.Table:
        """The values of some rows, in this order."""
        chosen = self._rows[order]
        return rows_from(self._sources, chosen["source"], chosen["row"], columns)

    def scores(self, ranking: Ranking) -> np.ndarray[Any, Any]:
        """The score of each row; NaN if it does not match."""
        found = np.full(len(self._rows), np.nan)
        rest = np.setdiff1d(self._rows, self._matching)
        more = ranking.only([rest["row"][rest["source"] == number] for number in self._of_parts]).best(len(rest) or 1)
        found[self._at(_places(self._of_parts, more))] = more.scores
        found[self._at(self._matching)] = self._scores
        return found

    def distances(self, column: VectorColumn, query: Floats) -> np.ndarray[Any, Any]:
        """The distance of each row; NaN if it has none."""
        found = np.full(len(self._rows), np.nan)
        rest = self._at(np.setdiff1d(self._rows, self._near))
        if len(rest):
            vectors = self.values(rest, [column.column]).column(0).combine_chunks()
            measured = distances(matrix(vectors), query, column.metric)
            found[rest] = np.where(vectors.is_null().to_numpy(zero_copy_only=False), np.nan, measured)
        found[self._at(self._near)] = self._distances
        return found

    def _at(self, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.searchsorted(self._rows, rows)


def _places(numbers: np.ndarray[Any, Any], hits: Hits) -> np.ndarray[Any, Any]:
    found = np.empty(len(hits), _PLACE)
    found["source"], found["row"] = numbers[hits.parts], hits.rows
    return found
