"""`headgate.session` and `headgate.run`, as a program of one's own uses them."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow as pa
import pytest

import headgate
from headgate.errors import InvalidInput
from headgate.streaming.spark.session import SparkFailed

pytestmark = pytest.mark.spark

BARE = """
from pyspark.sql import SparkSession
import headgate

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
try:
    headgate.session(spark)
except headgate.errors.HeadgateError as error:
    print(type(error).__name__, error)
"""


def begun(spark: Any, folder: Path, columns: str = "value") -> tuple[Any, headgate.ShardSink]:
    """A query of numbers into a table of one column."""
    table = headgate.create_table(folder / "table", "value bigint")
    sink = headgate.ShardSink(table, stream="rates")
    frame = spark.readStream.format("rate").option("rowsPerSecond", 20).load().select(columns)
    query = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(folder / "checkpoint")).start()
    return query, sink


def test_a_session_that_lacks_jars_is_told_all_of_them(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", BARE], capture_output=True, text=True, timeout=120, check=True)
    for part in ("JarsMissing", "spark-sql-kafka-0-10", "kafka-clients", "headgate jars show --comma"):
        assert part in done.stdout


def test_the_session_that_is_there_is_taken(spark: Any) -> None:
    assert headgate.session(spark) is spark
    assert headgate.session().sparkContext is spark.sparkContext
    with pytest.raises(InvalidInput, match="settings of an existing session"):
        headgate.session(spark, cores=2)


def test_what_ends_a_query_is_raised_as_the_error_that_it_is(spark: Any, tmp_path: Path) -> None:
    query, sink = begun(spark, tmp_path, "timestamp")
    with pytest.raises(InvalidInput, match="timestamp"):
        headgate.run(query, sink)
    assert not query.isActive


def test_an_error_of_spark_is_told_by_its_kind(spark: Any, tmp_path: Path) -> None:
    frame = spark.readStream.format("rate").load().selectExpr("raise_error('no such luck, secret=xyz') AS value")
    query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    with pytest.raises(SparkFailed) as failed:
        headgate.run(query)
    assert "xyz" not in str(failed.value)


def test_in_another_thread_it_waits_and_leaves_signals_alone(spark: Any, tmp_path: Path) -> None:
    query, sink = begun(spark, tmp_path)
    before = signal.getsignal(signal.SIGTERM)
    waiting = Thread(target=headgate.run, args=(query, sink))
    waiting.start()
    while not sink.table.count():
        assert query.isActive
    assert signal.getsignal(signal.SIGTERM) == before
    query.stop()
    waiting.join(60)
    assert not waiting.is_alive()
    assert pa.table(sink.table).num_rows > 0
