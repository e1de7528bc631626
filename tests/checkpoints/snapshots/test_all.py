"""checkpoint(all): every flush first, then no gap is left, then the record; R1 and R4 at their boundaries."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import lance
import pytest

import headgate
from headgate.checkpoints.jobs.compact import CompactJob, CompactOutput
from headgate.checkpoints.jobs.flush import Flushed, FlushJob, run_here
from headgate.checkpoints.log.records import Batch
from headgate.checkpoints.snapshots.checkpoint import TableCheckpoint
from headgate.checkpoints.snapshots.snapshot import visible_now
from headgate.checkpoints.snapshots.take import OWN_PREFIX, drop_older, own_checkpoints
from headgate.checkpoints.stream.checkpoint import FinalCompaction, checkpoint_stream, stop_stream
from headgate.checkpoints.stream.driver import StreamDriver
from headgate.errors import Fenced, InvalidInput, Transient
from headgate.retry import Retry
from headgate.shards.config import WriterConfig
from headgate.shards.shard import Shard
from headgate.steps import watching
from headgate.table.table import Table
from tests.support.closing import Background, Steps
from tests.support.life import QUERY, ranges_of, run_task, write_plan
from tests.support.stores import Fault, Operation
from tests.support.tables import (
    DIRECT,
    dead_attempt,
    faulty,
    ids,
    make,
    manifest_of,
    native_ids,
    of_batches,
    open_stream,
    rows,
    run_batch,
    shard_of,
    through,
    tip_of,
)

MB = 1 << 20


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return make(tmp_path)


def taken(table: Table, driver: StreamDriver, keep: int = 2, max_bytes: int = MB) -> TableCheckpoint:
    return checkpoint_stream(driver, table.shard_ids(), run_here, max_bytes=max_bytes, keep=keep)


def check_no_gap(table: Table, *shards: Shard) -> None:
    """replay_after is next position − 1, and readers know everything above it."""
    visible = visible_now(table.home)
    for shard in shards:
        manifest = manifest_of(shard)
        assert manifest.replay_after == tip_of(shard) - 1
        assert visible.covers(shard.id, manifest.replay_after)
        assert list(visible.runs(shard.id, manifest.replay_after + 1)) == []


# -- a running stream ------------------------------------------------------------------


def test_a_running_stream_flushes_closes_its_gaps_folds_and_goes_on(table: Table) -> None:
    driver = open_stream(table)
    run_batch(driver, 0, attempts=2)
    checkpoint = taken(table, driver)
    shards = [shard_of(table, 0), shard_of(table, 1)]
    check_no_gap(table, *shards)
    assert all(len(manifest_of(shard).sstables) == 1 for shard in shards)
    assert checkpoint.scope == "all"
    assert checkpoint.note == ""
    assert checkpoint.name.startswith(f"{OWN_PREFIX}s/")
    assert {one.name for one in checkpoint.shards.values()} == {f"partition:orders:{p}" for p in (0, 1)}
    assert checkpoint.streams["s"].sequence == driver.head.sequence
    run_batch(driver, 1)
    run_batch(driver, 2)
    assert ids(table) == of_batches(range(3))
    assert ids(headgate.open_table(table.uri, checkpoint=checkpoint.name)) == of_batches([0])


def test_the_barrier_alone_leaves_no_gap(table: Table) -> None:
    """Nothing is visible above replay_after, and yet it goes on: slatedb's gap of one."""
    driver = open_stream(table)
    run_batch(driver, 0)
    taken(table, driver)
    before = manifest_of(shard_of(table, 0)).replay_after
    again = open_stream(table)  # two more barriers, and not a row
    taken(table, again)
    check_no_gap(table, shard_of(table, 0), shard_of(table, 1))
    assert manifest_of(shard_of(table, 0)).replay_after == before + 1
    assert len(manifest_of(shard_of(table, 0)).sstables) == 1, "no SSTable is made of nothing"
    assert ids(table) == of_batches([0])


def test_a_fresh_stream_has_nothing_to_pass(table: Table) -> None:
    driver = open_stream(table)
    checkpoint = taken(table, driver)
    assert manifest_of(shard_of(table, 0)).replay_after == 0
    assert [one.end for one in checkpoint.shards.values()] == [1, 1]


