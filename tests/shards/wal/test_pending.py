"""What a writer that stops says of its puts is so (R24), and their rows come back."""

from __future__ import annotations

import pickle
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest

from headgate import create_table, open_table
from headgate.connectors.objects.port import ObjectStore
from headgate.errors import Expired, Fenced, InvalidInput, OutcomeUnknown, Poisoned
from headgate.retry import Retry
from headgate.shards.config import WriterConfig
from headgate.shards.home.home import home_at
from headgate.shards.wal.entry import Tags
from headgate.shards.wal.pending import landed
from headgate.shards.wal.puts import Put
from headgate.shards.writer import ShardWriter
from headgate.steps import watching
from tests.shards.wal.test_flusher import until
from tests.support.closing import AT_ONCE, WAL_ONLY, Background, Steps, collect, fenced, open_writer, rows, visible
from tests.support.datasets import MEMTABLE, PLAIN, batch, faulty, home_over, make_table, pairs, seen
from tests.support.stores import Fault, FaultyStore, Stall

SHARD = uuid.UUID(int=24)
WAL = f"{SHARD}/wal/"
IMPATIENT = Retry(attempts=0, cap=0)
"""An append under way is not waited for."""


class InFlight(NamedTuple):
    """A writer in MemTable mode whose put is under way while a successor has claimed the shard."""

    writer: ShardWriter
    putting: Background[Put]
    answer: Stall
    """Holds the put back, or its answer."""
    manifest: Stall
    """Holds the flush back that will learn of the claim."""
    successor: Background[ShardWriter]
    steps: Steps

    def learns(self) -> None:
        """The flush finds the writer fenced."""
        self.manifest.release()
        until(lambda: self.writer._tables is not None and self.writer._tables.error is not None)


def in_flight(uri: str, *, stored: bool, retry: Retry) -> InFlight:
    """Row 1 is being flushed, row 2 put: `stored` but not answered, or not yet stored. The successor has no barrier."""
    store = faulty(uri)
    writer = ShardWriter.open(home_over(store, uri), SHARD, replace(MEMTABLE, max_memtable_rows=1, retry=retry))
    manifest = store.stall("put_if_absent", "/manifest/")
    writer.put(batch([(1, "a")], PLAIN))
    manifest.wait()
    answer = store.stall("put_if_absent", WAL, done=stored)
    putting = Background(lambda: writer.put(batch([(2, "b")], PLAIN)))
    answer.wait()
    steps = Steps("tip")
    with watching(steps):
        successor = Background(lambda: ShardWriter.open(uri, SHARD, MEMTABLE))
    steps.wait()
    return InFlight(writer, putting, answer, manifest, successor, steps)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return make_table(tmp_path, PLAIN)


def test_a_put_that_landed_while_the_flush_was_fenced_is_acknowledged(uri: str) -> None:
    found = in_flight(uri, stored=True, retry=AT_ONCE)
    behind = [Background(lambda row=row: found.writer.put(batch([(row, "c")], PLAIN))) for row in (3, 4)]  # type: ignore[misc]
    until(lambda: found.writer.stats().pipeline.pending_puts == 3)
    found.learns()
    found.answer.release()
    assert found.putting.result().positions == (2,)
    for one in behind:
        assert "puts 3 to 4 (2 rows)" in str(fenced(one.result))
    fenced(found.writer.close)
    found.steps.release()
    with found.successor.result() as successor:
        assert pairs(successor.scan()) == [(1, "a"), (2, "b")]
        for put in found.writer.take_pending().failed:
            successor.append(put.batches)
        assert [i for i, _ in pairs(successor.scan())] == [1, 2, 3, 4]


def test_a_put_whose_slot_the_successor_took_is_not_durable(uri: str) -> None:
    found = in_flight(uri, stored=False, retry=AT_ONCE)
    found.learns()
    found.steps.release()
    with found.successor.result() as successor:
        found.answer.release()
        error = fenced(found.putting.result)
        assert "not_durable=puts 2 to 2 (1 rows)" in str(error)
        assert "unknown" not in error.fields()
        (put,) = found.writer.take_pending().failed
        assert pa.Table.from_batches(put.batches).column("id").to_pylist() == [2]
        assert pairs(successor.scan()) == [(1, "a")]


