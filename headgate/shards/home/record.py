"""A table's record, `table.json`: fixed when the table is created, and written once, under the table's own id."""

from __future__ import annotations

import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from typing import ClassVar

from headgate.connectors.objects import ObjectStore
from headgate.errors import AlreadyExists, Corrupt, InvalidInput, NotFound
from headgate.records import LEFT_OUT, decode, encode
from headgate.shards.names import parse_uuid
from headgate.shards.sharding import Sharding
from headgate.shards.vectors import VectorColumn


@dataclass(frozen=True, slots=True)
class TableRecord:
    """Content of `_headgate/<table id>/table.json`. Never changed after it was written."""

    UNSEALED: ClassVar = True
    table_id: uuid.UUID
    sharding: Sharding
    primary_key: tuple[str, ...] = ()
    full_text: tuple[str, ...] = ()
    wal_uri: str | None = None
    """The separate WAL store, without credentials; None if the WALs are in the table."""
    leftover_shards: frozenset[uuid.UUID] = frozenset()
    """Shards that an earlier table left under `_mem_wal/`; they do not belong to this one."""
    wal_undecided: bool = field(default=False, metadata=LEFT_OUT)
    """True for a clone without a WAL store: its first writer chooses, see `shards.home.choice`. False after that is
    known.
    """
    vectors: tuple[VectorColumn, ...] = field(default=(), metadata=LEFT_OUT)


def record_key(table_id: uuid.UUID) -> str:
    return f"_headgate/{table_id}/table.json"


def put_record(store: ObjectStore, record: TableRecord) -> None:
    """Put the record, once. Raises StoreError."""
    data = encode(record)
    # Nobody else knows the id, so an object there is ours, and the response to its put was lost.
    with suppress(AlreadyExists):
        store.put_if_absent(record_key(record.table_id), data)


def read_record(store: ObjectStore, table_id: uuid.UUID) -> TableRecord:
    """The record of a table. Raises InvalidInput if it is gone, Corrupt."""
    key = record_key(table_id)
    try:
        return decode(TableRecord, store.get(key), "table.json")
    except NotFound as error:
        raise InvalidInput(
            f"The dataset at {store.uri} has table id {table_id}, but its table.json is missing: it is a copy "
            "made by native Lance, or the file was deleted.",
            key=key,
            advice="restore table.json; a copy by native Lance lacks fresh rows, so clone the table with headgate "
            "instead",
        ) from error
    except (Corrupt, InvalidInput) as error:
        error.with_context(table=store.uri, key=key)
        raise


def record_ids(store: ObjectStore) -> list[uuid.UUID]:
    """Ids of all tables that were begun in a place, sorted."""
    return sorted(filter(None, map(parse_uuid, store.list_folders("_headgate/"))))


def shard_folders(store: ObjectStore) -> frozenset[uuid.UUID]:
    """The shards that have a folder in a store, of whatever table."""
    return frozenset(filter(None, map(parse_uuid, store.list_folders("_mem_wal/"))))