def test_the_newest_are_kept_by_the_log_and_not_by_a_clock_that_counts_seconds(table: Table) -> None:
    driver = open_stream(table)
    names = []
    for number in range(12):
        run_batch(driver, number)
        names.append(taken(table, driver, keep=100).name)
    for path in (Path(table.uri) / "_headgate").rglob("checkpoints/*.json"):
        os.utime(path, (1_800_000_000, 1_800_000_000))
    assert [one.checkpoint.name for one in own_checkpoints(table.home, "s")] == names
    assert drop_older(table.home, "s", 2) == names[:-2]


def test_twice_equals_once(table: Table) -> None:
    driver = open_stream(table)
    run_batch(driver, 0)
    taken(table, driver)
    before = [manifest_of(shard_of(table, p)) for p in (0, 1)]
    taken(table, driver)
    assert [manifest_of(shard_of(table, p)) for p in (0, 1)] == before, "no manifest is written for nothing"


def test_a_large_tail_becomes_several_sstables(table: Table) -> None:
    driver = open_stream(table)
    for number in range(3):
        run_batch(driver, number)
    taken(table, driver, max_bytes=1)
    assert [len(manifest_of(shard_of(table, p)).sstables) for p in (0, 1)] == [3, 3]
    check_no_gap(table, shard_of(table, 0), shard_of(table, 1))
    assert ids(table) == of_batches(range(3))


def test_replay_after_never_reaches_the_plan_of_a_batch_in_flight(table: Table) -> None:
    """R1: the batch is planned, one of its tasks has written, and then the checkpoint comes."""
    driver = open_stream(table)
    run_batch(driver, 0)
    ranges = ranges_of(1)
    plan = write_plan(driver, ranges)
    planned = plan.claims["partition:orders:0"].next_position
    run_task(plan, [ranges[0]])
    taken(table, driver)
    assert manifest_of(shard_of(table, 0)).replay_after == planned - 1
    run_batch(driver, 1)
    assert ids(table) == of_batches(range(2))


def test_the_next_batch_is_planned_above_what_was_passed(table: Table) -> None:
    """R4: dead entries behind the last row are passed, and no batch is ever listed there."""
    driver = open_stream(table)
    run_batch(driver, 0, attempts=2)
    taken(table, driver)
    passed = manifest_of(shard_of(table, 0)).replay_after
    assert passed == 2
    assert run_batch(driver, 1).shards["partition:orders:0"].positions == (passed + 1,)


def test_the_plan_is_raised_before_it_is_known_whether_the_gap_was_passed(table: Table) -> None:
    """R4: the manifest landed, its response was lost, and the dead entries below it were collected. A batch that took
    their free slots would be listed where no replay reads.
    """
    store = faulty(table)
    away, began = False, 0

    def lose(operation: Operation) -> Fault | None:
        if not away or "/manifest/" not in operation.key:
            return None
        landed = any(one.verb == "put_if_absent" for one in store.log[began:-1])
        return Fault.LOST if operation.verb == "put_if_absent" else Fault.FAIL if landed else None

    store.plan = lose
    driver = open_stream(through(table, store), [0])
    run_batch(driver, 0, [0], attempts=3)
    settled = driver.settle(run_here, MB)
    away, began = True, len(store.log)
    with pytest.raises(Transient):
        driver.close_gaps(settled)
    away = False
    assert manifest_of(shard_of(table, 0)).replay_after == 3, "it landed"
    table.collect_garbage(min_age=timedelta(0), apply=True)
    run_batch(driver, 1, [0])
    assert ids(table) == of_batches(range(2), [0])


def test_rows_that_a_direct_writer_left_below_the_barrier_are_flushed_too(table: Table) -> None:
    """They are in no log, and a flush up to the last listed position would stop before them."""
    shard = shard_of(table, 0)
    with table.writer(shard.id, WriterConfig(enable_memtable=False)) as writer:
        writer.put(rows(-1, -2))
    driver = open_stream(table, [0])
    taken(table, driver)
    check_no_gap(table, shard)
    assert ids(table) == Counter([-1, -2])


def test_rows_that_native_left_below_the_barrier_are_flushed_with_the_generation_they_note(tmp_path: Path) -> None:
    """Native took the direct writer's rows into its generation: an SSTable of those alone would hide native's."""
    table = make(tmp_path, key="id")
    shard = shard_of(table, 0)
    with table.writer(shard.id) as writer:
        for i in range(1, 4):
            writer.put(rows(-i))
    native = lance.dataset(table.uri).mem_wal_writer(str(shard.id))
    native.put(rows(-4))  # and it crashes
    driver = open_stream(table, [0])
    run_batch(driver, 0, [0])
    taken(table, driver, max_bytes=1)
    check_no_gap(table, shard)
    assert ids(table) == Counter([-1, -2, -3, -4]) + of_batches([0], [0])
    assert len(manifest_of(shard).sstables) == 2
    del native


