"""A crash after every store operation of open and commit, and every fault at each of them: the log opens
again, and each batch is in it once or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headgate.checkpoints.log.decisions import BatchSources, Skip, Write, decide_batch
from headgate.checkpoints.log.positions import next_plan
from headgate.checkpoints.log.state import fold
from headgate.connectors.objects import open_store
from headgate.connectors.objects.port import ObjectInfo, ObjectStore
from headgate.errors import Fenced, HeadgateError, NotFound, Poisoned, Transient
from headgate.shards.wal.entry import SourceRange
from tests.support.logs import CLAIMS, SHARD, batch, log
from tests.support.stores import Crash, Fault, FaultyStore, OverwritingStore

BATCHES = 3


class Spark:
    """What Spark's checkpoint remembers: the batch it planned last, which it hands over again after a restart."""

    planned = 0


def drive(store: ObjectStore, committed: list[int], spark: Spark) -> None:
    """A driver's life: open, every batch that the log does not have, one entry each, a fold. Raises what stops it."""
    opened = log(store).open("q", CLAIMS)
    for number in range(spark.planned, BATCHES):
        spark.planned = number
        sources = BatchSources((SourceRange("t", 0, number * 10, number * 10 + 10),))
        decision = decide_batch(opened.head, "q", number, sources, lambda topic, partition: 0)
        if isinstance(decision, Skip):
            continue
        assert isinstance(decision, Write), decision
        plan = next_plan(opened.head, SHARD)
        opened.commit(batch(number, number * 10, number * 10 + 10, plan), {SHARD: 0})
        committed.append(number)
    log(store).put_fold(fold(log(store).read(), {SHARD: 0}))


def check_complete(store: ObjectStore) -> None:
    """Every batch once, in order, and all its positions visible."""
    state = log(store).read()
    assert state.head.ends == {("t", 0): BATCHES * 10}
    assert list(state.shards[SHARD].runs()) == [(1, BATCHES)]


def test_a_crash_after_any_operation_leaves_a_log_that_goes_on(any_store: ObjectStore) -> None:
    number = 0
    while True:
        number += 1
        table = _folder(any_store, number)
        dying = FaultyStore(table, crash_after=number)
        committed: list[int] = []
        spark = Spark()
        try:
            drive(dying, committed, spark)
        except Crash:
            done = log(table).read().head.last
            assert committed == list(range(len(committed)))
            assert (-1 if done is None else done.batch_id) >= len(committed) - 1, "what was acknowledged is there"
        drive(table, [], spark)
        check_complete(table)
        if not dying.crashed:
            break
    assert number > 8, "the walk went through the whole life"


@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.LOST, Fault.LOST_EXISTS, Fault.LATE, Fault.VANISHED])
def test_a_fault_at_any_put_is_not_felt(store: ObjectStore, fault: Fault) -> None:
    for number in range(1, 5):
        table = _folder(store, number)
        puts = iter(range(1, 100))
        faulty = FaultyStore(table)
        faulty.plan = lambda op, puts=puts, at=number: (
            fault if op.verb == "put_if_absent" and next(puts) == at else None
        )
        committed: list[int] = []
        drive(faulty, committed, Spark())
        assert faulty.injected == 1
        assert committed == [0, 1, 2]
        faulty.deliver()
        check_complete(table)


@pytest.mark.parametrize("verb", ["get", "list"])
def test_a_store_that_stumbles_while_reading_is_asked_again(store: ObjectStore, verb: str) -> None:
    drive(store, [], Spark())
    faulty = FaultyStore(store)
    faulty.script(verb, Fault.FAIL, Fault.FAIL)
    log(faulty).open("q", CLAIMS)
    assert faulty.injected == 2


@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.LATE, Fault.VANISHED])
def test_a_commit_without_an_answer_is_poisoned_and_its_batch_counts_once(store: ObjectStore, fault: Fault) -> None:
    faulty = FaultyStore(store)
    opened = log(faulty).open("q", CLAIMS)
    faulty.script("put_if_absent", *[fault] * 4)
    with pytest.raises(Poisoned, match="may be stored or not"):
        opened.commit(batch(0, 0, 10, 1), {})
    operations = len(faulty.log)
    with pytest.raises(Poisoned):
        opened.commit(batch(0, 0, 10, 1), {})
    assert len(faulty.log) == operations, "a poisoned log never touches the store again"
    successor = log(store).open("q", CLAIMS)
    faulty.deliver()
    assert successor.head.last is None
    successor.commit(batch(0, 0, 10, 1), {})
    assert log(store).read().head.ends == {("t", 0): 10}


def test_a_late_commit_that_lands_before_the_successor_is_skipped_by_it(store: ObjectStore) -> None:
    faulty = FaultyStore(store)
    opened = log(faulty).open("q", CLAIMS)
    faulty.script("put_if_absent", *[Fault.LATE] * 4)
    with pytest.raises(Poisoned):
        opened.commit(batch(0, 0, 10, 1), {})
    faulty.deliver()
    successor = log(store).open("q", CLAIMS)
    sources = BatchSources((SourceRange("t", 0, 0, 10),))
    assert isinstance(decide_batch(successor.head, "q", 0, sources, lambda topic, partition: 0), Skip)


