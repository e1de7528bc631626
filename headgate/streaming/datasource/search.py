"""Search for Spark users: the rows that one search finds as a DataFrame, to join and filter on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headgate.connectors.lance.filters import Filter
from headgate.search.query.ranking import Match
from headgate.shards.home.stores import Place
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
    """The k rows of the table that fit a text best, with `_score`; see `Table.search`.

    The search runs here and now, in the driver (on Spark Connect, in the client), and the frame holds its hits:
    it does not change with the table. The rows are in no particular order once Spark has worked on them; order by
    `_score` where it matters. Writes nothing. Raises what `open_table` and `Table.search` raise.
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
    """The k rows of the table whose vectors are nearest to one, with `_distance`; see `Table.nearest`.

    As `search_df` it runs here and now, and the frame holds what it found; order by `_distance` where that matters.
    Spark shows vectors as arrays, and half floats as floats.
    """
    found = as_table(table, storage_options).nearest(
        vector, column=column, columns=columns, filter=filter, k=k, nprobes=nprobes, refine=refine
    )
    return _frame(spark, found)


def _frame(spark: SparkSession, found: pa.Table) -> DataFrame:
    """In the types that Spark has."""
    # It imports pyspark.
    from headgate.streaming.datasource.types import as_spark, spark_schema

    schema = spark_schema(found.schema)
    batches = found.to_batches() or [pa.RecordBatch.from_pylist([], schema=found.schema)]
    return spark.createDataFrame(pa.Table.from_batches(as_spark(batches, schema)), schema)
