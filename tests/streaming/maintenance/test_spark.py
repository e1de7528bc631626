"""Maintenance of real streams: Spark jobs with names, beside the batches, in a pool of their own."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
import structlog
from pyspark.sql import SparkSession

import headgate
from headgate.checkpoints.jobs.state import read_state
from headgate.errors import InvalidInput
from headgate.search.build.upkeep import neglected
from headgate.streaming.maintenance.rules import tasks_beside
from headgate.streaming.spark import jobs as spark_jobs
from headgate.streaming.spark.jobs import POOL, following, named, run_pieces
from headgate.table.table import Table
from tests.streaming.maintenance.fair import BATCHES
from tests.streaming.maintenance.gated import KINDS as GATED
from tests.support.runs import Stream, Topic, check_table, make_table
from tests.support.services import MakeTopic

HERE = Path(__file__).parent


def job_tasks(spark: SparkSession) -> list[tuple[str, int]]:
    """Descriptions of all jobs of the session, oldest first, and how many tasks they had."""
    context: Any = spark.sparkContext._jsc.sc()
    jobs = context.statusStore().jobsList(None)
    found = [jobs.apply(number) for number in range(jobs.size())]
    return [(job.description().get(), job.numTasks()) for job in reversed(found) if job.description().isDefined()]


def job_names(spark: SparkSession) -> list[str]:
    """The descriptions alone."""
    return [name for name, _ in job_tasks(spark)]


@pytest.mark.spark
def test_a_job_that_is_followed_tells_how_many_pieces_are_done(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_jobs, "FOLLOW_SECONDS", 0.05)
    seen: list[tuple[int, int]] = []
    gate = str(tmp_path / "open")

    def moved(done: int, total: int) -> None:
        seen.append((done, total))
        if done == 2:
            Path(gate).touch()

    def work(number: int) -> dict[str, Any]:
        while number >= 2 and not Path(gate).exists():
            time.sleep(0.02)
        return {"number": number}

    with following(moved):
        done = run_pieces(spark, "headgate: a test", 4, work, tasks=2)
    assert [one["number"] for one in done] == [0, 1, 2, 3]
    assert seen[0] == (0, 4)
    assert (2, 4) in seen
    told = len(seen)
    run_pieces(spark, "headgate: a test", 1, lambda number: {})
    assert len(seen) == told, "others are not followed"


@pytest.mark.spark
@pytest.mark.kafka
@pytest.mark.parametrize("key", ["id", pytest.param(None, marks=pytest.mark.deep)])
def test_a_stream_is_flushed_and_compacted_on_executors_and_shows_what_the_topic_holds(
    spark: SparkSession, tmp_path: Path, kafka_servers: str, make_topic: MakeTopic, key: str | None
) -> None:
    topic = Topic(kafka_servers, make_topic(2), 2)
    table = make_table(tmp_path, headgate.bucket("id", 2), key, full_text="note")
    stream = Stream(spark, table, [topic], tmp_path / "checkpoint", max_offsets=300)
    topic.put_orders(1800)
    before = len(job_names(spark))
    sink = stream.run(max_memtable_size=1, compact_sstables=2, gc_interval=0.3)
    check_table(table, topic)
    state = sink.maintenance
    assert state is not None
    assert state.collected is not None, "garbage is collected beside the batches"
    assert state.collected.kept == ()
    assert state.flushes >= 4
    assert state.sstables_compacted >= 4
    assert state.failures == ()
    names = job_names(spark)[before:]
    assert any(name.startswith("headgate: flush of 2 shards") for name in names)
    bound = tasks_beside(sink.options.maintenance_tasks, spark.sparkContext.defaultParallelism)
    assert max(tasks for name, tasks in job_tasks(spark)[before:] if name.startswith("headgate:")) <= bound
    assert any(name.startswith("headgate: compaction of") for name in names)
    assert f"headgate: index of {table.uri}, segments: 1" in names
    assert state.indexed >= 1
    assert neglected(table.home) == (), "what was compacted is indexed"
    check_search(table)
    hint = read_state(table.home.records, "s")
    assert hint is not None
    assert hint.flushes == state.flushes
    assert sink.close() is not None
    check_table(table, topic)
    table.compact()
    check_table(table, topic)
    assert lance.dataset(table.uri).count_rows() == table.scan().read_all().num_rows
    assert neglected(table.home) == ()
    check_search(table)


def check_search(table: Table) -> None:
    """A word of every row finds every row."""
    assert table.search("order", k=10_000).num_rows == table.scan(columns=["id"]).read_all().num_rows


@pytest.mark.spark
@pytest.mark.kafka
def test_a_restart_picks_new_columns_up_and_another_type_is_refused_before_anything_is_written(
    spark: SparkSession, tmp_path: Path, kafka_servers: str, make_topic: MakeTopic
) -> None:
    topic = Topic(kafka_servers, make_topic(1), 1)
    table = make_table(tmp_path, headgate.single(), "id")
    stream = Stream(spark, table, [topic], tmp_path / "checkpoint")
    topic.put((0, b"1", json.dumps({"id": 1, "note": "a", "amount": 1.0}).encode()))
    sink = stream.run()
    table.add_column(pa.field("more", pa.int32())).rename_column("note", "text")
    topic.put((0, b"2", json.dumps({"id": 2, "text": "b", "more": 22}).encode()))
    before = {info.key for info in table.home.store.list("_mem_wal/")}
    with pytest.raises(InvalidInput, match="note"):
        stream.run(sink)
    narrow = replace(stream, schema=pa.schema([pa.field("id", pa.int64(), False), pa.field("more", pa.int8())]))
    with pytest.raises(InvalidInput, match="int8"):
        narrow.run()
    assert {info.key for info in table.home.store.list("_mem_wal/")} == before
    wanted = pa.schema([pa.field("id", pa.int64(), False), ("text", pa.string()), ("more", pa.int32())])
    again = replace(stream, schema=wanted).run(max_memtable_size=1)
    now = headgate.open_table(table.uri)
    expected = [
        {"id": 1, "text": "a", "amount": 1.0, "more": None},
        {"id": 2, "text": "b", "amount": None, "more": 22},
    ]
    assert sorted(now.scan().read_all().to_pylist(), key=lambda one: one["id"]) == expected
    again.close()
    now.compact()
    assert sorted(lance.dataset(table.uri).to_table().to_pylist(), key=lambda one: one["id"]) == expected


@pytest.mark.spark
@pytest.mark.parametrize(
    ("cores", "key"),
    [
        (2, "value"),
        pytest.param(2, None, marks=pytest.mark.deep),
        pytest.param(3, None, marks=pytest.mark.deep),
        pytest.param(3, "value", marks=pytest.mark.deep),
    ],
)
def test_no_batch_waits_for_a_maintenance_job_that_stands_still_and_they_have_a_fair_pool(
    tmp_path: Path, cores: int, key: str | None
) -> None:
    """As the event log tells: while a flush, a compaction and an index stand still in turn, whole batches go past. The
    Spark is a command's own.
    """
    done = subprocess.run(
        [sys.executable, "-m", "tests.streaming.maintenance.fair", str(tmp_path), str(cores), *filter(None, [key])],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert min(told["passed"].values()) >= BATCHES
    assert min(told["flushes"], told["compactions"], told["indexed"]) >= 1
    assert told["failures"] == []
    assert told["rows"] == told["distinct"] >= 400
    assert told["hits"] == [250]
    assert told["read_by_driver"] == [], "rows never pass the driver"
    (log,) = (tmp_path / "events").iterdir()
    jobs, order = logged_jobs(log)
    maintenance = {job for job, (name, _) in jobs.items() if name.startswith("headgate:")}
    assert all(jobs[job][1] == POOL for job in maintenance)
    assert all(pool != POOL for job, (_, pool) in jobs.items() if job not in maintenance)
    assert most_at_once(order, maintenance) <= cores - 1, "a core is left for batches"
    for kind in GATED:
        first = min(job for job in maintenance if kind in jobs[job][0])
        between = order[order.index(("start", first)) : order.index(("end", first))]
        begun = [job for what, job in between if what == "start" and job not in maintenance]
        ended = {job for what, job in between if what == "end"}
        # The first of those that went past may have begun before it.
        assert len(begun) >= BATCHES - 1, f"batches began beside the {kind}"
        # The last one may have been running when the gate was opened.
        assert set(begun[:-1]) <= ended, f"a batch waited for the {kind}"


def most_at_once(order: list[tuple[str, int]], jobs: set[int]) -> int:
    """How many of the jobs ran at once, at most."""
    running: set[int] = set()
    most = 0
    for what, job in order:
        if job in jobs:
            (running.add if what == "start" else running.discard)(job)
        most = max(most, len(running))
    return most


def logged_jobs(log: Path) -> tuple[dict[int, tuple[str, str | None]], list[tuple[str, int]]]:
    """Of an event log: the name and the pool of every job, and in which order they began and ended."""
    jobs: dict[int, tuple[str, str | None]] = {}
    order: list[tuple[str, int]] = []
    for line in log.read_text().splitlines():
        event = json.loads(line)
        if event["Event"] == "SparkListenerJobStart":
            properties = event["Properties"]
            name = properties.get("spark.job.description", "")
            jobs[event["Job ID"]] = (name, properties.get("spark.scheduler.pool"))
            order.append(("start", event["Job ID"]))
        elif event["Event"] == "SparkListenerJobEnd":
            order.append(("end", event["Job ID"]))
    return jobs, order


@pytest.mark.spark
def test_a_session_that_does_not_schedule_fairly_is_told_once(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_jobs, "_logged", set())
    structlog.reset_defaults()  # a command that another test called may have raised the level
    with structlog.testing.capture_logs() as logs:
        for _ in range(3):
            with named(spark, "headgate: a test"):
                assert spark.sparkContext.getLocalProperty("spark.scheduler.pool") is None
                spark.range(1).count()
    assert job_names(spark)[-1] == "headgate: a test"
    (said,) = (line for line in logs if "scheduler.mode=FAIR" in line["event"])
    assert said["setting"] == "spark.scheduler.mode=FAIR"
