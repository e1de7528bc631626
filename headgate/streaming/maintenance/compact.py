"""Compaction on executors. Rows never pass through the driver, which commits manifests and appends to the base.

A merge into a base with a key is committed by its task: pylance ties the mark to the merge, and only one commit of both
is safe. The first attempt that commits counts; others find the mark. `headgate.checkpoints.jobs.compact` says what a
compaction is and what it promises.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from headgate.checkpoints.gc.base import RunMerge
from headgate.checkpoints.jobs import compact
from headgate.checkpoints.jobs.compact import CompactJob, CompactOutput, RunCompaction
from headgate.connectors.lance.base import tidy as base_tidy
from headgate.connectors.lance.base.tidy import MergePlan
from headgate.errors import HeadgateError
from headgate.shards.shard import TableHome
from headgate.streaming.spark.jobs import run_pieces

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def take_in_on(spark: SparkSession, tasks: int) -> RunCompaction:
    """A function that runs rounds of compaction as Spark jobs. Without a key, the shards of a round share `tasks`
    tasks. With a key, one task merges all of them, because two merges into one base would only conflict.
    """

    def run(job: CompactJob) -> CompactOutput:
        keyed = bool(job.home.schema.primary_key)
        pieces = (job,) if keyed else tuple(CompactJob((part,)) for part in job.parts)
        name = f"headgate: compaction of {job.sstables} SSTables of {job.home.uri}"
        done = [
            CompactOutput(**{**one, "fragments": tuple(one["fragments"])}) for one in _run(spark, name, pieces, tasks)
        ]
        return CompactOutput(
            sum(one.rows for one in done),
            sum(one.deleted for one in done),
            tuple(fragment for one in done for fragment in one.fragments),
        )

    return run


def merge_on(spark: SparkSession, tasks: int) -> RunMerge:
    """A function that merges small fragments of the base as a Spark job."""

    def run(home: TableHome, plan: MergePlan) -> list[str]:
        if not plan.tasks:
            return []
        name = f"headgate: merge of small fragments of {home.uri}"
        done = run_pieces(spark, name, len(plan.tasks), partial(_merged, home, plan), tasks)
        return [str(one["made"]) for one in _checked(done)]

    return run


def _run(spark: SparkSession, name: str, pieces: tuple[CompactJob, ...], tasks: int) -> list[dict[str, Any]]:
    return _checked(run_pieces(spark, name, len(pieces), partial(_taken_in, pieces), tasks))


def _checked(done: Sequence[Any]) -> list[dict[str, Any]]:
    for one in done:
        if isinstance(one, HeadgateError):
            raise one
    return list(done)


def _taken_in(pieces: tuple[CompactJob, ...], number: int) -> dict[str, Any]:
    return asdict(compact.take_in(pieces[number]))


def _merged(home: TableHome, plan: MergePlan, number: int) -> dict[str, Any]:
    return {"made": base_tidy.run_merge(home.store, plan, number)}
