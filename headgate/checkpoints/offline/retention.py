"""Retention if the WAL is the table: an explicit record expires entries up to a position (R18).

A WAL-only stream never flushes, so its WAL grows forever unless someone says that old rows are not wanted. Promises:
1. Only settled entries of WAL-only streams, and of direct writers' shards that are named, are expired; never a part of
   an entry.
2. Before anything changes, a record of what is expired, and on whose request, is durable; it stays forever.
3. Expiry takes over the stream: whoever runs it is fenced, and nothing of a batch in flight counts.
4. A crash anywhere leaves a table without gaps; the same call completes it.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, TypeAlias
from uuid import UUID

from headgate import clock
from headgate.checkpoints.jobs.advance import close_gap
from headgate.checkpoints.log.names import no_stream
from headgate.checkpoints.offline.checkpoint import Holders
from headgate.checkpoints.snapshots.checkpoint import CheckpointStore
from headgate.checkpoints.stream.driver import StreamDriver
from headgate.errors import AlreadyExists, InvalidInput
from headgate.records import fields_of, text_of
from headgate.shards.manifest.model import Manifest
from headgate.shards.rows.sstable import open_base
from headgate.shards.shard import Claim, Shard, TableHome
from headgate.shards.wal.appender import WalAppender
from headgate.shards.wal.listing import entries
from headgate.steps import step

ROOT = "expired/"
"""Below the folder of the table's own records: one folder per shard, one record per position up to which entries
expired.
"""


@dataclass(frozen=True, slots=True)
class BeforePosition:
    """Entries below a position of the one named shard."""

    position: int


@dataclass(frozen=True, slots=True)
class BeforeCheckpoint:
    """Entries that existed when a checkpoint was taken."""

    name: str


@dataclass(frozen=True, slots=True)
class OlderThan:
    """Entries that the store took longer ago than this."""

    age: timedelta


Before: TypeAlias = BeforePosition | BeforeCheckpoint | OlderThan


@dataclass(frozen=True, slots=True)
class Expiry:
    """Expiry of one shard: entries (replay_after, upto] are expired."""

    shard_id: UUID
    name: str | None
    stream: str | None
    replay_after: int
    upto: int
    entries: int
    nbytes: int

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "shard": str(self.shard_id),
            "name": self.name,
            "stream": self.stream,
            "replay_after": self.replay_after,
            "upto": self.upto,
            "entries": self.entries,
            "bytes": self.nbytes,
        }


def plan_expiry(
    home: TableHome,
    shard_ids: Iterable[UUID],
    before: Before,
    *,
    stream: str | None = None,
    shard: UUID | None = None,
    names: Mapping[UUID, str] | None = None,
) -> list[Expiry]:
    """What would be expired, of one stream, one shard, or every WAL-only stream. Reads only; ages by this machine's
    clock.

    Raises InvalidInput if nothing may be expired, NotFound if the checkpoint does not exist.
    """
    holders = Holders.read(home, shard_ids, names or {})
    chosen = _chosen(home, holders, before, stream, shard)
    ends = _ends(home, before)
    now = clock.now()
    return [_expiry(Shard(home, one), holders.manifests[one], holders, before, ends, now) for one in chosen]


def expire(
    home: TableHome,
    shard_ids: Iterable[UUID],
    before: Before,
    *,
    stream: str | None = None,
    shard: UUID | None = None,
    names: Mapping[UUID, str] | None = None,
) -> list[Expiry]:
    """Expire the entries. THIS WRITES, AND IT FENCES THE STREAMS AND WRITERS of these shards. Returns what was expired,
    per shard:

    1. read who owns which shard; refuse streams with MemTables, and tables with a key whose older rows would come back.
    2. open: claims, barriers and open records (R16). Ages are by the store's clock, taken from the barrier.
    3. put the record of what is expired, per shard.
    4. raise the plan, then move replay_after, never past the settled position (R1, R4).
    5. fold the logs.

    Garbage collection deletes the entries later, unless a checkpoint pins them. Raises as `plan_expiry`, and Fenced,
    Transient, DataLoss.
    """
    step("look")
    holders = Holders.read(home, shard_ids, names or {})
    chosen = _chosen(home, holders, before, stream, shard)
    ends = _ends(home, before)
    done: list[Expiry] = []
    for owner, shards in _by_owner(home, holders, chosen).items():
        if owner is None:
            done += [_expire_shard(one, holders, before, ends) for one in shards]
        else:
            done += _expire_stream(home, owner, shards, holders, before, ends)
    return done


def _expire_stream(
    home: TableHome,
    stream: str,
    shards: Sequence[Shard],
    holders: Holders,
    before: Before,
    ends: Mapping[UUID, int],
) -> list[Expiry]:
    query_id = f"expire-{uuid.uuid4().hex}"
    driver = StreamDriver.open(home, stream, query_id, holders.owned[stream])
    goes: dict[str, Expiry] = {}
    for name, claim in driver.claims.items():
        if claim.shard in shards:
            goes[name] = _held_expiry(claim, holders, before, ends)
            _put_record(home, before, goes[name])
    step("advance")
    driver.pass_over({name: one.upto for name, one in goes.items()})
    step("fold")
    driver.fold()
    return list(goes.values())


def _expire_shard(shard: Shard, holders: Holders, before: Before, ends: Mapping[UUID, int]) -> Expiry:
    appender = WalAppender.open(shard)
    assert appender.opened is not None
    goes = _held_expiry(appender.claim, holders, before, ends)
    _put_record(shard.home, before, goes)
    step("advance")
    close_gap(appender.claim, appender.opened, goes.upto)
    return goes


# -- what may expire ----------------------------------------------------------------


def _chosen(home: TableHome, holders: Holders, before: Before, stream: str | None, shard: UUID | None) -> list[UUID]:
    """The shards to expire. Raises InvalidInput, NotFound for a stream that the table does not have."""
    if isinstance(before, BeforePosition) and shard is None:
        raise InvalidInput(
            "A position needs a shard.", advice="name the shard with --shard, or give an age or a checkpoint"
        )
    if stream is not None and stream not in holders.logs:
        raise no_stream(stream, holders.logs, home.uri)
    if shard is not None:
        found = [shard] if shard in holders.manifests else []
    else:
        streams = holders.wal_only if stream is None else [stream]
        found = [one for one, manifest in holders.manifests.items() if manifest.owner in streams]
    if not found:
        raise InvalidInput(
            "No shard of a WAL-only stream found.",
            table=home.uri,
            known=", ".join(holders.wal_only) or None,
            advice="name a shard with --shard, or a WAL-only stream with --stream; nothing was written",
        )
    for one in found:
        _check_retention(Shard(home, one), holders.manifests[one], holders)
    return sorted(found)


def _check_retention(shard: Shard, manifest: Manifest, holders: Holders) -> None:
    owner = manifest.owner
    if owner is not None and owner not in holders.wal_only:
        raise InvalidInput(
            f"Stream {owner!r} does not write WAL only: its rows go to SSTables and cannot be expired.",
            **shard.where(),
            advice="take a checkpoint of scope all instead: then garbage collection can delete its WAL; nothing was "
            "written",
        )
    if shard.home.schema.primary_key and (manifest.sstables or open_base(shard.home).dataset.count_rows()):
        raise InvalidInput(
            "The table has a key and older rows outside the WAL: rows that were deleted or replaced would reappear.",
            **shard.where(),
            advice="flush and compact instead (`headgate shard release`); nothing was written",
        )


def _by_owner(home: TableHome, holders: Holders, chosen: Sequence[UUID]) -> dict[str | None, list[Shard]]:
    found: dict[str | None, list[Shard]] = {}
    for shard_id in chosen:
        found.setdefault(holders.manifests[shard_id].owner, []).append(Shard(home, shard_id))
    return found


def _ends(home: TableHome, before: Before) -> Mapping[UUID, int]:
    """Per shard, the first position that is not in the checkpoint."""
    if not isinstance(before, BeforeCheckpoint):
        return {}
    pinned = CheckpointStore(home.records, home.uri).get(before.name).checkpoint.shards
    return {shard_id: one.end for shard_id, one in pinned.items()}


def _held_expiry(claim: Claim, holders: Holders, before: Before, ends: Mapping[UUID, int]) -> Expiry:
    """The expiry under a claim: by the store's clock, taken from the barrier, and no further than the barrier."""
    manifest = claim.shard.manifests.held(claim.epoch, claim.claim_id)
    barrier = claim.next_position - 1
    now = claim.shard.wal.head(claim.shard.wal_key(barrier)).modified
    planned = _expiry(claim.shard, manifest, holders, before, ends, now)
    return replace(planned, upto=min(planned.upto, barrier))


