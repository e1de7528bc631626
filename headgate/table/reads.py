"""Reading a table: every read is of one instant, and fresh rows are in it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import pyarrow as pa

from headgate.connectors.lance.filters import Filter
from headgate.search.query.ranking import Match
from headgate.search.query.searcher import Searcher, searcher_of
from headgate.shards.rows.schema import Rows
from headgate.shards.rows.view import TableView


class Reads:
    """What can be read of one instant."""

    @abstractmethod
    def _snapshot(self) -> TableView:
        """The instant that is read."""

    def scan(self, columns: Sequence[str] | None = None, filter: Filter | None = None) -> pa.RecordBatchReader:
        """Every visible row at one instant, as an Arrow reader: newest row per key, deletes applied.

        `filter` is one condition in SQL as Lance takes it, or a pyarrow.compute.Expression. Reads as it is asked to;
        writes nothing. Raises InvalidInput for a column or filter that cannot be, DataLoss, Corrupt, Transient.
        """
        return self._snapshot().scan(columns, filter)

    def get(self, keys: Rows) -> pa.Table:
        """The rows with these keys, given as batches of the key columns; keys that are not there are left out."""
        return self._snapshot().get(keys)

    def search(
        self,
        text: str,
        column: str | None = None,
        k: int = 10,
        filter: Filter | None = None,
        columns: Sequence[str] | None = None,
        *,
        match: Match = "any",
    ) -> pa.Table:
        """The k rows that fit a text best, best first, with `_score`: over base, SSTables and the visible tail.

        Hits and scores are those of one native index over the rows that a scan shows now. `column` may be left out
        where one column has a full-text index. `match`: any of the words, all of them, or the phrase, which needs an
        index with positions. `filter`, as in `scan`, chooses among the hits; it changes no score.

        Writes nothing. Raises InvalidInput for what cannot be, DataLoss, Corrupt, Transient.
        """
        return self.searcher().search(text, column, k, match=match, filter=filter, columns=columns)

    def searcher(self) -> Searcher:
        """The table as it is now, for many searches of the same instant. See `search`."""
        return searcher_of(self._snapshot())
