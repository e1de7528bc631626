"""The decisions that the explorer drives: the product's own. An ablation replaces one.

What is no function in the product but an order of steps (`test_explored_steps.py` compares it with the product's) is
here as well, so that it can be broken on purpose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from headgate.checkpoints.gc import rules as garbage
from headgate.checkpoints.gc.rules import ListedManifest
from headgate.checkpoints.jobs import advance as gap
from headgate.checkpoints.log import decisions as stream_decisions
from headgate.checkpoints.log import positions as positions_of_a_shard
from headgate.checkpoints.log.state import LogState, fold
from headgate.checkpoints.log.visibility import Visible
from headgate.checkpoints.snapshots.checkpoint import PinnedShard
from headgate.checkpoints.snapshots.take import holds
from headgate.checkpoints.stream.backlog import Unflushed
from headgate.shards.manifest import decisions as shard_decisions
from headgate.shards.manifest.model import Manifest, SsTable

LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
NOW = datetime(2030, 1, 1, tzinfo=UTC)


def collectable_records(records: Iterable[int], folds: Iterable[int]) -> list[int]:
    """The product's choice where every fold is old enough; open records are still among it."""
    return stream_decisions.collectable_records(records, dict.fromkeys(folds, LONG_AGO), NOW)[0]


def collectable_manifests(versions: Iterable[int]) -> list[int]:
    """The product's choice where every version is old enough."""
    return garbage.collectable_manifests([ListedManifest(version, LONG_AGO) for version in versions], NOW)


def collectable_sstables(folders: Iterable[str], live: Sequence[Manifest], pins: Iterable[PinnedShard]) -> list[str]:
    """The product's choice where every folder is old enough."""
    return garbage.collectable_sstables(dict.fromkeys(folders, LONG_AGO), live, pins, NOW)


def always(*_: object) -> bool:
    """What the product does without asking."""
    return True


@dataclass(frozen=True)
class Rules:
    """One function per decision."""

    # One shard.
    claimed: Callable[..., Manifest] = shard_decisions.claimed
    held_by: Callable[[Manifest, int, str], bool] = Manifest.held_by
    is_ghost: Callable[[Manifest | None, int, str], bool] = shard_decisions.is_ghost
    claim_stands: Callable[[Manifest | None, int, str, int], bool] = shard_decisions.claim_stands
    search_start: Callable[[Manifest | None, int | None], int] = shard_decisions.search_start
    entry_in_the_way: Callable[..., shard_decisions.Slot] = shard_decisions.entry_in_the_way
    fate: Callable[..., shard_decisions.Fate] = shard_decisions.fate
    covered: Callable[..., Manifest | None] = shard_decisions.covered
    uncompacted: Callable[[tuple[SsTable, ...], int, int], tuple[SsTable, ...] | None] = shard_decisions.uncompacted
    latest_version: Callable[[list[int], int], int] = lambda versions, hint: versions[-1]
    """Of the versions that LIST shows, and of the hint, which is native's."""

    # One stream.
    decide_batch: Callable[..., stream_decisions.BatchDecision] = stream_decisions.decide_batch
    is_another_table: Callable[[Any, str | None], bool] = stream_decisions.is_another_table
    next_plan: Callable[..., int] = positions_of_a_shard.next_plan
    plan_floor: Callable[[int | None, Manifest], int | None] = lambda own, manifest: own
    """Above which replay_after a batch is planned: the one that the driver wrote, not what the manifest says."""
    check_listable: Callable[..., None] = positions_of_a_shard.check_listable
    flush_end: Callable[[Unflushed, int], int | None] = lambda held, tip: held.last
    flushed_to: Callable[[int, int], int] = lambda last_row, upto: last_row
    """Where a flush lets replay_after go: to its last row."""
    checkpoint_limit: Callable[..., int | None] = positions_of_a_shard.checkpoint_limit
    without_gap: Callable[[Manifest, Manifest, int], Manifest | None] = gap.without_gap
    unsealed: Callable[[Manifest, int], Manifest | None] = gap.unsealed
    log_end: Callable[[Iterable[int], Iterable[int]], int] = stream_decisions.log_end
    is_own: Callable[..., bool] = stream_decisions.is_own
    is_stepped_over: Callable[..., bool] = stream_decisions.is_stepped_over
    judge_open: Callable[..., stream_decisions.OpenOutcome] = stream_decisions.judge_open
    is_announced: Callable[..., bool] = stream_decisions.is_announced
    holds_log: Callable[..., bool] = stream_decisions.holds_log
    fold: Callable[..., Any] = fold
    visible: Callable[..., Visible] = Visible
    is_stale: Callable[[int, int, int | None], bool] = positions_of_a_shard.is_stale

    # Garbage.
    collectable_wal: Callable[..., list[int]] = garbage.collectable_wal
    collectable_sstables: Callable[..., list[str]] = collectable_sstables
    pin_holds: Callable[[Manifest, Manifest | None], bool] = holds
    collectable_records: Callable[[Iterable[int], Iterable[int]], list[int]] = collectable_records
    last_batch: Callable[..., int | None] = stream_decisions.last_batch
    collectable_manifests: Callable[[Iterable[int]], list[int]] = collectable_manifests
    keeps_fence: Callable[[str], bool] = always
    """Whether a "barrier", an "open record" or a "schema record" stays, whatever the above say."""

    # The order of steps.
    puts_open_record: Callable[[LogState], bool] = always
    proves_end: bool = True
    """LIST after the open record."""
    base_first: bool = True
    """A change of columns changes the base, then tells the streams."""
    columns_after_open: bool = True
    """A driver reads the columns after its open record."""
    steps_by_one: bool = True
    """Behind a schema record comes the next slot, not the log's end."""
    reads_again: bool = True
    """Whoever steps over a schema record reads the columns."""
    fresh_attempt: bool = True
    """A batch that is written again has attempts of its own."""
    raises_held: bool = True
    """A checkpoint raises the plan only while its driver holds the shard."""
    entries_first: bool = True
    barrier_first: bool = True
    replays_to_barrier: bool = True
    """Not to the end that the look saw."""
    renews: bool = True
    """A clean stop claims the shards anew."""
    collection_order: tuple[str, ...] = ("manifests", "pins")
    """After the LIST."""
    synced_first: tuple[str, ...] = ("base", "shards", "pins")
    """Before a collection deletes (R21): `jobs.durable.require_on_disk`."""
    drops_synced: bool = True
    """A compaction syncs the base before the manifest drops what it has."""
    mark_last: bool = True
    """A version of the base is marked once it is synced."""
    minds_missing: bool = True
    """No WAL and no SSTable goes while one that the manifest names is missing (R20)."""
    snapshot_order: tuple[str, ...] = ("manifests", "log", "tails", "base")
