"""Kafka → Spark → table: headgate beside Spark's own sinks, Delta and Lance fragments, in one run.

`python -m benchmarks.stream [--rows N] [--batch-rows 100000,20000] [--rounds N] [--only WORD,…]`

One topic of JSON rows of about 180 bytes in 4 partitions. Every sink reads all of it with the same offsets per
trigger; after a warm-up round they take turns, starting with another one each round, and ratios are medians of the
rounds' own. CPU seconds are those of this process, the JVM and the Python workers; the broker's are left out.

The one line that must hold: a batch of a WAL-only stream costs a PUT per entry of rows or dead letters and one for
its commit record; no GET, no LIST. (The fold of the log, every 32 records, is no part of a batch: it runs beside
them.) Exits 1 where it does not hold, or where rows are missing.
"""

from __future__ import annotations

import logging
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import psutil
import structlog
from confluent_kafka import Producer
from pyspark.sql import SparkSession
from rich.console import Console

from benchmarks.report import output_option, show_all
from benchmarks.stream_sinks import (
    ARROW,
    DELTA,
    DIRECT,
    GROWTH,
    LANCE,
    MEMTABLE,
    PARSED,
    RAW,
    SINKS,
    Batch,
    Bench,
    Sink,
    growing,
)
from headgate.connectors.jars.lists import spark_jars
from headgate.dev.broker import LocalBroker

PARTITIONS = 4
SMALL_BATCH = 20_000
BAD_EVERY = 1_000
"""In the topic of the growth table: some records that become dead letters."""

WANTED = ((DIRECT, RAW, 1.1), (DIRECT, DELTA, 3.0), (ARROW, PARSED, 1.1), (ARROW, LANCE, 1.1))
"""Rows per second of the first over those of the second."""
WANTED_P50 = 1.15
"""At small batches: the median batch of the direct sink over that of raw → noop, at most."""

TRIGGER_PARTS = ("latestOffset", "getBatch", "queryPlanning", "walCommit", "addBatch", "commitOffsets")
"""Of a trigger, in Spark's words."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Measured:
    """One run of one sink."""

    rows_per_s: float
    cpu_s: float
    batch_ms: list[float]
    operations: Mapping[str, float]
    """Per batch, by verb."""
    counted: list[Batch]
    """By the store's own count, the batch that took the stream over left out."""
    phases: Mapping[str, float]
    """Milliseconds of a batch: Spark's own parts of a trigger, then the sink's parts of `addBatch`."""


@dataclass(frozen=True)
class Clock:
    """CPU seconds of this process and its children, without those that were there before Spark."""

    others: frozenset[int]

    def seconds(self) -> float:
        """Until now, processes that have ended included."""
        me = psutil.Process()
        total = 0.0
        for process in [me, *me.children(recursive=True)]:
            if process.pid in self.others:
                continue
            try:
                times = process.cpu_times()
            except psutil.Error:
                continue
            total += times.user + times.system
            if process.pid != me.pid:
                total += times.children_user + times.children_system
        return total


def _run(bench: Bench, sink: Sink, rows: int, clock: Clock) -> Measured:
    """One sink over the whole topic. Raises ClickException where it did not store all of it."""
    bench.folder.mkdir()
    try:
        prepared = sink(bench)
        writer = prepared.writer.option("checkpointLocation", str(bench.folder / "checkpoint"))
        cpu, began = clock.seconds(), time.perf_counter()
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        took, used = time.perf_counter() - began, clock.seconds() - cpu
        prepared.end()
        triggers = [p.durationMs for p in query.recentProgress if "addBatch" in p.durationMs]
        batches = [float(parts["triggerExecution"]) for parts in triggers]
        phases = {part: statistics.median(float(parts.get(part, 0)) for parts in triggers) for part in TRIGGER_PARTS}
        if prepared.stored is not None and (found := prepared.stored()) != rows:
            raise click.ClickException(f"{found:,} of {rows:,} rows are there.")
        counted = [batch for batch in prepared.batches if not batch.opened]
        spent = sum((batch.operations for batch in counted), Counter[str]())
        operations = {verb: number / max(1, len(counted)) for verb, number in spent.items()}
        if prepared.files is not None:
            operations = {"put": prepared.files() / len(batches)}
        phases |= {f"· {name}": ms for name, ms in (prepared.phases() if prepared.phases else {}).items()}
        return Measured(rows / took, used, batches, operations, counted, phases)
    finally:
        shutil.rmtree(bench.folder)