def test_only_the_newest_own_checkpoints_stay(table: Table) -> None:
    driver, other = open_stream(table, [0]), open_stream(table, [1], stream="s/2")
    run_batch(driver, 0, [0])
    mine = [taken(table, driver).name for _ in range(4)]
    others = [taken(table, other).name for _ in range(2)]
    table.checkpoint(name="by hand")
    taken(table, driver)
    left = [one.checkpoint.name for one in table.checkpoints()]
    assert [name for name in left if name in mine] == mine[-1:]
    assert [name for name in left if name in others] == others, "another stream's are left alone"
    assert "by hand" in left


def test_a_wal_only_stream_is_recorded_and_pinned_and_the_note_says_so(table: Table) -> None:
    driver = open_stream(table)
    run_batch(driver, 0, mode="wal")
    before = [manifest_of(shard_of(table, p)) for p in (0, 1)]
    checkpoint = taken(table, driver)
    assert [manifest_of(shard_of(table, p)) for p in (0, 1)] == before
    assert (
        checkpoint.note
        == "stream 's' is WAL only: rows stay in the WAL, which the checkpoint pins; nothing was flushed"
    )
    assert table.checkpoint("all").note == checkpoint.note
    run_batch(driver, 1, mode="wal")
    assert ids(headgate.open_table(table.uri, checkpoint=checkpoint.name)) == of_batches([0])
    assert stop_stream(driver, table.shard_ids(), run_here, max_bytes=MB, keep=2).note == checkpoint.note
    assert manifest_of(shard_of(table, 0)).sealed, "native knows nothing of what counts there"


def test_wal_only_batches_of_this_very_driver_are_flushed_when_it_changes_its_mind(table: Table) -> None:
    driver = open_stream(table)
    run_batch(driver, 0, mode="wal")
    run_batch(driver, 1, mode="memtable")
    taken(table, driver)
    check_no_gap(table, shard_of(table, 0), shard_of(table, 1))
    assert ids(table) == of_batches(range(2))


# -- what fails ------------------------------------------------------------------------


def test_one_failing_flush_fails_it_whole_and_no_shard_passes_its_gap(table: Table) -> None:
    driver = open_stream(table)
    run_batch(driver, 0, attempts=2)

    def run(jobs: list[FlushJob]) -> dict[str, Flushed]:
        good = [job for job in jobs if job.name.endswith(":0")]
        run_here(good)
        raise Transient("The disk is full.", shard=jobs[-1].name)

    with pytest.raises(Transient, match=r"shard=partition:orders:1"):
        checkpoint_stream(driver, table.shard_ids(), run, max_bytes=MB, keep=2)  # type: ignore[arg-type]
    assert manifest_of(shard_of(table, 1)).replay_after == 0, "it stays where it was"
    assert manifest_of(shard_of(table, 0)).replay_after == 1, "the rows are covered, the dead entry is not passed"
    assert table.checkpoints() == []
    assert ids(table) == of_batches([0])
    run_batch(driver, 1)
    taken(table, driver)
    check_no_gap(table, shard_of(table, 0), shard_of(table, 1))
    assert ids(table) == of_batches(range(2))


def test_a_store_that_refuses_a_flush_leaves_replay_after_and_no_record_and_the_error_names_the_shard(
    table: Table,
) -> None:
    driver = open_stream(table)
    run_batch(driver, 0)
    victim = shard_of(table, 1)
    store = faulty(table)

    def refuse(operation: Operation) -> Fault | None:
        wanted = operation.verb == "put_if_absent" and f"{victim.id}/manifest" in operation.key
        return Fault.FAIL if wanted and opened else None

    opened = False
    store.plan = refuse
    bad = through(table, store)
    driver = open_stream(bad)
    opened = True
    before = manifest_of(victim)
    with pytest.raises(Transient, match=str(victim.id)):
        taken(bad, driver)
    assert manifest_of(victim) == before
    assert table.checkpoints() == []
    assert ids(table) == of_batches([0])
    store.unscript()
    taken(bad, driver)
    check_no_gap(table, shard_of(table, 0), victim)
    assert ids(table) == of_batches([0])


