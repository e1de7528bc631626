"""StreamDriver: a crash, a fault, a rival at any step of its protocol, and each batch counts once or not at all."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from headgate.checkpoints.log.records import Batch
from headgate.checkpoints.log.state import RECENT
from headgate.checkpoints.stream.driver import StreamDriver
from headgate.connectors.objects.folder import FolderStore
from headgate.connectors.objects.port import ObjectStore
from headgate.errors import Fenced, HeadgateError, InvalidInput, Poisoned, Transient
from headgate.shards.shard import TableHome
from headgate.shards.wal.entry import SourceRange
from headgate.steps import watching
from tests.support.closing import Background, Steps
from tests.support.life import (
    KEYED,
    QUERY,
    TOPIC,
    batch_of,
    check_exactly_once,
    home_of,
    open_driver,
    ranges_of,
    run_batch,
    run_task,
    visible_rows,
    write_plan,
    written,
)
from tests.support.stores import Crash, Fault, FaultyStore

BATCHES = 2
ALL = [part for number in range(BATCHES) for part in ranges_of(number)]


class Spark:
    """What Spark's checkpoint remembers: the batch it planned last, which it hands over again after a restart."""

    planned = 0


def life(store: ObjectStore, spark: Spark) -> None:
    """A driver's life: open, then every batch that Spark hands over. Raises what stops it."""
    driver = open_driver(home_of(store))
    for number in range(spark.planned, BATCHES):
        spark.planned = number
        run_batch(driver, number, ranges_of(number))


def folders(store: ObjectStore) -> Iterator[ObjectStore]:
    for number in range(1, 1000):
        yield FolderStore(store, f"run-{number}")


# -- crashes and faults ----------------------------------------------------------------


def test_after_a_crash_at_any_store_operation_a_restart_completes_every_batch_once(store: ObjectStore) -> None:
    crashes = 0
    for number, table in enumerate(folders(store), 1):
        dying, spark = FaultyStore(table, crash_after=number), Spark()
        try:
            life(dying, spark)
        except (Crash, HeadgateError):
            assert dying.crashed, "only the crash may stop it"
            crashes += 1
        life(table, spark)
        check_exactly_once(home_of(table), ALL)
        if not dying.crashed:
            break
    assert crashes > 25, "the walk went through the whole life"


@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.LOST, Fault.LOST_EXISTS, Fault.LATE, Fault.VANISHED])
def test_one_fault_at_any_put_is_not_felt(store: ObjectStore, fault: Fault) -> None:
    for number, table in enumerate(folders(store), 1):
        puts = iter(range(1, 1000))
        faulty = FaultyStore(table)
        faulty.plan = lambda op, puts=puts, at=number: (
            fault if op.verb == "put_if_absent" and next(puts) == at else None
        )
        try:
            life(faulty, Spark())
        except (Transient, Poisoned):
            # A conflict that left nothing: where neither manifest nor record can say who it was, it is told as unknown.
            if fault is not Fault.VANISHED:
                raise
            life(faulty, Spark())
        faulty.deliver()
        check_exactly_once(home_of(table), ALL)
        if not faulty.injected:
            break
    assert number > 12, "every put was hit"


# -- rivals ----------------------------------------------------------------------------

SHARD_STEPS = ["look", "claim", "tip", "barrier", "re-read"]
LOG_STEPS = ["read", "open record", "prove"]


@pytest.mark.parametrize("step", [*SHARD_STEPS, *LOG_STEPS])
def test_of_two_drivers_that_open_at_once_never_both_commit(store: ObjectStore, step: str) -> None:
    home = home_of(store)
    run_batch(open_driver(home), 0, ranges_of(0))
    steps = Steps(step, threads=2 if step in SHARD_STEPS else 1)
    with watching(steps):
        slow = Background(lambda: open_driver(home))
    steps.wait()
    quick = committed(lambda: run_batch(open_driver(home), 1, ranges_of(1)))
    steps.release()
    committed(lambda: run_batch(slow.result(), 1, ranges_of(1)))
    assert quick, "nobody stood in the way of the quick one"
    # The slow one came to life after the batch was committed: it finds it there, or it is fenced.
    check_exactly_once(home, [*ranges_of(0), *ranges_of(1)])
    run_batch(open_driver(home), 2, ranges_of(2))
    check_exactly_once(home, [part for number in range(3) for part in ranges_of(number)])


