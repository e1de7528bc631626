"""How old a record is when a reader in another process sees it, and when a search finds it.

`python -m benchmarks.freshness [--rates 1000,10000] [--triggers 0,1] [--seconds 20] [--only WORD,…]`

Age counts from the record's Kafka timestamp. One process produces at a steady rate, one reads what is new again and
again, one searches for the newest words; the stream runs in this one. Beside it Delta (read by its log, the quickest
way there is) and Lance fragments, one after the other in the same run. Records of the first seconds do not count.
"""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import structlog
from pyspark.sql import SparkSession
from rich.console import Console

import headgate
from benchmarks.freshness_parts import PARTITIONS
from benchmarks.report import output_option, show
from benchmarks.stream import _session
from headgate.dev.broker import LocalBroker

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("sent", pa.int64()), pa.field("note", pa.string())])
DDL = "id BIGINT, sent BIGINT, note STRING"
WARM_UP = 8.0
"""Seconds of records that do not count: the first batch takes the stream over and starts workers."""
PATIENCE = 60.0

Row = dict[str, Any]
Start = Callable[[SparkSession, str, str, Path], tuple[Any, Callable[[], object]]]


def ours(spark: SparkSession, servers: str, topic: str, folder: Path) -> tuple[Any, Callable[[], object]]:
    """headgate with MemTables and a full-text index, as a user would start it."""
    table = headgate.create_table(str(folder / "table"), SCHEMA, sharding=headgate.by_partition(), full_text="note")
    source = headgate.kafka.source(servers, topic)
    sink = headgate.ShardSink(table, source=source, decode=headgate.decode.json(SCHEMA), stream="s")
    return source.read(spark).writeStream.foreachBatch(sink), sink.close


def delta(spark: SparkSession, servers: str, topic: str, folder: Path) -> tuple[Any, Callable[[], None]]:
    """Delta append, with the options that make a repeated batch count once."""
    from pyspark.sql import functions as f

    app = uuid.uuid4().hex

    def write(frame: Any, batch_id: int) -> None:
        options = {"txnAppId": app, "txnVersion": str(batch_id)}
        frame.write.format("delta").mode("append").options(**options).save(str(folder / "table"))

    parsed = f.from_json(f.col("value").cast("string"), DDL).alias("row")
    return _frame(spark, servers, topic).select(parsed).select("row.*").writeStream.foreachBatch(write), lambda: None


def lance_fragments(spark: SparkSession, servers: str, topic: str, folder: Path) -> tuple[Any, Callable[[], None]]:
    """Tasks write fragments, the driver commits them as one version per batch."""
    import lance

    path = str(folder / "table")
    lance.write_dataset(SCHEMA.empty_table(), path)

    def fragments(batches: Any) -> Any:
        decode = headgate.decode.json(SCHEMA)
        rows = [decode.decode(batch.column("value")).rows for batch in batches]
        reader = pa.RecordBatchReader.from_batches(SCHEMA, rows)
        parts = lance.fragment.write_fragments(reader, path, schema=SCHEMA) if rows else []
        yield pa.record_batch({"fragment": pa.array([json.dumps(part.to_json()) for part in parts], pa.string())})

    def write(frame: Any, batch_id: int) -> None:
        made = frame.select("value").mapInArrow(fragments, "fragment string").collect()
        parts = [lance.FragmentMetadata.from_json(row[0]) for row in made]
        if parts:
            operation = lance.LanceOperation.Append(parts)
            lance.LanceDataset.commit(path, operation, read_version=lance.dataset(path).version)

    return _frame(spark, servers, topic).writeStream.foreachBatch(write), lambda: None


def _frame(spark: SparkSession, servers: str, topic: str) -> Any:
    return headgate.kafka.read(spark, servers, topic, max_offsets_per_trigger=200_000)


SINKS: dict[str, tuple[str, Start]] = {
    "headgate": ("headgate", ours),
    "Delta append": ("delta", delta),
    "Lance fragments + commit": ("lance", lance_fragments),
}


def measured(
    spark: SparkSession, broker: LocalBroker, name: str, rate: float, trigger: float, seconds: float, folder: Path
) -> list[Row]:
    """One stream: what a reader saw and, of ours, what a search found."""
    kind, start = SINKS[name]
    topic = f"t{uuid.uuid4().hex[:8]}"
    broker.create_topic(topic, PARTITIONS)
    folder.mkdir()
    writer, close = start(spark, broker.servers, topic, folder)
    query = (
        writer.trigger(processingTime=f"{trigger} seconds").option("checkpointLocation", str(folder / "state")).start()
    )
    since = time.time() + WARM_UP
    until = since + seconds
    uri = str(folder / "table")
    part = partial(_part, folder)
    try:
        producer = part("produce", broker.servers, topic, str(rate), str(until + 0.5))
        while kind == "delta" and not (folder / "table" / "_delta_log" / f"{0:020d}.json").exists():
            time.sleep(0.05)
        looks = {"seen by a reader": part("see", kind, uri, str(since), str(until), str(PATIENCE))}
        if kind == "headgate":
            looks["found by a search"] = part("find", uri, str(since), str(until), str(PATIENCE))
        made = _result(producer)
        rows = [
            {"sink": name, "rows/s": rate, "trigger s": trigger, "what": what, **_result(process)}
            for what, process in looks.items()
        ]
        rows[0]["producer's longest pause s"] = made["longest pause"]
        return rows
    finally:
        query.stop()
        close()
        shutil.rmtree(folder, ignore_errors=True)


def _part(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.freshness_parts", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _result(process: subprocess.Popen[str]) -> Row:
    printed, _ = process.communicate(timeout=600)
    if process.returncode:
        raise click.ClickException(f"{process.args} exits {process.returncode}.")
    return dict(json.loads(printed.splitlines()[-1]))


@click.command()
@click.option("--rates", default="1000,10000", show_default=True, help="Records a second.")
@click.option("--triggers", default="0,1", show_default=True, help="Seconds between batches, at least.")
@click.option("--seconds", default=20.0, show_default=True, help="Of records that count, per stream.")
@click.option("--only", default="", help="Sinks whose names contain one of these words, separated by commas.")
@click.option("--cores", default=2, show_default=True)
@output_option
def main(rates: str, triggers: str, seconds: float, only: str, cores: int, output: str) -> None:
    """Ages of records when they are seen and found: p50, p95, p99."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    words = [word for word in only.split(",") if word]
    names = [name for name in SINKS if not words or any(word in name for word in words)]
    folder, lines = Path(tempfile.mkdtemp(prefix="headgate-fresh-")), []
    console = Console(stderr=True)
    try:
        with LocalBroker(folder / "kafka") as broker, _session(cores) as spark:
            for rate in map(float, rates.split(",")):
                for trigger in map(float, triggers.split(",")):
                    for name in names:
                        rows = measured(spark, broker, name, rate, trigger, seconds, folder / "run")
                        lines += rows
                        console.print(*rows, sep="\n", style="dim")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    show(f"Age of records, local disk, {cores} cores", lines, output)


if __name__ == "__main__":
    main()
