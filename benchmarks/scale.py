"""How time grows with the number of shards, of commit records and of SSTables: one exponent per step and size.

An exponent of 0 means flat, 1 means in proportion, 2 means with the square. It is taken between the two largest sizes,
where fixed costs hide least. Everything runs in this process, without Spark, on a folder in memory where there is one,
and counts CPU time, so that neither the disk nor a busy machine blurs the growth. One size grows at a time; the rows
stay the same.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

import click
import pyarrow as pa

import headgate
from benchmarks.report import output_option, show_all
from headgate.checkpoints.log.records import Batch, ShardPart
from headgate.checkpoints.stream.driver import StreamDriver
from headgate.shards.config import WriterConfig
from headgate.shards.wal.entry import SourceRange, Tags
from headgate.shards.writer import ShardWriter
from headgate.table.table import Table

SCHEMA = pa.schema([pa.field("id", pa.int64(), False), pa.field("note", pa.string())])
ROWS = pa.record_batch({"id": range(10), "note": ["waits at gate 7"] * 10}, schema=SCHEMA)
WAL_ONLY = WriterConfig(enable_memtable=False)
STREAM, TOPIC = "s", "t"

MOST = 1.1
"""No step may grow faster."""
FLAT = 0.1
"""A stream's open and its batches do not notice how old it is."""
FLAT_STEPS = {("commit records", "open"), ("commit records", "batch")}

IN_MEMORY = Path("/dev/shm")

PRESETS: dict[str, dict[str, tuple[int, ...]]] = {
    "full": {"shards": (10, 100, 1_000), "commit records": (100, 10_000, 100_000), "SSTables": (1, 10, 100)},
    "quick": {"shards": (2, 8), "commit records": (10, 100), "SSTables": (1, 4)},
}

Line = dict[str, Any]


@dataclass
class Grown:
    """A table of one size, and its stream."""

    table: Table
    driver: StreamDriver
    names: list[str]
    batches: int = 0

    @classmethod
    def of(cls, folder: Path, *, shards: int, records: int = 1, sstables: int = 0) -> Grown:
        """A table with so many shards, SSTables in the first one, and commit records. The last record has rows."""
        table = headgate.create_table(str(folder), SCHEMA, sharding=headgate.by_partition())
        names = [f"partition:{TOPIC}:{number}" for number in range(shards)]
        if sstables:
            with table.writer(names[0]) as writer:
                for _ in range(sstables):
                    writer.put(ROWS)
                    writer.flush_memtable()
        grown = cls(table, StreamDriver.open(table.home, STREAM, "q", names), names)
        for _ in range(records - 1):
            grown.commit({})
        grown.batch()
        return grown

    def open(self) -> None:
        """Take the stream over."""
        self.driver = StreamDriver.open(self.table.home, STREAM, "q", self.names)

    def batch(self) -> None:
        """An entry per shard, and the record that makes them visible."""
        parts = {}
        for name, claim in self.driver.plan(self.names).claims.items():
            attempt = uuid.uuid4().hex
            with ShardWriter.attach(claim, WAL_ONLY) as writer:
                put = writer.put(ROWS, Tags(attempt, ()))
            parts[name] = ShardPart(claim.shard.id, attempt, tuple(put.positions), put.rows, put.nbytes)
        self.commit(parts)

    def commit(self, parts: dict[str, ShardPart]) -> None:
        source = SourceRange(TOPIC, 0, self.batches, self.batches + 1)
        self.driver.commit(Batch(query_id="q", batch_id=self.batches, sources=(source,), shards=parts))
        self.batches += 1
        self.driver.fold_if_due()

    def scan(self) -> None:
        """Read every row."""
        assert self.table.to_arrow().num_rows

    def checkpoint(self) -> None:
        """Name the state, and let it go."""
        self.table.drop_checkpoint(self.table.checkpoint().name)

    def gc(self) -> None:
        """Look for garbage, of any age, and delete none."""
        self.table.collect_garbage(min_age=timedelta(0))

    @property
    def steps(self) -> dict[str, Callable[[], None]]:
        """What is measured, in this order."""
        return {
            "open": self.open,
            "batch": self.batch,
            "scan": self.scan,
            "checkpoint": self.checkpoint,
            "gc": self.gc,
        }


@click.command()
@click.option("--preset", type=click.Choice(list(PRESETS)), default="full", show_default=True)
@click.option("--rounds", default=5, show_default=True, help="Of each step, after one to warm up.")
@click.option("--folder", default=None, help="Where the tables are made; default: in memory if possible.")
@output_option
def main(preset: str, rounds: int, folder: str | None, output: str) -> None:
    """Milliseconds of CPU of each step by size, and the exponents of growth."""
    times: list[Line] = []
    growth: list[Line] = []
    made: dict[str, Callable[[Path, int], Grown]] = {
        "shards": lambda path, size: Grown.of(path, shards=size),
        "commit records": lambda path, size: Grown.of(path, shards=4, records=size),
        "SSTables": lambda path, size: Grown.of(path, shards=1, sstables=size),
    }
    place = folder or (str(IN_MEMORY) if os.access(IN_MEMORY, os.W_OK) else None)
    for axis, sizes in PRESETS[preset].items():
        took: dict[str, list[float]] = {}
        for size in sizes:
            with tempfile.TemporaryDirectory(dir=place) as path:
                grown = made[axis](Path(path) / "table", size)
                line: Line = {"what grows": axis, "size": size}
                for step, call in grown.steps.items():
                    seconds = _median(call, rounds)
                    took.setdefault(step, []).append(seconds)
                    line[f"{step} ms"] = seconds * 1000
                times.append(line)
        growth += [_grown(axis, step, sizes, seconds) for step, seconds in took.items()]
    show_all([(f"Growth, medians of {rounds} rounds", growth), ("CPU time", times)], output)


def _grown(axis: str, step: str, sizes: Sequence[int], seconds: Sequence[float]) -> Line:
    seen = exponent(sizes[-2:], seconds[-2:])
    most = FLAT if (axis, step) in FLAT_STEPS else MOST
    return {"what grows": axis, "step": step, "exponent": seen, "wanted": f"≤ {most}", "ok": seen <= most}


def exponent(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """The power of the size that the time grows with, from the first to the last."""
    return math.log(seconds[-1] / seconds[0]) / math.log(sizes[-1] / sizes[0])


def _median(call: Callable[[], None], rounds: int) -> float:
    took = []
    for number in range(rounds + 1):
        start = time.process_time()
        call()
        if number:
            took.append(time.process_time() - start)
    return median(took)


if __name__ == "__main__":
    main()
