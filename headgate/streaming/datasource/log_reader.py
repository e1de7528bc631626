"""`spark.readStream.format("headgate")`: the commit logs of a table as a stream.

One process beside Spark's driver reads the heads of the logs and plans batches, for as long as the query runs; tasks
read the entries of one shard each. Offsets are {stream: sequence}. The promises are those of `checkpoints.feed.feed`.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.types import StructType

from headgate.checkpoints.feed.feed import HOLD, LogFeed, Start
from headgate.checkpoints.feed.offsets import Limit, Offsets
from headgate.checkpoints.feed.rows import log_batches, log_schema
from headgate.errors import InvalidInput
from headgate.shards.home.stores import Place, place
from headgate.spark import versions
from headgate.streaming.datasource.bases import DataSourceStreamReader, InputPartition, SupportsTriggerAvailableNow
from headgate.streaming.datasource.reader import opened, refuse
from headgate.streaming.datasource.types import as_spark, check_columns
from headgate.streaming.options import ReadOptions
from headgate.table.table import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.datasource import ReadLimit

_OF_BATCHES = ("filter", "cache_bytes")


class LogReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One run of a query. Also created in the tasks' planner, so it writes nothing before it is asked for an offset."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        """Raises InvalidInput, NotFound."""
        refuse(options, _OF_BATCHES, "spark.readStream", "spark.read")
        table = opened(options)
        check_columns(schema, log_schema(table.home.schema))
        if table.primary_key and "_deleted" not in schema.fieldNames():
            raise InvalidInput(
                "The table has a primary key: without the column _deleted, deleted rows look like new ones.",
                table=table.uri,
                advice="set .option('log', 'true'), or use headgate.read_log(spark, uri)",
            )
        if options.hold_seconds == math.inf:
            raise InvalidInput(
                "pinFor must be a duration, not never: a consumer holds log records until it has read them."
            )
        self._limit = _limit(options)
        self._options = options
        self._schema = schema
        self._home = table.home
        self._feed: LogFeed | None = None
        self._target: Offsets | None = None
        self._last: dict[str, int] = {}

    # -- in the process beside the driver ------------------------------------------------

    def initialOffset(self) -> dict[str, int]:
        """The start of a new query. THIS WRITES a pin."""
        where: Start = self._options.starting_from
        if self._options.checkpoint is not None:
            at = opened(self._options, self._options.checkpoint).at
            assert at is not None
            where = at
        return _ordered(self._reading().start(where))

    def getDefaultReadLimit(self) -> ReadLimit:
        return _of_spark(self._limit)

    def latestOffset(self, start: dict[str, int] | None = None, limit: ReadLimit | None = None) -> dict[str, int]:
        """The end of the next batch; without `start`, which Spark passes since 4.2, the end of the logs."""
        if start is None:
            self._last |= self._reading().tips()
            return _ordered(self._last)
        found = self._reading().latest(start, None if _is_all(limit) else self._limit)
        if self._target is None:
            return _ordered(found)
        target = self._target
        return _ordered({one: max(start.get(one, 0), min(at, target.get(one, 0))) for one, at in found.items()})

    def reportLatestOffset(self) -> dict[str, int] | None:
        """The end of the logs, for the query's progress."""
        return _ordered(self._reading().tips())

    def prepareForTriggerAvailableNow(self) -> None:
        """Leave later batches for the next run."""
        self._target = dict(self._reading().tips())

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """One per shard with rows."""
        return [InputPartition(part) for part in self._reading().plan(start, end)]

    def commit(self, end: dict[str, int]) -> None:
        """Move the pin past what was read."""
        self._reading().done(end)

    def stop(self) -> None:
        """Does nothing: the pin stays for the next run, until it expires."""

    def _reading(self) -> LogFeed:
        if self._feed is None:
            options, home = self._options, self._home
            consumer = options.consumer or f"query-{uuid.uuid4().hex}"
            hold = HOLD if options.hold_seconds is None else options.hold_seconds
            self._feed = LogFeed(home, opened(options).shard_ids, consumer, hold, options.poll_seconds)
        return self._feed

    # -- in tasks --------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one shard."""
        return as_spark(log_batches(self._home, partition.value), self._schema)


def read_log(spark: SparkSession, table: Table | Place, **options: Any) -> DataFrame:
    """The commit logs of a table as a streaming frame, with `_stream`, `_sequence`, `_shard`, `_position`, `_row` and
    `_deleted`; `options` as in `readStream.option`. Call `headgate.register(spark)` first.
    """
    if isinstance(table, Table):
        options = {**{f"storage.{name}": text for name, text in (table.storage_options or {}).items()}, **options}
    uri = table.uri if isinstance(table, Table) else place(table)
    return spark.readStream.format("headgate").option("log", "true").options(**options).load(uri)


def _limit(options: ReadOptions) -> Limit | None:
    given = [one for one in (options.max_rows, options.max_bytes, options.max_batches) if one is not None]
    if len(given) > 1:
        raise InvalidInput("Give only one limit per batch: rows, bytes or committed batches.")
    if not given:
        return None
    versions.check_read_limits()
    return Limit(options.max_rows, options.max_bytes, options.max_batches)


def _of_spark(limit: Limit | None) -> ReadLimit:
    from pyspark.sql.streaming import datasource

    if limit is None:
        return datasource.ReadAllAvailable()
    if limit.rows is not None:
        return datasource.ReadMaxRows(limit.rows)
    if limit.nbytes is not None:
        return datasource.ReadMaxBytes(limit.nbytes)
    assert limit.batches is not None
    return datasource.ReadMaxFiles(limit.batches)


def _is_all(limit: ReadLimit | None) -> bool:
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    return isinstance(limit, ReadAllAvailable)


def _ordered(offsets: Mapping[str, int]) -> dict[str, int]:
    """The offsets in a fixed order: Spark compares them as text."""
    return dict(sorted(offsets.items()))
