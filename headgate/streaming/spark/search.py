"""Search for Spark users: the hits of one search as a DataFrame, to join and filter on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from headgate.connectors.lance.filters import Filter
from headgate.search.query.ranking import Match
from headgate.table.table import open_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def search_df(
    spark: SparkSession,
    uri: str,
    text: str,
    k: int = 10,
    *,
    column: str | None = None,
    match: Match = "any",
    filter: Filter | None = None,
    columns: Sequence[str] | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> DataFrame:
    """The k rows of the table at `uri` that fit a text best, with `_score`; see `Table.search`.

    The search runs here and now, in the driver (on Spark Connect, in the client), and the frame holds its hits:
    it does not change with the table. The rows are in no particular order once Spark has worked on them; order by
    `_score` where it matters. Writes nothing. Raises what `open_table` and `Table.search` raise.
    """
    found = open_table(uri, storage_options).search(text, column, k, filter, columns, match=match)
    return spark.createDataFrame(found)
