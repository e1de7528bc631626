"""Full-text search over base, SSTables and the visible tail of the WALs.

Promises:
1. Hits and scores are those of one native index over the rows that a scan at the same instant returns: deleted and
   overwritten rows are neither found nor part of the statistics.
2. A filter selects among the hits and does not change scores.
3. The process caches prepared parts by their contents: a search of an unchanged table prepares nothing, and one of a
   grown table only what is new.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from headgate.caches import Cache
from headgate.connectors.lance import datasets
from headgate.connectors.lance.filters import Filter, filtered
from headgate.connectors.lance.fts import index as full_text
from headgate.errors import InvalidInput
from headgate.search.query.base import BaseIndex
from headgate.search.query.highlight import highlighted
from headgate.search.query.parts import PLACE, SCORE, TextPart, check_match, rows_of
from headgate.search.query.ranking import Corpus, Hits, Match, Ranking, rank
from headgate.search.query.shard_text import shard_parts
from headgate.search.query.superseded import superseded_rows
from headgate.shards.rows.view import ShardDelta, TableView

Marker: TypeAlias = Callable[[str], list[tuple[str, bool]]]

FIRST_LOOK = 256
"""Hits to which a filter is applied first; only if too few pass, it is applied to whole sources."""


@dataclass(frozen=True, eq=False)
class _Prepared:
    """A column at one instant, ready to be searched."""

    base: BaseIndex
    parts: list[TextPart]
    only_base: bool
    """True if the shards add nothing, not even a delete."""
    tails: tuple[pa.Table, ...]

    @cached_property
    def corpus(self) -> Corpus:
        """The documents of all parts."""
        return Corpus([part.documents for part in self.parts])

    @property
    def memory(self) -> Iterator[tuple[object, int]]:
        """Memory that it shares with indexes and with other instants of the table."""
        yield from ((tail, int(tail.nbytes)) for tail in self.tails)
        for part in self.parts:
            yield from part.documents.partition.memory


_prepared: Cache[_Prepared] = Cache(
    "prepared_searches",
    lambda prepared: 100_000 + sum(part.documents.nbytes for part in prepared.parts),
    lambda prepared: prepared.memory,
)


class Searcher:
    """Searches a table at one instant. Thread-safe."""

    def __init__(self, view: TableView) -> None:
        """Raises InvalidInput if the base's columns have changed since the table was opened."""
        if not view.base.as_today:
            what = "The table's columns have changed since it was opened."
            raise InvalidInput(what, table=view.home.uri, advice="open the table again")
        self._view = view
        self._lock = threading.Lock()
        schema = view.home.schema.logical.serialize().to_pybytes()
        self.identity = (_table_identity(view), view.base.dataset.version, schema, *map(_identity, view.deltas))
        """Equal for equal views. A table that is created again in the same place has another id."""

    def search(
        self,
        text: str,
        column: str | None = None,
        k: int = 10,
        *,
        match: Match = "any",
        filter: Filter | None = None,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """The k best rows, best first: the columns, and `_score`. See `Table.search`."""
        result = self._view.scan(columns, filter).schema
        column = column or self.only_column()
        prepared = self._prepare(column)
        check_match(prepared.base.column, match, k)
        if prepared.only_base and prepared.base.exact and filter is None:
            found = full_text.best_matches(prepared.base.dataset, text, column, match, result.names, k)
            return _as(result, found, found.column(SCORE))
        ranking = self._rank(prepared, text, match, k if filter is None else None)
        hits = self._best(prepared, ranking, filter, k)
        if not len(hits):
            return _as(result, result.empty_table(), pa.array([], pa.float32()))
        found = rows_of(prepared.parts, hits, result.names or [column])
        return _as(result, found, pa.array(hits.scores, pa.float32()))

    def ranked(
        self, text: str, column: str, k: int, match: Match = "any", filter: Filter | None = None
    ) -> tuple[Sequence[TextPart], Ranking, Hits]:
        """The parts, all matching rows without regard to the filter, and the k best that pass it."""
        prepared = self._prepare(column)
        check_match(prepared.base.column, match, k)
        ranking = self._rank(prepared, text, match)
        return prepared.parts, ranking, self._best(prepared, ranking, filter, k)

    def _rank(self, prepared: _Prepared, text: str, match: Match, limit: int | None = None) -> Ranking:
        words = full_text.query_words(text, prepared.base.column.parameters)
        return rank(prepared.corpus, words, match, limit)

    def _best(self, prepared: _Prepared, ranking: Ranking, filter: Filter | None, k: int) -> Hits:
        return ranking.best(k) if filter is None else self._passing(prepared.parts, ranking, filter, k)

    def only_column(self) -> str:
        """The only column with a full-text index. Raises InvalidInput if there are none or several."""
        known = sorted({index.column for index in datasets.text_indexes(self._view.base.dataset)})
        if len(known) != 1:
            uri = self._view.home.uri
            what = f"The table has {len(known) or 'no'} columns with a full-text index."
            build = f"build one first: headgate index build {uri} --column NAME"
            advice = f"name one of them as column: {known}" if known else build
            raise InvalidInput(what, table=uri, advice=advice)
        return known[0]

    def marker(self, text: str, column: str) -> Marker:
        """A function that splits a text of the column into pieces, each with True if a search for `text` matches it."""
        parameters = self._prepare(column).base.column.parameters

        def cut(piece: str) -> list[str]:
            return [word.text for word in full_text.query_words(piece, parameters)]

        wanted = cut(text)
        return lambda shown: highlighted(shown, wanted, cut)

    @property
    def tails(self) -> tuple[pa.Table, ...]:
        """The fresh rows of the view."""
        return tuple(table for delta in self._view.deltas for table in delta.tables)

    def _prepare(self, column: str) -> _Prepared:
        with self._lock:
            return _prepared.get_or_make((self.identity, column), lambda: self._make(column))

    def _make(self, column: str) -> _Prepared:
        schema = self._view.home.schema
        if column in schema.logical.names and not _is_text(schema.logical.field(column).type):
            raise InvalidInput(
                f"Column {column!r} has type {schema.logical.field(column).type}, which has no full-text search."
            )
        base = BaseIndex.of(self._view, column)
        shards = [shard_parts(delta, base.column) for delta in self._view.deltas]
        only_base = not any(delta.sstables or any(t.num_rows for t in delta.tables) for delta in self._view.deltas)
        keys = [shard.keys for shard in shards if shard.keys is not None]
        superseded = np.zeros(0, np.uint64)
        if keys:
            # A key belongs to one shard, so each key occurs here once.
            fresh_keys = pa.concat_tables(keys)
            superseded = superseded_rows(_table_identity(self._view), base.dataset, schema.primary_key, fresh_keys)
        fresh_parts = [part for shard in shards for part in shard.parts]
        return _Prepared(base, [*fresh_parts, *base.parts(superseded)], only_base, self.tails)

    def _passing(self, parts: Sequence[TextPart], ranking: Ranking, filter: Filter, k: int) -> Hits:
        """The best hits that pass a filter: applied to the first hits, and to whole sources if too few pass."""
        names = self._view.home.schema.logical.names
        first = ranking.best(max(4 * k, FIRST_LOOK))
        if not len(first):
            return first
        numbered = rows_of(parts, first, names).append_column(PLACE, pa.array(np.arange(len(first))))
        kept = np.sort(filtered(numbered, filter).column(PLACE).to_numpy())
        if len(kept) >= k or len(first) == len(ranking):
            return first.take(kept[:k])
        passing = {id(source): source.passing(filter) for source in {id(p.source): p.source for p in parts}.values()}
        return ranking.only([passing[id(part.source)] for part in parts]).best(k)


_searchers: Cache[Searcher] = Cache(
    "searchers", lambda searcher: 100_000, lambda searcher: ((tail, int(tail.nbytes)) for tail in searcher.tails)
)
"""Threads that search equal views share one searcher, and so prepare it once."""


def searcher_of(view: TableView) -> Searcher:
    """A searcher of this view, or the cached one of an equal view."""
    made = Searcher(view)
    return _searchers.get_or_make(made.identity, lambda: made)


def _table_identity(view: TableView) -> tuple[object, ...]:
    return view.home.uri, view.home.table_id


def _identity(delta: ShardDelta) -> tuple[object, ...]:
    return delta.shard.id, delta.generation, delta.sstables, delta.identity


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _as(result: pa.Schema, found: pa.Table, scores: pa.Array | pa.ChunkedArray) -> pa.Table:
    columns = [found.column(field.name).cast(field.type) for field in result]
    return pa.Table.from_arrays([*columns, scores], schema=result.append(pa.field(SCORE, pa.float32())))
