"""One micro-batch of `format("headgate")`: planned before its tasks run, committed after them. Independent of Spark.

The two run in different processes. The plan contains everything the commit needs; the tasks return it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from uuid import UUID, uuid4

from headgate.caches import set_cache_bytes
from headgate.checkpoints.jobs.columns import another_table, gained, stream_schema
from headgate.checkpoints.log.commit_log import CommitLog
from headgate.checkpoints.log.decisions import Skip, Write, is_another_table
from headgate.checkpoints.log.opened_log import OpenedLog
from headgate.checkpoints.log.records import Batch, BatchRecord
from headgate.checkpoints.log.state import Head, LogState
from headgate.checkpoints.spark.directory import SparkCheckpoint
from headgate.checkpoints.stream.batches import free_of_batches
from headgate.checkpoints.stream.driver import Planned, StreamDriver
from headgate.connectors.kafka.options import ConsumerConfig
from headgate.errors import Fenced, InvalidInput, NotFound, Poisoned, Transient, from_json
from headgate.shards.shard import TableHome
from headgate.streaming.datasource.memory import HeldStream, Hold
from headgate.streaming.datasource.settings import Settings
from headgate.streaming.decode.contract import Decoder
from headgate.streaming.decode.kinds import KINDS
from headgate.streaming.decode.metadata import with_metadata
from headgate.streaming.decode.provenance import provenance_value
from headgate.streaming.kafka import offsets as topic_offsets
from headgate.streaming.options import as_option
from headgate.streaming.write.answers import shard_parts
from headgate.streaming.write.checks import check_columns
from headgate.streaming.write.plan import batch_decision, shard_names, write_plan
from headgate.streaming.write.routing import shards_of
from headgate.streaming.write.task import WritePlan
from headgate.table.table import Table, open_table

_MEETING = (
    "bring the rows of a shard into one task: use by_partition() and read Kafka without minPartitions, or "
    "coalesce(1) the frame, or use foreachBatch with headgate.ShardSink, which shuffles if needed"
)

_TOGETHER = "bring the rows of a shard into one task: write headgate.by_shard(frame, table), or frame.coalesce(1)"

_NAME_THE_CLUSTER = "give format('headgate') the brokers too: .option('kafka.bootstrap.servers', …)"

_heads: dict[tuple[str, str], Head] = {}
"""The last known head of each log, so that the next batch reads only newer records."""


@dataclass(frozen=True)
class Commitment:
    """What the commit of a batch needs. Small, since every task returns one."""

    hold: Hold | None
    """None if the batch is not part of a stream."""
    home: TableHome = field(repr=False)
    """With the columns that the tasks write."""
    follows: bool
    """True if the rows follow the table's columns when they change."""
    head: Head
    """The log's head, without recent batches."""
    batch: Batch
    """The batch to commit, without the tasks' results."""
    attempt_id: str
    """The id of all entries of the batch, from any task; their positions say which ones count."""
    shards: Mapping[str, UUID]
    dead_letters: Mapping[str, UUID]
    ordered: bool
    """True if all rows of a shard must come from one task."""
    skip: bool = False
    """True if the log has the batch already."""


@dataclass(frozen=True)
class BatchPlan:
    """A batch before its tasks run. Picklable."""

    commitment: Commitment
    write: WritePlan | None
    """None if there is nothing to write."""


@dataclass(frozen=True)
class TaskResult:
    """What one task wrote, or an error that a retry cannot fix."""

    commitment: Commitment
    written: tuple[Mapping[str, Any], ...] = ()
    error: Mapping[str, Any] | None = None


