"""Three drivers of one stream that open, commit, rewind, fold, collect, stall and die in any order, over a store that
fails in every way it may: each offset is committed exactly once between two rewinds, and no fenced driver commits
anything.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headgate.checkpoints.log.commit_log import CommitLog
from headgate.checkpoints.log.decisions import BatchSources, Skip, Write, decide_batch
from headgate.checkpoints.log.names import stream_folder
from headgate.checkpoints.log.opened_log import OpenedLog
from headgate.checkpoints.log.positions import next_plan
from headgate.checkpoints.log.records import Batch, BatchRecord, Fold, LogRecord, OffsetMove, RewindRecord, ShardClaim
from headgate.checkpoints.log.state import LogState, fold
from headgate.connectors.objects.memory import MemoryStore
from headgate.errors import Fenced, Poisoned, Transient
from headgate.shards.wal.entry import SourceRange
from headgate.steps import watching
from tests.support.logs import AT_ONCE, SHARD, log, part
from tests.support.stores import Fault, FaultyStore

DRIVERS = st.integers(0, 2)
FAULTS = st.lists(st.sampled_from([None, *Fault]), max_size=5)
STEPS = ["read", "open record", "prove", "commit record"]
DEEDS = ["open", "batch", "batch", "rewind", "fold and collect"]
FOLDER = stream_folder("orders")


@dataclass
class Spark:
    """Spark's checkpoint: shared by all drivers, until a rewind makes it anew."""

    rewind: str | None = None
    """The id of the rewind that it was made for."""
    origin: int = 0
    offsets: list[int] = field(default_factory=list)
    """Where each batch ends."""
    query: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def end(self) -> int:
        return self.offsets[-1] if self.offsets else self.origin


class Driver:
    """One driver process: what it holds, and the batch that its Spark would hand it next."""

    def __init__(self, store: FaultyStore, opened: OpenedLog, spark: Spark, turn: int) -> None:
        self.store = store
        self.opened = opened
        self.spark = spark
        self.batch = max(len(spark.offsets) - 1, 0)
        self.turn = turn
        """How many opens had returned before this one."""


class CommitLogMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.name = uuid.uuid4().hex
        self.store = MemoryStore(f"memory://{self.name}")
        self.drivers: dict[int, Driver] = {}
        self.dead: list[FaultyStore] = []
        self.spark = Spark()
        self.tip = 0
        """The next free position of the one shard."""
        self.turns = 0
        self.meanwhile: tuple[str, int, list[str]] | None = None
        self.history: dict[int, LogRecord] = {}
        """Every record that was ever seen, also those collected since."""
        self.late_fold: Fold | None = None
        self.refused: set[str] = set()
        self.acknowledged: set[str] = set()
        self.acknowledged_rewinds: set[str] = set()

    def teardown(self) -> None:
        self.open_driver(0, [])
        while self.drivers[0].batch < len(self.spark.offsets):
            self.run_batch(0, [], 1)
        self.every_offset_is_committed_at_most_once()
        ends = log(self.store).read().head.ends
        planned = self.spark.offsets or self.spark.rewind
        assert ends == ({("t", 0): self.spark.end} if planned else {}), "everything planned is committed"
        MemoryStore.drop(self.name)

    # -- what drivers do -------------------------------------------------------------

    @rule(who=DRIVERS, faults=FAULTS)
    def open_driver(self, who: int, faults: list[Fault | None]) -> None:
        if who in self.drivers:
            self.dead.append(self.drivers.pop(who).store)
        store = FaultyStore(self.store)
        store.script("put_if_absent", *faults)
        barrier, self.tip = self.tip, self.tip + 1
        try:
            opened = CommitLog(store.retrying(AT_ONCE), "orders", "memory://table").open(
                "q", {"s0": ShardClaim(SHARD, self.turns + 1, uuid.uuid4().hex, barrier)}
            )
        except (Fenced, Poisoned, Transient):
            self.dead.append(store)
            return
        store.unscript()
        self.turns += 1
        rewound = opened.head.rewound
        if rewound is not None and self.spark.rewind != rewound.record_id:
            # Whoever asked for it may have died before Spark's checkpoint was made anew.
            self.spark = Spark(rewound.record_id, opened.head.ends["t", 0])
        self.drivers[who] = Driver(store, opened, self.spark, self.turns)

    @rule(who=DRIVERS, faults=FAULTS, size=st.integers(0, 3))
    def run_batch(self, who: int, faults: list[Fault | None], size: int) -> None:
        driver = self.drivers.get(who)
        if driver is None:
            return
        spark = driver.spark
        if driver.batch == len(spark.offsets):
            spark.offsets.append(spark.end + size)
        start = spark.offsets[driver.batch - 1] if driver.batch else spark.origin
        planned = SourceRange("t", 0, start, spark.offsets[driver.batch])
        head = driver.opened.head
        decision = decide_batch(head, spark.query, driver.batch, BatchSources((planned,)), lambda topic, partition: 0)
        if isinstance(decision, Skip):
            driver.batch += 1
            return
        assert isinstance(decision, Write), decision
        attempt = uuid.uuid4().hex
        shards = {}
        if planned.until > planned.start:
            position = max(next_plan(head, SHARD), self.tip)
            self.tip = position + 1
            shards = {"s0": part(position, attempt=attempt)}
        driver.store.script("put_if_absent", *faults)
        batch = Batch(query_id=spark.query, batch_id=driver.batch, sources=decision.ranges, shards=shards)
        try:
            record = driver.opened.commit(batch, {})
        except Fenced:
            self.refused.add(attempt)
            self.dead.append(self.drivers.pop(who).store)
            return
        except Poisoned:
            self.dead.append(self.drivers.pop(who).store)
            return
        driver.store.unscript()
        assert driver.turn == self.turns, "a driver committed after its successor's open had returned"
        assert record is not None
        self.acknowledged.add(record.record_id)
        driver.batch += 1

    @rule(who=DRIVERS, faults=FAULTS, to=st.integers(0, 5))
    def rewind(self, who: int, faults: list[Fault | None], to: int) -> None:
        """An operator takes the stream over and sends it elsewhere; then nobody runs it."""
        self.open_driver(who, [])
        driver = self.drivers.pop(who, None)
        if driver is None:
            return
        self.dead.append(driver.store)
        end = driver.opened.head.ends.get(("t", 0))
        if end is None or end == to:
            return
        driver.store.script("put_if_absent", *faults)
        try:
            record = driver.opened.rewind((OffsetMove("t", 0, end, to),))
        except (Fenced, Poisoned):
            return
        driver.store.unscript()
        assert driver.turn == self.turns, "a driver rewound after its successor's open had returned"
        self.acknowledged_rewinds.add(record.record_id)

    @rule(who=DRIVERS, other=DRIVERS, step=st.sampled_from(STEPS), deeds=st.lists(st.sampled_from(DEEDS), max_size=6))
    def stall(self, who: int, other: int, step: str, deeds: list[str]) -> None:
        """A driver stands at a step of open or commit while another one does something, and then goes on."""
        if who == other:
            return
        self.meanwhile = None
        if step == "commit record":
            self.open_driver(who, [])
        self.meanwhile = (step, other, deeds)
        with watching(self._act_meanwhile):
            if step == "commit record":
                self.run_batch(who, [], 1)
            else:
                self.open_driver(who, [])
        self.meanwhile = None

    def _act_meanwhile(self, step: str) -> None:
        if self.meanwhile is None or self.meanwhile[0] != step:
            return
        (_, other, deeds), self.meanwhile = self.meanwhile, None
        for deed in deeds:
            if deed == "open":
                self.open_driver(other, [])
            elif deed == "batch":
                self.run_batch(other, [], 1)
            elif deed == "rewind":
                self.rewind(other, [], 1)
            else:
                if self.history:
                    self.fold_log(late=False)
                self.collect()
            self.learn()

    @rule()
    def late_requests_arrive(self) -> None:
        for store in [*self.dead, *(driver.store for driver in self.drivers.values())]:
            store.deliver()

    @precondition(lambda self: bool(self.history))
    @rule(late=st.booleans())
    def fold_log(self, late: bool) -> None:
        """Also a fold that comes late, of a log that has gone on since."""
        state = log(self.store).read()
        folded, self.late_fold = self.late_fold if late else None, fold(state, {})
        log(self.store).put_fold(folded or self.late_fold)

    @rule()
    def collect(self) -> None:
        """Everything that R5 and R6 allow at most: folded batch records below the tip."""
        state = log(self.store).read()
        for sequence, record in list(self.history.items()):
            if sequence <= state.fold_sequence and sequence < state.sequence and isinstance(record, BatchRecord):
                self.store.delete(f"{FOLDER}/log/{sequence:020d}.json")

    # -- what must hold ----------------------------------------------------------------

    @invariant()
    def every_offset_is_committed_at_most_once(self) -> None:
        state = self.learn()
        records = [record for _, record in sorted(self.history.items())]
        batches = [record for record in records if isinstance(record, BatchRecord)]
        end = 0
        for record in records:
            if isinstance(record, RewindRecord):
                assert record.offsets[0].before == end, "a rewind says where the stream stood"
                end = record.offsets[0].after
            elif isinstance(record, BatchRecord):
                assert record.sources[0].start == end, (
                    f"batch {record.batch_id} starts at {record.sources[0].start}, not {end}"
                )
                end = record.sources[0].until
        assert self.acknowledged_rewinds <= {one.record_id for one in records if isinstance(one, RewindRecord)}
        listed = [position for record in batches for _, one in record.parts() for position in one.positions]
        assert len(listed) == len(set(listed))
        assert state.head.ends == ({("t", 0): end} if batches else {})
        visible = [p for first, last in state.shards[SHARD].runs() for p in range(first, last + 1)] if listed else []
        assert visible == listed, "folding keeps every visible position"
        assert self.acknowledged <= {record.record_id for record in batches}
        attempts = {one.attempt_id for record in batches for _, one in record.parts()}
        assert not attempts & self.refused, "a refused batch is in the log"

    def learn(self) -> LogState:
        """The log now; every record above the fold is remembered, and none has changed."""
        state = log(self.store).read()
        for sequence in range(state.fold_sequence + 1, state.sequence + 1):
            record = log(self.store).record(sequence)
            assert self.history.setdefault(sequence, record) == record
        return state


TestCommitLog = CommitLogMachine.TestCase
TestCommitLog.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
