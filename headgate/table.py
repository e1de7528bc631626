"""Table: a Lance dataset, its shards and our records, for people without Spark.

A table exists from the moment its base names the table's id, and is known by that id:
it is random, shard ids are made of it, and the record is filed under it. So whatever
an earlier table left in the same place is never met again.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from headgate.checkpoints.snapshot import read_snapshot
from headgate.connectors import lance as lance_connector
from headgate.connectors.lance import Base, MemWal
from headgate.connectors.objects import ObjectStore, open_store, redact
from headgate.errors import AlreadyExists, Corrupt, InvalidInput, NotFound
from headgate.shards.appender import Pause, no_pause
from headgate.shards.config import WriterConfig
from headgate.shards.merge import View
from headgate.shards.retry import Retry
from headgate.shards.schema import PRIMARY_KEY, RESERVED_METADATA, Rows, RowSchema
from headgate.shards.shard import Shard, TableHome
from headgate.shards.sharding import Sharding, check_columns, sharding_from_json, sharding_to_json, single
from headgate.shards.writer import ShardWriter

FORMAT = 1
"""Of the record. An older one is read, a newer one refused."""

TABLE_ID = "headgate.table_id"
"""The base's configuration key that names the table. Empty: an overwritten base is being made a table again."""

CREATE_STEPS = ("looked", "intended", "retired", "base", "full_text", "mem_wal", "created")
"""Where `create_table` pauses, in order."""

_MANIFEST_READERS = 16
"""Shards looked at together: a thousand manifests on S3 take seconds, not minutes."""


