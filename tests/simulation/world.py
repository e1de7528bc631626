"""One schedule: a table, its parties, and the promises after each change."""

from __future__ import annotations

import random
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from headgate.checkpoints.gc.collect import collect
from headgate.errors import HeadgateError
from headgate.shards.rows.schema import RowSchema
from headgate.shards.shard import TABLE_ID, TableHome
from headgate.shards.sharding import ByPartition
from headgate.shards.writer import ShardWriter
from tests.simulation import parties
from tests.simulation.codec import TableBytes
from tests.simulation.damage import lose
from tests.simulation.lance.dataset import STORES
from tests.simulation.lance.module import create
from tests.simulation.operators import ConsumerState, check_between, check_clean
from tests.simulation.parties import DIRECT
from tests.simulation.patches import CHANCE
from tests.simulation.promises import PROMISES, SCHEMA, Ledger, rows
from tests.simulation.scheduler import Crash, Deviation, Event, Scheduler, SimThread, Violation, current
from tests.simulation.store import Objects, SimStore
from tests.simulation.streams import WAL_ONLY, SparkCheckpoint, open_stream, shard_name

CASTS = (
    ("writer", "writer", "writer", "gc", "reader"),
    ("writer", "writer", "gc", "operator"),
    ("driver", "driver", "gc", "reader"),
    ("driver", "driver", "driver", "gc"),
    ("driver", "gc", "gc", "pinner"),
    ("driver", "driver", "writer", "writer", "gc", "reader"),
    ("driver", "driver", "operator", "gc", "reader"),
    ("driver", "writer", "operator", "operator", "gc"),
    ("driver", "driver", "changer", "gc"),
    ("driver", "changer", "operator", "reader"),
    ("driver", "driver", "consumer", "consumer", "gc"),
    ("driver", "consumer", "operator", "gc", "gc"),
    ("driver", "writer", "cloner", "gc"),
    ("driver", "cloner", "cloner", "operator", "gc"),
    ("driver", "driver", "fsck", "gc"),
    ("driver", "writer", "operator", "fsck", "pinner"),
    ("driver", "driver", "renewer", "gc"),
    ("driver", "writer", "renewer", "reader"),
    ("driver", "driver", "recoverer", "gc"),
    ("driver", "recoverer", "recoverer", "operator", "reader"),
    ("append", "append", "append", "gc", "reader"),
    ("append", "append", "driver", "gc"),
    ("append", "append", "driver", "operator", "gc"),
)
"""Who takes part: a process each."""
PARTITIONS = (1, 1, 2)
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
    cast: Sequence[str] = ()


@dataclass(eq=False)
class Place:
    """A table, until another one is made in its place."""

    home: TableHome
    table: TableBytes
    ledger: Ledger
    names: dict[uuid.UUID, str]
    """Of its shards."""


def cast_of(seed: int) -> tuple[str, ...]:
    """Who takes part in the schedule of a seed."""
    chance = random.Random(f"world {seed}")
    chance.choice(PARTITIONS)
    return chance.choice(CASTS)


