"""One view over the base, SSTables and fresh rows: newest row per key, deletes applied.

Promises:
1. Sources are read newest first; a row whose key a newer source has, even as a tombstone, is hidden.
2. A filter selects among the visible rows: no older version comes back because the newest was filtered out. Lance gets
   only the filter; tombstones and older versions are dropped here.
3. Memory holds the fresh rows and the keys of the SSTables, never the base.
4. A lookup searches keys in memory, reads the rows that have them, and asks the base only for keys that no shard has.
5. SSTables that the base has compacted in (its compacted mark) are left out, whatever a manifest still names.
Tables without a key are simply all their rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import repeat

import numpy as np
import pyarrow as pa

from headgate import parallel
from headgate.connectors.lance.filters import Filter, check_filter, filtered
from headgate.connectors.lance.rows import ROW_ID, take_rows
from headgate.errors import InvalidInput
from headgate.shards.manifest.decisions import uncompacted
from headgate.shards.manifest.model import Manifest, SsTable
from headgate.shards.rows.base import Base
from headgate.shards.rows.chunks import ChunkedRows, identity_of
from headgate.shards.rows.dedup import KeySet, living, newest_rows
from headgate.shards.rows.keys import sstable_keys
from headgate.shards.rows.schema import TOMBSTONE, Rows, RowSchema
from headgate.shards.rows.sstable import StoredRows, open_sstable
from headgate.shards.shard import Shard, TableHome

MIN_BATCH, MAX_BATCH = 8_192, 131_072
"""Rows read at once. Unless the keys are flags, each batch is compared with all hidden keys: more keys call for larger
batches.
"""

SIDE_BY_SIDE = 8
"""Number of SSTables whose first batches are read ahead if the store is slow."""

MANY_KEYS = 10_000
"""Above this number of keys, a lookup reads all rows and compares: such a long list in a filter costs more than it
saves.
"""


@dataclass(frozen=True)
class ShardDelta:
    """What one shard adds to the base: SSTables, then rows in storage form; each oldest first.

    `generation` is that of the oldest of the rows.
    """

    shard: Shard
    generation: int
    sstables: tuple[SsTable, ...]
    tables: tuple[pa.Table, ...]
    entries: tuple[tuple[int, int], ...] = field(default=(), repr=False, compare=False)
    """Position and number of rows of each entry among the fresh rows; empty if not requested."""
    opened: dict[str, StoredRows] = field(default_factory=dict, repr=False, compare=False)
    """SSTables that were opened, by path. They never change: the next instant may use them again."""

    @classmethod
    def of(
        cls, shard: Shard, manifest: Manifest, *tables: pa.Table, entries: tuple[tuple[int, int], ...] = ()
    ) -> ShardDelta:
        """From a manifest, and the rows that no SSTable has."""
        return cls(shard, manifest.generation, manifest.sstables, tables, entries)

    def above(self, mark: int, started: int = 0) -> ShardDelta | None:
        """Without the SSTables up to the base's mark; None if the mark, or the generation whose deletes the base has
        started to take in, is of a later flush than this delta knows.
        """
        left = uncompacted(self.sstables, self.generation, mark) if started < self.generation else None
        if left is None or left == self.sstables:
            return self if left is not None else None
        return replace(self, sstables=left)

    @cached_property
    def identity(self) -> bytes:
        """Equal only for equal fresh rows. Computed once: an instant that adds nothing has the same delta."""
        return identity_of([chunk for table in self.tables for column in table.columns for chunk in column.chunks])

    @cached_property
    def rows(self) -> pa.Table:
        """The fresh rows, including tombstones, oldest first."""
        return pa.concat_tables([self.shard.home.schema.storage.empty_table(), *self.tables])

    def newest(self, number: str | None = None) -> pa.Table:
        """The newest fresh row of each key, including tombstones; with `number`, a column of that name has its row
        number in `rows`.
        """
        rows = self.rows
        if number is not None:
            rows = rows.append_column(number, pa.array(np.arange(rows.num_rows)))
        return newest_rows(rows, self.shard.home.schema.primary_key)

    def newest_of(self, asked: KeySet) -> pa.Table:
        """The newest fresh row of each requested key, including tombstones."""
        schema = self.shard.home.schema
        return newest_rows(self._chunks.take(asked.places(self._keys), schema.storage.names), schema.primary_key)

    def stored(self, sstable: SsTable) -> StoredRows:
        """Opens one of its SSTables, once."""
        if sstable.path not in self.opened:
            self.opened[sstable.path] = open_sstable(self.shard, sstable)
        return self.opened[sstable.path]

    def load_keys(self, sstable: SsTable) -> None:
        """Read the keys of one of its SSTables, if it has the current columns; they are kept."""
        if (stored := self.stored(sstable)).as_today:
            sstable_keys(self.shard, sstable, stored)

    def stored_rows_of(self, sstable: SsTable, asked: KeySet, narrow: str) -> pa.Table:
        """The rows with the requested keys in one of its SSTables, including tombstones. `narrow` is the same condition
        as a filter, for an SSTable from before a change of columns.
        """
        stored, storage = self.stored(sstable), self.shard.home.schema.storage
        if not stored.as_today:
            found = pa.Table.from_batches(stored.batches(storage.names, narrow), schema=storage)
            return asked.seen(found)
        keys = sstable_keys(self.shard, sstable, stored)
        places = asked.places(keys)
        if not len(places):
            return storage.empty_table()
        return take_rows(stored.dataset, keys.column(ROW_ID).to_numpy()[places], storage.names)

    @cached_property
    def _keys(self) -> pa.Table:
        """Keys of the fresh rows, in one chunk: made once, so that a view that is reused answers quickly."""
        return self.rows.select(list(self.shard.home.schema.primary_key)).combine_chunks()

    @cached_property
    def _chunks(self) -> ChunkedRows:
        return ChunkedRows(self.rows)


@dataclass(frozen=True)
class Layer:
    """Place of rows: the fresh rows of a shard, one of its SSTables, or the base."""

    delta: ShardDelta | None = None
    """None for the base."""
    sstable: SsTable | None = None


@dataclass(frozen=True)
class TableView:
    """A table at one instant: one version of its base, and what its shards add."""

    home: TableHome
    base: StoredRows
    deltas: tuple[ShardDelta, ...]

    @classmethod
    def of(cls, home: TableHome, deltas: Sequence[ShardDelta], version: int | None = None) -> TableView | None:
        """A view over the latest base, or a version of it. None if the base has taken in what the shards still show as
        fresh: read the shards again (R11).
        """
        return cls.over(Base.at(home, version), deltas)

    @classmethod
    def over(cls, base: Base, deltas: Sequence[ShardDelta]) -> TableView | None:
        """The same over a base that was opened after the shards were read."""
        compacted = base.compacted(frozenset(delta.shard.id for delta in deltas))
        marks, started = compacted.marks, compacted.started
        left = [delta.above(marks.get(delta.shard.id, 0), started.get(delta.shard.id, 0)) for delta in deltas]
        known = [delta for delta in left if delta is not None]
        return cls(base.home, base.rows, tuple(known)) if len(known) == len(left) else None

    def scan(self, columns: Sequence[str] | None = None, filter: Filter | None = None) -> pa.RecordBatchReader:
        """All rows, or those that pass the filter. Raises InvalidInput."""
        result = result_schema(self.home.schema, columns)
        if filter is not None:
            check_filter(self.home.schema.logical, filter)
        return pa.RecordBatchReader.from_batches(result, self._batches(result, filter))

    def get(self, keys: Rows) -> pa.Table:
        """The rows with these keys (batches of the key columns); missing keys are left out."""
        schema = self.home.schema
        # A delete takes the same input, so its checks are used.
        wanted = pa.Table.from_batches(schema.stored_deletes(keys), schema=schema.storage).select(schema.primary_key)
        result = result_schema(schema, None)
        if not wanted.num_rows:
            return result.empty_table()
        asked = KeySet(schema.primary_key)
        asked.add(wanted)
        if wanted.num_rows > MANY_KEYS:
            found = [asked.seen(pa.Table.from_batches([batch])) for batch in self._batches(result, None)]
        else:
            found = [pa.Table.from_batches([batch]) for batch in self._found(result, wanted, asked)]
        return pa.concat_tables([result.empty_table(), *found])

    def _found(self, result: pa.Schema, wanted: pa.Table, asked: KeySet) -> Iterator[pa.RecordBatch]:
        key = self.home.schema.primary_key
        if not self.home.store.is_near:
            self._each(ShardDelta.load_keys)
        hidden, narrow = KeySet(key), _keys_filter(wanted)
        for delta in self.deltas:
            rows = delta.newest_of(asked)
            hidden.add(rows)
            yield from shown(living(rows), result)
            for sstable in reversed(delta.sstables):
                rows = delta.stored_rows_of(sstable, asked, narrow)
                yield from shown(living(hidden.unseen(rows)), result)
                hidden.add(rows)
        left = hidden.unseen(wanted)
        if left.num_rows:
            asked = KeySet(key)
            asked.add(left)
            for batch in self.base.batches(result.names, _keys_filter(left)):
                rows = pa.Table.from_batches([batch])
                yield from shown(rows if len(key) == 1 else asked.seen(rows), result)

    def layers(
        self, columns: Sequence[str] | None = None, filter: Filter | None = None
    ) -> Iterator[tuple[Layer, Iterator[pa.RecordBatch]]]:
        """The rows of a scan by layer. Read each layer to its end before the next one. Raises InvalidInput."""
        result = result_schema(self.home.schema, columns)
        if filter is not None:
            check_filter(self.home.schema.logical, filter)
        return self._layers(result, filter)

    def _batches(self, result: pa.Schema, filter: Filter | None) -> Iterator[pa.RecordBatch]:
        for _, batches in self._layers(result, filter):
            yield from batches

    def _layers(self, result: pa.Schema, filter: Filter | None) -> Iterator[tuple[Layer, Iterator[pa.RecordBatch]]]:
        hidden = KeySet(self.home.schema.primary_key)
        with self._reading(result, filter) as reading:
            for delta in self.deltas:
                rows = delta.newest()
                hidden.add(rows)
                yield Layer(delta), shown(filtered(living(rows), filter), result)
                # A key is in one shard, so keys hidden by other shards change nothing here.
                for sstable in reversed(delta.sstables):
                    yield Layer(delta, sstable), _hiding(delta.stored(sstable), hidden, result, filter, next(reading))
            yield Layer(), stored_rows(self.base, hidden, result, filter, batches=next(reading))

    @contextmanager
    def _reading(self, result: pa.Schema, filter: Filter | None) -> Iterator[Iterator[Iterator[pa.RecordBatch] | None]]:
        """The batches of each SSTable, newest first, and then of the base; the first batch of each is read ahead. None
        if the store is fast, so nothing is read ahead.
        """
        if self.home.store.is_near:
            yield repeat(None)
            return
        self._each(ShardDelta.stored)
        stored = [delta.stored(sstable) for delta in self.deltas for sstable in reversed(delta.sstables)]
        keys = self.home.schema.primary_key if any(delta.tables or delta.sstables for delta in self.deltas) else ()
        with parallel.beside("scan", near=False, workers=SIDE_BY_SIDE) as begin:

            def first(one: StoredRows) -> Iterator[pa.RecordBatch]:
                return parallel.first_of(begin, one.batches(_wanted(one, result, keys), filter, MIN_BATCH))

            yield parallel.window(first, [*stored, self.base], SIDE_BY_SIDE)

    def _each(self, call: Callable[[ShardDelta, SsTable], object]) -> None:
        """Call it for every SSTable, concurrently."""
        places = [(delta, sstable) for delta in self.deltas for sstable in delta.sstables]
        parallel.each("sstables", lambda place: call(*place), places)


def _wanted(stored: StoredRows, result: pa.Schema, keys: Sequence[str]) -> list[str]:
    tombstones = [TOMBSTONE] if stored.has_tombstones else []
    return list(dict.fromkeys([*result.names, *keys, *tombstones]))


def _hiding(
    sstable: StoredRows,
    hidden: KeySet,
    result: pa.Schema,
    filter: Filter | None,
    batches: Iterator[pa.RecordBatch] | None,
) -> Iterator[pa.RecordBatch]:
    """The SSTable's rows; then its keys are hidden. Newer rows hide older ones whether they pass the filter or not."""
    met: list[pa.Table] | None = [] if hidden.key and filter is None else None
    yield from stored_rows(sstable, hidden, result, filter, met=met, batches=batches)
    if met is None and hidden.key:
        met = [pa.Table.from_batches([batch]) for batch in sstable.batches(hidden.key, None, batch_rows(hidden))]
    # A key occurs once in an SSTable.
    for keys in met or ():
        hidden.add(keys)


