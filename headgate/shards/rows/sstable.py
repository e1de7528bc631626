"""SSTables: writes a frozen MemTable as a small Lance dataset that native reads as its own, and reads ours or native's.

Columns are matched by field id, as native does: an SSTable from before a rename, an added or a dropped column shows the
table's current columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import Any

import pyarrow as pa

from headgate.connectors.lance import datasets
from headgate.connectors.lance.datasets import TextIndex
from headgate.connectors.lance.filters import Filter, applying, filtered
from headgate.connectors.lance.fts import index as full_text
from headgate.errors import HeadgateError
from headgate.shards import names
from headgate.shards.manifest.model import SsTable
from headgate.shards.memtable.memtable import MemTable
from headgate.shards.rows.evolution import field_id
from headgate.shards.rows.schema import TOMBSTONE, RowSchema
from headgate.shards.shard import Claim, Shard, TableHome


def write_sstable(claim: Claim, maintained: Sequence[str], table: MemTable, base: Any = None) -> SsTable:
    """Write the newest row of each key, deletes kept as tombstones, with key sidecar and full-text indexes. `base` is
    the table's base, if it was just opened.

    Durable when it returns; nothing names it until a manifest does. Each call creates its own folder, so a try that
    died half-way is never reused. The folder's name has the generation and the claim's epoch, from which garbage
    collection tells whether a manifest may still name it (R20). Raises Transient.
    """
    shard, schema = claim.shard, claim.shard.home.schema
    rows = table.newest().combine_chunks()
    path = names.new_sstable(table.generation, claim.epoch)
    base = base or datasets.open_dataset(shard.home.store)
    datasets.write_dataset(
        shard.home.store,
        sstable_key(shard, path),
        rows,
        field_ids=(*schema.field_ids, max(schema.field_ids, default=-1) + 1),
        primary_key=schema.primary_key,
        indexes=kept_indexes(shard.home, base, maintained),
        file_version=base.data_storage_version,
    )
    return SsTable(
        generation=table.generation,
        path=path,
        in_memory_bytes=table.nbytes,
        physical_rows=rows.num_rows,
        primary_key_bytes=_key_bytes(rows, schema.primary_key),
    )


def kept_indexes(home: TableHome, base: Any, maintained: Sequence[str]) -> tuple[TextIndex, ...]:
    """The base's full-text indexes that SSTables get as well: the named ones, or all.

    An index on a column that this schema does not know yet is left to the next opener.
    """
    return tuple(
        _with_stop_words(home, base, index)
        for index in datasets.text_indexes(base)
        if index.column in home.schema.logical.names and (not maintained or index.name in maintained)
    )


def _with_stop_words(home: TableHome, base: Any, index: TextIndex) -> TextIndex:
    """The index with its own stop words, if they are readable. If not, SSTables are written nevertheless: a search
    indexes them itself.
    """
    with suppress(HeadgateError, ValueError):
        own = full_text.own_stop_words(base, home.store, index.name)
        return replace(index, parameters={**index.parameters, **own})
    return index


class StoredRows:
    """A dataset of the table (the base or an SSTable), read in the table's current columns."""

    def __init__(self, schema: RowSchema, dataset: Any) -> None:
        self.dataset = dataset
        self._today = schema

    @cached_property
    def as_today(self) -> bool:
        """True if it was written with the table's current columns."""
        today = list(self._today.storage)[:-1]
        then = list(self._then)[: len(today)]
        return len(self._then) == len(self._today.storage) and all(
            a.name == b.name and field_id(a) == field_id(b) and a.type.equals(b.type, check_metadata=True)
            for a, b in zip(then, today, strict=True)
        )

    @property
    def has_tombstones(self) -> bool:
        """True for SSTables, which have tombstones; the base has none."""
        return TOMBSTONE in self.dataset.schema.names

    def batches(
        self,
        columns: Sequence[str],
        filter: Filter | None,
        batch_rows: int | None = None,
        fragments: Sequence[int] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Rows in the order they were put; `_tombstone` is a column that may be requested."""
        if self.as_today:
            with applying(filter):
                yield from datasets.scan_dataset(self.dataset, columns, filter, batch_rows, fragments)
            return
        for batch in datasets.scan_dataset(self.dataset, None, None, batch_rows, fragments):
            then = pa.RecordBatch.from_arrays(batch.columns, schema=_without_missing_tombstone(self._then, batch))
            rows = pa.Table.from_batches([self._today.adopted(then)])
            yield from filtered(rows, filter).select(list(columns)).to_batches()

    @cached_property
    def _then(self) -> pa.Schema:
        """Its own schema, with field ids. `_tombstone`, if present, is the last column, in native's as in ours."""
        stored = self.dataset.schema
        columns = pa.schema([field for field in stored if field.name != TOMBSTONE])
        ids = datasets.field_ids(self.dataset)
        return RowSchema.of(columns, ids[:-1] if TOMBSTONE in stored.names else ids).storage


def open_sstable(shard: Shard, sstable: SsTable) -> StoredRows:
    """Opens an SSTable of ours or of native's. Raises DataLoss if it is missing."""
    return StoredRows(shard.home.schema, datasets.open_dataset(shard.home.store, sstable_key(shard, sstable.path)))


def open_base(home: TableHome, version: int | None = None) -> StoredRows:
    """Opens the base as it is now, or at a version."""
    return StoredRows(home.schema, datasets.open_dataset(home.store, version=version))


def _without_missing_tombstone(schema: pa.Schema, batch: pa.RecordBatch) -> pa.Schema:
    return schema if TOMBSTONE in batch.schema.names else pa.schema(list(schema)[:-1])


def sstable_key(shard: Shard, path: str) -> str:
    """Key of an SSTable in the table's store."""
    return f"{names.shard_folder(shard.id)}/{path}"


def _key_bytes(rows: pa.Table, key: tuple[str, ...]) -> int | None:
    return sum(rows.column(name).nbytes for name in key) if key else None
