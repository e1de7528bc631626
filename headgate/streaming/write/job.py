"""One batch as a Spark job: its frame, its tasks, one stage or two, and the tasks' results."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from headgate.errors import Poisoned, from_json
from headgate.shards.sharding import Bucket, ByPartition, Single
from headgate.spark import FINAL, RESULT, versions
from headgate.streaming.spark.jobs import run_tasks
from headgate.streaming.spark.worker import as_task
from headgate.streaming.write import task
from headgate.streaming.write.answers import Parts, shard_parts
from headgate.streaming.write.routing import Ranges, balance, shards_of, size, task_count
from headgate.streaming.write.shuffle import PAYLOAD
from headgate.streaming.write.task import WritePlan
from headgate.streaming.write.timers import Phases

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

UNKNOWN_ROWS = 10**6
"""Rows per core to assume if the source does not report the size of a batch: that gives one task per core."""


@dataclass(frozen=True)
class Written:
    """What the tasks of one job wrote. Counts only once a commit record lists it."""

    results: tuple[dict[str, Any], ...] = ()
    operations: Mapping[str, int] = field(default_factory=dict)
    """Store operations of all tasks."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Time of all tasks together, by phase."""
    retries: Mapping[str, int] = field(default_factory=dict)
    """Retries: of store operations, and of whole tasks."""
    times: tuple[int, int] | None = None
    """The oldest and newest Kafka timestamp among the records that the tasks read, in milliseconds."""

    @property
    def out_of_place(self) -> str | None:
        """The first shard that two tasks wrote to, or whose rows were not in order; None if there is none."""
        seen: set[tuple[str, bool]] = set()
        for result in self.results:
            place = (str(result["shard"]), bool(result["dead"]))
            if place in seen or not result["in_order"]:
                return place[0]
            seen.add(place)
        return None

    def parts(self, plan: WritePlan) -> tuple[Parts, Parts]:
        """The parts for the commit record: shards, and dead-letter logs. Raises Poisoned if two tasks wrote to one
        shard, or if its rows are not in order.
        """
        if (name := self.out_of_place) is not None:
            raise Poisoned(f"Rows of shard {name!r} are in several tasks, even after a shuffle.", shard=name)
        return shard_parts(self.results, plan.shard_ids, plan.dead_letter_ids)


@dataclass(frozen=True)
class BatchJob:
    """Writes one batch."""

    frame: DataFrame
    plan: WritePlan
    cores: int

    def run(self, *, shuffled: bool) -> Written:
        """Write the batch. With `shuffled`, all rows of a shard go to one task, which sorts them. Without it, rows stay
        in the task that has them; bucket sharding always shuffles.

        Raises the error that a task met, and what Spark raises.
        """
        if not shuffled and not isinstance(self.plan.maker.sharding, Bucket):
            return _written(self._answers())
        tasks = task_count(self._rows or self._unknown, self.cores, len(self.plan.claims))
        numbers = {name: index % tasks for index, name in enumerate(sorted(self.plan.claims))}
        job = replace(self, plan=replace(self.plan, tasks=numbers))
        prepared = versions.to_tasks(job._prepared(), tasks, "task")
        return _written(_collected(prepared, partial(task.write_payloads, job.plan)))

    def _answers(self) -> list[str]:
        """Results of the tasks; each writes the rows it has."""
        plan = self.plan
        if plan.consumer is not None:
            shares = self._shares
            write = partial(task.write_share, plan, shares)
            return run_tasks(self.frame.sparkSession, len(shares), len(shares), write)
        if plan.maker.decode is not None:
            return _collected(self._records, partial(task.write_kafka, plan))
        return _collected(self._rows_made, partial(task.write_typed, plan))

    def _prepared(self) -> DataFrame:
        """The first stage of a shuffle: rows as payloads for the task of their shard."""
        plan, payload = self.plan, _type(PAYLOAD)
        if plan.consumer is not None:
            shares = self._shares
            numbers = self.frame.sparkSession.range(0, len(shares), 1, len(shares))
            return numbers.mapInArrow(partial(as_task, partial(task.prepare_shares, plan, shares)), payload)
        if plan.maker.decode is not None:
            return self._records.mapInArrow(partial(as_task, partial(task.prepare_kafka, plan)), payload)
        return self._rows_made.mapInArrow(partial(as_task, partial(task.prepare_typed, plan)), payload)

    @property
    def _records(self) -> DataFrame:
        """The frame of Spark's Kafka source, in few partitions. Other sources may have no timestamps, or other ones."""
        timed = [name for name, kind in self.frame.dtypes if (name, kind) == (task.TIMESTAMP, "timestamp")]
        columns = dict.fromkeys((*self.plan.columns, *timed))
        return self.frame.select(*columns).coalesce(self._task_count)

    @property
    def _rows_made(self) -> DataFrame:
        """The frame of typed rows."""
        return self.frame.coalesce(1) if isinstance(self.plan.maker.sharding, Single) else self.frame

    @property
    def _task_count(self) -> int:
        if isinstance(self.plan.maker.sharding, Single):
            return 1
        return task_count(self._rows or self._unknown, self.cores, len(self._groups) or self.cores)

    @property
    def _shares(self) -> tuple[Ranges, ...]:
        """The offset ranges of each task."""
        return balance(self._groups, self._task_count)

    @property
    def _groups(self) -> Mapping[str, Ranges]:
        """Groups of offset ranges; one task must read a whole group."""
        if isinstance(self.plan.maker.sharding, Bucket):
            return shards_of(ByPartition(), next(iter(self.plan.sources.values())))
        return self.plan.sources

    @property
    def _unknown(self) -> int:
        return self.cores * UNKNOWN_ROWS

    @property
    def _rows(self) -> int:
        return size({part for parts in self.plan.sources.values() for part in parts})


@cache
def _type(ddl: str) -> StructType:
    """A Spark schema of plain columns. Spark's own DDL parser would need a call to the JVM."""
    from pyspark.sql.types import StructType

    made = StructType()
    for column in ddl.split(", "):
        name, kind = column.split()
        made = made.add(name, kind)
    return made


def _collected(frame: DataFrame, write: Callable[[Any], Any]) -> list[str]:
    """Run the tasks over the frame and collect their results."""
    return [row[0] for row in frame.mapInArrow(partial(as_task, write), _type(RESULT)).collect()]


def _written(answers: Iterable[str]) -> Written:
    """Combine the tasks' results. Raises the error of a task, if any: a final one before one that a retry may fix."""
    lines = list(map(json.loads, answers))
    errors = [from_json(line["error"]) for line in lines if "error" in line]
    if errors:
        raise next((error for error in errors if isinstance(error, FINAL)), errors[0])
    totals = [line for line in lines if "operations" in line]
    phases = Phases()
    for line in totals:
        phases.add(line.get("seconds"))
        phases.see(line.get("times"))
    return Written(
        tuple(line for line in lines if "shard" in line),
        dict(sum((Counter(line["operations"]) for line in totals), Counter[str]())),
        phases.seconds,
        dict(sum((Counter(line.get("retries", {})) for line in totals), Counter[str]())),
        phases.times,
    )
