"""checkpoint(all) of a table that nobody runs: each shard is opened fully, hence fenced, flushed here and let go (R16).

Promises: those of `checkpoints.stream.checkpoint`, over all streams and direct writers of the table together.
Afterwards native may open every shard, except those of WAL-only streams.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from uuid import UUID

from headgate import parallel
from headgate.checkpoints.gc.collect import MIN_AGE
from headgate.checkpoints.jobs.advance import close_gap
from headgate.checkpoints.jobs.flush import run_here
from headgate.checkpoints.log.commit_log import CommitLog
from headgate.checkpoints.log.fold import put_fold
from headgate.checkpoints.log.names import list_streams, no_stream
from headgate.checkpoints.log.state import LogState
from headgate.checkpoints.log.visibility import Visible
from headgate.checkpoints.snapshots.checkpoint import TableCheckpoint
from headgate.checkpoints.snapshots.shards import shard_names
from headgate.checkpoints.snapshots.take import drop, take
from headgate.checkpoints.stream.checkpoint import WAL_ONLY
from headgate.checkpoints.stream.driver import StreamDriver
from headgate.checkpoints.stream.shards import Settled
from headgate.errors import HeadgateError, InvalidInput
from headgate.shards.config import WriterConfig
from headgate.shards.manifest.model import Manifest
from headgate.shards.shard import Shard, TableHome
from headgate.shards.wal.entry import EntryHeader
from headgate.shards.wal.tip import listed_tip
from headgate.shards.writer import ShardWriter
from headgate.steps import step

MAX_BYTES = 64 << 20
"""Maximum size of one SSTable made here: memory holds one of them, and the writers' own."""

RELEASE_EXPIRES = 7 * 24 * 3600.0
"""Seconds after which the checkpoint of a release expires: long enough to be noticed, and nobody must drop it."""


@dataclass(frozen=True)
class Holders:
    """The owners of a table's shards, from its manifests and logs."""

    manifests: Mapping[UUID, Manifest]
    logs: Mapping[str, LogState]
    names: Mapping[UUID, str]

    @classmethod
    def read(cls, home: TableHome, shard_ids: Iterable[UUID], names: Mapping[UUID, str]) -> Holders:
        """Read the manifests first, then the logs. `names` are names of shards that the logs do not name."""
        ids = sorted(shard_ids)
        found = parallel.each("claim", lambda shard_id: Shard(home, shard_id).manifests.latest(), ids)
        manifests = {shard_id: one for shard_id, one in zip(ids, found, strict=True) if one is not None}
        logs = {stream: CommitLog(home.records, stream, home.uri).read() for stream in list_streams(home.records)}
        known = dict(names)
        for state in logs.values():
            known |= shard_names(state)
        return cls(manifests, logs, known)

    @property
    def owned(self) -> dict[str, list[str]]:
        """Names of each stream's shards; their ids if the name is unknown."""
        found: dict[str, list[str]] = {}
        for shard_id, manifest in self.manifests.items():
            if manifest.owner is not None:
                found.setdefault(manifest.owner, []).append(self.names.get(shard_id, str(shard_id)))
        return found

    @property
    def wal_only(self) -> list[str]:
        """Streams whose last batch was WAL-only."""
        last = {stream: state.head.last for stream, state in self.logs.items()}
        return sorted(stream for stream, batch in last.items() if batch is not None and batch.mode == "wal")

    @property
    def unowned(self) -> list[UUID]:
        """Shards of direct writers."""
        return [shard_id for shard_id, manifest in self.manifests.items() if manifest.owner is None]


@dataclass(frozen=True)
class ToFlush:
    """A shard that a flush of the whole table would open."""

    shard_id: UUID
    name: str | None
    owner: str | None
    entries: int
    """Entries that are only in the WAL, including fence barriers and dead entries."""
    wal_only: bool
    """True if its stream has no SSTables: the shard is left alone."""


def to_flush(home: TableHome, shard_ids: Iterable[UUID], names: Mapping[UUID, str]) -> list[ToFlush]:
    """What `checkpoint_stopped` would flush, and whom it would fence. Reads manifests, logs and WAL listings; writes
    nothing. Raises DataLoss, Corrupt.
    """
    holders = Holders.read(home, shard_ids, names)

    def look(shard_id: UUID) -> ToFlush:
        manifest = holders.manifests[shard_id]
        entries = listed_tip(Shard(home, shard_id), manifest.replay_after + 1) - manifest.replay_after - 1
        owner = manifest.owner
        return ToFlush(shard_id, holders.names.get(shard_id), owner, entries, owner in holders.wal_only)

    return parallel.each("claim", look, holders.manifests)


def checkpoint_stopped(
    home: TableHome,
    shard_ids: Iterable[UUID],
    *,
    name: str | None = None,
    expires_after: float | None = None,
    note: str = "",
    names: Mapping[UUID, str] | None = None,
) -> TableCheckpoint:
    """Flush the whole table and pin it. THIS WRITES, AND IT FENCES EVERY WRITER AND EVERY STREAM of the table.

    1. read who owns which shard. WAL-only streams are left alone: they make no SSTables.
    2. open every stream by a driver (claims, barriers, open record), every other shard by a writer.
    3. flush everything decided.
    4. only after every flush has committed: let replay_after pass the gaps.
    5. fold the logs.
    6. pin the table, see `take`.
    7. unseal: native may open the shards; a stream seals its own again at its next start.

    A stream that runs elsewhere is Fenced by its next batch. A crash anywhere leaves a table that is the same to every
    reader. Raises Fenced if another opener came later, InvalidInput, DataLoss, Transient, Poisoned.
    """
    return _pinned(home, shard_ids, name, expires_after, note, names or {})[0]


