"""Creating a table: intent, work, flip. After a crash at any point the same call completes it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from headgate.connectors.lance import dataset as lance_connector
from headgate.connectors.lance.base.damage import set_aside_unborn
from headgate.connectors.lance.base.synced import sync_base
from headgate.connectors.lance.dataset import Base, MemWal
from headgate.connectors.lance.datasets import TextIndex
from headgate.connectors.objects import ObjectStore
from headgate.connectors.objects.wal_options import joined_options
from headgate.errors import InvalidInput
from headgate.shards.home.base import index_name
from headgate.shards.home.record import TableRecord, put_record, record_ids, shard_folders
from headgate.shards.home.stores import Place, place, table_store, wal_store_of
from headgate.shards.rows.schema import PRIMARY_KEY, RESERVED_METADATA, RowSchema
from headgate.shards.shard import TABLE_ID
from headgate.shards.sharding import Sharding, check_columns, single
from headgate.shards.vectors import Vector, VectorColumn
from headgate.steps import step
from headgate.table.ddl import arrow_schema
from headgate.table.definition import check_parameters, check_same, columns_text
from headgate.table.table import Table, open_table

CREATE_STEPS = ("looked", "intended", "retired", "base", "full_text", "mem_wal", "created")
"""Where `create_table` pauses, in order."""


FullText: TypeAlias = "str | Sequence[str] | Mapping[str, Mapping[str, Any]]"
"""Full-text columns; as a mapping, with the parameters of each Lance index."""


def create_table(
    uri: Place,
    schema: Any,
    *,
    primary_key: str | Sequence[str] | None = None,
    sharding: Sharding | None = None,
    full_text: FullText = (),
    wal_uri: Place | None = None,
    storage_options: Mapping[str, str] | None = None,
    wal_storage_options: Mapping[str, str] | None = None,
    vector: Mapping[str, Vector] | None = None,
    exist_ok: bool = False,
) -> Table:
    """Create a table. `schema` is a pyarrow Schema, a pyspark StructType or DDL text. Key columns become non-nullable.
    The default `sharding` is single(). `wal_uri` is a separate store for write-ahead logs, reached with
    `wal_storage_options`, else with `storage_options`; options are never stored. `full_text` names columns, or maps
    them to the parameters of their indexes: `{"note": {"with_position": True, "base_tokenizer": "ngram"}}`. `vector`
    maps vector columns to their definition: `{"embedding": headgate.vector("cosine")}`, see `nearest`.

    With `exist_ok` an existing table is returned if it has the same definition: columns, key, sharding, full text with
    the given parameters, vector columns, and WAL store. Otherwise InvalidInput names the first difference.

    1. check the definition, and rehearse it in memory; nothing is written.
    2. look: a table, a dataset that headgate did not create, or other columns are refused.
    3. intent: put the record, under a new random id.
    4. work: retire the id of a base that was overwritten (its rows stay, the old shards do not come back); base,
       full-text indexes, MemWAL. Existing parts are kept.
    5. flip: the base names the id, by compare-and-set. From here the table exists.
    6. sync: on local disk it survives a power cut from here on, and the first mark says so (see
       `connectors.lance.base.synced`).

    After a crash at any point the same call completes it, under a new id. Damaged files of an interrupted creation are
    set aside after a power cut. If two calls run at once, one wins. Raises InvalidInput (nothing that exists was
    changed), StoreError.
    """
    storage_options = joined_options(storage_options, wal_storage_options)
    store = table_store(place(uri), storage_options)
    wal_store = wal_store_of(store, wal_uri, storage_options)
    schema, vectors = with_vectors(arrow_schema(schema), vector or {})
    schema = _with_key(schema, _names(primary_key))
    rows, sharding, indexes = RowSchema.of(schema), sharding or single(), _indexes(full_text)
    sharding.validate(rows)
    check_columns([index.column for index in indexes], rows, "full_text")
    mem_wal = MemWal(sharding.native(), tuple(index.name for index in indexes))
    schema = lance_connector.rehearse(schema, indexes, mem_wal.sharding)

    if not shard_folders(store):
        set_aside_unborn(store)
    base = lance_connector.look(store.uri, storage_options)
    wal = None if wal_store is store else wal_store.uri

    def there() -> Table:
        table = open_table(store.uri, storage_options=storage_options)
        check_same(table, schema, rows.primary_key, sharding, indexes, vectors, wal)
        return table

    if exist_ok and base is not None and base.mem_wal is not None and base.config.get(TABLE_ID):
        return there()
    stale_id = _check_free(store, base, schema, mem_wal)
    record = TableRecord(
        table_id=uuid.uuid4(),
        sharding=sharding,
        primary_key=rows.primary_key,
        full_text=tuple(index.column for index in indexes),
        wal_uri=wal,
        leftover_shards=shard_folders(store),
        vectors=vectors,
    )
    step("looked")
    put_record(store, record)
    step("intended")
    if stale_id and not lance_connector.swap_config(store.uri, TABLE_ID, stale_id, "", storage_options):
        raise _taken(store)
    step("retired")
    if base is None:
        lance_connector.ensure_base(store.uri, schema, storage_options)
    step("base")
    for index in indexes:
        lance_connector.ensure_full_text(store.uri, index, storage_options)
        check_parameters(store, index)
    step("full_text")
    lance_connector.ensure_mem_wal(store.uri, mem_wal, storage_options)
    step("mem_wal")
    unnamed = None if stale_id is None else ""
    if not lance_connector.swap_config(store.uri, TABLE_ID, unnamed, str(record.table_id), storage_options):
        if exist_ok:
            return there()
        raise _taken(store)
    step("created")
    sync_base(store)
    return open_table(store.uri, storage_options=storage_options)


def _indexes(full_text: FullText) -> list[TextIndex]:
    """The requested full-text indexes. Raises InvalidInput."""
    given = full_text if isinstance(full_text, Mapping) else {column: {} for column in _names(full_text)}
    for column, parameters in given.items():
        if not isinstance(parameters, Mapping):
            raise InvalidInput(
                f"full_text must map each column to a dict of index parameters, got {parameters!r} for column "
                f"{column!r}.",
                advice=f'write full_text={{{column!r}: {{"with_position": True}}}}, or full_text={column!r}',
            )
    return [TextIndex(index_name(column), column, dict(parameters)) for column, parameters in given.items()]


def with_vectors(schema: pa.Schema, vector: Mapping[str, Vector]) -> tuple[pa.Schema, tuple[VectorColumn, ...]]:
    """The schema with vector types for the vector columns, and their records. Raises InvalidInput."""
    check_columns(list(vector), RowSchema.of(schema), "vector")
    columns = list(schema)
    for number, column in enumerate(columns):
        if column.name in vector:
            if not isinstance(vector[column.name], Vector):
                what = (
                    f"vector must map each column to headgate.vector(…), got {vector[column.name]!r} for column "
                    f"{column.name!r}."
                )
                raise InvalidInput(what, advice=f'write vector={{{column.name!r}: headgate.vector("cosine")}}')
            columns[number] = vector[column.name].field(column)
    kept = tuple(VectorColumn(name, one.metric, one.index, one.train_rows) for name, one in sorted(vector.items()))
    return pa.schema(columns, metadata=schema.metadata), kept


def _check_free(store: ObjectStore, base: Base | None, wanted: pa.Schema, mem_wal: MemWal) -> str | None:
    """Raises InvalidInput unless a table can be made here. The id to retire ("": already retired), None: no id."""
    if base is None:
        return None
    named = base.config.get(TABLE_ID)
    if named and base.mem_wal is not None:
        raise InvalidInput(
            f"A table exists already at {store.uri}.",
            table_id=named,
            advice="open it with open_table, pass exist_ok=True, or choose another URI; nothing was written",
        )
    if named is None and (base.rows or not record_ids(store)):
        raise InvalidInput(
            f"A Lance dataset that headgate did not create exists already at {store.uri}.",
            version=base.version,
            rows=base.rows,
            advice="choose another URI and copy its rows there; nothing was written",
        )
    if not base.schema.equals(wanted, check_metadata=True):
        raise InvalidInput(
            f"An unfinished or overwritten table at {store.uri} has other columns: {columns_text(base.schema)}, "
            f"but {columns_text(wanted)} were requested.",
            advice="create it with those columns, or delete it and create it again; nothing was written",
        )
    if base.mem_wal not in (None, mem_wal):
        raise InvalidInput(
            f"An unfinished table at {store.uri} was started with {base.mem_wal}, but {mem_wal} was requested.",
            advice="create it with the first definition, or delete it and create it again; nothing was written",
        )
    return named


def _taken(store: ObjectStore) -> InvalidInput:
    what = f"Another process created a table at {store.uri} first."
    return InvalidInput(what, advice="open the table with open_table, or choose another URI")


def _names(names: str | Sequence[str] | None) -> tuple[str, ...]:
    given = (names,) if isinstance(names, str) else tuple(names or ())
    if len(set(given)) != len(given):
        raise InvalidInput(f"Each column must be named once, got {list(given)}.")
    return given


def _with_key(schema: pa.Schema, primary_key: tuple[str, ...]) -> pa.Schema:
    """The schema with the key columns marked and non-null. Raises InvalidInput for an invalid key."""
    if not len(schema):
        raise InvalidInput("The schema must have at least one column.")
    if reserved := RESERVED_METADATA & set(schema.metadata or {}):
        raise InvalidInput(
            f"The schema's metadata keys {sorted(map(bytes.decode, reserved))} are reserved for WAL entries."
        )
    rows = RowSchema.of(schema)
    if rows.primary_key and primary_key and set(rows.primary_key) != set(primary_key):
        raise InvalidInput(
            f"The schema marks {list(rows.primary_key)} as primary key, but primary_key is {list(primary_key)}."
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
            f"Column {column.name!r} has type {kind}, which cannot be a primary key.",
            known="int8 to int64, uint8 to uint64, bool, string, large_string, binary, large_binary",
        )
    return column.with_nullable(False).with_metadata({**(column.metadata or {}), PRIMARY_KEY: b"true"})
