"""The decisions about positions of one shard. Pure: no store, no clock, no Spark.

How far replay_after may go (R1), where the next batch is planned (R4), what a record may list, what is visible, and
whether a snapshot holds (R11). The exhaustive tests drive these functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from uuid import UUID

from headgate.checkpoints.log.records import Batch, Span
from headgate.checkpoints.log.state import Head, ShardPositions
from headgate.errors import InvalidInput


def settled_position(head: Head, shard_id: UUID, *, barrier: int | None = None) -> int | None:
    """The position up to which every entry is decided, so replay_after may move to it (R1). None if there is none.

    It is the higher of the driver's own barrier (from its open record, or given for a shard that it claimed later) and
    the last position that a record lists.
    """
    known = [
        position for position in (_barrier(head, shard_id, barrier), head.listed.get(shard_id)) if position is not None
    ]
    return max(known, default=None)


def next_plan(head: Head, shard_id: UUID, *, barrier: int | None = None, advanced: int | None = None) -> int:
    """Where all attempts of the next batch start (R4): above the barrier, the last listed position, and `advanced`.

    `advanced` is the replay_after that this driver itself has written or is about to write. A manifest that another
    wrote must never raise the plan: it would hide that we are fenced.
    """
    settled = settled_position(head, shard_id, barrier=barrier)
    if settled is None:
        raise InvalidInput("The batch has rows for a shard that this driver did not claim.", shard=str(shard_id))
    return max(settled, -1 if advanced is None else advanced) + 1


def checkpoint_limit(
    head: Head, shard_id: UUID, *, next_position: int, planned: int | None, barrier: int | None = None
) -> int | None:
    """How far checkpoint(all) may move replay_after once everything visible is flushed (R1).

    Over barriers and dead entries up to the position before `next_position`, but never to or past `planned`, where the
    batch in flight starts (None: no batch is in flight). None if the shard has nothing settled: then it must not move
    at all.
    """
    settled = settled_position(head, shard_id, barrier=barrier)
    if settled is None:
        return None
    if planned is None:
        return max(settled, next_position - 1)
    return min(next_position, planned) - 1


def flush_limit(listed: Iterable[int], folded: Iterable[Span]) -> int | None:
    """How far a flush goes: to the last position that a record lists (R1). None if there is nothing to flush.

    `listed` and `folded` are the visible positions above replay_after.
    """
    return max([*listed, *(last for _, last in folded)], default=None)


def is_visible(attempt_id: str | None, position: int, positions: ShardPositions | None) -> bool:
    """The one rule: an entry without an attempt is visible, any other only if a record lists its position.

    Above the fold the record must list the same attempt.
    """
    if attempt_id is None:
        return True
    if positions is None or not positions.lists(position):
        return False
    return positions.attempts.get(position, attempt_id) == attempt_id


def is_stale(replay_after: int, latest: int, end: int | None) -> bool:
    """True if the tail of a WAL that was read above `replay_after` is no longer the shard's current tail (R11).

    `latest` is the replay_after of a manifest that was read after the tail, `end` the first free position; None if an
    entry was missing. False then means a loss: no flush explains it.
    """
    return latest > replay_after if end is None else end <= latest


def check_listable(head: Head, batch: Batch, replay_after: Mapping[UUID, int]) -> None:
    """Raises InvalidInput if a record must not list these positions.

    Each must lie above replay_after (R4: no replay would read it), above the barrier of the
    claim it was written under, and above all that was listed before (it would count twice).
    """
    for name, part in batch.parts():
        first = part.positions[0]
        floors = {
            "the barrier of this driver": _barrier(head, part.shard_id, None),
            "replay_after": replay_after.get(part.shard_id),
            "the last listed position": head.listed.get(part.shard_id),
        }
        for what, floor in floors.items():
            if floor is not None and first <= floor:
                raise InvalidInput(
                    f"The batch lists position {first}, which must be above {what}, {floor}.",
                    shard=name,
                    position=first,
                    advice="write the batch's entries again, above that position; no record was written",
                )


def _barrier(head: Head, shard_id: UUID, given: int | None) -> int | None:
    claim = None if head.opened is None else head.opened.claim_of(shard_id)
    own = None if claim is None else claim.barrier
    return own if given is None else max(given, -1 if own is None else own)