@pytest.mark.parametrize("step", ["read", "open record"])
def test_a_driver_that_lost_its_shards_before_its_open_record_is_fenced_by_the_re_read(
    store: ObjectStore, step: str
) -> None:
    home = home_of(store)
    steps = Steps(step)
    with watching(steps):
        slow = Background(lambda: open_driver(home))
    steps.wait()
    run_batch(open_driver(home), 0, ranges_of(0))
    steps.release()
    with pytest.raises(Fenced, match="claimed the stream's shard while this driver was starting"):
        slow.result()
    check_exactly_once(home, ranges_of(0))


def committed(call: Callable[[], object]) -> bool:
    try:
        call()
    except Fenced:
        return False
    return True


@pytest.mark.parametrize("step", ["commit", "commit record"])
@pytest.mark.parametrize("rows", [True, False], ids=["rows", "no-rows"])
def test_a_driver_that_wakes_after_its_successor_committed_five_batches_is_fenced(
    store: ObjectStore, step: str, rows: bool
) -> None:
    home = home_of(store)
    steps = Steps(step)
    stalled = open_driver(home)
    nothing = (SourceRange(TOPIC, 0, 0, 0), SourceRange(TOPIC, 1, 0, 0))
    with watching(steps):
        zombie = Background(lambda: run_batch(stalled, 0, ranges_of(0) if rows else nothing))
    steps.wait()
    successor = open_driver(home, query="other")
    for number in range(5):
        run_batch(successor, number, ranges_of(number), query="other")
    steps.release()
    with pytest.raises(Fenced, match="stop this query; another driver runs the stream") as error:
        zombie.result()
    assert error.value.detail["successor_query_id"] == "other"
    check_exactly_once(home, [part for number in range(5) for part in ranges_of(number)])
    run_batch(successor, 5, ranges_of(5), query="other")


def test_a_zombie_that_meets_a_new_partition_does_not_take_the_stream_back(store: ObjectStore) -> None:
    home = home_of(store)
    zombie = open_driver(home, [0])
    successor = open_driver(home, [0])
    run_batch(successor, 0, ranges_of(0, partitions=[0]))
    with pytest.raises(Fenced, match="took over the stream"):
        zombie.plan([f"partition:{TOPIC}:0", f"partition:{TOPIC}:1"])
    assert home.shard(f"partition:{TOPIC}:1").manifests.latest() is None, "it claimed nothing"
    grown = [SourceRange(TOPIC, 0, 20, 40), SourceRange(TOPIC, 1, 0, 20)]
    run_batch(successor, 1, grown)
    check_exactly_once(home, [*ranges_of(0, partitions=[0]), *grown])


def test_a_zombie_that_claimed_a_new_partition_before_it_woke_commits_nothing(store: ObjectStore) -> None:
    home = home_of(store)
    steps = Steps("extend")
    stalled = open_driver(home, [0])
    with watching(steps):
        zombie = Background(lambda: run_batch(stalled, 0, ranges_of(0)))
    steps.wait()
    successor = open_driver(home, [0, 1])
    run_batch(successor, 0, ranges_of(0))
    steps.release()
    with pytest.raises(Fenced):
        zombie.result()
    run_batch(successor, 1, ranges_of(1))
    check_exactly_once(home, [*ranges_of(0), *ranges_of(1)])


def test_tasks_of_a_fenced_driver_write_nothing_after_its_successor_has_opened(store: ObjectStore) -> None:
    home = home_of(store)
    plan = write_plan(open_driver(home), ranges_of(0))
    open_driver(home)
    (line,) = run_task(plan, ranges_of(0))
    assert line["error"]["class"] == "Fenced"
    assert visible_rows(home) == {}


def test_shards_that_a_predecessor_added_while_this_driver_opened_are_claimed_too(store: ObjectStore) -> None:
    home = home_of(store)
    predecessor = open_driver(home, [0])
    steps = Steps("look")
    with watching(steps):
        slow = Background(lambda: open_driver(home, [0]))
    steps.wait()
    run_batch(predecessor, 0, ranges_of(0))  # partition 1 is new
    steps.release()
    driver = slow.result()
    assert sorted(driver.claims) == [f"partition:{TOPIC}:{p}" for p in (0, 1)]
    run_batch(driver, 1, ranges_of(1))
    check_exactly_once(home, [*ranges_of(0), *ranges_of(1)])


# -- what is refused fences nobody -------------------------------------------------------


