"""Reading a table: every read sees one instant, fresh rows included."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any, TypeAlias

import pyarrow as pa

from headgate.connectors.lance.filters import Filter
from headgate.errors import InvalidInput
from headgate.search.query.ranking import Match
from headgate.search.query.searcher import Searcher, searcher_of
from headgate.search.vectors.fusion import Fuse
from headgate.search.vectors.hybrid import search_both
from headgate.search.vectors.searcher import VectorSearcher
from headgate.shards.rows.view import TableView
from headgate.shards.shard import TableHome
from headgate.table.keys import Keys, key_rows

Columns: TypeAlias = "str | Sequence[str] | None"
"""One column, several, or None for all of them. An empty list reads none: the batches only count rows."""


class Reads:
    """The read methods of a table; each sees one instant."""

    home: TableHome

    @abstractmethod
    def _snapshot(self) -> TableView:
        """The instant to read."""

    def scan(
        self, *, columns: Columns = None, filter: Filter | None = None, limit: int | None = None
    ) -> pa.RecordBatchReader:
        """All visible rows at one instant, as a RecordBatchReader: the newest row of each key, deletes applied. With
        `limit` at most that many rows, in no particular order.

        `filter` is a condition in Lance's SQL, or a pyarrow.compute.Expression. Reads lazily; writes nothing. Raises
        InvalidInput for an invalid column or filter, DataLoss, Corrupt, Transient.
        """
        if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 0):
            raise InvalidInput(f"limit must be at least 0, got {limit!r}.")
        reader = self._snapshot().scan(_names(columns), filter)
        return reader if limit is None else pa.RecordBatchReader.from_batches(reader.schema, _first(reader, limit))

    def get(self, keys: Keys) -> pa.Table:
        """The rows with these keys; keys that are not found are left out.

        A key is a value (`get(291)`), a tuple or a dict (`get({"id": 291})`), and several are a list of these, or
        batches of the key columns. Raises InvalidInput for keys of the wrong shape or type, and as `scan` does.
        """
        return self._snapshot().get(key_rows(self.home.schema, keys))

    def count(self, *, filter: Filter | None = None) -> int:
        """The number of rows that a scan would return."""
        return sum(batch.num_rows for batch in self.scan(columns=[], filter=filter))

    def head(self, n: int = 5, *, columns: Columns = None) -> pa.Table:
        """Any n rows, in no particular order."""
        return self.scan(columns=columns, limit=n).read_all()

    def to_arrow(self, *, columns: Columns = None, filter: Filter | None = None, limit: int | None = None) -> pa.Table:
        """All rows of a scan, in memory."""
        return self.scan(columns=columns, filter=filter, limit=limit).read_all()

    def to_pandas(self, *, columns: Columns = None, filter: Filter | None = None, limit: int | None = None) -> Any:
        """All rows of a scan as a pandas DataFrame. Raises InvalidInput if pandas is not installed."""
        if find_spec("pandas") is None:
            raise InvalidInput("pandas is not installed.", advice="pip install pandas, or use to_arrow()")
        return self.to_arrow(columns=columns, filter=filter, limit=limit).to_pandas()

    def to_polars(self, *, columns: Columns = None, filter: Filter | None = None, limit: int | None = None) -> Any:
        """All rows of a scan as a polars DataFrame. Raises InvalidInput if polars is not installed."""
        if find_spec("polars") is None:
            raise InvalidInput("polars is not installed.", advice="pip install polars, or use to_arrow()")
        import polars

        return polars.from_arrow(self.to_arrow(columns=columns, filter=filter, limit=limit))

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """A scan for Arrow consumers: `pa.table(table)`, DuckDB, Polars."""
        return self.scan().__arrow_c_stream__(requested_schema)

    def search(
        self,
        text: str,
        *,
        column: str | None = None,
        columns: Columns = None,
        filter: Filter | None = None,
        k: int = 10,
        match: Match = "any",
    ) -> pa.Table:
        """The k rows that match a text best, best first, with `_score`: over base, SSTables and the visible tail.

        Hits and scores are those of one native Lance index over the rows that a scan returns now. `column` is optional
        if only one column has a full-text index. `match` is "any" word, "all" words, or "phrase", which needs an index
        with positions. `filter`, as in `scan`, selects among the hits and does not change scores.

        Writes nothing. Raises InvalidInput for invalid arguments, DataLoss, Corrupt, Transient.
        """
        return self.searcher().search(text, column, k, match=match, filter=filter, columns=_names(columns))

    def nearest(
        self,
        vector: Any,
        *,
        column: str | None = None,
        columns: Columns = None,
        filter: Filter | None = None,
        k: int = 10,
        nprobes: int | None = None,
        refine: int | None = None,
    ) -> pa.Table:
        """The k rows nearest to a vector, nearest first, with `_distance`: over base, SSTables and the visible tail.

        Distances are exact, computed like Lance: squared Euclidean for l2, 1 - cosine, 1 - dot product. The result is
        that of a brute-force search over the rows that a scan returns now. If the base has an index, it is approximate:
        `nprobes` is the minimum number of partitions to read, and exact distances are computed for `refine` times k
        candidates. Higher values are slower and find more. `column` is optional if there is only one vector column.
        `filter`, as in `scan`, is applied before the nearest rows are chosen.

        Writes nothing. Raises InvalidInput for invalid arguments, DataLoss, Corrupt, Transient.
        """
        searcher = VectorSearcher(self._snapshot())
        return searcher.nearest(
            vector, column, k, filter=filter, columns=_names(columns), nprobes=nprobes, refine=refine
        )

    def hybrid(
        self,
        text: str,
        vector: Any,
        *,
        column: str | None = None,
        vector_column: str | None = None,
        columns: Columns = None,
        filter: Filter | None = None,
        k: int = 10,
        match: Match = "any",
        fuse: Fuse = "rrf",
        weight: float = 0.5,
        nprobes: int | None = None,
        refine: int | None = None,
    ) -> pa.Table:
        """The k rows that match a text and a vector best, best first, with `_score`, `_distance` and `_relevance`.

        The best rows of `search` and of `nearest` at the same instant, 100 of each or 4 k, are ranked together. `fuse`
        is "rrf": the sum of 1 / (60 + rank) in both; or "weighted": `weight` times the score relative to the best
        score, plus (1 - `weight`) times the closeness, from 0 for the farthest candidate to 1 for the nearest. `_score`
        is null for a row that does not match the text, `_distance` for a row without a vector; a missing part counts 0.

        The other arguments are those of `search` and `nearest`. Writes nothing, raises what they raise.
        """
        return search_both(
            self._snapshot(),
            text,
            vector,
            column=column,
            vector_column=vector_column,
            columns=_names(columns),
            filter=filter,
            k=k,
            match=match,
            fuse=fuse,
            weight=weight,
            nprobes=nprobes,
            refine=refine,
        )

    def searcher(self) -> Searcher:
        """The current state of the table, for many searches at the same instant. See `search`."""
        return searcher_of(self._snapshot())


def _names(columns: Columns) -> Sequence[str] | None:
    return [columns] if isinstance(columns, str) else columns


def _first(batches: Iterable[pa.RecordBatch], limit: int) -> Iterator[pa.RecordBatch]:
    """At most this many rows; later ones are not read."""
    for batch in batches if limit else ():
        yield batch.slice(0, limit)
        limit -= batch.num_rows
        if limit <= 0:
            return