class World:
    """A table in a simulated store, and what its parties were told."""

    def __init__(
        self,
        seed: int,
        deviations: list[Deviation] | None = None,
        without: frozenset[int] = frozenset(),
        cast: Sequence[str] | None = None,
    ) -> None:
        """`deviations`: replay these. `without`: leave these of the cast out. `cast`: these take part."""
        CHANCE.drawn.seed(seed)
        self.seed = seed
        self._replayed = deviations
        self._chance = random.Random(f"world {seed}")
        self.scheduler = Scheduler(seed, deviations)
        self.objects = Objects(self.scheduler, seed)
        self.objects.on_change = self._changed
        store = SimStore(self.objects, self.scheduler)
        STORES.clear()
        STORES[store.uri] = store
        self.store = store
        self.partitions = self._chance.choice(PARTITIONS)
        drawn = self._chance.choice(CASTS)
        self.cast = cast or drawn
        self.without = without
        self.spark = SparkCheckpoint()
        self.consumer = ConsumerState(hold=self._chance.choice((60.0, 3600.0, 1e6)))
        self._rows = 0
        self._tables = 0
        self.began: dict[int, Counter[int]] = {}
        """Per number of a clone what was there when it was first called for."""
        self.named: set[int] = set()
        """Of them, those that may be of a checkpoint."""
        self.clones: dict[int, tuple[TableBytes, Counter[int]]] = {}
        """Per number what it holds by its bytes, and what it held when it was made."""
        self._clones: dict[int, tuple[SimStore, TableBytes]] = {}
        self._table: TableBytes | None = None
        self._make()

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
            self.seed,
            violation,
            self.scheduler.history,
            drawn,
            frozenset(self.scheduler.pairs),
            self.without,
            tuple(self.cast),
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

    def shard_ids(self, here: Place) -> tuple[uuid.UUID, ...]:
        """The shards of the table, listed as the product does."""
        return tuple(uuid.UUID(folder) for folder in here.home.store.list_folders("_mem_wal/"))

    # -- tables ------------------------------------------------------------------------------

    def _make(self) -> None:
        """A table, in an empty place."""
        self._tables += 1
        table_id = uuid.UUID(int=76 + self._tables)
        schema = RowSchema.of(SCHEMA)
        home = TableHome(schema, self.store, self.store, table_id, sharding=ByPartition())
        names = {home.shard(name).id: name for name in (DIRECT, *map(shard_name, range(self.partitions)))}
        table = TableBytes(table_id, frozenset(names), anew=self.renewed)
        self.here, self._table = Place(home, table, Ledger(), names), table
        create(self.store.uri, SCHEMA, {TABLE_ID: str(table_id)})
        self.objects.synced = 1

    def make_anew(self) -> None:
        """As somebody does who deletes the folder, and creates a table there: at once, for those who look."""
        self.objects.clear()
        self._make()

    @property
    def renewed(self) -> bool:
        """Whether the table was made anew."""
        return self._tables > 1

    def check_own(self, here: Place, before: Place) -> None:
        """A stream that has looked knows whether another table is in the place of its own (R23)."""
        if before is not here:
            raise Violation("R23: a stream's look finds nothing wrong where another table is in its table's place")

    def clone_store(self, number: int) -> tuple[SimStore, TableBytes]:
        """A place for a clone. The same one for who calls again."""
        if number not in self._clones:
            uri = f"memory://tables/clone{number}"
            objects, table = Objects(self.scheduler, self.seed + number, watched=False), TableBytes()
            table.source = self.here.table

            def changed(key: str) -> None:
                stored = objects.stored.get(key)
                table.changed(key, None if stored is None else stored[0])

            objects.on_change = changed
            store = SimStore(objects, self.scheduler, uri)
            STORES[uri] = store
            self._clones[number] = store, table
        return self._clones[number]

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

    def acknowledge(self, here: Place, ids: set[int]) -> None:
        """The rows are durable, as their writer was told."""
        self.check_alive()
        here.ledger.acknowledged |= ids
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
        if self._table is not None and self._table.changed(key, None if stored is None else stored[0]):
            self._promised()

    def _promised(self) -> None:
        here = self.here
        for promise in PROMISES:
            promise(here.table, here.ledger)

    # -- the end -----------------------------------------------------------------------------

    def _close(self) -> None:
        """Everything is quiet. Late requests arrive; a fresh writer, driver and collection work, twice equals once."""
        try:
            while self.objects.late:
                self.objects.deliver()
            here = self.here
            self._reads_the_same(here)
            for table, found in self.clones.values():
                check_between("a clone, later", Counter(table.visible()), found, found)
            if self.seed % 5:
                return
            if "driver" in self.cast:
                open_stream(self, here, [shard_name(0)])
                self._reads_the_same(here)
            if "writer" in self.cast:
                with ShardWriter.open(here.home, here.home.shard(DIRECT).id, WAL_ONLY) as writer:
                    row = self.fresh()
                    here.ledger.attempted.add(row)
                    writer.put(rows(SCHEMA, row))
                    self.acknowledge(here, {row})
            for _ in range(2):
                collect(here.home, self.shard_ids(here), min_age=timedelta(0), apply=True)
                self._reads_the_same(here)
            check_clean(self, here)
            lose(self, here, random.Random(f"damage {self.seed}"))
        except HeadgateError as error:
            raise Violation(f"at the end, with nobody else there: {error!r}") from error

    def _reads_the_same(self, here: Place) -> None:
        """The product's reader against the codec."""
        truth = Counter(here.table.visible())
        check_between("a reader", parties.read(here.home, self.shard_ids(here)), truth, truth)
