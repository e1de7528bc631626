"""Reading a table: every read is of one instant, and fresh rows are in it."""

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
    """What can be read of one instant."""

    home: TableHome

    @abstractmethod
    def _snapshot(self) -> TableView:
        """The instant that is read."""

    def scan(
        self, *, columns: Columns = None, filter: Filter | None = None, limit: int | None = None
    ) -> pa.RecordBatchReader:
        """Every visible row at one instant, as an Arrow reader: newest row per key, deletes applied. With `limit` no
        more than so many of them, whichever come first.

        `filter` is one condition in SQL as Lance takes it, or a pyarrow.compute.Expression. Reads as it is asked to;
        writes nothing. Raises InvalidInput for a column or filter that cannot be, DataLoss, Corrupt, Transient.
        """
        if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 0):
            raise InvalidInput(f"limit must be at least 0, got {limit!r}.")
        reader = self._snapshot().scan(_names(columns), filter)
        return reader if limit is None else pa.RecordBatchReader.from_batches(reader.schema, _first(reader, limit))

    def get(self, keys: Keys) -> pa.Table:
        """The rows with these keys; keys that are not there are left out.

        A key is a value (`get(291)`), a tuple or a dict (`get({"id": 291})`), and several are a list of these, or
        batches of the key columns. Raises InvalidInput for keys of another shape or type; as `scan` does.
        """
        return self._snapshot().get(key_rows(self.home.schema, keys))

    def count(self, *, filter: Filter | None = None) -> int:
        """How many rows a scan would give."""
        return sum(batch.num_rows for batch in self.scan(columns=[], filter=filter))

    def head(self, n: int = 5, *, columns: Columns = None) -> pa.Table:
        """Some n rows, whichever come first."""
        return self.scan(columns=columns, limit=n).read_all()

    def to_arrow(self, *, columns: Columns = None, filter: Filter | None = None, limit: int | None = None) -> pa.Table:
        """All rows of a scan, in memory."""
        return self.scan(columns=columns, filter=filter, limit=limit).read_all()

    def to_pandas(self, *, columns: Columns = None, filter: Filter | None = None, limit: int | None = None) -> Any:
        """All rows of a scan as a pandas DataFrame. Raises InvalidInput where pandas is not installed."""
        if find_spec("pandas") is None:
            raise InvalidInput("pandas is not installed.", advice="pip install pandas, or use to_arrow()")
        return self.to_arrow(columns=columns, filter=filter, limit=limit).to_pandas()

    def to_polars(self, *, columns: Columns = None, filter: Filter | None = None, limit: int | None = None) -> Any:
        """All rows of a scan as a polars DataFrame. Raises InvalidInput where polars is not installed."""
        if find_spec("polars") is None:
            raise InvalidInput("polars is not installed.", advice="pip install polars, or use to_arrow()")
        import polars

        return polars.from_arrow(self.to_arrow(columns=columns, filter=filter, limit=limit))

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """A scan, for what takes Arrow streams: `pa.table(table)`, DuckDB, Polars."""
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
        """The k rows that fit a text best, best first, with `_score`: over base, SSTables and the visible tail.

        Hits and scores are those of one native index over the rows that a scan shows now. `column` may be left out
        where one column has a full-text index. `match`: any of the words, all of them, or the phrase, which needs an
        index with positions. `filter`, as in `scan`, chooses among the hits; it changes no score.

        Writes nothing. Raises InvalidInput for what cannot be, DataLoss, Corrupt, Transient.
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
        """The k rows whose vectors are nearest to one, nearest first, with `_distance`: over base, SSTables and the
        visible tail.

        Distances are exact, and Lance's: the squared Euclidean one for l2, 1 - cosine, 1 - dot product. The rows are
        those of a brute force over what a scan shows now; where the base has an index, nearly so: `nprobes` is how many
        of its partitions are read at least, and `refine` times k of its candidates are measured by the stored
        numbers. More of both is slower and finds more. `column` may be left out where there is one vector column.
        `filter`, as in `scan`, is applied before the nearest are taken.

        Writes nothing. Raises InvalidInput for what cannot be, DataLoss, Corrupt, Transient.
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
        """The k rows that fit a text and a vector best, best first, with `_score`, `_distance` and `_relevance`.

        Of one instant, the best of `search` and of `nearest` are taken, 100 of each or 4 k, and ranked together: by
        "rrf", 1 / (60 + rank) in the one plus the same in the other, or "weighted", `weight` times the score beside the
        best score, and the rest of 1 times how far the distance lies from the farthest to the nearest. A row that does
        not match the text has no `_score`, one without a vector no `_distance`; for what is missing a row gets nothing.

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
        """The table as it is now, for many searches of the same instant. See `search`."""
        return searcher_of(self._snapshot())


def _names(columns: Columns) -> Sequence[str] | None:
    return [columns] if isinstance(columns, str) else columns


def _first(batches: Iterable[pa.RecordBatch], limit: int) -> Iterator[pa.RecordBatch]:
    """No more than so many rows; what comes after them is not read."""
    for batch in batches if limit else ():
        yield batch.slice(0, limit)
        limit -= batch.num_rows
        if limit <= 0:
            return
