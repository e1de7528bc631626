"""Full-text search over one shard: its SSTables by their own indexes, its MemTables by one in memory.

Promises:
1. Only rows that count are found: an overwritten or deleted row never is.
2. With sync_indexed_write a search covers every put that a scan shows. Without, it answers as of an
   instant that lies at most `async_index_buffer_rows` rows and `async_index_interval` seconds back.
3. Hits and scores are those of one native index over the shard's rows that count. The base is not part
   of it: the table's own search ranks over everything.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa

from headgate import clock
from headgate.connectors.lance.datasets import TextIndex
from headgate.connectors.lance.fts import index as full_text
from headgate.errors import InvalidInput
from headgate.shards.config import WriterConfig
from headgate.shards.rows.sstable import kept_indexes
from headgate.shards.rows.view import View
from headgate.shards.text.parts import SCORE, TextColumn, TextPart, check_match, opened, rows_of, shard_parts
from headgate.shards.text.ranking import rank


@dataclass
class Indexed:
    """A view of the shard; its parts are prepared for each column when it is first searched."""

    view: View
    rows: int
    at: float
    indexes: tuple[TextIndex, ...]
    _parts: dict[str, tuple[TextColumn, list[TextPart]]] = field(default_factory=dict)

    def parts(self, column: str) -> tuple[TextColumn, list[TextPart]]:
        """Raises InvalidInput for a column without an index that is kept."""
        if column not in self._parts:
            known = {index.column: index for index in self.indexes}
            if column not in known:
                what = f"Column {column!r} has no full-text index that this writer keeps."
                raise InvalidInput(what, known=sorted(known))
            home, (fresh,) = self.view.home, self.view.shards
            segment = full_text.segments(self.view.base.dataset, home.store, "", known[column].name)[0]
            text_column = TextColumn(column, opened(segment).parameters)
            self._parts[column] = text_column, shard_parts(fresh, text_column).parts
        return self._parts[column]


class TextSearch:
    """Keeps what was indexed from one search to the next. Thread-safe."""

    def __init__(self, look: Callable[[], View], config: WriterConfig) -> None:
        self._look = look
        self._config = config
        self._lock = threading.Lock()
        self._indexed: Indexed | None = None

    def search(self, text: str, column: str, k: int) -> pa.Table:
        """The k best rows of this shard, best first, with `_score`. Raises InvalidInput for a column without index."""
        with self._lock:
            self._indexed = indexed = self._up_to_date(self._look())
            text_column, parts = indexed.parts(column)
        check_match(text_column, "any", k)
        words = full_text.query_words(text, text_column.parameters)
        hits = rank([part.documents for part in parts], words, "any").best(k)
        logical = indexed.view.home.schema.logical
        result = pa.schema([pa.field(f.name, f.type) for f in logical])
        found = rows_of(parts, hits, result.names).cast(result) if len(hits) else result.empty_table()
        return found.append_column(SCORE, pa.array(hits.scores, pa.float32()))

    def _up_to_date(self, view: View) -> Indexed:
        old = self._indexed
        (fresh,) = view.shards
        rows = sum(sstable.physical_rows or 0 for sstable in fresh.sstables) + sum(t.num_rows for t in fresh.tables)
        if old is not None:
            (before,) = old.view.shards
            same = before.sstables == fresh.sstables and _counts(before.tables) == _counts(fresh.tables)
            late = abs(rows - old.rows) > self._config.async_index_buffer_rows
            late = late or clock.monotonic() - old.at > self._config.async_index_interval
            if same or not (self._config.sync_indexed_write or late):
                return old
        kept = kept_indexes(view.home, view.base.dataset, self._config.maintained_indexes)
        return Indexed(view, rows, clock.monotonic(), kept)


def _counts(tables: tuple[pa.Table, ...]) -> list[int]:
    """MemTables only grow, and become SSTables from the oldest on, so their sizes tell whether they changed."""
    return [table.num_rows for table in tables]
