"""Full-text indexes are kept beside a stream: the real driver, tasks, table and threads; only Spark is missing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import headgate
from headgate.checkpoints.jobs.flush import run_here
from headgate.checkpoints.jobs.state import MaintenanceState
from headgate.checkpoints.stream.driver import StreamDriver
from headgate.errors import Transient
from headgate.search.build.jobs import Job, in_process
from headgate.search.build.plan import Limits
from headgate.search.build.upkeep import neglected
from headgate.search.finalize.finalize import Report
from headgate.search.finalize.segment import Segment
from headgate.streaming.maintenance import rules
from headgate.streaming.maintenance.schedule import Jobs
from headgate.streaming.maintenance.threads import Maintenance
from headgate.table.table import Table
from tests.streaming.maintenance.maintained import EAGER, KINDS, PATIENCE, HandClock, batch, schedule, until
from tests.support import vectors
from tests.support.life import SCHEMA
from tests.support.tables import ids, open_stream, run_batch
from tests.support.tables import of_batches as rows_of


class Gate:
    """A runner of index jobs that waits until it is let through, and may fail."""

    def __init__(self, *, open: bool = False) -> None:
        self.reached, self.open = threading.Event(), threading.Event()
        self.error: Exception | None = None
        self.runs = 0
        if open:
            self.open.set()

    def __call__(self, jobs: Sequence[Job], report: Report) -> Sequence[Segment]:
        self.runs += 1
        self.reached.set()
        assert self.open.wait(PATIENCE), "nobody opened the gate"
        if self.error is not None:
            raise self.error
        return in_process(jobs, report)


def make(path: Path, key: str | None = "id") -> Table:
    sharding = headgate.by_partition(key_is_partitioned=key is not None)
    return headgate.create_table(str(path / "table"), SCHEMA, primary_key=key, sharding=sharding, full_text="note")


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return make(tmp_path)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Maintenance]]:
    """Makes maintenance that is stopped at the end of the test."""
    monkeypatch.setattr(rules, "LONGEST_PAUSE", 0.01)
    made: list[Maintenance] = []

    def start(driver: StreamDriver, jobs: Jobs = Jobs(), **more: object) -> Maintenance:  # noqa: B008
        made.append(Maintenance(driver, jobs, schedule(tidy_seconds=1e9), **more).start())  # type: ignore[arg-type]
        return made[-1]

    yield start
    for one in made:
        one.stop()


Started = Callable[..., Maintenance]


def compacted(driver: StreamDriver, maintenance: Maintenance, batches: range) -> None:
    """Run batches, each flushed before the next, and wait until some of them are in the base."""
    before = maintenance.state.compactions
    for number in batches:
        flushed = maintenance.state.flushes
        batch(driver, maintenance, number)
        until(lambda flushed=flushed: maintenance.state.flushes >= flushed + 2, "both shards are flushed")  # type: ignore[misc]
    until(lambda: maintenance.state.compactions > before, "compacted")


def fragments(table: Table) -> set[int]:
    return {one.fragment_id for one in lance.dataset(table.uri).get_fragments()}


def covered(table: Table, name: str = "note_idx") -> set[int]:
    (index,) = (one for one in lance.dataset(table.uri).describe_indices() if one.name == name)
    return {fragment for segment in index.segments for fragment in segment.fragment_ids} & fragments(table)


@pytest.mark.parametrize("key", KINDS)
def test_what_a_compaction_takes_in_is_indexed_by_itself_and_searched(
    tmp_path: Path, key: str | None, started: Started
) -> None:
    table = make(tmp_path, key)
    driver = open_stream(table)
    maintenance = started(driver)
    for start in (0, 4):
        compacted(driver, maintenance, range(start, start + 4))
        assert maintenance.wait_until_idle(PATIENCE)
        assert covered(table) == fragments(table) != set()
    state = maintenance.state
    assert state.indexed >= 2
    assert (state.failures, state.running) == ((), ())
    assert ids(table) == rows_of(range(8))
    text = table.scan(columns=["note"]).read_all().column("note")[0].as_py()
    assert text in table.search(text, k=1000).column("note").to_pylist()


def test_no_batch_and_no_flush_waits_for_an_index_that_is_built(table: Table, started: Started) -> None:
    driver, gate = open_stream(table), Gate()
    maintenance = started(driver, Jobs(index=gate))
    compacted(driver, maintenance, range(2))
    assert gate.reached.wait(PATIENCE)
    for number in range(2, 5):
        flushed = maintenance.state.flushes
        batch(driver, maintenance, number)
        until(lambda flushed=flushed: maintenance.state.flushes >= flushed + 2, "flushed beside it")  # type: ignore[misc]
    assert "indexing" in maintenance.state.running
    assert maintenance.state.delayed is None
    gate.open.set()
    assert maintenance.wait_until_idle(PATIENCE)
    assert covered(table) == fragments(table)
    assert ids(table) == rows_of(range(5))


def test_an_index_that_fails_is_tried_again_and_shown_and_stream_and_compaction_go_on(
    table: Table, started: Started
) -> None:
    driver, gate = open_stream(table), Gate(open=True)
    gate.error = Transient("Spark gave up on a task.")
    told: list[MaintenanceState] = []
    maintenance = started(driver, Jobs(index=gate), report=told.append)
    compacted(driver, maintenance, range(2))
    until(lambda: any(one.times > 1 for one in maintenance.state.failures), "it fails again and again")
    (failure,) = maintenance.state.failures
    assert (failure.job, "Spark gave up" in failure.error) == ("indexing", True)
    compacted(driver, maintenance, range(2, 6))
    assert covered(table) == set()
    gate.error = None
    until(lambda: not maintenance.state.failures and maintenance.state.indexed, "it works again, and says so")
    assert maintenance.wait_until_idle(PATIENCE)
    assert covered(table) == fragments(table)
    assert any(state.failures for state in told)
    until(lambda: not told[-1].failures, "it says so")
    assert ids(table) == rows_of(range(6))


def test_a_driver_that_died_after_its_compaction_leaves_the_indexing_to_the_next(
    table: Table, started: Started
) -> None:
    driver = open_stream(table)
    for number in range(2):
        run_batch(driver, number)
        driver.flushed(run_here(driver.flush_jobs(EAGER.flush_bytes)))
    assert driver.compact(schedule().rounds) is not None
    assert covered(table) == set() != fragments(table)
    maintenance = started(open_stream(table))
    assert maintenance.wait_until_idle(PATIENCE)
    assert covered(table) == fragments(table)
    assert maintenance.state.indexed == 1


@pytest.mark.parametrize("how", ["stopped", "fenced"])
def test_a_stream_that_is_over_begins_no_further_round(table: Table, started: Started, how: str) -> None:
    lance.write_dataset(rows_of_text(60), table.uri, mode="append", max_rows_per_file=20)
    gate = Gate()
    driver = open_stream(table)
    plan = replace(schedule(), segments=Limits(tasks=1, segment_rows=20, task_rows=1))
    maintenance = Maintenance(driver, Jobs(index=gate), plan).start()
    assert gate.reached.wait(PATIENCE)
    if how == "fenced":
        maintenance._board.fence(headgate.errors.Fenced("A successor has it."))
    else:
        maintenance.stop(wait=False)
    gate.open.set()
    until(lambda: not any(thread.is_alive() for thread in maintenance._threads), "the threads end")
    assert gate.runs == 1
    assert len(covered(table)) == 1, "the round that ran has landed"
    assert neglected(table.home) == ("note",)


def test_rows_that_others_append_to_the_base_are_indexed_at_the_next_look(
    table: Table, started: Started, by_hand: HandClock
) -> None:
    maintenance = started(open_stream(table))
    assert maintenance.wait_until_idle(PATIENCE)
    lance.write_dataset(rows_of_text(20), table.uri, mode="append")
    by_hand.now = 599.0
    assert maintenance.wait_until_idle(PATIENCE)
    assert covered(table) == set()
    by_hand.now = 601.0
    maintenance.batch_done()
    until(lambda: covered(table) == fragments(table), "indexed")


def test_vectors_get_their_index_once_there_are_enough_and_every_later_row_is_covered(
    tmp_path: Path, started: Started, by_hand: HandClock
) -> None:
    table = vectors.make(tmp_path / "table")
    vectors.append(table, 100, 0)
    maintenance = started(open_stream(table))
    assert maintenance.wait_until_idle(PATIENCE)
    assert "embedding_idx" not in {one.name for one in lance.dataset(table.uri).describe_indices()}
    for number, count in enumerate((500, 60), 1):
        vectors.append(table, count, 1000 * number)
        by_hand.now = 601.0 * number
        maintenance.batch_done()
        until(lambda: neglected(table.home) == (), "indexed")
        assert maintenance.wait_until_idle(PATIENCE)
        assert covered(table, "embedding_idx") == fragments(table)
    assert (maintenance.state.indexed, maintenance.state.failures) == (2, ())


def test_a_table_without_full_text_says_nothing_of_indexing(tmp_path: Path, started: Started) -> None:
    sharding = headgate.by_partition(key_is_partitioned=True)
    table = headgate.create_table(str(tmp_path / "plain"), SCHEMA, primary_key="id", sharding=sharding)
    told: list[MaintenanceState] = []
    driver = open_stream(table)
    maintenance = started(driver, report=told.append)
    compacted(driver, maintenance, range(2))
    assert maintenance.wait_until_idle(PATIENCE)
    assert not any("indexing" in state.running for state in told)
    assert maintenance.state.indexed == 0


def rows_of_text(count: int) -> pa.Table:
    made = {"id": range(10**6, 10**6 + count), "note": [f"note {number}" for number in range(count)]}
    return pa.table(made, schema=SCHEMA)
