"""Reads beside a stream, its flushes, compactions and garbage collection: every snapshot equals the model at its
{stream: sequence}, and a consumer of the log ends up with the same rows.

HEADGATE_SOAK_SECONDS says how long the short one takes. The seed is in every failure message.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from headgate.checkpoints.feed.feed import LogFeed
from headgate.checkpoints.feed.rows import log_batches
from headgate.checkpoints.gc.base import tidy_base
from headgate.checkpoints.jobs.flush import run_here
from headgate.checkpoints.jobs.policy import BasePolicy, CompactLimits
from headgate.checkpoints.snapshots.parts import part_batches
from headgate.checkpoints.snapshots.splits import ReadPlan, plan_read
from headgate.checkpoints.stream.driver import StreamDriver
from headgate.errors import Expired, Transient
from headgate.table.table import Table
from tests.support.network import seed_of_run
from tests.support.tables import commit_changes, make, open_stream

SECONDS = float(os.environ.get("HEADGATE_SOAK_SECONDS", "20"))
AGE = timedelta(seconds=6)
"""What garbage collection waits for here: longer than any job takes. A read may, on a slow machine."""
KEYS = 400
BATCHES_A_SECOND = 15

Rows = dict[int, str]


class Model:
    """What the table holds after each record of the log; a table without a key is modelled by ids that come once."""

    def __init__(self) -> None:
        self._changes: dict[int, list[tuple[int, str | None]]] = {}
        self._at: dict[int, Rows] = {0: {}}
        self._lock = threading.Lock()

    def will_commit(self, sequence: int, changes: list[tuple[int, str | None]]) -> None:
        with self._lock:
            self._changes[sequence] = changes

    def at(self, sequence: int) -> Rows:
        with self._lock:
            known = max(one for one in self._at if one <= sequence)
            rows = dict(self._at[known])
            for number in range(known + 1, sequence + 1):
                apply(rows, self._changes.get(number, []))
            self._at[sequence] = rows
            return rows


def apply(rows: Rows, changes: list[tuple[int, str | None]]) -> None:
    for key, note in changes:
        if note is None:
            rows.pop(key, None)
        else:
            rows[key] = note


class Soak:
    """One table and those who work on it, each in a thread of its own."""

    def __init__(self, table: Table, seed: int, seconds: float) -> None:
        self.table, self.seed, self.until = table, seed, time.monotonic() + seconds
        self.patience = self.until + max(90.0, 3 * seconds)
        self.model = Model()
        self.driver = open_stream(table)
        self.keyed = bool(table.primary_key)
        self.errors: list[BaseException] = []
        self.counts = dict.fromkeys(("batches", "flushes", "compactions", "collected", "reads", "held", "fed"), 0)

    def run(self) -> None:
        works = (self.write, self.maintain, self.read_at_once, self.read_later, self.follow)
        threads = [threading.Thread(target=self._guarded, args=(work,), name=work.__name__) for work in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.errors:
            told = f"replay with HEADGATE_SEED={self.seed}, {self.counts}: {self.errors[0]!r}"
            raise AssertionError(told) from self.errors[0]

    def _guarded(self, work: Callable[[random.Random], None]) -> None:
        try:
            work(random.Random(f"{self.seed} {work.__name__}"))
        except BaseException as error:
            self.errors.append(error)

    @property
    def goes_on(self) -> bool:
        """Longer where something has not happened yet: on a slow machine there are few rounds, and lots are drawn."""
        return time.monotonic() < (self.until if all(self.counts.values()) else self.patience) and not self.errors

    # -- who changes it ------------------------------------------------------------------

    def write(self, chance: random.Random) -> None:
        fresh = 0
        while self.goes_on:
            changes: list[tuple[int, str | None]] = []
            for _ in range(chance.randint(1, 30)):
                fresh += 1
                key = chance.randrange(KEYS) if self.keyed else fresh
                gone = self.keyed and chance.random() < 0.2
                changes.append((key, None if gone else f"{fresh}"))
            self.model.will_commit(self.driver.head.sequence + 1, changes)
            commit_changes(self.table, self.driver, changes, attempts=1 + (chance.random() < 0.1))
            self.counts["batches"] += 1
            time.sleep(chance.random() * 2 / BATCHES_A_SECOND)

    def maintain(self, chance: random.Random) -> None:
        """One after the other, so that a collection meets no flush that is about to land."""
        policy = BasePolicy(keep_versions=AGE, max_small=4)
        while self.goes_on:
            time.sleep(chance.random())
            with self.driver.maintenance("the soak"):
                self.driver.close_gaps(self.driver.settle(run_here, 1 << 20))
            self.counts["flushes"] += 1
            self.driver.fold()
            if chance.random() < 0.4 and self.driver.compact(CompactLimits()) is not None:
                self.counts["compactions"] += 1
                with suppress(Transient):
                    tidy_base(self.table.home, policy)
            if chance.random() < 0.5:
                self.counts["collected"] += len(self.table.collect_garbage(min_age=AGE, apply=True).found)

    # -- who reads it ----------------------------------------------------------------------

    def read_at_once(self, chance: random.Random) -> None:
        while self.goes_on:
            began = time.monotonic()
            try:
                self._check(plan_read(self.table.home, self.table.shard_ids(), None))
                before, began = self.driver.head.sequence, time.monotonic()
                found = _rows(self.table.scan().read_all())
            except Expired:
                # Nobody holds what it names, and a collection waits no longer than that.
                if time.monotonic() - began < AGE.total_seconds():
                    raise
                continue
            after = self.driver.head.sequence + 1
            assert any(found == self.model.at(number) for number in range(before, after + 1)), (before, after)
            self.counts["reads"] += 1
            time.sleep(chance.random() / 2)

    def read_later(self, chance: random.Random) -> None:
        """What was planned is read when everything that it names would be gone."""
        waiting: list[tuple[float, ReadPlan]] = []
        while self.goes_on or waiting:
            if self.goes_on:
                plan = plan_read(self.table.home, self.table.shard_ids(), 600)
                waiting.append((time.monotonic() + chance.random() * 3 * AGE.total_seconds(), plan))
            for due, plan in list(waiting):
                if due < time.monotonic() or not self.goes_on:
                    self._check(plan)
                    self.table.drop_checkpoint(plan.at.name)
                    waiting.remove((due, plan))
                    self.counts["held"] += 1
            time.sleep(chance.random())

    def _check(self, plan: ReadPlan) -> None:
        batches = [batch for part in plan.parts for batch in part_batches(plan, part)]
        found = _rows(pa.Table.from_batches(batches)) if batches else {}
        sequence = plan.at.streams["s"].sequence
        assert found == self.model.at(sequence), f"at {sequence}"

    def follow(self, chance: random.Random) -> None:
        """A consumer that is restarted now and then, and slower than what is collected."""
        feed = LogFeed(self.table.home, self.table.shard_ids, "soak", 600, poll=0)
        rows: Rows = {}
        start = feed.start("earliest")
        while self.goes_on:
            end = feed.latest(start)
            for part in feed.plan(start, end):
                for batch in log_batches(self.table.home, part):
                    apply(rows, _changes(batch))
            assert rows == self.model.at(end.get("s", 0)), f"fed up to {end}"
            start = end
            if chance.random() < 0.5:
                feed.done(end)
                feed.renew(now=True)
            if chance.random() < 0.1:
                feed = LogFeed(self.table.home, self.table.shard_ids, "soak", 600, poll=0)
            self.counts["fed"] += 1
            time.sleep(chance.random() * 2 * AGE.total_seconds() if chance.random() < 0.1 else 0.2)


def _changes(batch: pa.RecordBatch) -> list[tuple[int, str | None]]:
    columns = (batch.column(name).to_pylist() for name in ("id", "note", "_deleted"))
    return [(key, None if gone else note) for key, note, gone in zip(*columns, strict=True)]


def _rows(found: pa.Table) -> Rows:
    ids = found.column("id").to_pylist()
    assert len(set(ids)) == len(ids), "a row is there twice"
    return dict(zip(ids, found.column("note").to_pylist(), strict=True))


def soak(path: Path, key: str | None, seconds: float) -> dict[str, int]:
    seed = seed_of_run(os.environ.get("HEADGATE_SEED"))
    print(f"HEADGATE_SEED={seed}")
    running = Soak(make(path, key=key), seed, seconds)
    assert isinstance(running.driver, StreamDriver)
    running.run()
    return running.counts


@pytest.mark.parametrize("key", ["id", None], ids=["key", "no key"])
def test_every_snapshot_equals_the_model_at_its_sequence(tmp_path: Path, key: str | None) -> None:
    counts = soak(tmp_path, key, SECONDS / 2)
    assert all(counts.values()), counts


@pytest.mark.deep
@pytest.mark.parametrize("key", ["id", None], ids=["key", "no key"])
def test_every_snapshot_equals_the_model_for_ten_minutes(tmp_path: Path, key: str | None) -> None:
    counts = soak(tmp_path, key, 600)
    print(counts)
    assert all(counts.values()), counts
