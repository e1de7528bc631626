"""fsck of a whole table: its base, its record, and everything that `checkpoints.fsck` checks. Reads only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import pyarrow as pa

from headgate import records
from headgate.checkpoints.clone import intent as clone_intent
from headgate.checkpoints.fsck.check import Checked, check_table
from headgate.checkpoints.fsck.findings import Finding, finding
from headgate.checkpoints.offline import retention as expiring
from headgate.connectors.lance import health as dataset_health
from headgate.connectors.lance.base.damage import damage
from headgate.connectors.lance.base.marks import compacted_marks
from headgate.connectors.lance.dataset import Base, look
from headgate.connectors.lance.datasets import open_dataset
from headgate.connectors.objects import ObjectStore, open_store
from headgate.connectors.objects.folder import FolderStore
from headgate.connectors.objects.wal_options import wal_options
from headgate.errors import Corrupt, HeadgateError, InvalidInput, NotFound, StoreError
from headgate.progress import Progress, shown
from headgate.results import Result
from headgate.shards.home import choice as clone_wal
from headgate.shards.home.record import TableRecord, record_ids, record_key, shard_folders
from headgate.shards.home.stores import Place, place
from headgate.shards.names import parse_uuid
from headgate.shards.rows.schema import RowSchema
from headgate.shards.shard import TABLE_ID, TableHome
from headgate.table.table import Table, open_table


@dataclass(frozen=True, repr=False)
class TableReport(Result):
    """What fsck found."""

    uri: str
    table_id: UUID | None
    checked: Checked

    @property
    def findings(self) -> tuple[Finding, ...]:
        """At most a thousand; `untold` in `to_dict` counts the others."""
        return self.checked.findings

    @property
    def holds(self) -> bool:
        """True if there are no findings."""
        return not self.checked.findings

    def to_dict(self) -> dict[str, Any]:
        checked = self.checked
        return {
            "uri": self.uri,
            "table_id": None if self.table_id is None else str(self.table_id),
            "holds": self.holds,
            "errors": checked.errors,
            "warnings": len(checked.findings) - checked.errors,
            "untold": checked.untold,
            "codes": dict(sorted(Counter(one.code for one in checked.findings).items())),
            "checked": dict(checked.objects),
            "findings": [one.value() for one in checked.findings],
        }


def fsck(
    table: Table | Place,
    *,
    storage_options: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> TableReport:
    """Check every object of the table. Works even if the base or table.json is damaged.

    1. the base: Lance can open it and read the end of every file; it names the table.
    2. table.json.
    3. shards, commit logs, dead letters and table checkpoints, see `check_table`.

    Raises NotFound if there is no table, InvalidInput if the dataset is not a headgate table, StoreError.
    """
    if isinstance(table, Table):
        storage_options = storage_options or table.storage_options
    store = open_store(table.uri if isinstance(table, Table) else place(table), storage_options)
    base, found = _base(store, storage_options)
    table_id = _table_id(store, base, record_ids(store), found)
    if table_id is None:
        return TableReport(store.uri, None, Checked(tuple(found), 0, {}))
    record = _record(store, table_id, found)
    found += _small_records(store, table_id)
    home = _home(store, table_id, base, record, storage_options)
    shard_ids = shard_folders(store) | shard_folders(home.wal_store)
    if record is not None:
        shard_ids -= record.leftover_shards
    with shown(progress) as report:
        checked = check_table(home, shard_ids, marks=_marks(store, base), adopts=base is not None, progress=report)
    return TableReport(store.uri, table_id, replace(checked, findings=(*found, *checked.findings)))


def _home(
    store: ObjectStore, table_id: UUID, base: Base | None, record: TableRecord | None, options: Mapping[str, str] | None
) -> TableHome:
    """The table's home, opened as usual; if that fails, as far as base and table.json allow."""
    try:
        return open_table(store.uri, storage_options=options).home
    except HeadgateError:
        wal_store = open_store(record.wal_uri, wal_options(options)) if record is not None and record.wal_uri else store
        schema = RowSchema.of(pa.schema([])) if base is None else RowSchema.of(base.schema, base.field_ids)
        return TableHome(schema, store, wal_store, table_id)


