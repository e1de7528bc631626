"""A crash after EVERY store operation of open, put, flush and close, and a lost response after EVERY put:
a fresh writer opens, and the closing checks hold. The operation's number is in every failure's name.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from headgate.connectors.objects import open_store
from headgate.connectors.objects.port import ObjectStore
from headgate.errors import HeadgateError, InvalidInput, Poisoned, Transient
from headgate.retry import Retry
from headgate.shards.shard import Shard
from headgate.shards.wal.pending import Pending, PendingPut, landed
from headgate.shards.writer import ShardWriter
from tests.support.closing import (
    ASYNC,
    AT_ONCE,
    WAL_ONLY,
    closing_checks,
    flush,
    home_of,
    open_writer,
    rows,
    visible,
    wal_positions,
)
from tests.support.stores import Crash, Fault, FaultyStore


class Life:
    """A writer's life over one store, and what it was promised."""

    def __init__(self, store: ObjectStore, shard_id: uuid.UUID, retry: Retry = AT_ONCE) -> None:
        self.store = store
        self.retry = retry
        self.shard_id = shard_id
        self.attempted: set[int] = set()
        self.acked: set[int] = set()
        self.writer: ShardWriter | None = None

    def put(self, *ids: int) -> None:
        assert self.writer is not None
        self.attempted.update(ids)
        self.writer.put(rows(*ids))
        self.acked.update(ids)

    def durable(self) -> None:
        """open, three puts, close"""
        self.writer = open_writer(self.store, self.shard_id, replace(WAL_ONLY, retry=self.retry))
        for first in (100, 110, 120):
            self.put(first, first + 1)
        self.writer.close()

    def grouped(self) -> None:
        """open, puts that nobody waits for, flush, more of them, close"""
        self.writer = open_writer(self.store, self.shard_id, replace(ASYNC, retry=self.retry))
        for groups in ((200, 201, 202), (210, 211)):
            for one in groups:
                self.attempted.add(one)
                self.writer.put(rows(one))
            self.writer.flush()
            self.acked.update(groups)
        self.attempted.add(220)
        self.writer.put(rows(220))
        self.writer.close()
        self.acked.add(220)

    def flushed(self) -> None:
        """open, put, move the rows to an SSTable, put, close"""
        self.writer = open_writer(self.store, self.shard_id, replace(WAL_ONLY, retry=self.retry))
        self.put(300)
        flush(self.writer)
        self.put(310)
        flush(self.writer)
        self.put(320)
        self.writer.close()

    def named(self) -> Pending:
        """What the writer says of its rows after its end."""
        try:
            return self.writer.take_pending() if self.writer is not None else Pending()
        except InvalidInput:
            return Pending()  # it was left while it worked


def check_named(shard: Shard, pending: Pending) -> None:
    """After the next open: what was named failed is not there, and `landed` says of the rest what is."""
    there = set(visible(shard))
    assert not there & {row for put in pending.failed for row in put_ids(put)}, "named not durable, and visible"
    for entry in pending.unknown:
        ids = {row for put in entry.puts for row in put_ids(put)}
        assert (ids <= there) is landed(shard.home, entry.entry_id), "whether it landed was told wrongly"
        assert ids <= there or not ids & there


def put_ids(put: PendingPut) -> list[int]:
    return [row for part in put.batches for row in part.column("id").to_pylist()]


LIVES: dict[str, Callable[[Life], None]] = {"durable": Life.durable, "grouped": Life.grouped, "flushed": Life.flushed}


def history(store: ObjectStore, shard_id: uuid.UUID, kind: str) -> tuple[set[int], list[ShardWriter]]:
    """What was there before: the rows, and the writers that are still alive."""
    if kind == "fresh":
        return set(), []
    before = open_writer(store, shard_id)
    before.put(rows(1, 2))
    before.put(rows(3))
    if kind == "flushed":
        flush(before)
        before.put(rows(4))
        before.close()
        return {1, 2, 3, 4}, []
    assert kind == "alive"
    return {1, 2, 3}, [before]


def open_kind(kind: str, tmp_path: Path, number: int) -> ObjectStore:
    return open_store(f"memory://{uuid.uuid4().hex}" if kind == "memory" else str(tmp_path / f"after-{number}"))


