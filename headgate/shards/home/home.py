"""A table's home by its URI, for a table of headgate or of native Lance. Writes nothing."""

from __future__ import annotations

from collections.abc import Mapping

from headgate.connectors.lance import dataset as lance_connector
from headgate.connectors.lance.dataset import Base
from headgate.connectors.objects import ObjectStore, open_store
from headgate.errors import NotFound
from headgate.shards.home.base import check_own_mem_wal, table_id_of
from headgate.shards.home.record import TableRecord, read_record
from headgate.shards.home.stores import Place, open_wal
from headgate.shards.rows.schema import RowSchema
from headgate.shards.shard import TABLE_ID, TableHome


def home_at(uri: str, storage_options: Mapping[str, str] | None = None) -> TableHome:
    """The home of a table. For a native table its shards have only ids, and its WALs are in the table. Raises NotFound,
    and the errors of `recorded_home`.
    """
    store = open_store(uri, storage_options)
    base = lance_connector.look(store.uri, storage_options)
    if base is None:
        raise NotFound(f"No Lance table found at {store.uri}.", advice="check the URI, or create the table first")
    if TABLE_ID in base.config:
        return recorded_home(store, base, storage_options)[0]
    return TableHome(RowSchema.of(base.schema, base.field_ids), store, store, spec_id=_spec_id(base))


def recorded_home(
    store: ObjectStore, base: Base, storage_options: Mapping[str, str] | None, wal_uri: Place | None = None
) -> tuple[TableHome, TableRecord]:
    """The home of a headgate table, and its record.

    Raises InvalidInput if it is not a table (yet, or any more), Corrupt, WalStoreMismatch if `wal_uri` differs from the
    recorded one.
    """
    record = read_record(store, table_id_of(store, base))
    check_own_mem_wal(store, base, record)
    record, wal_store = open_wal(store, record, storage_options, wal_uri)
    rows = RowSchema.of(base.schema, base.field_ids)
    spec_id = _spec_id(base)
    return TableHome(rows, store, wal_store, record.table_id, spec_id, record.sharding, record.vectors), record


def _spec_id(base: Base) -> int:
    return base.mem_wal.spec_id if base.mem_wal else 0
