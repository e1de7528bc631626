"""Taking a table checkpoint of what is: one record that names all of the table at an instant, and pins it.

Promises:
1. Nothing is flushed and nobody is fenced.
2. A checkpoint whose record is there holds everything it names until it is dropped or expires.
3. A take that fails or crashes anywhere leaves at most a tag of the base without a record, which garbage collection
   removes, or a checkpoint that is complete.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

import structlog

from headgate.checkpoints.dead_letters import PREFIX
from headgate.checkpoints.log_state import LogState, fold
from headgate.checkpoints.snapshot import Instant, TailStart, above_replay, read_instant
from headgate.checkpoints.table_checkpoint import (
    CheckpointStore,
    PinnedShard,
    Scope,
    StoredCheckpoint,
    TableCheckpoint,
)
from headgate.connectors.base_tags import held_versions, hold_version, release_version
from headgate.errors import InvalidInput, NotFound, Transient
from headgate.shards import names as wal_names
from headgate.shards.appender import Pause, no_pause
from headgate.shards.generation import JOB_LIMIT
from headgate.shards.retry import Retry
from headgate.shards.shard import Shard, TableHome
from headgate.shards.sstable import sstable_key

PIN_DEADLINE = JOB_LIMIT
"""Seconds from reading the instant to the record: garbage collection waits at least twice as long (R12)."""

TRIES = 4
"""Each lost try took longer than PIN_DEADLINE, or met a collection that does not wait: more would be a war."""

OWN_PREFIX = "auto/"
"""Names of the checkpoints that streams take by themselves begin so: `auto/<stream>/…`."""

READ_PREFIX = "read/"
"""Names of the checkpoints that readers hold their snapshot by begin so."""

TAKE_STEPS = ("manifests", "logs", "tails", "base", "tag", "record", "check", "taken")
"""Where `take` pauses, in order."""

_log = structlog.get_logger("headgate.checkpoints")


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
    clock: Callable[[], float] = time.monotonic,
    pause: Pause = no_pause,
) -> TableCheckpoint:
    """Pin the table as it is. THIS WRITES one tag and one record; it flushes nothing and fences nobody.

    1. read the instant (R11): manifests, logs, ends of the WALs, the base.
    2. hold the base's version by a tag (R14).
    3. put the record, unless more than PIN_DEADLINE has passed since 1: then from 1 again (R12).
    4. look whether all that it names is there, and was within the time. Otherwise drop it, and from 1 again.

    `scope` is what the caller has done before, `names` are names of shards where the logs do not tell them,
    `tail_start` see `read_instant`. Raises InvalidInput where the name is taken, DataLoss, Corrupt, Transient.
    """
    store = CheckpointStore(home.records, home.uri)
    ids = tuple(shard_ids)
    for _ in range(TRIES):
        began = clock()
        instant = read_instant(home, ids, tail_start=tail_start, pause=pause)
        described = describe(home, instant, name=name, names=names)
        checkpoint = replace(described, scope=scope, expires_after=expires_after, note=note)
        pause("tag")
        try:
            hold_version(home.store, checkpoint.tag, checkpoint.base_version)
        except NotFound:
            continue  # cleaned up since it was read
        pause("record")
        if clock() - began > PIN_DEADLINE:
            release_version(home.store, checkpoint.tag)
            continue
        try:
            store.put(checkpoint)
        except InvalidInput:
            release_version(home.store, checkpoint.tag)
            raise
        pause("check")
        if clock() - began <= PIN_DEADLINE and _is_whole(home, checkpoint):
            pause("taken")
            return checkpoint
        with suppress(NotFound):
            drop(home, checkpoint.name)
    raise Transient(
        f"The table could not be pinned in {TRIES} tries: each took too long, or lost something to a collection.",
        table=home.uri,
        advice="run garbage collection with its default age, or try again when the store is quicker",
    )


def describe(
    home: TableHome, instant: Instant, *, name: str | None = None, names: Mapping[UUID, str] | None = None
) -> TableCheckpoint:
    """The checkpoint that a record of this instant would be. Writes nothing, hence pins nothing."""
    checkpoint_id = uuid.uuid4().hex
    return TableCheckpoint(
        checkpoint_id=checkpoint_id,
        name=name or f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{checkpoint_id[:8]}",
        table_id=home.table_id or UUID(int=0),
        scope="durable",
        base_version=instant.base_version,
        shards=_pinned(instant, names or {}),
        streams={state.stream: fold(state, _replay_after(instant)) for state in instant.logs},
    )


def drop(home: TableHome, name: str) -> TableCheckpoint:
    """Remove a checkpoint: its record, then its tag. After a crash between, collection removes the tag.

    Raises NotFound.
    """
    checkpoint = CheckpointStore(home.records, home.uri).drop(name)
    release_version(home.store, checkpoint.tag)
    return checkpoint


def own_name(stream: str, sequence: int) -> str:
    """A name for a checkpoint that a stream takes by itself when its log is at a sequence; unique."""
    return f"{own_prefix(stream)}{sequence}-{uuid.uuid4().hex[:8]}"


def own_prefix(stream: str) -> str:
    """How the names of the stream's own checkpoints begin. No other stream's begin so: '/' is doubled inside."""
    return f"{OWN_PREFIX}{stream.replace('/', '//')}/"


def drop_older(home: TableHome, stream: str, keep: int) -> list[str]:
    """Drop the stream's own checkpoints but the newest `keep`. The names of those that went."""
    older = own_checkpoints(home, stream)[:-keep] if keep else own_checkpoints(home, stream)
    for one in older:
        with suppress(NotFound):  # dropped by hand since
            drop(home, one.checkpoint.name)
    return [one.checkpoint.name for one in older]


