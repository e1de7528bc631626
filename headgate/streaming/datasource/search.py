"""Search for Spark users: the hits as a DataFrame, to join and filter."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headgate.connectors.lance.filters import Filter
from headgate.search.query.ranking import Match
from headgate.shards.home.stores import Place
from headgate.spark import versions
from headgate.table.reads import Columns
from headgate.table.table import Table, as_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def search_df(
    spark: SparkSession,
    table: Table | Place,
    text: str,
    *,
    column: str | None = None,
    columns: Columns = None,
    filter: Filter | None = None,
    k: int = 10,
    match: Match = "any",
    storage_options: Mapping[str, str] | None = None,
) -> DataFrame:
    """The k rows of the table that match a text best, with `_score`; see `Table.search`.

    The search runs immediately, in the driver (on Spark Connect, in the client), and the frame holds the hits: it does
    not change with the table. Spark does not keep the order of the rows; order by `_score` if it matters. Writes
    nothing. Raises as `open_table` and `Table.search` do.
    """
    found = as_table(table, storage_options).search(
        text, column=column, columns=columns, filter=filter, k=k, match=match
    )
    return _frame(spark, found)


def nearest_df(
    spark: SparkSession,
    table: Table | Place,
    vector: Any,
    *,
    column: str | None = None,
    columns: Columns = None,
    filter: Filter | None = None,
    k: int = 10,
    nprobes: int | None = None,
    refine: int | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> DataFrame:
    """The k rows of the table nearest to a vector, with `_distance`; see `Table.nearest`.

    Like `search_df` it runs immediately, and the frame holds the result; order by `_distance` if it matters. Spark
    shows vectors as arrays, and half floats as floats.
    """
    found = as_table(table, storage_options).nearest(
        vector, column=column, columns=columns, filter=filter, k=k, nprobes=nprobes, refine=refine
    )
    return _frame(spark, found)


def _frame(spark: SparkSession, found: pa.Table) -> DataFrame:
    """The hits as a frame, in Spark's types."""
    # Imported here, because it imports pyspark.
    from headgate.streaming.datasource.types import as_spark, spark_schema

    schema = spark_schema(found.schema)
    batches = found.to_batches() or [pa.RecordBatch.from_pylist([], schema=found.schema)]
    made = pa.Table.from_batches(as_spark(batches, schema))
    if versions.takes_arrow_tables():
        return spark.createDataFrame(made, schema)
    return spark.range(0, 1, 1, 1).mapInArrow(partial(_rows_of, made), schema)


def _rows_of(found: pa.Table, one: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in a task: yields the hits; the frame's own rows are ignored."""
    for _ in one:
        yield from found.to_batches()