@pytest.mark.parametrize(
    ("kind", "before", "life"),
    [("disk", "alive", "flushed"), *itertools.product(["memory"], ["fresh", "flushed", "alive"], LIVES)],
)
def test_a_crash_after_every_store_operation_loses_and_doubles_nothing(
    tmp_path: Path, kind: str, before: str, life: str
) -> None:
    for number in itertools.count():
        store = open_kind(kind, tmp_path, number)
        shard_id = uuid.uuid4()
        known, alive = history(store, shard_id, before)
        faulty = FaultyStore(store, crash_after=number)
        lived = Life(faulty, shard_id)
        try:
            LIVES[life](lived)
        except (Crash, HeadgateError):
            assert faulty.crashed, "only the crash may end this life"
        try:
            pending = lived.named()
            closing_checks(store, shard_id, known | lived.acked, known | lived.attempted, alive)
            check_named(home_of(store).shard(shard_id), pending)
        except Exception as error:
            raise AssertionError(f"crash after operation {number} of {life}: {faulty.log[-3:]}") from error
        if not faulty.crashed:
            break
    assert number > 15, "the crashes did not reach the whole life"


@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.LOST, Fault.LOST_EXISTS, Fault.LATE], ids=lambda f: f.name)
@pytest.mark.parametrize("before", ["fresh", "flushed", "alive"])
@pytest.mark.parametrize("life", list(LIVES))
def test_peers_bug_12_a_lost_response_after_every_put_is_no_error(before: str, life: str, fault: Fault) -> None:
    """slatedb#766, trino#27402, icechunk#2156: data, barrier, manifest and hint; the next try meets our own object."""
    for number in itertools.count(1):
        store, shard_id = open_store(f"memory://{uuid.uuid4().hex}"), uuid.uuid4()
        known, alive = history(store, shard_id, before)
        faulty = FaultyStore(store)
        faulty.script("put_if_absent", *[None] * (number - 1), fault)
        lived = Life(faulty, shard_id)
        LIVES[life](lived)
        shard = home_of(store).shard(shard_id)
        assert sorted(visible(shard)) == sorted(known | lived.attempted), f"put {number}"
        faulty.deliver()
        assert lived.writer is not None
        closing_checks(store, shard_id, known | lived.acked, known | lived.attempted, [*alive, lived.writer])
        if not faulty.injected:
            break
    assert number > 4, "manifest, barrier, rows and the last manifest were not all hit"


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.LOST_EXISTS], ids=lambda f: f.name)
def test_lance_hole_11_a_lost_response_costs_no_position(store: ObjectStore, shard_id: uuid.UUID, fault: Fault) -> None:
    """Native takes its own entry for a rival's and poisons the writer."""
    faulty = FaultyStore(store)
    writer = open_writer(faulty, shard_id)
    positions: list[int] = []
    for number in range(5):
        faulty.script("put_if_absent", fault)
        positions += writer.put(rows(number)).positions
    assert positions == [1, 2, 3, 4, 5]
    assert wal_positions(writer.shard) == [0, 1, 2, 3, 4, 5]
    writer.close()


@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.LOST, Fault.LATE], ids=lambda f: f.name)
@pytest.mark.parametrize("life", list(LIVES))
def test_without_retries_every_fault_ends_the_writer_and_costs_no_acknowledged_row(life: str, fault: Fault) -> None:
    for number in itertools.count(1):
        store, shard_id = open_store(f"memory://{uuid.uuid4().hex}"), uuid.uuid4()
        faulty = FaultyStore(store)
        faulty.script("put_if_absent", *[None] * (number - 1), fault)
        lived = Life(faulty, shard_id, Retry(attempts=0))
        try:
            LIVES[life](lived)
        except (Transient, Poisoned):
            assert faulty.injected
        pending = lived.named()
        faulty.deliver()
        writers = [lived.writer] if lived.writer is not None else []
        closing_checks(store, shard_id, lived.acked, lived.attempted, writers)
        check_named(home_of(store).shard(shard_id), pending)
        if not faulty.injected:
            break
    assert number > 4
