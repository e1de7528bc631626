"""Folding by the driver: the log stays short, says the same, and no reader or zombie is hurt by what went."""

from __future__ import annotations

import contextlib

import pytest

from headgate.checkpoints.log import fold as folding
from headgate.checkpoints.log.commit_log import CommitLog
from headgate.checkpoints.log.fold import Folding, put_fold, tidy
from headgate.checkpoints.log.opened_log import OpenedLog
from headgate.checkpoints.log.records import BatchRecord, OpenRecord
from headgate.checkpoints.log.state import LogState
from headgate.connectors.objects.folder import FolderStore
from headgate.connectors.objects.port import ObjectStore
from headgate.errors import Fenced, HeadgateError, NotFound
from headgate.steps import watching
from tests.support.closing import Background, Steps
from tests.support.logs import CLAIMS, OTHER, SHARD, batch, log
from tests.support.stores import Crash, FaultyStore


def opened(store: ObjectStore, query: str = "q") -> OpenedLog:
    return log(store).open(query, CLAIMS)


def commit(driver: OpenedLog, *numbers: int) -> list[BatchRecord]:
    """Batch n reads [10·n, 10·n + 10) and lists position n + 1."""
    records = [driver.commit(batch(n, n * 10, n * 10 + 10, n + 1), {}) for n in numbers]
    return [record for record in records if record is not None]


def listed(store: ObjectStore) -> tuple[list[int], list[int]]:
    """Sequences of the records and of the folds that are there."""
    records, folds = log(store)._list()
    return sorted(records), sorted(folds)


def same(one: LogState, other: LogState) -> bool:
    """Attempt ids and older batches are gone from a fold; all else is the same."""
    return (
        one.sequence == other.sequence
        and one.head.opened == other.head.opened
        and one.head.last == other.head.last
        and one.head.ends == other.head.ends
        and one.head.listed == other.head.listed
        and {i: list(p.runs()) for i, p in one.shards.items()} == {i: list(p.runs()) for i, p in other.shards.items()}
    )


def test_a_fold_says_what_the_records_say_and_old_ones_go_but_open_records(store: ObjectStore) -> None:
    driver = opened(store)
    made = Folding(store, log(store), driver.state)
    for number in range(9):
        (record,) = commit(driver, number)
        made.add(record)
        before = log(store).read()
        if number % 3 == 2:
            assert made.fold({}).sequence == record.sequence
            assert same(log(store).read(), before)
    records, folds = listed(store)
    assert folds == [7, 10], "the last two"
    assert records == [1, 8, 9, 10], "open records stay, and what only the last fold sums up"


def test_what_is_flushed_is_left_out_and_what_is_not_stays(store: ObjectStore) -> None:
    driver = opened(store)
    made = Folding(store, log(store), driver.state)
    for record in commit(driver, 0, 1, 2):
        made.add(record)
    fold = made.fold({SHARD: 2, OTHER: 5})
    assert fold.shards[SHARD].visible == ((3, 3),)
    assert fold.shards[SHARD].replay_after == 2
    assert list(made.state().shards[SHARD].runs()) == [(3, 3)]


def test_a_driver_that_knows_only_where_the_stream_stands_reads_the_log_to_fold_it(store: ObjectStore) -> None:
    driver = opened(store)
    commit(driver, 0, 1)
    resumed = Folding(store, log(store), None)
    (record,) = commit(driver, 2)
    resumed.add(record)
    before = log(store).read()
    resumed.fold({})
    assert same(log(store).read(), before)
    (record,) = commit(driver, 3)
    resumed.add(record)
    before = log(store).read()
    resumed.fold({})
    assert same(log(store).read(), before)


@pytest.mark.parametrize("known", [True, False])
def test_it_is_due_after_so_many_records(store: ObjectStore, monkeypatch: pytest.MonkeyPatch, known: bool) -> None:
    monkeypatch.setattr(folding, "FOLD_EVERY", 3)
    driver = opened(store)
    made = Folding(store, log(store), driver.state if known else None)
    # What the driver found above the last fold counts: here its own open record.
    for number in range(2 if known else 3):
        assert not made.is_due
        made.add(commit(driver, number)[0])
    assert made.is_due
    made.fold({})
    assert not made.is_due


