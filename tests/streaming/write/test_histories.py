"""Random histories: drivers come, stall, die and wake between any two steps, tasks run any number of times, late or
never. Whatever happens, the table shows the committed batches, each once.

Replay a failing history with HEADGATE_SEED=<seed>, which the failure names.
"""

from __future__ import annotations

import os
import random
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from headgate.checkpoints.log.decisions import BatchSources, Refusal, Skip, decide_batch
from headgate.checkpoints.stream.driver import StreamDriver
from headgate.connectors.objects.memory import MemoryStore
from headgate.connectors.objects.port import ObjectStore
from headgate.errors import HeadgateError
from headgate.shards.wal.entry import SourceRange
from headgate.streaming.write.job import Written
from headgate.streaming.write.task import WritePlan
from tests.support.life import (
    QUERY,
    TOPIC,
    batch_of,
    check_exactly_once,
    home_of,
    open_driver,
    run_task,
    write_plan,
)
from tests.support.stores import Crash, Fault, FaultyStore

Ranges = tuple[SourceRange, ...]


@dataclass
class Checkpoint:
    """Spark's: the offsets of every batch it planned, and how many it is done with."""

    batches: list[Ranges] = field(default_factory=list)
    done: int = 0

    def planned(self, chance: random.Random) -> Ranges:
        """The batch to run now: the one that was planned and not finished, or a new one."""
        if self.done == len(self.batches):
            before = {r.partition: r.until for r in self.batches[-1]} if self.batches else {}
            partitions = max(len(before), 1) + (chance.random() < 0.2)
            starts = [before.get(p, 0) for p in range(min(partitions, 4))]
            self.batches.append(
                tuple(SourceRange(TOPIC, p, start, start + chance.choice([0, 3, 12])) for p, start in enumerate(starts))
            )
        return self.batches[self.done]


class Process:
    """A driver process: it takes one step at a time, and may be left standing anywhere."""

    def __init__(self, store: ObjectStore, checkpoint: Checkpoint, chance: random.Random) -> None:
        self.store = FaultyStore(store, self._fault)
        self.checkpoint = checkpoint
        self.chance = chance
        self.driver: StreamDriver | None = None
        self.number = -1
        self.ranges: Ranges = ()
        self.plan: WritePlan | None = None
        self.outputs: dict[str, list[list[dict[str, Any]]]] = {}

    def _fault(self, operation: object) -> Fault | None:
        return self.chance.choice([Fault.FAIL, Fault.LOST]) if self.chance.random() < 0.02 else None

    def step(self) -> None:
        """Open, or begin a batch, or run one attempt of one task, or commit. Raises what stops the process."""
        if self.driver is None:
            self.driver = open_driver(home_of(self.store), [0])
        elif self.plan is None:
            self._begin(self.driver)
        elif missing := [name for name in self.plan.sources if name not in self.outputs]:
            self._attempt(self.chance.choice(missing))
        elif self.chance.random() < 0.3 and self.plan.sources:
            self._attempt(self.chance.choice(list(self.plan.sources)))
        else:
            self._commit(self.driver, self.plan)

    def _begin(self, driver: StreamDriver) -> None:
        self.ranges, self.number, self.outputs = self.checkpoint.planned(self.chance), self.checkpoint.done, {}
        decision = decide_batch(driver.head, QUERY, self.number, BatchSources(self.ranges), lambda topic, partition: 0)
        if isinstance(decision, Skip):
            self._finished()
            return
        if isinstance(decision, Refusal):
            raise decision.error
        self.plan = write_plan(driver, self.ranges)

    def _attempt(self, name: str) -> None:
        assert self.plan is not None
        output = run_task(self.plan, self.plan.sources[name])
        if "error" in output[0]:
            raise HeadgateError(output[0]["error"]["what"])
        self.outputs.setdefault(name, []).append(output)

    def _commit(self, driver: StreamDriver, plan: WritePlan) -> None:
        chosen = [line for outputs in self.outputs.values() for line in self.chance.choice(outputs) if "shard" in line]
        driver.commit(batch_of(plan, Written(tuple(chosen)), self.number, self.ranges))
        self._finished()

    def _finished(self) -> None:
        # Spark commits after the sink, and may never come to it.
        if self.chance.random() < 0.8:
            self.checkpoint.done = max(self.checkpoint.done, self.number + 1)
        self.plan = None


def history(seed: int) -> int:
    """One history; returns how many batches it committed."""
    chance = random.Random(seed)
    name = uuid.uuid4().hex
    store = MemoryStore(f"memory://{name}")
    try:
        checkpoint = Checkpoint()
        processes = [Process(store, checkpoint, chance)]
        for _ in range(60):
            one = chance.choice(processes[-3:])
            try:
                one.step()
            except (HeadgateError, Crash):
                processes.remove(one)
            if not processes or chance.random() < 0.08:
                processes.append(Process(store, checkpoint, chance))
        # Nobody disturbs the last one: it finishes what was planned.
        last = Process(store, checkpoint, random.Random(0))
        last.store.plan = None
        while checkpoint.done < len(checkpoint.batches) or last.plan is not None or last.driver is None:
            last.step()
        batches = list(checkpoint.batches)
        for zombie in processes:
            # It wakes where it stood, and may try whatever it likes.
            with suppress(HeadgateError):
                for _ in range(10 if zombie.driver is not None else 0):
                    zombie.step()
        check_exactly_once(home_of(store), [part for batch in batches for part in batch])
        return len(checkpoint.batches)
    finally:
        MemoryStore.drop(name)


def check_histories(count: int) -> None:
    given = os.environ.get("HEADGATE_SEED")
    first = int(given) if given else random.randrange(1 << 32)
    committed = 0
    for seed in range(first, first + (1 if given else count)):
        try:
            committed += history(seed)
        except BaseException as error:
            raise AssertionError(f"replay with HEADGATE_SEED={seed}") from error
    assert given or committed > count, "the histories came to something"


def test_random_histories_show_every_committed_batch_exactly_once() -> None:
    check_histories(30)


@pytest.mark.deep
def test_many_random_histories_show_every_committed_batch_exactly_once() -> None:
    check_histories(3_000)
