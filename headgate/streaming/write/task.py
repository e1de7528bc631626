"""The tasks that run on executors: they write the rows of one batch as entries of shards.

A task keeps no state and may run any number of times: each attempt appends under its own attempt id, and only the
attempt that the commit record lists counts. Its plan holds everything it needs; it writes through `ShardWriter.attach`
only.
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
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from headgate import parallel
from headgate.connectors.kafka.options import ConsumerConfig
from headgate.connectors.kafka.reading import read_ranges
from headgate.errors import Fenced, HeadgateError, InvalidInput, Transient
from headgate.retry import retries
from headgate.shards.config import WriterConfig
from headgate.shards.shard import Claim
from headgate.shards.wal.entry import SourceRange, Tags
from headgate.shards.wal.puts import Put
from headgate.shards.writer import ShardWriter
from headgate.spark import FINAL
from headgate.streaming.write.ordering import OrderWatch
from headgate.streaming.write.rows import Routed, RowMaker
from headgate.streaming.write.shuffle import gather, payload_of, payload_of_error, payload_of_phases, place
from headgate.streaming.write.timers import Phases

TIMESTAMP = "timestamp"
"""Kafka's column with the timestamp of a record."""

APPENDERS = 8
"""Logs that one task writes to at the same time, so that it does not wait for the store, or for fsync, once per shard.
"""


ENOUGH_ROWS, ENOUGH_BYTES = 5_000, 8 << 20
"""A task reads its ranges one by one, and decodes them together up to these sizes."""


@dataclass(frozen=True)
class WritePlan:
    """The plan of one batch for its tasks. Picklable; made anew for each batch."""

    maker: RowMaker
    claims: Mapping[str, Claim]
    """Per shard, the epoch and the position at which every attempt of this batch starts."""
    dead_letters: Mapping[str, Claim]
    sources: Mapping[str, tuple[SourceRange, ...]]
    """Per shard, the source ranges its rows come from."""
    writer: WriterConfig
    max_entry_bytes: int
    columns: tuple[str, ...] = ()
    """The Kafka columns to read."""
    fail_on_bad_record: bool = False
    consumer: ConsumerConfig | None = None
    tasks: Mapping[str, int] = field(default_factory=dict)
    """Per shard, the task that writes it if rows are shuffled."""
    tries: int | None = None
    """How often Spark tries a task; None if unknown."""

    @property
    def shard_ids(self) -> dict[str, UUID]:
        """Shard ids by name."""
        return {name: claim.shard.id for name, claim in self.claims.items()}

    @property
    def dead_letter_ids(self) -> dict[str, UUID]:
        """Ids of the dead-letter logs, by shard name."""
        return {name: claim.shard.id for name, claim in self.dead_letters.items()}


@dataclass
class _ShardRows:
    """Rows of one log that an attempt holds and has not appended yet, and totals of those appended."""

    writer: ShardWriter
    tags: Tags
    dead: bool
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
        """Append everything held as one entry."""
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
            if self.dead and error.stored_epoch is None:
                # The store reported a conflict, but the slot is empty. A log without a manifest cannot tell why; a
                # retry may work.
                raise Transient(
                    "Writing an entry failed with a conflict, but no entry is there.", **error.fields()
                ) from error
            raise

    def answer(self) -> dict[str, Any]:
        return {
            "positions": self.positions,
            "rows": self.rows,
            "nbytes": self.nbytes,
            "in_order": self.order.kept,
        }


