"""Keys of an SSTable, kept in memory, so that a lookup of keys that it does not have needs no read.

An SSTable never changes and its path is not reused, so its keys are valid forever.
"""

from __future__ import annotations

import pyarrow as pa

from headgate.caches import Cache
from headgate.connectors.lance import rows as row_ids
from headgate.connectors.lance.rows import ROW_ID
from headgate.shards.manifest.model import SsTable
from headgate.shards.rows.schema import TOMBSTONE
from headgate.shards.rows.sstable import StoredRows, sstable_key
from headgate.shards.shard import Shard

_keys: Cache[pa.Table] = Cache("sstable_keys", lambda keys: keys.nbytes)


def sstable_keys(shard: Shard, sstable: SsTable, stored: StoredRows) -> pa.Table:
    """The key, `_tombstone` and `_rowid` of every living row of an SSTable with the current columns, in one chunk."""
    key = shard.home.schema.primary_key
    place = f"{shard.home.uri}/{sstable_key(shard, sstable.path)}"
    return _keys.get_or_make((place, key), lambda: _read(stored, key))


def plain(rows: pa.Table) -> pa.Table:
    """The rows without metadata, and with every column nullable: sources differ in both."""
    return rows.cast(pa.schema([pa.field(field.name, field.type) for field in rows.schema]))


def _read(stored: StoredRows, key: tuple[str, ...]) -> pa.Table:
    columns = [*key, TOMBSTONE]
    schema = pa.schema([*(stored.dataset.schema.field(name) for name in columns), pa.field(ROW_ID, pa.uint64())])
    batches = [batch.cast(schema) for batch in row_ids.numbered_batches(stored.dataset, columns)]
    return plain(pa.Table.from_batches(batches, schema)).combine_chunks()
