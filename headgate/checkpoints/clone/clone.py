"""Clone: an independent copy of a table at one instant, fresh rows included.

Promises:
1. The clone holds exactly the visible rows of its source at that instant, from the base, the SSTables and the WALs, and
   every stream continues where it was in the source, with its own log.
2. The source is neither fenced nor disturbed. During the clone it has a checkpoint (and its tag); for a shallow clone
   it keeps one tag, because the clone's base reads the source's files.
3. The clone exists from one compare-and-set on. A crash before leaves no table; the same call completes it.
4. A lost entry is DataLoss. Then only a record of the abandoned clone is left, so that a sleeping caller cannot
   complete it (R20); the next call at that destination completes an interrupted removal. After any other error the
   intent stays, and the same call continues. A missing entry without rows at the start of a WAL (a barrier, a dead
   attempt) is not a loss: it is skipped, and the clone's replay_after is adjusted.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from uuid import UUID

from headgate import clock
from headgate.checkpoints.clone.build import CloneTarget, flip, make_base, make_shards, named, remove
from headgate.checkpoints.clone.copy import MovedOn, Progress, clone_start, copy_all, no_progress
from headgate.checkpoints.clone.intent import (
    OUTCOMES,
    CloneIntent,
    forget_given_up,
    put_intent,
    read_given_up,
    read_intent,
    same_call,
)
from headgate.checkpoints.clone.mapping import ShardPlan, check_named, shard_plans
from headgate.checkpoints.snapshots.at_checkpoint import base_at
from headgate.checkpoints.snapshots.checkpoint import CheckpointStore, TableCheckpoint
from headgate.checkpoints.snapshots.take import drop, take
from headgate.connectors.lance.base import clone as lance_clone
from headgate.connectors.lance.base.damage import set_aside_unborn
from headgate.connectors.lance.base.marks import compacted_marks
from headgate.connectors.lance.base.synced import sync_base
from headgate.connectors.lance.base.tags import hold_version
from headgate.errors import DataLoss, InvalidInput, NotFound, Transient
from headgate.shards.shard import TableHome
from headgate.steps import step

TRIES = 8
"""A try fails if the source was flushed and collected during the copy, which is rare."""

CLONE_STEPS = (
    "looked",
    "intended",
    "pinned",
    "copied",
    "manifests",
    "barriers",
    "logs",
    "tagged",
    "base",
    "recorded",
    "cloned",
    "released",
)
"""The steps of `clone_table`, in order; "pinned" to "copied" are repeated if the source changed."""


@dataclass(frozen=True)
class CloneSource:
    """The table to clone."""

    home: TableHome
    shard_ids: Callable[[], Iterable[UUID]]
    """Ids of its current shards."""
    names: Sequence[str] = ()
    """Possible names of its shards."""
    all_named: bool = False
    """True if every shard must have a name; otherwise rows of a key could go to another shard in the clone."""


def clone_table(
    source: CloneSource,
    target: CloneTarget,
    *,
    checkpoint: str | None = None,
    progress: Progress = no_progress,
) -> UUID:
    """Clone a named checkpoint or the current source. Returns the clone's table id.

    1. check the arguments. The destination must be empty, or contain this unfinished clone.
    2. intent: record the clone under a new random id; after a crash, read the existing one.
    3. pin: the named checkpoint, or a new one. Then check if the clone exists already: its maker has then released its
       pin, and ours is of a later instant.
    4. copy the WAL tails, SSTables and dead letters. Entries that are missing at the start of a tail and held no rows
       are skipped. Entries that were flushed and collected meanwhile: from 3 again with a new pin (R13). A lost one:
       everything is removed, DataLoss.
    5. shards: the first manifest of each, then a fence barrier above its tail.
    6. logs: per stream one fold at the same sequence, and an open record above it.
    7. base: a tag on the source where its files will be shared, then the clone, then the table's record.
    8. flip: take the clone's outcome, for which a removal competes (R20); then set the clone's id in the base, by
       compare-and-set. From here the clone exists.
    9. sync the base, the source's files in a shallow clone included: from here the clone survives a power cut (R21).
    10. release our own pin.

    Everything before 8 can be repeated, so two callers with the same arguments do no harm. Raises InvalidInput,
    NotFound (no such checkpoint), DataLoss, StoreError, Transient.
    """
    intent = _look(source.home, target, checkpoint)
    step("looked")
    intent = put_intent(target.store, intent)
    step("intended")
    set_aside_unborn(target.store)
    if not _exists(target, intent) and (copied := _copied(source, target, intent, progress)) is not None:
        step("copied")
        try:
            _make(source, target, intent, *copied)
        except InvalidInput:
            # The files may belong to a clone that another caller has completed, and that has gone on since.
            if not _exists(target, intent):
                raise
    sync_base(target.store)
    step("cloned")
    _release(source.home, intent)
    step("released")
    return intent.table_id


def _make(
    source: CloneSource, target: CloneTarget, intent: CloneIntent, pinned: TableCheckpoint, plans: list[ShardPlan]
) -> None:
    """Steps 5 to 8."""
    make_shards(_home(source.home, target, intent), pinned, plans, intent)
    make_base(source.home, target, pinned, intent)
    flip(target, intent)


# -- 1 to 3: what to clone -----------------------------------------------------------------


def _look(home: TableHome, target: CloneTarget, checkpoint: str | None) -> CloneIntent:
    """The existing intent, or a new one, after removing the rest of an abandoned clone. Raises InvalidInput if the
    destination holds anything else.
    """
    assert home.table_id is not None
    if target.store.uri == home.uri or target.store.uri.startswith(home.uri.rstrip("/") + "/"):
        raise InvalidInput("A table cannot be cloned onto or into itself.", source=home.uri, target=target.store.uri)
    if not target.deep:
        lance_clone.check_shallow(home.store, target.store)
    wanted = CloneIntent(
        table_id=uuid.uuid4(),
        source_uri=home.uri,
        source_id=home.table_id,
        checkpoint=checkpoint,
        deep=target.deep,
        wal_uri=target.wal_uri,
    )
    stored = read_intent(target.store)
    given_up = read_given_up(target.store)
    if stored is not None:
        stored = same_call(stored, wanted, target.store.uri)
        if given_up is None:
            return stored
    if given_up is not None:
        if stored is None:
            # Only the mark was left. The new intent's outcome must stay free.
            forget_given_up(target.store)
        else:
            _give_up(home, target, stored, given_up)
            if read_intent(target.store) is not None:
                return stored  # a maker took its outcome
    if checkpoint is not None and CheckpointStore(home.records, home.uri).get(checkpoint).expired(clock.now()):
        raise InvalidInput(
            f"Checkpoint {checkpoint!r} has expired; its files may be deleted.",
            table=home.uri,
            advice="clone another checkpoint or the current table; nothing was written",
        )
    there = (info for info in target.store.list("") if not info.key.startswith(OUTCOMES))
    if (found := next(there, None)) is not None:
        raise InvalidInput(
            f"The destination {target.store.uri} is not empty.",
            found=found.key,
            advice="choose another URI, or delete its files; nothing was written",
        )
    return wanted


def _exists(target: CloneTarget, intent: CloneIntent) -> bool:
    """True if the flip is done. Raises InvalidInput if something else was created at the destination."""
    found = named(target)
    if found not in (None, str(intent.source_id), str(intent.table_id)):
        raise InvalidInput(
            f"Another table was created at {target.store.uri} meanwhile.",
            table_id=found,
            advice="choose another URI; nothing of that table was changed",
        )
    return found == str(intent.table_id)


def _pinned(source: CloneSource, intent: CloneIntent, target: CloneTarget) -> TableCheckpoint:
    home = source.home
    with suppress(NotFound):
        found = CheckpointStore(home.records, home.uri).get(intent.pin).checkpoint
        if intent.checkpoint is not None or _is_held(home, found):
            return found
    if intent.checkpoint is not None:
        raise NotFound(
            f"The checkpoint {intent.checkpoint!r} was dropped before its clone was complete.",
            table=home.uri,
            advice=f"delete {target.store.uri} and clone another checkpoint or the current table",
        )
    return take(
        home,
        source.shard_ids(),
        name=intent.pin,
        note=f"for a running clone to {target.store.uri}; dropped when the clone is complete",
        names={home.shard(name).id: name for name in source.names},
        tail_start=clone_start,
    )


def _is_held(home: TableHome, pin: TableCheckpoint) -> bool:
    """Put the tag again: the process that took the pin may have died before it did. False if the base version is gone;
    then the pin is invalid.
    """
    try:
        hold_version(home.store, pin.tag, pin.base_version)
    except NotFound:
        drop(home, pin.name)
        return False
    return True


# -- 4: copying --------------------------------------------------------------------------


def _copied(
    source: CloneSource, target: CloneTarget, intent: CloneIntent, progress: Progress
) -> tuple[TableCheckpoint, list[ShardPlan]] | None:
    """Copy the shards; returns their plans. None if another caller has completed the clone."""
    home = source.home
    for _ in range(TRIES):
        plans: list[ShardPlan] = []
        try:
            checkpoint = _pinned(source, intent, target)
            step("pinned")
            if _exists(target, intent):
                return None
            marks = compacted_marks(home.store, base_at(home, checkpoint))
            plans = shard_plans(checkpoint, intent.table_id, marks, source.names)
            if source.all_named:
                check_named(plans, home.uri)
            return checkpoint, copy_all(home, _home(home, target, intent), plans, checkpoint.streams, progress)
        except MovedOn:
            if intent.checkpoint is not None:
                _give_up(home, target, intent, [plan.shard_id for plan in plans])
                raise DataLoss(
                    f"Entries or SSTables of checkpoint {intent.checkpoint!r} are missing, although it pins them.",
                    table=home.uri,
                    advice="run `headgate fsck` on the source to see what is missing; or clone the current table, "
                    "without a checkpoint",
                ) from None
            drop(home, intent.pin)
        except (DataLoss, InvalidInput):
            _give_up(home, target, intent, [plan.shard_id for plan in plans])
            raise
    raise Transient(f"The source changed during each of {TRIES} copies.", table=home.uri)


def _home(source: TableHome, target: CloneTarget, intent: CloneIntent) -> TableHome:
    return replace(source, store=target.store, wal_store=target.wal_store, table_id=intent.table_id)


def _give_up(home: TableHome, target: CloneTarget, intent: CloneIntent, shard_ids: Iterable[UUID]) -> None:
    remove(target, intent, shard_ids, lambda: _release(home, intent))


def _release(home: TableHome, intent: CloneIntent) -> None:
    """Drop our own pin; a named checkpoint belongs to the user."""
    if intent.checkpoint is None:
        with suppress(NotFound):
            drop(home, intent.pin)
