"""Who takes part in a schedule: direct writers, drivers with their tasks and upkeep, collections, readers.

Spark and Kafka are modelled: the topic is a function of partition and offset, and Spark's checkpoint a small value that
may be lost, rolled back, or shared by a driver that should be dead. All else is the product's.
"""

from __future__ import annotations

import random
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

import pyarrow as pa

from headgate import clock
from headgate.checkpoints.gc.collect import collect
from headgate.checkpoints.jobs.flush import run_here
from headgate.checkpoints.log.decisions import BatchSources, Refusal, Skip, decide_batch
from headgate.checkpoints.log.records import Batch, ShardPart
from headgate.checkpoints.snapshots.cache import TableCache
from headgate.checkpoints.snapshots.snapshot import read_snapshot
from headgate.checkpoints.stream.checkpoint import checkpoint_stream
from headgate.checkpoints.stream.driver import StreamDriver
from headgate.errors import Fenced, HeadgateError
from headgate.retry import Retry
from headgate.shards.config import WriterConfig
from headgate.shards.shard import Claim, TableHome
from headgate.shards.wal.entry import SourceRange, Tags
from headgate.shards.writer import ShardWriter
from tests.simulation.promises import row_id
from tests.simulation.scheduler import Violation, current

if TYPE_CHECKING:
    from tests.simulation.world import World

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])
TOPIC, STREAM, DIRECT = "t", "s", "direct"
HASTY = Retry(attempts=0)
"""Gives up at once: what it sent may still arrive."""
WAL_ONLY = WriterConfig(enable_memtable=False)


def shard_name(partition: int) -> str:
    """The shard of a partition."""
    return f"partition:{TOPIC}:{partition}"


def rows(*ids: int) -> pa.RecordBatch:
    """A batch with these ids."""
    return pa.record_batch({"id": list(ids)}, schema=SCHEMA)


# -- direct writers --------------------------------------------------------------------------


def direct_writer(world: World, chance: random.Random) -> None:
    """Opens the shard, puts some rows, and closes or not. What it is told goes into the ledger."""
    config = chance.choice(
        (
            WAL_ONLY,
            WriterConfig(enable_memtable=False, durable_write=False, retry=HASTY),
            WriterConfig(max_memtable_rows=1),
            WriterConfig(max_memtable_rows=2, durable_write=False, retry=HASTY),
        )
    )
    ledger = world.ledger
    with ShardWriter.open(world.home, world.home.shard(DIRECT).id, config) as writer:
        puts = []
        try:
            for _ in range(chance.randint(1, 4)):
                row = world.fresh()
                ledger.attempted.add(row)
                puts.append((row, writer.put(rows(row))))
                if chance.random() < 0.2:
                    clock.sleep(chance.choice((0.05, 7200.0)))
                if config.enable_memtable and chance.random() < 0.2:
                    writer.flush_memtable()
            for row, put in puts:
                put.wait()
                world.acknowledge(row)
        except HeadgateError:
            for row, put in puts:
                if put.done:
                    world.acknowledge(row)
            left = writer.take_pending()
            world.check_alive()
            for pending in left.failed:
                ledger.not_durable |= {one for batch in pending.batches for one in batch.column("id").to_pylist()}
            world.check()
            raise


# -- streams -----------------------------------------------------------------------------------


@dataclass
class SparkCheckpoint:
    """Spark's side of a stream: what each batch reads, and which are done."""

    query: str = "q1"
    offsets: dict[int, tuple[SourceRange, ...]] = field(default_factory=dict)
    commits: set[int] = field(default_factory=set)

    def ends(self) -> dict[int, int]:
        """Where the next batch starts, by partition."""
        return {one.partition: one.until for number in sorted(self.offsets) for one in self.offsets[number]}

    def next(self, chance: random.Random, partitions: int) -> tuple[int, tuple[SourceRange, ...]]:
        """The batch to run: the last one again, unless it is done."""
        last = max(self.offsets, default=-1)
        if last >= 0 and last not in self.commits:
            return last, self.offsets[last]
        ends = self.ends()
        sizes = [(partition, chance.choice((0, 1, 2))) for partition in range(partitions)]
        ranges = tuple(
            SourceRange(TOPIC, partition, start, start + size)
            for partition, size in sizes
            if (start := ends.get(partition, 0)) or size
        )
        self.offsets[last + 1] = ranges
        return last + 1, ranges

    def damage(self, chance: random.Random) -> None:
        """It was lost, or came back from a backup."""
        if chance.random() < 0.3:
            self.query, self.offsets, self.commits = f"{self.query}'", {}, set()
        else:
            for number in sorted(self.offsets)[-chance.randint(1, 2) :]:
                del self.offsets[number]
                self.commits.discard(number)

    def adopt(self, ends: dict[tuple[str, int], int]) -> None:
        """A new checkpoint, started with the offsets that the refusal named."""
        self.query, self.commits = f"{self.query}+", {-1}
        self.offsets = {-1: tuple(SourceRange(topic, at, end, end) for (topic, at), end in ends.items())}


