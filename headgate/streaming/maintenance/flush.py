"""Flushes of a stream's shards on executors. Rows never pass through the driver, which commits the manifests.

`headgate.checkpoints.jobs.flush` says what a flush is and what it promises.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from headgate.checkpoints.jobs import flush as flush_job
from headgate.checkpoints.jobs.flush import Flushed, FlushJob, FlushOutput
from headgate.errors import HeadgateError
from headgate.shards.manifest.model import SsTable
from headgate.streaming.spark.jobs import run_pieces

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["FlushJob", "flush"]


def flush(spark: SparkSession, jobs: Sequence[FlushJob], tasks: int | None = None) -> dict[str, Flushed]:
    """Run the jobs as one Spark job of at most `tasks` tasks at once, and commit their results. Returns the manifest
    per shard. If a job fails, the others are committed before its error is raised.

    Raises Fenced if a successor has the shard, DataLoss if a listed entry is missing or differs; the written files are
    then garbage.
    """
    if not jobs:
        return {}
    results = run_pieces(spark, _named(jobs), len(jobs), partial(_made_by, tuple(jobs)), tasks)
    done: dict[str, Flushed] = {}
    failed: HeadgateError | None = None
    for job, result in zip(jobs, results, strict=True):
        try:
            if isinstance(result, HeadgateError):
                raise result
            done[job.name] = flush_job.commit(job, _made(result))
        except HeadgateError as error:
            failed = failed or error.with_context(**job.claim.shard.where(), name=job.name)
    if failed is not None:
        raise failed
    return done


def _named(jobs: Sequence[FlushJob]) -> str:
    shards = jobs[0].name if len(jobs) == 1 else f"{len(jobs)} shards"
    return f"headgate: flush of {shards} of {jobs[0].claim.shard.home.uri}"


def _made_by(jobs: tuple[FlushJob, ...], number: int) -> dict[str, Any]:
    """On an executor: write one SSTable, durably. Nothing refers to it yet."""
    made = flush_job.make(jobs[number])
    sstable = None if made.sstable is None else asdict(made.sstable)
    if sstable is not None:
        del sstable["unknown"]
    return {"sstable": sstable, "last_position": made.last_position, "complete": made.complete}


def _made(answer: dict[str, Any]) -> FlushOutput:
    sstable = None if answer["sstable"] is None else SsTable(**answer["sstable"])
    return FlushOutput(sstable, answer["last_position"], answer["complete"])
