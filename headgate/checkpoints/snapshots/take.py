"""Taking a table checkpoint of the current state: one record that names the whole table at an instant, and pins it.

Promises:
1. Nothing is flushed and nobody is fenced.
2. A checkpoint whose `take` has returned holds everything it names until it is dropped or expires, however long the
   caller or a collection slept meanwhile (R20).
3. A take that fails or crashes anywhere leaves nothing, or a checkpoint, or at most a tag of the base without a record,
   which garbage collection removes. If it died before it had read the manifests again, `fsck` tells whether the
   checkpoint is complete; its record protects the base from headgate's clean-up, even without the tag.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from uuid import UUID

from headgate import clock, parallel
from headgate.checkpoints.log.state import fold
from headgate.checkpoints.snapshots.cache import TableCache
from headgate.checkpoints.snapshots.checkpoint import (
    CheckpointStore,
    PinnedShard,
    Scope,
    StoredCheckpoint,
    TableCheckpoint,
    checkpoint_key,
)
from headgate.checkpoints.snapshots.shards import shard_names
from headgate.checkpoints.snapshots.snapshot import Instant, TailStart, above_replay, read_instant
from headgate.connectors.lance.base.tags import held_versions, hold_version, release_version
from headgate.errors import HeadgateError, InvalidInput, NotFound, Transient
from headgate.shards.manifest.model import Manifest
from headgate.shards.shard import Shard, TableHome
from headgate.steps import step

TRIES = 32
"""A try fails if a flush or a compaction came in between. These are rare, but a busy machine may pause this process in
each try.
"""

OWN_PREFIX = "auto/"
"""Prefix of the names of checkpoints that streams take by themselves: `auto/<stream>/…`."""

READ_PREFIX = "read/"
"""Prefix of the names of checkpoints by which readers hold their snapshot."""

TAKE_STEPS = ("manifests", "logs", "tails", "base", "record", "tag", "check", "taken")
"""Where `take` pauses, in order."""


def take(
    home: TableHome,
    shard_ids: Iterable[UUID],
    *,
    scope: Scope = "durable",
    name: str | None = None,
    expires_after: float | None = None,
    note: str = "",
    names: Mapping[UUID, str] | None = None,
    tail_start: TailStart = above_replay,
    cache: TableCache | None = None,
) -> TableCheckpoint:
    """Pin the current table. THIS WRITES one record and one tag; it flushes nothing and fences nobody.

    1. read the instant (R11): manifests, logs, ends of the WALs, the base.
    2. put the record.
    3. hold the base's version by a tag (R14). If that version is gone: drop the record, and from 1 again. (A collection
       lists tags, then reads records: if it listed this tag, it also reads its record, however long it slept. R20.)
    4. read the manifests again: the checkpoint counts only if each has the SSTables and the replay_after of 1, and the
       tag holds. Otherwise drop it, and from 1 again. (A collection reads manifests, then pins, then deletes: if it
       missed the record, it has read manifests that name what the checkpoint names. R20.)

    An error after 2 drops the record as well, if the store allows.

    `scope` is what the caller has done before, `names` are names of shards that the logs do not name; for `tail_start`
    and `cache` see `read_instant`. Raises InvalidInput if the name is taken, DataLoss, Corrupt, Transient.
    """
    store = CheckpointStore(home.records, home.uri)
    ids = tuple(shard_ids)
    for _ in range(TRIES):
        instant = read_instant(home, ids, tail_start=tail_start, cache=cache)
        described = describe(home, instant, name=name, names=names)
        checkpoint = replace(described, scope=scope, expires_after=expires_after, note=note)
        step("record")
        store.put(checkpoint)
        try:
            step("tag")
            if _is_tagged(home, checkpoint, instant):
                step("check")
                if _is_held(home, checkpoint, instant):
                    step("taken")
                    return checkpoint
        except HeadgateError:
            with suppress(HeadgateError):
                _withdraw(home, checkpoint)
            raise
        _withdraw(home, checkpoint)
    raise Transient(
        f"Pinning the table failed: it was flushed or compacted during each of {TRIES} tries.",
        table=home.uri,
        advice="try again when fewer jobs run",
    )


def describe(
    home: TableHome, instant: Instant, *, name: str | None = None, names: Mapping[UUID, str] | None = None
) -> TableCheckpoint:
    """The checkpoint that a record of this instant would be. Writes nothing, hence pins nothing."""
    checkpoint_id = uuid.uuid4().hex
    return TableCheckpoint(
        checkpoint_id=checkpoint_id,
        name=name or f"{clock.now():%Y%m%dT%H%M%SZ}-{checkpoint_id[:8]}",
        table_id=home.table_id or UUID(int=0),
        scope="durable",
        base_version=instant.base_version,
        shards=_pinned(instant, names or {}),
        streams={state.stream: fold(state, _replay_after(instant)) for state in instant.logs},
    )


def drop(home: TableHome, name: str) -> TableCheckpoint:
    """Remove a checkpoint: its record, then its tag. After a crash in between, garbage collection removes the tag.

    Raises NotFound.
    """
    checkpoint = CheckpointStore(home.records, home.uri).drop(name)
    release_version(home.store, checkpoint.tag)
    return checkpoint


def own_name(stream: str, sequence: int) -> str:
    """A unique name for a checkpoint that a stream takes by itself when its log is at a sequence."""
    return f"{own_prefix(stream)}{sequence}-{uuid.uuid4().hex[:8]}"


def own_prefix(stream: str) -> str:
    """Prefix of the names of the stream's own checkpoints. No other stream has the same prefix: '/' inside a name is
    doubled.
    """
    return f"{OWN_PREFIX}{stream.replace('/', '//')}/"


def drop_older(home: TableHome, stream: str, keep: int) -> list[str]:
    """Drop the stream's own checkpoints except the newest `keep`. Returns the names of the dropped ones."""
    found = own_checkpoints(home, stream)
    older = found[:-keep] if keep else found
    parallel.each("take", lambda one: _remove(home, one.key, one.checkpoint), older)
    return [one.checkpoint.name for one in older]