def plan_batch(settings: Settings, columns: Sequence[str], root: str) -> BatchPlan:
    """Plan the batch that Spark is about to run. `root` is the folder of the Spark application.

    1. open the table; the frame's columns must fit it. They are read again after a schema record (R22).
    2. read the batch's offsets from Spark's checkpoint.
    3. hold the stream: continue under this run's open record. If another driver's record is the last one, or the table
       was re-created (R23): Fenced. If there is none yet, take over the stream (THIS WRITES, AND IT FENCES AN EARLIER
       DRIVER), unless 4 refuses.
    4. decide: skip a batch that the log has; refuse one that does not continue it.
    5. plan: every attempt of a shard starts at the same position.

    Raises Fenced, InvalidInput, NotFound, DataLoss; the query ends with it, and nothing of the batch is visible.
    """
    if settings.options.cache_bytes is not None:
        set_cache_bytes(settings.options.cache_bytes)
    table = open_table(settings.table, storage_options=dict(settings.options.storage_options or {}) or None)
    table = table.retrying(settings.options.retry)
    decoder = _decoder(settings, table)
    check_columns(columns, decoder, settings.options.sequence_by, table, as_option)
    checkpoint = SparkCheckpoint(settings.checkpoint, settings.options.storage_options)
    batch_id = max(checkpoint.planned(), default=None)
    if batch_id is None:
        raise NotFound("Spark's checkpoint has no offsets for the next batch.", uri=checkpoint.uri)
    query_id, sources = checkpoint.query_id(), checkpoint.sources(batch_id)
    names = shard_names(table.sharding, sources)

    def decide(head: Head) -> Skip | Write:
        return batch_decision(table, head, query_id, batch_id, sources, partial(_earliest, settings))

    hold = Hold.of(root, query_id, table.uri, settings.stream)
    before = hold.held()
    # It is unknown how the frame was made.
    provenance = provenance_value(decoder, table.home.schema, changed=None)
    driver = _held(table, settings, hold, before, query_id, names, decide, provenance)
    decision = decide(driver.head)
    known = None if before is None else before.changed
    batch = Batch(query_id=query_id, batch_id=batch_id, mode="wal")
    planned, write = Planned({}, {}), None
    if isinstance(decision, Write):
        batch = replace(batch, sources=decision.ranges, opaque=decision.opaque)
        driver.describe(provenance)
        planned = driver.plan({*names, *driver.claims})
        while driver.head.changed != known:
            known = driver.head.changed
            table = settings.options.retry.run_steps(table.refreshed)
            decoder = _decoder(settings, table)
            check_columns(columns, decoder, settings.options.sequence_by, table, as_option)
            driver.use_columns(table.home.schema)
            # Both may put an open record, which may step over one more schema record.
            driver.describe(provenance_value(decoder, table.home.schema, changed=None))
            planned = driver.plan({*names, *driver.claims})
        meant = shards_of(table.sharding, decision.ranges)
        write = write_plan(table, settings.options, decoder, planned, meant, decision.ranges)
    assert driver.head.opened is not None
    # A skipped batch reads no columns: later schema records are for the next batch.
    hold.keep(HeldStream(driver.head.opened.record_id, str(table.table_id), known or 0))
    commitment = Commitment(
        hold=hold,
        home=table.home,
        follows=decoder is not None,
        head=replace(driver.head, recent={}),
        batch=batch,
        attempt_id=uuid4().hex,
        shards={} if write is None else write.shard_ids,
        dead_letters={} if write is None else write.dead_letter_ids,
        ordered=bool(table.primary_key),
        skip=isinstance(decision, Skip),
    )
    return BatchPlan(commitment, write)


def commit_batch(results: Sequence[TaskResult], batch_id: int) -> BatchRecord | None:
    """Make visible what the tasks of one plan wrote; see `commit_planned`."""
    return commit_planned(_agreed(results, batch_id), results)


def commit_planned(commitment: Commitment, results: Sequence[TaskResult]) -> BatchRecord | None:
    """Make visible what the tasks wrote for this plan. None if the log has it already.

    1. raise a task's error.
    2. collect, per shard, the positions of the attempts that count.
    3. put one record at the sequence after the plan's: if another driver came between, it has that slot. A schema
       record is skipped; but if it adds a column that the rows should have, the rows cannot be rewritten here:
       Transient, and the query's next start writes them (R22).

    Raises Fenced (final: the run ends), Transient, Poisoned (it is unknown until the next start whether the batch
    counts), InvalidInput if rows of a shard came from several tasks and their order matters.
    """
    batch, head = commitment.batch, commitment.head
    try:
        for result in results:
            if result.error is not None:
                raise from_json(dict(result.error)).with_context(batch=batch.batch_id, stream=head.stream)
        if commitment.skip:
            return None
        written = [one for result in results for one in result.written]
        _check_tasks(commitment, written)
        shards, dead = shard_parts(written, commitment.shards, commitment.dead_letters)
        log = CommitLog(commitment.home.records, head.stream, commitment.home.uri)
        assert head.opened is not None
        opened = OpenedLog(log, head.opened, LogState(head, {}))
        try:
            while (record := opened.commit(replace(batch, shards=shards, dead_letters=dead), {})) is None:
                _check_columns(commitment)
            return record
        except Fenced:
            if _was_committed(log, commitment):
                return None
            raise
    except Fenced:
        if commitment.hold is not None:
            commitment.hold.forget()
        raise


