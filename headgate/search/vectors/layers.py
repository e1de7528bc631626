"""The visible rows of a table's layers: which rows of SSTables and tails are visible, and which of the base no longer.

Promises:
1. A visible row is in exactly one layer; overwritten and deleted rows are hidden, as in a scan.
2. Results are cached together with what they were computed from, and computed again only if that has changed.
3. Vectors of SSTables, and their lengths, are cached within the process's memory budget, otherwise read again, block by
   block. An instant with new rows needs only theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.caches import Cache, cache_bytes
from headgate.connectors.lance import rows as row_ids
from headgate.connectors.lance.filters import Filter
from headgate.connectors.lance.rows import ROW_ID, RowIds
from headgate.search.query.parts import FreshSource, Source, StoredSource, tail_place
from headgate.search.query.superseded import superseded_rows
from headgate.search.vectors.distances import UNKNOWN, Floats, Shown
from headgate.shards.manifest.model import SsTable
from headgate.shards.rows.dedup import KeySet, living, newest_rows
from headgate.shards.rows.keys import plain, sstable_keys
from headgate.shards.rows.schema import TOMBSTONE
from headgate.shards.rows.sstable import sstable_key
from headgate.shards.rows.view import ShardDelta, TableView
from headgate.shards.vectors import is_vector

HELD_SHARE = 4
"""The vectors of one SSTable are cached if they take at most 1/HELD_SHARE of the budget; otherwise read each time."""

SHORT = 1 << 16
"""Fresh vectors in runs of fewer bytes on average, such as those of single puts, are copied into one run."""


@dataclass(frozen=True, eq=False)
class Vectors:
    """The vectors of all rows of a layer, in order."""

    runs: Iterable[pa.FixedSizeListArray]
    lengths: Floats
    """UNKNOWN until a cosine search has computed them; later searches reuse them."""


_vectors: Cache[Vectors] = Cache(
    "sstable_vectors", lambda held: sum(int(run.nbytes) for run in held.runs) + int(held.lengths.nbytes)
)


@dataclass(frozen=True, eq=False)
class Layer:
    """An SSTable or the fresh rows of a shard: all its rows in order, and which of them are visible."""

    source: Source
    rows: RowIds
    counts: Shown

    @property
    def nbytes(self) -> int:
        """Bytes in memory besides the vectors."""
        return int(self.rows.nbytes + self.counts.nbytes)

    def vectors(self, column: str) -> Vectors:
        """The vectors of all its rows."""
        raise NotImplementedError

    def passing(self, filter: Filter) -> Shown:
        """For each row, True if it is visible and passes the filter."""
        return self.counts & np.isin(self.rows, self.source.passing(filter))


@dataclass(frozen=True, eq=False)
class FreshLayer(Layer):
    """Rows in memory."""

    table: pa.Table
    own_bytes: int
    """Bytes of rows that are in memory for this layer alone."""
    _lengths: dict[str, Floats] = field(default_factory=dict, init=False)

    @property
    def nbytes(self) -> int:
        """Bytes in memory besides the shard's fresh rows."""
        vectors = sum(is_vector(one.type) for one in self.table.schema)
        return super().nbytes + self.own_bytes + 4 * vectors * len(self.rows)

    def vectors(self, column: str) -> Vectors:
        lengths = self._lengths.setdefault(column, np.full(len(self.rows), UNKNOWN, np.float32))
        return Vectors(self.table.column(column).chunks, lengths)

    def passing(self, filter: Filter) -> Shown:
        # Lance filters a copy of the rows: without the vectors, unless the filter may name them.
        told = str(filter).casefold()
        wanted = [one.name for one in self.table.schema if not is_vector(one.type) or one.name.casefold() in told]
        found = np.zeros(len(self.rows), np.bool_)
        found[FreshSource(self.table.select(wanted), self.source.place).passing(filter).astype(np.int64)] = True
        return self.counts & found


@dataclass(frozen=True, eq=False)
class SsTableLayer(Layer):
    """An SSTable with the table's current columns."""

    dataset: Any

    def vectors(self, column: str) -> Vectors:
        # An SSTable never changes, and its path is never reused.
        identity = (self.source.place, column)
        held = _vectors.get(identity)
        if held is None:
            kind = self.dataset.schema.field(column).type
            nbytes = len(self.rows) * kind.list_size * kind.value_type.bit_width // 8
            lengths = np.full(len(self.rows), UNKNOWN, np.float32)
            if nbytes > cache_bytes() // HELD_SHARE:
                return Vectors(self._read(column), lengths)
            held = Vectors(list(self._read(column)), lengths)
            _vectors.put(identity, held)
        return held

    def _read(self, column: str) -> Iterator[pa.FixedSizeListArray]:
        for batch in row_ids.numbered_batches(self.dataset, [column]):
            yield batch.column(0)


@dataclass(frozen=True, eq=False)
class ShardLayers:
    """The layers of one shard, and each key with a row or a delete in it, once; None for a table without keys."""

    delta: ShardDelta
    layers: tuple[Layer, ...]
    keys: pa.Table | None

    @property
    def nbytes(self) -> int:
        """Bytes in memory besides the shard's fresh rows, and what is cached of each SSTable."""
        rows = sum(layer.nbytes for layer in self.layers)
        return 1_000 + rows + (int(self.keys.nbytes) if self.keys is not None else 0)


