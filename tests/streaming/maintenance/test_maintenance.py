"""Maintenance beside a stream: the real driver, tasks, table and threads; only Spark is missing."""

from __future__ import annotations

import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from headgate.checkpoints.gc.report import Collection
from headgate.checkpoints.jobs.columns import stream_schema
from headgate.checkpoints.jobs.compact import CompactJob, CompactOutput, take_in
from headgate.checkpoints.jobs.flush import Flushed, FlushJob, run_here
from headgate.checkpoints.jobs.state import MaintenanceState, put_state, read_state
from headgate.checkpoints.snapshots.snapshot import read_snapshot
from headgate.checkpoints.stream.checkpoint import checkpoint_stream, stop_stream
from headgate.checkpoints.stream.driver import StreamDriver
from headgate.errors import DataLoss, Fenced, InvalidInput, Transient
from headgate.steps import watching
from headgate.streaming.maintenance import rules
from headgate.streaming.maintenance.cores import CoreTurns
from headgate.streaming.maintenance.schedule import Jobs, Schedule
from headgate.streaming.maintenance.threads import Maintenance
from headgate.table.table import Table
from tests.streaming.maintenance.maintained import EAGER, KINDS, PATIENCE, HandClock, batch, schedule, until
from tests.support.closing import Background, Steps
from tests.support.tables import ids, make, manifest_of, open_stream, run_batch, shard_of
from tests.support.tables import of_batches as rows_of