def stored_rows(
    stored: StoredRows,
    hidden: KeySet,
    result: pa.Schema,
    filter: Filter | None,
    fragments: Sequence[int] | None = None,
    *,
    met: list[pa.Table] | None = None,
    batches: Iterator[pa.RecordBatch] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The visible rows of the base or of an SSTable that pass the filter; `hidden` are the keys of all newer layers.
    The keys that were read are appended to `met`; `batches`, if given, are being read already.
    """
    keys = hidden.key if len(hidden) or met is not None or not result.names else []
    if batches is None:
        batches = stored.batches(_wanted(stored, result, keys), filter, batch_rows(hidden), fragments)
    for batch in batches:
        rows = pa.Table.from_batches([batch])
        if met is not None:
            met.append(rows.select(keys))
        rows = hidden.unseen(rows)
        yield from shown(living(rows) if stored.has_tombstones else rows, result)


def _keys_filter(keys: pa.Table) -> str:
    """A filter for rows that may have one of the keys; for a key of one column, exactly those that have one.

    In SQL, which Lance plans faster than an expression, and for unsigned numbers too.
    """
    return " AND ".join(
        f"`{name}` IN ({', '.join(map(_literal, keys.column(name).unique().to_pylist()))})"
        for name in keys.column_names
    )


def _literal(value: object) -> str:
    """A value of a key column as SQL."""
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    # Lance parses the lowest 64-bit integer as a float.
    return "CAST('-9223372036854775808' AS BIGINT)" if value == -(2**63) else str(value)


def batch_rows(hidden: KeySet) -> int:
    """How many rows to read at once with this set of hidden keys."""
    if hidden.is_quick:
        return MIN_BATCH
    return min(max(2 * len(hidden), MIN_BATCH), MAX_BATCH)


def shown(rows: pa.Table, result: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows in the requested columns."""
    if not rows.num_rows:
        return
    picked = rows.select(result.names)
    # Casting no columns would lose the number of rows.
    yield from (picked.cast(result) if result.names else picked).to_batches()


def result_schema(schema: RowSchema, columns: Sequence[str] | None) -> pa.Schema:
    """The requested columns, as a reader sees them. Raises InvalidInput."""
    names = schema.logical.names if columns is None else list(columns)
    unknown = [name for name in names if name not in schema.logical.names]
    if unknown:
        raise InvalidInput(f"Column {unknown[0]!r} not found; the table has {schema.logical.names}.")
    return pa.schema([pa.field(f.name, f.type, f.nullable) for f in (schema.logical.field(n) for n in names)])