def _rounds(bench: Bench, sinks: Mapping[str, Sink], rows: int, rounds: int, clock: Clock) -> dict[str, list[Measured]]:
    """Every sink once per round, the first of a round being another one each time; the warm-up is thrown away."""
    console = Console(stderr=True)
    names = list(sinks)
    runs: dict[str, list[Measured]] = {name: [] for name in names}
    for number in range(rounds + 1):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            measured = _run(bench, sinks[name], rows, clock)
            console.print(f"round {number}: {name}: {measured.rows_per_s:,.0f} rows/s", style="dim")
            if number:
                runs[name].append(measured)
    return runs


def _line(name: str, taken: list[Measured]) -> Row:
    batches = sorted(ms for m in taken for ms in m.batch_ms)
    return {
        "sink": name,
        "rows/s": statistics.median(m.rows_per_s for m in taken),
        "cpu s": statistics.median(m.cpu_s for m in taken),
        "p50 ms": statistics.median(batches),
        "p95 ms": batches[min(len(batches) - 1, int(len(batches) * 0.95))],
        **{
            f"{verb.upper()}s / batch": statistics.median(m.operations.get(verb, 0.0) for m in taken)
            for verb in ("put", "get", "list")
            if taken[0].operations
        },
    }


def _profile(runs: Mapping[str, list[Measured]]) -> list[Row]:
    """Where a batch's time goes, in milliseconds: a column per sink, medians of the rounds."""
    parts = dict.fromkeys(part for taken in runs.values() for m in taken for part in m.phases)
    return [
        {
            "part": part,
            **{
                name: statistics.median(m.phases[part] for m in taken) if part in taken[0].phases else ""
                for name, taken in runs.items()
            },
        }
        for part in parts
    ]


def _ratio(runs: Mapping[str, list[Measured]], name: str, base: str) -> float:
    pairs = zip(runs[name], runs[base], strict=True)
    return statistics.median(one.rows_per_s / other.rows_per_s for one, other in pairs)


def _p50(taken: list[Measured]) -> float:
    return statistics.median(ms for m in taken for ms in m.batch_ms)


def _wanted(runs: Mapping[str, list[Measured]], batch_rows: int) -> list[Row]:
    """What was wanted beside what was seen, as far as both sides ran."""
    lines: list[Row] = []
    for name, base, want in WANTED:
        if name in runs and base in runs:
            seen = _ratio(runs, name, base)
            lines.append({"what": f"{name} / {base}", "seen": seen, "wanted": f"≥ {want}", "ok": seen >= want})
    if batch_rows <= SMALL_BATCH and DIRECT in runs and RAW in runs:
        seen = _p50(runs[DIRECT]) / _p50(runs[RAW])
        lines.append(
            {"what": f"p50 of {DIRECT} / {RAW}", "seen": seen, "wanted": f"≤ {WANTED_P50}", "ok": seen <= WANTED_P50}
        )
    for name, taken in runs.items():
        batches = [batch for m in taken for batch in m.counted]
        if batches and name != MEMTABLE:
            line = f"PUTs of a batch = entries + 1, nothing else: {name}"
            kept = sum(batch.holds for batch in batches)
            lines.append(
                {"what": line, "seen": f"{kept} of {len(batches)}", "wanted": "all", "ok": kept == len(batches)}
            )
    return lines


@contextmanager
def _session(cores: int) -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master(f"local[{cores}]")
        .config("spark.jars", ",".join(map(str, spark_jars())))
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", str(cores))
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .config("spark.databricks.delta.snapshotPartitions", "2")
        .config("spark.sql.streaming.numRecentProgressUpdates", "10000")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


