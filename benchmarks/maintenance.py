"""What flushes and compactions cost: bytes written twice, time by size of SSTables and base, and batches beside them.

`python -m benchmarks.maintenance [--rows N] [--base 100000,1000000,4000000] [--batches N] [--no-spark]`

1. Write amplification: 20 flushes and 3 compactions of the same rows; bytes on disk per byte of rows.
2. Cost of one compaction over bases of different sizes with equal SSTables, and with four times as many SSTables:
   it should follow the SSTables. The base's key columns are read once per compaction, which is the part that does not.
3. Batch times of a stream with and without maintenance beside it, in turns, on a Spark that schedules fairly; and what
   its event log says of jobs that overlapped. Beside maintenance the batches go on until 20 flushes and 3 compactions
   have ended, or there were six times as many batches as asked for; how many there were is shown.
"""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import click
import lance
import numpy as np
import psutil
import pyarrow as pa
import structlog

import headgate
from benchmarks.report import output_option, show_all
from headgate.checkpoints.jobs.policy import BasePolicy
from headgate.shards.config import WriterConfig
from headgate.table.create import create_table
from headgate.table.table import Table

FLUSHES, COMPACTIONS = 20, 3
MORE_BATCHES = 6
"""So many times the batches that were asked for, at most, until there were so many flushes and compactions."""
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("customer", pa.string()),
        pa.field("amount", pa.float64()),
        pa.field("note", pa.string()),
    ]
)
WARM_UP = 10
"""Batches before any is timed."""
NO_MERGES = BasePolicy(max_small=10**6)
KINDS = {"key": "id", "no key": None}

Row = dict[str, Any]


