"""Who takes part in a schedule: direct writers, collections, readers; the others are in modules beside this one."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import UUID

from headgate import clock
from headgate.checkpoints.gc.collect import collect
from headgate.checkpoints.jobs.columns import current_home
from headgate.checkpoints.snapshots.cache import TableCache
from headgate.checkpoints.snapshots.snapshot import read_snapshot
from headgate.errors import HeadgateError
from headgate.retry import Retry
from headgate.shards.config import WriterConfig
from headgate.shards.shard import TableHome
from headgate.shards.writer import ShardWriter
from tests.simulation.batches import append
from tests.simulation.operators import OPERATORS, check_between
from tests.simulation.promises import rows
from tests.simulation.recover import recoverer
from tests.simulation.streams import WAL_ONLY, driver

if TYPE_CHECKING:
    from tests.simulation.world import World

DIRECT = "direct"
HASTY = Retry(attempts=0)
"""Gives up at once: what it sent may still arrive."""


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
    here, ledger = world.here, world.here.ledger
    with ShardWriter.open(current_home(here.home), here.home.shard(DIRECT).id, config) as writer:
        puts = []
        try:
            for _ in range(chance.randint(1, 4)):
                row = world.fresh()
                ledger.attempted.add(row)
                puts.append((row, writer.put(rows(writer.shard.home.schema.logical, row))))
                if chance.random() < 0.2:
                    clock.sleep(chance.choice((0.05, 7200.0)))
                if config.enable_memtable and chance.random() < 0.2:
                    writer.flush_memtable()
            for row, put in puts:
                put.wait()
                world.acknowledge(here, {row})
        except HeadgateError:
            for row, put in puts:
                if put.done:
                    world.acknowledge(here, {row})
            left = writer.take_pending()
            world.check_alive()
            for pending in left.failed:
                ledger.not_durable |= {one for batch in pending.batches for one in batch.column("id").to_pylist()}
            world.check()
            raise


# -- others -----------------------------------------------------------------------------------


def collector(world: World, chance: random.Random) -> None:
    """Garbage collection, now and then."""
    for _ in range(chance.randint(1, 3)):
        clock.sleep(chance.choice((0.05, 1.0, 7200.0)))
        here, age = world.here, chance.choice((timedelta(0), timedelta(hours=1)))
        collect(here.home, world.shard_ids(here), min_age=age, apply=True)


def reader(world: World, chance: random.Random) -> None:
    """Reads the table: at least what was visible when it began, at most what is when it ends."""
    cache, here = TableCache(), world.here
    for _ in range(chance.randint(1, 3)):
        clock.sleep(chance.choice((0.05, 1.0)))
        before = Counter(here.table.visible())
        found = read(here.home, world.shard_ids(here), cache)
        if world.here is here:
            check_between("a reader", *map(here.table.wanted, (found, before, Counter(here.table.visible()))))


def read(home: TableHome, shard_ids: Iterable[UUID], cache: TableCache | None = None) -> Counter[int]:
    """The product's reader. `cache` is of earlier reads."""
    found = read_snapshot(home, shard_ids, cache=cache).scan(["id"]).read_all()
    return Counter(found.column("id").to_pylist())


PARTIES: dict[str, Callable[[World, random.Random], None]] = {
    "writer": direct_writer,
    "driver": driver,
    "append": append,
    "gc": collector,
    "reader": reader,
    "recoverer": recoverer,
    **OPERATORS,
}
