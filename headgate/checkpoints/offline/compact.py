"""Compaction of a table that nobody runs: each shard with SSTables is opened fully, hence fenced (R16).

Promises: those of `compact`, over all streams and direct writers of the table together. A shard that native could open
before can be opened by native afterwards.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from uuid import UUID

from headgate import parallel
from headgate.checkpoints.gc.base import Tidied, tidy_base
from headgate.checkpoints.jobs.compact import compact_round
from headgate.checkpoints.jobs.flush import run_here
from headgate.checkpoints.jobs.policy import BasePolicy, CompactLimits, size_of
from headgate.checkpoints.offline.checkpoint import MAX_BYTES, Holders
from headgate.checkpoints.stream.driver import StreamDriver
from headgate.connectors.lance.base.damage import settle_base
from headgate.shards.manifest.model import Manifest
from headgate.shards.shard import Claim, Shard, TableHome
from headgate.shards.wal.appender import WalAppender
from headgate.steps import step


@dataclass(frozen=True)
class ShardBacklog:
    """A shard whose SSTables the base has not taken in."""

    shard_id: UUID
    name: str | None
    owner: str | None
    sealed: bool
    sstables: int
    nbytes: int
    rows: int


@dataclass(frozen=True)
class Compacted:
    """Result of a compaction."""

    sstables: int = 0
    nbytes: int = 0
    """Bytes of the SSTables' rows in memory."""
    rows: int = 0
    """Rows that the base has taken in."""
    deleted: int = 0
    """Rows of the base that deletes removed."""
    rounds: int = 0
    tidied: Tidied | None = None
    indexed: int = 0
    """Segments added to full-text indexes, see `Table.compact`."""


def backlog(home: TableHome, shard_ids: Iterable[UUID], names: Mapping[UUID, str] | None = None) -> list[ShardBacklog]:
    """The SSTables that a compaction would take in, with the owners of their shards. Reads manifests and logs; writes
    nothing.
    """
    return _backlog(Holders.read(home, shard_ids, names or {}))


def compact_stopped(
    home: TableHome,
    shard_ids: Iterable[UUID],
    *,
    limits: CompactLimits = CompactLimits(),  # noqa: B008
    policy: BasePolicy = BasePolicy(),  # noqa: B008
    names: Mapping[UUID, str] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Compacted:
    """Take all SSTables into the base. THIS WRITES, AND IT FENCES THE WRITERS AND STREAMS of every shard that has any.

    1. read who owns which shard.
    2. open every stream whose shards have SSTables by a driver, every other such shard by a claim and a barrier.
    3. rounds of `compact_round` until none is left.
    4. tidy the base, see `tidy_base`.
    5. streams whose shards native could open: let replay_after pass the new barriers, and unseal again.

    A stream that runs elsewhere is Fenced by its next batch. A crash anywhere leaves a table that is the same to every
    reader, and compacting it again completes it. Raises Fenced if another opener came later, InvalidInput, DataLoss,
    Transient.
    """
    settle_base(home.store)
    step("look")
    holders = Holders.read(home, shard_ids, names or {})
    found = _backlog(holders)
    total, done = sum(one.sstables for one in found), Compacted()
    progress(0, total)
    drivers = [
        StreamDriver.open(home, stream, f"compact-{uuid.uuid4().hex}", shards)
        for stream, shards in sorted(_owned(found).items())
    ]
    claims = {name: claim for driver in drivers for name, claim in driver.claims.items()}
    claims |= _claimed(home, [one.shard_id for one in found if one.owner is None])
    while (one := compact_round(claims, limits)) is not None:
        done = replace(
            done,
            sstables=done.sstables + one.sstables,
            nbytes=done.nbytes + one.nbytes,
            rows=done.rows + one.rows,
            deleted=done.deleted + one.deleted,
            rounds=done.rounds + 1,
        )
        progress(done.sstables, total)
    step("tidy")
    done = replace(done, tidied=tidy_base(home, policy))
    step("unseal")
    for driver in drivers:
        if _was_open(holders, driver.stream):
            driver.close_gaps(driver.settle(run_here, MAX_BYTES))
            driver.unseal()
    return done


def _backlog(holders: Holders) -> list[ShardBacklog]:
    return [_of(holders, shard_id, manifest) for shard_id, manifest in holders.manifests.items() if manifest.sstables]


def _of(holders: Holders, shard_id: UUID, manifest: Manifest) -> ShardBacklog:
    return ShardBacklog(
        shard_id,
        holders.names.get(shard_id),
        manifest.owner,
        manifest.sealed,
        len(manifest.sstables),
        sum(map(size_of, manifest.sstables)),
        sum(sstable.physical_rows or 0 for sstable in manifest.sstables),
    )


def _owned(found: Iterable[ShardBacklog]) -> dict[str, list[str]]:
    """Per stream the shards that wait, by name, or by id if the name is unknown."""
    owned: dict[str, list[str]] = {}
    for one in found:
        if one.owner is not None:
            owned.setdefault(one.owner, []).append(one.name or str(one.shard_id))
    return owned


def _claimed(home: TableHome, ids: list[UUID]) -> dict[str, Claim]:
    def claim(shard_id: UUID) -> Claim:
        return WalAppender.open(Shard(home, shard_id)).claim

    return dict(zip(map(str, ids), parallel.each("claim", claim, ids), strict=True))


def _was_open(holders: Holders, stream: str) -> bool:
    """True if native could open all shards of the stream: it was stopped cleanly."""
    return all(not one.sealed for one in holders.manifests.values() if one.owner == stream)
