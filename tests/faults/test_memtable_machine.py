"""MemTables, flushes, readers, zombies, faults and crashes in any order, against a dictionary.

A failure prints the steps and a blob for @reproduce_failure. The counts: 60 examples in CI, 2,000 deep.
Which thread is quicker may differ between runs, so what is drawn never depends on the state.
"""

from __future__ import annotations

import atexit
import contextlib
import shutil
import tempfile
import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from headgate.checkpoints.snapshots.snapshot import read_snapshot
from headgate.errors import Fenced, HeadgateError
from headgate.shards.home.home import home_at
from headgate.shards.shard import Shard
from headgate.shards.writer import ShardWriter
from tests.support.closing import collect
from tests.support.datasets import (
    AT_ONCE,
    MEMTABLE,
    LanceFaultyStore,
    Pairs,
    batch,
    faulty,
    home_over,
    keys,
    make_table,
    pairs,
)
from tests.support.stores import Crash, Fault

SHARD = uuid.UUID(int=29)
BASE: Pairs = [(0, "base"), (1, "base"), (9, "base")]
IDS = st.lists(st.integers(0, 5), min_size=1, max_size=3, unique=True)
Model = dict[int, str]


@lru_cache(maxsize=1)
def _template() -> str:
    """A table is made once and copied: the machine needs hundreds."""
    folder = tempfile.mkdtemp(prefix="headgate-machine-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return make_table(Path(folder), base=BASE)


class MemTableMachine(RuleBasedStateMachine):
    """One shard. `possible` is what its rows may be: two answers after a write of unknown outcome."""

    @initialize(rows=st.sampled_from([2, 4, 100_000]))
    def start(self, rows: int) -> None:
        self.folder = tempfile.mkdtemp(prefix="headgate-machine-")
        self.uri = f"{self.folder}/t"
        shutil.copytree(_template(), self.uri)
        self.config = replace(MEMTABLE, max_memtable_rows=rows, retry=AT_ONCE)
        self.possible: list[Model] = [dict(BASE)]
        self.writer: ShardWriter | None = None
        self.store: LanceFaultyStore | None = None
        self.zombies: list[ShardWriter] = []
        self.counter = 0
        self.open(None)

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            for writer in [*self.zombies, *([self.writer] if self.writer else [])]:
                with contextlib.suppress(HeadgateError, Crash):
                    writer.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    # -- writers ---------------------------------------------------------------

    @rule(crash=st.sampled_from([None, None, None, *range(1, 26, 2)]))
    def open(self, crash: int | None) -> None:
        """A successor, which may die while it opens. Whoever held the shard is a zombie once it has opened."""
        store = faulty(self.uri, crash_after=crash)
        before, self.writer = self.writer, None
        try:
            writer = ShardWriter.open(home_over(store, self.uri), SHARD, self.config)
        except (Crash, HeadgateError):
            # Whoever was there may be fenced or not. It writes no more.
            assert store.crashed
            return
        if not store.crashed:
            store.crash_after = None
        if before is not None:
            self.zombies = [*self.zombies[-1:], before]
        if store.crashed:
            return
        self.writer, self.store = writer, store
        self._settle(pairs(writer.scan()))

    @rule(ids=IDS, fault=st.sampled_from([None, None, Fault.FAIL, Fault.LOST, Fault.LOST_EXISTS]))
    def put(self, ids: list[int], fault: Fault | None) -> None:
        self.counter += 1
        note = f"n{self.counter}"
        self._write(
            fault,
            lambda writer: writer.put(batch([(i, note) for i in ids])),
            lambda model: {**model, **dict.fromkeys(ids, note)},
        )

    @rule(ids=IDS, fault=st.sampled_from([None, Fault.LOST]))
    def delete(self, ids: list[int], fault: Fault | None) -> None:
        self._write(
            fault,
            lambda writer: writer.delete(keys(*ids)),
            lambda model: {i: note for i, note in model.items() if i not in ids},
        )

    @rule(fault=st.sampled_from([None, None, Fault.FAIL, Fault.LOST, Fault.LOST_EXISTS]))
    def flush(self, fault: Fault | None) -> None:
        self._write(fault, lambda writer: writer.flush_memtable(), dict)

    @rule(operations=st.integers(1, 6))
    def doom(self, operations: int) -> None:
        """It will die after so many more operations."""
        if self.writer is None or self.store is None:
            return
        self.store.crash_after = len(self.store.log) + operations

    @rule()
    def drop(self) -> None:
        """As if killed."""
        if self.writer is not None and self.store is not None:
            self.store.die()
            self.writer = None

    @rule()
    def close(self) -> None:
        if self.writer is None:
            return
        self._write(None, lambda writer: writer.close(), dict)
        self.writer = None

    @rule(flush=st.booleans())
    def zombie(self, flush: bool) -> None:
        """A predecessor wakes: whatever it writes fails."""
        if not self.zombies or self.writer is None:
            return
        writer = self.zombies.pop()
        if flush and writer.memtable_stats()[-1].rows == 0:
            return
        with pytest.raises((Fenced, Crash, HeadgateError)) as raised:
            writer.flush_memtable() if flush else writer.put(batch([(0, "zombie")]))
        assert not isinstance(raised.value, AssertionError)

    # -- others -----------------------------------------------------------------

    @rule()
    def read(self) -> None:
        """From outside, without a writer. It fences nobody."""
        view = read_snapshot(home_at(self.uri), [SHARD])
        assert pairs(view.scan()) in [sorted(model.items()) for model in self.possible]
        for model in self.possible:
            if pairs(view.scan()) == sorted(model.items()):
                wanted = [(i, note) for i, note in sorted(model.items()) if i in (0, 3, 9)]
                assert pairs(view.get(keys(0, 3, 9))) == wanted

    @rule()
    def scan(self) -> None:
        if self.writer is None or self.store is None:
            return
        try:
            shown = pairs(self.writer.scan())
        except (Crash, HeadgateError):
            assert self.store.crashed
            self.writer = None
        else:
            assert shown in [sorted(model.items()) for model in self.possible]

    @rule()
    def collect_garbage(self) -> None:
        collect(Shard(home_at(self.uri), SHARD))

    # -- what the above is made of -------------------------------------------------

    def _write(
        self, fault: Fault | None, action: Callable[[ShardWriter], object], change: Callable[[Model], Model]
    ) -> None:
        if self.writer is None:
            self.open(None)
        assert self.writer is not None
        assert self.store is not None
        if fault is not None:
            self.store.script("put_if_absent", fault)
        after = [change(model) for model in self.possible]
        try:
            action(self.writer)
            self.possible = after
        except (Crash, HeadgateError):
            assert self.store.crashed, "a write failed, and nothing was wrong that the retries do not mend"
            self.possible += after
            self.writer = None
        finally:
            self.store.unscript()
        if self.store.crashed:
            self.writer = None

    def _settle(self, shown: Pairs) -> None:
        """What was unknown is known now, and stays so."""
        matching = [model for model in self.possible if sorted(model.items()) == shown]
        assert matching, f"shown {shown}, possible {self.possible}"
        self.possible = matching[:1]


def _run(examples: int, steps: int) -> None:
    run_state_machine_as_test(
        MemTableMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_whatever_happens_the_shard_holds_exactly_what_was_acknowledged() -> None:
    _run(25, 30)


@pytest.mark.deep
def test_whatever_happens_the_shard_holds_exactly_what_was_acknowledged_deep() -> None:
    _run(2_000, 50)
