"""The destination of a clone, and its table.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from uuid import UUID

from headgate.checkpoints.clone.build import CloneTarget
from headgate.records import encode
from headgate.shards.home.record import TableRecord, record_key
from headgate.shards.home.stores import Place, table_store, wal_store_of
from headgate.shards.shard import TABLE_ID


def clone_target(
    source: TableRecord,
    uri: str,
    storage_options: Mapping[str, str] | None,
    wal_uri: Place | None,
    wal_storage_options: Mapping[str, str] | None,
    *,
    deep: bool,
) -> CloneTarget:
    """The destination of a clone, and its table.json: the source's, with the clone's id and WAL."""
    store = table_store(uri, storage_options)
    wal_store = wal_store_of(store, wal_uri, wal_storage_options)

    def record(table_id: UUID) -> tuple[str, bytes]:
        made = replace(
            source,
            table_id=table_id,
            wal_uri=None if wal_store is store else wal_store.uri,
            wal_undecided=wal_uri is None,
            leftover_shards=frozenset(),
        )
        return record_key(table_id), encode(made)

    return CloneTarget(store, wal_store, deep, TABLE_ID, record)