def test_memory_holds_a_sum_where_nobody_folds(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "FOLD_EVERY", 4)
    driver = opened(store)
    made = Folding(store, log(store), driver.state)
    for number in range(10):
        made.add(commit(driver, number)[0])
        assert len(made._news) < 4
    assert same(made.state(), log(store).read())


def test_a_reader_that_stalls_over_two_folds_sees_the_log_whole(store: ObjectStore) -> None:
    driver = opened(store)
    made = Folding(store, log(store), driver.state)
    for record in commit(driver, 0, 1, 2):
        made.add(record)
    made.fold({})
    slow = FaultyStore(store)
    stall = slow.stall("get")
    for record in commit(driver, 3):
        made.add(record)
    reader = Background(log(slow).read)
    stall.wait()
    for number in (4, 5, 6):
        made.add(commit(driver, number)[0])
        made.fold({})
    assert listed(store)[1] == [7, 8]
    stall.release()
    assert same(reader.result(), log(store).read())


def test_a_committer_that_stalled_until_its_slot_was_folded_away_is_told_the_truth(store: ObjectStore) -> None:
    """Its record had landed and counted; its successor folded and deleted it. The same record in the same place, below
    a fold, changes nothing; and its next one meets the successor's open record.
    """
    stalled = FaultyStore(store)
    zombie = opened(stalled)
    commit(zombie, 0)
    stall = stalled.stall("put_if_absent", done=True)
    late = Background(lambda: commit(zombie, 1))
    stall.wait()
    successor = opened(store, "other")
    made = Folding(store, log(store), successor.state)
    for number in (2, 3):
        made.add(commit(successor, number)[0])
        made.fold({})
    with pytest.raises(NotFound):
        log(store).record(3)
    stall.release()
    late.result()
    with pytest.raises(Fenced):
        commit(zombie, 4)
    assert isinstance(log(store).record(4), OpenRecord)
    state = log(store).read()
    assert list(state.shards[SHARD].runs()) == [(1, 4)]


def test_a_fold_of_a_driver_that_was_fenced_meanwhile_hurts_nobody(store: ObjectStore) -> None:
    zombie = opened(store)
    old = Folding(store, log(store), zombie.state)
    for record in commit(zombie, 0, 1):
        old.add(record)
    successor = opened(store, "other")
    commit(successor, 2)
    before = log(store).read()
    old.fold({})
    assert same(log(store).read(), before)
    commit(successor, 3)
    assert list(log(store).read().shards[SHARD].runs()) == [(1, 4)]


def test_a_crash_after_every_operation_of_a_fold_leaves_a_log_that_says_the_same(store: ObjectStore) -> None:
    number = 0
    while True:
        number += 1
        place = FolderStore(store, f"run-{number}")
        driver = opened(place)
        for first in (0, 3):
            commit(driver, *range(first, first + 3))
            put_fold(log(place), log(place).read(), {})
        commit(driver, 6)
        before = log(place).read()
        dying = FaultyStore(place, crash_after=number)
        with contextlib.suppress(Crash, HeadgateError):
            Folding(dying, CommitLog(dying, "orders", "memory://table"), None).fold({})
        assert same(log(place).read(), before)
        put_fold(log(place), log(place).read(), {})
        tidy(place, log(place))
        assert same(log(place).read(), before)
        commit(opened(place, "other"), 7)
        if not dying.crashed:
            break
    assert number > 10


def test_a_driver_that_stalls_while_it_opens_meets_a_folded_log(store: ObjectStore) -> None:
    commit(opened(store), 0)
    steps = Steps("open record")
    with watching(steps):
        slow = Background(lambda: log(store).open("slow", CLAIMS))
    steps.wait()
    driver = opened(store, "quick")
    made = Folding(store, log(store), driver.state)
    for number in (1, 2):
        made.add(commit(driver, number)[0])
        made.fold({})
    steps.release()
    commit(slow.result(), 3)
    with pytest.raises(Fenced):
        commit(driver, 3)
    assert list(log(store).read().shards[SHARD].runs()) == [(1, 4)]
