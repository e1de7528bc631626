"""The stores of a table: one for its objects, one for its WALs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from headgate.connectors.objects import ObjectStore, open_store, redact
from headgate.connectors.objects.wal_options import own_options, wal_options
from headgate.errors import InvalidInput
from headgate.shards.home.choice import UndecidedWal, choose, mismatch, read_choice
from headgate.shards.home.record import TableRecord
from headgate.shards.wal.moved import MovedWal

Place: TypeAlias = str | os.PathLike[str]
"""A path or a URI."""


def place(uri: Place) -> str:
    """The path or URI as text. Raises InvalidInput if it is neither text nor a path."""
    text = os.fspath(uri) if isinstance(uri, str | os.PathLike) else None
    if not isinstance(text, str):
        raise InvalidInput(f"uri must be a path or a URI, got {type(uri).__name__}.")
    return text


def table_store(uri: str, storage_options: Mapping[str, str] | None) -> ObjectStore:
    """The store of a table. Raises InvalidInput for an invalid location."""
    if uri.lower().startswith("memory:"):
        raise InvalidInput("A table cannot be in memory: Lance and headgate would not see the same objects.", uri=uri)
    return open_store(uri, storage_options)


def wal_store_of(store: ObjectStore, wal_uri: Place | None, options: Mapping[str, str] | None) -> ObjectStore:
    """The store of the WALs: the table's own if none, or the same place, is given."""
    if wal_uri is None:
        return store
    wal_uri = place(wal_uri)
    if redact(wal_uri) != wal_uri:
        raise InvalidInput(
            f"The URI of the WAL store {redact(wal_uri)} contains credentials or options.",
            advice="put them into storage_options; table.json stores only the URI",
        )
    given = open_store(wal_uri, wal_options(options))
    if given.uri == store.uri and wal_options(options) != own_options(options):
        raise InvalidInput(
            f"The WAL store has its own options but the same URI as the table, {store.uri}: table.json could "
            "not tell them apart.",
            advice="use another bucket or prefix for the WAL store; nothing was written",
        )
    return store if given.uri == store.uri else given


def open_wal(
    store: ObjectStore, record: TableRecord, storage_options: Mapping[str, str] | None, wal_uri: Place | None = None
) -> tuple[TableRecord, ObjectStore]:
    """The store of a table's WALs, and the record, updated with the WAL store that was chosen since the table was made.
    Raises WalStoreMismatch if `wal_uri` is another one.
    """
    record = replace(record, wal_uri=record.wal_uri or None)
    was_undecided = record.wal_undecided
    if record.wal_undecided and (chosen := read_choice(store, record.table_id)) is not None:
        record = replace(record, wal_uri=None if chosen == store.uri else chosen, wal_undecided=False)
    options = wal_options(storage_options)
    given = None if wal_uri is None else open_store(redact(place(wal_uri)), options)
    if record.wal_undecided:
        opener = partial(open_store, storage_options=options)
        return record, UndecidedWal(store, record.table_id, given, opener)
    noted = read_choice(store, record.table_id) if record.wal_uri is None and not was_undecided else None
    recorded = record.wal_uri or noted or store.uri
    if given is not None and given.uri != recorded and (recorded != store.uri or was_undecided):
        raise mismatch(store.uri, recorded, given.uri)
    if record.wal_uri is not None:
        return record, open_store(record.wal_uri, options)
    new = open_store(noted, options) if noted else given
    if new is None or new.uri == store.uri:
        return record, store
    moved = MovedWal(store, new, partial(choose, store, record.table_id, new.uri))
    return replace(record, wal_uri=noted), moved
