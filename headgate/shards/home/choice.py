"""Chooses the WAL store of a table that was made without one; the choice is final.

A table that was made that way takes one later, shard by shard: see `shards.wal.moved`. The rest of this module is about
a clone: its WAL store is open until its first writer opens.

Until then the WALs are what the clone copied into the table itself, and nobody adds to them. A writer that is opened
with a WAL store chooses that one; without one, it chooses the table's own. The first writer wins. The choice is stored
in `wal_store.json` beside the table's record.

Promises:
1. Reading writes nothing, whatever store it was opened with, and shows every entry, also after someone chose.
2. The choice is put once. The entries are in the chosen store before that, so that no reader ever misses one.
3. A writer with another store than the chosen one is refused, and claims nothing if the choice was there first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar, TypeAlias, TypeVar
from uuid import UUID

from headgate import parallel, records
from headgate.connectors.objects import ObjectStore
from headgate.errors import AlreadyExists, HeadgateError, InvalidInput, NotFound, WalStoreMismatch
from headgate.retry import Retry
from headgate.shards import names
from headgate.shards.wal.moved import WalPlaces

T = TypeVar("T")

Opener: TypeAlias = Callable[[str], ObjectStore]
"""Opens the store at a URI, with the options of the table."""


@dataclass(frozen=True, slots=True)
class _Choice:
    KIND: ClassVar = "wal_store"
    wal_uri: str | None
    """None: the table's own store."""


def choice_key(table_id: UUID) -> str:
    """Key of the choice."""
    return f"_headgate/{table_id}/wal_store.json"


def read_choice(store: ObjectStore, table_id: UUID) -> str | None:
    """The URI of the store that the first writer chose, None if nobody has chosen. Raises Corrupt."""
    key = choice_key(table_id)
    try:
        chosen = records.decode(_Choice, store.get(key), "The choice of a WAL store")
    except NotFound:
        return None
    except HeadgateError as error:
        error.with_context(table=store.uri, key=key)
        raise
    return store.uri if chosen.wal_uri is None else chosen.wal_uri


def mismatch(table: str, recorded: str, given: str) -> WalStoreMismatch:
    """The error if a table is opened with another WAL store than its own; URIs without credentials."""
    return WalStoreMismatch(
        f"The table's WALs are in {recorded}, but it was opened with {given}.",
        table=table,
        advice="leave wal_uri out, or pass the recorded one; nothing was written",
    )


def put_choice(store: ObjectStore, table_id: UUID, uri: str) -> None:
    """Put the choice, if there is none."""
    data = records.encode(_Choice(None if uri == store.uri else uri))
    with suppress(AlreadyExists):
        store.put_if_absent(choice_key(table_id), data)


def choose(store: ObjectStore, table_id: UUID, uri: str) -> None:
    """Put the choice, if there is none. Raises WalStoreMismatch if a different choice exists."""
    put_choice(store, table_id, uri)
    if (stored := read_choice(store, table_id)) not in (None, uri):
        raise mismatch(store.uri, str(stored), uri)


class _Chosen:
    """State shared by all views of one `UndecidedWal`, whatever their retry policy."""

    def __init__(self, store: ObjectStore | None = None) -> None:
        self.store = store
        self.choosing = threading.Lock()

    def __reduce__(self) -> tuple[type[_Chosen], tuple[ObjectStore | None]]:
        return _Chosen, (self.store,)


class UndecidedWal(WalPlaces):
    """The WALs of a clone whose store is not chosen yet. The first writer's open chooses it; from then on that store is
    used.

    `given` is what the table was opened with; None: the table's own store, or the one that another writer chose.
    """

    def __init__(self, own: ObjectStore, table_id: UUID, given: ObjectStore | None, opener: Opener) -> None:
        super().__init__(own, own.uri)
        self._table_id = table_id
        self._given = given
        self._opener = opener
        self._shared = _Chosen()

    def settle(self) -> None:
        """If nobody has chosen yet, choose the given store:

        1. copy every entry of the table there. Nobody adds entries before the choice.
        2. put the choice, if there is none. If another writer's choice exists, it must be the same store.

        A crash leaves copies that nobody reads, and no choice. Raises WalStoreMismatch.
        """
        with self._shared.choosing:
            if self._look() is None:
                given = self._given or self.own
                if given.uri != self.own.uri:
                    self._copy_all(given)
                put_choice(self.own, self._table_id, given.uri)
                self._look()

    @property
    def target(self) -> ObjectStore:
        """The chosen store. Raises InvalidInput if no writer has opened the clone."""
        if (chosen := self._look()) is None:
            raise InvalidInput(
                "The store of the clone's WALs is not set yet: no writer has opened the clone.", table=self.own.uri
            )
        return chosen

    @property
    def places(self) -> Sequence[ObjectStore]:
        """The chosen store, or the table's own if nobody has chosen: whatever that has, every choice has."""
        return (self._look() or self.own,)

    @property
    def retry(self) -> Retry:
        """Policy of each store."""
        return self.own.retry

    def retrying(self, retry: Retry | None = None) -> ObjectStore:
        """The same, with each store under that policy."""
        own = self.own.retrying(retry)
        given = None if self._given is None else self._given.retrying(retry)
        if own is self.own and given is self._given:
            return self
        view = UndecidedWal(own, self._table_id, given, self._opener)
        view._shared = self._shared
        return view

    def operations(self) -> Mapping[str, int]:
        """Operations of a separate store; the table's own store counts for itself."""
        chosen = self._chosen
        return {} if chosen in (None, self.own) else chosen.operations()

    def reset_operations(self) -> None:
        """Resets the counts of a separate store."""
        if (chosen := self._chosen) not in (None, self.own):
            chosen.reset_operations()

    @property
    def _chosen(self) -> ObjectStore | None:
        store = self._shared.store
        return None if store is None else self.own if store.uri == self.own.uri else store.retrying(self.retry)

    def _read(self, verb: Callable[[ObjectStore], T]) -> T:
        """If the table's own store does not have the object, someone may have chosen meanwhile."""
        if (chosen := self._chosen) is not None:
            return verb(chosen)
        try:
            return verb(self.own)
        except NotFound:
            if (chosen := self._look()) is None or chosen is self.own:
                raise
            return verb(chosen)

    def _look(self) -> ObjectStore | None:
        """The chosen store, None if nobody has chosen. Raises WalStoreMismatch if it is not the given one."""
        if self._chosen is None and (uri := read_choice(self.own, self._table_id)) is not None:
            if self._given is not None and self._given.uri != uri:
                raise mismatch(self.own.uri, uri, self._given.uri)
            self._shared.store = self.own if uri == self.own.uri else self._opener(uri)
        return self._chosen

    def _copy_all(self, target: ObjectStore) -> None:
        keys = [key for key in self.own.list_keys("_mem_wal/") if names.wal_position(key) is not None]
        parallel.each("wal", lambda key: self.own.copy(key, key, target), keys)
