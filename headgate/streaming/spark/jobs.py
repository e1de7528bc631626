"""Maintenance as Spark jobs: named in Spark's pages, in a pool of their own, with so few tasks at once that a core is
left for batches.
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
    from pyspark.sql import SparkSession

POOL = "headgate"
"""The scheduler pool of maintenance, where the session schedules fairly."""

_log = structlog.get_logger("headgate.streaming")
_logged: set[str] = set()
"""Applications whose log says that their session does not schedule fairly."""

Work = Callable[[int], dict[str, Any]]
"""On an executor: does piece number n, and says what it did as plain values. Picklable."""


def run_pieces(spark: SparkSession, name: str, pieces: int, work: Work, tasks: int | None = None) -> list[Any]:
    """Run all pieces as one named Spark job of at most `tasks` tasks; None where no batch is beside it: as many as
    there are pieces. Per piece what it said, or the error it met.

    Errors of ours are returned, not raised: whoever wants the work asks for it again. Raises what Spark raises, and
    Poisoned where it says nothing of a piece.
    """
    count = pieces if tasks is None else max(1, min(pieces, tasks))
    frame = spark.range(0, pieces, 1, count).mapInArrow(partial(_run, work), RESULT)
    with named(spark, name):
        lines = [json.loads(row[0]) for row in frame.collect()]
    found: dict[int, Any] = {}
    for line in lines:
        found[line["piece"]] = from_json(line["error"]) if "error" in line else line["done"]
    if missing := set(range(pieces)) - found.keys():
        raise Poisoned(f"Spark ran {name!r} and says nothing of piece {min(missing)} of {pieces}.")
    return [found[number] for number in range(pieces)]


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
            "maintenance jobs queue with the batches' own: the session does not schedule fairly",
            setting="spark.scheduler.mode=FAIR",
        )
    context.setLocalProperty("spark.scheduler.pool", POOL if fair else None)  # type: ignore[arg-type]
    try:
        with described(spark, name):
            yield
    finally:
        context.setLocalProperty("spark.scheduler.pool", None)  # type: ignore[arg-type]


def _run(work: Work, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        lines = []
        for number in batch.column(0).to_pylist():
            try:
                lines.append(json.dumps({"piece": number, "done": work(number)}))
            except HeadgateError as error:
                lines.append(json.dumps({"piece": number, "error": error.to_json()}, default=str))
        yield pa.record_batch({"result": pa.array(lines, pa.string())})