def driver(world: World, chance: random.Random) -> None:
    """One start of the query: takes the stream over, and runs some batches, with upkeep beside them."""
    spark = world.spark
    if chance.random() < 0.15:
        spark.damage(chance)
    names = [shard_name(partition) for partition in range(world.partitions)]
    held = StreamDriver.open(world.home, STREAM, spark.query, names)
    upkeep_chance = random.Random(chance.random())
    beside = world.beside("upkeep", lambda: upkeep(world, held, upkeep_chance))
    for _ in range(chance.randint(1, 3)):
        query = spark.query
        number, ranges = spark.next(chance, world.partitions)
        decision = decide_batch(held.head, query, number, BatchSources(ranges), lambda topic, partition: 0)
        if isinstance(decision, Refusal):
            spark.adopt(dict(held.head.ends))
            continue
        if not isinstance(decision, Skip):
            with_rows = [one for one in ranges if one.until > one.start]
            planned = held.plan([shard_name(one.partition) for one in with_rows])
            parts = {
                shard_name(one.partition): run_task(world, planned.claims[shard_name(one.partition)], one, chance)
                for one in with_rows
            }
            held.commit(Batch(query_id=query, batch_id=number, sources=ranges, shards=parts, mode="memtable"))
            world.check_alive()
            world.ledger.acknowledged |= {row_id(o.partition, at) for o in ranges for at in range(o.start, o.until)}
            world.check()
        if spark.query == query:
            spark.commits.add(number)
        clock.sleep(chance.choice((0.0, 0.1, 10.0, 20_000.0)))
    if chance.random() < 0.7:
        beside.join()


def run_task(world: World, claim: Claim, part: SourceRange, chance: random.Random) -> ShardPart:
    """A task on an executor: the first attempt that answers counts; another may go on for ever. Raises its error."""
    for _ in range(2):
        if (answer := first_answer(world, claim, part, chance.choice((1, 1, 2, 3)))) is not None:
            return answer
    raise Fenced("The task failed twice.")


def first_answer(world: World, claim: Claim, part: SourceRange, attempts: int) -> ShardPart | None:
    """Of so many attempts at once; None: all have failed."""
    answers: list[ShardPart] = []
    threads = [world.process("task", lambda: answers.append(attempt(claim, part))) for _ in range(attempts)]
    me = current()
    assert me is not None
    me.scheduler.block(lambda: bool(answers) or all(one.ended for one in threads), None, "wait for the task")
    return answers[0] if answers else None


def attempt(claim: Claim, part: SourceRange) -> ShardPart:
    """One attempt of it."""
    attempt_id = uuid.uuid4().hex
    ids = [row_id(part.partition, at) for at in range(part.start, part.until)]
    stored = claim.shard.home.schema.stored_rows(rows(*ids))
    with ShardWriter.attach(claim, WAL_ONLY) as writer:
        put = writer.append(stored, Tags(attempt_id, (part,)))
        return ShardPart(claim.shard.id, attempt_id, put.wait(), put.rows, put.nbytes)


def upkeep(world: World, held: StreamDriver, chance: random.Random) -> None:
    """What a driver's thread does beside the batches."""
    for _ in range(chance.randint(0, 3)):
        clock.sleep(chance.choice((0.05, 5.0)))
        what = chance.random()
        if what < 0.5:
            with held.maintenance("a flush"):
                names = sorted(held.claims) if chance.random() < 0.7 else None
                held.flushed(run_here(held.flush_jobs(1, names)))
        elif what < 0.8:
            checkpoint_stream(held, world.shard_ids(), run_here, max_bytes=1 << 20, keep=1)
        else:
            held.fold()


# -- the others ----------------------------------------------------------------------------------


def collector(world: World, chance: random.Random) -> None:
    """Garbage collection, now and then."""
    for _ in range(chance.randint(1, 3)):
        clock.sleep(chance.choice((0.05, 1.0, 7200.0)))
        collect(world.home, world.shard_ids(), min_age=chance.choice((timedelta(0), timedelta(hours=1))), apply=True)


def reader(world: World, chance: random.Random) -> None:
    """Reads the table: at least what was visible when it began, at most what is when it ends."""
    cache = TableCache()
    for _ in range(chance.randint(1, 3)):
        clock.sleep(chance.choice((0.05, 1.0)))
        before = set(world.table.visible())
        found = read(world.home, world.shard_ids(), cache)
        after = set(world.table.visible())
        compare(found, before, after)


def read(home: TableHome, shard_ids: tuple[uuid.UUID, ...], cache: TableCache | None = None) -> Counter[int]:
    """The product's reader. `cache` is of earlier reads."""
    found = read_snapshot(home, shard_ids, cache=cache).scan(["id"]).read_all()
    return Counter(found.column("id").to_pylist())


def compare(found: Counter[int], least: set[int], most: set[int]) -> None:
    """Raises Violation."""
    for what, wrong in (
        ("a reader sees rows twice", {row for row, count in found.items() if count > 1}),
        ("a reader misses rows", least - found.keys()),
        ("a reader sees rows that do not count", found.keys() - most),
    ):
        if wrong:
            raise Violation(f"invariant 1: {what}: {sorted(wrong)[:10]}")


PARTIES: dict[str, Callable[[World, random.Random], None]] = {
    "writer": direct_writer,
    "driver": driver,
    "gc": collector,
    "reader": reader,
}
