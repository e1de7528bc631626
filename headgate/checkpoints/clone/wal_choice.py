"""Which WAL store a table has that was made without one; once chosen, it is fixed for ever.

A table that was made as such takes one later, shard by shard: see `shards.wal.moved`. The rest is about a clone: its
WAL store is open until its first writer opens.

Until then the WALs are what the clone copied into the table itself, and nobody adds to them. Whoever opens a writer
with a WAL store of its own takes that one, without one the table's own; of several the first wins. It is noted in
`wal_store.json` beside the table's record.

Promises:
1. Reading writes nothing, whatever store it was opened with, and shows every entry, also after somebody chose.
2. The choice is put once. Entries are in the chosen store before it is, so that no reader ever misses one.
3. A writer with another store than the chosen one is refused, and where the choice was there first it claims nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, TypeVar
from uuid import UUID

from headgate import parallel, records
from headgate.connectors.objects import ObjectInfo, ObjectStore
from headgate.connectors.objects.port import Bytes
from headgate.errors import AlreadyExists, HeadgateError, NotFound, WalStoreMismatch
from headgate.retry import Retry
from headgate.shards import names

T = TypeVar("T")


Opener = Callable[[str], ObjectStore]
"""The store at a URI, with the options of the table."""


@dataclass(frozen=True, slots=True)
class _Choice:
    KIND: ClassVar = "wal_store"
    wal_uri: str | None
    """None: the table's own store."""


def choice_key(table_id: UUID) -> str:
    """Where the choice is."""
    return f"_headgate/{table_id}/wal_store.json"


def read_choice(store: ObjectStore, table_id: UUID) -> str | None:
    """The URI of the store that the first writer chose, None while nobody did. Raises Corrupt."""
    key = choice_key(table_id)
    try:
        chosen = records.decode(_Choice, Retry().run(lambda: store.get(key)), "The choice of a WAL store")
    except NotFound:
        return None
    except HeadgateError as error:
        error.located(table=store.uri, key=key)
        raise
    return store.uri if chosen.wal_uri is None else chosen.wal_uri


def mismatch(table: str, recorded: str, given: str) -> WalStoreMismatch:
    """What to say where a table is opened with another WAL store than its own; URIs without credentials."""
    return WalStoreMismatch(
        f"The table's WALs lie in {recorded}, and it was opened with {given}.",
        table=table,
        advice="leave wal_uri out, or give the recorded one; nothing was written",
    )


def put_choice(store: ObjectStore, table_id: UUID, uri: str) -> None:
    """Put the choice, if there is none."""
    data = records.encode(_Choice(None if uri == store.uri else uri))
    with suppress(AlreadyExists):
        Retry().run(lambda: store.put_if_absent(choice_key(table_id), data))


def choose(store: ObjectStore, table_id: UUID, uri: str) -> None:
    """The same. Raises WalStoreMismatch where the choice that stands is another."""
    put_choice(store, table_id, uri)
    if (stored := read_choice(store, table_id)) not in (None, uri):
        raise mismatch(store.uri, str(stored), uri)


class UndecidedWal(ObjectStore):
    """The WALs of a table whose store is not chosen yet. The first put chooses; from then on it is that store.

    `given` is what the table was opened with; None: the table's own store, or whichever another writer chose.
    """

    def __init__(self, own: ObjectStore, table_id: UUID, given: ObjectStore | None, opener: Opener) -> None:
        super().__init__(own.uri)
        self._own = own
        self._table_id = table_id
        self._given = given
        self._opener = opener
        self._chosen: ObjectStore | None = None
        self._choosing = threading.Lock()

    # -- verbs ---------------------------------------------------------------

    def put_if_absent(self, key: str, data: Bytes | Sequence[Bytes]) -> None:
        """As the chosen store does."""
        self._choose().put_if_absent(key, data)

    def put_overwrite(self, key: str, data: Bytes | Sequence[Bytes]) -> None:
        """As the chosen store does."""
        self._choose().put_overwrite(key, data)

    def get(self, key: str) -> memoryview:
        """As the store does that has it."""
        return self._read(lambda store: store.get(key))

    def get_range(self, key: str, start: int, length: int) -> memoryview:
        """As the store does that has it."""
        return self._read(lambda store: store.get_range(key, start, length))

    def head(self, key: str) -> ObjectInfo:
        """As the store does that has it."""
        return self._read(lambda store: store.head(key))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """As the store that is chosen by now does, or the table's own."""
        return (self._look() or self._own).list(prefix)

    def list_keys(self, prefix: str) -> Iterator[str]:
        """As the store that is chosen by now does, or the table's own."""
        return (self._look() or self._own).list_keys(prefix)

    def list_folders(self, prefix: str) -> Iterator[str]:
        """As the store that is chosen by now does, or the table's own."""
        return (self._look() or self._own).list_folders(prefix)

    def delete(self, key: str) -> None:
        """As the store that is chosen by now does, or the table's own."""
        (self._look() or self._own).delete(key)

    def copy(self, src: str, dst: str, dst_store: ObjectStore | None = None) -> None:
        """As the store does that has it; without `dst_store` into the chosen one."""
        target = dst_store or self._choose()
        self._read(lambda store: store.copy(src, dst, target))

    @property
    def places(self) -> Sequence[ObjectStore]:
        """The store that is chosen by now, or the table's own."""
        return (self._look() or self._own,)

    def operations(self) -> Mapping[str, int]:
        """Of a separate store; the table's own one counts for itself."""
        return {} if self._chosen in (None, self._own) else self._chosen.operations()

    def reset_operations(self) -> None:
        """Of a separate store."""
        if self._chosen not in (None, self._own):
            self._chosen.reset_operations()

    # -- the choice ------------------------------------------------------------

    def _read(self, verb: Callable[[ObjectStore], T]) -> T:
        """The table's own store first: what it has is what every choice has. Where it has nothing, somebody may
        have chosen meanwhile.
        """
        if self._chosen is not None:
            return verb(self._chosen)
        try:
            return verb(self._own)
        except NotFound:
            if (chosen := self._look()) is None or chosen is self._own:
                raise
            return verb(chosen)

    def _look(self) -> ObjectStore | None:
        """The chosen store, None while nobody chose. Raises WalStoreMismatch where it is not the given one."""
        if self._chosen is None and (uri := read_choice(self._own, self._table_id)) is not None:
            if self._given is not None and self._given.uri != uri:
                raise mismatch(self._own.uri, uri, self._given.uri)
            self._chosen = self._own if uri == self._own.uri else self._opener(uri)
        return self._chosen

    def _choose(self) -> ObjectStore:
        """The chosen store; where nobody chose yet, the given one from now on:

        1. copy every entry there that the table has. Nobody adds to them before the choice.
        2. put the choice, if there is none. Another writer's stands: it must be the same store.

        A crash leaves copies that nobody reads, and no choice. Raises WalStoreMismatch.
        """
        with self._choosing:
            if (chosen := self._look()) is not None:
                return chosen
            given = self._given or self._own
            if given.uri != self._own.uri:
                self._copy_all(given)
            put_choice(self._own, self._table_id, given.uri)
            chosen = self._look()
            assert chosen is not None
            return chosen

    def _copy_all(self, target: ObjectStore) -> None:
        listed = Retry().run(lambda: [*self._own.list("_mem_wal/")])
        keys = [info.key for info in listed if names.wal_position(info.key) is not None]
        parallel.each("wal", lambda key: Retry().run(partial(self._own.copy, key, key, target)), keys)

    def __getstate__(self) -> dict[str, Any]:
        state = {**super().__getstate__()}
        del state["_choosing"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._choosing = threading.Lock()
