"""How a micro-batch of the commit log changes a mirror: rows to append, or the newest row of each key to merge."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headgate.errors import HeadgateError
from headgate.streaming.delta.tables import DeltaName, quoted
from headgate.table.table import open_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = "headgate_mirror_rows"
"""The view that a merge reads, in the query's own session."""

_APP = "spark.databricks.delta.write.txnAppId"
_VERSION = "spark.databricks.delta.write.txnVersion"


@dataclass(frozen=True)
class MirrorBatches:
    """The function for `foreachBatch`. Picklable.

    Every batch is one Delta transaction that also records its number under the query's id: a repeated batch, after a
    crash or from a run believed dead, changes nothing.
    """

    table: str
    target: str
    columns: tuple[str, ...]
    keys: tuple[str, ...]
    """None if rows are only appended."""
    query_id: str
    start: str
    """The checkpoint of the table that the mirror started from."""
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Bring the mirror up to the end of the batch. THIS WRITES."""
        if self.keys:
            self._merge(frame, batch_id)
        else:
            self._append(frame, batch_id)
        if batch_id == 1:
            # Batch 0 is done, so Spark no longer asks for the start of the query.
            with suppress(HeadgateError):
                open_table(self.table, storage_options=self.storage_options or None).drop_checkpoint(self.start)

    def _append(self, frame: DataFrame, batch_id: int) -> None:
        rows = frame.select(*map(quoted, self.columns))
        writer: Any = rows.write.format("delta").mode("append")
        writer = writer.option("txnAppId", self.query_id).option("txnVersion", str(batch_id))
        name = DeltaName(self.target)
        if name.path is not None:
            writer.save(name.path)
        else:
            writer.saveAsTable(name.given)

    def _merge(self, frame: DataFrame, batch_id: int) -> None:
        spark = frame.sparkSession
        newest(frame, self.columns, self.keys).createOrReplaceTempView(ROWS)
        with _transaction(spark, self.query_id, batch_id):
            spark.sql(merge_statement(DeltaName(self.target).sql, self.columns, self.keys))


def newest(frame: DataFrame, columns: Sequence[str], keys: Sequence[str]) -> DataFrame:
    """The last row of the batch per key, with `_deleted`.

    Rows of a shard are ordered by position and place. A key that changed its shard (after a topic had grown) did so
    between two of its stream's records.
    """
    from pyspark.sql import functions as f

    row = f.struct(*map(quoted, [*columns, "_deleted", "_sequence"])).alias("row")
    key = [f.col(quoted(name)) for name in keys]
    in_shard = frame.groupBy(*key, "_shard").agg(f.max_by(row, f.struct("_position", "_row")).alias("row"))
    last = in_shard.groupBy(*key).agg(f.max_by("row", "row._sequence").alias("row"))
    return last.select(*(f.col(f"row.{quoted(name)}") for name in [*columns, "_deleted"]))


def merge_statement(target: str, columns: Sequence[str], keys: Sequence[str]) -> str:
    """The SQL that brings a target up to the newest rows of its keys. Pure."""
    same = " AND ".join(f"t.{quoted(key)} = s.{quoted(key)}" for key in keys)
    changed = ", ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in columns)
    names = ", ".join(map(quoted, columns))
    values = ", ".join(f"s.{quoted(name)}" for name in columns)
    return (
        f"MERGE INTO {target} t USING {ROWS} s ON {same} "
        "WHEN MATCHED AND s._deleted THEN DELETE "
        f"WHEN MATCHED THEN UPDATE SET {changed} "
        f"WHEN NOT MATCHED AND NOT s._deleted THEN INSERT ({names}) VALUES ({values})"
    )


@contextmanager
def _transaction(spark: SparkSession, app: str, version: int) -> Iterator[None]:
    """Record the batch in the session's statements, like the options of a DataFrame writer."""
    spark.conf.set(_APP, app)
    spark.conf.set(_VERSION, str(version))
    try:
        yield
    finally:
        spark.conf.unset(_APP)
        spark.conf.unset(_VERSION)
