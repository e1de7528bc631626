"""What others do to the table while it is under fire: readers, checkpoints, clones and garbage collection.

Every snapshot and every clone is compared with the prefix of the topic that it says it holds. A store that is away is
told by a typed error and counted; anything else fails the soak.
"""

from __future__ import annotations

import random
import threading
import time
import traceback
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import numpy as np
import pyarrow as pa

from headgate.checkpoints.log.commit_log import CommitLog
from headgate.checkpoints.snapshots.parts import part_batches
from headgate.checkpoints.snapshots.splits import plan_at, plan_read
from headgate.connectors.objects import open_store
from headgate.errors import Expired, Poisoned, Transient
from headgate.table.fsck import fsck
from headgate.table.table import Table, open_table
from tests.soak.soak_topic import Cursor, Topic, difference, shown
from tests.soak.soak_world import BUCKET, STREAM, World

AWAY = (Transient, Poisoned)


class Beside:
    """Threads that use the table. What went wrong is in `failures`."""

    def __init__(self, world: World, topic: Topic, seed: int, min_age: timedelta) -> None:
        self._world, self._topic, self._seed, self._min_age = world, topic, seed, min_age
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []

    def run(self, stop: threading.Event) -> list[threading.Thread]:
        """Start them."""
        threads = []
        for name, work in (("reader", self._reader()), ("upkeep", self._upkeep())):
            given = work, random.Random(f"{self._seed} {name}"), stop
            threads.append(threading.Thread(target=self._again_and_again, args=given, name=name, daemon=True))
            threads[-1].start()
        return threads

    def _again_and_again(
        self, work: Callable[[random.Random], None], chance: random.Random, stop: threading.Event
    ) -> None:
        """And once when it is over: the fire is out then, so that each has worked at least once."""
        ending = False
        while not ending:
            ending = stop.wait(chance.uniform(0.5, 3))
            try:
                work(chance)
            except (*AWAY, Expired) as error:
                self.counts[f"told {type(error).__name__}"] += 1
            except Exception as error:
                self.failures.append(f"{error!r}\n{''.join(traceback.format_exception(error))[-4000:]}")

    # -- readers -----------------------------------------------------------------------

    def _reader(self) -> Callable[[random.Random], None]:
        cursor = Cursor(self._topic)

        def read(chance: random.Random) -> None:
            """By the network that breaks, half of the time held by a checkpoint that expires."""
            table = self._world.fired_table()
            held = 60 if chance.random() < 0.5 else None
            began = time.monotonic()
            plan = plan_read(table.home, table.shard_ids(), held)
            if STREAM not in plan.at.streams:
                return
            with _held(began, held or 0):
                batches = [batch for part in plan.parts for batch in part_batches(plan, part)]
            ends = {partition: end for _, partition, end in plan.at.streams[STREAM].ends}
            self._compare("read", cursor, ends, batches)

        return read

    def _compare(self, what: str, cursor: Cursor, ends: dict[int, int], batches: list[pa.RecordBatch]) -> None:
        wanted = cursor.at(ends)
        found = shown(pa.Table.from_batches(batches)) if batches else wanted[:0]
        if not np.array_equal(wanted, found):
            self.failures.append(f"a {what} at {ends} is not the topic's prefix: {difference(wanted, found)}")
        self.counts[what] += 1

    # -- upkeep ------------------------------------------------------------------------

    def _upkeep(self) -> Callable[[random.Random], None]:
        clones, pinned = Cursor(self._topic), Cursor(self._topic)

        def upkeep(chance: random.Random) -> None:
            table = self._world.fired_table()
            kind = chance.random()
            if kind < 0.4:
                self._checkpoint(table, pinned)
            elif kind < 0.7:
                self._clone(table, clones, deep=chance.random() < 0.3)
            else:
                gone = table.collect_garbage(min_age=self._min_age, apply=True)
                self.counts["collection"] += 1
                self.counts["objects collected"] += len(gone.found)

        return upkeep

    def _checkpoint(self, table: Table, cursor: Cursor) -> None:
        """Take one, read the table as it has it, drop it."""
        began, held = time.monotonic(), 300
        taken = table.checkpoint(name=f"soak-{uuid.uuid4().hex[:12]}", expires=held)
        if STREAM in taken.streams:
            with _held(began, held):
                plan = plan_at(table.home, taken)
                batches = [batch for part in plan.parts for batch in part_batches(plan, part)]
            ends = {partition: end for _, partition, end in taken.streams[STREAM].ends}
            self._compare("checkpoint", cursor, ends, batches)
        table.drop_checkpoint(taken.name)

    def _clone(self, table: Table, cursor: Cursor, *, deep: bool) -> None:
        """Make one, compare and check it, remove it. One that was not finished is left: it is nobody's table."""
        uri = f"s3://{BUCKET}/clone-{uuid.uuid4().hex[:12]}"
        table.clone(uri, deep=deep)
        clone = open_table(uri, storage_options=self._world.options)
        head = CommitLog(clone.home.records, STREAM, clone.uri).read().head
        ends = {partition: end for (_, partition), end in head.ends.items()}
        self._compare("clone", cursor, ends, clone.scan().read_all().to_batches())
        if findings := fsck(uri, storage_options=self._world.options).findings:
            self.failures.append(f"fsck of a clone: {[one.code for one in findings]}")
        store = open_store(uri, self._world.options)
        for info in [*store.list("")]:
            store.delete(info.key)


@contextmanager
def _held(began: float, seconds: float) -> Iterator[None]:
    """What a checkpoint holds must not be told to have expired before its time."""
    try:
        yield
    except Expired as error:
        if (spent := time.monotonic() - began) < seconds:
            raise AssertionError(f"held for {seconds:.0f} s, and gone after {spent:.1f} s") from error
        raise
