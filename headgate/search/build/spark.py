"""Builds indexes on executors: each task builds and finalizes a segment; the driver commits them.

Promises: rows and index files never pass through the driver. Spark retries a failed task, under a new id; of two
attempts at the same time one is committed. See `search.build.build` for the rest.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from headgate.errors import Transient, from_json
from headgate.search.build.build import BUILD_STAGES
from headgate.search.build.jobs import Job, Runner
from headgate.search.build.plan import Limits
from headgate.search.finalize.finalize import Report
from headgate.search.finalize.segment import Segment
from headgate.spark import FINAL, RESULT, described, is_remote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

UNKNOWN_CORES = 8
"""Segments built at once on Spark Connect: as many as an index may have."""

Naming: TypeAlias = "Callable[[SparkSession, str], AbstractContextManager[None]]"
"""Sets the description, and the pool, of Spark jobs: `described`, or `named` for maintenance."""

_ON_EXECUTORS = BUILD_STAGES[1:-1]


def on_spark(spark: SparkSession, table: str = "a table", *, naming: Naming = described) -> Runner:
    """A runner that runs each job as a task of one Spark job."""

    def run(jobs: Sequence[Job], report: Report) -> Sequence[Segment]:
        for stage in _ON_EXECUTORS:
            report(stage, 0, len(jobs))
        segments = []
        with naming(spark, f"headgate: index of {table}, segments: {len(jobs)}"):
            lines = _collected(spark, jobs)
        for line in lines:
            if "error" in line:
                raise from_json(line["error"])
            segments.append(Segment.from_json(line))
        for stage in _ON_EXECUTORS:
            report(stage, len(jobs), len(jobs))
        return segments

    return run


def _collected(spark: SparkSession, jobs: Sequence[Job]) -> list[dict[str, Any]]:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    numbers = spark.range(0, len(jobs), 1, len(jobs))
    try:
        rows = numbers.mapInArrow(partial(index_task, tuple(jobs)), RESULT).collect()
    except (PySparkException, Py4JError) as error:
        raise Transient(
            f"Spark gave up on a task that builds an index segment: {type(error).__name__}.",
            advice="read the task's error in Spark's log, then build again; nothing was committed",
        ) from error
    return [json.loads(row[0]) for row in rows]


def index_task(jobs: tuple[Job, ...], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs on an executor: makes one finalized segment per job, not committed yet."""
    for batch in batches:
        lines = []
        for number in batch.column(0).to_pylist():
            try:
                lines.append(json.dumps(jobs[number].run().to_json()))
            except FINAL as error:
                lines.append(json.dumps({"error": error.to_json()}, default=str))
        yield pa.record_batch({"result": pa.array(lines, pa.string())})


def limits_on(spark: SparkSession) -> Limits:
    """Limits with as many segments at once as there are cores; a guess on Spark Connect, which does not return it."""
    if is_remote(spark):
        return Limits(tasks=UNKNOWN_CORES)
    return Limits(tasks=int(spark.sparkContext.defaultParallelism))
