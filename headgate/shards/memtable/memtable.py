"""A MemTable: the rows of one generation, in memory, in the order they became durable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from headgate.shards.config import WriterConfig
from headgate.shards.rows.dedup import newest_rows
from headgate.shards.rows.schema import RowSchema


@dataclass(frozen=True, slots=True)
class MemTableStats:
    """Numbers of one MemTable."""

    generation: int
    rows: int
    nbytes: int
    batches: int
    first_position: int | None
    last_position: int
    frozen: bool


class MemTable:
    """Grows by `add` until it is frozen. Not thread-safe: its owner holds a lock; a frozen one is only read."""

    def __init__(self, schema: RowSchema, generation: int, after: int) -> None:
        self.generation = generation
        self.rows = 0
        self.nbytes = 0
        self.puts = 0
        self.first_position: int | None = None
        self.last_position = after
        """Every row above the last generation's last position and up to this one is in here."""
        self.frozen = False
        self._schema = schema
        self._batches: list[pa.RecordBatch] = []

    def add(self, batches: Sequence[pa.RecordBatch], position: int, puts: int = 1) -> None:
        """Add rows of the entry at a WAL position, in storage form."""
        assert not self.frozen
        assert position > self.last_position or (position == self.last_position and self.rows)
        self._batches.extend(batches)
        self.rows += sum(batch.num_rows for batch in batches)
        # Their buffers in memory: they are not slices, and counting values takes fifty times as long.
        self.nbytes += sum(batch.get_total_buffer_size() for batch in batches)
        self.puts += puts
        if self.first_position is None:
            self.first_position = position
        self.last_position = position

    def is_full(self, config: WriterConfig) -> bool:
        """True if it must be frozen."""
        return (
            self.nbytes >= config.max_memtable_size
            or self.rows >= config.max_memtable_rows
            or self.puts >= config.max_memtable_batches
        )

    def table(self) -> pa.Table:
        """All rows as they were put, including tombstones and older versions. A snapshot: later adds do not show."""
        return pa.Table.from_batches(list(self._batches), schema=self._schema.storage)

    def newest(self) -> pa.Table:
        """The newest row of each key, including tombstones."""
        return newest_rows(self.table(), self._schema.primary_key)

    def stats(self) -> MemTableStats:
        return MemTableStats(
            generation=self.generation,
            rows=self.rows,
            nbytes=self.nbytes,
            batches=len(self._batches),
            first_position=self.first_position,
            last_position=self.last_position,
            frozen=self.frozen,
        )