@pytest.mark.parametrize("step", ["limits", "plan", "flush", "gaps", "fold"])
def test_a_driver_that_is_taken_over_in_the_middle_is_fenced_and_passes_nothing(table: Table, step: str) -> None:
    steps = Steps(step)
    driver = open_stream(table)
    run_batch(driver, 0, attempts=2)
    with watching(steps):
        slow = Background(lambda: checkpoint_stream(driver, table.shard_ids(), run_here, max_bytes=MB, keep=2))
    steps.wait()
    successor = open_stream(table)
    run_batch(successor, 1)
    steps.release()
    if step == "fold":
        slow.result()  # anyone may fold and pin: it names what is
    else:
        with pytest.raises(Fenced):
            slow.result()
    run_batch(successor, 2)
    assert ids(table) == of_batches(range(3))
    taken(table, successor)
    check_no_gap(table, shard_of(table, 0), shard_of(table, 1))
    assert ids(table) == of_batches(range(3))


def test_never_two_at_once(table: Table) -> None:
    steps = Steps("flush")
    driver = open_stream(table)
    run_batch(driver, 0)
    with watching(steps):
        slow = Background(lambda: taken(table, driver))
    steps.wait()
    with pytest.raises(InvalidInput, match="Another thread"):
        taken(table, driver)
    steps.release()
    slow.result()


# -- a clean stop ------------------------------------------------------------------------


def test_after_a_clean_stop_native_opens_the_shards_with_all_rows(tmp_path: Path) -> None:
    table = make(tmp_path, key="id")
    driver = open_stream(table)
    run_batch(driver, 0)
    dead_attempt(driver, 1)
    stop_stream(driver, table.shard_ids(), run_here, max_bytes=MB, keep=2)
    check_no_gap(table, shard_of(table, 0), shard_of(table, 1))
    for partition in (0, 1):
        manifest = manifest_of(shard_of(table, partition))
        assert not manifest.sealed
        assert manifest.owner == "s"
        assert native_ids(table, shard_of(table, partition)) == sorted(of_batches([0], [partition]))
    again = open_stream(table)
    assert manifest_of(shard_of(table, 0)).sealed, "the next start seals again"
    run_batch(again, 1)
    assert ids(table) == of_batches(range(2))


@pytest.mark.parametrize("key", ["id", None])
def test_after_a_clean_stop_that_compacts_a_plain_lance_reader_sees_every_row(tmp_path: Path, key: str | None) -> None:
    table = make(tmp_path, key=key)
    driver = open_stream(table)
    run_batch(driver, 0)
    taken(table, driver)
    run_batch(driver, 1)
    stopped = stop_stream(
        driver, table.shard_ids(), run_here, max_bytes=MB, keep=2, compaction=FinalCompaction(seconds=60.0)
    )
    assert stopped.note == ""
    plain = Counter(lance.dataset(table.uri).to_table()["id"].to_pylist())
    assert plain == of_batches(range(2))
    assert ids(table) == ids(headgate.open_table(table.uri, checkpoint=stopped.name)) == of_batches(range(2))


def test_what_a_clean_stop_has_no_time_or_luck_to_compact_is_reported_and_stays_readable(table: Table) -> None:
    def unlucky(job: CompactJob) -> CompactOutput:
        raise OSError("secret=abc")

    for number, last in enumerate([FinalCompaction(seconds=0.0), FinalCompaction(60.0, unlucky)]):
        driver = open_stream(table)
        run_batch(driver, number)
        stopped = stop_stream(driver, table.shard_ids(), run_here, max_bytes=MB, keep=2, compaction=last)
        assert "SSTables are not in the base" in stopped.note
        assert "secret" not in stopped.note
        assert not manifest_of(shard_of(table, 0)).sealed
        assert lance.dataset(table.uri).count_rows() == 0
        assert ids(table) == of_batches(range(number + 1))


def test_a_task_that_stalled_over_the_clean_stop_writes_nothing_behind_it(table: Table) -> None:
    """Without a new barrier its rows would land above replay_after, where native takes everything for good."""
    driver = open_stream(table)
    run_batch(driver, 0)
    ranges = ranges_of(1)
    plan = write_plan(driver, ranges)
    stop_stream(driver, table.shard_ids(), run_here, max_bytes=MB, keep=2)
    (line,) = run_task(plan, [ranges[0]])
    assert line["error"]["class"] == "Fenced"
    check_no_gap(table, shard_of(table, 0), shard_of(table, 1))


def test_a_driver_that_was_taken_over_stops_without_taking_the_stream_back(table: Table) -> None:
    driver = open_stream(table)
    run_batch(driver, 0)
    successor = open_stream(table)
    with pytest.raises(Fenced):
        stop_stream(driver, table.shard_ids(), run_here, max_bytes=MB, keep=2)
    run_batch(successor, 1)
    assert ids(table) == of_batches(range(2))