@pytest.mark.parametrize("stored", [True, False], ids=["stored", "late"])
def test_a_put_without_an_answer_is_unknown_and_the_next_open_settles_it(uri: str, stored: bool) -> None:
    found = in_flight(uri, stored=stored, retry=IMPATIENT)
    found.learns()
    with pytest.raises(OutcomeUnknown) as caught:
        found.putting.result()
    assert isinstance(caught.value.__cause__, Fenced)
    assert "not_durable" not in str(caught.value)
    error = fenced(found.writer.close)
    assert error.fields()["unknown"] == "puts 2 to 2 (1 rows)"
    pending = found.writer.take_pending()
    assert pending.failed == ()
    (unknown,) = pending.unknown
    assert (unknown.position, unknown.entry_id) == (2, error.fields()["unknown_entry"])
    assert [row for part in unknown.puts[0].batches for row in part.column("id").to_pylist()] == [2]
    home = home_at(uri)
    if stored:
        assert landed(home, unknown.entry_id)
    else:
        with pytest.raises(InvalidInput, match="may still arrive"):
            landed(home, unknown.entry_id)
    found.steps.release()
    with found.successor.result() as successor:
        assert landed(home, unknown.entry_id) is stored
        found.answer.release()
        assert landed(home, unknown.entry_id) is stored
        assert pairs(successor.scan()) == [(1, "a"), *([(2, "b")] if stored else [])]
        successor.flush_memtable()
        assert landed(home, unknown.entry_id) is stored
        if stored:
            assert 2 in collect(successor.shard)
            with pytest.raises(Expired):
                landed(home, unknown.entry_id)
        else:
            assert 2 not in collect(successor.shard), "a barrier stays"
            assert not landed(home, unknown.entry_id)


def test_an_answer_that_comes_before_the_rows_are_taken_counts(uri: str) -> None:
    found = in_flight(uri, stored=True, retry=IMPATIENT)
    found.learns()
    with pytest.raises(OutcomeUnknown):
        found.putting.result()
    found.answer.release()
    until(lambda: found.writer.stats().pipeline.pending_puts == 0)
    assert found.writer.take_pending() == replace(found.writer.take_pending(), failed=(), unknown=())
    found.steps.release()
    found.successor.result().close()


# -- many at once -----------------------------------------------------------------------------


class Named:
    """What each of many puts was told."""

    def __init__(self) -> None:
        self.acknowledged: list[int] = []
        self.failed: list[int] = []
        self.unknown: list[int] = []

    def put(self, writer: ShardWriter, rows_: Iterator[int], first: threading.Event) -> None:
        """One after the other until the writer has failed."""
        for row in rows_:
            try:
                writer.put(batch([(row, "n")], PLAIN))
                self.acknowledged.append(row)
            except OutcomeUnknown:
                self.unknown.append(row)
                return
            except Fenced:
                self.failed.append(row)
                return
            finally:
                first.set()


def _let_it_learn(writer: ShardWriter, step: str) -> None:
    """Between claim and barrier: a flush finds the writer fenced while the WAL still takes its entries."""
    if step == "tip" and (tables := writer._tables) is not None:
        until(lambda: tables.error is not None)