def _expiry(
    shard: Shard, manifest: Manifest, holders: Holders, before: Before, ends: Mapping[UUID, int], now: datetime
) -> Expiry:
    infos = {position: info for position, info in entries(shard).items() if position > manifest.replay_after}
    last = max(infos, default=manifest.replay_after)
    if isinstance(before, BeforePosition):
        upto = before.position - 1
    elif isinstance(before, BeforeCheckpoint):
        upto = ends.get(shard.id, 0) - 1
    else:
        young = [position for position, info in infos.items() if info.modified > now - before.age]
        upto = min(young, default=last + 1) - 1
    upto = max(manifest.replay_after, min(upto, last))
    goes = [info.size for position, info in infos.items() if position <= upto]
    return Expiry(
        shard.id, holders.names.get(shard.id), manifest.owner, manifest.replay_after, upto, len(goes), sum(goes)
    )


# -- the record --------------------------------------------------------------------


def _put_record(home: TableHome, before: Before, expiry: Expiry) -> None:
    """Put the record, once per position. Idempotent."""
    step("record")
    if expiry.upto <= expiry.replay_after:
        return
    content = {
        "kind": "expire",
        **expiry.to_json(),
        "before": _told(before),
        "expired_at": clock.now().isoformat(timespec="seconds"),
    }
    data = text_of(content)
    with suppress(AlreadyExists):
        home.records.put_if_absent(f"{ROOT}{expiry.shard_id}/{expiry.upto:020d}.json", data)


def read_expired(home: TableHome, shard_id: UUID) -> list[dict[str, Any]]:
    """The records of a shard, oldest first, as plain values. Raises Corrupt."""
    folder = f"{ROOT}{shard_id}/"
    keys = sorted(info.key for info in home.records.list(folder))
    return [fields_of(home.records.get(key), "A record of expired entries") for key in keys]


def _told(before: Before) -> str:
    if isinstance(before, BeforePosition):
        return f"position {before.position}"
    if isinstance(before, BeforeCheckpoint):
        return f"checkpoint {json.dumps(before.name)}"
    return f"age {before.age.total_seconds():.0f} s"