class Attempt:
    """One run of one task: collects rows by shard, then appends one entry per shard, or more above the size limit.

    A context manager: it always closes its writers, because the worker process lives on.
    """

    def __init__(self, plan: WritePlan, attempt_id: str | None = None) -> None:
        """Pass `attempt_id` if several tasks may write to one shard: then only positions tell which entries count."""
        self._plan = plan
        self._id = attempt_id or uuid.uuid4().hex
        self._logs: dict[tuple[str, bool], _ShardRows] = {}
        self._retries = retries()
        self.phases = Phases()

    def add(self, part: Routed) -> None:
        """Add rows or dead letters of a shard. May append an entry. Raises InvalidInput for a dead letter if bad
        records must fail the batch.
        """
        if part.dead and self._plan.fail_on_bad_record:
            raise _bad_record(part.rows)
        log = self._logs.get((part.shard, part.dead))
        if log is None:
            log = self._logs[part.shard, part.dead] = self._attach(part.shard, part.dead)
        log.add(part)
        if sum(other.held for other in self._logs.values()) >= self._plan.max_entry_bytes:
            with self.phases.in_phase("append"):
                max(self._logs.values(), key=lambda other: other.held).append()

    def finish(self) -> list[dict[str, Any]]:
        """Append what is held. Returns what was written per log, then the totals: store operations, times and retries.

        Entries of different logs are written in parallel, entries of one log one after another (R10).
        """
        logs = list(self._logs.values())
        with self.phases.in_phase("append"):
            parallel.each("append", _ShardRows.append, logs, workers=APPENDERS)
        return [
            *(
                {"shard": shard, "dead": dead, "attempt": self._id, **log.answer()}
                for (shard, dead), log in self._logs.items()
            ),
            {
                "operations": self._operations(),
                "seconds": self.phases.seconds,
                "times": self.phases.times,
                "retries": {"store": retries() - self._retries, "task": _earlier_tries()},
            },
        ]

    def __enter__(self) -> Attempt:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for log in self._logs.values():
            # Every put has ended, and its error was raised already.
            with suppress(HeadgateError):
                log.writer.close()

    def _attach(self, shard: str, dead: bool) -> _ShardRows:
        claims = self._plan.dead_letters if dead else self._plan.claims
        if shard not in claims:
            raise InvalidInput(f"A row belongs to shard {shard!r}, which is not in this batch's plan.", shard=shard)
        writer = ShardWriter.attach(claims[shard], self._plan.writer)
        return _ShardRows(writer, Tags(self._id, self._plan.sources.get(shard, ())), dead)

    def _operations(self) -> dict[str, int]:
        """The store operations of this attempt: the plan has its own store objects, so their counts are the
        attempt's.
        """
        homes = [claim.shard.home for claim in self._plan.claims.values()]
        stores = {id(store): store for home in homes for store in (home.store, home.wal_store)}
        return dict(sum((Counter(store.operations()) for store in stores.values()), Counter()))


# -- tasks, as Spark calls them -----------------------------------------------


