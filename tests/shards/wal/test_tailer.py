"""WalTailer: in order, read ahead in parallel, exactly up to the tip, and never past a hole."""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from collections.abc import Generator
from typing import cast

import pytest

from headgate.connectors.objects.port import ObjectStore
from headgate.errors import Corrupt, DataLoss, NotFound, Transient
from headgate.shards.shard import Shard
from headgate.shards.wal.tailer import WalEntry, WalTailer
from tests.support.closing import AT_ONCE, home_of, ids_of, open_writer, rows
from tests.support.stores import PATIENCE, Fault, FaultyStore, Operation


@pytest.fixture
def shard(store: ObjectStore, shard_id: uuid.UUID) -> Shard:
    """Thirty entries after the barrier at 0: row n at position n."""
    writer = open_writer(store, shard_id)
    for row in range(1, 31):
        writer.put(rows(row))
    return writer.shard


def through(shard: Shard, store: ObjectStore) -> Shard:
    return home_of(store).shard(shard.id)


@pytest.mark.parametrize("prefetch", [1, 2, 8, 64])
def test_entries_come_in_order_each_once_and_end_at_the_tip(shard: Shard, prefetch: int) -> None:
    read = list(WalTailer(shard, prefetch=prefetch).read(0))
    assert [one.position for one in read] == list(range(31))
    assert [ids_of(one.entry) for one in read] == [[], *([row] for row in range(1, 31))]


def test_reading_writes_nothing_and_lists_once_to_prove_the_tip(store: ObjectStore, shard: Shard) -> None:
    faulty = FaultyStore(store)
    list(WalTailer(through(shard, faulty)).read(1))
    assert set(faulty.operations()) == {"get", "list"}
    assert faulty.operations()["list"] == 1
    faulty.reset_operations()
    list(WalTailer(through(shard, faulty)).read(1, 31))
    assert faulty.operations() == {"get": 30}


def test_an_empty_wal_ends_at_once(store: ObjectStore) -> None:
    assert list(WalTailer(home_of(store).shard(uuid.uuid4())).read(1)) == []


def test_entries_are_read_ahead_in_parallel(store: ObjectStore, shard: Shard) -> None:
    """Eight reads stand at the barrier together: one after the other they would never open it."""
    together = threading.Barrier(8)

    class Meeting(FaultyStore):
        def get(self, key: str) -> memoryview:
            if len(self.log) < 8:
                together.wait(PATIENCE)
            return super().get(key)

    tailer = WalTailer(through(shard, Meeting(store)), prefetch=8)
    assert next(tailer.read(1, 9)).position == 1


def test_only_so_many_entries_are_read_ahead(store: ObjectStore, shard: Shard) -> None:
    faulty = FaultyStore(store)
    reader = cast("Generator[WalEntry]", WalTailer(through(shard, faulty), prefetch=4).read(1))
    next(reader)
    reader.close()
    assert len(faulty.log) <= 5


def test_slow_answers_do_not_change_the_order(store: ObjectStore, shard: Shard) -> None:
    """The first read comes back last."""
    faulty = FaultyStore(store)
    stall = faulty.stall("get", shard.wal_key(1))
    threading.Timer(0.05, stall.release).start()
    assert [one.position for one in WalTailer(through(shard, faulty)).read(1)] == list(range(1, 31))


@pytest.mark.parametrize("hole", [1, 7, 8, 9, 16, 29])
@pytest.mark.parametrize("prefetch", [2, 8])
def test_a_hole_is_data_loss_told_with_shard_and_position(
    store: ObjectStore, shard: Shard, hole: int, prefetch: int
) -> None:
    store.delete(shard.wal_key(hole))
    read: list[int] = []
    with pytest.raises(DataLoss) as caught:
        read.extend(one.position for one in WalTailer(shard, prefetch=prefetch).read(1))
    assert read == list(range(1, hole))
    assert (caught.value.shard, caught.value.position) == (str(shard.id), hole)


