"""Batch writes of a schedule: jobs that have an id, and that several processes try."""

from __future__ import annotations

import random
import uuid
from typing import TYPE_CHECKING

from headgate import clock
from headgate.checkpoints.jobs.flush import run_here
from headgate.checkpoints.log.records import BATCH, Batch, OpaqueRange, ShardPart
from headgate.checkpoints.stream.batches import begin, let_go
from headgate.checkpoints.stream.checkpoint import FinalCompaction
from headgate.shards.shard import Claim
from headgate.shards.wal.entry import Tags
from headgate.shards.writer import ShardWriter
from tests.simulation.promises import batch_rows, rows
from tests.simulation.streams import WAL_ONLY, shard_name

if TYPE_CHECKING:
    from tests.simulation.world import World


def append(world: World, chance: random.Random) -> None:
    """A job that is tried once or twice: what has its id is written once, whoever tries it."""
    number, name, here = chance.randint(0, 2), shard_name(0), world.here
    for _ in range(chance.choice((1, 1, 2))):
        held, is_written = begin(here.home, f"b{number}", [name])
        if held is None:
            return
        if not is_written:
            ids = batch_rows(number)
            here.ledger.attempted |= set(ids)
            claim = held.plan([name]).claims[name]
            attempts = [written(claim, ids) for _ in range(chance.choice((1, 1, 2)))]
            assert held.head.opened is not None
            held.commit(
                Batch(
                    query_id=held.head.opened.query_id,
                    batch_id=0,
                    opaque=(OpaqueRange(f"{BATCH}b{number}", None, "done"),),
                    shards={name: attempts[-1]},
                    mode="memtable",
                )
            )
            world.acknowledge(here, set(ids))
        clock.sleep(chance.choice((0.0, 0.05, 10.0)))
        compaction = chance.choice((None, FinalCompaction(60.0)))
        let_go(held, world.shard_ids(here), run_here, compaction)


def written(claim: Claim, ids: tuple[int, ...]) -> ShardPart:
    """One attempt of its task."""
    attempt_id, schema = uuid.uuid4().hex, claim.shard.home.schema
    with ShardWriter.attach(claim, WAL_ONLY) as writer:
        put = writer.append(schema.stored_rows(rows(schema.logical, *ids)), Tags(attempt_id, ()))
        return ShardPart(claim.shard.id, attempt_id, put.wait(), put.rows, put.nbytes)
