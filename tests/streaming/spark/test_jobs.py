"""Numbered pieces as Spark jobs: by an RDD where Spark allows one, else by a frame, and Spark's own in all else."""

from __future__ import annotations

import gc
import json
import os
import time
import weakref
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import SparkContext, TaskContext
from structlog.testing import capture_logs

from headgate.streaming.spark import jobs
from headgate.streaming.spark.jobs import run_tasks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

SOON = 30.0
"""Seconds in which a job that was cancelled has ended; the pieces sleep longer."""


@pytest.fixture(params=["rdd", "frame"])
def way(request: pytest.FixtureRequest, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways of running pieces."""
    known = {str(spark.sparkContext.applicationId)} if request.param == "frame" else set()
    monkeypatch.setattr(jobs, "_without_rdds", known)
    return str(request.param)


def named(number: int) -> Iterator[str]:
    context = TaskContext.get()
    assert context is not None
    yield from (f"{number} of task {context.partitionId()}", "…")


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(("pieces", "tasks"), [(1, 1), (2, 2), (5, 2)])
def test_pieces_answer_in_order_whichever_task_ran_them(spark: SparkSession, pieces: int, tasks: int) -> None:
    found = run_tasks(spark, pieces, tasks, named)
    of_task = [min(task for task in range(tasks) if n < (task + 1) * pieces // tasks) for n in range(pieces)]
    assert found == [line for n in range(pieces) for line in (f"{n} of task {of_task[n]}", "…")]


def process(number: int) -> Iterator[str]:
    yield str(os.getpid())


@pytest.mark.usefixtures("way")
def test_a_worker_is_used_again(spark: SparkSession) -> None:
    found = [run_tasks(spark, 1, 1, process)[0] for _ in range(6)]
    assert len(set(found)) < len(found), "Spark began a worker for each task"


def leaves_a_cycle(number: int) -> Iterator[str]:
    """Says whether the worker has set something apart, how many tasks it ran before, and what they left in memory."""
    kept: list[weakref.ref[Any]] = vars(gc).setdefault("kept_by_a_test", [])
    yield json.dumps([gc.get_freeze_count() > 0, len(kept), sum(one() is not None for one in kept)])

    class Thing:
        me: Any

    thing = Thing()
    thing.me = thing
    kept.append(weakref.ref(thing))


@pytest.mark.usefixtures("way")
def test_a_worker_sets_apart_what_it_imported_and_frees_what_its_tasks_leave(spark: SparkSession) -> None:
    said = [json.loads(run_tasks(spark, 1, 1, leaves_a_cycle)[0]) for _ in range(12)]
    later = [one for one in said if one[1]]
    assert later, "no worker ran twice"
    assert all(frozen and not left for frozen, _, left in later), said


def unlucky(folder: Path, always: bool, number: int) -> Iterator[str]:
    """Fails at the first try of a piece."""
    context = TaskContext.get()
    assert context is not None
    (folder / f"{number}-{context.taskAttemptId()}").touch()
    if always or context.attemptNumber() == 0:
        raise RuntimeError("out of luck")
    yield f"{number}"


@pytest.mark.usefixtures("way")
def test_a_piece_that_fails_is_tried_again(spark: SparkSession, tmp_path: Path) -> None:
    assert run_tasks(spark, 2, 2, partial(unlucky, tmp_path, False)) == ["0", "1"]
    assert len([*tmp_path.iterdir()]) == 4


@pytest.mark.usefixtures("way")
def test_a_piece_that_always_fails_fails_the_job_and_is_not_run_the_other_way(
    spark: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(Exception, match="out of luck"):
        run_tasks(spark, 1, 1, partial(unlucky, tmp_path, True))
    assert len([*tmp_path.iterdir()]) == 4, "the tries of local[2,4] and no more"


def test_where_rdds_are_forbidden_frames_are_used_from_then_on(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def refuse(*args: Any) -> None:
        asked.append(args)
        raise RuntimeError(
            "An error occurred while calling None.org.apache.spark.api.python.SimplePythonFunction. Trace: "
            "py4j.security.Py4JSecurityException: Constructor public SimplePythonFunction is not whitelisted."
        )

    monkeypatch.setattr(jobs, "_without_rdds", set())
    monkeypatch.setattr(SparkContext, "parallelize", refuse)
    with capture_logs() as logs:
        found = [run_tasks(spark, 2, 2, named) for _ in range(2)]
    assert found[0] == found[1] == ["0 of task 0", "…", "1 of task 1", "…"]
    assert len(asked) == 1
    assert [entry["log_level"] for entry in logs] == ["info"]


def sleepy(folder: Path, number: int) -> Iterator[str]:
    (folder / f"{number}").touch()
    time.sleep(4 * SOON)
    yield "never"


def ran(folder: Path, spark: SparkSession, frame: DataFrame, batch_id: int) -> None:
    run_tasks(spark, 2, 2, partial(sleepy, folder))


@pytest.mark.usefixtures("way")
def test_stopping_a_query_cancels_its_job_which_has_the_querys_group_and_description(
    spark: SparkSession, tmp_path: Path
) -> None:
    pieces = tmp_path / "pieces"
    pieces.mkdir()
    rows = spark.readStream.format("rate").load().writeStream.queryName("q")
    rows = rows.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = rows.foreachBatch(partial(ran, pieces, spark)).start()
    try:
        until = time.monotonic() + SOON
        while len([*pieces.iterdir()]) < 2:
            assert time.monotonic() < until, "the job never began"
            time.sleep(0.05)
        tracker = spark.sparkContext.statusTracker()
        running = tracker.getJobIdsForGroup(str(query.runId))
        assert set(tracker.getActiveJobsIds()) == set(running)
        (job,) = running
        store: Any = spark.sparkContext._jsc.sc().statusStore()
        assert "batch = 0" in store.job(job).description().get()
    finally:
        began = time.monotonic()
        query.stop()
    assert time.monotonic() - began < SOON
    assert not query.isActive
    assert tracker.getActiveJobsIds() == []