@pytest.mark.parametrize("wide", [8, 20, 28])
def test_a_hole_wider_than_what_is_read_ahead_is_data_loss_too(store: ObjectStore, shard: Shard, wide: int) -> None:
    for position in range(2, 2 + wide):
        store.delete(shard.wal_key(position))
    read: list[int] = []
    with pytest.raises(DataLoss) as caught:
        read.extend(one.position for one in WalTailer(shard).read(1))
    assert (read, caught.value.position) == ([1], 2)


@pytest.mark.parametrize("stop", [31, 32, 40])
def test_whatever_is_missing_below_a_given_stop_is_data_loss(store: ObjectStore, shard: Shard, stop: int) -> None:
    store.delete(shard.wal_key(30))
    with pytest.raises(DataLoss) as caught:
        list(WalTailer(shard).read(1, stop))
    assert caught.value.position == 30


def test_a_slot_that_is_filled_while_it_is_read_is_no_hole(store: ObjectStore, shard: Shard) -> None:
    missed = {"once": False}

    def plan(operation: Operation) -> Fault | None:
        if operation.key == shard.wal_key(30) and not missed["once"]:
            missed["once"] = True
            return Fault.VANISHED
        return None

    writer_goes_on = open_writer(store, shard.id)
    writer_goes_on.put(rows(32))
    read = [one.position for one in WalTailer(through(shard, FaultyStore(store, plan))).read(28)]
    assert missed["once"]
    assert read == [28, 29, 30, 31, 32]


def test_passing_faults_are_tried_again(store: ObjectStore, shard: Shard) -> None:
    tried: Counter[str] = Counter()

    def three_times_each(operation: Operation) -> Fault | None:
        tried[operation.key] += 1
        return Fault.FAIL if tried[operation.key] <= AT_ONCE.attempts else None

    assert len(list(WalTailer(through(shard, FaultyStore(store, three_times_each)).retrying(AT_ONCE)).read(1))) == 30
    assert tried[shard.wal_key(7)] == 4


def test_a_fault_that_stays_is_transient_told_with_the_position(store: ObjectStore, shard: Shard) -> None:
    faulty = FaultyStore(store, lambda op: Fault.FAIL if op.key == shard.wal_key(5) else None)
    with pytest.raises(Transient) as caught:
        list(WalTailer(through(shard, faulty).retrying(AT_ONCE)).read(1))
    assert caught.value.position == 5


def test_a_damaged_entry_is_corrupt_told_with_shard_and_position(store: ObjectStore, shard: Shard) -> None:
    data = bytearray(store.get(shard.wal_key(9)))
    data[-20] ^= 1
    store.put_overwrite(shard.wal_key(9), bytes(data))
    read: list[int] = []
    with pytest.raises(Corrupt) as caught:
        read.extend(one.position for one in WalTailer(shard).read(1))
    assert read == list(range(1, 9))
    assert (caught.value.table, caught.value.shard) == (store.uri, str(shard.id))
    assert caught.value.position == 9


def test_what_is_missing_is_not_an_error_of_the_store(store: ObjectStore, shard: Shard) -> None:
    """Callers see DataLoss, never the store's NotFound."""
    store.delete(shard.wal_key(3))
    with pytest.raises(DataLoss) as caught:
        list(WalTailer(shard).read(1))
    assert not isinstance(caught.value, NotFound)


def test_a_reader_that_stops_early_leaves_no_thread_behind(shard: Shard) -> None:
    before = set(threading.enumerate())
    reader = cast("Generator[WalEntry]", WalTailer(shard).read(1))
    next(reader)
    reader.close()
    # Closing does not wait for them: it may run inside the locks that a join needs.
    mine = [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("headgate-tail")]
    for thread in mine:
        thread.join(30)
    assert not [thread for thread in mine if thread.is_alive()]