# -- planning ----------------------------------------------------------------------


def _decoder(settings: Settings, table: Table) -> Decoder | None:
    if settings.decode is None:
        return None
    kind = KINDS[settings.decode]
    return with_metadata(table.schema, settings.metadata, lambda columns: kind.made(columns, coerce=settings.coerce))


def _held(
    table: Table,
    settings: Settings,
    hold: Hold,
    mine: HeldStream | None,
    query_id: str,
    names: Iterable[str],
    accept: Callable[[Head], object],
    decoder: Mapping[str, Any],
) -> StreamDriver:
    home, stream = table.home, settings.stream
    if mine is None:

        def accepted(head: Head) -> None:
            accept(head)
            free()

        def free(found: Iterable[str] = ()) -> None:
            free_of_batches(home, table.shard_ids(), found=found)

        return StreamDriver.open(home, stream, query_id, names, accept=accepted, free=free, decoder=decoder)
    if is_another_table(UUID(mine.table_id), str(home.table_id)):
        hold.forget()
        raise another_table(home, mine.table_id, str(home.table_id))
    log = CommitLog(home.records, stream, home.uri)
    place = (home.records.uri, stream)
    before = _heads.get(place)
    head = log.read(None if before is None else LogState(before, {})).head
    _heads[place] = head
    if head.opened is None or head.opened.record_id != mine.open_id:
        hold.forget()
        raise Fenced(
            "Another driver took over the stream.",
            table=home.uri,
            stream=stream,
            query_id=query_id,
            successor_query_id=head.opened and head.opened.query_id,
            advice="stop this query; another driver runs the stream. Start it again only if you want to stop the "
            "other driver",
        )
    opened = OpenedLog(log, head.opened, LogState(head, {}))
    return StreamDriver.resume(home, stream, opened)


def _earliest(settings: Settings, topic: str, partition: int) -> int:
    consumer = ConsumerConfig.from_spark(settings.kafka) if settings.kafka else None
    return topic_offsets.earliest(consumer, topic, partition, advice=_NAME_THE_CLUSTER)


# -- committing --------------------------------------------------------------------


def _agreed(results: Sequence[TaskResult], batch_id: int) -> Commitment:
    plans = {result.commitment.attempt_id: result.commitment for result in results}
    if len(plans) != 1:
        raise Poisoned(f"Batch {batch_id} returned {len(plans)} plans from its tasks instead of one.")
    (commitment,) = plans.values()
    if commitment.batch.batch_id != batch_id:
        raise Poisoned(f"Batch {commitment.batch.batch_id} was planned, but Spark commits batch {batch_id}.")
    return commitment


def _check_tasks(commitment: Commitment, written: Sequence[Mapping[str, Any]]) -> None:
    """Raises InvalidInput if several tasks wrote to a shard whose rows have an order."""
    tasks = Counter(one["shard"] for one in written if not one["dead"])
    name, times = max(tasks.items(), key=lambda one: one[1], default=("", 0))
    if commitment.ordered and times > 1:
        raise InvalidInput(
            f"Rows of shard {name!r} came from {times} tasks, so the order of rows with the same key is unknown.",
            table=commitment.home.uri,
            stream=commitment.head.stream,
            batch=commitment.batch.batch_id,
            advice=f"{_TOGETHER if commitment.hold is None else _MEETING}; nothing of the batch is visible",
        )


def _check_columns(commitment: Commitment) -> None:
    """Called when a schema record came after the plan. Raises Transient if rows lack a new column."""
    home = commitment.home
    if commitment.follows and gained(home.schema, stream_schema(home)):
        raise Transient(
            "Columns were added to the table while the batch was written, so its rows lack them.",
            table=home.uri,
            stream=commitment.head.stream,
            advice="start the query again: it writes the batch again, with the new columns; nothing of the batch is "
            "visible",
        )


def _was_committed(log: CommitLog, commitment: Commitment) -> bool:
    """True if this same batch took the slot: an earlier run of this application may commit while it is being
    stopped.
    """
    batch, opened = commitment.batch, commitment.head.opened
    stored = log.read().head.recent.get((batch.query_id, batch.batch_id))
    return (
        stored is not None
        and opened is not None
        and (stored.open_id, stored.sources, stored.opaque) == (opened.record_id, batch.sources, batch.opaque)
    )
