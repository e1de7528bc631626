"""What a collection reads: first everything that may be garbage, then everything that may need it."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias
from uuid import UUID

from headgate import clock
from headgate.checkpoints.gc import rules
from headgate.checkpoints.gc.rules import ListedManifest
from headgate.checkpoints.log.commit_log import CommitLog
from headgate.checkpoints.log.names import list_streams
from headgate.checkpoints.log.pins import ConsumerPin, PinStore, StoredPin
from headgate.checkpoints.snapshots.checkpoint import CheckpointStore, StoredCheckpoint
from headgate.connectors.lance import slots as index_slots
from headgate.connectors.objects import ObjectInfo, ObjectStore
from headgate.connectors.objects.deletion import delete
from headgate.errors import AlreadyExists, HeadgateError, StoreFull
from headgate.shards import names
from headgate.shards.manifest.model import Manifest
from headgate.shards.shard import Shard, TableHome

Placed: TypeAlias = tuple[ObjectStore, ObjectInfo]
"""An object and its store."""

Live: TypeAlias = Sequence[Manifest] | HeadgateError
"""The manifests of a shard that a reader may use, ascending; or the error that makes them unknown."""


@dataclass(frozen=True)
class Candidates:
    """Every object that may be garbage, as LIST showed it before anything else was read."""

    shards: Sequence[tuple[Shard, Sequence[Placed]]]
    logs: Sequence[tuple[str, Sequence[ObjectInfo]]]
    """Objects of the log's folder, per stream."""
    indexes: Sequence[ObjectInfo]
    slots: Sequence[ObjectInfo]
    tags: Sequence[ObjectInfo]


@dataclass(frozen=True)
class Holders:
    """All checkpoints and pins, and those that have not expired by the store's clock."""

    now: datetime
    checkpoints: Sequence[StoredCheckpoint]
    consumers: Sequence[StoredPin]

    @property
    def pins(self) -> list[StoredCheckpoint]:
        """Checkpoints that have not expired."""
        return [one for one in self.checkpoints if not one.expired(self.now)]

    @property
    def readers(self) -> list[ConsumerPin]:
        """Consumer pins that have not expired."""
        return [one.pin for one in self.consumers if not one.expired(self.now)]


def candidates(home: TableHome, shard_ids: Iterable[UUID]) -> Candidates:
    """List the candidates."""
    shards = [_placed(Shard(home, shard_id)) for shard_id in sorted(shard_ids)]
    logs = [(stream, _listed_log(home, stream)) for stream in list_streams(home.records)]
    indexes, tags = list(home.store.list("_indices/")), list(home.store.list("_refs/tags/"))
    return Candidates(shards, logs, indexes, list(home.store.list(index_slots.ROOT)), tags)


def live_manifests(shard: Shard, before: datetime) -> Live:
    """List the manifests again, after the candidates. Empty if nobody ever claimed the shard. An error is returned, not
    raised.
    """
    folder = names.manifest_folder(shard.id) + "/"
    try:
        listed = [
            ListedManifest(version, info.modified)
            for info in shard.home.store.list(folder)
            if (version := names.manifest_version(info.key)) is not None
        ]
        return [shard.manifests.read(version) for version in rules.live_versions(listed, before)]
    except HeadgateError as error:
        return error


def holders(home: TableHome, now: datetime) -> Holders:
    """Read checkpoints and pins. Raises Corrupt: an unreadable one may hold anything."""
    return Holders(now, CheckpointStore(home.records, home.uri).list(), PinStore(home.records, home.uri).list())


def store_time(home: TableHome) -> datetime:
    """The store's time, from a small probe object. If the store is full, from the newest object of the table: its time
    is not later than now, and an earlier time keeps more. (Copied files that kept their times may be later than any
    clock; then this machine's clock limits the result.)
    """
    try:
        return _time_of_a_new_object(home)
    except StoreFull:
        stamped = [info.modified for info in home.store.list("")]
        if not stamped:
            raise
        return min(max(stamped), clock.now())


def _time_of_a_new_object(home: TableHome) -> datetime:
    key, text = f"clock/{uuid.uuid4().hex}", b"The store's clock is read from this; garbage otherwise.\n"
    # The name is random, so an object there is ours, and the response to its put was lost.
    with suppress(AlreadyExists):
        home.records.put_if_absent(key, text)
    try:
        return home.records.head(key).modified
    finally:
        delete(home.records, key, "probe")


def _placed(shard: Shard) -> tuple[Shard, list[Placed]]:
    folder = names.shard_folder(shard.id) + "/"
    return shard, [(store, info) for store in shard.home.places for info in store.list(folder)]


def _listed_log(home: TableHome, stream: str) -> list[ObjectInfo]:
    return list(home.records.list(CommitLog(home.records, stream, home.uri).folder + "/"))
