"""Full-text search over one shard: its SSTables by their own indexes, its MemTables by one in memory.

Promises:
1. Only rows that count are found: an overwritten or deleted row never is.
2. With sync_indexed_write a search covers every put that a scan shows. Without, it answers as of an
   instant that lies at most `async_index_buffer_rows` rows and `async_index_interval` seconds back.
3. Scores are BM25 within each SSTable, and within the MemTables together: they order the hits of
   one, and only roughly those of several. The table's own search ranks over everything.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from headgate.connectors import sstables as datasets
from headgate.connectors.sstables import TextIndex
from headgate.errors import InvalidInput
from headgate.shards.config import WriterConfig
from headgate.shards.merge import View
from headgate.shards.newest import KeySet, living, newest_rows
from headgate.shards.schema import TOMBSTONE
from headgate.shards.sstable import StoredRows, kept_indexes, open_sstable

SCORE = "_score"


@dataclass
class Indexed:
    """A view of the shard with an index over its MemTables."""

    view: View
    rows: int
    at: float
    indexes: tuple[TextIndex, ...]

    @cached_property
    def newest(self) -> pa.Table:
        """The newest rows of the MemTables, tombstones included."""
        (fresh,) = self.view.shards
        return newest_rows(pa.concat_tables(fresh.tables), self.view.home.schema.primary_key)

    @cached_property
    def in_memory(self) -> Any:
        """Those that live, indexed."""
        return datasets.dataset_in_memory(living(self.newest), self.indexes)


class TextSearch:
    """Keeps the index of the MemTables from one search to the next. Thread-safe."""

    def __init__(self, look: Callable[[], View], config: WriterConfig) -> None:
        self._look = look
        self._config = config
        self._lock = threading.Lock()
        self._indexed: Indexed | None = None

    def search(self, text: str, column: str, k: int) -> pa.Table:
        """The k best rows of this shard, best first, with `_score`. Raises InvalidInput for a column without index."""
        if k < 1:
            raise InvalidInput(f"A search returns at least one row, not {k}.")
        with self._lock:
            self._indexed = indexed = self._up_to_date(self._look())
            if column not in {index.column for index in indexed.indexes}:
                known = sorted(index.column for index in indexed.indexes)
                raise InvalidInput(f"Column {column!r} has no full-text index that this writer keeps.", known=known)
            return _hits(indexed, text, column, k)

    def _up_to_date(self, view: View) -> Indexed:
        old = self._indexed
        (fresh,) = view.shards
        rows = sum(sstable.physical_rows or 0 for sstable in fresh.sstables) + sum(t.num_rows for t in fresh.tables)
        if old is not None:
            (before,) = old.view.shards
            same = before.sstables == fresh.sstables and _counts(before.tables) == _counts(fresh.tables)
            late = abs(rows - old.rows) > self._config.async_index_buffer_rows
            late = late or time.monotonic() - old.at > self._config.async_index_interval
            if same or not (self._config.sync_indexed_write or late):
                return old
        kept = kept_indexes(view.base.dataset, view.home.schema, self._config.maintained_indexes)
        return Indexed(view, rows, time.monotonic(), kept)


def _counts(tables: tuple[pa.Table, ...]) -> list[int]:
    """MemTables only grow, and become SSTables from the oldest on, so their sizes tell whether they changed."""
    return [table.num_rows for table in tables]


def _hits(indexed: Indexed, text: str, column: str, k: int) -> pa.Table:
    schema = indexed.view.home.schema
    (fresh,) = indexed.view.shards
    columns = schema.logical.names
    hidden = KeySet(schema.primary_key)
    parts = []
    if indexed.newest.num_rows:
        hidden.add(indexed.newest)
        parts.append(datasets.search_dataset(indexed.in_memory, text, column, columns, k))
    for sstable in reversed(fresh.sstables):
        opened = open_sstable(fresh.shard, sstable)
        parts.append(_sstable_hits(opened, columns, indexed.indexes, hidden, text, column, k))
        for batch in opened.batches(schema.primary_key, None) if schema.primary_key else ():
            hidden.add(pa.Table.from_batches([batch]))
    result = pa.schema([*(pa.field(f.name, f.type) for f in schema.logical), pa.field(SCORE, pa.float32())])
    found = pa.concat_tables([part.select(result.names).cast(result) for part in parts] or [result.empty_table()])
    return found.sort_by([(SCORE, "descending")]).slice(0, k)


def _sstable_hits(
    sstable: StoredRows,
    columns: list[str],
    indexes: tuple[TextIndex, ...],
    hidden: KeySet,
    text: str,
    column: str,
    k: int,
) -> pa.Table:
    """Asks for more until k of the hits are not hidden."""
    dataset = sstable.dataset
    if not sstable.as_today or column not in {index.column for index in datasets.text_indexes(dataset)}:
        # Written before the column had its name or its index.
        wanted = [*columns, TOMBSTONE]
        rows = [pa.Table.from_batches([batch]) for batch in sstable.batches(wanted, f"NOT {TOMBSTONE}")]
        if not rows:
            return pa.table({name: [] for name in [*columns, SCORE]})
        dataset = datasets.dataset_in_memory(living(pa.concat_tables(rows)), indexes)
    limit = k
    while True:
        found = datasets.search_dataset(dataset, text, column, columns, limit)
        shown = hidden.unseen(found)
        if shown.num_rows >= k or found.num_rows < limit:
            return shown
        limit *= 4
