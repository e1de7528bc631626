"""Numbered pieces of work as Spark jobs. Jobs of maintenance have names in Spark's UI and a scheduler pool of their
own, and use few tasks, so that a core stays free for batches.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import structlog

from headgate import parallel
from headgate.errors import HeadgateError, Poisoned, from_json
from headgate.spark import RESULT, described, is_remote
from headgate.streaming.spark.worker import as_task

if TYPE_CHECKING:
    from pyspark import RDD, StatusTracker
    from pyspark.sql import SparkSession

POOL = "headgate"
"""The scheduler pool of maintenance, if the session uses fair scheduling."""

_log = structlog.get_logger("headgate.streaming")
_logged: set[str] = set()
"""Applications for which the missing fair scheduling was already logged."""

_FORBIDDEN = "Py4JSecurityException"
"""The error of a shared cluster that forbids RDDs."""
_without_rdds: set[str] = set()
"""Applications that raised it."""

FOLLOW_SECONDS = 2.0
"""How often Spark is asked how many tasks of a followed job are done."""

_follower: ContextVar[Callable[[int, int], None] | None] = ContextVar("follower", default=None)

Work = Callable[[int], dict[str, Any]]
"""Runs on an executor: does piece number n, and returns the result as plain values. Picklable."""


def run_pieces(spark: SparkSession, name: str, pieces: int, work: Work, tasks: int | None = None) -> list[Any]:
    """Run all pieces as one named Spark job of at most `tasks` tasks; None means one task per piece, for use when no
    batch runs. Returns per piece its result or its error.

    headgate's own errors are returned, not raised: the caller retries. Raises what Spark raises, and Poisoned if a
    piece has no result.
    """
    count = pieces if tasks is None else max(1, min(pieces, tasks))
    with named(spark, name), _followed(spark, pieces, count):
        lines = list(map(json.loads, run_tasks(spark, pieces, count, partial(_answer, work))))
    found: dict[int, Any] = {}
    for line in lines:
        found[line["piece"]] = from_json(line["error"]) if "error" in line else line["done"]
    if missing := set(range(pieces)) - found.keys():
        raise Poisoned(f"Spark ran {name!r}, but returned no result for piece {min(missing)} of {pieces}.")
    return [found[number] for number in range(pieces)]


def run_tasks(spark: SparkSession, pieces: int, tasks: int, lines: Callable[[int], Iterable[str]]) -> list[str]:
    """Run `lines` for the numbers of all pieces as one Spark job of this many tasks. Returns the lines in order.

    Uses an RDD, which Spark starts in half the time of a frame because nothing is planned. Uses a frame if RDDs are not
    allowed: on Spark Connect, and on clusters that forbid them. Raises what Spark raises.
    """
    if not is_remote(spark):
        context = spark.sparkContext
        application = str(context.applicationId)
        if application not in _without_rdds:
            try:
                # Not an RDD of the numbers: Spark would need a second Python function to make them.
                empty: RDD[Any] = context.parallelize([], tasks)
                return empty.mapPartitionsWithIndex(partial(_each_of, lines, pieces, tasks)).collect()
            except Exception as error:
                if _FORBIDDEN not in str(error):
                    raise
                _without_rdds.add(application)
                _log.info("the cluster does not allow RDDs: each batch costs about 50 ms more")
    frame = spark.range(0, pieces, 1, tasks).mapInArrow(partial(_each_in_arrow, lines), RESULT)
    return [row[0] for row in frame.collect()]


@contextmanager
def following(moved: Callable[[int, int], None]) -> Iterator[None]:
    """Jobs of `run_pieces` that begin in this thread meanwhile call it with how many of how many pieces are done."""
    token = _follower.set(moved)
    try:
        yield
    finally:
        _follower.reset(token)


@contextmanager
def _followed(spark: SparkSession, pieces: int, tasks: int) -> Iterator[None]:
    """Ask Spark now and then how many tasks are done, if somebody follows. Spark Connect does not say it."""
    moved = _follower.get()
    if moved is None:
        yield
        return
    moved(0, pieces)
    if is_remote(spark):
        yield
        return
    context, group, over = spark.sparkContext, f"headgate-{uuid.uuid4().hex}", threading.Event()

    def follow() -> None:
        while not over.wait(FOLLOW_SECONDS):
            try:
                moved(_tasks_done(context.statusTracker(), group) * pieces // tasks, pieces)
            except Exception:  # the JVM may be gone, which the job itself reports
                return

    thread = parallel.thread("job-progress", follow)
    context.setLocalProperty("spark.jobGroup.id", group)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]


def _tasks_done(tracker: StatusTracker, group: str) -> int:
    jobs = [tracker.getJobInfo(one) for one in tracker.getJobIdsForGroup(group)]
    stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
    return sum(stage.numCompletedTasks for stage in stages if stage is not None)


@contextmanager
def named(spark: SparkSession, name: str) -> Iterator[None]:
    """Give jobs of this thread the name, and our pool if the session uses fair scheduling; otherwise log that once."""
    if is_remote(spark):
        yield  # Spark Connect names its jobs itself
        return
    context = spark.sparkContext
    fair = context.getConf().get("spark.scheduler.mode", "FIFO") == "FAIR"
    if not fair and context.applicationId not in _logged:
        _logged.add(str(context.applicationId))
        _log.info(
            "maintenance jobs delay batches: the session does not use spark.scheduler.mode=FAIR",
            setting="spark.scheduler.mode=FAIR",
        )
    context.setLocalProperty("spark.scheduler.pool", POOL if fair else None)  # type: ignore[arg-type]
    try:
        with described(spark, name):
            yield
    finally:
        context.setLocalProperty("spark.scheduler.pool", None)  # type: ignore[arg-type]


def _answer(work: Work, number: int) -> Iterator[str]:
    try:
        yield json.dumps({"piece": number, "done": work(number)})
    except HeadgateError as error:
        yield json.dumps({"piece": number, "error": error.to_json()}, default=str)


def _each_of(
    lines: Callable[[int], Iterable[str]], pieces: int, tasks: int, task: int, nothing: Iterable[Any]
) -> Iterator[str]:
    # Spark ends a worker that leaves its input unread, even if it is empty; the next task would import all anew.
    deque(nothing, maxlen=0)
    yield from as_task(partial(_each, lines), range(task * pieces // tasks, (task + 1) * pieces // tasks))


def _each(lines: Callable[[int], Iterable[str]], numbers: Iterable[int]) -> Iterator[str]:
    for number in numbers:
        yield from lines(number)


def _each_in_arrow(
    lines: Callable[[int], Iterable[str]], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        found = as_task(partial(_each, lines), batch.column(0).to_pylist())
        yield pa.record_batch({"result": pa.array(found, pa.string())})
