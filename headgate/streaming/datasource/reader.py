"""`spark.read.format("headgate")`: a table at one instant as a frame.

Spark plans in a separate process, once per frame, however often the frame is used: one `load` is one instant. Spark 4.0
plans once per query: there only a named checkpoint is one instant for all. Tasks read their parts themselves, so that
no row passes through the driver. The promises are those of `checkpoints.snapshots.splits`.

Spark 4.2 does not tell a Python source which columns a query needs, and its filter pushdown loses rows: a filter of one
query also applies to the next query on the same frame. So neither is taken from the query: columns come from
`.schema(…)`, filters from the option `filter`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark.sql.types import StructType

from headgate.caches import set_cache_bytes
from headgate.checkpoints.feed.rows import log_schema
from headgate.checkpoints.snapshots.parts import part_batches
from headgate.checkpoints.snapshots.splits import HOLD, ReadPart, ReadPlan, plan_at, plan_read
from headgate.connectors.lance.filters import check_filter
from headgate.errors import InvalidInput
from headgate.streaming.datasource.bases import DataSourceReader, InputPartition
from headgate.streaming.datasource.settings import absolute, without_catalog
from headgate.streaming.datasource.types import as_spark, check_columns, spark_schema
from headgate.streaming.options import READ_OPTIONS, ReadOptions, parse_options
from headgate.table.table import Table, open_table

_OF_STREAMS = ("consumer", "starting_from", "max_rows", "max_bytes", "max_batches", "poll_interval", "log")


class TableReader(DataSourceReader):
    """One planned read; `read` runs in its tasks."""

    def __init__(self, plan: ReadPlan, schema: StructType, options: ReadOptions) -> None:
        self._plan = plan
        self._schema = schema
        self._filter = options.filter
        self._cache_bytes = options.cache_bytes

    def partitions(self) -> list[InputPartition]:
        """One per part."""
        return [InputPartition(part) for part in self._plan.parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a part. A table without rows has one partition without a part."""
        if self._cache_bytes is not None:
            set_cache_bytes(self._cache_bytes)
        part: ReadPart | None = partition.value
        if part is None:
            return iter(())
        return as_spark(part_batches(self._plan, part, self._schema.fieldNames(), self._filter), self._schema)


def read_options(given: Mapping[str, str]) -> ReadOptions:
    """The options of a read. Raises InvalidInput."""
    return ReadOptions(**parse_options(without_catalog(given), table=READ_OPTIONS))


def opened(options: ReadOptions, checkpoint: str | None = None) -> Table:
    """The table of the options. Raises InvalidInput, NotFound."""
    uri = absolute(options.table, "table", ".load(uri)")
    return open_table(uri, storage_options=options.storage_options, checkpoint=checkpoint)


def read_schema(options: ReadOptions) -> StructType:
    """The columns of a read. The option `log` distinguishes `readStream` from `read`, because Spark does not."""
    if options.log:
        return spark_schema(log_schema(opened(options).home.schema))
    return spark_schema(opened(options, options.checkpoint).schema)


def table_reader(options: ReadOptions, schema: StructType) -> TableReader:
    """Plan a read. THIS WRITES a checkpoint that expires, unless a checkpoint is named or pinFor is never.

    Raises InvalidInput, NotFound, DataLoss, Transient.
    """
    refuse(options, _OF_STREAMS, "spark.read", "spark.readStream")
    table = opened(options, options.checkpoint)
    check_columns(schema, table.schema)
    if options.filter is not None:
        check_filter(table.home.schema.logical, options.filter)
    if table.at is not None:
        return TableReader(plan_at(table.home, table.at), schema, options)
    seconds = options.hold_seconds
    hold = HOLD if seconds is None else None if seconds == math.inf else seconds
    return TableReader(plan_read(table.home, table.shard_ids(), hold), schema, options)


def refuse(options: ReadOptions, arguments: tuple[str, ...], here: str, there: str) -> None:
    """Raises InvalidInput for an option of the other kind of read."""
    for option in READ_OPTIONS:
        if option.argument in arguments and getattr(options, option.argument) != option.default:
            raise InvalidInput(f"The option {option.name!r} works only with {there}, not with {here}.")
