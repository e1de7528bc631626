"""Tables with a history: streams with restarts, dead attempts and dead letters, direct writers, flushes, folds, pins.

What is in them is the real thing, written by the real parts; only Spark is missing.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import lance
import pyarrow as pa

import headgate
from headgate.checkpoints.jobs.flush import run_here
from headgate.checkpoints.snapshots.take import take
from headgate.checkpoints.stream.driver import StreamDriver
from headgate.shards.config import WriterConfig
from headgate.shards.shard import Shard
from headgate.shards.sharding import ByPartition
from headgate.shards.wal.entry import SourceRange
from headgate.table.create import create_table
from headgate.table.table import Table, open_table
from tests.support.life import SCHEMA, TOPIC, ranges_of, run_batch, run_task, write_plan

STREAM = "s"
DIRECT = "partition:direct:0"
KEEP = "kept"
"""The checkpoint."""

WAL_ONLY = WriterConfig(enable_memtable=False)


def shard_of(table: Table, partition: int) -> Shard:
    """The stream's shard of a partition."""
    return table.home.shard(f"partition:{TOPIC}:{partition}")


def open_stream(table: Table, query: str = "query", stream: str = STREAM) -> StreamDriver:
    """Takes the stream over."""
    names = [ByPartition().shard_name(TOPIC, partition) for partition in (0, 1)]
    return StreamDriver.open(table.home, stream, query, names)


def batches(driver: StreamDriver, numbers: Sequence[int], query: str = "query") -> None:
    """Commit these batches of the topic; every tenth record of it is a bad one."""
    for number in numbers:
        run_batch(driver, number, ranges_of(number), query)


def flush(driver: StreamDriver) -> None:
    """What was committed before the driver opened goes into SSTables."""
    while jobs := driver.flush_jobs(1):
        driver.flushed(run_here(jobs))


def dead_attempt(driver: StreamDriver, ranges: Sequence[SourceRange]) -> None:
    """What a task leaves whose driver never commits."""
    run_task(write_plan(driver, ranges), ranges)


def rows(*ids: int) -> pa.RecordBatch:
    return pa.record_batch({"id": list(ids), "note": ["a note"] * len(ids)}, schema=SCHEMA)


def make(path: Path, *, keyed: bool = True) -> Table:
    """A table with everything in it, and nothing collected yet:

    1. a stream: two batches; a restart; a flush; a dead attempt; a restart; two more; a fold; two more; a fold;
       three more. Records 1, 4 and 5 are open records, 2 and 3 the first batches, 6 to 9 the folded ones, 10 to 12
       the last.
    2. a direct writer: rows and a delete, flushed; a restart; more rows.
    3. rows in the base.
    """
    sharding = headgate.by_partition(key_is_partitioned=keyed)
    table = create_table(str(path), SCHEMA, primary_key="id" if keyed else None, sharding=sharding, full_text="note")
    batches(open_stream(table), [0, 1])
    driver = open_stream(table)
    flush(driver)
    dead_attempt(driver, ranges_of(2))
    driver = open_stream(table)
    batches(driver, [2, 3])
    driver.fold()
    batches(driver, [4, 5])
    driver.fold()
    batches(driver, [6, 7, 8])
    with table.writer(DIRECT) as writer:
        writer.put(rows(10**9, 10**9 + 1, 10**9 + 2))
        if keyed:
            writer.delete(pa.record_batch({"id": [10**9]}, schema=pa.schema([SCHEMA.field("id")])))
        writer.flush_memtable()
    with table.writer(DIRECT, WAL_ONLY) as writer:
        writer.put(rows(10**9 + 3))
        writer.put(rows(10**9 + 4))
    lance.write_dataset(pa.Table.from_batches([rows(2 * 10**9)]), str(path), mode="append")
    return open_table(str(path))


def pin(table: Table) -> None:
    """Take the checkpoint."""
    take(table.home, table.shard_ids(), name=KEEP)


def collect(table: Table) -> None:
    """Everything that may go goes, whatever its age."""
    assert table.collect_garbage(min_age=timedelta(0), apply=True).kept == ()


def copied(table: Table, path: Path) -> Table:
    """The same bytes elsewhere."""
    shutil.copytree(table.uri, path)
    return open_table(str(path))