def flush_stopped(home: TableHome, shard_ids: Iterable[UUID], *, names: Mapping[UUID, str] | None = None) -> str:
    """The same, but drops the checkpoint. Returns what could not be flushed, or ""."""
    note = "a flush; dropped afterwards"
    taken, idle = _pinned(home, shard_ids, None, MIN_AGE.total_seconds(), note, names or {})
    drop(home, taken.name)
    return idle


def _pinned(
    home: TableHome,
    shard_ids: Iterable[UUID],
    name: str | None,
    expires_after: float | None,
    note: str,
    names: Mapping[UUID, str],
) -> tuple[TableCheckpoint, str]:
    """The checkpoint, and a note about the streams that have no SSTables."""
    ids = frozenset(shard_ids)
    step("look")
    holders = Holders.read(home, ids, names)
    idle = holders.wal_only
    with ExitStack() as stack:
        drivers = [
            StreamDriver.open(home, stream, f"checkpoint-{uuid.uuid4().hex}", shards)
            for stream, shards in sorted(holders.owned.items())
            if stream not in idle
        ]
        visible = Visible.of(holders.logs.values(), home.uri)
        writers = [stack.enter_context(_writer(Shard(home, shard_id), visible)) for shard_id in holders.unowned]
        step("settle")
        settled: list[tuple[StreamDriver, Settled]] = [(one, one.settle(run_here, MAX_BYTES)) for one in drivers]
        for writer in writers:
            _flush(writer)
        step("close gaps")
        for driver, flushed in settled:
            driver.close_gaps(flushed)
        parallel.each("claim", _close_gap, writers)
        step("fold")
        for driver in drivers:
            driver.fold()
        _fold_others(home, holders, [driver.stream for driver in drivers])
        left = _wal_only_note(idle)
        taken = take(
            home,
            ids,
            scope="all",
            name=name,
            expires_after=expires_after,
            note="; ".join(filter(None, (note, left))),
            names=holders.names,
        )
        step("unseal")
        for driver in drivers:
            driver.unseal()
    return taken, left


def nothing_to_release(home: TableHome, stream: str) -> HeadgateError:
    """The error if no shard belongs to the stream: it never wrote to the table, or its shards have no
    owner any more.
    """
    if stream not in (known := list_streams(home.records)):
        return no_stream(stream, known, home.uri)
    return InvalidInput(
        f"No shard belongs to stream {stream!r}, so there is nothing to release.",
        table=home.uri,
        advice="`headgate status` shows the owner of each shard; nothing was written",
    )


def release(
    home: TableHome,
    shard_ids: Iterable[UUID],
    stream: str,
    only: Iterable[UUID] | None = None,
    *,
    names: Mapping[UUID, str] | None = None,
    forget_owner: bool = False,
) -> TableCheckpoint:
    """Flush all shards of a stream, WAL-only or not, pin the table, and let native open the shards (all, or those in
    `only`).

    THIS WRITES, AND IT FENCES THE STREAM. With `forget_owner` any other stream or writer may open them as well. The
    checkpoint expires after RELEASE_EXPIRES. Raises as `checkpoint_stopped` does.
    """
    ids = frozenset(shard_ids)
    holders = Holders.read(home, ids, names or {})
    shards = holders.owned.get(stream, [])
    if not shards:
        raise nothing_to_release(home, stream)
    driver = StreamDriver.open(home, stream, f"release-{uuid.uuid4().hex}", shards)
    driver.close_gaps(driver.settle(run_here, MAX_BYTES))
    step("fold")
    driver.fold()
    taken = take(
        home,
        ids,
        scope="all",
        expires_after=RELEASE_EXPIRES,
        note=f"released stream {stream!r}",
        names=holders.names,
    )
    step("unseal")
    wanted = None if only is None else set(only)
    let_go = [name for name, claim in driver.claims.items() if wanted is None or claim.shard.id in wanted]
    driver.unseal(let_go, forget_owner=forget_owner)
    return taken


# -- direct writers ----------------------------------------------------------------


def _writer(shard: Shard, visible: Visible) -> ShardWriter:
    def counts(header: EntryHeader, position: int) -> bool:
        return visible(shard.id, position, header.tags.attempt_id)

    config = WriterConfig(
        max_memtable_size=MAX_BYTES, max_unflushed_memtable_bytes=2 * MAX_BYTES, retry=shard.home.retry
    )
    return ShardWriter.open(shard.home, shard.id, config, visible=counts)


def _flush(writer: ShardWriter) -> None:
    try:
        writer.flush_memtable()
    except HeadgateError as error:
        raise error.with_context(**writer.shard.where())  # noqa: B904 - the same error, told where


def _close_gap(writer: ShardWriter) -> None:
    claim = writer.claim
    flushed = writer.shard.manifests.held(claim.epoch, claim.claim_id)
    close_gap(claim, flushed, claim.next_position - 1)


# -- the rest ----------------------------------------------------------------------


def _fold_others(home: TableHome, holders: Holders, done: Sequence[str]) -> None:
    """Folds the logs of the other streams. Anyone may fold a log, even of a running stream."""
    replay_after = {shard_id: manifest.replay_after for shard_id, manifest in holders.manifests.items()}
    for stream, state in holders.logs.items():
        if stream not in done and state.sequence:
            put_fold(CommitLog(home.records, stream, home.uri), state, replay_after)


def _wal_only_note(streams: Sequence[str]) -> str:
    if not streams:
        return ""
    named = ", ".join(map(repr, streams))
    return WAL_ONLY.format(f"stream {named} is" if len(streams) == 1 else f"streams {named} are")
