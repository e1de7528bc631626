"""One batch as a Spark job: which frame, which tasks, one stage or two, and what the tasks wrote."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from headgate.errors import Poisoned, from_json
from headgate.shards.sharding import Bucket, ByPartition, Single
from headgate.spark import FINAL, RESULT
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
"""Per core, where the source does not say how many rows a batch has: as many tasks as there are cores."""


@dataclass(frozen=True)
class Written:
    """What the tasks of one job wrote. Counts only once a commit record lists it."""

    results: tuple[dict[str, Any], ...] = ()
    operations: Mapping[str, int] = field(default_factory=dict)
    """What all tasks asked of the stores."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """What all tasks took together, by phase."""
    retries: Mapping[str, int] = field(default_factory=dict)
    """What was tried again: of the store, and whole tasks."""

    @property
    def out_of_place(self) -> str | None:
        """A shard that two tasks wrote to, or whose rows did not come in order; None where there is none."""
        seen: set[tuple[str, bool]] = set()
        for result in self.results:
            place = (str(result["shard"]), bool(result["dead"]))
            if place in seen or not result["in_order"]:
                return place[0]
            seen.add(place)
        return None

    def parts(self, plan: WritePlan) -> tuple[Parts, Parts]:
        """What a commit record lists: shards, and dead-letter logs. Raises Poisoned where no record could."""
        if (name := self.out_of_place) is not None:
            raise Poisoned(f"Rows of shard {name!r} did not meet in one task, after a shuffle as well.", shard=name)
        return shard_parts(self.results, plan.shard_ids, plan.dead_letter_ids)


@dataclass(frozen=True)
class BatchJob:
    """How one batch is written."""

    frame: DataFrame
    plan: WritePlan
    cores: int

    def run(self, *, shuffled: bool) -> Written:
        """Write the batch. `shuffled`: rows meet in the task of their shard, wherever Spark had them, and are put
        in order there; without it they stay with the task that has them, which buckets do not allow.

        Raises the error that a task met, and what Spark raises.
        """
        if not shuffled and not isinstance(self.plan.maker.sharding, Bucket):
            frame, write, _ = self._tasks()
            return _written(frame.mapInArrow(write, _type(RESULT)))
        tasks = task_count(self._rows or self._unknown, self.cores, len(self.plan.claims))
        numbers = {name: index % tasks for index, name in enumerate(sorted(self.plan.claims))}
        job = replace(self, plan=replace(self.plan, tasks=numbers))
        frame, _, prepare = job._tasks()
        prepared = frame.mapInArrow(prepare, _type(PAYLOAD)).repartitionById(tasks, "task")
        return _written(prepared.mapInArrow(partial(task.write_payloads, job.plan), _type(RESULT)))

    def _tasks(self) -> tuple[DataFrame, Callable[[Any], Any], Callable[[Any], Any]]:
        """The frame of the first stage, cut into few tasks, and what these do: write, or prepare for the shuffle."""
        plan, groups = self.plan, self._groups
        tasks = 1
        if not isinstance(plan.maker.sharding, Single):
            tasks = task_count(self._rows or self._unknown, self.cores, len(groups) or self.cores)
        if plan.consumer is not None:
            shares = balance(groups, tasks)
            numbers = self.frame.sparkSession.range(0, len(shares), 1, len(shares))
            return numbers, partial(task.write_ranges, plan, shares), partial(task.prepare_ranges, plan, shares)
        if plan.maker.decode is not None:
            frame = self.frame.select(*plan.columns).coalesce(tasks)
            return frame, partial(task.write_kafka, plan), partial(task.prepare_kafka, plan)
        frame = self.frame.coalesce(1) if isinstance(plan.maker.sharding, Single) else self.frame
        return frame, partial(task.write_typed, plan), partial(task.prepare_typed, plan)

    @property
    def _groups(self) -> Mapping[str, Ranges]:
        """Ranges that one task must read together."""
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
    """Parsed by the JVM, which need not be asked for every batch."""
    from pyspark.sql.types import StructType

    parsed = StructType.fromDDL(ddl)
    assert isinstance(parsed, StructType)
    return parsed


def _written(frame: DataFrame) -> Written:
    """Runs the job. Raises an error that one of its tasks met: rather what is final than what another try may mend."""
    lines = [json.loads(row[0]) for row in frame.collect()]
    errors = [from_json(line["error"]) for line in lines if "error" in line]
    if errors:
        raise next((error for error in errors if isinstance(error, FINAL)), errors[0])
    totals = [line for line in lines if "operations" in line]
    phases = Phases()
    for line in totals:
        phases.add(line.get("seconds"))
    return Written(
        tuple(line for line in lines if "shard" in line),
        dict(sum((Counter(line["operations"]) for line in totals), Counter[str]())),
        phases.seconds,
        dict(sum((Counter(line.get("retries", {})) for line in totals), Counter[str]())),
    )