def test_a_start_that_is_refused_writes_nothing_and_fences_nobody(store: ObjectStore) -> None:
    home = home_of(store)
    driver = open_driver(home)
    run_batch(driver, 0, ranges_of(0))
    store.reset_operations()

    def refuse(head: object) -> None:
        raise InvalidInput("no")

    with pytest.raises(InvalidInput, match="no"):
        StreamDriver.open(home, "s", "other", [f"partition:{TOPIC}:9"], accept=refuse)
    assert "put" not in store.operations()
    run_batch(driver, 1, ranges_of(1))


def test_a_shard_of_another_stream_is_refused_by_name_and_none_is_claimed(store: ObjectStore) -> None:
    home = home_of(store)
    owner = open_driver(home, [0], stream="first")
    with pytest.raises(InvalidInput, match=r"'partition:orders:0' belongs to stream 'first'.*stream 'second'"):
        open_driver(home, [0, 1], stream="second")
    assert home.shard(f"partition:{TOPIC}:1").manifests.latest() is None
    run_batch(owner, 0, ranges_of(0, partitions=[0]))


def test_dead_letters_of_two_streams_that_owned_one_shard_do_not_meet(store: ObjectStore) -> None:
    home = home_of(store)
    first = write_plan(open_driver(home, [0], stream="first"), ranges_of(0, partitions=[0]))
    other = write_plan(open_driver(home, [1], stream="second"), ranges_of(0, partitions=[1]))
    named = {name: claim.shard.id for plan in (first, other) for name, claim in plan.dead_letters.items()}
    again = write_plan(open_driver(elsewhere(home, store), [0], stream="second"), ranges_of(0, partitions=[0]))
    assert again.dead_letters[f"partition:{TOPIC}:0"].shard.id not in named.values()


def elsewhere(home: TableHome, store: ObjectStore) -> TableHome:
    """The same table in another place: there no shard has an owner yet."""
    place = FolderStore(store, "elsewhere")
    return TableHome(home.schema, place, place, home.table_id)


# -- costs -------------------------------------------------------------------------------


def test_a_batch_costs_one_put_per_log_with_rows_and_one_for_the_record(store: ObjectStore) -> None:
    home = home_of(store)
    driver = open_driver(home)
    for number in range(BATCHES):
        store.reset_operations()
        run_batch(driver, number, ranges_of(number))
        assert store.operations() == {"put": 2 + 2 + 1}, "two shards, two dead-letter logs, one record"
    store.reset_operations()
    driver.commit(Batch(query_id=QUERY, batch_id=BATCHES))
    assert store.operations() == {"put": 1}


def test_a_driver_without_memtables_remembers_no_entries(store: ObjectStore) -> None:
    driver = open_driver(home_of(store))
    for number in range(BATCHES):
        run_batch(driver, number, ranges_of(number))
    assert driver.flush_jobs(1) == []


# -- what is due for a flush ----------------------------------------------------------------


def memtable_batch(driver: StreamDriver, number: int) -> None:
    ranges = ranges_of(number, partitions=[0])
    plan = write_plan(driver, ranges)
    driver.commit(replace(batch_of(plan, written(run_task(plan, ranges)), number, ranges), mode="memtable"))


def test_a_shard_is_due_when_its_entries_pass_the_size_also_after_a_restart(store: ObjectStore) -> None:
    home = home_of(store, KEYED)
    driver = open_driver(home, [0])
    for number in range(3):
        memtable_batch(driver, number)
    size = sum(part.nbytes for record in driver.head.recent.values() for part in record.shards.values())
    for one in (driver, open_driver(home, [0])):
        assert one.flush_jobs(size * 2) == []
        (job,) = one.flush_jobs(size)
        assert list(job.visible.runs()) == [(1, 3)]
        assert job.last == 3, "replay_after may not pass the last listed position (R1)"


def test_entries_that_are_too_old_to_know_their_size_are_due(store: ObjectStore) -> None:
    home = home_of(store, KEYED)
    driver = open_driver(home, [0])
    for number in range(RECENT + 1):
        memtable_batch(driver, number)
    assert driver.flush_jobs(1 << 40) == [], "this driver has seen them all"
    (job,) = open_driver(home, [0]).flush_jobs(1 << 40)
    assert job.last == RECENT + 1


def test_a_table_id_of_its_own_makes_shards_of_its_own(store: ObjectStore) -> None:
    home = home_of(store)
    run_batch(open_driver(home), 0, ranges_of(0))
    anew = TableHome(home.schema, store, store, uuid.uuid4())
    assert visible_rows(anew) == {}
    run_batch(open_driver(anew), 0, ranges_of(0))
    assert visible_rows(anew) == visible_rows(home)
