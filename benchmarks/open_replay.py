"""Opening a shard that must be replayed, beside native pylance's own open of the same rows.

Each writer's WAL is written once; then both open in turns. Both opens claim, fence and replay everything into a
MemTable. The same is done on four times the entries: the cost of one must not grow.
"""

from __future__ import annotations

import gc
import tempfile
import time
import uuid
from pathlib import Path
from statistics import median
from typing import Any

import click
import lance
import pyarrow as pa

from benchmarks.report import output_option, show
from headgate.shards.config import WriterConfig
from headgate.shards.writer import ShardWriter

TIMES = 4
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), False, {b"lance-schema:unenforced-primary-key": b"true"}),
        pa.field("customer", pa.string()),
        pa.field("amount", pa.float64()),
        pa.field("note", pa.string()),
    ]
)


@click.command()
@click.option("--entries", default=2_000, show_default=True, help=f"Of the shorter WAL; the longer has {TIMES} times.")
@click.option("--rows", default=20, show_default=True, help="Rows of one entry.")
@click.option("--rounds", default=5, show_default=True)
@output_option
def main(entries: int, rows: int, rounds: int, output: str) -> None:
    """Seconds to open, and microseconds per entry."""
    lines: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for count in (entries, entries * TIMES):
            uri = str(Path(folder) / str(count))
            dataset = lance.write_dataset(SCHEMA.empty_table(), uri)
            dataset.initialize_mem_wal(maintained_indexes=[])
            ours, native = str(uuid.uuid4()), str(uuid.uuid4())
            _write(uri, dataset, ours, native, count, rows)
            took: dict[str, list[float]] = {"headgate": [], "native": []}
            for number in range(rounds + 1):
                mine, theirs = _open_ours(uri, ours, count * rows), _open_native(uri, native, count * rows)
                if number:
                    took["headgate"].append(mine)
                    took["native"].append(theirs)
            for name, seconds in took.items():
                lines.append(
                    {
                        "entries": count,
                        "opener": name,
                        "open s": round(median(seconds), 3),
                        "us per entry": median(seconds) / count * 1e6,
                        "native / this": median(took["native"]) / median(seconds),
                    }
                )
    show(f"Open with replay, {rows} rows an entry, medians of {rounds} rounds", lines, output)


def _write(uri: str, dataset: Any, ours: str, native: str, count: int, rows: int) -> None:
    config = WriterConfig(enable_memtable=False)
    most = count * rows + 1
    theirs = dataset.mem_wal_writer(
        native, max_wal_flush_interval_ms=1, max_memtable_rows=most, max_memtable_batches=most
    )
    with ShardWriter.open(uri, ours, config) as writer:
        for i in range(count):
            ids = list(range(i * rows, (i + 1) * rows))
            batch = pa.record_batch(
                {
                    "id": ids,
                    "customer": ["somebody"] * rows,
                    "amount": [1.5] * rows,
                    "note": ["waits at gate 7"] * rows,
                },
                schema=SCHEMA,
            )
            writer.put(batch)
            theirs.put(batch)
    # Dropped without close, as a crash would: closing would flush, and nothing would be left to replay.
    del theirs
    gc.collect()


def _open_ours(uri: str, shard: str, expected: int) -> float:
    config = WriterConfig(max_memtable_rows=expected + 1, max_memtable_batches=expected + 1)
    start = time.perf_counter()
    writer = ShardWriter.open(uri, shard, config)
    took = time.perf_counter() - start
    assert sum(stats.rows for stats in writer.memtable_stats()) == expected
    writer.close()
    return took


def _open_native(uri: str, shard: str, expected: int) -> float:
    dataset = lance.dataset(uri)
    start = time.perf_counter()
    writer = dataset.mem_wal_writer(shard, max_memtable_rows=expected + 1, max_memtable_batches=expected + 1)
    took = time.perf_counter() - start
    assert writer.lsm_scanner().to_table().num_rows == expected
    del writer
    gc.collect()
    return took


if __name__ == "__main__":
    main()
