"""A table's shards, and what a writer holds after it has claimed one. Values only; picklable."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from headgate.connectors.objects import ObjectStore
from headgate.connectors.objects.folder import FolderStore
from headgate.errors import HeadgateError, InvalidInput
from headgate.retry import Retry
from headgate.shards import names
from headgate.shards.manifest.store import ManifestStore
from headgate.shards.rows.schema import RowSchema
from headgate.shards.sharding import Sharding
from headgate.shards.vectors import VectorColumn

TABLE_ID = "headgate.table_id"
"""The base's configuration key that holds the table id. Empty while an overwritten base is being made a table again."""


@dataclass(frozen=True)
class TableHome:
    """What the shards of one table share: the columns of its rows, and its stores, which retry.

    `store` has the table's directory as its root and holds manifests and SSTables; `wal_store` holds the WALs and is
    the same one unless the table has a separate WAL store.
    """

    schema: RowSchema
    store: ObjectStore
    wal_store: ObjectStore
    table_id: uuid.UUID | None = None
    spec_id: int = 0
    """Native's number of the sharding spec, for manifests of new shards."""
    sharding: Sharding | None = None
    """How rows are distributed to shards; None for a table that headgate did not create."""
    vectors: tuple[VectorColumn, ...] = ()

    def __post_init__(self) -> None:
        store = self.store.retrying()
        wal_store = store if self.wal_store is self.store else self.wal_store.retrying()
        object.__setattr__(self, "store", store)
        object.__setattr__(self, "wal_store", wal_store)

    @classmethod
    def in_store(cls, store: ObjectStore, schema: RowSchema) -> TableHome:
        """A home whose WALs are in the same store."""
        return cls(schema, store, store)

    @property
    def uri(self) -> str:
        """The table's location, without credentials."""
        return self.store.uri

    @property
    def retry(self) -> Retry:
        """The policy of its stores."""
        return self.store.retry

    def retrying(self, retry: Retry) -> TableHome:
        """The same home, with its stores under another policy."""
        store = self.store.retrying(retry)
        wal_store = store if self.wal_store is self.store else self.wal_store.retrying(retry)
        return replace(self, store=store, wal_store=wal_store)

    @property
    def places(self) -> Sequence[ObjectStore]:
        """Every store that has objects of the table, its own first."""
        return (self.store, *(one for one in self.wal_store.places if one.uri != self.store.uri))

    @property
    def records(self) -> ObjectStore:
        """The store of headgate's own records of this table: below its id, so that a re-created table never reads old
        ones.
        """
        return FolderStore(self.store, f"_headgate/{self.table_id}" if self.table_id else "_headgate")

    def shard(self, shard: uuid.UUID | str) -> Shard:
        """A shard by id, or by name where the table's own id is known (a name never becomes a path)."""
        if isinstance(shard, uuid.UUID):
            return Shard(self, shard)
        try:
            return Shard(self, uuid.UUID(shard))
        except ValueError:
            if self.table_id is None:
                raise InvalidInput(f"Invalid shard id {shard!r}: it must be a UUID.", table=self.uri) from None
            return Shard(self, self._named(self.table_id, shard))

    def known_shard(self, shard: uuid.UUID | str) -> Shard:
        """The same, but of names only those that shards of its sharding can have. Raises InvalidInput
        for another name.
        """
        if isinstance(shard, str) and self.sharding is not None and names.parse_uuid(shard) is None:
            try:
                self.sharding.check_name(shard)
            except InvalidInput as error:
                error.with_context(table=self.uri)
                raise
        return self.shard(shard)

    def _named(self, table_id: uuid.UUID, name: str) -> uuid.UUID:
        try:
            return uuid.uuid5(table_id, name)
        except UnicodeEncodeError:
            raise InvalidInput(f"The shard name {name[:200]!r} is not valid Unicode.", table=self.uri) from None


class TableLike(Protocol):
    """The part of a Table that this package uses."""

    @property
    def home(self) -> TableHome:
        """Home of the table."""
        ...

    def shard(self, shard: uuid.UUID | str) -> Shard:
        """A shard by id or name. Raises InvalidInput for a name that no shard can have."""
        ...


@dataclass(frozen=True)
class Shard:
    """One shard of one table."""

    home: TableHome
    id: uuid.UUID

    @property
    def manifests(self) -> ManifestStore:
        return ManifestStore(self.home.store, self.id, self.home.uri, self.home.table_id)

    def retrying(self, retry: Retry) -> Shard:
        """The same shard, with its stores under another policy."""
        return Shard(self.home.retrying(retry), self.id)

    @property
    def wal(self) -> ObjectStore:
        """The store that holds its entries."""
        return self.home.wal_store

    def wal_key(self, position: int) -> str:
        """Key of the entry at a position."""
        return names.wal_key(self.id, position)

    def where(self) -> dict[str, Any]:
        """Table and shard, as context of errors."""
        return {"table": self.home.uri, "shard": str(self.id)}

    def at_position(self, error: HeadgateError, position: int) -> HeadgateError:
        """The error, with this shard and the position added."""
        return error.with_context(**self.where(), position=position)


@dataclass(frozen=True)
class Claim:
    """The right to write to a shard: an epoch, identified by its claim id, and the position of the next entry."""

    shard: Shard
    epoch: int
    claim_id: str
    next_position: int
