"""Up to three writers at a time, zombies that wake, readers, faults, collections, in any order, against a model.

The model knows which rows were tried and which were acknowledged. After every step every acknowledged row
is visible exactly once, no other row twice, and there is no gap. A failure prints the steps as a program and
a line `@reproduce_failure(...)` that repeats it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headgate.connectors.objects.memory import MemoryStore
from headgate.errors import Fenced, Poisoned, Transient
from headgate.shards.wal.tailer import WalTailer
from headgate.shards.writer import ShardWriter
from headgate.steps import watching
from tests.support.closing import (
    ASYNC,
    WAL_ONLY,
    Abandoned,
    Background,
    Steps,
    check_rows,
    closing_checks,
    collect,
    collect_manifests,
    entry_at,
    flush,
    home_of,
    ids_of,
    rows,
    wal_positions,
)
from tests.support.stores import Crash, Fault, FaultyStore, Stall

WRITERS = 3
FAULTS = [None, None, Fault.FAIL, Fault.LOST, Fault.LOST_EXISTS, Fault.LATE]
OPEN_STEPS = ["look", "claim", "tip", "barrier", "re-read"]

picks = st.integers(0, WRITERS - 1)


def pick_of(slots: list[Slot], pick: int) -> Slot:
    """One of those to which a rule applies; there is one, or the rule would not run."""
    return slots[pick % len(slots)]


@dataclass(frozen=True)
class Trouble:
    """What happens to the next puts, and how many of the next reads of each kind fail.

    Reads run in parallel, so their faults stay below the patience of one read: whichever meets them, goes on.
    """

    puts: tuple[Fault | None, ...] = ()
    reads: int = 0

    def cause(self, store: FaultyStore) -> None:
        store.script("put_if_absent", *self.puts)
        for verb in ("list", "get", "get_range", "head"):
            store.script(verb, *[Fault.FAIL] * self.reads)


troubles = st.builds(Trouble, st.lists(st.sampled_from(FAULTS), max_size=5).map(tuple), st.integers(0, 3))


@dataclass
class Slot:
    """One process: its way to the store, its writer, and the call in which it stands still."""

    store: FaultyStore
    writer: ShardWriter | None = None
    stalled: Background[Any] | None = None
    release: Callable[[], None] | None = None
    finish: Callable[[Any], None] | None = None
    pending: list[int] = field(default_factory=list)
    """Rows that were put and not waited for."""

    @property
    def held(self) -> ShardWriter:
        """Its writer, where it must have one."""
        assert self.writer is not None
        return self.writer

    @property
    def idle(self) -> bool:
        return self.stalled is None


class FencedWal(RuleBasedStateMachine):
    """The rules are what may happen; the invariant is what must hold."""

    def __init__(self) -> None:
        super().__init__()
        self.name = uuid.uuid4().hex
        self.objects = MemoryStore(f"memory://{self.name}")
        self.shard_id = uuid.uuid4()
        self.shard = home_of(self.objects).shard(self.shard_id)
        self.slots = [Slot(FaultyStore(self.objects)) for _ in range(WRITERS)]
        self.retired: list[FaultyStore] = []
        self.writers: list[ShardWriter] = []
        self.attempted: set[int] = set()
        self.acked: set[int] = set()
        self.opened_epoch = 0
        """The highest epoch whose open has returned: nobody below may write from then on."""

    # -- what calls return ---------------------------------------------------------------

    def _judge(
        self, slot: Slot, call: Callable[[], Any], done: Callable[[Any], None], *, before: int | None = None
    ) -> None:
        """Run the call; whatever it raises must have a reason. `before`: the faults there were when it began."""
        if before is None:
            before = slot.store.injected
        try:
            result = call()
        except Fenced:
            latest = self.shard.manifests.latest()
            assert latest is not None
            mine = slot.writer.claim.epoch if slot.writer is not None else 0
            assert latest.epoch > mine, "fenced, and nobody claimed the shard since"
            self._leave(slot)
        except (Poisoned, Transient) as error:
            if slot.store.injected == before:
                raise AssertionError("without any fault") from error
            if isinstance(error, Poisoned) or slot.writer is None:
                self._leave(slot)
        except Abandoned:
            pass
        else:
            done(result)
        slot.store.unscript()

    def _leave(self, slot: Slot) -> None:
        """The process ends. What it sent may still be on its way."""
        self.retired.append(slot.store)
        index = self.slots.index(slot)
        self.slots[index] = Slot(FaultyStore(self.objects))

    def _new_rows(self, count: int) -> list[int]:
        first = len(self.attempted)
        new = list(range(first, first + count))
        self.attempted.update(new)
        return new

    def _opened(self, slot: Slot) -> Callable[[ShardWriter], None]:
        def done(writer: ShardWriter) -> None:
            slot.writer = writer
            self.writers.append(writer)
            self.opened_epoch = max(self.opened_epoch, writer.claim.epoch)

        return done

    def _put(self, slot: Slot, new: list[int], landed: bool = False) -> Callable[[Any], None]:
        def done(_: Any) -> None:
            assert landed or slot.held.claim.epoch >= self.opened_epoch, (
                "a writer wrote after its successor's open had returned"
            )
            self.acked.update(new)
            self.acked.update(slot.pending)
            slot.pending.clear()

        return done

    # -- who can do what ------------------------------------------------------------------

    def free(self) -> list[Slot]:
        return [slot for slot in self.slots if slot.idle and slot.writer is None]

    def ready(self) -> list[Slot]:
        return [slot for slot in self.slots if slot.idle and slot.writer is not None]

    def unhurried(self) -> list[Slot]:
        return [slot for slot in self.ready() if slot.writer and not slot.writer.config.durable_write]

    def waiting(self) -> list[Slot]:
        return [slot for slot in self.ready() if slot.pending]

    def settled(self) -> list[Slot]:
        return [slot for slot in self.ready() if not slot.pending]

    def flushable(self) -> list[Slot]:
        """Those whose claim stands, with rows that no SSTable has: their flush comes to the manifest."""
        latest = self.shard.manifests.latest()
        if latest is None:
            return []
        above = [position for position in wal_positions(self.shard) if position > latest.replay_after]
        first = next((position for position in above if ids_of(entry_at(self.shard, position))), None)
        claims = [(slot, slot.writer.claim) for slot in self.ready() if slot.writer]
        return [
            slot
            for slot, claim in claims
            if latest.held_by(claim.epoch, claim.claim_id) and first is not None and first < claim.next_position
        ]

    def asleep(self) -> list[Slot]:
        return [slot for slot in self.slots if not slot.idle]

    def alive(self) -> list[Slot]:
        return [slot for slot in self.slots if slot.writer is not None or not slot.idle]

    # -- rules: writers ---------------------------------------------------------------------

    @initialize()
    def first(self) -> None:
        self.open(0, Trouble(), True)

    @precondition(lambda self: self.free())
    @rule(pick=picks, trouble=troubles, durable=st.booleans())
    def open(self, pick: int, trouble: Trouble, durable: bool) -> None:
        one = pick_of(self.free(), pick)
        trouble.cause(one.store)
        config = WAL_ONLY if durable else ASYNC
        self._judge(one, lambda: ShardWriter.open(home_of(one.store), self.shard_id, config), self._opened(one))

    @precondition(lambda self: self.ready())
    @rule(pick=picks, trouble=troubles, count=st.integers(1, 3))
    def put(self, pick: int, trouble: Trouble, count: int) -> None:
        one = pick_of(self.ready(), pick)
        writer, new = one.held, self._new_rows(count)
        trouble.cause(one.store)
        self._judge(one, lambda: writer.put(rows(*new)).wait(), self._put(one, new))

    @precondition(lambda self: self.unhurried())
    @rule(pick=picks)
    def put_and_go_on(self, pick: int) -> None:
        """Nobody waits: the rows are in the queue, and nothing is promised."""
        one = pick_of(self.unhurried(), pick)
        writer, new = one.held, self._new_rows(1)
        self._judge(one, lambda: writer.put(rows(*new)), lambda _: one.pending.extend(new))

    @precondition(lambda self: self.waiting())
    @rule(pick=picks, trouble=troubles)
    def wait_for_all(self, pick: int, trouble: Trouble) -> None:
        one = pick_of(self.waiting(), pick)
        trouble.cause(one.store)
        self._judge(one, one.held.flush, self._put(one, []))

    @precondition(lambda self: self.ready())
    @rule(pick=picks, trouble=troubles)
    def flush(self, pick: int, trouble: Trouble) -> None:
        """Durable rows move to an SSTable."""
        one = pick_of(self.ready(), pick)
        writer = one.held
        trouble.cause(one.store)
        self._judge(one, lambda: flush(writer), lambda _: None)

    @precondition(lambda self: self.ready())
    @rule(pick=picks, trouble=troubles)
    def close(self, pick: int, trouble: Trouble) -> None:
        one = pick_of(self.ready(), pick)
        trouble.cause(one.store)

        def closed(_: Any) -> None:
            self.acked.update(one.pending)
            self._leave(one)

        self._judge(one, one.held.close, closed)

    @precondition(lambda self: self.alive())
    @rule(pick=picks)
    def crash(self, pick: int) -> None:
        one = pick_of(self.alive(), pick)
        one.store.die()
        if one.stalled is not None:
            self._wake(one)
        else:
            self._leave(one)

    # -- rules: those that stall ------------------------------------------------------------------

    def _stall(self, one: Slot, stall: Stall | Steps, call: Callable[[], Any], done: Callable[[Any], None]) -> None:
        one.stalled = Background(call)
        one.release, one.finish = stall.release, done
        stall.wait()

    @precondition(lambda self: self.free())
    @rule(pick=picks, step=st.sampled_from(OPEN_STEPS))
    def stall_in_open(self, pick: int, step: str) -> None:
        one = pick_of(self.free(), pick)
        steps = Steps(step)
        home = home_of(one.store)
        self._stall(
            one, steps, lambda: watching(steps)(ShardWriter.open)(home, self.shard_id, WAL_ONLY), self._opened(one)
        )

    @precondition(lambda self: self.free())
    @rule(pick=picks, where=st.sampled_from(["/manifest/", "/wal/"]), done=st.booleans())
    def stall_in_a_put_of_open(self, pick: int, where: str, done: bool) -> None:
        """Between reading the manifest and putting the claim, or with the response on its way."""
        one = pick_of(self.free(), pick)
        stall = one.store.stall("put_if_absent", where, done=done)
        home = home_of(one.store)
        self._stall(one, stall, lambda: ShardWriter.open(home, self.shard_id, WAL_ONLY), self._opened(one))

    @precondition(lambda self: self.settled())
    @rule(pick=picks, done=st.booleans())
    def stall_in_put(self, pick: int, done: bool) -> None:
        """A zombie: before its PUT, or after it while the response is on its way."""
        one = pick_of(self.settled(), pick)
        writer, new = one.held, self._new_rows(1)
        held = self.shard.manifests.latest()
        assert held is not None
        if held.epoch != writer.claim.epoch:
            done = False  # its slot may be taken, and then nothing lands
        stall = one.store.stall("put_if_absent", "/wal/", done=done)
        self._stall(one, stall, lambda: writer.put(rows(*new)).wait(), self._put(one, new, landed=done))

    @precondition(lambda self: self.flushable())
    @rule(pick=picks)
    def stall_in_flush(self, pick: int) -> None:
        """Before the manifest is put; only where that put is reached."""
        one = pick_of(self.flushable(), pick)
        writer = one.held
        stall = one.store.stall("put_if_absent", "/manifest/")
        self._stall(one, stall, lambda: flush(writer), lambda _: None)

    @precondition(lambda self: self.asleep())
    @rule(pick=picks, trouble=troubles)
    def wake(self, pick: int, trouble: Trouble) -> None:
        one = pick_of(self.asleep(), pick)
        trouble.cause(one.store)
        self._wake(one)

    def _wake(self, one: Slot) -> None:
        stalled, release, finish = one.stalled, one.release, one.finish
        assert stalled is not None
        assert release is not None
        assert finish is not None
        one.stalled = one.release = one.finish = None
        before = one.store.injected
        release()
        if one.store.crashed:
            with pytest.raises((Crash, Poisoned)):
                stalled.result()
            self._leave(one)
            return
        self._judge(one, stalled.result, finish, before=before)

    # -- rules: the rest of the world ------------------------------------------------------------

    @rule()
    def late_requests_arrive(self) -> None:
        for store in [*self.retired, *(slot.store for slot in self.slots)]:
            store.deliver()

    @rule()
    def collect_wal(self) -> None:
        collect(self.shard)

    @rule()
    def collect_old_manifests(self) -> None:
        collect_manifests(self.shard)

    @precondition(lambda self: self.acked)
    @rule(faults=st.lists(st.sampled_from([None, Fault.FAIL]), max_size=2))
    def read(self, faults: list[Fault | None]) -> None:
        """A reader with faults of its own sees what is there, or says that it cannot."""
        store = FaultyStore(self.objects)
        store.script("get", *faults)
        manifest = self.shard.manifests.latest()
        assert manifest is not None
        tailer = WalTailer(home_of(store).shard(self.shard_id))
        seen = [row for one in tailer.read(manifest.replay_after + 1) for row in ids_of(one.entry)]
        assert len(seen) == len(set(seen))
        assert set(seen) <= self.attempted

    @invariant()
    def every_promise_holds(self) -> None:
        check_rows(self.shard, self.acked, self.attempted)

    def teardown(self) -> None:
        try:
            for slot in list(self.slots):
                if not slot.idle:
                    self._wake(slot)
            check_rows(self.shard, self.acked, self.attempted)
            for store in [*self.retired, *(slot.store for slot in self.slots)]:
                store.deliver()
                store.unscript()
            closing_checks(self.objects, self.shard_id, self.acked, self.attempted, self.writers)
        finally:
            MemoryStore.drop(self.name)


COMMON = {
    "deadline": None,
    "print_blob": True,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.filter_too_much],
}

TestFencedWal = FencedWal.TestCase
TestFencedWal.settings = settings(max_examples=150, stateful_step_count=30, **COMMON)  # type: ignore[arg-type]


class DeepFencedWal(FencedWal):
    """The same with a hundred times the examples and longer lives."""


TestDeepFencedWal = pytest.mark.deep(DeepFencedWal.TestCase)
TestDeepFencedWal.settings = settings(max_examples=20_000, stateful_step_count=50, **COMMON)  # type: ignore[arg-type]
