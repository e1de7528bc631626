"""Small tables with streams and direct writers, for tests of checkpoints: real parts, only Spark is missing.

Topic and rows are those of `life`, so that what a table must show follows from the offsets alone.
"""

from __future__ import annotations

import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

import headgate
from headgate.checkpoints.log.records import Batch, BatchRecord, ShardPart, WriteMode
from headgate.checkpoints.stream.driver import StreamDriver
from headgate.connectors.objects import open_store
from headgate.shards import names
from headgate.shards.config import WriterConfig
from headgate.shards.manifest.model import Manifest
from headgate.shards.shard import Claim, Shard
from headgate.shards.sharding import ByPartition
from headgate.shards.wal.entry import SourceRange, Tags
from headgate.shards.writer import ShardWriter
from headgate.table.create import create_table
from headgate.table.shards import ShardInfo
from headgate.table.table import Table, open_table
from tests.support.datasets import LanceFaultyStore
from tests.support.life import (
    AT_ONCE,
    QUERY,
    SCHEMA,
    TOPIC,
    batch_of,
    expected_rows,
    ranges_of,
    run_task,
    write_plan,
    written,
)
from tests.support.stores import FaultyStore

DIRECT = f"partition:{TOPIC}:7"
"""A shard that no stream has."""
SIZE = 20
"""Offsets of one batch in one partition; every tenth record is a bad one."""
CONFIG = WriterConfig(retry=AT_ONCE)


def make(path: Path, *, key: str | None = None) -> Table:
    """An empty table whose shards are partitions."""
    sharding = headgate.by_partition(key_is_partitioned=key is not None)
    return create_table(str(path / "table"), SCHEMA, primary_key=key, sharding=sharding)


def copied(table: Table, path: Path) -> Table:
    """The same bytes elsewhere."""
    shutil.copytree(table.uri, path)
    return open_table(str(path))


def faulty(table: Table, **arguments: Any) -> LanceFaultyStore:
    """A store with faults around the table's."""
    return LanceFaultyStore(open_store(table.uri), **arguments)


def through(table: Table, store: FaultyStore) -> Table:
    """The same table, reached through a store with faults."""
    return replace(table, home=replace(table.home, store=store, wal_store=store).retrying(AT_ONCE))


def open_stream(table: Table, partitions: Iterable[int] = (0, 1), *, stream: str = "s") -> StreamDriver:
    """Takes the stream over, with retries that do not wait."""
    shards = [ByPartition().shard_name(TOPIC, partition) for partition in partitions]
    return StreamDriver.open(table.home.retrying(AT_ONCE), stream, QUERY, shards)


def run_batch(
    driver: StreamDriver,
    number: int,
    partitions: Iterable[int] = (0, 1),
    mode: WriteMode = "memtable",
    *,
    attempts: int = 1,
) -> BatchRecord:
    """Plan, write and commit one batch. Of several attempts the first counts, and the others leave dead entries."""
    ranges = ranges_of(number, SIZE, partitions)
    plan = write_plan(driver, ranges)
    done, *_ = [written(*(run_task(plan, parts) for parts in plan.sources.values())) for _ in range(attempts)]
    return driver.commit(replace(batch_of(plan, done, number, ranges), mode=mode))


def commit_changes(
    table: Table,
    driver: StreamDriver,
    changes: Iterable[tuple[int, str | None]],
    *,
    attempts: int = 1,
    on_written: Callable[[], object] = lambda: None,
) -> BatchRecord:
    """One batch of upserts and deletes (None) by odd and even ids, in this order; the last attempt counts.

    `on_written` is called when its entries are there and its record is not.
    """
    names_of, changes = sorted(driver.claims), list(changes)
    by_shard = {name: [one for one in changes if one[0] % 2 == place] for place, name in enumerate(names_of)}
    planned = driver.plan([name for name, some in by_shard.items() if some])
    parts = {}
    for name, claim in planned.claims.items():
        for _ in range(attempts):
            parts[name] = _appended(table, claim, by_shard[name])
    on_written()
    head = driver.head
    number = 0 if head.last is None else head.last.batch_id + 1
    return driver.commit(Batch(query_id=QUERY, batch_id=number, shards=parts, mode="memtable"))


def _appended(table: Table, claim: Claim, changes: Iterable[tuple[int, str | None]]) -> ShardPart:
    schema, stored = table.home.schema, []
    for key, note in changes:
        if note is None:
            stored += schema.stored_deletes(pa.record_batch({"id": pa.array([key], pa.int64())}))
        else:
            stored += schema.stored_rows(pa.record_batch({"id": [key], "note": [note]}, schema=SCHEMA))
    attempt = uuid.uuid4().hex
    with ShardWriter.attach(claim, WriterConfig(enable_memtable=False, retry=AT_ONCE)) as writer:
        put = writer.append(stored, Tags(attempt))
        return ShardPart(claim.shard.id, attempt, put.wait(), put.rows, put.nbytes)


def dead_attempt(driver: StreamDriver, number: int, partitions: Iterable[int] = (0, 1)) -> None:
    """What tasks leave whose batch nobody commits."""
    ranges = ranges_of(number, SIZE, partitions)
    plan = write_plan(driver, ranges)
    for parts in plan.sources.values():
        run_task(plan, parts)


def shard_of(table: Table, partition: int) -> Shard:
    """The shard of a partition."""
    return table.home.shard(f"partition:{TOPIC}:{partition}")


def manifest_of(shard: Shard) -> Manifest:
    """The latest."""
    found = shard.manifests.latest()
    assert found is not None
    return found


def tip_of(shard: Shard) -> int:
    """The first position that is free."""
    found = (names.wal_position(info.key) for info in shard.wal.list(names.wal_folder(shard.id) + "/"))
    return max(position for position in found if position is not None) + 1


def rows(*ids: int, note: str = "direct") -> pa.RecordBatch:
    """Rows of a direct writer."""
    return pa.record_batch({"id": list(ids), "note": [note] * len(ids)}, schema=SCHEMA)


def ids(table: Table) -> Counter[int]:
    """The ids that a reader sees."""
    return Counter(table.scan(columns=["id"]).read_all().column("id").to_pylist())


def of_batches(numbers: Iterable[int], partitions: Sequence[int] = (0, 1)) -> Counter[int]:
    """The ids that these batches hold."""
    ranges: list[SourceRange] = [part for number in numbers for part in ranges_of(number, SIZE, partitions)]
    return expected_rows(ranges)


def native_ids(table: Table, shard: Shard) -> list[int]:
    """What a native writer replays and sees of a shard. THIS FENCES OURS."""
    writer = lance.dataset(table.uri).mem_wal_writer(str(shard.id))
    try:
        return sorted(writer.lsm_scanner().to_table().column("id").to_pylist())
    finally:
        writer.close()


def claimed(table: Table) -> list[ShardInfo]:
    """The shards that somebody has opened for writing."""
    return [shard for shard in table.shards() if shard.claimed]
