"""What a Delta table holds, beside what it must hold."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headgate.streaming.delta.ledger_feed import LedgerFeed
from headgate.streaming.delta.ledger_rows import LedgerKey, ledger_table
from headgate.table.table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def until(condition: Callable[[], bool]) -> None:
    """Wait for what a thread does; the first Delta transaction of a JVM takes seconds, on a busy machine many."""
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.1)


@contextmanager
def catalog_name(spark: SparkSession) -> Iterator[str]:
    """The name of a table in Spark's catalog, which is dropped after the block."""
    name = f"default.t_{uuid.uuid4().hex}"
    try:
        yield name
    finally:
        spark.sql(f"DROP TABLE IF EXISTS {name}")


def rows_of(spark: SparkSession, path: Path | str) -> Counter[str]:
    """All rows, whatever their order, of a path or a table in the catalog."""
    found = (spark.read.format("delta").load(str(path)) if "/" in str(path) else spark.table(str(path))).collect()
    return Counter(repr(sorted(row.asDict().items())) for row in found)


def table_rows(table: Table) -> Counter[str]:
    """The same of a table."""
    found: list[dict[str, Any]] = table.scan().read_all().to_pylist()
    return Counter(repr(sorted(row.items())) for row in found)


def check_mirror(spark: SparkSession, table: Table, path: Path | str) -> None:
    """Row by row, both ways."""
    mirror, wanted = rows_of(spark, path), table_rows(table)
    assert mirror - wanted == Counter(), "rows that the table does not have"
    assert wanted - mirror == Counter(), "rows that the mirror does not have"


def check_ledger(spark: SparkSession, table: Table, path: Path | str, stream: str = "s") -> list[dict[str, Any]]:
    """The ledger has the rows of each record that the log has, once. They."""
    found = [row.asDict() for row in spark.read.format("delta").load(str(path)).collect()]
    own = [row for row in found if (row["table_id"], row["stream"]) == (str(table.table_id), stream)]
    feed = LedgerFeed(table.home, stream)
    key = LedgerKey(str(table.table_id), table.uri, stream)
    parts = feed.read(feed.lost_upto()).parts
    wanted = ledger_table(key, table.sharding, parts).to_pylist()
    kept = [row for row in own if row["sequence"] > feed.lost_upto()]
    assert Counter(map(_plain, kept)) == Counter(map(_plain, wanted))
    return own


def _plain(row: dict[str, Any]) -> str:
    """Spark gives times without their zone."""
    return repr(sorted((name, str(value)[:19] if "_at" in name else value) for name, value in row.items()))


def offset_query(sql: str, ledger: Path | str, topic: str, partition: int, offset: int) -> str:
    """The SQL of a page, for another ledger and another offset."""
    known = {
        "`/lake/ledger`": f"`{ledger}`",
        "'orders'": f"'{topic}'",
        "partition = 3": f"partition = {partition}",
        "1234567": str(offset),
    }
    for old, new in known.items():
        assert old in sql
        sql = sql.replace(old, new)
    return sql