@click.command()
@click.option("--rows", default=20_000, show_default=True, help="Rows of one flush.")
@click.option("--base", default="100000,1000000,4000000", show_default=True, help="Rows of the bases.")
@click.option("--batches", default=60, show_default=True, help="Of the stream.")
@click.option("--batch-rows", default=5_000, show_default=True)
@click.option("--rounds", default=3, show_default=True, help="Of the stream, after a short one to warm up.")
@click.option("--no-spark", is_flag=True, help="Leave the stream out.")
@output_option
def main(rows: int, base: str, batches: int, batch_rows: int, rounds: int, no_spark: bool, output: str) -> None:
    """Write amplification, cost by size, and batch times beside maintenance."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        written = [_amplification(root / f"w{kind}", kind, rows) for kind in KINDS]
        sizes = [int(text) for text in base.split(",")]
        cost = [line for kind in KINDS for line in _costs(root, kind, rows // 4, sizes)]
        stream = [] if no_spark else _stream(root, batches, batch_rows, rounds)
    show_all(
        [
            (f"Bytes written by {FLUSHES} flushes of {rows} rows and {COMPACTIONS} compactions", written),
            (f"One compaction of SSTables of {rows // 4} rows each", cost),
            (f"Batches of {batch_rows} rows, medians of {rounds} rounds; counts of the round with the fewest", stream),
        ],
        output,
    )


# -- bytes -----------------------------------------------------------------------------


def _amplification(path: Path, kind: str, rows: int) -> Row:
    table = create_table(str(path), SCHEMA, primary_key=KINDS[kind])
    chance = np.random.default_rng(1)
    put = 0
    for number in range(FLUSHES):
        with table.writer("single", WriterConfig(max_memtable_rows=10**9)) as writer:
            # Half of the keys are new, half are of rows that are there.
            ids = chance.integers(0, (number + 2) * rows // 2, rows)
            batch = _rows(ids)
            put += batch.nbytes
            writer.put(batch)
            writer.flush_memtable()
        if (number + 1) % (FLUSHES // COMPACTIONS) == 0 and (number + 1) // (FLUSHES // COMPACTIONS) <= COMPACTIONS:
            table.compact(policy=NO_MERGES)
    sizes = {"WAL": 0, "SSTables": 0, "base": 0}
    for info in table.home.store.list(""):
        part = "WAL" if "/wal/" in info.key else "SSTables" if "_gen_" in info.key else "base"
        sizes[part] += info.size if not info.key.startswith("_headgate/") else 0
    shutil.rmtree(path)
    return {
        "table": kind,
        "rows MB": put / 1e6,
        **{f"{part} MB": size / 1e6 for part, size in sizes.items()},
        **{f"{part} / rows": size / put for part, size in sizes.items()},
        "all / rows": sum(sizes.values()) / put,
    }


# -- time ------------------------------------------------------------------------------


def _costs(root: Path, kind: str, rows: int, sizes: list[int]) -> list[Row]:
    lines = []
    for base in sizes:
        for sstables in (4, 16):
            if sstables == 4 or base == sizes[0]:
                lines.append(_cost(root / "cost", kind, rows, base, sstables))
    first = lines[0]
    for line in lines:
        line["time / first"] = line["seconds"] / first["seconds"]
        line["CPU / first"] = line["CPU s"] / first["CPU s"]
    return lines


def _cost(path: Path, kind: str, rows: int, base: int, sstables: int) -> Row:
    table = create_table(str(path), SCHEMA, primary_key=KINDS[kind])
    for start in range(0, base, 1_000_000):
        lance.write_dataset(
            pa.Table.from_batches([_rows(np.arange(start, min(base, start + 1_000_000)))]).cast(table.schema),
            table.uri,
            mode="append",
        )
    chance = np.random.default_rng(2)
    with table.writer("single", WriterConfig(max_memtable_rows=10**9)) as writer:
        for _ in range(sstables):
            writer.put(_rows(chance.integers(0, 2 * base, rows)))
            writer.flush_memtable()
    before = {info.key: info.size for info in table.home.store.list("")}
    process = psutil.Process()
    wall, cpu, memory = time.perf_counter(), _cpu(process), process.memory_info().rss
    table.compact(policy=NO_MERGES)
    took = time.perf_counter() - wall
    new = {info.key: info.size for info in table.home.store.list("") if info.key not in before}
    shutil.rmtree(path)
    return {
        "table": kind,
        "base rows": base,
        "SSTables": sstables,
        "seconds": took,
        "CPU s": _cpu(process) - cpu,
        "written MB": sum(new.values()) / 1e6,
        "memory grew MB": (process.memory_info().rss - memory) / 1e6,
    }


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _rows(ids: np.ndarray[Any, Any]) -> pa.RecordBatch:
    texts = pa.array(ids).cast(pa.string())
    notes = pa.compute.binary_join_element_wise("note of", texts, " ")
    return pa.record_batch([pa.array(ids, pa.int64()), texts, pa.array(ids * 0.5), notes], schema=SCHEMA)


# -- batches ---------------------------------------------------------------------------


def _stream(root: Path, batches: int, rows: int, rounds: int) -> list[Row]:
    from headgate.streaming.spark.session import local_session

    events = root / "events"
    events.mkdir()
    settings = {
        "spark.scheduler.mode": "FAIR",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.compress": "false",
    }
    spark = local_session(log_file=root / "spark.log", settings=settings)
    # Beside: about one flush in three batches, and a compaction in six flushes.
    ways: Mapping[str, Mapping[str, Any]] = {
        "alone": {"max_memtable_size": 1 << 40, "max_memtable_age": "never"},
        "beside": {"max_memtable_size": 3 * rows * 8, "compact_sstables": 6},
    }
    took: dict[str, list[list[float]]] = {name: [] for name in ways}
    counts: dict[str, list[Row]] = {name: [] for name in ways}
    try:
        for name in ways:
            _run(spark, root / name, WARM_UP, rows, ways[name], 0, 0)
        for number in range(rounds):
            for name in list(ways)[:: -1 if number % 2 else 1]:
                wanted = (FLUSHES, COMPACTIONS) if name == "beside" else (0, 0)
                seconds, counted = _run(spark, root / f"{name}{number}", batches, rows, ways[name], *wanted)
                took[name].append(seconds)
                counts[name].append(counted)
    finally:
        spark.stop()
    overlapped = _overlaps(events)
    lines = []
    for name in ways:
        p50 = [median(one) for one in took[name]]
        p95 = [quantiles(one, n=20)[-1] for one in took[name]]
        fewest = {what: min(one[what] for one in counts[name]) for what in counts[name][0]}
        lines.append({"maintenance": name, "p50 ms": median(p50) * 1e3, "p95 ms": median(p95) * 1e3, **fewest})
    for line in lines:
        line["p50 / alone"] = line["p50 ms"] / lines[0]["p50 ms"]
        line["p95 / alone"] = line["p95 ms"] / lines[0]["p95 ms"]
    lines[-1] |= overlapped
    return lines


def _run(
    spark: Any, path: Path, batches: int, rows: int, options: Mapping[str, Any], flushes: int, compactions: int
) -> tuple[list[float], Row]:
    """Batches until there were so many, and beside them so many flushes and compactions; six times as many at most."""
    table: Table = create_table(str(path / "table"), pa.schema([pa.field("value", pa.int64(), nullable=False)]))
    sink = headgate.ShardSink(table, stream="s", checkpoint_interval="never", **options)
    seconds: list[float] = []

    def batch(frame: Any, number: int) -> None:
        start = time.perf_counter()
        sink(frame, number)
        seconds.append(time.perf_counter() - start)

    numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows).load().select("value")
    writer = numbers.writeStream.foreachBatch(batch).option("checkpointLocation", str(path / "checkpoint"))
    query = writer.trigger(processingTime="0 seconds").start()

    def goes_on() -> bool:
        state, done = sink.maintenance, len(seconds)
        enough = state is not None and state.flushes >= flushes and state.compactions >= compactions
        return query.isActive and (done < batches or (not enough and done < MORE_BATCHES * batches))

    while goes_on():
        time.sleep(0.02)
    state = sink.maintenance
    assert query.isActive, f"the stream ended: {query.exception()}"
    assert state is not None
    timed = list(seconds)
    query.stop()
    sink.wait_for_maintenance()
    counted = table.scan(columns=["value"]).read_all().num_rows
    assert counted == rows * (sink.last.batch_id + 1 if sink.last else 0), "rows are missing, or there twice"
    sink.close()
    shutil.rmtree(path)
    # The first batch of a query claims the shards.
    return timed[1:], {"batches": len(timed), "flushes": state.flushes, "compactions": state.compactions}


def _overlaps(events: Path) -> Row:
    """Jobs of batches that began while a maintenance job ran, and how many of those ended before it did."""
    running: set[int] = set()
    begun, ended = set(), set()
    maintenance: set[int] = set()
    for file in events.iterdir():
        for line in file.read_text().splitlines():
            event = json.loads(line)
            if event["Event"] == "SparkListenerJobStart":
                job = event["Job ID"]
                if event["Properties"].get("spark.job.description", "").startswith("headgate:"):
                    maintenance.add(job)
                    running.add(job)
                elif running:
                    begun.add(job)
            elif event["Event"] == "SparkListenerJobEnd":
                job = event["Job ID"]
                if job in begun and running:
                    ended.add(job)
                running.discard(job)
    return {"maintenance jobs": len(maintenance), "batch jobs begun beside": len(begun), "and ended": len(ended)}


if __name__ == "__main__":
    main()
