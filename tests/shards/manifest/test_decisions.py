"""Tables: who holds a shard, where its tip is looked for, what an entry in the way means, what a flush may commit."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from headgate.shards.manifest.decisions import (
    Slot,
    claim_stands,
    claimed,
    covered,
    entry_in_the_way,
    follows,
    is_covered,
    is_fenced,
    is_ghost,
    search_start,
    uncompacted,
)
from headgate.shards.manifest.model import Manifest, SsTable, check_successor

SHARD = uuid.UUID(int=1)


def manifest(epoch: int = 2, claim: str = "mine", replay_after: int = 0, last_seen: int = 0) -> Manifest:
    first = claimed(None, SHARD, owner=None, claim_id=claim, write_id="w", spec_id=7)
    return replace(first, epoch=epoch, replay_after=replay_after, last_seen=last_seen)


def test_a_claim_takes_the_next_epoch_and_keeps_the_rest() -> None:
    first = claimed(None, SHARD, owner=None, claim_id="a", write_id="1", spec_id=7)
    assert (first.version, first.epoch, first.spec_id, first.sealed, first.owner) == (1, 1, 7, False, None)
    flushed = replace(first, replay_after=5, last_seen=6, generation=3, sstables=(SsTable(2, "x"),))
    second = claimed(flushed, SHARD, owner="orders", claim_id="b", write_id="2", spec_id=9)
    check_successor(flushed, second)
    assert (second.epoch, second.claim_id, second.write_id, second.owner) == (2, "b", "2", "orders")
    assert second.sealed
    kept = ("replay_after", "last_seen", "generation", "sstables", "spec_id")
    assert [getattr(second, name) for name in kept] == [getattr(flushed, name) for name in kept]


@pytest.mark.parametrize(
    ("stored", "fenced", "ghost"),
    [
        (None, False, False),
        (manifest(2, "mine"), False, False),
        (manifest(2, "other"), True, True),
        (manifest(3, "other"), True, False),
        (manifest(3, "mine"), True, False),
        (manifest(1, "other"), False, True),
    ],
    ids=[
        "no manifest",
        "held",
        "the same epoch of another",
        "a successor",
        "native kept our claim id",
        "a predecessor",
    ],
)
def test_who_is_fenced_and_whose_claim_never_was(stored: Manifest | None, fenced: bool, ghost: bool) -> None:
    assert is_fenced(stored, 2, "mine") is fenced
    assert is_ghost(stored, 2, "mine") is ghost


@pytest.mark.parametrize("less", ["replay_after", "last_seen", "generation"])
def test_a_later_manifest_that_goes_back_was_not_made_upon_ours(less: str) -> None:
    ours = Manifest(version=5, epoch=2, shard_id=SHARD, replay_after=7, last_seen=8, generation=3)
    assert follows(replace(ours, version=9), ours)
    assert follows(replace(ours, version=9, replay_after=20, last_seen=21, generation=4), ours)
    assert not follows(replace(ours, version=9, **{less: getattr(ours, less) - 1}), ours)


def test_without_a_claim_id_only_a_higher_epoch_fences() -> None:
    assert not is_fenced(manifest(2, "other"), 2, None)
    assert is_fenced(manifest(3, "other"), 2, None)


@pytest.mark.parametrize(
    ("stored", "barrier", "stands"),
    [
        (None, 1, False),
        (manifest(replay_after=0), 1, True),
        (manifest(replay_after=4), 5, True),
        (manifest(replay_after=5), 5, False),
        (manifest(replay_after=9), 5, False),
        (manifest(replay_after=9), 0, True),
        (manifest(epoch=3), 1, False),
        (manifest(claim="other"), 1, False),
    ],
)
def test_a_claim_stands_while_the_manifest_carries_it_and_the_barrier_is_uncovered(
    stored: Manifest | None, barrier: int, stands: bool
) -> None:
    assert claim_stands(stored, 2, "mine", barrier) is stands


@pytest.mark.parametrize(
    ("stored", "seen", "start"),
    [
        (None, None, 0),
        (None, 3, 4),
        (manifest(), None, 1),
        (manifest(replay_after=4, last_seen=6), None, 7),
        (manifest(replay_after=6, last_seen=4), None, 7),
        (manifest(replay_after=4, last_seen=6), 9, 10),
        (manifest(replay_after=4, last_seen=6), 5, 7),
    ],
)
def test_the_tip_is_looked_for_above_all_that_is_known(stored: Manifest | None, seen: int | None, start: int) -> None:
    assert search_start(stored, seen) == start


@pytest.mark.parametrize(
    ("stored_id", "stored_epoch", "slot"),
    [
        ("mine", 2, Slot.OURS),
        ("other", 3, Slot.FENCED),
        ("other", 2, Slot.STALE),
        ("other", 1, Slot.STALE),
        (None, 1, Slot.STALE),
        (None, 3, Slot.FENCED),
    ],
)
def test_an_entry_in_the_way_is_ours_or_stale_or_fences(stored_id: str | None, stored_epoch: int, slot: Slot) -> None:
    assert entry_in_the_way(entry_id="mine", epoch=2, stored_id=stored_id, stored_epoch=stored_epoch) is slot


def test_a_flush_commits_only_upon_what_it_started_from() -> None:
    stored = replace(manifest(replay_after=4, last_seen=9), generation=3, sstables=(SsTable(2, "old"),))
    made = SsTable(3, "new")
    after = covered(stored, made, started_from=4, last_position=7)
    assert after is not None
    assert (after.replay_after, after.last_seen, after.generation) == (7, 9, 4)
    assert after.sstables == (SsTable(2, "old"), made)
    assert is_covered(after, made)
    assert not is_covered(stored, made)
    assert covered(stored, made, started_from=3, last_position=7) is None
    assert covered(stored, SsTable(2, "new"), started_from=4, last_position=7) is None
    assert covered(after, made, started_from=4, last_position=7) is None


@pytest.mark.parametrize(
    ("mark", "left"),
    [(0, (1, 2)), (1, (2,)), (2, ()), (3, None), (9, None)],
    ids=["nothing compacted", "one", "all", "a flush that is not known here", "a later one"],
)
def test_the_base_hides_what_it_has_and_tells_when_it_has_more(mark: int, left: tuple[int, ...] | None) -> None:
    found = uncompacted((SsTable(1, "a"), SsTable(2, "b")), 3, mark)
    assert (None if found is None else tuple(one.generation for one in found)) == left
