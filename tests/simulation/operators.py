"""Who else works on a table: operators with their commands, clones, consumers of the log, fsck, somebody who makes the
table anew.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

import pyarrow as pa

from headgate import clock
from headgate.checkpoints.clone.build import CloneTarget
from headgate.checkpoints.clone.clone import CloneSource, clone_table
from headgate.checkpoints.feed.feed import LogFeed, after
from headgate.checkpoints.feed.offsets import Limit, Offsets
from headgate.checkpoints.feed.rows import log_batches
from headgate.checkpoints.fsck.check import check_table
from headgate.checkpoints.fsck.findings import Finding
from headgate.checkpoints.jobs.columns import add_column, current_home
from headgate.checkpoints.offline.checkpoint import checkpoint_stopped, flush_stopped, release
from headgate.checkpoints.offline.compact import compact_stopped
from headgate.checkpoints.offline.retention import BeforePosition, OlderThan, expire
from headgate.checkpoints.snapshots.at_checkpoint import read_checkpoint
from headgate.checkpoints.snapshots.checkpoint import CheckpointStore
from headgate.checkpoints.snapshots.take import drop, take
from headgate.checkpoints.spark.rewind import rewind
from headgate.connectors.lance.base.marks import compacted_marks
from headgate.connectors.lance.datasets import open_dataset
from headgate.errors import Expired, NotFound
from headgate.shards.shard import TABLE_ID
from tests.simulation.codec import TOPIC_ROWS
from tests.simulation.scheduler import Violation
from tests.simulation.streams import LIMITS, POLICY, STREAM, TOPIC

if TYPE_CHECKING:
    from tests.simulation.world import Place, World


def operator(world: World, chance: random.Random) -> None:
    """Commands of the command line, one or two of them."""
    for _ in range(chance.randint(1, 2)):
        clock.sleep(chance.choice((0.05, 5.0, 60.0)))
        here = world.here
        home, ids = current_home(here.home), world.shard_ids(here)
        what = chance.random()
        if what < 0.3:
            compact_stopped(home, ids, limits=LIMITS, policy=POLICY, names=here.names)
        elif what < 0.5:
            checkpoint_stopped(home, ids, names=here.names)
        elif what < 0.6:
            flush_stopped(home, ids, names=here.names)
        elif what < 0.75:
            release(home, ids, STREAM, names=here.names, forget_owner=chance.random() < 0.5)
        elif what < 0.9:
            taken = take(home, ids, names=here.names, expires_after=chance.choice((None, 3600.0)))
            if chance.random() < 0.5:
                drop(home, taken.name)
        elif what < 0.95:
            old = timedelta(seconds=chance.choice((0.0, 60.0)))
            direct = next(shard_id for shard_id, name in here.names.items() if name == "direct")
            before = chance.choice((OlderThan(old), BeforePosition(chance.randint(1, 4))))
            expire(home, ids, before, shard=direct, names=here.names)
        else:
            rewind(home, STREAM, {(TOPIC, 0): chance.randint(0, 3)})


def changer(world: World, chance: random.Random) -> None:
    """Adds columns. A stream that follows the table loses no value of a batch that commits after the call."""
    for number in range(chance.randint(1, 2)):
        clock.sleep(chance.choice((0.05, 1.0, 10.0)))
        here = world.here
        name = f"c{number}"
        add_column(here.home, pa.field(name, pa.int64()))
        world.check_alive()
        if world.here is here:
            here.table.promised.add(name)


def reader_of_checkpoints(world: World, chance: random.Random) -> None:
    """Takes a checkpoint, and reads it some time later: the same rows."""
    here = world.here
    before = Counter(here.table.visible())
    taken = take(here.home, world.shard_ids(here), names=here.names)
    after_taking = Counter(here.table.visible())
    for _ in range(chance.randint(1, 2)):
        clock.sleep(chance.choice((0.05, 10.0, 7200.0)))
        if world.here is not here:
            return
        found = Counter(read_checkpoint(here.home, taken).scan(["id"]).read_all().column("id").to_pylist())
        check_between("a checkpoint", *map(here.table.wanted, (found, before, after_taking)))
    if chance.random() < 0.5:
        drop(here.home, taken.name)


def check_between(what: str, found: Counter[int], least: Counter[int], most: Counter[int]) -> None:
    """Raises Violation."""
    if missing := sorted((least - found).elements()):
        raise Violation(f"invariant 1: {what} misses rows: {missing[:10]}")
    if more := sorted((found - most).elements()):
        raise Violation(f"invariant 1: {what} has rows that do not count, or twice: {more[:10]}")


# -- clones ------------------------------------------------------------------------------------


def cloner(world: World, chance: random.Random) -> None:
    """Clones the table as it is, or a checkpoint of it. A crash, and the same call completes it."""
    here, number = world.here, chance.randint(0, 1)
    deep = number == 0
    target, table = world.clone_store(number)
    named = None
    if chance.random() < 0.3:
        stored = CheckpointStore(here.home.records, here.home.uri).list()
        named = stored[0].checkpoint.name if stored else None
    if named is not None:
        world.named.add(number)
    before = world.began.setdefault(number, Counter(here.table.visible()))

    def record(table_id: object) -> tuple[str, bytes]:
        return f"_headgate/{table_id}/table.json", b"{}"

    source = CloneSource(here.home, lambda: world.shard_ids(here), tuple(here.names.values()))
    clone_table(source, CloneTarget(target, target, deep, TABLE_ID, record), checkpoint=named)
    world.check_alive()
    if world.here is not here or number in world.clones:
        return
    found = Counter(table.visible())
    if number not in world.named:
        check_between("a clone", *map(here.table.wanted, (found, before, Counter(here.table.visible()))))
    world.clones[number] = table, found


# -- consumers of the log ------------------------------------------------------------------------


@dataclass
class ConsumerState:
    """What a consumer has in its own checkpoint."""

    offsets: dict[str, int] | None = None
    hold: float = 3600.0
    seen: list[tuple[int, int]] = field(default_factory=list)


def consumer(world: World, chance: random.Random) -> None:
    """Reads the log from where it was, in batches: every committed row once, in order, or it is told to start anew."""
    here, state = world.here, world.consumer
    feed = LogFeed(here.home, lambda: world.shard_ids(here), "c", hold=state.hold)
    try:
        if state.offsets is None:
            state.offsets = dict(feed.start("earliest"))
        for _ in range(chance.randint(1, 4)):
            clock.sleep(chance.choice((0.0, 2.0, 30.0, 7200.0)))
            if world.here is not here:
                return
            start = state.offsets
            limit = chance.choice((None, Limit(batches=1)))
            end = feed.latest(start, limit)
            found: Counter[int] = Counter()
            for part in feed.plan(start, end):
                for batch in log_batches(here.home, part):
                    found.update(batch.column("id").to_pylist())
            world.check_alive()
            wanted = _between(here, start, end)
            check_between(f"a consumer of the log from {start} to {dict(end)}", found, wanted, wanted)
            state.offsets = dict(end)
            feed.done(end)
    except Expired as error:
        name = error.detail.get("checkpoint")
        world.check_alive()
        if name is None:
            return
        try:
            taken = CheckpointStore(here.home.records, here.home.uri).get(str(name)).checkpoint
        except NotFound:
            return
        found = Counter(read_checkpoint(here.home, taken).scan(["id"]).read_all().column("id").to_pylist())
        topic = Counter({row: count for row, count in found.items() if row >= TOPIC_ROWS})
        wanted = _between(here, {}, after(taken))
        if world.here is here:
            check_between("the checkpoint that a consumer is told to start from", topic, wanted, wanted)
            state.offsets = dict(after(taken))


def _between(here: Place, start: Offsets, end: Offsets) -> Counter[int]:
    """The rows of the batches that lie between, as the records said when they were put."""
    wanted: Counter[int] = Counter()
    for (stream, sequence), ids in here.table.batches.items():
        if start.get(stream, 0) < sequence <= end.get(stream, 0):
            wanted.update(ids)
    return wanted


# -- fsck --------------------------------------------------------------------------------------


def checker(world: World, chance: random.Random) -> None:
    """fsck beside everything else: it tells no damage where there is none."""
    clock.sleep(chance.choice((0.05, 5.0, 60.0)))
    here = world.here
    check_clean(world, here)


def check_clean(world: World, here: Place) -> None:
    """Raises Violation. Of a table that was made anew, writers of the old one may have left what fsck tells."""
    if world.here is here and not world.renewed:
        with here.table.watched() as known:
            told = findings(world, here)
        found = [one for one in told if one.code not in known]
        if found and world.here is here:
            raise Violation(f"fsck finds what is not there: {found[0].code} {found[0].place}: {found[0].what}")


def findings(world: World, here: Place) -> Sequence[Finding]:
    """What fsck tells of the table."""
    marks = compacted_marks(here.home.store, open_dataset(here.home.store))
    return check_table(current_home(here.home), world.shard_ids(here), marks=marks).findings


# -- the table made anew ---------------------------------------------------------------------------


def renewer(world: World, chance: random.Random) -> None:
    """Deletes the table, and makes another one in its place."""
    clock.sleep(chance.choice((1.0, 30.0)))
    world.make_anew()


OPERATORS = {
    "operator": operator,
    "changer": changer,
    "pinner": reader_of_checkpoints,
    "cloner": cloner,
    "consumer": consumer,
    "fsck": checker,
    "renewer": renewer,
}
