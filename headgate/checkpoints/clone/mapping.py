"""Manifests and commit logs of a clone, computed from a checkpoint of its source. Pure.

The clone looks as if a writer had claimed every shard of the source at that instant, put a fence barrier at each tip,
opened every log, and stopped: same rows, positions, generations and offsets, under its own ids. It names no claim of
the source. Nothing is random: the same input gives the same bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID, uuid5

from headgate.checkpoints.log.dead_letters import PREFIX
from headgate.checkpoints.log.records import Fold, OpenRecord, ShardClaim, ShardPart
from headgate.checkpoints.snapshots.checkpoint import PinnedShard, TableCheckpoint
from headgate.errors import Corrupt, DataLoss, InvalidInput
from headgate.shards.manifest.model import CLAIM_ID, WAL_STORE, WRITE_ID, Manifest, SsTable


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """One shard of the source, and its counterpart in the clone."""

    pinned: PinnedShard
    shard_id: UUID
    """Id of the shard in the clone."""
    name: str | None
    sstables: tuple[SsTable, ...]
    """The SSTables that the base has not taken in."""
    skipped: int = 0
    """Number of missing entries without rows at the start of the tail, see `rowless`."""

    @property
    def replay_after(self) -> int:
        """replay_after in the clone, moved past the skipped entries."""
        return self.pinned.manifest.replay_after + self.skipped

    @property
    def tail(self) -> range:
        """The positions that the clone needs. Every entry that the manifest has seen must exist, even if the WAL seems
        to end earlier.
        """
        return range(self.replay_after + 1, max(self.pinned.end, self.pinned.manifest.last_seen + 1))

    @property
    def barrier(self) -> int:
        """Position of the clone's own fence barrier, right above the tail."""
        return max(self.tail.start, self.tail.stop)

    @property
    def claim_id(self) -> str:
        """Claim id in the clone's first manifest."""
        return uuid5(self.shard_id, "clone").hex

    @property
    def entry_id(self) -> str:
        """Entry id of the clone's barrier."""
        return uuid5(self.shard_id, "barrier of the clone").hex


def shard_plans(
    checkpoint: TableCheckpoint, table_id: UUID, marks: Mapping[UUID, int], names: Iterable[str] = ()
) -> list[ShardPlan]:
    """Every shard of the checkpoint as it will be in the clone `table_id`; `marks` are the base's compacted marks.

    Raises Corrupt if the checkpoint does not describe one instant.
    """
    known = {uuid5(checkpoint.table_id, name): name for name in (*_told_names(checkpoint), *names)}
    plans = []
    for shard_id, pinned in checkpoint.shards.items():
        mark = marks.get(shard_id, 0)
        if mark >= pinned.manifest.generation:
            raise Corrupt(
                f"The base of checkpoint {checkpoint.name!r} holds generation {mark}, which is unknown to its shard.",
                shard=str(shard_id),
            )
        sstables = tuple(sstable for sstable in pinned.manifest.sstables if sstable.generation > mark)
        name = known.get(shard_id)
        plans.append(ShardPlan(pinned, _new_id(table_id, shard_id, name), name, sstables))
    listed = {shard_id: folded for fold in checkpoint.streams.values() for shard_id, folded in fold.shards.items()}
    for shard_id, folded in listed.items():
        if shard_id not in checkpoint.shards and not folded.shard.startswith(PREFIX):
            what = (
                f"Checkpoint {checkpoint.name!r} lists rows of shard {folded.shard!r}, but does not contain the shard."
            )
            raise Corrupt(what, shard=str(shard_id))
    return sorted(plans, key=lambda plan: plan.shard_id)


def check_named(plans: Iterable[ShardPlan], table: str) -> None:
    """For tables with a key whose shard names cannot be listed. Raises InvalidInput if a shard has no name.

    Its keys would go to another shard in the clone, and each key would exist twice.
    """
    for plan in plans:
        if plan.name is None and (plan.sstables or plan.tail):
            raise InvalidInput(
                "A shard of a table with a key has rows, but its name is unknown.",
                table=table,
                shard=str(plan.pinned.shard_id),
                advice="pass the names of all shards, such as names=['partition:TOPIC:0', …]; nothing was copied",
            )


def cloned_manifest(plan: ShardPlan, epoch: int, table_id: UUID) -> Manifest:
    """First manifest of a shard of the clone. `epoch` is the highest epoch of its entries, 0 if there are none."""
    manifest = replace(
        plan.pinned.manifest,
        version=1,
        epoch=max(plan.pinned.manifest.epoch, epoch) + 1,
        replay_after=plan.replay_after,
        shard_id=plan.shard_id,
        last_seen=plan.barrier,
        sstables=plan.sstables,
    )
    own = plan.claim_id.encode()
    manifest = manifest.with_field(CLAIM_ID, own).with_field(WRITE_ID, own).with_field(WAL_STORE, None)
    return manifest.as_of(table_id)


