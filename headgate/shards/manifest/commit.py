"""Committing one flushed generation: the SSTable, replay_after and the next generation in one manifest write."""

from __future__ import annotations

from headgate.errors import Fenced, Transient
from headgate.shards.manifest import decisions
from headgate.shards.manifest.model import Manifest, SsTable
from headgate.shards.manifest.store import ManifestStore
from headgate.shards.shard import Claim


class _Landed(Exception):
    """The manifest already names the SSTable: an earlier try succeeded but its response was lost."""


def commit_generation(
    manifests: ManifestStore, claim: Claim, sstable: SsTable, *, started_from: int, last_position: int
) -> Manifest:
    """Commit the SSTable that covers the shard's rows up to `last_position`. Returns the current manifest.

    1. the claim still holds, otherwise Fenced.
    2. replay_after and generation are what the flush started from, otherwise it is abandoned: Fenced (R9).
    3. compare-and-set. If the manifest already names the SSTable, an earlier try landed.
    4. if the outcome is unknown, read the manifest again: it names the SSTable if the write landed.

    It may be arbitrarily late: garbage collection deletes the SSTable only when 1 or 2 must fail (R20). Raises
    Transient if the outcome is unknown; calling again finds out.
    """

    def covered(stored: Manifest) -> Manifest:
        if decisions.is_covered(stored, sstable):
            raise _Landed
        changed = decisions.covered(stored, sstable, started_from=started_from, last_position=last_position)
        if changed is None:
            raise Fenced(
                "Another job flushed this shard under the same claim.",
                **claim.shard.where(),
                epoch=claim.epoch,
                stored_epoch=stored.epoch,
            )
        return changed

    try:
        return manifests.commit_update(claim.claim_id, claim.epoch, covered)
    except _Landed:
        return manifests.held(claim.epoch, claim.claim_id)
    except Transient:
        stored = manifests.check_fenced(claim.epoch, claim.claim_id)
        if stored is None or not decisions.is_covered(stored, sstable):
            raise
        return stored
