"""Kafka → Spark → table: headgate beside Spark's own sinks, Delta and Lance fragments, in one run.

`python -m benchmarks.stream [--rows N] [--batch-rows 100000,20000] [--rounds N] [--only NAME,…]`

One topic of JSON rows of about 180 bytes in 4 partitions. Every candidate reads all of it with the
same offsets per trigger; a warm-up round of each comes first. CPU seconds are those of this process,
the JVM and the Python workers together.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import psutil
import pyarrow as pa
import structlog
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from rich.console import Console

import headgate
from benchmarks.report import output_option, show
from headgate.connectors.jars import spark_jars
from headgate.connectors.kafka.broker import LocalBroker

PARTITIONS = 4
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("customer", pa.string()),
        pa.field("amount", pa.float64()),
        pa.field("note", pa.string()),
    ]
)
DDL = "id BIGINT, customer STRING, amount DOUBLE, note STRING"


@dataclass(frozen=True)
class Bench:
    """What every candidate is given."""

    spark: SparkSession
    servers: str
    topic: str
    folder: Path
    batch_rows: int

    def frame(self) -> DataFrame:
        """The bare source."""
        return headgate.kafka.read(self.spark, self.servers, self.topic, self.batch_rows)

    def typed(self) -> DataFrame:
        """Rows by Spark's own parser."""
        parsed = f.from_json(f.col("value").cast("string"), DDL).alias("row")
        return self.frame().select(parsed).select("row.*")

    def table(self, sharding: Any) -> Any:
        """A new table."""
        return headgate.create_table(str(self.folder / f"table-{uuid.uuid4().hex}"), SCHEMA, sharding=sharding)


Start = Callable[[Bench], Any]
"""Makes the writer of a query."""


def _noop(bench: Bench) -> Any:
    return bench.frame().writeStream.format("noop")


def _from_json_noop(bench: Bench) -> Any:
    return bench.typed().writeStream.format("noop")


def _headgate(sharding: Any, direct: bool, memtable: bool, bench: Bench) -> Any:
    table = bench.table(sharding)
    decode = headgate.decode.json(SCHEMA)
    # A small MemTable, so that flushes fall into the run.
    options: dict[str, Any] = {"enable_memtable": memtable, "max_memtable_size": 16 << 20}
    if direct:
        source = headgate.kafka.source(bench.servers, bench.topic, bench.batch_rows)
        sink = headgate.ShardSink(table, decode=decode, source=source, **options)
        frame = source.read(bench.spark)
    else:
        sink = headgate.ShardSink(table, decode=decode, **options)
        frame = bench.frame()
    return frame.writeStream.foreachBatch(sink)


def _delta(bench: Bench) -> Any:
    path = str(bench.folder / f"delta-{uuid.uuid4().hex}")
    app = uuid.uuid4().hex

    def write(frame: DataFrame, batch_id: int) -> None:
        frame.write.format("delta").mode("append").option("txnAppId", app).option("txnVersion", batch_id).save(path)

    return bench.typed().writeStream.foreachBatch(write)


