"""`df.write.format("headgate").mode("append")`: a frame of typed rows becomes one commit of a table. Independent of
Spark.

It is planned in one process, written by tasks and committed in another process, so the plan holds everything the commit
needs. Promises:
1. All rows of the frame become visible together, by one commit record, or none does.
2. Of jobs with the same `batchId` only one counts, however often they are retried, wherever one dies, and even if they
   run at the same time.
3. A job fails before anything is written if a stream owns a shard that it needs.
4. After its end, any stream or writer may take the shards, and native Lance may open them; see `let_go`. A job that
   died keeps them until the next job, or the next start of a stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow as pa
import structlog

from headgate.checkpoints.log.commit_log import read_head
from headgate.checkpoints.log.decisions import has_batch
from headgate.checkpoints.log.names import BATCH_STREAM
from headgate.checkpoints.log.records import BATCH, Batch, BatchRecord, OpaqueRange
from headgate.checkpoints.log.state import Head
from headgate.checkpoints.stream.batches import begin, let_go, resumed
from headgate.checkpoints.stream.checkpoint import FinalCompaction
from headgate.errors import Fenced, InvalidInput
from headgate.shards.bucket import bucket_ids
from headgate.shards.home.stores import Place
from headgate.shards.shard import TableHome
from headgate.shards.sharding import Bucket, ByPartition, Sharding, single
from headgate.spark import versions
from headgate.steps import step
from headgate.streaming.datasource.plan import BatchPlan, Commitment, TaskResult, commit_planned
from headgate.streaming.datasource.settings import BatchSettings
from headgate.streaming.decode.provenance import provenance_value
from headgate.streaming.options import as_option
from headgate.streaming.write.checks import check_columns
from headgate.streaming.write.plan import write_plan
from headgate.table.table import Table, as_table, open_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FLUSHED_AT_ONCE = 1 << 30
"""A job with more bytes than this in the WAL is not flushed: flushing in one process would take long."""

_BUCKET = "_headgate_bucket"

_log = structlog.get_logger("headgate.streaming")


@dataclass(frozen=True)
class Append:
    """A planned job. Picklable."""

    table: Table
    settings: BatchSettings
    plan: BatchPlan


def opened(settings: BatchSettings) -> Table:
    """The table of the options. Raises InvalidInput, NotFound."""
    options = settings.options
    table = open_table(settings.table, storage_options=dict(options.storage_options or {}) or None)
    return table.retrying(options.retry)


def plan_append(table: Table, settings: BatchSettings, columns: Sequence[str]) -> Append:
    """Plan a job. THIS WRITES, AND IT FENCES AN EARLIER JOB, unless it ends in step 1 or 2.

    1. check that the frame's columns fit the table.
    2. take over the batch writes, unless the log has the id already; see `begin`.
    3. plan: every attempt of a shard starts at the same position.

    A crash after any step leaves nothing visible. Raises InvalidInput, Fenced, NotFound, DataLoss, Transient.
    """
    options = settings.options
    check_columns(columns, None, options.sequence_by, table, _spelled)
    sharding = _sharding(table)
    described = provenance_value(None, table.home.schema, changed=True)
    try:
        driver, is_written = begin(table.home, settings.batch_id, sharding.known_names(), decoder=described)
    except Fenced as error:
        raise _overtaken(table.home) from error
    if driver is None or is_written:
        # Without a driver, the shards belong to another job.
        mine = _commitment(table, settings, Head(BATCH_STREAM) if driver is None else driver.head)
        return Append(table, settings, BatchPlan(replace(mine, skip=True), None))
    # The columns may have changed since the table was opened: rows are written with the current ones.
    table = table.refreshed()
    check_columns(columns, None, options.sequence_by, table, _spelled)
    driver.use_columns(table.home.schema)
    write = write_plan(table, options, None, driver.plan(sharding.known_names()), {}, ())
    write = replace(write, maker=replace(write.maker, sharding=sharding))
    planned = _commitment(table, settings, driver.head)
    commitment = replace(planned, shards=write.shard_ids, dead_letters=write.dead_letter_ids)
    return Append(table, settings, BatchPlan(commitment, write))


def commit_append(job: Append, results: Sequence[TaskResult]) -> BatchRecord | None:
    """Make the rows of the tasks visible, and release the shards. None if the table has the id already.

    4. put one record, see `commit_planned`. If another job took over: this one counts if that one had the same id and
       has committed it.
    5. release the shards, see `end_append`.

    A crash before the record leaves nothing visible, a crash after it everything: the same call with the same id finds
    it. Raises Fenced, InvalidInput, Poisoned (it is unknown whether the job counts: try again with the same id).
    """
    commitment = job.plan.commitment
    record = None
    try:
        step("record")
        record = commit_planned(commitment, results)
    except Fenced as error:
        if not has_batch(read_head(commitment.home, BATCH_STREAM), job.settings.batch_id):
            raise _overtaken(commitment.home) from error
    end_append(job)
    return record


def end_append(job: Append) -> None:
    """Release the shards, see `let_go`, also after a failed job: its tasks are fenced, wherever they hang.

    Never fails: the next job or stream releases what is left. Does nothing if a successor took over, or if the job
    never had the shards.
    """
    commitment, options = job.plan.commitment, job.settings.options
    if commitment.head.opened is None:
        return
    try:
        step("let go")
        driver = resumed(commitment.home, commitment.head.opened)
        if driver is None:
            return
        waiting = sum(load.nbytes for load in driver.loads())
        if waiting > FLUSHED_AT_ONCE:
            _log.warning(
                "the rows of a batch write stay in the WAL, where plain Lance readers do not look",
                table=commitment.home.uri,
                bytes=waiting,
                advice="headgate checkpoint --scope all flushes them; a stream that starts does it as well",
            )
            return
        let_go(driver, job.table.shard_ids(), compaction=FinalCompaction(options.stop_seconds))
    except Exception as error:
        _log.warning(
            "a batch write has not let go of its shards; the next job or stream does",
            table=commitment.home.uri,
            error=str(error),
        )


def by_shard(frame: DataFrame, table: Table | Place) -> DataFrame:
    """The frame with all rows of a shard in one partition, as a batch write to a table with a key needs it.

    One shuffle. Rows lose their order, so keep the column that orders rows with the same key (`sequenceBy`). Raises
    InvalidInput.
    """
    table = as_table(table)
    sharding = table.sharding
    if not isinstance(sharding, Bucket):
        return frame.coalesce(1)
    from pyspark.sql.types import IntegerType, StructField, StructType

    column, n = sharding.column, sharding.n
    if column not in frame.columns:
        raise InvalidInput(
            f"The frame has no column {column!r}, by which the table is sharded; it has {frame.columns}."
        )
    kind = table.schema.field(column).type  # a narrower number has another hash

    def numbered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.append_column(_BUCKET, bucket_ids(batch.column(column).cast(kind), n))

    schema = StructType([*frame.schema.fields, StructField(_BUCKET, IntegerType())])
    placed: DataFrame = versions.to_tasks(frame.mapInArrow(numbered, schema), n, _BUCKET)
    return placed.drop(_BUCKET)


def _commitment(table: Table, settings: BatchSettings, head: Head) -> Commitment:
    named, job = settings.batch_id, "" if head.opened is None else head.opened.query_id
    return Commitment(
        hold=None,
        home=table.home,
        follows=False,
        head=replace(head, recent={}),
        batch=Batch(
            query_id=job,
            batch_id=0,
            opaque=() if named is None else (OpaqueRange(BATCH + named, None, job),),
            mode="memtable",
        ),
        attempt_id=uuid4().hex,
        shards={},
        dead_letters={},
        ordered=bool(table.primary_key),
    )


def _sharding(table: Table) -> Sharding:
    """The sharding of the rows. Raises InvalidInput if the rows do not determine their shard."""
    sharding = table.sharding
    if not isinstance(sharding, ByPartition):
        return sharding
    if not table.primary_key:
        # Any shard will do; a shard of its own belongs to no stream.
        return single()
    raise InvalidInput(
        "The table is sharded by topic partitions, and a batch write does not know which its keys are in.",
        table=table.uri,
        advice="write through a stream, or make the table with bucket() or single(); nothing was written",
    )


def _overtaken(home: TableHome) -> Fenced:
    return Fenced(
        "Another batch write, or a stream, has taken the table's shards over; nothing of this one is visible.",
        table=home.uri,
        stream=BATCH_STREAM,
        advice="run it again, with the same batchId; batch writes to one table go one after the other",
    )


def _spelled(argument: str) -> str:
    return "a stream's option decode" if argument == "decode" else as_option(argument)
