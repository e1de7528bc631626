"""One task of a batch of `format("headgate")`: Spark's rows become entries of shards. Independent of Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from headgate.spark import FINAL
from headgate.streaming.datasource.plan import BatchPlan, TaskResult
from headgate.streaming.write.rows import Routed
from headgate.streaming.write.shuffle import Payloads, place
from headgate.streaming.write.task import Attempt, WritePlan


def write_batch(plan: BatchPlan, batches: Iterable[pa.RecordBatch]) -> TaskResult:
    """Append the rows, and return their positions. May run any number of times: only what the commit lists is visible.

    Errors that a retry cannot fix are part of the result; the commit raises them.
    """
    if plan.write is None:
        return TaskResult(plan.commitment)
    try:
        with Attempt(plan.write, plan.commitment.attempt_id) as attempt:
            for part in _routed(plan.write, batches, ordered=plan.commitment.ordered):
                attempt.add(part)
            written = tuple(result for result in attempt.finish() if "shard" in result)
        return TaskResult(plan.commitment, written)
    except FINAL as error:
        return TaskResult(plan.commitment, error=error.to_json())


def _routed(plan: WritePlan, batches: Iterable[pa.RecordBatch], *, ordered: bool) -> Iterator[Routed]:
    make = plan.maker.from_typed if plan.maker.decode is None else plan.maker.from_kafka
    parts = (part for batch in batches for part in make(batch))
    if not ordered:
        yield from parts
        return
    # The frame may have been shuffled: rows can be sorted only when all rows of their shard are there.
    arrived: Payloads = {}
    for part in parts:
        arrived.setdefault((part.shard, part.dead), []).append((part.rows, part.order))
    yield from place(arrived)
