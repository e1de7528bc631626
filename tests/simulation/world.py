"""One schedule: a table, its parties, and the promises after each change."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from headgate.checkpoints.gc.collect import collect
from headgate.checkpoints.stream.driver import StreamDriver
from headgate.errors import HeadgateError
from headgate.shards.rows.schema import RowSchema
from headgate.shards.shard import TABLE_ID, TableHome
from headgate.shards.sharding import ByPartition
from headgate.shards.writer import ShardWriter
from tests.simulation import dataset, parties
from tests.simulation.codec import TableBytes
from tests.simulation.patches import CHANCE
from tests.simulation.promises import PROMISES, Ledger
from tests.simulation.scheduler import Crash, Deviation, Event, Scheduler, SimThread, Violation, current
from tests.simulation.store import Objects, SimStore

TABLE = uuid.UUID(int=77)
CASTS = (
    ("writer", "writer", "writer", "gc", "reader"),
    ("writer", "writer", "gc"),
    ("driver", "driver", "gc", "reader"),
    ("driver", "driver", "driver", "gc"),
    ("driver", "gc", "gc"),
    ("driver", "driver", "writer", "writer", "gc", "reader"),
)
"""Who takes part: a process each."""
AGAIN = 2
"""A process that dies is started so often."""


@dataclass(frozen=True)
class Outcome:
    """How a schedule went."""

    seed: int
    violation: str | None
    history: Sequence[Event]
    deviations: Sequence[Deviation]
    pairs: frozenset[tuple[str, str]]
    without: frozenset[int] = frozenset()
    """Of the cast, who was left out."""


class World:
    """A table in a simulated store, and what its parties were told."""

    def __init__(
        self, seed: int, deviations: list[Deviation] | None = None, without: frozenset[int] = frozenset()
    ) -> None:
        CHANCE.drawn.seed(seed)
        self.seed = seed
        self._replayed = deviations
        self._chance = random.Random(f"world {seed}")
        self.scheduler = Scheduler(seed, deviations)
        self.objects = Objects(self.scheduler, seed)
        self.objects.on_change = self._changed
        store = SimStore(self.objects, self.scheduler)
        dataset.STORES.clear()
        dataset.STORES[store.uri] = store
        self.home = TableHome(RowSchema.of(parties.SCHEMA), store, store, TABLE, sharding=ByPartition())
        self.partitions = self._chance.choice((1, 1, 2))
        self.cast = self._chance.choice(CASTS)
        self.without = without
        self.ledger, self.table = Ledger(), TableBytes()
        self.spark = parties.SparkCheckpoint()
        self._rows = 0
        dataset.create(store.uri, parties.SCHEMA, {TABLE_ID: str(TABLE)})

    def run(self) -> Outcome:
        """Until everybody has ended; then the closing checks."""
        for place, name in enumerate(self.cast):
            chance = random.Random(f"{self.seed} {place}")
            if place not in self.without:
                self._party(name, chance, AGAIN)
        violation = self._running(self.scheduler.run)
        if violation is None:
            self.scheduler.quiet = True
            closing = self.scheduler.process("closing")
            self.scheduler.thread("closing", closing, self._close).start()
            violation = self._running(self.scheduler.run)
        drawn = self.scheduler.deviations if self._replayed is None else self._replayed
        return Outcome(
            self.seed, violation, self.scheduler.history, drawn, frozenset(self.scheduler.pairs), self.without
        )

    def _running(self, run: Callable[[], None]) -> str | None:
        try:
            run()
        except Violation as violation:
            return str(violation)
        return None

    # -- processes ---------------------------------------------------------------------------

    def _party(self, name: str, chance: random.Random, again: int) -> None:
        process = self.scheduler.process(name)

        def body() -> None:
            try:
                parties.PARTIES[name](self, chance)
            except HeadgateError as error:
                self.scheduler.history.append(Event(process.name, f"* {type(error).__name__}: {error.what}"))
            except Crash:
                if again and not self.scheduler.ending:
                    self._party(name, chance, again - 1)
                raise
            finally:
                process.dead = True

        self.scheduler.thread(process.name, process, body).start()

    def process(self, name: str, call: Callable[[], object]) -> SimThread:
        """A process beside the running one, which outlives it. Its errors are its own."""
        process = self.scheduler.process(name)

        def body() -> None:
            try:
                call()
            except HeadgateError as error:
                self.scheduler.history.append(Event(process.name, f"* {type(error).__name__}: {error.what}"))
            finally:
                process.dead = True

        thread = self.scheduler.thread(process.name, process, body)
        thread.start()
        return thread

    def beside(self, name: str, call: Callable[[], object]) -> SimThread:
        """A thread of the running process. Its errors are its own."""
        me = current()
        assert me is not None

        def body() -> None:
            try:
                call()
            except HeadgateError as error:
                self.scheduler.history.append(Event(thread.name, f"* {type(error).__name__}: {error.what}"))

        thread = self.scheduler.thread(f"{me.name}.{name}", me.process, body)
        thread.start()
        return thread

    def shard_ids(self) -> tuple[uuid.UUID, ...]:
        """The shards of the table, listed as the product does."""
        return tuple(uuid.UUID(folder) for folder in self.home.store.list_folders("_mem_wal/"))

    # -- what is told and checked ------------------------------------------------------------

    def fresh(self) -> int:
        """A row that nobody has put."""
        self._rows += 1
        return self._rows

    def check_alive(self) -> None:
        """A dead process was told nothing."""
        me = current()
        if me is not None and me.process.dead:
            raise Crash

    def acknowledge(self, row: int) -> None:
        """The row is durable, as its writer was told."""
        self.check_alive()
        self.ledger.acknowledged.add(row)
        self.check()

    def check(self) -> None:
        """The promises, now."""
        try:
            self._promised()
        except Violation as violation:
            self.scheduler.fail(violation)
            raise Crash from violation

    def _changed(self, key: str) -> None:
        stored = self.objects.stored.get(key)
        if self.table.changed(key, None if stored is None else stored[0]):
            self._promised()

    def _promised(self) -> None:
        for promise in PROMISES:
            promise(self.table, self.ledger)

    # -- the end -----------------------------------------------------------------------------

    def _close(self) -> None:
        """Everything is quiet. Late requests arrive; a fresh writer, driver and collection work, twice equals once."""
        try:
            while self.objects.late:
                self.objects.deliver()
            self._reads_the_same()
            if self.seed % 5:
                return
            if "driver" in self.cast:
                StreamDriver.open(self.home, parties.STREAM, self.spark.query, [parties.shard_name(0)])
                self._reads_the_same()
            if "writer" in self.cast:
                with ShardWriter.open(self.home, self.home.shard(parties.DIRECT).id, parties.WAL_ONLY) as writer:
                    row = self.fresh()
                    self.ledger.attempted.add(row)
                    writer.put(parties.rows(row))
                    self.acknowledge(row)
            collect(self.home, self.shard_ids(), min_age=timedelta(0), apply=True)
            self._reads_the_same()
            collect(self.home, self.shard_ids(), min_age=timedelta(0), apply=True)
            self._reads_the_same()
        except HeadgateError as error:
            raise Violation(f"at the end, with nobody else there: {error!r}") from error

    def _reads_the_same(self) -> None:
        """The product's reader against the codec."""
        truth = set(self.table.visible())
        parties.compare(parties.read(self.home, self.shard_ids()), truth, truth)
