"""Claims the shards of a stream, many at once: checks the owners, claims, and checks that the claims still stand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TypeVar
from uuid import UUID

from headgate import parallel
from headgate.checkpoints.log.names import BATCH_STREAM
from headgate.checkpoints.log.records import ShardClaim
from headgate.errors import Fenced, HeadgateError, InvalidInput
from headgate.shards.manifest.decisions import claim_stands
from headgate.shards.manifest.model import Manifest
from headgate.shards.shard import Claim, TableHome
from headgate.shards.wal.appender import WalAppender

T = TypeVar("T")
R = TypeVar("R")


def check_owners(
    home: TableHome,
    stream: str,
    names: Iterable[str],
    known: Mapping[str, Manifest] = MappingProxyType({}),
    free: Callable[[list[str]], object] = lambda held: None,
) -> dict[str, Manifest | None]:
    """Refuse another stream's shard before any shard is claimed. The claims refuse it as well, but not all at once.

    Returns the manifests as they were read, for the claims; `known` are manifests that were read before. `free` is
    called with the shards that batch writes hold, which are then read again.
    """

    def latest(name: str) -> Manifest | None:
        return home.shard(name).manifests.latest(known.get(name))

    names = list(names)
    read = dict(zip(names, of_shards(home, latest, names), strict=True))
    held = [name for name, stored in read.items() if stored is not None and stored.owner == BATCH_STREAM != stream]
    if held:
        free(held)
        read |= zip(held, of_shards(home, latest, held), strict=True)
    for name, stored in read.items():
        if stored is not None and stored.owner not in (None, stream):
            raise InvalidInput(
                f"Shard {name!r} belongs to stream {stored.owner!r} but stream {stream!r} opened it.",
                **home.shard(name).where(),
                stored_epoch=stored.epoch,
                advice=f"write with stream {stored.owner!r}, or release the shard first (`headgate shard release TABLE "
                f"--stream {stored.owner} --forget-owner --apply`); nothing was written",
            )
    return read


def claim_all(
    home: TableHome, stream: str, read: Mapping[str, Manifest | None], listed: Mapping[UUID, int]
) -> dict[str, WalAppender]:
    """Claim and barrier every shard. THIS WRITES, AND IT FENCES EARLIER WRITERS.

    `read` are the manifests from `check_owners`, `listed` has the last position per shard that the stream's log lists.
    Raises as WalAppender.open does.
    """

    def claim(name: str) -> WalAppender:
        shard = home.shard(name)
        try:
            last = listed.get(shard.id)
            return WalAppender.open(shard, owner=stream, last_known=last, read=lambda: read[name])
        except HeadgateError as error:
            error.with_context(stream=stream, name=name)
            raise

    return dict(zip(read, of_shards(home, claim, read), strict=True))


def check_held(opened: Mapping[str, WalAppender]) -> dict[UUID, Manifest]:
    """Check that every claim still stands. A claim is safe only if it stands after the open record (R3). Returns the
    manifests that were read.
    """

    def check(appender: WalAppender) -> Manifest:
        claim = appender.claim
        stored = claim.shard.manifests.latest(appender.opened)
        if stored is None or not claim_stands(stored, claim.epoch, claim.claim_id, claim.next_position - 1):
            raise Fenced(
                "Another driver claimed the stream's shard while this driver was starting.",
                **claim.shard.where(),
                epoch=claim.epoch,
                stored_epoch=stored.epoch if stored else None,
            )
        return stored

    home = next((one.shard.home for one in opened.values()), None)
    checked = [] if home is None else of_shards(home, check, opened.values())
    return {manifest.shard_id: manifest for manifest in checked}


def of_shards(home: TableHome, call: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """One call for each shard of a stream. The number of concurrent calls depends on the store."""
    workers = parallel.WORKERS if home.store.is_near and home.wal_store.is_near else parallel.WIDE
    return parallel.each("claim", call, items, workers=workers)


def shard_claims(claims: Mapping[str, Claim]) -> dict[str, ShardClaim]:
    """The claims as an open record lists them."""
    return {
        name: ShardClaim(claim.shard.id, claim.epoch, claim.claim_id, claim.next_position - 1)
        for name, claim in claims.items()
    }
