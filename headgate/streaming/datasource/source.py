"""`format("headgate")`: Spark's Python data source. Reading is in `reader` and `log_reader`; writing is here.

`writeStream.format("headgate")` is the same stream as ShardSink's. Spark calls it in three kinds of Python processes,
none of which lives as long as the query: per batch one that plans (on the driver's host), one per task, one that
commits (on the driver's host). So the commit log is the state, and the plan travels through the tasks to the commit.
Promises:
1. Exactly once, as with ShardSink: one record makes a batch visible, on all shards together, or not at all.
2. A run whose stream was taken over gets Fenced and never takes it back; starting it again does.
3. Planning reads new records of the log, tasks only write entries, the commit is one PUT.

Limits: a data source cannot shuffle, so on a table with a key all rows of a shard must be in one task; and it cannot
start Spark jobs, so nothing is flushed (a restart of the stream with ShardSink flushes).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, cast

import pyarrow as pa
from pyspark import SparkFiles, TaskContext
from pyspark.accumulators import _accumulatorRegistry
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.types import StructType
from structlog.contextvars import bound_contextvars

from headgate.errors import InvalidInput, Poisoned
from headgate.spark import versions
from headgate.streaming.datasource.append import Append, commit_append, end_append, opened, plan_append
from headgate.streaming.datasource.bases import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from headgate.streaming.datasource.log_reader import LogReader
from headgate.streaming.datasource.memory import forget_runs
from headgate.streaming.datasource.plan import BatchPlan, TaskResult, commit_batch, plan_batch
from headgate.streaming.datasource.reader import TableReader, read_options, read_schema, table_reader
from headgate.streaming.datasource.settings import BatchSettings, Settings
from headgate.streaming.datasource.task import write_batch
from headgate.streaming.datasource.upkeep import maintain
from headgate.streaming.options import session_defaults
from headgate.streaming.write.checks import refuse_complete

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = "headgate"


def register(spark: SparkSession) -> None:
    """Register `format("headgate")` in a session, with the session's `spark.headgate.*` settings as defaults.

    Raises InvalidInput for a setting that does not exist.
    """
    defaults = session_defaults(versions.settings_of(spark))
    source = type("HeadgateDataSource", (HeadgateDataSource,), {"session": defaults})
    spark.dataSource.register(source)
    if getattr(spark, "_jsparkSession", None) is not None:
        # Not on Spark Connect, where every run has its own folder.
        spark.streams.addListener(_Starts())


class HeadgateDataSource(DataSource):
    """A table as a source, and a sink for streams and frames in append mode.

    Register it with `headgate.register(spark)`; or register the class itself, without session defaults.
    """

    session: ClassVar[Mapping[str, str]] = {}
    """Defaults by option name."""
    _keeps = False

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return NAME

    def __init__(self, options: Any) -> None:
        """Called only by Spark, in a process of its own."""
        super().__init__(options)
        versions.drop_empty_profiles(_accumulatorRegistry)

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Spark makes one instance per batch to plan with, and keeps another one pickled to commit with.
        versions.drop_empty_profiles(_accumulatorRegistry)
        self.__dict__.update(state)
        self._keeps = True

    def schema(self) -> StructType:
        """The columns of a read. Raises InvalidInput, NotFound."""
        return read_schema(read_options(dict(self.options)))

    def reader(self, schema: StructType) -> TableReader:
        """A read of the table at one instant: planned in Spark's planning process. See `table_reader`."""
        return table_reader(read_options(dict(self.options)), schema)

    def streamReader(self, schema: StructType) -> LogReader:
        """The commit logs as a stream. See `LogReader`."""
        return LogReader(read_options(dict(self.options)), schema)

    def writer(self, schema: StructType, overwrite: bool) -> FrameWriter:
        """The writer of one frame, planned where Spark plans: IT FENCES AN EARLIER BATCH WRITE. See `plan_append`.

        Raises InvalidInput for mode overwrite and invalid options.
        """
        if overwrite:
            raise InvalidInput(
                "mode('overwrite') would delete the table's rows, and format('headgate') only adds.",
                advice="use mode('append'); rows with a key that is there replace it; nothing was written",
            )
        settings = BatchSettings.of(dict(self.options), self.session)
        return FrameWriter(plan_append(opened(settings), settings, schema.fieldNames()))

    def streamWriter(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """The writer of one batch: planned in Spark's planning process. THE FIRST BATCH FENCES AN EARLIER DRIVER.

        Raises InvalidInput for invalid options and output modes; see `plan_batch` for the rest.
        """
        if overwrite:
            refuse_complete("use outputMode append")
        settings = Settings.of(dict(self.options), self.session)
        if self._keeps:
            return BatchWriter(None, settings)
        return BatchWriter(plan_batch(settings, schema.fieldNames(), SparkFiles.getRootDirectory()))


class _Starts(StreamingQueryListener):
    """Distinguishes a restart from a paused run; within one application only Spark's events can.

    Without it, a restart after another driver had the stream would fail once with Fenced.
    """

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Comes before the run plans its first batch."""
        forget_runs(SparkFiles.getRootDirectory(), str(event.id))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        pass

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        pass


@dataclass(frozen=True)
class TaskMessage(WriterCommitMessage):
    """A task's result, as a message to the commit."""

    result: TaskResult


class BatchWriter(DataSourceStreamArrowWriter):
    """One batch: `write` runs in its tasks, `commit` once after them."""

    def __init__(self, plan: BatchPlan | None, settings: Settings | None = None) -> None:
        self._plan = plan
        self._settings = settings

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        """Append this task's rows. Errors that a retry cannot fix are raised at the commit."""
        plan = self._plan
        if plan is None:
            raise Poisoned("A task was started for an unplanned batch.", advice="report this as a bug")
        _check_task(plan)
        return TaskMessage(write_batch(plan, iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Make the batch visible, see `commit_batch`; then maintain the table, see `maintain`."""
        results = [cast("TaskMessage", message).result for message in messages]
        record = commit_batch(results, batchId)
        if record is not None and self._settings is not None:
            hold = results[0].commitment.hold
            assert hold is not None, "a batch of a stream has one"
            with bound_contextvars(query=record.query_id, batch=batchId, stream=record.stream):
                maintain(self._settings, hold, record.sequence)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Does nothing: entries that no record lists are never visible."""


class FrameWriter(DataSourceArrowWriter):
    """One frame of `df.write`: `write` runs in its tasks, `commit` or `abort` once after them."""

    def __init__(self, job: Append) -> None:
        self._job = job

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        """Append this task's rows. Errors that a retry cannot fix are raised at the commit."""
        return TaskMessage(write_batch(self._job.plan, iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make the frame visible, see `commit_append`."""
        commit_append(self._job, [cast("TaskMessage", message).result for message in messages])

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Release the shards. Entries that no record lists are never visible."""
        end_append(self._job)


def _check_task(plan: BatchPlan) -> None:
    """Check that query and batch, which the plan took from Spark's checkpoint, are those that Spark gives the task."""
    context = TaskContext.get()
    assert context is not None
    found = context.getLocalProperty("sql.streaming.queryId"), context.getLocalProperty("streaming.sql.batchId")
    batch = plan.commitment.batch
    if found != (batch.query_id, str(batch.batch_id)):
        raise Poisoned(
            f"Batch {batch.batch_id} of query {batch.query_id} was planned, but this is batch {found[1]} of "
            f"query {found[0]}.",
            advice="check that no other query uses this checkpointLocation",
        )