def cloned_fold(fold: Fold, checkpoint: TableCheckpoint, table_id: UUID, plans: Mapping[UUID, ShardPlan]) -> Fold:
    """Fold of a stream's log up to the same sequence; `plans` are keyed by the source's shard ids."""

    def mapped(shard_id: UUID, name: str) -> UUID:
        if shard_id in plans:
            return plans[shard_id].shard_id
        return dead_letter_id(checkpoint.table_id, table_id, fold.stream, shard_id, name)

    def parts(of: Mapping[str, ShardPart]) -> dict[str, ShardPart]:
        return {name: replace(part, shard_id=mapped(part.shard_id, name)) for name, part in of.items()}

    last = fold.last
    if last is not None:
        last = replace(last, shards=parts(last.shards), dead_letters=parts(last.dead_letters))
    shards = {mapped(shard_id, folded.shard): folded for shard_id, folded in fold.shards.items()}
    return replace(fold, opened=None, last=last, shards=shards)


def cloned_open(
    fold: Fold, table_id: UUID, plans: Mapping[UUID, ShardPlan], manifests: Mapping[UUID, Manifest]
) -> OpenRecord:
    """The open record above the fold, under the clone's own claims; `manifests` are keyed by the clone's shard ids.

    Shards that the checkpoint does not have are left out: they were claimed after its instant.
    """
    held = {} if fold.opened is None else fold.opened.shards
    claims = {}
    for name, claim in held.items():
        if (plan := plans.get(claim.shard_id)) is not None:
            claims[name] = ShardClaim(plan.shard_id, manifests[plan.shard_id].epoch, plan.claim_id, plan.barrier)
    return OpenRecord(
        record_id=uuid5(table_id, f"open record of {fold.stream}").hex,
        sequence=fold.sequence + 1,
        stream=fold.stream,
        query_id="clone" if fold.opened is None else fold.opened.query_id,
        shards=claims,
        decoder=None if fold.opened is None else fold.opened.decoder,
        ends=() if fold.opened is None else fold.opened.ends,
    )


def dead_letter_id(source_id: UUID, table_id: UUID, stream: str, shard_id: UUID, name: str) -> UUID:
    """Id in the clone of a dead-letter log of the source. Raises Corrupt if the source's id does not match the log's
    name.
    """
    text = f"{name} of {stream}"
    if uuid5(source_id, text) != shard_id:
        raise Corrupt(f"The log of stream {stream!r} lists {name!r} under a wrong id.", shard=name)
    return uuid5(table_id, text)


def rowless(tail: range, listed: Container[int], history: Sequence[Manifest]) -> Collection[int]:
    """Positions of a tail that hold no visible row, whatever is stored there. `listed` are the positions that commit
    records list, `history` the existing manifests up to the pinned one, ascending.

    1. If only streams have held the shard since the tail began: all positions that no record lists, which are barriers
       and dead attempts.
    2. Otherwise rows may be listed nowhere. But an opener that has written a manifest after its claim has put a barrier
       into the tail. If there are as many such barriers as positions, no position is left for rows. All positions, or
       none.
    """
    began = next((i for i, manifest in enumerate(history) if manifest.replay_after >= tail.start - 1), None)
    if began is None:
        return ()
    # Whoever advanced replay_after may have written into the tail: if the first manifest is a claim, its predecessor
    # did.
    claimed = began > 0 and history[began].epoch != history[began - 1].epoch
    since = history[began - 1 if claimed else began :]
    if all(manifest.owner is not None for manifest in since):
        return [position for position in tail if position not in listed]
    if began == 0 and since[0].version > 1:
        return ()  # unknown who wrote before
    # The first opener's barrier lies below the tail; on a new shard it is entry 0.
    epochs = Counter(manifest.epoch for manifest in since if manifest.epoch > since[0].epoch)
    return tail if sum(count > 1 for count in epochs.values()) >= len(tail) else ()


def lost_position(missing: Iterable[int], replay_after: int) -> int | None:
    """The first lost entry among those that a tail lacks; None if none is lost.

    Entries at or below `replay_after` (the source's current one) were flushed since. They are not lost, but the tail is
    no longer the shard's, and the clone starts again from a newer instant (R13).
    """
    return min((position for position in missing if position > replay_after), default=None)


def lost_entry(plan: ShardPlan, position: int, table: str) -> DataLoss:
    """The error for an entry that neither side has."""
    tail = plan.tail
    return DataLoss(
        f"The WAL has a hole: entry {position} of {tail.start} to {tail.stop - 1} is missing, and no SSTable "
        "covers it.",
        table=table,
        shard=str(plan.pinned.shard_id),
        position=position,
        advice="restore the entry, or clone an earlier checkpoint; nothing of the clone was kept",
    )


def _new_id(table_id: UUID, shard_id: UUID, name: str | None) -> UUID:
    return uuid5(table_id, str(shard_id) if name is None else name)


def _told_names(checkpoint: TableCheckpoint) -> Iterable[str]:
    for pinned in checkpoint.shards.values():
        if pinned.name is not None:
            yield pinned.name
    for fold in checkpoint.streams.values():
        yield from (folded.shard for folded in fold.shards.values())
        if fold.opened is not None:
            yield from fold.opened.shards
