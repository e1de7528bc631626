"""The payloads between the two stages of a shuffled batch: rows on their way to the task that writes their shard.

A payload holds a whole Arrow batch as bytes. So the JVM moves a few large values instead of many rows, and the table's
types need not exist in Spark. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TypeAlias

import pyarrow as pa

from headgate.streaming.write.ordering import in_order
from headgate.streaming.write.rows import Routed
from headgate.streaming.write.timers import Phases

PAYLOAD = "task integer, shard string, dead boolean, rows binary, ordering binary"
"""The Spark schema of payloads. A payload without a shard is an error of the first stage, as text; if `dead` is set, it
holds that stage's times by phase."""

Payloads: TypeAlias = dict[tuple[str, bool], list[tuple[pa.RecordBatch, pa.RecordBatch | None]]]
"""Per log, its rows with their ordering columns, as they came."""


def payload_of(part: Routed, task: int) -> pa.RecordBatch:
    """Rows as a payload for a task."""
    return _payload(task, part.shard, part.dead, _pack(part.rows), None if part.order is None else _pack(part.order))


def payload_of_error(text: str) -> pa.RecordBatch:
    """An error as a payload for the first task, which reports it."""
    return _payload(0, None, False, text.encode(), None)


def payload_of_phases(phases: Phases) -> pa.RecordBatch:
    """The first stage's times as a payload for the first task, which reports them."""
    text = json.dumps({"seconds": phases.seconds, "times": phases.times})
    return _payload(0, None, True, text.encode(), None)


def gather(batches: Iterable[pa.RecordBatch]) -> tuple[Payloads, str | None, Phases]:
    """Collect all payloads: a shard's rows can be sorted only when all are there.

    Returns the rows per log, an error of the first stage or None, and that stage's times by phase.
    """
    found: Payloads = {}
    phases = Phases()
    for batch in batches:
        for _, shard, dead, rows, ordering in zip(*batch.columns, strict=True):
            if not shard.is_valid:
                text = bytes(rows.as_buffer()).decode()
                if not dead.as_py():
                    return {}, text, phases
                earlier = json.loads(text)
                phases.add(earlier["seconds"])
                phases.see(earlier["times"])
                continue
            order = _unpack(ordering) if ordering.is_valid else None
            found.setdefault((shard.as_py(), dead.as_py()), []).append((_unpack(rows), order))
    return found, None, phases


def place(payloads: Payloads) -> Iterator[Routed]:
    """The rows of each log in order. Empties `payloads`, so that memory is freed on the way."""
    while payloads:
        (shard_name, is_dead), found = payloads.popitem()
        rows = in_order(found)
        del found
        rows.reverse()
        while rows:
            yield Routed(shard_name, rows.pop(), is_dead)


def _payload(task: int, shard: str | None, dead: bool, rows: bytes, ordering: bytes | None) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "task": pa.array([task], pa.int32()),
            "shard": pa.array([shard], pa.string()),
            "dead": pa.array([dead]),
            "rows": pa.array([rows], pa.binary()),
            "ordering": pa.array([ordering], pa.binary()),
        }
    )


def _pack(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def _unpack(data: pa.Scalar) -> pa.RecordBatch:
    return next(iter(pa.ipc.open_stream(data.as_buffer())))
