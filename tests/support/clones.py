"""Tables to clone, with everything in them that a table can have, and what they hold as plain values."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import lance
import pyarrow as pa

from headgate.checkpoints.clone.build import CloneTarget
from headgate.checkpoints.clone.clone import CloneSource, clone_table
from headgate.checkpoints.clone.intent import OUTCOMES
from headgate.checkpoints.jobs.flush import run_here
from headgate.checkpoints.log.decisions import BatchSources, Refusal, Skip, decide_batch
from headgate.checkpoints.log.records import BatchRecord
from headgate.checkpoints.stream.driver import StreamDriver
from headgate.connectors.objects import ObjectStore
from headgate.records import encode
from headgate.retry import Retry
from headgate.shards.config import WriterConfig
from headgate.shards.home.record import record_key
from headgate.shards.shard import TABLE_ID
from headgate.shards.sharding import ByPartition, by_partition
from headgate.shards.wal.entry import SourceRange
from headgate.table.create import create_table
from headgate.table.table import Table, open_table
from tests.support.datasets import LanceFaultyStore
from tests.support.life import (
    QUERY,
    SCHEMA,
    TOPIC,
    batch_of,
    ranges_of,
    run_task,
    visible_dead,
    write_plan,
    written,
)

STREAM = "s"
DIRECT = f"partition:{TOPIC}:7"
"""A shard that no stream writes to."""

CONFIG = WriterConfig(retry=Retry(attempts=3, base=0))
WAL_ONLY = replace(CONFIG, enable_memtable=False)

Content = tuple[Counter[tuple[int, str]], Counter[tuple[int, int]]]


def rows(*ids: int, note: str = "direct") -> pa.RecordBatch:
    return pa.record_batch({"id": list(ids), "note": [note] * len(ids)}, schema=SCHEMA)


def open_stream(table: Table, query: str = QUERY) -> StreamDriver:
    """Takes the stream over."""
    names = [ByPartition().shard_name(TOPIC, partition) for partition in (0, 1)]
    return StreamDriver.open(table.home, STREAM, query, names)


def run_batch(driver: StreamDriver, number: int, ranges: Sequence[SourceRange], query: str = QUERY) -> BatchRecord:
    """As that of `life`, of a stream that wants SSTables."""
    decision = decide_batch(driver.head, query, number, BatchSources(tuple(ranges)), lambda topic, partition: 0)
    if isinstance(decision, Skip):
        return decision.record
    if isinstance(decision, Refusal):
        raise decision.error
    plan = write_plan(driver, ranges)
    done = written(*(run_task(plan, parts) for parts in plan.sources.values()))
    return driver.commit(replace(batch_of(plan, done, number, ranges, query), mode="memtable"))


def flush(driver: StreamDriver) -> None:
    """What was committed before the driver opened goes into SSTables."""
    while jobs := driver.flush_jobs(1):
        driver.flushed(run_here(jobs))


def streamed(
    path: Path | str,
    *,
    wal_uri: str | None = None,
    full_text: tuple[str, ...] = (),
    storage_options: dict[str, str] | None = None,
) -> tuple[Table, StreamDriver]:
    """A stream with a flushed batch, dead attempts, restarts (barriers), two batches in the WAL, dead letters, and an
    attempt whose batch is not committed; a direct writer with rows in an SSTable and in the WAL; rows in the base.
    """
    uri, options = str(path), storage_options
    table = create_table(
        uri,
        SCHEMA,
        primary_key=None,
        sharding=by_partition(),
        full_text=full_text,
        wal_uri=wal_uri,
        storage_options=options,
    )
    run_batch(open_stream(table), 0, ranges_of(0))
    driver = open_stream(table)
    flush(driver)
    run_task(write_plan(driver, ranges_of(1)), ranges_of(1))
    driver = open_stream(table)
    run_batch(driver, 1, ranges_of(1))
    run_batch(driver, 2, ranges_of(2))
    run_task(write_plan(driver, ranges_of(3)), ranges_of(3))
    with table.writer(DIRECT, CONFIG) as writer:
        writer.put(rows(-1, -2))
        writer.flush_memtable()
        writer.put(rows(-3))
    base = pa.Table.from_batches([rows(-10, -11, note="base")])
    lance.write_dataset(base, uri, mode="append", storage_options=options)
    return open_table(uri, storage_options=options), driver


def content(table: Table) -> Content:
    """Rows and dead letters."""
    found = table.scan().read_all()
    dead = visible_dead(table.home, STREAM)
    return Counter(zip(found["id"].to_pylist(), found["note"].to_pylist(), strict=True)), dead


def ids(table: Table) -> list[int]:
    found: list[int] = sorted(table.scan(columns=["id"]).read_all()["id"].to_pylist())
    return found


def objects(*stores: ObjectStore) -> dict[str, int]:
    """Every object and its size; Lance's hint of the latest version is replaced at will and does not count."""
    return {
        f"{store.uri}/{info.key}": info.size
        for store in stores
        for info in store.list("")
        if not info.key.endswith("latest_version_hint.json")
    }


def files(path: Path) -> set[str]:
    """But the records of clones that were given up, which stay."""
    found = {one.relative_to(path).as_posix() for one in path.rglob("*") if one.is_file()}
    return {one for one in found if not one.startswith(OUTCOMES)}


def through(table: Table, store: ObjectStore, wal_store: ObjectStore | None = None) -> Table:
    """The table, reached through other stores."""
    return replace(table, home=replace(table.home, store=store, wal_store=wal_store or store))


def clone_into(
    source: Table,
    store: ObjectStore,
    *,
    wal_store: ObjectStore | None = None,
    deep: bool = False,
    checkpoint: str | None = None,
    names: Iterable[str] = (DIRECT,),
) -> uuid.UUID:
    """As `Table.clone` does, into stores that the test brings."""

    def record(table_id: uuid.UUID) -> tuple[str, bytes]:
        own = None if wal_store is None else wal_store.uri
        made = replace(source.record, table_id=table_id, wal_uri=own, wal_undecided=wal_store is None)
        return record_key(table_id), encode(made)

    own = store.retrying(CONFIG.retry)
    target = CloneTarget(own, wal_store.retrying(CONFIG.retry) if wal_store else own, deep, TABLE_ID, record)
    return clone_table(CloneSource(source.home, source.shard_ids, tuple(names)), target, checkpoint=checkpoint)


def faulty(store: ObjectStore, crash_after: int | None = None) -> LanceFaultyStore:
    """A store that dies after so many operations, while Lance reaches the same place directly."""
    return LanceFaultyStore(store, crash_after=crash_after)


def small(path: Path) -> Table:
    """As little as has everything: a stream's shard with a batch, a dead letter and a dead attempt in the WAL, and a
    direct writer's with rows in an SSTable and in the WAL.
    """
    table = create_table(str(path), SCHEMA, sharding=by_partition())
    ranges = ranges_of(0, 10, partitions=[0])
    driver = StreamDriver.open(table.home, STREAM, QUERY, [ByPartition().shard_name(TOPIC, 0)])
    run_task(write_plan(driver, ranges), ranges)
    run_batch(driver, 0, ranges)
    with table.writer(DIRECT, CONFIG) as writer:
        writer.put(rows(-1))
        writer.flush_memtable()
        writer.put(rows(-2))
    return open_table(str(path))
