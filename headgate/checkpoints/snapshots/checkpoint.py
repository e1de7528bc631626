"""Table checkpoints: a table at one instant, by name, complete in itself and pinned until it is dropped or expires.

A checkpoint is one record, `checkpoints/<name>/<id>.json` in the folder of the table's records. It holds everything a
reader of that instant needs but the data: the base's version, the manifest of each shard and where its tail ends, and
per stream the fold of its log. So later flushes, folds, compactions and collections do not matter. Garbage collection
reads the records and keeps what they name. The key contains the checkpoint's id, so that deleting a record that was
listed long ago never deletes another that was taken under the same name since (R20). Earlier releases put
`checkpoints/<name>.json`: such a record is read, dropped and collected as it is, and no new one is put there.

Promises:
1. A record exists whole or not at all, and never changes. A name is free again after its checkpoint was dropped; of two
   checkpoints taken under one name at the same time, at most one stays.
2. Its age is by the store's clock: it expires a number of seconds after the store took it.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, ClassVar, Literal
from uuid import UUID

from headgate import parallel, records
from headgate.checkpoints.log.codec import format_of
from headgate.checkpoints.log.names import folder_name
from headgate.checkpoints.log.records import Fold
from headgate.connectors.objects import ObjectInfo, ObjectStore
from headgate.connectors.objects.deletion import delete
from headgate.errors import AlreadyExists, HeadgateError, InvalidInput, NotFound
from headgate.shards.manifest.model import Manifest, decode_manifest, encode_manifest

Scope = Literal["all", "durable"]

ROOT = "checkpoints/"
"""Below the folder of the table's own records."""

TAG_PREFIX = "headgate-checkpoint-"
"""Prefix of the Lance tag that holds a checkpoint's base version (R14); the checkpoint's id follows."""


@dataclass(frozen=True, slots=True)
class PinnedShard:
    """One shard at the checkpoint: the manifest, and its tail [replay_after + 1, end)."""

    manifest: Manifest
    end: int
    """The first position after the tail: the tip when it was read."""
    name: str | None = None
    """None if it is unknown."""

    @property
    def shard_id(self) -> UUID:
        return self.manifest.shard_id


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCheckpoint:
    """Content of the record."""

    KIND: ClassVar = "checkpoint"
    checkpoint_id: str
    name: str
    table_id: UUID
    scope: Scope
    base_version: int
    shards: Mapping[UUID, PinnedShard] = field(default_factory=dict)
    streams: Mapping[str, Fold] = field(default_factory=dict)
    """Each stream's folded log, with the visible positions above replay_after."""
    expires_after: float | None = None
    """Seconds after the store took the record; None if it stays until it is dropped."""
    note: str = ""
    """For people: who took it, and what was not possible."""

    @property
    def tag(self) -> str:
        return f"{TAG_PREFIX}{self.checkpoint_id}"


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """A checkpoint as it is stored."""

    checkpoint: TableCheckpoint
    taken_at: datetime
    """Time by the store's clock."""
    key: str
    """Key of its record, below the folder of the table's records."""

    @property
    def expires_at(self) -> datetime | None:
        """Time by the store's clock; None if it never expires."""
        after = self.checkpoint.expires_after
        return None if after is None else self.taken_at + timedelta(seconds=after)

    def expired(self, now: datetime) -> bool:
        """True if it no longer pins anything."""
        return self.expires_at is not None and self.expires_at <= now


