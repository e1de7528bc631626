"""A Spark of its own that schedules fairly and keeps an event log: batches run while a flush stands still.

Called with a folder; prints what the sink saw as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pyarrow as pa
from gated_store import behind
from pyspark.sql import DataFrame

import headgate
from headgate.streaming.session import local_session

SCHEMA = pa.schema([pa.field("value", pa.int64(), nullable=False)])
BATCHES = 4
PATIENCE = 60.0


def main(folder: Path) -> None:
    """Batches until one flush stands still, more batches, then the flush goes on."""
    log = folder / "events"
    log.mkdir()
    settings = {
        "spark.scheduler.mode": "FAIR",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": log.as_uri(),
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.compress": "false",
        "spark.executorEnv.PYTHONPATH": str(Path(__file__).parent),
    }
    spark = local_session(2, log_file=folder / "spark.log", settings=settings)
    gate = folder / "gate"
    gate.touch()
    table = behind(headgate.create_table(str(folder / "table"), SCHEMA, sharding=headgate.single()), gate)
    sink = headgate.ShardSink(table, stream="s", max_memtable_size=1, compact_sstables=2)

    def batch(frame: DataFrame, number: int) -> None:
        sink(frame, number)
        until(lambda: number < 1 or "flush" in (sink.maintenance.running if sink.maintenance else ()))
        if number + 1 == BATCHES:
            gate.unlink()

    numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 100).load().select("value")
    writer = numbers.writeStream.foreachBatch(batch).option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(processingTime="0 seconds").start()
    until(lambda: sink.last is not None and sink.last.batch_id + 1 >= BATCHES)
    query.stop()
    sink.wait_for_maintenance(PATIENCE)
    state = sink.maintenance
    sink.close()
    rows = table.scan().read_all().column("value").to_pylist()
    spark.stop()
    print(json.dumps({"flushes": state and state.flushes, "rows": len(rows), "distinct": len(set(rows))}))


def until(true: object) -> None:
    """Wait for something that another thread does."""
    end = time.monotonic() + PATIENCE
    while not true():  # type: ignore[operator]
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
