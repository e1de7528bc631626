"""Maintenance of a stream on Spark: sets thresholds from the stream's options and runs its jobs on executors."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING

from headgate.checkpoints.jobs.state import put_state, read_state
from headgate.checkpoints.snapshots.checkpoint import TableCheckpoint
from headgate.checkpoints.stream.driver import StreamDriver
from headgate.search.build.plan import Limits
from headgate.search.build.spark import on_spark
from headgate.spark import is_remote
from headgate.streaming.maintenance.compact import merge_on, take_in_on
from headgate.streaming.maintenance.cores import CoreTurns, at_once
from headgate.streaming.maintenance.flush import flush
from headgate.streaming.maintenance.rules import MaintenanceLimits, cores_beside, tasks_beside
from headgate.streaming.maintenance.schedule import Collect, Jobs, Schedule
from headgate.streaming.maintenance.threads import Maintenance
from headgate.streaming.options import SinkOptions
from headgate.streaming.spark.jobs import named
from headgate.streaming.spark.query import QueryFacts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_turns: dict[str, CoreTurns] = {}
"""By application: streams of one Spark application share its cores."""


def maintenance_on(
    spark: SparkSession,
    driver: StreamDriver,
    options: SinkOptions,
    facts: QueryFacts,
    take: Callable[[], TableCheckpoint],
    collect: Collect,
    *,
    follows: bool = False,
) -> Maintenance:
    """Maintenance for the driver of a query, not started yet. `take` takes a checkpoint of scope all, `collect`
    collects the table's garbage. `follows` is true if batches adopt changed columns.

    With a checkpoint interval of 0, the stream takes a checkpoint after every batch itself, and maintenance takes none.
    """
    tasks = tasks_on(spark, options, facts)
    by_itself = take if options.checkpoint_seconds > 0 else None
    jobs = Jobs(
        flush=partial(flush, spark, tasks=tasks),
        compact=take_in_on(spark, tasks),
        merge=merge_on(spark, tasks),
        index=on_spark(spark, driver.home.uri, naming=named),
        checkpoint=by_itself,
        collect=collect if options.gc_seconds < math.inf else None,
        turn=partial(turn_on, spark, tasks),
    )
    return Maintenance(
        driver,
        jobs,
        schedule_of(options, tasks),
        follows=follows,
        is_active=partial(_is_active, facts),
        report=partial(put_state, driver.home.records),
        before=read_state(driver.home.records, driver.stream),
    )


def tasks_on(spark: SparkSession, options: SinkOptions, facts: QueryFacts) -> int:
    """Maximum tasks of one job: the option's value, lowered so that batches keep a core. Spark Connect does not report
    its cores, so there the option's value is used.
    """
    asked = options.maintenance_tasks
    return asked if is_remote(spark) else tasks_beside(asked, facts.cores)


def turn_on(spark: SparkSession, tasks: int, is_over: Callable[[], bool]) -> AbstractContextManager[None]:
    """The turn of a maintenance job with this many tasks. Never waits on Spark Connect, which does not report its
    cores. Raises CalledOff if maintenance ends before the turn comes.
    """
    if is_remote(spark):
        return at_once(is_over)
    context = spark.sparkContext
    turns = _turns.setdefault(str(context.applicationId), CoreTurns())
    return turns.turn(tasks, cores_beside(int(context.defaultParallelism)), is_over)


def schedule_of(options: SinkOptions, tasks: int | None = None) -> Schedule:
    """The schedule that follows from the options. Raises InvalidInput if options contradict each other."""
    limits = MaintenanceLimits(
        flush_bytes=options.max_memtable_size,
        flush_seconds=options.memtable_seconds,
        max_unflushed_bytes=options.max_unflushed_memtable_bytes,
        compact_sstables=options.compact_sstables,
        max_sstables=options.max_sstables,
        base_seconds=options.base_seconds,
    )
    return Schedule(
        limits,
        segments=Limits(tasks=tasks or options.maintenance_tasks),
        checkpoint_seconds=options.checkpoint_seconds,
        gc_seconds=options.gc_seconds,
        memtables=options.enable_memtable,
    )


def _is_active(facts: QueryFacts) -> bool:
    """True if Spark says that the query runs; false if the JVM is gone."""
    if facts.run is None:
        return True
    try:
        return bool(facts.run.isActive())
    except Exception:
        return False