def own_checkpoints(home: TableHome, stream: str) -> list[StoredCheckpoint]:
    """The stream's own checkpoints, oldest first: ordered by its log, because a store's clock may count in seconds."""
    prefix = own_prefix(stream)
    found = CheckpointStore(home.records, home.uri).list()
    own = [
        one
        for one in found
        if one.checkpoint.name.startswith(prefix) and "/" not in one.checkpoint.name.removeprefix(prefix)
    ]
    return sorted(own, key=lambda one: _sequence(one.checkpoint, stream))


def check_name(name: str) -> None:
    """Raises InvalidInput if users may not give this name."""
    for prefix, who in ((OWN_PREFIX, "streams"), (READ_PREFIX, "readers")):
        if name.startswith(prefix):
            raise InvalidInput(
                f"Names that begin with {prefix!r} are reserved for automatic checkpoints of {who}.",
                advice="choose another name; nothing was written",
            )


# -- content of the record ---------------------------------------------------------


def _sequence(checkpoint: TableCheckpoint, stream: str) -> int:
    log = checkpoint.streams.get(stream)
    return -1 if log is None else log.sequence


def _pinned(instant: Instant, names: Mapping[UUID, str]) -> dict[UUID, PinnedShard]:
    known = dict(names)
    for state in instant.logs:
        known |= shard_names(state)
    return {one.shard.id: PinnedShard(one.manifest, one.end, known.get(one.shard.id)) for one in instant.shards}


def _replay_after(instant: Instant) -> dict[UUID, int]:
    return {one.shard.id: one.manifest.replay_after for one in instant.shards}


# -- whether the checkpoint holds ---------------------------------------------------


def holds(pinned: Manifest, latest: Manifest | None) -> bool:
    """True if a pin that was put before `latest` was read holds what it names (R20). Pure."""
    return latest is not None and (latest.sstables, latest.replay_after) == (pinned.sstables, pinned.replay_after)


def _is_tagged(home: TableHome, checkpoint: TableCheckpoint, instant: Instant) -> bool:
    """Put the tag. False if the version was cleaned up since it was read."""
    try:
        hold_version(home.store, checkpoint.tag, checkpoint.base_version, instant.view.base.dataset)
    except NotFound:
        return False
    return True


def _is_held(home: TableHome, checkpoint: TableCheckpoint, instant: Instant) -> bool:
    def is_held(shard_id: UUID, pinned: PinnedShard) -> bool:
        return holds(pinned.manifest, Shard(home, shard_id).manifests.latest(pinned.manifest))

    with parallel.beside("take", near=home.store.is_near) as begin:
        tags = begin(held_versions, home.store, instant.view.base.dataset)
        held = parallel.each("take", is_held, checkpoint.shards, checkpoint.shards.values())
        return tags().get(checkpoint.tag) == checkpoint.base_version and all(held)


def _withdraw(home: TableHome, checkpoint: TableCheckpoint) -> None:
    """Drop this checkpoint by its id, even if another has its name."""
    _remove(home, checkpoint_key(checkpoint.name, checkpoint.checkpoint_id), checkpoint)


def _remove(home: TableHome, key: str, checkpoint: TableCheckpoint) -> None:
    CheckpointStore(home.records, home.uri).remove(key)
    release_version(home.store, checkpoint.tag)