class CheckpointStore:
    """The checkpoints of one table, in the store of its records."""

    def __init__(self, store: ObjectStore, table_uri: str) -> None:
        self._store = store
        self._table = table_uri

    def put(self, checkpoint: TableCheckpoint) -> None:
        """Store it: put it, then look for others of the same name, and take it back if there is one. Of two concurrent
        puts, both may be taken back.

        Raises InvalidInput if another checkpoint has the name; a lost response is not an error.
        """
        key, data = checkpoint_key(checkpoint.name, checkpoint.checkpoint_id), encode(checkpoint)
        # The id is unique, so an object there is ours, and the response to its put was lost.
        with suppress(AlreadyExists):
            self._store.put_if_absent(key, data)
        if any(info.key != key for info in self._named(checkpoint.name)):
            self.remove(key)
            raise InvalidInput(
                f"Checkpoint {checkpoint.name!r} exists already.",
                table=self._table,
                advice="choose another name, or drop that one first; nothing was written",
            )

    def get(self, name: str) -> StoredCheckpoint:
        """One checkpoint by name. Raises NotFound, Corrupt, InvalidInput if a newer release wrote it."""
        for info in sorted(self._named(name), key=lambda one: (one.modified, one.key)):
            if (found := self._found(info)) is not None:
                return found
        known = ", ".join(one.checkpoint.name for one in self.list())
        raise NotFound(
            f"Checkpoint {name!r} not found.", table=self._table, advice=f"the table's checkpoints: {known or 'none'}"
        )

    def list(self) -> list[StoredCheckpoint]:
        """All of them, oldest first. Raises Corrupt: an unreadable one may pin anything."""
        found = parallel.each("checkpoints", self._found, self._infos())
        return sorted((one for one in found if one is not None), key=lambda one: (one.taken_at, one.checkpoint.name))

    def drop(self, name: str) -> TableCheckpoint:
        """Remove the record: from here on it pins nothing. Raises NotFound."""
        found = self.get(name)
        self.remove(found.key)
        return found.checkpoint

    def remove(self, key: str) -> None:
        """Remove one record by its key, and no other of the same name. A missing one is fine."""
        delete(self._store, key, "checkpoint")

    def _named(self, name: str) -> Iterable[ObjectInfo]:
        """The records of a name: at most one, unless two are being put."""
        place = f"{ROOT}{folder_name(name, 'checkpoint')}"
        return [info for info in self._infos() if info.key == f"{place}.json" or info.key.startswith(f"{place}/")]

    def _infos(self) -> Iterable[ObjectInfo]:
        return [info for info in self._store.list(ROOT) if info.key.endswith(".json")]

    def _found(self, info: ObjectInfo) -> StoredCheckpoint | None:
        try:
            return self._read(info)
        except NotFound:
            return None  # dropped since the LIST

    def _read(self, info: ObjectInfo) -> StoredCheckpoint:
        try:
            data = self._store.get(info.key)
            return StoredCheckpoint(decode(data), info.modified, info.key)
        except HeadgateError as error:
            error.with_context(table=self._table, key=info.key)
            raise


def checkpoint_key(name: str, checkpoint_id: str) -> str:
    """Key of a checkpoint. Raises InvalidInput for an empty name or bad Unicode."""
    return f"{ROOT}{folder_name(name, 'checkpoint')}/{checkpoint_id}.json"


def is_key_of(key: str, checkpoint: TableCheckpoint) -> bool:
    """True if the checkpoint may have this key: the current form, or that of earlier releases."""
    old = f"{ROOT}{folder_name(checkpoint.name, 'checkpoint')}.json"
    return key in (old, checkpoint_key(checkpoint.name, checkpoint.checkpoint_id))


def encode(checkpoint: TableCheckpoint) -> bytes:
    """The record as JSON that people can read; the manifests in Lance's own bytes beside their numbers."""
    shards = {str(shard_id): _plain_shard(shard) for shard_id, shard in checkpoint.shards.items()}
    return records.encode(checkpoint, format_of(*checkpoint.streams.values()), shards=shards)


def decode(data: bytes | memoryview) -> TableCheckpoint:
    """The checkpoint in the bytes. Raises Corrupt, and InvalidInput if a newer release wrote it."""
    what = "A table checkpoint"
    found = records.fields_of(data, what)
    with records.understood(what):
        return records.build(TableCheckpoint, found, shards=dict(_shards(found["shards"])))


def _plain_shard(shard: PinnedShard) -> dict[str, Any]:
    manifest = shard.manifest
    return {
        "name": shard.name,
        "end": shard.end,
        "epoch": manifest.epoch,
        "version": manifest.version,
        "replay_after": manifest.replay_after,
        "generation": manifest.generation,
        "owner": manifest.owner,
        "sstables": [sstable.path for sstable in manifest.sstables],
        "manifest": base64.b64encode(encode_manifest(manifest)).decode(),
    }


def _shards(shards: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[UUID, PinnedShard]]:
    for text, part in shards.items():
        shard_id = UUID(text)
        data = base64.b64decode(part["manifest"], validate=True)
        manifest = decode_manifest(data, shard_id=shard_id, version=int(part["version"]))
        yield shard_id, PinnedShard(manifest, int(part["end"]), None if part["name"] is None else str(part["name"]))