@dataclass(frozen=True, slots=True)
class TableRecord:
    """What `_headgate/<table id>/table.json` says. Never changed once it is written."""

    table_id: uuid.UUID
    sharding: Sharding
    primary_key: tuple[str, ...] = ()
    full_text: tuple[str, ...] = ()
    wal_uri: str | None = None
    """The separate WAL store, without credentials; None where the WALs lie in the table."""
    leftover_shards: frozenset[uuid.UUID] = frozenset()
    """What an earlier table left under `_mem_wal/`; not shards of this one."""

    def to_json(self) -> dict[str, Any]:
        """The record as the file holds it."""
        return {
            "format": FORMAT,
            "table_id": str(self.table_id),
            "sharding": sharding_to_json(self.sharding),
            "primary_key": list(self.primary_key),
            "full_text": list(self.full_text),
            "wal_uri": self.wal_uri,
            "leftover_shards": sorted(map(str, self.leftover_shards)),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TableRecord:
        """The record in a file. Raises InvalidInput for a newer format, Corrupt for what is no record."""
        if not isinstance(data, Mapping) or not isinstance(data.get("format"), int):
            raise Corrupt("The table's record is not one.")
        if data["format"] > FORMAT:
            what = f"The table's record has format {data['format']}, and this version reads up to {FORMAT}."
            raise InvalidInput(what, advice="upgrade headgate")
        try:
            return cls(
                table_id=uuid.UUID(data["table_id"]),
                sharding=sharding_from_json(data["sharding"]),
                primary_key=tuple(data["primary_key"]),
                full_text=tuple(data["full_text"]),
                wal_uri=data["wal_uri"],
                leftover_shards=frozenset(map(uuid.UUID, data["leftover_shards"])),
            )
        except (KeyError, TypeError, ValueError, AttributeError, InvalidInput) as error:
            raise Corrupt("The table's record is not one.") from error


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """One shard as its latest manifest shows it."""

    name: str | None
    """None where it cannot be told from the id: native's shards, and those of partitions."""
    id: uuid.UUID
    epoch: int
    replay_after: int
    last_seen: int
    generation: int
    sstables: int
    owner: str | None
    sealed: bool
    native_safe: bool
    """Whether native Lance may open it: no stream owns it, and its WAL lies where native looks."""


@dataclass(frozen=True, eq=False)
class Table:
    """A table that exists. Holds names and options, nothing open: picklable. Make one with `open_table`."""

    home: TableHome
    schema: pa.Schema
    record: TableRecord
    storage_options: Mapping[str, str] | None = field(default=None, repr=False)

    @property
    def uri(self) -> str:
        """Where it is, without credentials."""
        return self.home.uri

    @property
    def table_id(self) -> uuid.UUID:
        """Its own random id, made at creation."""
        return self.record.table_id

    @property
    def primary_key(self) -> tuple[str, ...]:
        """Key columns in column order; empty for a table that is only appended to."""
        return self.home.schema.primary_key

    @property
    def sharding(self) -> Sharding:
        """How rows are spread over shards."""
        return self.record.sharding

    @property
    def full_text(self) -> tuple[str, ...]:
        """Columns with a full-text index, see `full_text_index`."""
        return self.record.full_text

    def shards(self, names: Sequence[str] = ()) -> list[ShardInfo]:
        """Every shard that was ever claimed, by name. Reads one LIST and per shard a LIST and a manifest.

        `names` are further names to recognise, such as those of a stream's partitions.
        Raises Corrupt where a manifest cannot be read.
        """
        known = {self.home.shard(name).id: name for name in (*self.sharding.known_names(), *names)}
        ids = _shard_folders(self.home.store) - self.record.leftover_shards
        with ThreadPoolExecutor(_MANIFEST_READERS) as pool:
            found = list(pool.map(lambda shard_id: self._shard_info(shard_id, known.get(shard_id)), ids))
        return sorted((info for info in found if info), key=lambda info: (info.name is None, info.name or "", info.id))

    def shard(self, shard: uuid.UUID | str) -> Shard:
        """A shard by name or id, whether it was ever written or not. Raises InvalidInput for a name it cannot have."""
        if isinstance(shard, str) and not _is_uuid(shard):
            try:
                self.sharding.check_name(shard)
            except InvalidInput as error:
                error.located(table=self.uri)
                raise
        return self.home.shard(shard)

    def writer(self, shard: uuid.UUID | str, config: WriterConfig = WriterConfig()) -> ShardWriter:  # noqa: B008
        """Open a shard for writing. THIS WRITES, AND IT FENCES AN EARLIER WRITER. See ShardWriter.open."""
        return ShardWriter.open(self.home, self.shard(shard).id, config)

    def scan(self, columns: Sequence[str] | None = None, filter: str | None = None) -> pa.RecordBatchReader:
        """Every visible row at one instant, as an Arrow reader: newest row per key, deletes applied.

        `filter` is SQL as Lance takes it. Reads as it is asked to; writes nothing. Raises InvalidInput
        for a column or filter that cannot be, DataLoss, Corrupt, Transient.
        """
        return self._snapshot().scan(columns, filter)

    def get(self, keys: Rows) -> pa.Table:
        """The rows with these keys, given as batches of the key columns; keys that are not there are left out."""
        return self._snapshot().get(keys)

    def _snapshot(self) -> View:
        return read_snapshot(self.home, _shard_folders(self.home.store) - self.record.leftover_shards)

    def __repr__(self) -> str:
        return f"Table({self.uri!r}, id={str(self.table_id)!r}, sharding={self.sharding}, key={list(self.primary_key)})"

    def _shard_info(self, shard_id: uuid.UUID, name: str | None) -> ShardInfo | None:
        manifest = Shard(self.home, shard_id).manifests.latest()
        if manifest is None:
            return None
        return ShardInfo(
            name=name,
            id=shard_id,
            epoch=manifest.epoch,
            replay_after=manifest.replay_after,
            last_seen=manifest.last_seen,
            generation=manifest.generation,
            sstables=len(manifest.sstables),
            owner=manifest.owner,
            sealed=manifest.sealed,
            native_safe=not manifest.sealed and self.record.wal_uri is None,
        )


def create_table(
    uri: str,
    schema: pa.Schema,
    primary_key: str | Sequence[str] | None = None,
    sharding: Sharding | None = None,
    full_text: str | Sequence[str] = (),
    wal_uri: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    *,
    pause: Pause = no_pause,
) -> Table:
    """Make a table. Key columns become non-null; `sharding` is single() unless given.

    1. check the definition, and rehearse it in memory; nothing is written.
    2. look: a table, a dataset that is none of ours, or other columns are refused.
    3. intent: put the record, under a new random id.
    4. work: retire the id of a base that was overwritten (its rows stay, the old shards do
       not come back); base, full-text indexes, MemWAL. What is there already is kept.
    5. flip: the base names the id, by compare-and-set. From here the table exists.

    After a crash at any point the same call completes it, under an id of its own. Of two
    calls at once one wins. Raises InvalidInput (nothing that exists was changed), StoreError.
    """
    store = _table_store(uri, storage_options)
    wal_store = _wal_store(store, wal_uri, storage_options)
    schema = _with_key(schema, _names(primary_key))
    rows, sharding, full_text = RowSchema.of(schema), sharding or single(), _names(full_text)
    sharding.validate(rows)
    check_columns(full_text, rows, "full_text")
    indexes = {column: full_text_index(column) for column in full_text}
    mem_wal = MemWal(sharding.native(), tuple(indexes.values()))
    schema = lance_connector.rehearse(schema, indexes, mem_wal.sharding)

    base = lance_connector.look(store.uri, storage_options)
    stale_id = _check_free(store, base, schema, mem_wal)
    record = TableRecord(
        table_id=uuid.uuid4(),
        sharding=sharding,
        primary_key=rows.primary_key,
        full_text=full_text,
        wal_uri=None if wal_store is store else wal_store.uri,
        leftover_shards=_shard_folders(store),
    )
    pause("looked")
    _put_record(store, record)
    pause("intended")
    if stale_id and not lance_connector.swap_config(store.uri, TABLE_ID, stale_id, "", storage_options):
        raise _taken(store)
    pause("retired")
    if base is None:
        lance_connector.ensure_base(store.uri, schema, storage_options)
    pause("base")
    for column, name in indexes.items():
        lance_connector.ensure_full_text(store.uri, column, name, storage_options)
    pause("full_text")
    lance_connector.ensure_mem_wal(store.uri, mem_wal, storage_options)
    pause("mem_wal")
    unnamed = None if stale_id is None else ""
    if not lance_connector.swap_config(store.uri, TABLE_ID, unnamed, str(record.table_id), storage_options):
        raise _taken(store)
    pause("created")
    return open_table(uri, storage_options)


def open_table(uri: str, storage_options: Mapping[str, str] | None = None, wal_uri: str | None = None) -> Table:
    """The table at a place; writes nothing. `wal_uri` may be left out: it is in the record.

    Raises NotFound where there is no dataset, and InvalidInput where it is not a table (yet, or any
    more), or where `wal_uri` is another one than recorded.
    """
    store = _table_store(uri, storage_options)
    base = lance_connector.look(store.uri, storage_options)
    if base is None:
        raise NotFound(f"There is no table at {store.uri}.", advice="check the URI, or create the table first")
    record = _read_record(store, _table_id(store, base))
    _check_own_mem_wal(store, base, record)
    recorded = record.wal_uri or store.uri
    given = recorded if wal_uri is None else open_store(redact(wal_uri), storage_options).uri
    if given != recorded:
        raise InvalidInput(
            f"The table's WALs lie in {recorded}, and it was opened with {given}.",
            table=store.uri,
            advice="leave wal_uri out, or give the recorded one; nothing was written",
        )
    wal_store = open_store(record.wal_uri, storage_options) if record.wal_uri else store
    spec_id = base.mem_wal.spec_id if base.mem_wal else 0
    home = TableHome(RowSchema.of(base.schema, base.field_ids), store, wal_store, record.table_id, spec_id)
    return Table(home, base.schema, record, dict(storage_options) if storage_options else None)


def full_text_index(column: str) -> str:
    """The name of a column's full-text index on the base, and on every SSTable."""
    return f"{column}_idx"


def record_key(table_id: uuid.UUID) -> str:
    """Where the record of a table is."""
    return f"_headgate/{table_id}/table.json"


# -- where a table stands ------------------------------------------------------


def _check_free(store: ObjectStore, base: Base | None, wanted: pa.Schema, mem_wal: MemWal) -> str | None:
    """Raises InvalidInput unless a table can be made here. The id to retire ("": already retired), None: no id."""
    if base is None:
        return None
    named = base.config.get(TABLE_ID)
    if named and base.mem_wal is not None:
        raise InvalidInput(
            f"There is already a table at {store.uri}.",
            table_id=named,
            advice="open it with open_table, or choose another URI; nothing was written",
        )
    if named is None and (base.rows or not _record_ids(store)):
        raise InvalidInput(
            f"There is already a Lance dataset at {store.uri}, and headgate did not make it.",
            version=base.version,
            rows=base.rows,
            advice="choose another URI and copy its rows there; nothing was written",
        )
    if not base.schema.equals(wanted, check_metadata=True):
        raise InvalidInput(
            f"An unfinished or overwritten table at {store.uri} has other columns: {_columns(base.schema)}, "
            f"and {_columns(wanted)} were asked for.",
            advice="create it with those columns, or delete it and create it again; nothing was written",
        )
    if base.mem_wal not in (None, mem_wal):
        raise InvalidInput(
            f"An unfinished table at {store.uri} was begun with {base.mem_wal}, and {mem_wal} was asked for.",
            advice="create it as it was begun, or delete it and create it again; nothing was written",
        )
    return named


def _table_id(store: ObjectStore, base: Base) -> uuid.UUID:
    """The id of a table that exists. Raises InvalidInput for one that does not."""
    named = base.config.get(TABLE_ID)
    if named is None:
        what = f"The Lance dataset at {store.uri} is no headgate table, or its creation was not finished."
        raise InvalidInput(what, advice="create the table first; the same create_table call completes a creation")
    if not named or base.mem_wal is None:
        raise InvalidInput(
            f"The table at {store.uri} was overwritten by native Lance, which dropped its MemWAL.",
            advice="call create_table again: the base's rows stay, and a new id keeps the old shards away",
        )
    try:
        return uuid.UUID(named)
    except ValueError:
        raise Corrupt(f"The base of {store.uri} names {named[:80]!r}, which is no table id.") from None


def _check_own_mem_wal(store: ObjectStore, base: Base, record: TableRecord) -> None:
    """Raises InvalidInput where someone overwrote the base and initialised MemWAL anew: old shards would come back.

    Ours always names the indexes it maintains; native's default is all of them. (Columns
    are not compared: they may have been renamed.)
    """
    if base.mem_wal is None or base.mem_wal.maintained != tuple(map(full_text_index, record.full_text)):
        raise InvalidInput(
            f"MemWAL of the table at {store.uri} was initialised anew by native Lance: {base.mem_wal}.",
            advice="drop the index __lance_mem_wal with native Lance, then call create_table again",
        )


def _taken(store: ObjectStore) -> InvalidInput:
    what = f"Another creation at {store.uri} was faster."
    return InvalidInput(what, advice="open the table with open_table, or choose another URI")


def _shard_folders(store: ObjectStore) -> frozenset[uuid.UUID]:
    return frozenset(uuid.UUID(name) for name in store.list_folders("_mem_wal/") if _is_uuid(name))


# -- the record ------------------------------------------------------------------


def _put_record(store: ObjectStore, record: TableRecord) -> None:
    data = json.dumps(record.to_json(), indent=2, ensure_ascii=False).encode() + b"\n"
    # Nobody else knows the id, so an object there is ours, and the response to its put was lost.
    with suppress(AlreadyExists):
        Retry().run(lambda: store.put_if_absent(record_key(record.table_id), data))


def _read_record(store: ObjectStore, table_id: uuid.UUID) -> TableRecord:
    key = record_key(table_id)
    try:
        data = Retry().run(lambda: store.get(key))
    except NotFound as error:
        raise InvalidInput(
            f"The dataset at {store.uri} names table {table_id}, whose record is not here: "
            "it is a copy made by native Lance, or the record was deleted.",
            key=key,
            advice="restore the record; a native copy lacks fresh rows, so clone the table with headgate instead",
        ) from error
    try:
        return TableRecord.from_json(json.loads(bytes(data)))
    except ValueError as error:
        raise Corrupt("The table's record is not JSON.", table=store.uri, key=key) from error
    except (Corrupt, InvalidInput) as error:
        error.located(table=store.uri, key=key)
        raise


def _record_ids(store: ObjectStore) -> list[str]:
    return [name for name in store.list_folders("_headgate/") if _is_uuid(name)]


# -- arguments -------------------------------------------------------------------


def _table_store(uri: str, storage_options: Mapping[str, str] | None) -> ObjectStore:
    if uri.lower().startswith("memory:"):
        raise InvalidInput("A table cannot live in memory: Lance and headgate would not see the same objects.", uri=uri)
    return open_store(uri, storage_options)


def _wal_store(store: ObjectStore, wal_uri: str | None, options: Mapping[str, str] | None) -> ObjectStore:
    """The store of the WALs: the table's own one where none, or the same place, is given."""
    if wal_uri is None:
        return store
    if redact(wal_uri) != wal_uri:
        raise InvalidInput(
            f"The WAL store {redact(wal_uri)} was given with credentials or options in its URI.",
            advice="put them into storage_options; the table's record keeps the URI only",
        )
    given = open_store(wal_uri, options)
    return store if given.uri == store.uri else given


def _names(names: str | Sequence[str] | None) -> tuple[str, ...]:
    given = (names,) if isinstance(names, str) else tuple(names or ())
    if len(set(given)) != len(given):
        raise InvalidInput(f"Every column is named once, got {list(given)}.")
    return given


def _with_key(schema: pa.Schema, primary_key: tuple[str, ...]) -> pa.Schema:
    """The schema with the key columns marked and non-null. Raises InvalidInput for a key that cannot be."""
    if not isinstance(schema, pa.Schema) or not len(schema):
        raise InvalidInput("The schema must be a pyarrow Schema with at least one column.")
    if reserved := RESERVED_METADATA & set(schema.metadata or {}):
        raise InvalidInput(f"The schema's metadata keys {sorted(map(bytes.decode, reserved))} belong to WAL entries.")
    rows = RowSchema.of(schema)
    if rows.primary_key and primary_key and set(rows.primary_key) != set(primary_key):
        raise InvalidInput(
            f"The schema marks {list(rows.primary_key)} as primary key, and {list(primary_key)} was given."
        )
    key = primary_key or rows.primary_key
    check_columns(key, rows, "primary_key")
    return pa.schema(
        [_key_field(column) if column.name in key else column for column in schema], metadata=schema.metadata
    )


def _key_field(column: pa.Field) -> pa.Field:
    kind, types = column.type, pa.types
    if not (
        types.is_integer(kind)
        or types.is_boolean(kind)
        or types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_binary(kind)
        or types.is_large_binary(kind)
    ):
        raise InvalidInput(
            f"Column {column.name!r} is {kind}, which cannot be a primary key.",
            known="int8 to int64, uint8 to uint64, bool, string, large_string, binary, large_binary",
        )
    return column.with_nullable(False).with_metadata({**(column.metadata or {}), PRIMARY_KEY: b"true"})


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{column.name} {column.type}{'' if column.nullable else ' not null'}" for column in schema)


def _is_uuid(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False
