"""The Delta table of a ledger: its progress, and idempotent writes of rows.

Rows are written by replacing a range of sequences in one Delta transaction: rows of the same records, from another
driver or an earlier try, are replaced by the same rows. While a stream runs, the transaction also records the last
sequence under an id of table and stream (txnAppId, txnVersion), so a late driver changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headgate.streaming.delta.ledger_rows import LEDGER, LEDGER_SCHEMA, LedgerKey, TopicPartition
from headgate.streaming.delta.tables import DeltaName, text
from headgate.streaming.spark.jobs import named

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

PROPERTIES = {"delta.autoOptimize.autoCompact": "true"}
"""Every batch is a small file; Delta merges them automatically."""


class LedgerTable:
    """The rows of one stream in a ledger."""

    def __init__(self, spark: SparkSession, name: DeltaName, key: LedgerKey) -> None:
        self._spark = spark
        self.name = name
        self._key = key

    def create(self) -> None:
        """Create the table if it does not exist, by writing no rows; two drivers may do this at once. THIS WRITES."""
        if not self.name.exists(self._spark):
            empty = self._spark.createDataFrame([], _columns())
            self._saved(empty.write.format("delta").mode("append").options(**PROPERTIES))

    def stands_at(self, upto: int | None = None) -> int:
        """The last sequence with rows, up to a limit; 0 before the first."""
        limit = "" if upto is None else f" AND sequence <= {upto}"
        (row,) = self._sql(f"SELECT max(sequence) FROM {self.name.sql} WHERE {self._own}{limit}").collect()
        return int(row[0] or 0)

    def ends(self, upto: int) -> Mapping[TopicPartition, int]:
        """The end of the ranges per partition, up to a sequence."""
        found = self._sql(
            f"SELECT topic, partition, max(until_offset) FROM {self.name.sql} "
            f"WHERE {self._own} AND sequence <= {upto} AND topic IS NOT NULL GROUP BY topic, partition"
        ).collect()
        return {(str(row[0]), int(row[1])): int(row[2]) for row in found}

    def count(self, above: int = 0) -> int:
        """Number of rows above a sequence."""
        (row,) = self._sql(f"SELECT count(*) FROM {self.name.sql} WHERE {self._own} AND sequence > {above}").collect()
        return int(row[0])

    def put(self, rows: pa.Table, above: int, upto: int) -> None:
        """Write the rows of a range of sequences, unless a later range was already written. THIS WRITES."""
        self._write(rows, above, upto, version=upto)

    def replace(self, rows: pa.Table, above: int, upto: int | None = None) -> None:
        """Replace all rows of a range of sequences. THIS WRITES."""
        self._write(rows, above, upto, version=None)

    def _write(self, rows: pa.Table, above: int, upto: int | None, version: int | None) -> None:
        where = f"{self._own} AND sequence > {above}" + ("" if upto is None else f" AND sequence <= {upto}")
        frame: DataFrame = self._spark.createDataFrame(rows, _columns()).coalesce(1)
        writer: Any = frame.write.format("delta").mode("overwrite").option("replaceWhere", where)
        if version is not None:
            app = f"headgate-ledger:{self._key.table_id}:{self._key.stream}"
            writer = writer.option("txnAppId", app).option("txnVersion", str(version))
        self._saved(writer)

    def _saved(self, writer: Any) -> None:
        with named(self._spark, f"headgate: ledger of {self._key.table_uri}"):
            if self.name.path is not None:
                writer.save(self.name.path)
            else:
                writer.saveAsTable(self.name.given)

    def _sql(self, statement: str) -> DataFrame:
        with named(self._spark, f"headgate: ledger of {self._key.table_uri}"):
            return self._spark.sql(statement)

    @property
    def _own(self) -> str:
        return f"table_id = {text(self._key.table_id)} AND stream = {text(self._key.stream)}"


def _columns() -> StructType:
    # Loaded here: a process that only plans or pickles a sink needs no Spark.
    from pyspark.sql.types import StructField, StructType

    from headgate.streaming.datasource.types import spark_schema

    plain = spark_schema(LEDGER_SCHEMA)
    return StructType([StructField(one.name, one.dataType, True, {"comment": LEDGER[one.name][1]}) for one in plain])