class Gate:
    """Jobs that wait until they are let through, and may fail."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.open = threading.Event()
        self.error: Exception | None = None
        self.runs = 0

    def flush(self, jobs: Sequence[FlushJob]) -> Mapping[str, Flushed]:
        self._pass()
        return run_here(jobs)

    def compact(self, job: CompactJob) -> CompactOutput:
        self._pass()
        return take_in(job)

    def _pass(self) -> None:
        self.runs += 1
        self.reached.set()
        assert self.open.wait(PATIENCE), "nobody opened the gate"
        if self.error is not None:
            raise self.error


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return make(tmp_path, key="id")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Maintenance]]:
    """Makes maintenance that is stopped at the end of the test."""
    monkeypatch.setattr(rules, "LONGEST_PAUSE", 0.01)
    made: list[Maintenance] = []

    def start(driver: StreamDriver, jobs: Jobs = Jobs(), plan: Schedule | None = None, **more: object) -> Maintenance:  # noqa: B008
        made.append(Maintenance(driver, jobs, plan or schedule(), **more).start())  # type: ignore[arg-type]
        return made[-1]

    yield start
    for one in made:
        one.stop()


Started = Callable[..., Maintenance]


# -- what it does ------------------------------------------------------------------------


@pytest.mark.parametrize("key", KINDS)
def test_flushes_and_compactions_run_by_themselves_and_every_row_is_there_once(
    tmp_path: Path, key: str | None, started: Started
) -> None:
    table = make(tmp_path, key=key)
    driver = open_stream(table)
    maintenance = started(driver)
    for number in range(6):
        batch(driver, maintenance, number)
        until(lambda number=number: maintenance.state.flushes >= 2 * (number + 1), "both shards are flushed")  # type: ignore[misc]
    until(lambda: maintenance.state.sstables_compacted >= 10, "SSTables are compacted")
    until(lambda: not maintenance.state.running, "all is quiet")
    assert maintenance.state.failures == ()
    assert ids(table) == rows_of(range(6))
    assert lance.dataset(table.uri).count_rows() >= 5 * 2 * 18
    assert all(len(manifest_of(shard_of(table, partition)).sstables) < 2 for partition in (0, 1))
    until(lambda: len(lance.dataset(table.uri).get_fragments()) < 3, "small fragments are merged")


@pytest.mark.parametrize("key", KINDS)
def test_every_snapshot_beside_it_is_a_prefix_of_the_batches(tmp_path: Path, key: str | None, started: Started) -> None:
    table = make(tmp_path, key=key)
    driver = open_stream(table)
    maintenance = started(driver)
    prefixes = [rows_of(range(count)) for count in range(13)]
    over = threading.Event()
    seen: list[int] = []

    def read() -> None:
        while not over.is_set():
            found = Counter(
                read_snapshot(table.home, table.shard_ids()).scan(["id"]).read_all().column("id").to_pylist()
            )
            assert found in prefixes, "a mixture of batches"
            seen.append(prefixes.index(found))

    reader = Background(read)
    for number in range(12):
        if number == 6:
            # One round takes all that it sees: the second needs something of its own.
            until(lambda: maintenance.state.compactions > 0, "it compacts")
        batch(driver, maintenance, number)
    until(lambda: maintenance.state.compactions > 1, "it compacts again")
    over.set()
    reader.result()
    assert seen == sorted(seen), "time goes forward"
    assert ids(table) == prefixes[12]


def test_a_shard_is_flushed_when_its_oldest_entry_is_old_enough(
    table: Table, started: Started, by_hand: HandClock
) -> None:
    driver = open_stream(table)
    limits = replace(EAGER, flush_bytes=1 << 40, flush_seconds=60.0)
    maintenance = started(driver, plan=schedule(limits))
    batch(driver, maintenance, 0)
    by_hand.now = 59.0
    batch(driver, maintenance, 1)
    assert maintenance.state.flushes == 0
    by_hand.now = 60.0
    maintenance.batch_done()
    until(lambda: maintenance.state.flushes == 2, "both shards")
    assert maintenance.state.unflushed_bytes == 0


def test_rows_are_in_the_base_before_they_are_older_than_is_promised_and_the_lag_is_told(
    table: Table, started: Started, by_hand: HandClock
) -> None:
    driver = open_stream(table)
    limits = replace(EAGER, flush_bytes=1 << 40, compact_sstables=8, base_seconds=100.0)
    maintenance = started(driver, plan=schedule(limits))
    batch(driver, maintenance, 0)
    by_hand.now = 50.0
    maintenance.batch_done()
    until(lambda: maintenance.state.flushes == 2, "both shards")
    batch(driver, maintenance, 1)
    assert lance.dataset(table.uri).count_rows() == 0
    assert maintenance._board.base_lag == 50.0
    assert maintenance.state.base_since is not None
    by_hand.now = 80.0
    maintenance.batch_done()
    until(lambda: not any(one.sstables for one in driver.loads()), "the SSTables are in the base")
    until(lambda: maintenance._board.base_lag == 30.0, "what came later is younger")
    assert Counter(lance.dataset(table.uri).to_table()["id"].to_pylist()) == rows_of(range(1))
    by_hand.now = 150.0
    maintenance.batch_done()
    until(lambda: maintenance._board.base_lag == 0.0, "nothing waits")
    assert Counter(lance.dataset(table.uri).to_table()["id"].to_pylist()) == ids(table) == rows_of(range(2))
    assert maintenance.state.base_since is None


def test_checkpoints_are_taken_beside_the_batches(table: Table, started: Started) -> None:
    driver = open_stream(table)

    def take() -> object:
        return checkpoint_stream(driver, table.shard_ids(), run_here, max_bytes=1 << 20, keep=2)

    maintenance = started(driver, Jobs(checkpoint=take), schedule(checkpoint_seconds=0.0))  # type: ignore[arg-type]
    for number in range(3):
        batch(driver, maintenance, number)
        until(lambda number=number: maintenance.state.checkpoints >= number + 1, "a checkpoint per batch")  # type: ignore[misc]
    assert len(table.checkpoints()) == 2, "the newest ones stay"
    assert ids(table) == rows_of(range(3))
    asked = maintenance.checkpoint_now(take)  # type: ignore[arg-type]
    assert asked.name == table.checkpoints()[-1].checkpoint.name
    maintenance.stop()
    stop_stream(driver, table.shard_ids(), run_here, max_bytes=1 << 20, keep=1)
    assert not manifest_of(shard_of(table, 0)).sealed


def test_a_stream_without_memtables_is_neither_flushed_nor_compacted(table: Table, started: Started) -> None:
    driver = open_stream(table)
    maintenance = started(driver, plan=replace(schedule(), memtables=False))
    assert [thread.name for thread in maintenance._threads] == ["headgate-shards"]
    for number in range(3):
        run_batch(driver, number, mode="wal")
        maintenance.batch_done()
    maintenance.wait_for_room()
    assert manifest_of(shard_of(table, 0)).replay_after == 0


# -- beside the batches --------------------------------------------------------------------


def test_no_batch_waits_for_a_flush_or_a_compaction_that_runs(table: Table, started: Started) -> None:
    driver, flush, compact = open_stream(table), Gate(), Gate()
    flush.open.set()
    maintenance = started(driver, Jobs(flush.flush, compact.compact))
    for number in range(2):
        batch(driver, maintenance, number)
        until(lambda number=number: maintenance.state.flushes == 2 * (number + 1), "flushed")  # type: ignore[misc]
    assert compact.reached.wait(PATIENCE)
    flush.reached.clear()
    flush.open.clear()
    batch(driver, maintenance, 2)
    assert flush.reached.wait(PATIENCE), "a compaction that runs does not delay a flush"
    for number in range(3, 6):
        batch(driver, maintenance, number)
    assert driver.head.last is not None
    assert driver.head.last.batch_id == 5
    assert set(maintenance.state.running) == {"flush", "compaction"}
    flush.open.set()
    compact.open.set()
    until(lambda: maintenance.state.unflushed_bytes == 0, "all is flushed")
    assert ids(table) == rows_of(range(6))


@pytest.mark.parametrize("step", ["limits", "plan", "flush", "gaps"])
def test_a_batch_that_is_planned_while_a_checkpoint_flushes_is_not_passed_over(table: Table, step: str) -> None:
    """R4: the plan is raised before replay_after moves, and never over a batch in flight."""
    steps = Steps(step)
    driver = open_stream(table)
    run_batch(driver, 0, attempts=2)
    with watching(steps):
        checkpoint = Background(lambda: driver.close_gaps(driver.settle(run_here, 1 << 20)))
    steps.wait()
    run_batch(driver, 1)
    planned = driver.plan([f"partition:orders:{number}" for number in (0, 1)])
    steps.release()
    checkpoint.result()
    for partition, claim in enumerate(planned.claims.values()):
        assert manifest_of(shard_of(table, partition)).replay_after < claim.next_position
    run_batch(driver, 2)
    assert ids(table) == rows_of(range(3))
    driver.close_gaps(driver.settle(run_here, 1 << 20))
    assert ids(table) == rows_of(range(3))


def test_only_one_thread_at_a_time_changes_shards_and_only_one_compacts(table: Table) -> None:
    driver, gate = open_stream(table), Gate()
    for number in range(2):
        run_batch(driver, number)
        driver.flushed(run_here(driver.flush_jobs(1)))
    other = Background(lambda: driver.compact(schedule().rounds, gate.compact))
    assert gate.reached.wait(PATIENCE)
    with pytest.raises(InvalidInput, match="Another thread is compacting"):
        driver.compact(schedule().rounds)
    with driver.maintenance("a flush"), pytest.raises(InvalidInput, match="Another thread"):
        with driver.maintenance("a checkpoint"):
            pass
    gate.open.set()
    assert other.result() is not None


def test_garbage_is_collected_beside_the_stream_and_what_it_did_is_told(table: Table, started: Started) -> None:
    driver = open_stream(table)
    collections: list[Collection] = []

    def collect(progress: Callable[[int, int], None]) -> Collection:
        collections.append(collect_at_once(table, progress))
        return collections[-1]

    maintenance = started(driver, Jobs(collect=collect), schedule(gc_seconds=0.0))
    for number in range(3):
        batch(driver, maintenance, number)
    until(lambda: any(one.found for one in collections), "garbage is collected")
    assert maintenance.state.failures == ()
    maintenance.stop()
    assert ids(table) == rows_of(range(3))
    last = maintenance.state
    put_state(table.home.records, last)
    assert read_state(table.home.records, "s") == last, "status shows it"
    # The next driver counts from there, and not from its own start.
    late = replace(last, collects_since="2020-01-01T00:00:00+00:00")
    again = started(open_stream(table), Jobs(collect=collect), schedule(gc_seconds=3600.0), before=late)
    until(lambda: again.state.collected not in (None, last.collected), "it is overdue")
    soon = started(open_stream(table), Jobs(collect=collect), schedule(gc_seconds=3600.0), before=again.state)
    assert soon.wait_until_idle(PATIENCE)
    assert soon.state.collected == again.state.collected


def test_a_collection_that_fails_fails_nothing_else_and_one_that_is_called_off_ends(
    table: Table, started: Started
) -> None:
    driver, calls = open_stream(table), []

    def collect(progress: Callable[[int, int], None]) -> Collection:
        calls.append(progress)
        if len(calls) == 1:
            raise Transient("The store is away.")
        reached.set()
        while True:
            progress(1, 2)
            time.sleep(0.001)

    reached = threading.Event()
    maintenance = started(driver, Jobs(collect=collect), schedule(gc_seconds=0.0))
    batch(driver, maintenance, 0)
    assert reached.wait(PATIENCE), "it is tried again"
    until(lambda: maintenance.state.flushes >= 2, "flushes go on meanwhile")
    maintenance.stop()
    assert maintenance.state.collected is None
    assert ids(table) == rows_of(range(1))


def collect_at_once(table: Table, progress: Callable[[int, int], None]) -> Collection:
    return table.collect_garbage(
        min_age=timedelta(0), apply=True, progress=lambda _, done, total: progress(done, total)
    )


# -- failures --------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [DataLoss("An entry is gone."), RuntimeError("password=secret"), Transient("Away.")])
def test_a_job_that_fails_never_fails_the_stream_and_is_tried_again(
    table: Table, started: Started, error: Exception
) -> None:
    driver, gate = open_stream(table), Gate()
    gate.error = error
    gate.open.set()
    told: list[MaintenanceState] = []
    maintenance = started(driver, Jobs(gate.flush), report=told.append)
    for number in range(3):
        batch(driver, maintenance, number)
    until(lambda: any(one.times > 2 for one in maintenance.state.failures), "it fails again and again")
    (failure,) = maintenance.state.failures
    assert failure.job == "flush"
    assert "secret" not in failure.error, "what is not ours may quote options"
    assert ids(table) == rows_of(range(3))
    gate.error = None
    until(lambda: maintenance.state.flushes >= 2, "it works again")
    until(lambda: not told[-1].failures, "and says so")
    assert any(state.failures for state in told)
    assert ids(table) == rows_of(range(3))


def test_a_compaction_that_fails_lets_flushes_go_on(table: Table, started: Started) -> None:
    driver, gate = open_stream(table), Gate()
    gate.error = Transient("The base is away.")
    gate.open.set()
    maintenance = started(driver, Jobs(compact=gate.compact))
    for number in range(5):
        batch(driver, maintenance, number)
        until(lambda number=number: maintenance.state.flushes == 2 * (number + 1), "flushed")  # type: ignore[misc]
    until(lambda: gate.runs > 2, "the compaction is tried again and again")
    assert [one.job for one in maintenance.state.failures] == ["compaction"]
    gate.error = None
    until(lambda: maintenance.state.compactions, "it works again")
    assert ids(table) == rows_of(range(5))


def test_a_driver_that_was_fenced_maintains_nothing_any_more(table: Table, started: Started) -> None:
    driver, gate = open_stream(table), Gate()
    maintenance = started(driver, Jobs(gate.flush))
    batch(driver, maintenance, 0)
    assert gate.reached.wait(PATIENCE)
    successor = open_stream(table)
    gate.open.set()
    until(lambda: not any(thread.is_alive() for thread in maintenance._threads), "the threads end")
    assert manifest_of(shard_of(table, 0)).sstables == (), "the flush that ran did not land"
    run_batch(successor, 1)
    assert ids(table) == rows_of(range(2))
    assert gate.runs == 1


def test_a_job_that_waits_for_its_turn_has_not_begun_and_holds_up_neither_a_checkpoint_nor_a_stop(
    table: Table, started: Started
) -> None:
    driver, turns, gate = open_stream(table), CoreTurns(), Gate()
    with turns.turn(1, 1):
        maintenance = started(driver, Jobs(gate.flush, turn=partial(turns.turn, 1, 1)))
        batch(driver, maintenance, 0)
        until(lambda: turns.waiting, "a flush stands in the line")
        maintenance.checkpoint_now(
            lambda: checkpoint_stream(driver, table.shard_ids(), run_here, max_bytes=1 << 20, keep=2)
        )
        maintenance.stop()
        assert turns.waiting == 0
    assert gate.runs == 0, "its time counts from its turn on"
    assert maintenance.state.failures == ()
    assert ids(table) == rows_of(range(1))


def test_it_ends_with_the_query(table: Table, started: Started) -> None:
    active = [True]
    maintenance = started(open_stream(table), is_active=lambda: active[0])
    active[0] = False
    maintenance.batch_done()
    until(lambda: not any(thread.is_alive() for thread in maintenance._threads), "the threads end")


def test_what_the_last_flush_makes_due_is_done_before_the_threads_end(table: Table, started: Started) -> None:
    driver, gate = open_stream(table), Gate()
    active, asked = [True], Counter[str]()

    def is_active() -> bool:
        if not active[0]:
            asked[threading.current_thread().name] += 1
        return active[0]

    plan = schedule(replace(EAGER, compact_sstables=1))
    maintenance = started(driver, Jobs(gate.flush), plan, is_active=is_active)
    batch(driver, maintenance, 0)
    assert gate.reached.wait(PATIENCE)
    active[0] = False
    until(lambda: any("base" in name for name in asked), "the base's thread sees that the query has ended")
    gate.open.set()
    until(lambda: not any(thread.is_alive() for thread in maintenance._threads), "the threads end")
    assert maintenance.state.sstables_compacted == 2
    assert Counter(lance.dataset(table.uri).to_table()["id"].to_pylist()) == rows_of(range(1))


# -- delays ----------------------------------------------------------------------------------


def test_batches_wait_for_the_budget_visibly_and_for_as_long_as_it_is_used_up(table: Table, started: Started) -> None:
    driver, gate = open_stream(table), Gate()
    told: list[MaintenanceState] = []
    limits = replace(EAGER, max_unflushed_bytes=1)
    maintenance = started(driver, Jobs(gate.flush), schedule(limits), report=told.append)
    batch(driver, maintenance, 0)
    waiting = Background(lambda: batch(driver, maintenance, 1))
    until(lambda: maintenance.state.delayed, "the state says that a batch waits")
    delayed = maintenance.state.delayed
    assert delayed is not None
    assert delayed.reason == "unflushed bytes"
    assert waiting.running
    gate.open.set()
    waiting.result()
    until(lambda: maintenance.state.delayed is None, "no batch waits any more")
    assert any(state.delayed for state in told)
    assert ids(table) == rows_of(range(2))


def test_batches_wait_for_the_cap_on_sstables(table: Table, started: Started) -> None:
    driver, gate = open_stream(table), Gate()
    limits = replace(EAGER, compact_sstables=2, max_sstables=2)
    maintenance = started(driver, Jobs(compact=gate.compact), schedule(limits))
    for number in range(3):
        batch(driver, maintenance, number)
        until(lambda number=number: maintenance.state.flushes == 2 * (number + 1), "flushed")  # type: ignore[misc]
    waiting = Background(lambda: batch(driver, maintenance, 3))
    until(lambda: maintenance.state.delayed, "the state says that a batch waits")
    assert "SSTables" in maintenance.state.delayed.detail  # type: ignore[union-attr]
    gate.open.set()
    waiting.result()
    assert ids(table) == rows_of(range(4))


@pytest.mark.parametrize("how", ["stopped", "ended", "fenced"])
def test_a_batch_that_waits_is_given_up_when_the_stream_is_over(table: Table, started: Started, how: str) -> None:
    driver, gate, active = open_stream(table), Gate(), [True]
    plan = schedule(replace(EAGER, max_unflushed_bytes=1))
    maintenance = started(driver, Jobs(gate.flush), plan, is_active=lambda: active[0])
    batch(driver, maintenance, 0)
    with capture_logs() as logs:
        waiting = Background(maintenance.wait_for_room)
        until(lambda: any(line["event"] == "a batch waits for maintenance" for line in logs), "it waits")
    assert maintenance.state.delayed
    if how == "stopped":
        maintenance.stop(wait=False)
    elif how == "ended":
        active[0] = False
    else:
        open_stream(table)
    gate.open.set()
    with pytest.raises(Fenced if how == "fenced" else Transient):
        waiting.result()


# -- columns -----------------------------------------------------------------------------------


def test_columns_that_somebody_changed_are_told_with_what_to_do_and_batches_go_on(
    table: Table, started: Started
) -> None:
    driver = open_stream(table)
    maintenance = started(driver, plan=schedule(columns_seconds=0.0))
    batch(driver, maintenance, 0)
    table.add_column(pa.field("more", pa.int32()))
    until(lambda: maintenance.state.notes, "it is told")
    batch(driver, maintenance, 1)
    (note,) = maintenance.state.notes
    assert "added 'more'" in note
    assert "Restart the query" in note
    changed = table.drop_column("note")
    until(lambda: len(maintenance.state.notes) == 2, "so is the next one")
    assert "added 'more', dropped 'note'" in maintenance.state.notes[-1]
    batch(driver, maintenance, 2)
    until(lambda: maintenance.state.unflushed_bytes == 0, "flushed")
    assert ids(changed) == rows_of(range(3))
    assert changed.schema.names == ["id", "more"]
    assert changed.scan(columns=["more"]).read_all().column("more").null_count == 3 * 2 * 18


def test_other_columns_are_for_the_next_batch_where_the_decoder_follows_the_table(
    table: Table, started: Started
) -> None:
    """By native, which puts no schema record, as a changer that died before it had."""
    driver = open_stream(table)
    maintenance = started(driver, plan=schedule(columns_seconds=0.0), follows=True)
    assert not maintenance.saw_other_columns()
    lance.dataset(table.uri).add_columns(pa.field("more", pa.int32()))
    until(maintenance.saw_other_columns, "a look finds them")
    driver.use_columns(stream_schema(driver.home))
    until(lambda: not maintenance.saw_other_columns(), "the driver has them")
    assert driver.claims["partition:orders:0"].shard.home.schema.logical.names == ["id", "note", "more"]
    assert not maintenance.state.notes
    batch(driver, maintenance, 0)
    assert ids(table.refreshed()) == rows_of(range(1))


# -- the same table -----------------------------------------------------------------------------


@pytest.mark.parametrize("memtables", [True, False], ids=["MemTables", "WAL only"])
def test_a_table_that_was_dropped_and_made_anew_ends_its_stream(
    tmp_path: Path, started: Started, memtables: bool
) -> None:
    table = make(tmp_path, key="id")
    driver = open_stream(table)
    maintenance = started(driver, plan=replace(schedule(columns_seconds=0.0), memtables=memtables))
    batch(driver, maintenance, 0)
    maintenance.check_table()
    shutil.rmtree(table.uri)
    anew = make(tmp_path, key="id")
    assert anew.table_id != table.table_id

    until(lambda: maintenance._look._another_table, "a look finds the other id")
    with pytest.raises(Fenced, match="dropped and re-created") as ended:
        maintenance.wait_for_room()
    assert ended.value.detail["stored_table_id"] == str(anew.table_id)
    assert not anew.scan().read_all()


# -- the hint ----------------------------------------------------------------------------------


def test_what_is_told_last_is_the_newest(table: Table, started: Started) -> None:
    """A slow put of an older state would stay until the next job, and status would show it."""
    driver, gate = open_stream(table), Gate()
    reached, go_on = threading.Event(), threading.Event()
    told: list[MaintenanceState] = []

    def tell(state: MaintenanceState) -> None:
        if not told and not reached.is_set():
            reached.set()
            assert go_on.wait(PATIENCE)
        told.append(state)

    maintenance = started(driver, Jobs(gate.flush), report=tell)
    batch(driver, maintenance, 0)
    assert reached.wait(PATIENCE)
    noting = Background(lambda: maintenance._board.note("restart the query"))
    until(lambda: maintenance.state.notes, "it is noted")
    time.sleep(0.3)  # time to overtake, for one that may
    go_on.set()
    noting.result()
    until(lambda: len(told) > 1, "both are told")
    assert told[-1].notes == ("restart the query",)
    gate.open.set()


def test_the_state_is_left_for_people_and_a_damaged_hint_is_none(table: Table, started: Started) -> None:
    records = table.home.records
    assert read_state(records, "s") is None
    driver, gate = open_stream(table), Gate()
    gate.error = Transient("Away.")
    gate.open.set()
    maintenance = started(driver, Jobs(gate.flush), report=lambda state: put_state(records, state))
    batch(driver, maintenance, 0)
    until(lambda: (found := read_state(records, "s")) and found.failures, "the hint shows the failure")
    maintenance._board.note("restart the query")
    maintenance._board.note("restart the query")
    maintenance.stop()
    found = read_state(records, "s")
    assert found is not None
    assert found.notes == ("restart the query",)
    for data in (b"", b"[]", b"{}", b'{"stream": 1}'):
        records.put_overwrite("maintenance/s.json", data)
        assert read_state(records, "s") is None
