"""A stream without Spark: the same driver, tasks and decisions, called one after the other.

The topic is a function of partition and offset, so that what a table must show follows from
the offsets alone.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from headgate.checkpoints.log.commit_log import CommitLog
from headgate.checkpoints.log.dead_letters import PREFIX, read_dead_letters
from headgate.checkpoints.log.decisions import BatchSources, Refusal, Skip, decide_batch
from headgate.checkpoints.log.records import Batch, BatchRecord
from headgate.checkpoints.log.visibility import Visible
from headgate.checkpoints.stream.driver import StreamDriver
from headgate.connectors.kafka.rows import row_schema
from headgate.connectors.objects.port import ObjectStore
from headgate.retry import Retry
from headgate.shards.config import WriterConfig
from headgate.shards.rows.schema import PRIMARY_KEY, RowSchema
from headgate.shards.shard import TableHome
from headgate.shards.sharding import ByPartition, Sharding
from headgate.shards.wal.entry import SourceRange
from headgate.shards.wal.tailer import WalTailer
from headgate.streaming.decode.api import json as json_decoder
from headgate.streaming.write import task
from headgate.streaming.write.job import Written
from headgate.streaming.write.routing import shards_of
from headgate.streaming.write.rows import RowMaker
from headgate.streaming.write.task import WritePlan

TOPIC = "orders"
QUERY = "query"
AT_ONCE = Retry(attempts=3, base=0)
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("note", pa.string())])
KEYED = pa.schema([SCHEMA.field("id").with_metadata({PRIMARY_KEY: b"true"}), SCHEMA.field("note")])
TABLE = uuid.UUID(int=77)
KAFKA = row_schema(("value", "partition", "offset", "key", "topic"))


def home_of(store: ObjectStore, schema: pa.Schema = SCHEMA) -> TableHome:
    """A table of ids and notes in that store."""
    patient = store.retrying(AT_ONCE)
    return TableHome(RowSchema.of(schema), patient, patient, TABLE)


def row_id(partition: int, offset: int) -> int:
    """The id of the row that stands there."""
    return partition * 1_000_000 + offset


def value_at(partition: int, offset: int) -> bytes:
    """Every tenth record is a bad one."""
    if offset % 10 == 9:
        return b"bad %d" % row_id(partition, offset)
    return json.dumps({"id": row_id(partition, offset), "note": "n"}).encode()


def records(part: SourceRange, **columns: Any) -> pa.RecordBatch:
    """A range as Spark's Kafka source, or our own reader, gives it."""
    offsets = range(part.start, part.until)
    found = {
        "value": [value_at(part.partition, offset) for offset in offsets],
        "partition": [part.partition] * len(offsets),
        "offset": list(offsets),
        "key": [b"k"] * len(offsets),
        "topic": [part.topic] * len(offsets),
        **columns,
    }
    return pa.record_batch(found, schema=KAFKA)


def expected_rows(ranges: Iterable[SourceRange]) -> Counter[int]:
    """The ids that the ranges hold."""
    return Counter(row_id(r.partition, o) for r in ranges for o in range(r.start, r.until) if o % 10 != 9)


def expected_dead(ranges: Iterable[SourceRange]) -> Counter[tuple[int, int]]:
    """Partition and offset of the bad records that the ranges hold."""
    return Counter((r.partition, o) for r in ranges for o in range(r.start, r.until) if o % 10 == 9)


# -- a driver's steps ----------------------------------------------------------------


def open_driver(
    home: TableHome,
    partitions: Iterable[int] = (0, 1),
    *,
    stream: str = "s",
    query: str = QUERY,
    sharding: Sharding = ByPartition(),  # noqa: B008
) -> StreamDriver:
    """Takes the stream over, with retries that do not wait."""
    names = sharding.known_names() or [ByPartition().shard_name(TOPIC, p) for p in partitions]
    return StreamDriver.open(home, stream, query, names)


