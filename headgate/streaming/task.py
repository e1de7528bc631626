"""What runs on executors: rows of one batch become entries of shards.

A task holds no state that matters and may run any number of times: each run appends under an
attempt id of its own, and only the one that the commit record lists counts. Everything it needs
is in the plan it is sent; all writing goes through `ShardWriter.attach`.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import pyarrow as pa

from headgate.connectors.kafka.options import ConsumerConfig
from headgate.connectors.kafka.reader import read_range
from headgate.errors import DataLoss, Fenced, HeadgateError, InvalidInput, Transient
from headgate.shards.config import WriterConfig
from headgate.shards.entry import SourceRange, Tags
from headgate.shards.flusher import Put
from headgate.shards.shard import Claim
from headgate.shards.writer import ShardWriter
from headgate.streaming.ordering import OrderWatch, in_order
from headgate.streaming.rows import Routed, RowMaker

RESULT = "result string"
"""Spark schema of what a writing task returns: one line of JSON per log that it wrote to and one with what it
asked of the store, or one error."""

PAYLOAD = "task int, shard string, dead boolean, rows binary, ordering binary"
"""Spark schema between the two stages of a shuffled batch: whole Arrow batches as bytes, so that the
JVM moves a few large values instead of many rows, and no type of the table has to exist in Spark."""

FINAL = (Fenced, InvalidInput, DataLoss)
"""Errors that another attempt would meet again: returned to the driver instead of being raised to Spark's retries."""


@dataclass(frozen=True)
class WritePlan:
    """One batch as its tasks see it. Picklable; made anew for each batch."""

    maker: RowMaker
    claims: Mapping[str, Claim]
    """Per shard, the epoch and where every attempt of this batch starts."""
    dead_letters: Mapping[str, Claim]
    sources: Mapping[str, tuple[SourceRange, ...]]
    """Per shard, the source ranges its rows come from."""
    writer: WriterConfig
    max_entry_bytes: int
    columns: tuple[str, ...] = ()
    """What of Kafka's records the rows are made of."""
    fail_on_bad_record: bool = False
    consumer: ConsumerConfig | None = None
    tasks: Mapping[str, int] = field(default_factory=dict)
    """Per shard, which task writes it where rows are shuffled."""


@dataclass
class _ShardRows:
    """What one attempt has collected for one log and not appended yet."""

    writer: ShardWriter
    tags: Tags
    batches: list[pa.RecordBatch] = field(default_factory=list)
    held: int = 0
    positions: list[int] = field(default_factory=list)
    rows: int = 0
    nbytes: int = 0
    order: OrderWatch = field(default_factory=OrderWatch)

    def add(self, part: Routed) -> None:
        self.batches.append(part.rows)
        self.held += part.rows.nbytes
        if not part.dead:
            self.order.see(part.order)

    def append(self) -> None:
        """One entry of everything held."""
        if self.batches:
            batches, self.batches, self.held = self.batches, [], 0
            put = self._put(batches)
            self.positions += put.positions
            self.rows += put.rows
            self.nbytes += put.nbytes

    def _put(self, batches: list[pa.RecordBatch]) -> Put:
        try:
            return self.writer.append(batches, self.tags)
        except Fenced as error:
            if error.stored_epoch is None:
                # The slot was told to be taken and is not. A log without a manifest cannot say why: another try can.
                raise Transient("An entry met a conflict that left nothing.", **error.fields()) from error
            raise

    def told(self) -> dict[str, Any]:
        return {
            "positions": self.positions,
            "rows": self.rows,
            "nbytes": self.nbytes,
            "in_order": self.order.kept,
        }


class Attempt:
    """One run of one task: collects rows by shard, appends one entry per shard, more only above the size limit.

    A context manager: whatever ends it, its writers are closed, for the worker lives on.
    """

    def __init__(self, plan: WritePlan, attempt_id: str | None = None) -> None:
        """`attempt_id` where several tasks may write to one shard: what counts is then told by positions alone."""
        self._plan = plan
        self._id = attempt_id or uuid.uuid4().hex
        self._logs: dict[tuple[str, bool], _ShardRows] = {}

    def add(self, part: Routed) -> None:
        """Rows or dead letters of a shard."""
        if part.dead and self._plan.fail_on_bad_record:
            raise _bad_record(part.rows)
        log = self._logs.get((part.shard, part.dead))
        if log is None:
            log = self._logs[part.shard, part.dead] = self._attach(part.shard, part.dead)
        log.add(part)
        if sum(other.held for other in self._logs.values()) >= self._plan.max_entry_bytes:
            max(self._logs.values(), key=lambda other: other.held).append()

    def finish(self) -> list[dict[str, Any]]:
        """Append what is held; per log what was written, then what all of it asked of the stores."""
        for log in self._logs.values():
            log.append()
        return [
            *(
                {"shard": shard, "dead": dead, "attempt": self._id, **log.told()}
                for (shard, dead), log in self._logs.items()
            ),
            {"operations": self._operations()},
        ]

    def __enter__(self) -> Attempt:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for log in self._logs.values():
            # Every put was waited for: what closing could say was raised before.
            with suppress(HeadgateError):
                log.writer.close()

    def _attach(self, shard: str, dead: bool) -> _ShardRows:
        claims = self._plan.dead_letters if dead else self._plan.claims
        if shard not in claims:
            raise InvalidInput(f"A row belongs to shard {shard!r}, which this batch did not plan.", shard=shard)
        writer = ShardWriter.attach(claims[shard], self._plan.writer)
        return _ShardRows(writer, Tags(self._id, self._plan.sources.get(shard, ())))

    def _operations(self) -> dict[str, int]:
        """The plan came with stores of its own, so their counts are this attempt's."""
        homes = [claim.shard.home for claim in self._plan.claims.values()]
        stores = {id(store): store for home in homes for store in (home.store, home.wal_store)}
        return dict(sum((Counter(store.operations()) for store in stores.values()), Counter()))