def test_a_clean_stop_outlasts_what_fails_in_passing(table: Table) -> None:
    """Maintenance would try again later; after a stop there is no later."""
    driver = open_stream(table)
    driver.home = driver.home.retrying(Retry(12, base=0.05))
    run_batch(driver, 0)
    failures = iter([Transient("An SSTable could not be written.")] * 2)

    def flush(jobs: Sequence[FlushJob]) -> dict[str, Flushed]:
        """One shard's is committed, and the next one's fails."""
        done = run_here(jobs[:1])
        if (failure := next(failures, None)) is not None:
            raise failure
        return done | run_here(jobs[1:])

    pins = iter([Transient("The store is away.")])

    def pause(step: str) -> None:
        if step == "taken" and (failure := next(pins, None)) is not None:
            raise failure

    with watching(pause):
        stop_stream(driver, table.shard_ids(), flush, max_bytes=MB, keep=1)
    assert (next(failures, None), next(pins, None)) == (None, None), "all of them were met"
    check_no_gap(table, shard_of(table, 0), shard_of(table, 1))
    assert not any(manifest_of(shard_of(table, partition)).sealed for partition in (0, 1))
    assert len(table.checkpoints()) == 1
    assert ids(table) == of_batches([0])


def test_a_clean_stop_gives_up_when_its_patience_is_over(table: Table) -> None:
    driver = open_stream(table)
    driver.home = driver.home.retrying(Retry(1, base=0.05))
    run_batch(driver, 0)
    tries = []

    def flush(jobs: Sequence[FlushJob]) -> dict[str, Flushed]:
        tries.append(len(jobs))
        time.sleep(0.1)
        raise Transient("An SSTable could not be written.")

    with pytest.raises(Transient):
        stop_stream(driver, table.shard_ids(), flush, max_bytes=MB, keep=1)
    assert tries == [2], "a step that is as patient itself is not tried again"
    stop_stream(driver, table.shard_ids(), run_here, max_bytes=MB, keep=1)
    check_no_gap(table, shard_of(table, 0), shard_of(table, 1))


# -- a table that nobody runs ------------------------------------------------------------


def test_a_stopped_table_is_flushed_whole_and_every_writer_is_fenced(table: Table) -> None:
    driver = open_stream(table)
    run_batch(driver, 0)
    dead_attempt(driver, 1)
    writer = table.writer(DIRECT)
    writer.put(rows(-1))
    checkpoint = table.checkpoint("all", name="stopped")
    shards = [shard_of(table, 0), shard_of(table, 1), table.home.shard(DIRECT)]
    check_no_gap(table, *shards)
    assert not any(manifest_of(shard).sealed for shard in shards)
    assert [one.manifest.replay_after + 1 for one in checkpoint.shards.values()] == [
        one.end for one in checkpoint.shards.values()
    ]
    with pytest.raises(Fenced):
        driver.commit(Batch(query_id=QUERY, batch_id=1))
    with pytest.raises(Fenced):
        writer.put(rows(-2))
    assert ids(table) == of_batches([0]) + Counter([-1])
    run_batch(open_stream(table), 1)
    assert ids(table) == of_batches(range(2)) + Counter([-1])
    assert ids(headgate.open_table(table.uri, checkpoint="stopped")) == of_batches([0]) + Counter([-1])


def test_a_direct_writer_that_only_left_its_barrier_leaves_no_gap(table: Table) -> None:
    with table.writer(DIRECT) as writer:
        writer.put(rows(1))
        writer.flush_memtable()
    table.writer(DIRECT).close()
    table.checkpoint("all")
    check_no_gap(table, table.home.shard(DIRECT))
    assert len(manifest_of(table.home.shard(DIRECT)).sstables) == 1


def test_a_shard_whose_stream_died_before_its_first_record_is_opened_by_its_id_and_later_by_its_name(
    table: Table,
) -> None:
    """Its name is in no log. Were both taken for two shards, the stream would fence itself for ever."""

    class Died(Exception):
        pass

    def die(step: str) -> None:
        if step == "open record":
            raise Died

    with pytest.raises(Died):
        with watching(die):
            open_stream(table, [0])
    table.checkpoint("all")
    driver = open_stream(table, [0])
    assert list(driver.claims) == ["partition:orders:0"]
    run_batch(driver, 0, [0])
    assert ids(table) == of_batches([0], [0])
