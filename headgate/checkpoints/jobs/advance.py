"""Closing the gap that a flush leaves: replay_after passes the barriers and dead entries behind the last row.

Without it the fence barrier of every start keeps one entry of the WAL forever, and native would replay dead entries of
a stream as rows. Promise: nothing visible is passed, because the caller has flushed up to there and the manifest still
is what that flush left (R9).
"""

from __future__ import annotations

from dataclasses import replace

from headgate.errors import Fenced, InvalidInput
from headgate.shards.manifest.model import OWNER, Manifest
from headgate.shards.shard import Claim


def close_gap(claim: Claim, flushed: Manifest, upto: int) -> Manifest:
    """Move replay_after to `upto`, if the manifest is still the one that the last flush wrote. Returns the current
    manifest.

    Idempotent. Raises Fenced if the claim is lost or another job changed the shard, Transient if the outcome is
    unknown.
    """
    if flushed.replay_after >= upto:
        return flushed

    def closed(stored: Manifest) -> Manifest:
        if (after := without_gap(stored, flushed, upto)) is None:
            raise Fenced(
                "Another job changed this shard under the same claim.",
                **claim.shard.where(),
                epoch=claim.epoch,
                stored_epoch=stored.epoch,
            )
        return after

    return claim.shard.manifests.commit_update(claim.claim_id, claim.epoch, closed, upon=flushed)


def without_gap(stored: Manifest, flushed: Manifest, upto: int) -> Manifest | None:
    """The manifest with replay_after at `upto`. None if it is not the one that the flush wrote: then nothing is known
    of it.

    If replay_after has passed the gap already, an earlier try succeeded but its response was lost: returns the same
    again.
    """
    if stored.generation != flushed.generation or stored.replay_after not in (flushed.replay_after, upto):
        return None
    return replace(stored, replay_after=upto, last_seen=max(stored.last_seen, upto))


def unseal(claim: Claim, *, forget_owner: bool = False, known: Manifest | None = None) -> Manifest:
    """Let native in: the shard is no longer sealed. Its owner stays the stream, which seals it at its next start; with
    `forget_owner` any other stream or writer may open it as well. `known` is the manifest as this holder wrote it last.

    Only if the WAL holds nothing above replay_after but this claim's own barrier, or less: native replays everything it
    finds there. Raises InvalidInput otherwise, Fenced, Transient.
    """
    barrier = claim.next_position - 1

    def opened(stored: Manifest) -> Manifest:
        if (after := unsealed(stored, barrier, forget_owner=forget_owner)) is None:
            raise InvalidInput(
                f"The shard was not released: entries above position {stored.replay_after} are not in an SSTable yet.",
                **claim.shard.where(),
                position=barrier,
                advice="take a checkpoint of scope all first",
            )
        return after

    return claim.shard.manifests.commit_update(claim.claim_id, claim.epoch, opened, upon=known)


def unsealed(stored: Manifest, barrier: int, *, forget_owner: bool = False) -> Manifest | None:
    """The manifest that lets native in. None if replay_after has not reached the claim's own barrier."""
    if stored.replay_after < barrier:
        return None
    return replace(stored.with_field(OWNER, None) if forget_owner else stored, sealed=False)