def write_plan(
    driver: StreamDriver,
    ranges: Sequence[SourceRange],
    sharding: Sharding = ByPartition(),  # noqa: B008
    **changes: Any,
) -> WritePlan:
    """What the sink would send to the tasks of the batch."""
    sources = shards_of(sharding, ranges)
    planned = driver.plan(sources)
    plan = WritePlan(
        maker=RowMaker(driver.home.schema, sharding, json_decoder(SCHEMA), topic=TOPIC),
        claims=planned.claims,
        dead_letters=planned.dead_letters,
        sources=sources,
        writer=WriterConfig(enable_memtable=False, retry=AT_ONCE),
        max_entry_bytes=256 << 20,
        columns=("value", "partition", "offset"),
    )
    return replace(plan, **changes)


def run_task(plan: WritePlan, ranges: Iterable[SourceRange]) -> list[dict[str, Any]]:
    """One attempt of one task over whole ranges: what it says it wrote."""
    return lines_of(task.write_kafka(plan, map(records, ranges)))


def lines_of(output: Iterable[pa.RecordBatch]) -> list[dict[str, Any]]:
    """The JSON lines of a task's answer."""
    return [json.loads(line) for batch in output for line in batch.column(0).to_pylist()]


def written(*outputs: list[dict[str, Any]]) -> Written:
    """What the driver makes of the tasks' answers."""
    lines = [line for output in outputs for line in output]
    assert not [line for line in lines if "error" in line], lines
    return Written(tuple(line for line in lines if "shard" in line))


def batch_of(plan: WritePlan, done: Written, number: int, ranges: Sequence[SourceRange], query: str = QUERY) -> Batch:
    """The batch as its driver would commit it."""
    shards, dead = done.parts(plan)
    return Batch(query_id=query, batch_id=number, sources=tuple(ranges), shards=shards, dead_letters=dead)


def run_batch(driver: StreamDriver, number: int, ranges: Sequence[SourceRange], query: str = QUERY) -> BatchRecord:
    """Decide, plan, write, commit; a batch that the log has is returned as it is stored."""
    decision = decide_batch(driver.head, query, number, BatchSources(tuple(ranges)), lambda topic, partition: 0)
    if isinstance(decision, Skip):
        return decision.record
    if isinstance(decision, Refusal):
        raise decision.error
    plan = write_plan(driver, ranges)
    done = written(*(run_task(plan, parts) for parts in plan.sources.values()))
    return driver.commit(batch_of(plan, done, number, ranges, query))


def ranges_of(number: int, size: int = 20, partitions: Iterable[int] = (0, 1)) -> tuple[SourceRange, ...]:
    """Batch `number` of a topic that is read in equal steps."""
    return tuple(SourceRange(TOPIC, p, number * size, (number + 1) * size) for p in partitions)


# -- what a reader sees ----------------------------------------------------------------


def visible_rows(home: TableHome, *streams: str) -> Counter[int]:
    """The ids of every row that counts, from the WALs alone. Raises DataLoss for what is missing."""
    states = [CommitLog(home.records, stream, home.uri).read() for stream in streams or ("s",)]
    visible = Visible.of(states, home.uri)
    found: Counter[int] = Counter()
    for shard_id, positions in visible.shards.items():
        if not positions.shard.startswith(PREFIX):
            # Rows start at 1: entry 0 is only ever the barrier of a fresh shard, and may be missing.
            entries = WalTailer(home.shard(shard_id)).read(1)
            for one in visible.visible_entries(shard_id, entries, 1):
                found.update(row for batch in one.entry.batches for row in batch.column("id").to_pylist())
    return found


def visible_dead(home: TableHome, stream: str = "s") -> Counter[tuple[int, int]]:
    """Partition and offset of every dead letter that counts."""
    found: Counter[tuple[int, int]] = Counter()
    for letters in read_dead_letters(home, stream):
        found.update(zip(letters["partition"].to_pylist(), letters["offset"].to_pylist(), strict=True))
    return found


def check_exactly_once(home: TableHome, ranges: Iterable[SourceRange]) -> None:
    """Rows and dead letters are those of the ranges, each once, and nothing else is there."""
    ranges = list(ranges)
    assert visible_rows(home) == expected_rows(ranges)
    assert visible_dead(home) == expected_dead(ranges)
