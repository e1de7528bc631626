"""Claiming the shards of a stream, many at once: whose they are, the claims, and whether these still stand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from uuid import UUID

from headgate import parallel
from headgate.checkpoints.log.records import ShardClaim
from headgate.errors import Fenced, HeadgateError, InvalidInput
from headgate.shards.manifest.decisions import claim_stands
from headgate.shards.manifest.model import Manifest
from headgate.shards.shard import Claim, TableHome
from headgate.shards.wal.appender import WalAppender


def check_owners(home: TableHome, stream: str, names: Iterable[str]) -> None:
    """Refuse another stream's shard before any is claimed. The claims refuse it as well, but not all at once."""

    def check(name: str) -> None:
        shard = home.shard(name)
        stored = shard.manifests.latest()
        if stored is not None and stored.owner not in (None, stream):
            raise InvalidInput(
                f"Shard {name!r} belongs to stream {stored.owner!r} but stream {stream!r} opened it.",
                **shard.where(),
                stored_epoch=stored.epoch,
                advice=f"write with stream {stored.owner!r}, or release the shard first (`headgate shard release`); "
                "nothing was written",
            )

    parallel.each("claim", check, names)


def claim_all(home: TableHome, stream: str, names: Iterable[str], listed: Mapping[UUID, int]) -> dict[str, Claim]:
    """Claim and barrier every shard. THIS WRITES, AND IT FENCES EARLIER WRITERS.

    `listed` is per shard the last position that the stream's log lists. Raises as WalAppender.open does.
    """

    def claim(name: str) -> Claim:
        shard = home.shard(name)
        try:
            return WalAppender.open(shard, owner=stream, last_known=listed.get(shard.id)).claim
        except HeadgateError as error:
            error.with_context(stream=stream, name=name)
            raise

    names = list(names)
    return dict(zip(names, parallel.each("claim", claim, names), strict=True))


def check_held(claims: Iterable[Claim]) -> dict[UUID, Manifest]:
    """Only after the open record is a claim that still stands safe (R3). The manifests as they were read then."""

    def check(claim: Claim) -> Manifest:
        stored = claim.shard.manifests.latest()
        if stored is None or not claim_stands(stored, claim.epoch, claim.claim_id, claim.next_position - 1):
            raise Fenced(
                "Another driver claimed the stream's shard while this driver was starting.",
                **claim.shard.where(),
                epoch=claim.epoch,
                stored_epoch=stored.epoch if stored else None,
            )
        return stored

    return {manifest.shard_id: manifest for manifest in parallel.each("claim", check, claims)}


def shard_claims(claims: Mapping[str, Claim]) -> dict[str, ShardClaim]:
    """The claims as an open record lists them."""
    return {
        name: ShardClaim(claim.shard.id, claim.epoch, claim.claim_id, claim.next_position - 1)
        for name, claim in claims.items()
    }