def test_after_a_lost_response_the_stored_record_counts(store: ObjectStore) -> None:
    faulty = FaultyStore(store)
    opened = log(faulty).open("q", CLAIMS)
    faulty.script("put_if_absent", Fault.LOST)
    record = opened.commit(batch(0, 0, 10, 1), {})
    assert log(store).record(2) == record
    again = opened.commit(batch(1, 10, 20, 2), {})
    assert again is not None
    assert again.sequence == 3


def test_an_open_record_that_arrives_twice_is_one(store: ObjectStore) -> None:
    faulty = FaultyStore(store)
    faulty.script("put_if_absent", Fault.LATE)
    opened = log(faulty).open("q", CLAIMS)
    log(store).open("other", CLAIMS)
    faulty.deliver()
    with pytest.raises(Fenced):
        opened.commit(batch(0, 0, 10, 1), {})


def test_an_interrupted_commit_is_not_tried_again_by_the_same_driver(store: ObjectStore) -> None:
    """SIGTERM in the middle of the put: the outcome is unknown."""
    faulty = FaultyStore(store)
    opened = log(faulty).open("q", CLAIMS)
    faulty.crash_after = len(faulty.log) + 1
    with pytest.raises(Crash):
        opened.commit(batch(0, 0, 10, 1), {})
    with pytest.raises(Poisoned):
        opened.commit(batch(0, 0, 10, 1), {})


@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.VANISHED])
def test_an_open_without_an_answer_leaves_nothing_that_harms(store: ObjectStore, fault: Fault) -> None:
    before = log(store).open("q", CLAIMS)
    faulty = FaultyStore(store)
    faulty.script("put_if_absent", *[fault] * 4)
    with pytest.raises((Poisoned, Transient)):
        log(faulty).open("q", CLAIMS)
    before.commit(batch(0, 0, 10, 1), {})


def test_a_record_that_is_collected_while_it_is_read_is_explained_by_the_newer_fold(store: ObjectStore) -> None:
    drive(store, [], Spark())
    opened = log(store).open("q", CLAIMS)
    opened.commit(batch(3, 30, 40, 4), {})
    state = log(store).read()

    class Collecting(FaultyStore):
        def get(self, key: str) -> memoryview:
            if self.injected == 0 and key.endswith("5.json") and "/log/" in key:
                self.injected += 1
                log(self.inner).put_fold(fold(state, {}))
                self.inner.delete(key)
                raise NotFound("collected", key=key)
            return super().get(key)

    reading = Collecting(store)
    # The first fold stands at 4, so record 5 (an open record) is read; pretend it was a batch.
    assert log(reading).read().fold_sequence == 6
    assert reading.injected == 1


def test_a_zombies_slot_that_is_emptied_by_hand_while_it_looks_does_not_let_it_in(store: ObjectStore) -> None:
    zombie_store = FaultyStore(store)
    zombie = log(zombie_store).open("q", CLAIMS)
    successor = log(store).open("q", CLAIMS)
    successor.commit(batch(0, 0, 10, 1), {})
    log(store).put_fold(fold(log(store).read(), {}))
    store.delete(f"{log(store).folder}/log/{2:020d}.json")
    zombie_store.script("put_if_absent", Fault.VANISHED)
    with pytest.raises(Fenced):
        zombie.commit(batch(0, 0, 10, 1), {})
    assert log(store).read().head.last == successor.head.last


class HidingStore(FaultyStore):
    """A listing that leaves out one record, as a file system's may while others put: its put has not returned."""

    hidden = f"{2:020d}.json"

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return iter([info for info in super().list(prefix) if not info.key.endswith(self.hidden)])


def test_a_record_that_a_listing_leaves_out_is_found(store: ObjectStore) -> None:
    opened = log(store).open("q", CLAIMS)
    opened.commit(batch(0, 0, 10, 1), {})
    successor = log(HidingStore(store)).open("q", CLAIMS)
    assert successor.record.sequence == 3
    assert successor.head.ends == {("t", 0): 10}
    assert log(HidingStore(store)).read().head == successor.head


def test_these_tests_fail_over_a_store_that_overwrites(store: ObjectStore) -> None:
    """Put-if-absent is what everything rests on: without it a zombie's record gets into the log."""
    broken = OverwritingStore(store)
    zombie = log(broken).open("q", CLAIMS)
    log(broken).open("q", CLAIMS)
    zombie.commit(batch(0, 0, 10, 1), {})
    assert log(store).read().head.last is not None


def _folder(store: ObjectStore, number: int) -> ObjectStore:
    """A table of its own in the same store."""
    return open_store(f"{store.uri}/table{number}")


def test_an_error_says_where_it_happened(store: ObjectStore) -> None:
    opened = log(store).open("q", CLAIMS)
    log(store).open("q2", CLAIMS)
    with pytest.raises(HeadgateError) as error:
        opened.commit(batch(0, 0, 10, 1), {})
    assert {"table", "stream", "sequence", "query_id", "successor_query_id"} <= error.value.fields().keys()