def _write_fragment(uri: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import lance

    decode = headgate.decode.json(SCHEMA)
    rows = [decode.decode(batch.column("value")).rows for batch in batches]
    written = []
    if rows:
        reader = pa.RecordBatchReader.from_batches(SCHEMA, rows)
        written = [json.dumps(part.to_json()) for part in lance.fragment.write_fragments(reader, uri, schema=SCHEMA)]
    yield pa.record_batch({"fragment": pa.array(written, pa.string())})


def _lance_fragments(bench: Bench) -> Any:
    import lance

    uri = str(bench.folder / f"lance-{uuid.uuid4().hex}")
    lance.write_dataset(SCHEMA.empty_table(), uri)

    def write(frame: DataFrame, batch_id: int) -> None:
        made = frame.select("value").mapInArrow(partial(_write_fragment, uri), "fragment string").collect()
        parts = [lance.FragmentMetadata.from_json(row[0]) for row in made]
        dataset = lance.dataset(uri)
        lance.LanceDataset.commit(uri, lance.LanceOperation.Append(parts), read_version=dataset.version)

    return bench.frame().writeStream.foreachBatch(write)


CANDIDATES: dict[str, Start] = {
    "raw → noop": _noop,
    "from_json → noop": _from_json_noop,
    "headgate WAL-only, direct": partial(_headgate, headgate.by_partition(), True, False),
    "headgate WAL-only, mapInArrow": partial(_headgate, headgate.by_partition(), False, False),
    "headgate WAL-only, bucket(4)": partial(_headgate, headgate.bucket("id", 4), True, False),
    "headgate MemTable, direct": partial(_headgate, headgate.by_partition(), True, True),
    "Delta append": _delta,
    "Lance fragments + commit": _lance_fragments,
}


@dataclass(frozen=True)
class Measured:
    """One run of one candidate."""

    rows_per_s: float
    cpu_s: float
    batch_ms: list[float]


def _run(bench: Bench, start: Start, rows: int) -> Measured:
    writer = start(bench)
    checkpoint = bench.folder / f"checkpoint-{uuid.uuid4().hex}"
    cpu, began = _cpu_seconds(), time.perf_counter()
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    took, used = time.perf_counter() - began, _cpu_seconds() - cpu
    progress = [p for p in query.recentProgress if p.numInputRows or p.durationMs.get("addBatch")]
    batches = [float(p.durationMs["triggerExecution"]) for p in progress]
    return Measured(rows / took, used, batches)


def _cpu_seconds() -> float:
    me = psutil.Process()
    total = 0.0
    for process in [me, *me.children(recursive=True)]:
        try:
            times = process.cpu_times()
            total += times.user + times.system
        except psutil.Error:
            continue
    return total


@contextmanager
def _session(cores: int) -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master(f"local[{cores}]")
        .config("spark.jars", ",".join(map(str, spark_jars())))
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", str(cores))
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .config("spark.databricks.delta.snapshotPartitions", "2")
        .config("spark.sql.streaming.numRecentProgressUpdates", "1000")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


def _produce(servers: str, topic: str, rows: int) -> None:
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000})
    for i in range(rows):
        value = (
            f'{{"id":{i},"customer":"customer-{i % 9973:06d}","amount":{i % 1000}.25,'
            f'"note":"order {i} was placed by the shop and waits for the courier to pick it up at gate {i % 97}"}}'
        )
        producer.produce(topic, value, partition=i % PARTITIONS)
        if i % 10_000 == 0:
            producer.poll(0)
    producer.flush()


@click.command()
@click.option("--rows", default=1_000_000, show_default=True, help="Rows in the topic.")
@click.option("--batch-rows", default="100000,20000", show_default=True, help="Offsets per trigger, one table each.")
@click.option("--rounds", default=2, show_default=True, help="Measured rounds after the warm-up.")
@click.option("--only", default="", help="Candidates whose names contain one of these words, separated by commas.")
@click.option("--cores", default=2, show_default=True)
@output_option
def main(rows: int, batch_rows: str, rounds: int, only: str, cores: int, output: str) -> None:
    """Rows per second, CPU and batch times of every sink, side by side."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    words = [word for word in only.split(",") if word]
    chosen = {name: start for name, start in CANDIDATES.items() if not words or any(word in name for word in words)}
    console = Console(stderr=True)
    folder = Path(tempfile.mkdtemp(prefix="headgate-bench-"))
    try:
        with LocalBroker(folder / "kafka") as broker, _session(cores) as spark:
            broker.create_topic("orders", PARTITIONS)
            _produce(broker.servers, "orders", rows)
            for size in map(int, batch_rows.split(",")):
                _table(Bench(spark, broker.servers, "orders", folder, size), chosen, rows, rounds, console, output)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _table(bench: Bench, chosen: dict[str, Start], rows: int, rounds: int, console: Console, output: str) -> None:
    runs: dict[str, list[Measured]] = {name: [] for name in chosen}
    for number in range(rounds + 1):
        for name, start in chosen.items():
            measured = _run(bench, start, rows)
            console.print(f"round {number}: {name}: {measured.rows_per_s:,.0f} rows/s", style="dim")
            if number:
                runs[name].append(measured)
    base = statistics.median(m.rows_per_s for m in runs[next(iter(chosen))])
    lines = []
    for name, taken in runs.items():
        rate = statistics.median(m.rows_per_s for m in taken)
        batches = sorted(ms for m in taken for ms in m.batch_ms)
        lines.append(
            {
                "sink": name,
                "rows/s": rate,
                f"/ {next(iter(chosen))}": rate / base,
                "cpu s": statistics.median(m.cpu_s for m in taken),
                "p50 ms": statistics.median(batches),
                "p95 ms": batches[int(len(batches) * 0.95)] if batches else 0.0,
            }
        )
    show(f"{rows:,} rows, {bench.batch_rows:,} per batch, medians of {rounds} rounds", lines, output)


if __name__ == "__main__":
    main()