def _base(store: ObjectStore, storage_options: Mapping[str, str] | None) -> tuple[Base | None, list[Finding]]:
    """The base, if it can be opened, and its findings."""
    try:
        base = look(store.uri, storage_options)
    except StoreError as error:
        return None, [finding("base-damaged", "_versions/", error.what)]
    if base is None:
        return None, [finding("base-missing", "_versions/", "The Lance dataset is missing.")]
    if damaged := damage(store):
        codes = {"unreadable": "base-version-unreadable", "torn": "base-version-torn", "tag": "base-tag-unreadable"}
        return base, [
            finding(codes[one.kind], one.path.removeprefix(store.uri).strip("/"), f"{one.name}: {one.what}")
            for one in damaged
        ]
    health = dataset_health.look_over(store)
    if health.fault is not None:
        return base, [finding("base-damaged", "data/", health.fault)]
    return base, [
        finding("base-index-missing", "_indices/", f"The base names index {name}, whose files are missing.")
        for name in health.missing_indexes
    ]


def _table_id(store: ObjectStore, base: Base | None, ids: list[UUID], found: list[Finding]) -> UUID | None:
    """The table's id. Raises NotFound, or InvalidInput if there never was a table."""
    if base is None:
        if not ids:
            raise NotFound(f"No table found at {store.uri}.", advice="check the URI")
        return ids[0] if len(ids) == 1 else None
    named = base.config.get(TABLE_ID)
    if named is None and not ids:
        what = f"The Lance dataset at {store.uri} is not a headgate table."
        raise InvalidInput(what, advice="create the table first, or check the URI")
    if not named or base.mem_wal is None:
        what = "The base has no table id." if not named else "The base has lost MemWAL: native Lance overwrote it."
        found.append(finding("base-not-a-table", "_versions/", what))
    elif parse_uuid(named) is None:
        found.append(finding("base-damaged", "_versions/", f"The base names {named[:80]!r}, which is not a table id."))
    if named and (table_id := parse_uuid(named)) is not None:
        return table_id
    return ids[0] if len(ids) == 1 else None


def _record(store: ObjectStore, table_id: UUID, found: list[Finding]) -> TableRecord | None:
    key = record_key(table_id)
    try:
        record = records.decode(TableRecord, store.get(key), "table.json")
    except NotFound:
        found.append(finding("table-record-missing", key, "table.json is missing."))
    except InvalidInput as error:
        found.append(finding("record-newer", key, error.what))
    except Corrupt as error:
        found.append(finding("table-record-damaged", key, error.what))
    else:
        if record.table_id == table_id:
            return record
        found.append(finding("table-record-damaged", key, f"table.json belongs to table {record.table_id}."))
    return None


def _small_records(store: ObjectStore, table_id: UUID) -> Iterator[Finding]:
    """Records of a clone's source, of its WAL store, and of expired entries: each is one object, written once."""
    folder = FolderStore(store, f"_headgate/{table_id}")
    expired = [f"_headgate/{table_id}/{info.key}" for info in folder.list(expiring.ROOT)]
    for key, code in [
        (clone_intent.KEY, "record-damaged"),
        (clone_wal.choice_key(table_id), "wal-choice-damaged"),
        *((key, "record-damaged") for key in expired),
    ]:
        try:
            records.fields_of(store.get(key), "The record")
        except NotFound:
            continue
        except InvalidInput as error:
            yield finding("record-newer", key, error.what)
        except Corrupt as error:
            yield finding(code, key, error.what)


def _marks(store: ObjectStore, base: Base | None) -> Mapping[UUID, int]:
    if base is None:
        return {}
    try:
        return compacted_marks(store, open_dataset(store))
    except HeadgateError:
        return {}  # a base that cannot be read is told already
