"""The decisions of a shard's protocol. Pure: no store, no clock.

Who holds a shard (R3, R7), where to search for the tip, what an existing entry in a slot means (R10), the fate of an
unanswered put (R24), what a flush may commit (R9), and which SSTables the base contains (R11). The exhaustive tests
drive these functions.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from uuid import UUID

from headgate.shards.manifest.model import CLAIM_ID, OWNER, WRITE_ID, Manifest, SsTable

# -- who holds the shard -----------------------------------------------------------


def claimed(
    previous: Manifest | None,
    shard_id: UUID,
    *,
    owner: str | None,
    claim_id: str,
    write_id: str,
    spec_id: int,
    table_id: UUID | None = None,
) -> Manifest:
    """The manifest that a claim puts after `previous` (None: the shard is new).

    With an owner the shard is sealed, so that native keeps out. `spec_id` is for a new shard only.
    """
    base = previous or Manifest(version=0, epoch=0, shard_id=shard_id, spec_id=spec_id)
    claim = replace(base, version=base.version + 1, epoch=base.epoch + 1, sealed=owner is not None)
    claim = claim.with_field(CLAIM_ID, claim_id.encode()).with_field(WRITE_ID, write_id.encode())
    claim = claim.as_of(table_id)
    return claim if owner is None else claim.with_field(OWNER, owner.encode())


def is_fenced(stored: Manifest | None, epoch: int, claim_id: str | None) -> bool:
    """True if the latest manifest fences a writer of this epoch (and claim id, where given).

    No manifest, or a lower stored epoch, fences nobody.
    """
    return stored is not None and (
        stored.epoch > epoch or (stored.epoch == epoch and claim_id is not None and stored.claim_id != claim_id)
    )


def is_ghost(stored: Manifest | None, epoch: int, claim_id: str) -> bool:
    """True if a claim that is not the latest version never was the latest: its version had been collected when it was
    put.

    `stored` is the latest. If the holder's epoch is higher, this is an ordinary claim that was overtaken.
    """
    return stored is not None and stored.epoch <= epoch and not stored.held_by(epoch, claim_id)


def follows(stored: Manifest, written: Manifest) -> bool:
    """True if a later manifest of the same claim may have been based on `written`: no value that only grows is smaller.

    Otherwise `written` was put at a version that had been replaced and collected, and nobody will ever read it.
    """
    return (stored.replay_after, stored.last_seen, stored.generation) == (
        max(stored.replay_after, written.replay_after),
        max(stored.last_seen, written.last_seen),
        max(stored.generation, written.generation),
    )


def claim_stands(stored: Manifest | None, epoch: int, claim_id: str, barrier: int) -> bool:
    """The re-read after the barrier (R3): True if the latest manifest carries our claim, and the barrier lies above its
    replay_after. A barrier at 0 is that of a fresh shard: no replay_after covers it.
    """
    return stored is not None and stored.held_by(epoch, claim_id) and not 0 < barrier <= stored.replay_after


# -- positions ---------------------------------------------------------------------


def replay_start(manifest: Manifest | None) -> int:
    """The first position that no SSTable covers."""
    return 0 if manifest is None else manifest.replay_after + 1


def search_start(manifest: Manifest | None, last_known: int | None) -> int:
    """Where to start searching for the tip: above every entry that is known to exist; `last_known` is the last position
    that the caller knows. Entry 0 is always the barrier of a fresh shard: with a manifest, the search starts above it.
    """
    known = -1 if manifest is None else max(manifest.last_seen, manifest.replay_after)
    return max(known, -1 if last_known is None else last_known) + 1


class Slot(Enum):
    """What an existing entry in a slot means for the writer that wanted the slot."""

    OURS = "ours: a response was lost, the entry is durable"
    STALE = "stale: the next position"
    FENCED = "a successor's: stop, final"


def entry_in_the_way(*, entry_id: str, epoch: int, stored_id: str | None, stored_epoch: int) -> Slot:
    """Decides whose entry occupies the position that entry `entry_id` of `epoch` wants (R10)."""
    if stored_id == entry_id:
        return Slot.OURS
    return Slot.FENCED if stored_epoch > epoch else Slot.STALE


class Fate(Enum):
    """What a stopping writer reports about a put (R24)."""

    LANDED = "durable"
    FAILED = "not durable, and never will be: safe to write again"
    UNKNOWN = "it may be durable, or become so: ask again after the next open"


def fate(*, sent: bool, slot: Slot | None) -> Fate:
    """The fate of a put: `sent` is True if a request was sent for it; `slot` is what was read in the last request's
    slot (None if nothing was).
    """
    if not sent:
        return Fate.FAILED
    if slot is None:
        return Fate.UNKNOWN
    return Fate.LANDED if slot is Slot.OURS else Fate.FAILED


# -- flushing and compacting ---------------------------------------------------------


def is_covered(stored: Manifest, sstable: SsTable) -> bool:
    """True if the manifest already names the SSTable: an earlier try succeeded but its response was lost."""
    return any(there.path == sstable.path for there in stored.sstables)


def covered(stored: Manifest, sstable: SsTable, *, started_from: int, last_position: int) -> Manifest | None:
    """The manifest that commits a flush: the SSTable, replay_after and the next generation together.

    None if replay_after or generation are not what the flush started from: then it is abandoned (R9).
    """
    if (stored.replay_after, stored.generation) != (started_from, sstable.generation):
        return None
    return replace(
        stored,
        replay_after=last_position,
        last_seen=max(stored.last_seen, last_position),
        generation=sstable.generation + 1,
        sstables=(*stored.sstables, sstable),
    )


def uncompacted(sstables: tuple[SsTable, ...], generation: int, mark: int) -> tuple[SsTable, ...] | None:
    """The SSTables above the base's mark for the shard, which the base has not taken in.

    None if the mark is of a later flush than the caller knows, whose unflushed rows are of `generation`. Then some of
    those rows are in the base as well: read the manifest again (R11).
    """
    if mark >= generation:
        return None
    return tuple(sstable for sstable in sstables if sstable.generation > mark)