# -- tasks, as mapInArrow calls them -----------------------------------------------


def write_kafka(plan: WritePlan, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Records of Spark's Kafka source, written."""
    yield from _write(plan, (part for batch in batches for part in plan.maker.from_kafka(batch)))


def write_typed(plan: WritePlan, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows that Spark made, written."""
    yield from _write(plan, (part for batch in batches for part in plan.maker.from_typed(batch)))


def write_ranges(
    plan: WritePlan, groups: tuple[tuple[SourceRange, ...], ...], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Records that this task reads from Kafka itself, written. The frame only carries the numbers of the groups."""
    yield from _write(plan, (part for batch in _read(plan, groups, batches) for part in plan.maker.from_kafka(batch)))


def prepare_kafka(plan: WritePlan, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Records of Spark's Kafka source, decoded and routed, for the shuffle."""
    yield from _payloads(plan, (part for batch in batches for part in plan.maker.from_kafka(batch)))


def prepare_typed(plan: WritePlan, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows that Spark made, routed, for the shuffle."""
    yield from _payloads(plan, (part for batch in batches for part in plan.maker.from_typed(batch)))


def prepare_ranges(
    plan: WritePlan, groups: tuple[tuple[SourceRange, ...], ...], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Records that this task reads from Kafka itself, decoded and routed, for the shuffle."""
    read = _read(plan, groups, batches)
    yield from _payloads(plan, (part for batch in read for part in plan.maker.from_kafka(batch)))


def write_payloads(plan: WritePlan, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What came out of the shuffle, put in order and written."""
    yield from _write(plan, _collected(batches))


# -- what they are made of ---------------------------------------------------------


def _write(plan: WritePlan, parts: Iterable[Routed]) -> Iterator[pa.RecordBatch]:
    try:
        with Attempt(plan) as attempt:
            for part in parts:
                attempt.add(part)
            lines = [json.dumps(result) for result in attempt.finish()]
    except FINAL as error:
        lines = [json.dumps({"error": error.to_json()}, default=str)]
    yield pa.record_batch({"result": pa.array(lines, pa.string())})


def _read(
    plan: WritePlan, groups: tuple[tuple[SourceRange, ...], ...], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    assert plan.consumer is not None
    for batch in batches:
        for number in batch.column(0).to_pylist():
            for part in groups[number]:
                yield from read_range(
                    plan.consumer, part.topic, part.partition, part.start, part.until, columns=plan.columns
                )


def _payloads(plan: WritePlan, parts: Iterable[Routed]) -> Iterator[pa.RecordBatch]:
    for part in parts:
        yield pa.record_batch(
            {
                # A shard that was not planned goes anywhere: the task that gets it says so.
                "task": pa.array([plan.tasks.get(part.shard, 0)], pa.int32()),
                "shard": pa.array([part.shard], pa.string()),
                "dead": pa.array([part.dead]),
                "rows": pa.array([_packed(part.rows)], pa.binary()),
                "ordering": pa.array([None if part.order is None else _packed(part.order)], pa.binary()),
            }
        )


def _collected(batches: Iterable[pa.RecordBatch]) -> Iterator[Routed]:
    """All payloads of a shard must be there before the first row of it can be placed."""
    parts: dict[tuple[str, bool], list[tuple[pa.RecordBatch, pa.RecordBatch | None]]] = {}
    for batch in batches:
        for _, shard, dead, rows, ordering in zip(*batch.columns, strict=True):
            order = _unpacked(ordering) if ordering.is_valid else None
            parts.setdefault((shard.as_py(), dead.as_py()), []).append((_unpacked(rows), order))
    while parts:
        (shard_name, is_dead), found = parts.popitem()
        placed = in_order(found)
        del found
        placed.reverse()
        while placed:
            yield Routed(shard_name, placed.pop(), is_dead)


def _packed(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def _unpacked(data: pa.Scalar) -> pa.RecordBatch:
    return next(iter(pa.ipc.open_stream(data.as_buffer())))


def _bad_record(rows: pa.RecordBatch) -> HeadgateError:
    first = rows.slice(0, 1).to_pylist()[0]
    return InvalidInput(
        f"A record could not become a row: {first['error']}.",
        topic=first["topic"],
        partition=first["partition"],
        offset=first["offset"],
        advice="mend the record or the schema, or let bad records become dead letters (on_bad_record='dead_letter')",
    )
