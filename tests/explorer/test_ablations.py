"""Without any one of its rules the protocol breaks a promise: the explorer finds how, by the shortest way.

`pytest -rP tests/explorer/test_ablations.py` shows the traces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import pytest

from headgate.checkpoints.gc import rules as garbage
from headgate.checkpoints.log import decisions, positions
from headgate.checkpoints.log.decisions import BatchDecision, BatchSources, OpenOutcome, Skip, Write
from headgate.checkpoints.log.records import Batch, LogRecord
from headgate.checkpoints.log.state import Head
from headgate.checkpoints.snapshots.checkpoint import PinnedShard
from headgate.checkpoints.stream.backlog import Unflushed
from headgate.shards.manifest import decisions as decisions_of_a_shard
from headgate.shards.manifest.decisions import Fate
from headgate.shards.manifest.model import Manifest, SsTable
from tests.explorer.deletion_model import DeletionBounds, deletion_model
from tests.explorer.exploring import Explored, Model, explore
from tests.explorer.power_model import PowerBounds, power_model
from tests.explorer.rules import Rules, always
from tests.explorer.schema_model import SchemaBounds, schema_model
from tests.explorer.shard_model import Bounds as ShardBounds
from tests.explorer.shard_model import shard_model
from tests.explorer.snapshot_model import ReadBounds, snapshot_model
from tests.explorer.stream_bounds import Bounds
from tests.explorer.stream_model import stream_model
from tests.explorer.stream_parts import Planned, batches
from tests.explorer.table_model import TableBounds, table_model

PRODUCT = Rules()
ROWS = batches((0,), (0,))
EMPTY = batches((), ())
ONE_LARGE = (Planned(0, 2, (0,)),)
STREAM = Bounds("a stream", (ROWS,) * 2, flushes=1, checkpoints=1, folds=1, collects=True)
SHARD = ShardBounds("a shard", writers=3, rows=2, flushes=2, collects=True)
COLUMNS = SchemaBounds("columns", drivers=1)
READ = ReadBounds("a reader", (ROWS,), flushes=1, checkpoints=1, folds=1, compactions=1, collects=True, pins=True)


@dataclass(frozen=True)
class Ablation:
    """One rule less, bounds that are large enough to feel it, and what breaks first."""

    rule: str
    """As it must not be."""
    model: Callable[[Any, Rules], Model]
    bounds: Any
    off: Mapping[str, Any]
    breaks: str


POWER = PowerBounds("the power fails")
DELETION = DeletionBounds("a sleeper", "oo", flushes=2, collections=1, compactions=1, pins=True)


# -- the rules as they must not be -------------------------------------------------------


def to_the_tip(held: Unflushed, tip: int) -> int | None:
    return tip - 1 if tip > 1 else None


def over_the_batch_in_flight(head: Head, shard_id: UUID, *, next_position: int, **_: object) -> int:
    return next_position - 1


def only_where_there_is_none(state: Any) -> bool:
    return state.head.opened is None


def unraised_plan(head: Head, shard_id: UUID, *, barrier: int, advanced: int | None) -> int:
    return positions.next_plan(head, shard_id, barrier=barrier)


def listable_below_replay_after(head: Head, batch: Batch, replay_after: Mapping[UUID, int]) -> None:
    positions.check_listable(head, batch, {})


def above_any_manifest(own: int | None, manifest: Manifest) -> int:
    return max(own or 0, manifest.replay_after)


def unnamed_ones(folders: Iterable[str], live: Sequence[Manifest], pins: Iterable[PinnedShard]) -> list[str]:
    held = {one.path for named in (*live, *(pin.manifest for pin in pins)) for one in named.sstables}
    return sorted(set(folders) - held)


def at_any_generation(stored: Manifest, sstable: SsTable, *, started_from: int, last_position: int) -> Manifest:
    changed = decisions_of_a_shard.covered(
        replace(stored, generation=sstable.generation, replay_after=started_from),
        sstable,
        started_from=started_from,
        last_position=last_position,
    )
    assert changed is not None
    return replace(changed, generation=max(stored.generation, changed.generation))


def held_by_epoch(stored: Manifest, epoch: int, claim_id: str) -> bool:
    return stored.epoch == epoch


def stands_by_epoch(stored: Manifest | None, epoch: int, claim_id: str, barrier: int) -> bool:
    return stored is not None and stored.epoch == epoch and not 0 < barrier <= stored.replay_after


def ghost_by_epoch(stored: Manifest | None, epoch: int, claim_id: str) -> bool:
    return stored is not None and stored.epoch < epoch


def by_the_hint(versions: Sequence[int], hint: int) -> int:
    """As native looks for the latest manifest: from the hint on."""
    at = hint if hint in versions else max(versions)
    while at + 1 in versions:
        at += 1
    return at


def tip_and_all(records: Iterable[int], folds: Iterable[int]) -> list[int]:
    return [sequence for sequence in records if sequence <= max(folds, default=0)]


def unpinned(positions: Iterable[int], live: Sequence[Manifest], pins: object = ()) -> list[int]:
    return garbage.collectable_wal(positions, live)


def whatever_the_ranges(head: Head, query_id: str, number: int, sources: BatchSources, earliest: Any) -> BatchDecision:
    record = head.recent.get((query_id, number))
    return Skip(record) if record else decisions.decide_batch(head, query_id, number, sources, earliest)


def anything_into_an_empty_log(head: Head, query_id: str, number: int, sources: BatchSources, at: Any) -> BatchDecision:
    if head.last is None:
        return Write(sources.ranges, ())
    return decisions.decide_batch(head, query_id, number, sources, at)


def stopped_by_a_fold(*arguments: Any) -> OpenOutcome:
    judged = decisions.judge_open(*arguments)
    return OpenOutcome.FENCED if judged is OpenOutcome.AGAIN else judged


def unminded_fold(mine: LogRecord, above: Iterable[LogRecord | None], folded: int) -> OpenOutcome:
    return decisions.judge_open(mine, above, folded if folded > mine.sequence else 0)


def unmarked(sstables: tuple[SsTable, ...], generation: int, mark: int) -> tuple[SsTable, ...]:
    return tuple(one for one in sstables if one.generation > mark)


# -- one test each -----------------------------------------------------------------------

ABLATIONS = [
    Ablation(
        "R1: a flush goes to the tip, not to the settled position",
        stream_model,
        STREAM,
        {"flush_end": to_the_tip, "flushed_to": max},
        "invariant 1: shard 0 shows rows [], committed are [0]",
    ),
    Ablation(
        "R1: a checkpoint passes the batch in flight",
        stream_model,
        STREAM,
        {"checkpoint_limit": over_the_batch_in_flight},
        "a driver refuses its own batch",
    ),
    Ablation(
        "R2: no open record",
        stream_model,
        replace(STREAM, plans=(EMPTY,) * 2),
        {"puts_open_record": only_where_there_is_none},
        "invariant 3: a predecessor commits",
    ),
    Ablation("R3: no re-read, of a stream", stream_model, STREAM, {"claim_stands": lambda *_: True}, "invariant"),
    Ablation("R3: no re-read, of a shard", shard_model, SHARD, {"claim_stands": lambda *_: True}, "invariant 3"),
    Ablation(
        "R4: a checkpoint does not raise the plan",
        stream_model,
        Bounds("a stream", (ROWS,) * 2, retries=1, checkpoints=1, collects=True),
        {"next_plan": unraised_plan, "check_listable": listable_below_replay_after},
        "invariant 1: shard 0 shows rows [0], committed are [0, 1]",
    ),
    Ablation(
        "R4: the plan is raised from a successor's manifest",
        stream_model,
        Bounds("a stream", (ROWS,) * 2, checkpoints=1, stops=1),
        {"plan_floor": above_any_manifest},
        "invariant 1: native would show",
    ),
    Ablation(
        "R4: the plan is raised above a successor's barrier",
        stream_model,
        STREAM,
        {"raises_held": False},
        "invariant 3: position 2 of shard 0 was written behind a successor's barrier",
    ),
    Ablation(
        "R5: open records are collected",
        stream_model,
        STREAM,
        {"keeps_fence": lambda kind: kind != "open record"},
        "invariant 3: a predecessor commits",
    ),
    Ablation(
        "R5: barriers are collected",
        shard_model,
        SHARD,
        {"keeps_fence": lambda kind: kind != "barrier"},
        "invariant 3: a predecessor's put succeeds",
    ),
    Ablation(
        "R6: no LIST after the open record",
        stream_model,
        Bounds("a stream", (batches((), (), ()),) * 2, folds=1, collects=True),
        {"proves_end": False},
        "invariant 3: a predecessor commits",
    ),
    Ablation(
        "R7: a claim is known by its epoch",
        shard_model,
        SHARD,
        {"held_by": held_by_epoch, "claim_stands": stands_by_epoch, "is_ghost": ghost_by_epoch},
        "invariant",
    ),
    Ablation(
        "R7: the latest manifest by the hint",
        shard_model,
        replace(SHARD, hint=True),
        {"latest_version": by_the_hint},
        "invariant",
    ),
    Ablation(
        "R7: a claim that never was the latest goes on",
        shard_model,
        SHARD,
        {"is_ghost": lambda *_: False},
        "whoever holds epoch 1 is fenced by epoch 2, which never held the shard",
    ),
    Ablation(
        "R8: a batch is skipped whatever its ranges",
        stream_model,
        replace(STREAM, plans=(ROWS, ONE_LARGE)),
        {"decide_batch": whatever_the_ranges},
        "invariant",
    ),
    Ablation(
        "R11: the log is read before the manifests",
        snapshot_model,
        READ,
        {"snapshot_order": ("log", "manifests", "tails", "base")},
        "invariant 1: the reader sees rows",
    ),
    Ablation(
        "R11: the base is read before the manifests",
        snapshot_model,
        READ,
        {"snapshot_order": ("base", "manifests", "log", "tails")},
        "invariant 1: the reader sees rows",
    ),
    Ablation(
        "R11: a newer mark on the base is not minded",
        snapshot_model,
        READ,
        {"uncompacted": unmarked},
        "invariant 1: the reader",
    ),
    Ablation(
        "R11: a tail that moved is not minded", snapshot_model, READ, {"is_stale": lambda *_: False}, "invariant 5"
    ),
    Ablation(
        "R24: an append in flight is named not durable",
        shard_model,
        ShardBounds("a shard", writers=2, rows=2, flushes=1, collects=True, in_flight=True),
        {"fate": lambda *, sent, slot: Fate.FAILED},
        "R24: rows [10] were named not durable and are visible",
    ),
    Ablation("a checkpoint pins nothing", snapshot_model, READ, {"collectable_wal": unpinned}, "invariant 5"),
    Ablation(
        "a clean stop does not claim anew",
        stream_model,
        Bounds("a stream", (ROWS,), checkpoints=1, stops=1),
        {"renews": False},
        "invariant 1: native would show",
    ),
    Ablation(
        "R22: the streams are told before the base changes",
        schema_model,
        COLUMNS,
        {"base_first": False},
        "lacks columns 1, whose change had returned",
    ),
    Ablation(
        "R22: columns are read before the open record",
        schema_model,
        COLUMNS,
        {"columns_after_open": False},
        "lacks columns 1, whose change had returned",
    ),
    Ablation(
        "R22: behind a schema record comes the log's end",
        schema_model,
        replace(COLUMNS, drivers=2),
        {"steps_by_one": False},
        "driver 1 is told Fenced, and nobody has taken its stream",
    ),
    Ablation(
        "R22: schema records are collected",
        schema_model,
        replace(COLUMNS, drivers=2, folds=1),
        {"keeps_fence": lambda kind: kind != "schema record"},
        "invariant 1",
    ),
    Ablation(
        "R22: the last batch record is collected",
        schema_model,
        replace(COLUMNS, batches=1, changers=2, folds=1, lost=1),
        {"last_batch": lambda *_: None},
        "invariant 1: batches are committed twice",
    ),
    Ablation(
        "R22: a changer does not look whether it was folded over",
        schema_model,
        replace(COLUMNS, batches=3, folds=1),
        {"is_announced": lambda *_: True},
        "whose change had returned",
    ),
    Ablation(
        "R22: an opener in a collected slot stops",
        schema_model,
        replace(COLUMNS, drivers=2, folds=1),
        {"judge_open": stopped_by_a_fold},
        "is told Fenced, and nobody has taken its stream",
    ),
    Ablation(
        "R22: a schema record is taken for a successor's",
        schema_model,
        COLUMNS,
        {"is_stepped_over": lambda *_: False},
        "is told Fenced, and nobody has taken its stream",
    ),
    Ablation(
        "R22: columns are not read again",
        schema_model,
        COLUMNS,
        {"reads_again": False},
        "lacks columns 1, whose change had returned",
    ),
    Ablation(
        "R22: a batch is written again under its old attempt",
        schema_model,
        replace(COLUMNS, retries=1),
        {"fresh_attempt": False},
        "lacks columns 1, whose change had returned",
    ),
    Ablation(
        "R23: any batch may meet an empty log",
        table_model,
        TableBounds("a table made anew"),
        {"decide_batch": anything_into_an_empty_log},
        "invariant 1: a table has batches (1,)",
    ),
    Ablation(
        "R23: nobody compares the table's id",
        table_model,
        TableBounds("a table made anew"),
        {"is_another_table": lambda *_: False},
        "a stream goes on into a table that its look found gone",
    ),
    Ablation(
        "R20: an old SSTable that no manifest names goes, whatever it is called",
        deletion_model,
        DELETION,
        {"collectable_sstables": unnamed_ones},
        "invariant 5: the manifest names",
    ),
    Ablation(
        "R20 needs R9: a flush commits at another generation than it began with",
        deletion_model,
        DeletionBounds("two flushes of one claim", "o", flushes=3, jobs=2, collections=1),
        {"covered": at_any_generation},
        "invariant",
    ),
    Ablation(
        "R20: pins are read before manifests",
        deletion_model,
        DELETION,
        {"collection_order": ("pins", "manifests")},
        "invariant 5: the checkpoint was reported as taken",
    ),
    Ablation(
        "R20: a pin counts without another look at the manifests",
        deletion_model,
        DELETION,
        {"pin_holds": always},
        "invariant 5: the checkpoint was reported as taken",
    ),
    Ablation(
        "R21: nobody syncs the base, neither before it collects nor before it drops SSTables",
        power_model,
        POWER,
        {"synced_first": ("shards", "pins"), "drops_synced": False},
        "invariant 2: row 1 is nowhere",
    ),
    Ablation(
        "R21: a base is marked before it is synced",
        power_model,
        POWER,
        {"mark_last": False},
        "invariant 2: row 1 is nowhere",
    ),
    Ablation(
        "R21: what native flushed is not synced",
        power_model,
        replace(POWER, native=True),
        {"synced_first": ("base", "pins")},
        "invariant 2: row 1 is nowhere",
    ),
    Ablation(
        "R21: the drop of a checkpoint is not synced",
        power_model,
        replace(POWER, pins=True),
        {"synced_first": ("base", "shards")},
        "invariant 5: the checkpoint is there",
    ),
    Ablation(
        "R20: WAL goes though an SSTable that the manifest names is missing",
        power_model,
        replace(POWER, native=True),
        {"minds_missing": False},
        "invariant 2: row 1 is nowhere",
    ),
    Ablation("record before entries", stream_model, STREAM, {"entries_first": False}, "invariant 1"),
    Ablation("barrier after replay", shard_model, SHARD, {"barrier_first": False}, "invariant 1: the shard shows rows"),
    Ablation("replay ends where the look did", shard_model, SHARD, {"replays_to_barrier": False}, "invariant 1"),
    Ablation(
        "tip collected, and an opener does not mind a fold of its own slot",
        stream_model,
        STREAM,
        {"collectable_records": tip_and_all, "last_batch": lambda *_: None, "judge_open": unminded_fold},
        "invariant",
    ),
]


@pytest.mark.parametrize("ablation", ABLATIONS, ids=[one.rule for one in ABLATIONS])
def test_without_the_rule_a_promise_breaks(ablation: Ablation, told: Callable[[Explored], None]) -> None:
    bounds = replace(ablation.bounds, name=f"BROKEN {ablation.rule}")
    explored = explore(ablation.model(bounds, replace(PRODUCT, **ablation.off)))
    told(explored)
    assert explored.fault is not None, "the rule is not needed, or the bounds are too small to feel it"
    assert ablation.breaks in explored.fault
    assert explored.trace
