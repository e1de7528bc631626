"""What may be deleted, case by case."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from headgate.checkpoints.gc.rules import (
    ListedManifest,
    collectable_manifests,
    collectable_sstables,
    collectable_wal,
    live_versions,
    without_claims,
)
from headgate.checkpoints.log.decisions import collectable_records
from headgate.checkpoints.snapshots.checkpoint import PinnedShard
from headgate.shards.manifest.model import Manifest, SsTable

NOW = datetime(2030, 1, 1, tzinfo=UTC)
SHARD = uuid.UUID(int=3)


def minutes(ago: int) -> datetime:
    return NOW - timedelta(minutes=ago)


BEFORE = minutes(60)


def listed(*ages: int) -> list[ListedManifest]:
    """Versions 1, 2, 3 … of these ages in minutes."""
    return [ListedManifest(version, minutes(age)) for version, age in enumerate(ages, 1)]


def manifest(replay_after: int = 0, *paths: str) -> Manifest:
    sstables = tuple(SsTable(number, path) for number, path in enumerate(paths, 1))
    return Manifest(
        version=1, epoch=1, replay_after=replay_after, generation=len(paths) + 1, sstables=sstables, shard_id=SHARD
    )


@pytest.mark.parametrize(
    ("ages", "live"),
    [
        ((), []),
        ((500,), [1]),
        ((500, 400), [2]),
        ((500, 59), [1, 2]),  # 1 was the latest until 59 minutes ago
        ((500, 61, 59), [2, 3]),
        ((500, 400, 59, 58), [2, 3, 4]),
    ],
)
def test_a_manifest_is_live_for_min_age_after_it_was_replaced(ages: tuple[int, ...], live: list[int]) -> None:
    assert live_versions(listed(*ages), BEFORE) == live


@pytest.mark.parametrize(
    ("ages", "gone"),
    [
        ((), []),
        ((500,), []),
        ((500, 400), [1]),
        ((500, 59), []),
        ((500, 400, 59), [1]),
        ((59, 400, 300), []),  # a ghost that came late below old ones: nothing above it goes before it
    ],
)
def test_manifests_go_oldest_first_and_the_latest_never(ages: tuple[int, ...], gone: list[int]) -> None:
    assert collectable_manifests(listed(*ages), BEFORE) == gone


@pytest.mark.parametrize(
    ("positions", "replay_after", "pinned", "gone"),
    [
        ([], [5], [], []),
        ([0, 1, 2, 3, 4], [0], [], []),
        ([0, 1, 2, 3, 4], [2], [], [1, 2]),
        ([0, 1, 2, 3, 4], [9], [], [1, 2, 3]),  # 4 is the tip
        ([0, 1, 2, 3, 4], [3, 1], [], [1]),  # somebody may still hold the older manifest
        ([0, 1, 2, 3, 4], [3], [2], [1, 2]),  # a checkpoint replays from 3
        ([0, 1, 2, 3, 4], [3], [0], []),
        ([0, 1, 2, 3, 4], [], [], []),  # nobody ever claimed it: what it is cannot be told
    ],
)
def test_an_entry_goes_once_everyone_has_it_in_sstables(
    positions: list[int], replay_after: list[int], pinned: list[int], gone: list[int]
) -> None:
    live, pins = [manifest(at) for at in replay_after], [PinnedShard(manifest(at), 99) for at in pinned]
    assert collectable_wal(positions, live, pins) == gone


@pytest.mark.parametrize(
    ("path", "goes"),
    [
        ("aaaaaaaa_gen_2", True),
        ("aaaaaaaa_gen_3", False),  # the generation that is flushed next: it may be committed at any time
        ("aaaaaaaa_gen_4", False),
        ("aaaaaaaa_epoch_4_gen_3", True),  # its claim is over
        ("aaaaaaaa_epoch_5_gen_3", False),
        ("aaaaaaaa_epoch_5_gen_2", True),
        ("aaaaaaaa_epoch_6_gen_3", False),
        ("something", False),
        ("x_gen_", False),
    ],
)
def test_an_sstable_goes_once_no_flush_can_commit_it(path: str, goes: bool) -> None:
    latest = replace(manifest(0, "live_gen_1", "live_gen_2"), epoch=5)
    assert collectable_sstables({path: minutes(500)}, [latest], [], BEFORE) == ([path] if goes else [])
    assert collectable_sstables({path: minutes(59)}, [latest], [], BEFORE) == []
    assert collectable_sstables({path: minutes(500)}, [], [], BEFORE) == []


def test_an_sstable_stays_that_a_live_manifest_or_a_pin_names() -> None:
    folders = dict.fromkeys(["old_gen_1", "live_gen_1", "held_gen_1", "pin_gen_1"], minutes(500))
    live, pins = [manifest(0, "held_gen_1"), manifest(0, "live_gen_1")], [PinnedShard(manifest(0, "pin_gen_1"), 9)]
    assert collectable_sstables(folders, live, pins, BEFORE) == ["old_gen_1"]


def test_the_manifest_that_claims_an_epoch_stays() -> None:
    epochs = {1: 1, 2: 1, 3: 2, 5: 2, 6: 2, 9: 4, 10: 4}
    there = [replace(manifest(), version=version, epoch=epoch) for version, epoch in epochs.items()]
    assert without_claims(there) == [2, 5, 6, 10]


@pytest.mark.parametrize(
    ("records", "folds", "consumer", "gone"),
    [
        ([1, 2, 3], {}, None, ([], [])),
        ([1, 2, 3], {3: 500}, None, ([1, 2], [])),  # 3 is the tip
        ([1, 2, 3, 4], {3: 500}, None, ([1, 2, 3], [])),
        ([1, 2, 3, 4], {3: 59}, None, ([], [])),  # somebody may be reading below it
        ([3, 4, 5, 6], {2: 500, 4: 400, 5: 59}, None, ([3, 4], [2])),
        ([1, 2, 3, 4], {3: 500}, 1, ([1], [])),
    ],
)
def test_records_go_that_an_old_fold_has_and_the_tip_never(
    records: list[int], folds: dict[int, int], consumer: int | None, gone: tuple[list[int], list[int]]
) -> None:
    taken = {sequence: minutes(age) for sequence, age in folds.items()}
    assert collectable_records(records, taken, BEFORE, consumer) == gone
