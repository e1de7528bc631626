"""A Spark as a command has it, with an event log: batches run while a flush, then a compaction, then an index stands
still. Called with a folder, cores and the table's key, if it has one; prints what the sink saw as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headgate
from headgate.cli.spark import own_spark
from tests.streaming.maintenance.gated import KINDS, PATIENCE, READ_BY_DRIVER, behind

SCHEMA = pa.schema([pa.field("value", pa.int64(), nullable=False), pa.field("note", pa.string())])
BATCHES = 3
"""That must be committed while one job stands still."""


def main(folder: Path, cores: int, key: str | None) -> None:
    """Start Spark, print what `watched` tells."""
    log = folder / "events"
    log.mkdir()
    settings = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": log.as_uri(),
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.compress": "false",
    }
    with own_spark(cores, settings) as (spark, _):
        told = watched(spark, folder, key)
    print(json.dumps(told))


def watched(spark: SparkSession, folder: Path, key: str | None) -> dict[str, Any]:
    """Batches all the time; each gate is opened once enough of them went past it."""
    gates = folder / "gates"
    made = headgate.create_table(
        str(folder / "table"), SCHEMA, primary_key=key, sharding=headgate.single(), full_text="note"
    )
    table = behind(made, gates)
    sink = headgate.ShardSink(table, stream="s", max_memtable_size=1, compact_sstables=2, sequence_by=key)
    passed: dict[str, int] = {}

    def batch(frame: DataFrame, number: int) -> None:
        sink(frame, number)

    numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 100).load()
    rows = numbers.select("value", F.concat(F.lit("note "), F.col("value").cast("string")).alias("note"))
    writer = rows.writeStream.foreachBatch(batch).option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(processingTime="100 milliseconds").start()

    def committed() -> int:
        assert query.isActive, str(query.exception())
        return -1 if sink.last is None else sink.last.batch_id

    until(lambda: committed() >= 0)
    READ_BY_DRIVER.clear()  # a driver that opens reads who was there
    for kind in KINDS:
        until(lambda kind=kind: (gates / f"{kind}, reached").exists() or committed() < -1)  # type: ignore[misc]
        before = committed()
        until(lambda before=before: committed() >= before + BATCHES)  # type: ignore[misc]
        passed[kind] = committed() - before
        (gates / kind).unlink()
    # A batch that the stop breaks off takes the sink's driver and its maintenance with it.
    assert sink._run is not None
    maintenance = sink._run._maintenance
    query.stop()
    assert maintenance.wait_until_idle(PATIENCE)
    state, read = maintenance.state, list(READ_BY_DRIVER)
    sink.close()
    found = table.scan().read_all().column("value").to_pylist()
    hits = table.search("250", k=10).column("value").to_pylist()
    return {
        "passed": passed,
        "flushes": state.flushes,
        "compactions": state.compactions,
        "indexed": state.indexed,
        "failures": [one.error for one in state.failures],
        "rows": len(found),
        "distinct": len(set(found)),
        "hits": hits,
        "read_by_driver": read,
    }


def until(true: Callable[[], bool]) -> None:
    """Wait for something that another thread does."""
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] if sys.argv[3:] else None)
