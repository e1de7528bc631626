"""Numbered pieces of work as Spark jobs. Those of maintenance are named in Spark's pages, in a pool of their own, with
so few tasks at once that a core is left for batches.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import structlog

from headgate.errors import HeadgateError, Poisoned, from_json
from headgate.spark import RESULT, described, is_remote

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import SparkSession

POOL = "headgate"
"""The scheduler pool of maintenance, where the session schedules fairly."""

_log = structlog.get_logger("headgate.streaming")
_logged: set[str] = set()
"""Applications whose log says that their session does not schedule fairly."""

_FORBIDDEN = "Py4JSecurityException"
"""What a cluster says where users share it and may not use RDDs."""
_without_rdds: set[str] = set()
"""Applications that have said so."""

Work = Callable[[int], dict[str, Any]]
"""On an executor: does piece number n, and says what it did as plain values. Picklable."""


def run_pieces(spark: SparkSession, name: str, pieces: int, work: Work, tasks: int | None = None) -> list[Any]:
    """Run all pieces as one named Spark job of at most `tasks` tasks; None where no batch is beside it: as many as
    there are pieces. Per piece what it said, or the error it met.

    Errors of ours are returned, not raised: whoever wants the work asks for it again. Raises what Spark raises, and
    Poisoned if it says nothing of a piece.
    """
    count = pieces if tasks is None else max(1, min(pieces, tasks))
    with named(spark, name):
        lines = list(map(json.loads, run_tasks(spark, pieces, count, partial(_answer, work))))
    found: dict[int, Any] = {}
    for line in lines:
        found[line["piece"]] = from_json(line["error"]) if "error" in line else line["done"]
    if missing := set(range(pieces)) - found.keys():
        raise Poisoned(f"Spark ran {name!r}, but returned no result for piece {min(missing)} of {pieces}.")
    return [found[number] for number in range(pieces)]


def run_tasks(spark: SparkSession, pieces: int, tasks: int, lines: Callable[[int], Iterable[str]]) -> list[str]:
    """Run `lines` for the numbers of all pieces as one Spark job of so many tasks; what they gave, in order.

    By an RDD, which Spark starts in half the time of a frame: it has nothing to plan. By a frame where RDDs are
    forbidden: on Spark Connect, and where a cluster says so. Raises what Spark raises.
    """
    if not is_remote(spark):
        context = spark.sparkContext
        application = str(context.applicationId)
        if application not in _without_rdds:
            try:
                # Not of the numbers themselves: Spark would take a second Python function to make them.
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
def named(spark: SparkSession, name: str) -> Iterator[None]:
    """Jobs of this thread have the name, and our pool where the session schedules fairly; else that is said once."""
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
    yield from _each(lines, range(task * pieces // tasks, (task + 1) * pieces // tasks))


def _each(lines: Callable[[int], Iterable[str]], numbers: Iterable[int]) -> Iterator[str]:
    for number in numbers:
        yield from lines(number)


def _each_in_arrow(
    lines: Callable[[int], Iterable[str]], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.record_batch({"result": pa.array(_each(lines, batch.column(0).to_pylist()), pa.string())})