def write_kafka(plan: WritePlan, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write records of Spark's Kafka source."""
    phases = Phases()
    timed = _timed(batches, phases)
    yield _lines(_write(plan, (part for batch in timed for part in plan.maker.from_kafka(batch)), phases))


def write_typed(plan: WritePlan, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write typed rows."""
    yield _lines(_write(plan, (part for batch in batches for part in plan.maker.from_typed(batch))))


def write_share(plan: WritePlan, shares: tuple[tuple[SourceRange, ...], ...], number: int) -> Iterator[str]:
    """Write records that this task reads from Kafka itself. `shares` are the ranges of all tasks."""
    phases = Phases()
    read = _read(plan, shares[number], phases)
    yield from _write(plan, (part for batch in read for part in plan.maker.from_kafka(batch)), phases)


def prepare_kafka(plan: WritePlan, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Decode and route records of Spark's Kafka source, for the shuffle."""
    phases = Phases()
    timed = _timed(batches, phases)
    yield from _payloads(plan, (part for batch in timed for part in plan.maker.from_kafka(batch)), phases)


def prepare_typed(plan: WritePlan, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Route typed rows, for the shuffle."""
    yield from _payloads(plan, (part for batch in batches for part in plan.maker.from_typed(batch)), Phases())


def prepare_shares(
    plan: WritePlan, shares: tuple[tuple[SourceRange, ...], ...], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Decode and route records that this task reads from Kafka itself, for the shuffle. The frame only carries the
    numbers of the shares.
    """
    phases = Phases()
    numbers = (number for batch in batches for number in batch.column(0).to_pylist())
    read = (read for number in numbers for read in _read(plan, shares[number], phases))
    yield from _payloads(plan, (part for batch in read for part in plan.maker.from_kafka(batch)), phases)


def write_payloads(plan: WritePlan, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Sort and write the shuffled rows; or report the error of the first stage."""
    payloads, error, phases = gather(batches)
    if error is not None:
        yield _lines([error])
    else:
        yield _lines(_write(plan, place(payloads), phases))


# -- parts of the tasks ------------------------------------------------------------


def _write(plan: WritePlan, parts: Iterable[Routed], reading: Phases | None = None) -> list[str]:
    """Write the rows and return the task's result. `reading` holds an earlier stage's times, and the timestamps it
    read.
    """
    try:
        with Attempt(plan) as attempt:
            for part in attempt.phases.over("decode", parts):
                attempt.add(part)
            if reading is not None:
                attempt.phases.add(reading.seconds)
                attempt.phases.see(reading.times)
            return [json.dumps(result) for result in attempt.finish()]
    except HeadgateError as error:
        if not _ends_here(error, plan):
            raise
        return [_error_line(error)]


def _lines(lines: list[str]) -> pa.RecordBatch:
    return pa.record_batch({"result": pa.array(lines, pa.string())})


def _error_line(error: HeadgateError) -> str:
    return json.dumps({"error": error.to_json()}, default=str)


def _ends_here(error: HeadgateError, plan: WritePlan) -> bool:
    """True if the task must report the error to the driver, because no retry follows that might work: otherwise the
    driver would only see Spark's own error.

    Spark counts failures, this counts tries. If executors were lost or attempts ran side by side, the driver gets a
    transient error a little earlier than Spark would give up.
    """
    if isinstance(error, FINAL):
        return True
    from pyspark import TaskContext

    context = TaskContext.get()
    return plan.tries is not None and context is not None and context.attemptNumber() + 1 >= plan.tries


def _earlier_tries() -> int:
    """How many attempts of this task Spark made before."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return 0 if context is None else context.attemptNumber()


def _timed(batches: Iterable[pa.RecordBatch], phases: Phases) -> Iterator[pa.RecordBatch]:
    """Pass on batches of Spark's Kafka source, and note their timestamps."""
    for batch in batches:
        at = batch.schema.get_field_index(TIMESTAMP)
        if batch.num_rows and at >= 0 and pa.types.is_timestamp(batch.schema.field(at).type):
            seen = pc.min_max(batch.column(at).cast(pa.timestamp("ms"), safe=False).cast(pa.int64()))
            phases.see([time for time in seen.as_py().values() if time is not None])
        yield batch


def _read(plan: WritePlan, share: tuple[SourceRange, ...], phases: Phases) -> Iterator[pa.RecordBatch]:
    """The records of the ranges. Short ranges are joined: decoding has a cost per batch as well as per row."""
    assert plan.consumer is not None
    waiting: list[pa.RecordBatch] = []
    places = [(part.topic, part.partition, part.start, part.until) for part in share]
    for read in read_ranges(plan.consumer, places, columns=plan.columns, seen=phases.see):
        waiting.append(read)
        if _is_enough(waiting):
            yield _joined(waiting)
            waiting = []
    if waiting:
        yield _joined(waiting)


def _is_enough(batches: list[pa.RecordBatch]) -> bool:
    rows, size = sum(batch.num_rows for batch in batches), sum(batch.nbytes for batch in batches)
    return bool(rows >= ENOUGH_ROWS or size >= ENOUGH_BYTES)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _payloads(plan: WritePlan, parts: Iterable[Routed], phases: Phases) -> Iterator[pa.RecordBatch]:
    try:
        for part in phases.over("decode", parts):
            # A shard that is not in the plan may go to any task: that task raises the error.
            yield payload_of(part, plan.tasks.get(part.shard, 0))
        yield payload_of_phases(phases)
    except HeadgateError as error:
        if not _ends_here(error, plan):
            raise
        yield payload_of_error(_error_line(error))


def _bad_record(rows: pa.RecordBatch) -> HeadgateError:
    first = rows.slice(0, 1).to_pylist()[0]
    return InvalidInput(
        f"A record could not be decoded: {first['error']}.",
        topic=first["topic"],
        partition=first["partition"],
        offset=first["offset"],
        advice="correct the record or the schema, or keep bad records as dead letters (on_bad_record='dead_letter')",
    )