def own_checkpoints(home: TableHome, stream: str) -> list[StoredCheckpoint]:
    """Those that the stream has taken by itself, oldest first: by its log, for a store's clock may count seconds."""
    prefix = own_prefix(stream)
    found = CheckpointStore(home.records, home.uri).list()
    own = [
        one
        for one in found
        if one.checkpoint.name.startswith(prefix) and "/" not in one.checkpoint.name.removeprefix(prefix)
    ]
    return sorted(own, key=lambda one: _sequence(one.checkpoint, stream))


def check_name(name: str) -> None:
    """Raises InvalidInput for a name that people may not give."""
    for prefix, who in ((OWN_PREFIX, "streams"), (READ_PREFIX, "readers")):
        if name.startswith(prefix):
            raise InvalidInput(
                f"Names that begin with {prefix!r} belong to the checkpoints that {who} take by themselves.",
                advice="choose another name; nothing was written",
            )


# -- what the record says ----------------------------------------------------------


def _sequence(checkpoint: TableCheckpoint, stream: str) -> int:
    log = checkpoint.streams.get(stream)
    return -1 if log is None else log.sequence


def _pinned(instant: Instant, names: Mapping[UUID, str]) -> dict[UUID, PinnedShard]:
    known = {**names, **_names_in(instant.logs)}
    return {one.shard.id: PinnedShard(one.manifest, one.end, known.get(one.shard.id)) for one in instant.shards}


def _names_in(logs: Iterable[LogState]) -> dict[UUID, str]:
    found: dict[UUID, str] = {}
    for state in logs:
        opened = state.head.opened
        found |= {} if opened is None else {claim.shard_id: name for name, claim in opened.shards.items()}
        found |= {shard_id: one.shard for shard_id, one in state.shards.items() if not one.shard.startswith(PREFIX)}
    return found


def _replay_after(instant: Instant) -> dict[UUID, int]:
    return {one.shard.id: one.manifest.replay_after for one in instant.shards}


# -- whether it holds --------------------------------------------------------------


def _is_whole(home: TableHome, checkpoint: TableCheckpoint) -> bool:
    """Whether everything the record names is there. A shard whose manifest is still the latest needs no look."""
    if held_versions(home.store).get(checkpoint.tag) != checkpoint.base_version:
        return False
    return all(_is_there(Shard(home, shard_id), pinned) for shard_id, pinned in checkpoint.shards.items())


def _is_there(shard: Shard, pinned: PinnedShard) -> bool:
    latest = shard.manifests.latest()
    if latest is not None and latest.version == pinned.manifest.version:
        return True
    for sstable in pinned.manifest.sstables:
        folder = f"{sstable_key(shard, sstable.path)}/_versions/"
        if not Retry().run(lambda folder=folder: any(True for _ in shard.home.store.list(folder))):  # type: ignore[misc]
            _log.warning("a checkpoint lost an SSTable while it was taken", sstable=sstable.path, **shard.where())
            return False
    tail = set(range(pinned.manifest.replay_after + 1, pinned.end))
    if not tail:
        return True
    folder = wal_names.wal_folder(shard.id) + "/"
    infos = Retry().run(lambda: list(shard.wal.list(folder)))
    return tail <= {position for info in infos if (position := wal_names.wal_position(info.key)) is not None}
