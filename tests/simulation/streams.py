"""Streams of a schedule: Spark's side of them as a small value, drivers with their tasks and upkeep.

Spark and Kafka are modelled: the topic is a function of partition and offset, and Spark's checkpoint a value that
may be lost, rolled back, or shared by a driver that should be dead. The driver does what `streaming.run` does around
a batch.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from headgate import clock
from headgate.checkpoints.gc.base import tidy_base
from headgate.checkpoints.jobs.columns import gained, stream_schema
from headgate.checkpoints.jobs.flush import run_here
from headgate.checkpoints.jobs.policy import BasePolicy, CompactLimits
from headgate.checkpoints.log.decisions import BatchSources, Refusal, Skip, decide_batch
from headgate.checkpoints.log.records import Batch, ShardPart
from headgate.checkpoints.stream.batches import free_of_batches
from headgate.checkpoints.stream.checkpoint import FinalCompaction, checkpoint_stream, stop_stream
from headgate.checkpoints.stream.driver import StreamDriver
from headgate.errors import Fenced
from headgate.shards.config import WriterConfig
from headgate.shards.rows.schema import RowSchema
from headgate.shards.shard import Claim
from headgate.shards.wal.entry import SourceRange, Tags
from headgate.shards.writer import ShardWriter
from tests.simulation.codec import row_id
from tests.simulation.promises import rows
from tests.simulation.scheduler import current

if TYPE_CHECKING:
    from tests.simulation.world import Place, World

TOPIC, STREAM = "t", "s"
WAL_ONLY = WriterConfig(enable_memtable=False)
LIMITS = CompactLimits(max_bytes=1 << 20)
POLICY = BasePolicy(max_small=2, keep_versions=timedelta(seconds=60))


def shard_name(partition: int) -> str:
    """The shard of a partition."""
    return f"partition:{TOPIC}:{partition}"


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
            SourceRange(TOPIC, partition, start := ends.get(partition, 0), start + size) for partition, size in sizes
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

    def adopt(self, ends: Mapping[tuple[str, int], int]) -> None:
        """A new checkpoint, started with the offsets that the refusal named."""
        self.query, self.commits = f"{self.query}+", {-1}
        self.offsets = {-1: tuple(SourceRange(topic, at, end, end) for (topic, at), end in ends.items())}


def driver(world: World, chance: random.Random) -> None:
    """One start of the query: takes the stream over, and runs some batches, with upkeep beside them."""
    if chance.random() < 0.15:
        world.spark.damage(chance)
    shards = [shard_name(partition) for partition in range(world.partitions)]
    here = world.here
    held = open_stream(world, here, shards)
    run = Run(world, here, held, chance)
    run.read_columns()
    beside = world.beside("upkeep", partial(upkeep, run, random.Random(chance.random())))
    for _ in range(chance.randint(1, 3)):
        run.batch()
        clock.sleep(chance.choice((0.0, 0.1, 10.0, 20_000.0)))
    if chance.random() < 0.7:
        beside.join()
        if chance.random() < 0.4:
            compaction = chance.choice((None, FinalCompaction(60.0)))
            stop_stream(held, world.shard_ids(here), run_here, max_bytes=1 << 20, keep=1, compaction=compaction)


def open_stream(world: World, here: Place, shards: Sequence[str]) -> StreamDriver:
    """As a stream starts: what batch writes hold is let go of first."""

    def free(found: Iterable[str] = ()) -> None:
        free_of_batches(here.home, world.shard_ids(here), run_here, found)

    return StreamDriver.open(here.home, STREAM, world.spark.query, shards, accept=lambda head: free(), free=free)


class Run:
    """The batches of one start, as `streaming.run` writes them: it follows the table's columns (R22)."""

    def __init__(self, world: World, here: Place, held: StreamDriver, chance: random.Random) -> None:
        self.world, self.here, self.held, self.chance = world, here, held, chance
        self._columns_at = 0
        self._other_columns = False
        self._another_table: Fenced | None = None

    def look(self) -> None:
        """What maintenance does now and then: a changer may have died before it told the streams."""
        try:
            self._other_columns = look(self.world, self.here) != self.held.home.schema
        except Fenced as error:
            self._another_table = error
            raise

    def read_columns(self) -> bool:
        """Whether there is one that what was written before lacks. Raises Fenced where another table is here (R23)."""
        self._columns_at = self.held.head.changed
        before, found = self.held.home.schema, look(self.world, self.here)
        if found == before:
            return False
        self.held.use_columns(found)
        return gained(before, found)

    def batch(self) -> None:
        """What Spark's next call of `foreachBatch` does."""
        world, held = self.world, self.held
        query = world.spark.query
        if self._other_columns or held.head.changed != self._columns_at:
            self._other_columns = False
            self.read_columns()
        number, ranges = world.spark.next(self.chance, world.partitions)
        decision = decide_batch(held.head, query, number, BatchSources(ranges), lambda topic, partition: 0)
        if isinstance(decision, Refusal):
            world.spark.adopt(held.head.ends)
            return
        if not isinstance(decision, Skip):

            def again() -> Batch | None:
                return self._written(query, number, ranges) if self.read_columns() else None

            first = self._written(query, number, ranges)
            if self._another_table is not None:
                raise self._another_table
            held.commit(first, again)
            done = {row_id(one.partition, at) for one in ranges for at in range(one.start, one.until)}
            world.acknowledge(self.here, done)
        if world.spark.query == query:
            world.spark.commits.add(number)

    def _written(self, query: str, number: int, ranges: tuple[SourceRange, ...]) -> Batch:
        with_rows = [one for one in ranges if one.until > one.start]
        wanted = [shard_name(one.partition) for one in with_rows]
        planned = self.held.plan(wanted)
        while self.held.head.changed != self._columns_at:
            self.read_columns()
            planned = self.held.plan(wanted)
        parts = {
            name: run_task(self.world, planned.claims[name], one, self.chance)
            for name, one in zip(wanted, with_rows, strict=True)
        }
        return Batch(query_id=query, batch_id=number, sources=ranges, shards=parts, mode="memtable")


def look(world: World, here: Place) -> RowSchema:
    """The table's columns, as a start or a look of maintenance reads them. Finding another table ends the stream."""
    before = world.here
    found = stream_schema(here.home)
    world.check_own(here, before)
    return found


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
    schema = claim.shard.home.schema
    stored = schema.stored_rows(rows(schema.logical, *ids))
    with ShardWriter.attach(claim, WAL_ONLY) as writer:
        put = writer.append(stored, Tags(attempt_id, (part,)))
        return ShardPart(claim.shard.id, attempt_id, put.wait(), put.rows, put.nbytes)


def upkeep(run: Run, chance: random.Random) -> None:
    """What a driver's threads do beside the batches."""
    world, here, held = run.world, run.here, run.held
    for _ in range(chance.randint(0, 4)):
        clock.sleep(chance.choice((0.05, 5.0, 120.0)))
        what = chance.random()
        if what < 0.35:
            with held.maintenance("a flush"):
                names = sorted(held.claims) if chance.random() < 0.7 else None
                held.flushed(run_here(held.flush_jobs(1, names)))
        elif what < 0.55:
            checkpoint_stream(held, world.shard_ids(here), run_here, max_bytes=1 << 20, keep=1)
        elif what < 0.65:
            held.fold()
        elif what < 0.85:
            held.compact(LIMITS)
        elif what < 0.93:
            tidy_base(held.home, POLICY)
        else:
            run.look()
