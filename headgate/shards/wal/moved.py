"""WALs that move: a table that was made without a WAL store of its own is given one later.

Each shard moves by itself, when a writer opens it with the new store; its manifest says where its WAL is. Promises:
1. Until then its WAL is in the table, and writers that do not know of the new store may still open it there.
2. From the manifest on that names the new store, no entry is put into the table: earlier writers were fenced there
   before the entries were copied, and an opener that does not know the store is refused.
3. Readers that know the store find every entry, whichever shards have moved: an entry in both places is the same.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from headgate import parallel
from headgate.connectors.objects import ObjectInfo, ObjectStore
from headgate.connectors.objects.port import Bytes
from headgate.errors import InvalidInput, NotFound
from headgate.retry import Retry
from headgate.shards.manifest.model import WAL_STORE, Manifest
from headgate.shards.shard import Claim, Shard
from headgate.shards.wal.listing import positions
from headgate.steps import step

T = TypeVar("T")


class WalPlaces(ObjectStore):
    """The WALs of a table that was made without a WAL store, and may have one by now. Entries are read from any place
    that has them, and put into one of them. Each writer's open calls `settle` before it puts anything.
    """

    def __init__(self, own: ObjectStore, uri: str) -> None:
        super().__init__(uri)
        self.own = own
        """The table's own store."""

    @abstractmethod
    def settle(self) -> None:
        """Decide forever where entries are put, if that is open. Raises WalStoreMismatch."""

    @property
    @abstractmethod
    def target(self) -> ObjectStore:
        """The store into which entries are put."""

    def put_if_absent(self, key: str, data: Bytes | Sequence[Bytes]) -> None:
        """Puts into the target."""
        self.target.put_if_absent(key, data)

    def put_once(self, key: str, data: Bytes | Sequence[Bytes]) -> None:
        """Puts into the target."""
        self.target.put_once(key, data)

    def put_next(self, key: str, data: Bytes | Sequence[Bytes]) -> None:
        """Puts into the target."""
        self.target.put_next(key, data)

    def put_overwrite(self, key: str, data: Bytes | Sequence[Bytes]) -> None:
        """Puts into the target."""
        self.target.put_overwrite(key, data)

    def get(self, key: str) -> memoryview:
        """Reads from the store that has it."""
        return self._read(lambda store: store.get(key))

    def get_range(self, key: str, start: int, length: int) -> memoryview:
        """Reads from the store that has it."""
        return self._read(lambda store: store.get_range(key, start, length))

    def head(self, key: str) -> ObjectInfo:
        """Reads from the store that has it."""
        return self._read(lambda store: store.head(key))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """The objects of all places, each once. The table's own first: what moves meanwhile is then in the new one."""
        found = {info.key: info for store in self.places for info in store.list(prefix)}
        return iter([found[key] for key in sorted(found)])

    def list_keys(self, prefix: str) -> Iterator[str]:
        """The keys of all places, each once."""
        return iter(sorted({key for store in self.places for key in store.list_keys(prefix)}))

    def list_folders(self, prefix: str) -> Iterator[str]:
        """The folders of all places, each once."""
        return iter(sorted({name for store in self.places for name in store.list_folders(prefix)}))

    def delete(self, key: str) -> None:
        """Deletes from all places."""
        for store in self.places:
            store.delete(key)

    def copy(self, src: str, dst: str, dst_store: ObjectStore | None = None) -> None:
        """Copies from the store that has it; without `dst_store` into the target."""
        target = dst_store or self.target
        self._read(lambda store: store.copy(src, dst, target))

    @abstractmethod
    def _read(self, verb: Callable[[ObjectStore], T]) -> T:
        """Calls the store that has the object. Raises NotFound."""


class MovedWal(WalPlaces):
    """The new store, and the table's own for entries that are still there. `persist` records the new store for
    everyone, once; it raises WalStoreMismatch if another one is recorded.
    """

    def __init__(self, own: ObjectStore, new: ObjectStore, persist: Callable[[], None]) -> None:
        super().__init__(own, new.uri)
        self.new = new
        self.persist = persist

    def settle(self) -> None:
        """Nothing to decide: each shard moves by itself, see `move_wal`."""

    @property
    def target(self) -> ObjectStore:
        """The new store."""
        return self.new

    @property
    def places(self) -> Sequence[ObjectStore]:
        """Both stores."""
        return (self.own, self.new)

    @property
    def retry(self) -> Retry:
        """Policy of both stores."""
        return self.new.retry

    def retrying(self, retry: Retry | None = None) -> ObjectStore:
        """The same, with both stores under that policy."""
        own, new = self.own.retrying(retry), self.new.retrying(retry)
        return self if own is self.own and new is self.new else MovedWal(own, new, self.persist)

    def operations(self) -> Mapping[str, int]:
        """Operations of the new store; the table's own one counts for itself."""
        return self.new.operations()

    def reset_operations(self) -> None:
        """Resets the counts of the new store."""
        self.new.reset_operations()

    def _read(self, verb: Callable[[ObjectStore], T]) -> T:
        try:
            return verb(self.new)
        except NotFound:
            return verb(self.own)


def check_place(shard: Shard, manifest: Manifest | None) -> None:
    """Raises InvalidInput if the shard's WAL has moved since the table was opened."""
    moved = None if manifest is None else manifest.wal_store
    if moved is not None and shard.wal.uri != moved:
        raise InvalidInput(
            f"The shard's WAL has moved to {moved} since the table was opened.",
            **shard.where(),
            advice="open the table again; nothing was written",
        )


def before_move(shard: Shard, manifest: Manifest | None) -> Shard:
    """The shard with its WAL in its current place: the shard itself, unless its WAL is still in the table and will
    move.
    """
    if isinstance(shard.wal, MovedWal) and (manifest is None or manifest.wal_store is None):
        return Shard(replace(shard.home, wal_store=shard.wal.own), shard.id)
    return shard


def move_wal(shard: Shard, claim: Claim, replay_after: int) -> Manifest:
    """Move the WAL of a shard that was just claimed, with its barrier in the old place. Returns the manifest as
    written.

    1. record the new store for everyone who opens the table.
    2. copy every entry that SSTables do not cover, and the barrier, also of a fresh shard: an append creates no folder.
       Nobody adds to them: the barrier fences.
    3. write the new store's name into the manifest, if the claim still holds. From here on the WAL is there.

    A crash before 3 leaves copies of entries that are also in the old place. Raises WalStoreMismatch, Fenced,
    Transient.
    """
    wal = shard.wal
    assert isinstance(wal, MovedWal)
    wal.persist()
    step("noted")
    own, new = wal.own, wal.new
    there = positions(Shard(replace(shard.home, wal_store=own), shard.id))
    first = min(replay_after + 1, claim.next_position - 1)
    keys = [shard.wal_key(position) for position in sorted(there) if position >= first]
    parallel.each("wal", lambda key: own.copy(key, key, new), keys)
    step("copied")
    value = wal.uri.encode()
    return shard.manifests.commit_update(
        claim.claim_id, claim.epoch, lambda latest: latest.with_field(WAL_STORE, value)
    )