def _produce(servers: str, topic: str, rows: int, partitions: int, bad_every: int = 0) -> None:
    settings = {"bootstrap.servers": servers, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000}
    producer = Producer({**settings, "enable.idempotence": True})
    for i in range(rows):
        value = (
            f'{{"id":{i},"customer":"customer-{i % 9973:06d}","amount":{i % 1000}.25,'
            f'"note":"order {i} was placed by the shop and waits for the courier to pick it up at gate {i % 97}"}}'
        )
        bad = bad_every and i % bad_every == bad_every - 1
        producer.produce(topic, "{broken" if bad else value, partition=i % partitions)
        if i % 10_000 == 0:
            producer.poll(0)
    producer.flush()


@click.command()
@click.option("--rows", default=1_000_000, show_default=True, help="Rows in the topic.")
@click.option("--batch-rows", default="100000,20000", show_default=True, help="Offsets per trigger, one table each.")
@click.option("--rounds", default=3, show_default=True, help="Measured rounds after the warm-up.")
@click.option("--only", default="", help="Sinks whose names contain one of these words, separated by commas.")
@click.option(
    "--growth-rows", default=200_000, show_default=True, help="Rows of the table by shards; 0: no such table."
)
@click.option("--cores", default=2, show_default=True)
@output_option
def main(rows: int, batch_rows: str, rounds: int, only: str, growth_rows: int, cores: int, output: str) -> None:
    """Rows per second, CPU, batch times and requests of every sink, side by side; then headgate by number of shards."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    words = [word for word in only.split(",") if word]
    chosen = {name: sink for name, sink in SINKS.items() if not words or any(word in name for word in words)}
    folder = Path(tempfile.mkdtemp(prefix="headgate-bench-"))
    tables: list[tuple[str, list[Row]]] = []
    try:
        with LocalBroker(folder / "kafka") as broker:
            clock = Clock(frozenset(child.pid for child in psutil.Process().children(recursive=True)))
            broker.create_topic("orders", PARTITIONS)
            _produce(broker.servers, "orders", rows, PARTITIONS)
            if growth_rows:
                broker.create_topic("growth", GROWTH[-1])
                _produce(broker.servers, "growth", growth_rows, GROWTH[-1], BAD_EVERY)
            with _session(cores) as spark:
                for size in map(int, batch_rows.split(",")):
                    bench = Bench(spark, broker.servers, "orders", folder / "run", size)
                    tables += _compared(bench, chosen, rows, rounds, clock)
                if growth_rows:
                    bench = Bench(spark, broker.servers, "growth", folder / "run", SMALL_BATCH)
                    tables += _grown(bench, growth_rows, rounds, clock)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    show_all(tables, output)
    if any(line.get("wanted") == "all" and not line["ok"] for _, lines in tables for line in lines):
        raise click.ClickException("A batch asked more of the store than its own PUTs.")


def _compared(
    bench: Bench, chosen: Mapping[str, Sink], rows: int, rounds: int, clock: Clock
) -> list[tuple[str, list[Row]]]:
    runs = _rounds(bench, chosen, rows, rounds, clock)
    base = next(iter(chosen))
    lines = [{**_line(name, taken), f"rows/s / {base}": _ratio(runs, name, base)} for name, taken in runs.items()]
    sizes = f"{rows:,} rows, {bench.batch_rows:,} per batch"
    return [
        (f"{sizes}, medians of {rounds} rounds", lines),
        (f"Where a batch goes, ms, {sizes}", _profile(runs)),
        (f"Wanted, {sizes}", _wanted(runs, bench.batch_rows)),
    ]


def _grown(bench: Bench, rows: int, rounds: int, clock: Clock) -> list[tuple[str, list[Row]]]:
    sinks = {f"{kind}, {n} shards": growing(kind, n) for kind in ("by_partition", "bucket") for n in GROWTH}
    runs = _rounds(bench, sinks, rows, rounds, clock)
    lines = [_line(name, taken) for name, taken in runs.items()]
    sizes = f"{rows:,} rows of {GROWTH[-1]} partitions, {bench.batch_rows:,} per batch"
    return [(f"Growth with shards: {sizes}", lines), (f"Wanted, {sizes}", _wanted(runs, bench.batch_rows))]


if __name__ == "__main__":
    main()