@pytest.mark.parametrize("config", [replace(MEMTABLE, max_memtable_rows=2), WAL_ONLY], ids=["memtable", "wal-only"])
def test_nothing_that_was_named_not_durable_is_visible(tmp_path: Path, config: WriterConfig) -> None:
    for _ in range(3):
        uri, named, first = make_table(tmp_path, PLAIN), Named(), threading.Event()
        writer = ShardWriter.open(uri, SHARD, config)
        putters = [threading.Thread(target=named.put, args=(writer, count(i, 8), first)) for i in range(8)]
        for one in putters:
            one.start()
        first.wait()
        with watching(partial(_let_it_learn, writer)):
            successor = ShardWriter.open(uri, SHARD, config)
        for one in putters:
            one.join()
        pending = writer.take_pending()
        successor.close()
        counts = Counter(i for i, _ in seen(uri, SHARD))
        assert [row for row in named.failed if counts[row]] == []
        assert [row for row in named.acknowledged if counts[row] != 1] == []
        assert len(named.failed) + len(named.unknown) == len(putters)
        back = [row for put in pending.failed for part in put.batches for row in part.column("id").to_pylist()]
        assert set(back) <= set(named.failed)


# -- the appender's own end ---------------------------------------------------------------------


def test_a_store_that_never_answers_makes_an_entry_unknown_and_what_waits_behind_it_failed(
    store: ObjectStore, shard_id: uuid.UUID
) -> None:
    slow = FaultyStore(store)
    writer = open_writer(slow, shard_id, replace(WAL_ONLY, retry=Retry(attempts=1, base=0)))
    stall = slow.stall("put_if_absent", "/wal/")
    slow.script("put_if_absent", Fault.LATE, Fault.FAIL)
    first = Background(lambda: writer.put(rows(1, 2)))
    stall.wait()
    behind = Background(lambda: writer.put(rows(3), Tags(attempt_id="x")))
    until(lambda: writer.stats().pipeline.pending_puts == 2)
    stall.release()
    with pytest.raises(OutcomeUnknown) as caught:
        first.result()
    with pytest.raises(Poisoned) as other:
        behind.result()
    assert not isinstance(other.value, OutcomeUnknown)
    assert other.value.fields()["not_durable"] == "puts 2 to 2 (1 rows)"
    assert "rows" not in pickle.loads(pickle.dumps(caught.value)).fields()
    assert pickle.loads(pickle.dumps(caught.value)).fields() == caught.value.fields()
    pending = writer.take_pending()
    assert [put.tags.attempt_id for put in pending.failed] == ["x"]
    assert pending.unknown[0].entry_id == caught.value.fields()["unknown_entry"]
    slow.deliver()
    assert landed(writer.shard.home, pending.unknown[0].entry_id)
    assert visible(writer.shard) == [1, 2]
    assert writer.take_pending() == replace(pending, failed=(), unknown=())


# -- whether an entry landed ----------------------------------------------------------------------


def test_a_table_answers_for_its_own_entries_alone(tmp_path: Path) -> None:
    table = create_table(str(tmp_path / "t"), PLAIN)
    for wrong in ("", "x", "x:1:y", f"{SHARD}:-1:x", f"{SHARD}:1:", f"{SHARD}:१:x"):
        with pytest.raises(InvalidInput, match="Invalid entry id"):
            table.landed(wrong)
    with pytest.raises(InvalidInput, match="Shard not found"):
        table.landed(f"{SHARD}:1:x")
    with table.writer("single") as writer:
        writer.put(batch([(1, "a")], PLAIN))
    assert not open_table(table.uri).landed(f"{writer.shard.id}:1:{uuid.uuid4().hex}")


def test_the_slot_of_an_attached_writers_entry_tells_the_same(store: ObjectStore, shard_id: uuid.UUID) -> None:
    """Same claim, other entry: read, so that the answer is no."""
    slow = FaultyStore(store)
    writer = open_writer(slow, shard_id, replace(WAL_ONLY, retry=Retry(attempts=0)))
    slow.script("put_if_absent", Fault.LATE)
    with pytest.raises(OutcomeUnknown):
        writer.put(rows(1))
    (unknown,) = writer.take_pending().unknown
    other = ShardWriter.attach(
        replace(writer.claim, shard=open_writer(store, uuid.uuid4()).shard.home.shard(shard_id)), WAL_ONLY
    )
    other.put(rows(2))
    slow.deliver()
    assert not landed(writer.shard.home, unknown.entry_id)
    assert visible(other.shard) == [2]
