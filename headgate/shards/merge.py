"""One view over the base, SSTables and fresh rows: newest row per key, deletes applied.

Promises:
1. Sources are read newest first; a row whose key a newer source has, even as a tombstone, is hidden.
2. A filter sees only rows that count: an older version never comes back because the newest was filtered out.
3. Memory holds the fresh rows and the keys of the SSTables, never the base.
4. SSTables that the base has taken in (its compacted mark) are left out, whatever a manifest still names.
Tables without a key are simply all their rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from headgate.connectors import sstables as datasets
from headgate.connectors.base_notes import begun_marks
from headgate.connectors.compacted import compacted_marks
from headgate.errors import InvalidInput
from headgate.shards.decisions import uncompacted
from headgate.shards.manifest import SsTable
from headgate.shards.newest import KeySet, living, newest_rows
from headgate.shards.schema import TOMBSTONE, Rows, RowSchema
from headgate.shards.shard import Shard, TableHome
from headgate.shards.sstable import StoredRows, filtered, open_base, open_sstable

MIN_BATCH, MAX_BATCH = 8_192, 131_072
"""Rows read at once. Unless keys are flags, each batch is compared with all hidden ones: more call for larger ones."""

MANY_KEYS = 10_000
"""Above it a lookup reads all rows and compares: such a list in a filter costs more than it saves."""


@dataclass(frozen=True)
class Fresh:
    """What one shard adds to the base: SSTables, oldest first, then rows in storage form, oldest first.

    `generation` is the one that the oldest of the rows belong to.
    """

    shard: Shard
    generation: int
    sstables: tuple[SsTable, ...]
    tables: tuple[pa.Table, ...]

    def above(self, mark: int, begun: int = 0) -> Fresh | None:
        """Without the SSTables up to the base's mark; None where the mark, or the generation whose deletes have begun
        to be taken in, is of a later flush than this knows.
        """
        left = uncompacted(self.sstables, self.generation, mark) if begun < self.generation else None
        return None if left is None else replace(self, sstables=left)


@dataclass(frozen=True)
class View:
    """A table at one instant: one version of its base, and what its shards add."""

    home: TableHome
    base: StoredRows
    shards: tuple[Fresh, ...]

    @classmethod
    def of(cls, home: TableHome, shards: Sequence[Fresh], version: int | None = None) -> View | None:
        """Over the latest base, or a version of it. None: the base has taken in what the shards still show as fresh;
        look again (R11).
        """
        base = open_base(home, version)
        marks: Mapping[UUID, int] = compacted_marks(home.store, base.dataset, {fresh.shard.id for fresh in shards})
        begun = begun_marks(base.dataset)
        left = [fresh.above(marks.get(fresh.shard.id, 0), begun.get(fresh.shard.id, 0)) for fresh in shards]
        known = [fresh for fresh in left if fresh is not None]
        return cls(home, base, tuple(known)) if len(known) == len(left) else None

    def scan(self, columns: Sequence[str] | None = None, filter: str | None = None) -> pa.RecordBatchReader:
        """All rows, or those that an SQL filter lets through. Raises InvalidInput."""
        result = result_schema(self.home.schema, columns)
        if filter is not None:
            check_filter(self.home.schema, filter)
        return pa.RecordBatchReader.from_batches(result, self._batches(result, filter))

    def get(self, keys: Rows) -> pa.Table:
        """The rows with these keys (batches of the key columns); keys that are not there are left out."""
        schema = self.home.schema
        # A delete takes the same, so the same checks serve.
        wanted = pa.Table.from_batches(schema.stored_deletes(keys), schema=schema.storage).select(schema.primary_key)
        asked = KeySet(schema.primary_key)
        asked.add(wanted)
        result, narrow = result_schema(schema, None), _keys_filter(wanted)
        found = [asked.seen(pa.Table.from_batches([batch])) for batch in self._batches(result, narrow, narrow)]
        return pa.concat_tables([result.empty_table(), *found])

    def _batches(
        self, result: pa.Schema, filter: str | pc.Expression | None, keys: pc.Expression | None = None
    ) -> Iterator[pa.RecordBatch]:
        """`keys`: no others matter."""
        key = self.home.schema.primary_key
        hidden = KeySet(key)
        for place, fresh in enumerate(self.shards):
            rows = self._tail(fresh) if keys is None else self._tails[place].filter(keys)
            if rows.num_rows:
                hidden.add(rows)
                yield from shown(filtered(living(rows), filter), result)
            # A key lives in one shard, so what other shards hide changes nothing here.
            for sstable in reversed(fresh.sstables):
                yield from _sstable_batches(self._sstable(fresh, sstable), hidden, key, result, filter, keys)
        wanted = list(dict.fromkeys([*result.names, *key]))
        for batch in self.base.batches(wanted, filter, batch_rows(hidden)):
            yield from shown(hidden.unseen(pa.Table.from_batches([batch])), result)

    def _tail(self, fresh: Fresh) -> pa.Table:
        """The newest fresh row of each key."""
        schema = self.home.schema
        return newest_rows(pa.concat_tables([schema.storage.empty_table(), *fresh.tables]), schema.primary_key)

    @cached_property
    def _tails(self) -> tuple[pa.Table, ...]:
        """The same of all shards, for lookups: made once, so that a view that is held answers quickly."""
        return tuple(map(self._tail, self.shards))

    @cached_property
    def _opened(self) -> dict[tuple[UUID, str], StoredRows]:
        return {}

    def _sstable(self, fresh: Fresh, sstable: SsTable) -> StoredRows:
        place = fresh.shard.id, sstable.path
        if place not in self._opened:
            self._opened[place] = open_sstable(fresh.shard, sstable)
        return self._opened[place]


def _sstable_batches(
    sstable: StoredRows,
    hidden: KeySet,
    key: tuple[str, ...],
    result: pa.Schema,
    filter: str | pc.Expression | None,
    keys: pc.Expression | None,
) -> Iterator[pa.RecordBatch]:
    """Newer rows hide older ones whether the filter lets them through or not, so keys are read apart from it."""
    wanted = list(dict.fromkeys([*result.names, *key, TOMBSTONE]))
    size = batch_rows(hidden)
    if key and (filter is None or filter is keys):
        # The filter hides nothing of the keys: one pass does. A key is once in an SSTable.
        met = []
        for batch in sstable.batches(wanted, filter, size):
            rows = pa.Table.from_batches([batch])
            met.append(rows.select(key))
            yield from shown(living(hidden.unseen(rows)), result)
        for keys_met in met:
            hidden.add(keys_met)
        return
    for batch in sstable.batches(wanted, alive(filter), size):
        yield from shown(hidden.unseen(pa.Table.from_batches([batch])).drop_columns([TOMBSTONE]), result)
    if key:
        for batch in sstable.batches(key, keys, size):
            hidden.add(pa.Table.from_batches([batch]))


def alive(filter: str | pc.Expression | None) -> str | pc.Expression:
    """The filter, and that a row of an SSTable is no tombstone."""
    if filter is None or isinstance(filter, str):
        return f"NOT {TOMBSTONE}" + (f" AND ({filter})" if filter else "")
    return ~pc.field(TOMBSTONE) & filter


def _keys_filter(keys: pa.Table) -> pc.Expression | None:
    """Rows that may have one of the keys."""
    if keys.num_rows > MANY_KEYS:
        return None
    parts = [pc.field(name).isin(keys.column(name).unique()) for name in keys.column_names]
    whole = parts[0]
    for part in parts[1:]:
        whole = whole & part
    return whole


def batch_rows(hidden: KeySet) -> int:
    """How many rows to read at once where so many keys are hidden."""
    if hidden.is_quick:
        return MIN_BATCH
    return min(max(2 * len(hidden), MIN_BATCH), MAX_BATCH)


def shown(rows: pa.Table, result: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Rows in the columns that were asked for."""
    if rows.num_rows:
        yield from rows.select(result.names).cast(result).to_batches()


def check_filter(schema: RowSchema, filter: str) -> None:
    """A filter that Lance cannot plan is refused before the first row. Raises InvalidInput."""
    try:
        datasets.dataset_in_memory(living(schema.storage.empty_table())).to_table(filter=filter)
    except (ValueError, OSError) as error:
        raise InvalidInput(f"Lance refuses the filter {filter!r}.") from error


def result_schema(schema: RowSchema, columns: Sequence[str] | None) -> pa.Schema:
    """The columns that are asked for, as a reader sees them. Raises InvalidInput."""
    names = schema.logical.names if columns is None else list(columns)
    unknown = [name for name in names if name not in schema.logical.names]
    if unknown:
        raise InvalidInput(f"There is no column {unknown[0]!r}; the table has {schema.logical.names}.")
    return pa.schema([pa.field(f.name, f.type, f.nullable) for f in (schema.logical.field(n) for n in names)])
