"""A table's record, `table.json`: what a table is, fixed when it is created. Written once, under the table's own id."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from headgate.connectors.objects import ObjectStore
from headgate.errors import AlreadyExists, Corrupt, InvalidInput, NotFound
from headgate.retry import Retry
from headgate.shards.names import parse_uuid
from headgate.shards.sharding import Sharding, sharding_from_json, sharding_to_json

FORMAT = 1
"""Of the record. An older one is read, a newer one refused."""


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
    wal_undecided: bool = False
    """A clone without a WAL store: its first writer chooses, see `checkpoints.clone.wal_choice`. False once it is
    known."""

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
            **({"wal_undecided": True} if self.wal_undecided else {}),
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
            if not isinstance(data["wal_uri"], str | None):
                raise TypeError("wal_uri is no text")
            return cls(
                table_id=uuid.UUID(data["table_id"]),
                sharding=sharding_from_json(data["sharding"]),
                primary_key=tuple(data["primary_key"]),
                full_text=tuple(data["full_text"]),
                wal_uri=data["wal_uri"],
                leftover_shards=frozenset(map(uuid.UUID, data["leftover_shards"])),
                wal_undecided=bool(data.get("wal_undecided", False)),
            )
        except (KeyError, TypeError, ValueError, AttributeError, InvalidInput) as error:
            raise Corrupt("The table's record is not one.") from error


def record_key(table_id: uuid.UUID) -> str:
    """Where the record of a table is."""
    return f"_headgate/{table_id}/table.json"


def put_record(store: ObjectStore, record: TableRecord) -> None:
    """Put it, once. Raises StoreError."""
    data = record_bytes(record)
    # Nobody else knows the id, so an object there is ours, and the response to its put was lost.
    with suppress(AlreadyExists):
        Retry().run(lambda: store.put_if_absent(record_key(record.table_id), data))


def read_record(store: ObjectStore, table_id: uuid.UUID) -> TableRecord:
    """The record of a table. Raises InvalidInput where it is gone, Corrupt."""
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
    except (ValueError, RecursionError) as error:
        raise Corrupt("The table's record is not JSON.", table=store.uri, key=key) from error
    except (Corrupt, InvalidInput) as error:
        error.located(table=store.uri, key=key)
        raise


def record_bytes(record: TableRecord) -> bytes:
    """The record as it is stored."""
    return json.dumps(record.to_json(), indent=2, ensure_ascii=False).encode() + b"\n"


def record_ids(store: ObjectStore) -> list[uuid.UUID]:
    """Every table that was begun in a place, sorted."""
    return sorted(filter(None, map(parse_uuid, store.list_folders("_headgate/"))))


def shard_folders(store: ObjectStore) -> frozenset[uuid.UUID]:
    """The shards that have a folder in a store, whoever's they are."""
    return frozenset(filter(None, map(parse_uuid, store.list_folders("_mem_wal/"))))