@dataclass(frozen=True, eq=False)
class Layers:
    """The layers of all shards of a table, and the rows of its base that are superseded."""

    shards: tuple[ShardLayers, ...]
    version: int
    base_rows: int
    superseded: RowIds
    """Row ids of the base, ascending."""

    @cached_property
    def fresh(self) -> tuple[Layer, ...]:
        """All layers except the base."""
        return tuple(layer for shard in self.shards for layer in shard.layers)


_shards: Cache[ShardLayers] = Cache(
    "shard_layers",
    lambda shard: shard.nbytes,
    lambda shard: ((table, int(table.nbytes)) for table in shard.delta.tables),
)
_layers: Cache[Layers] = Cache("table_layers", lambda layers: 1_000 + int(layers.superseded.nbytes))


def layers_of(view: TableView) -> Layers:
    """The layers of a view, from the cache if it has those of a view with the same shards and base version."""
    home = view.home
    shards = tuple(map(_shard_layers, view.deltas))
    version = int(view.base.dataset.version)
    identity = (home.uri, home.table_id)
    held = _layers.get(identity)
    if held is not None and held.version == version and _same(held.shards, shards):
        return held
    keys = [shard.keys for shard in shards if shard.keys is not None and shard.keys.num_rows]
    superseded = np.zeros(0, np.uint64)
    if keys:
        # A key belongs to one shard, so each key occurs here once.
        key = home.schema.primary_key
        superseded = superseded_rows(identity, view.base.dataset, key, pa.concat_tables(keys))
    made = Layers(shards, version, int(view.base.dataset.count_rows()), superseded)
    _layers.put(identity, made)
    return made


def _same(some: Sequence[ShardLayers], others: Sequence[ShardLayers]) -> bool:
    return len(some) == len(others) and all(one is other for one, other in zip(some, others, strict=True))


def _shard_layers(delta: ShardDelta) -> ShardLayers:
    identity = (delta.shard.home.uri, delta.shard.home.table_id, delta.shard.id)
    held = _shards.get(identity)
    # A shard that has not changed since the last read is the same object.
    if held is not None and held.delta is delta:
        return held
    made = _made(delta)
    _shards.put(identity, made)
    return made


def _made(delta: ShardDelta) -> ShardLayers:
    """Newest first, as a scan reads them."""
    schema = delta.shard.home.schema
    hidden, keys, layers = KeySet(schema.primary_key), [], []
    for layer, rows in _newest_first(delta):
        left = hidden.unseen(rows)
        hidden.add(left)
        keys.append(left.select(hidden.key))
        counting = living(left.select([TOMBSTONE, ROW_ID])).column(ROW_ID).to_numpy()
        layer.counts[:] = np.isin(layer.rows, counting)
        layers.append(layer)
    return ShardLayers(delta, tuple(layers), pa.concat_tables(keys) if hidden.key and keys else None)


def _newest_first(delta: ShardDelta) -> Iterator[tuple[Layer, pa.Table]]:
    """Each layer, newest first, and its keys, each once, with tombstones and row ids."""
    if delta.rows.num_rows:
        yield _fresh(delta, delta.rows, tail_place(delta.shard))
    for sstable in reversed(delta.sstables):
        yield _stored(delta, sstable)


def _fresh(delta: ShardDelta, rows: pa.Table, place: str, own_bytes: int = 0) -> tuple[Layer, pa.Table]:
    every, key = np.arange(rows.num_rows, dtype=np.uint64), delta.shard.home.schema.primary_key
    shown = rows.drop_columns([TOMBSTONE])
    joined, copied = shown, 0
    for one in delta.shard.home.vectors:
        found = shown.column(one.column)
        if found.num_chunks > 1 and found.nbytes < SHORT * found.num_chunks:
            at = shown.schema.get_field_index(one.column)
            joined = joined.set_column(at, shown.schema.field(at), found.combine_chunks())
            copied += int(found.nbytes)
    keys = plain(rows.select([*key, TOMBSTONE]).append_column(ROW_ID, pa.array(every)))
    layer = FreshLayer(FreshSource(shown, place), every, np.zeros(len(every), np.bool_), joined, copied + own_bytes)
    return layer, newest_rows(keys, key)


def _stored(delta: ShardDelta, sstable: SsTable) -> tuple[Layer, pa.Table]:
    stored, storage = delta.stored(sstable), delta.shard.home.schema.storage
    place = sstable_key(delta.shard, sstable.path)
    if not stored.as_today:
        # Written before a column was renamed, added or dropped: its rows are read with the current columns.
        rows = pa.Table.from_batches(stored.batches(storage.names, None), storage)
        return _fresh(delta, rows, place, int(rows.nbytes))
    keys = sstable_keys(delta.shard, sstable, stored)
    ids: RowIds = keys.column(ROW_ID).to_numpy()
    counts = np.zeros(len(ids), np.bool_)
    return SsTableLayer(StoredSource(stored.dataset), ids, counts, stored.dataset), keys
