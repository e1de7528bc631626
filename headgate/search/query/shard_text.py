"""One shard's part of a search: its SSTables with their own indexes, its fresh rows indexed in memory.

Promises:
1. A visible row is in exactly one part; overwritten and deleted rows are hidden, as in a scan.
2. An SSTable without the index, with other parameters, or with older columns is indexed in memory.
3. The cost of preparing depends on the shard's own rows only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from headgate.connectors.lance import datasets
from headgate.connectors.lance import rows as row_ids
from headgate.connectors.lance.fts import index as full_text
from headgate.connectors.lance.fts.partition import Partition
from headgate.connectors.lance.rows import ROW_ID, RowIds
from headgate.connectors.objects import ObjectStore
from headgate.errors import InvalidInput
from headgate.search.query.parts import (
    FreshSource,
    StoredSource,
    TextColumn,
    TextPart,
    opened,
    part_of,
    tail_parts,
    tail_place,
)
from headgate.search.query.tail_index import TextBlock
from headgate.shards.manifest.model import SsTable
from headgate.shards.rows.chunks import identity_of
from headgate.shards.rows.dedup import newest_places
from headgate.shards.rows.keys import plain, sstable_keys
from headgate.shards.rows.schema import TOMBSTONE
from headgate.shards.rows.sstable import StoredRows, sstable_key
from headgate.shards.rows.view import ShardDelta


@dataclass(frozen=True)
class ShardParts:
    """The parts of a shard, and each key with a row or a delete in it, once; None for a table without keys."""

    parts: list[TextPart]
    keys: pa.Table | None


def shard_parts(delta: ShardDelta, column: TextColumn) -> ShardParts:
    """The parts of a shard. Of all rows of a key, in SSTables and fresh, the last is visible unless it is a delete."""
    key = delta.shard.home.schema.primary_key
    pieces = [_sstable_piece(delta, sstable, column) for sstable in delta.sstables]
    tail = pa.concat_tables([delta.shard.home.schema.storage.empty_table(), *delta.tables])
    if tail.num_rows:
        pieces.append(_fresh_piece(tail, key, column, tail_place(delta.shard)))
    if not key or not pieces:
        nothing = np.zeros(0, np.uint64)
        return ShardParts([part for piece in pieces for part in piece.parts(nothing)], None)
    every = pa.concat_tables([piece.keys for piece in pieces])
    newest = newest_places(every, key)
    hidden = every.column(TOMBSTONE).to_numpy().astype(np.bool_)
    overwritten = np.ones(len(hidden), np.bool_)
    overwritten[newest] = False
    hidden |= overwritten
    parts: list[TextPart] = []
    first = 0
    for piece in pieces:
        rows: RowIds = piece.keys.column(ROW_ID).to_numpy()
        parts += piece.parts(rows[hidden[first : first + len(rows)]])
        first += len(rows)
    return ShardParts(parts, every.select(list(key)).take(pa.array(newest)))


@dataclass(frozen=True)
class _Piece:
    """One SSTable, or the fresh rows: its keys with tombstones and row ids, and its parts without hidden rows."""

    keys: pa.Table
    parts: Callable[[RowIds], Iterable[TextPart]]


def _fresh_piece(rows: pa.Table, key: tuple[str, ...], column: TextColumn, place: str) -> _Piece:
    every = np.arange(rows.num_rows, dtype=np.uint64)
    blocks = [TextBlock(identity_of([chunk]), len(chunk), partial(list, [chunk])) for chunk in _texts(rows, column)]
    source = FreshSource(rows.drop_columns([TOMBSTONE]), place)
    keys = plain(rows.select([*key, TOMBSTONE]).append_column(ROW_ID, pa.array(every)))
    return _Piece(keys, lambda hidden: tail_parts(source, blocks, every, column, hidden))


def _sstable_piece(delta: ShardDelta, sstable: SsTable, column: TextColumn) -> _Piece:
    stored, schema = delta.stored(sstable), delta.shard.home.schema
    store, place = delta.shard.home.store, sstable_key(delta.shard, sstable.path)
    if not stored.as_today:
        # Written before a column was renamed, added or dropped: its rows are read with the current columns.
        batches = list(stored.batches(schema.storage.names, None))
        return _fresh_piece(pa.Table.from_batches(batches, schema.storage), schema.primary_key, column, place)
    identity = f"{delta.shard.home.uri}/{place}"
    keys = sstable_keys(delta.shard, sstable, stored)
    source = StoredSource(stored.dataset)

    def parts(hidden: RowIds) -> Iterable[TextPart]:
        partitions = _indexed_partitions(store, place, stored, column)
        if partitions is not None:
            # Native keeps overwritten rows of one MemTable in its SSTable, marked as deleted, and in its index.
            gone = np.union1d(hidden, row_ids.all_deleted_rows(stored.dataset))
            return [part_of(partition, source, gone) for partition in partitions]
        rows = keys.column(ROW_ID).to_numpy()
        # An SSTable never changes, and its path is never reused.
        block = TextBlock(f"{identity}:{column.name}".encode(), len(rows), partial(_read_texts, stored, column))
        return tail_parts(source, [block], rows, column, hidden)

    return _Piece(keys, parts)


def _read_texts(stored: StoredRows, column: TextColumn) -> list[pa.Array]:
    return [batch.column(0) for batch in row_ids.numbered_batches(stored.dataset, [column.name])]


def _texts(rows: pa.Table, column: TextColumn) -> list[pa.Array]:
    chunks: list[pa.Array] = rows.column(column.name).chunks
    return chunks


def _indexed_partitions(
    store: ObjectStore, place: str, stored: StoredRows, column: TextColumn
) -> list[Partition] | None:
    """The partitions of the SSTable's own index; None if it has no index that covers it and has the same words."""
    names = [index.name for index in datasets.text_indexes(stored.dataset) if index.column == column.name]
    segments = full_text.segments(stored.dataset, store, place, names[0]) if names else ()
    every = {fragment.fragment_id for fragment in stored.dataset.get_fragments()}
    if not every <= frozenset().union(*(segment.fragments for segment in segments)):
        return None
    try:
        indexes = [opened(segment) for segment in segments]
    except InvalidInput:
        return None
    if not all(column.fits(index.parameters) for index in indexes):
        return None
    return [partition for index in indexes for partition in index.partitions]
