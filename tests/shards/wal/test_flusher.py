"""The pipeline between put and the WAL: snapshot/commit queue, byte budgets, back-pressure, one stored error."""

from __future__ import annotations

import gc
import os
import random
import threading
import time
import uuid
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from headgate.connectors.objects.port import ObjectStore
from headgate.errors import Closed, PermissionDenied, Poisoned
from headgate.retry import Retry
from headgate.shards.config import WriterConfig
from headgate.shards.wal.encoder import encode_rows
from headgate.shards.wal.entry import EncodedRows, Tags
from headgate.shards.wal.puts import PendingQueue, Put
from tests.support.closing import ASYNC, ROWS, WAL_ONLY, Background, closing_checks, open_writer, rows, visible
from tests.support.network import seed_of_run
from tests.support.stores import Fault, FaultyStore, Operation

ONE = encode_rows(ROWS.stored_rows(rows(1))).nbytes
"""What one row weighs in the queue."""


def until(condition: Callable[[], bool]) -> None:
    """Wait for another thread to get there."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.001)


# -- the queue ------------------------------------------------------------------------


def a_put(number: int, nbytes: int, tags: Tags = Tags()) -> Put:  # noqa: B008
    return Put(number, EncodedRows((), 1, nbytes), tags, lambda put, timeout: put.positions)


def filled(*sizes: int) -> PendingQueue:
    queue = PendingQueue()
    for number, size in enumerate(sizes, 1):
        queue.push(a_put(number, size))
    return queue


@pytest.mark.parametrize(
    ("sizes", "limit", "taken"),
    [
        ((10, 10, 10), 100, 3),
        ((10, 10, 10), 20, 2),
        ((10, 10, 10), 19, 1),
        ((50, 1), 20, 1),  # never split, so at least one
        ((1, 50), 20, 1),
    ],
)
def test_an_entry_takes_the_oldest_puts_that_fit(sizes: tuple[int, ...], limit: int, taken: int) -> None:
    queue = filled(*sizes)
    assert [put.number for put in queue.snapshot(limit)] == list(range(1, taken + 1))


def test_a_snapshot_leaves_everything_in_the_queue_and_a_commit_takes_exactly_that() -> None:
    queue = filled(10, 20, 30)
    taken = queue.snapshot(30)
    assert (len(queue), queue.nbytes) == (3, 60)
    queue.commit(taken, 7)
    assert (len(queue), queue.nbytes, queue.peak) == (1, 30, 60)
    assert [put.positions for put in taken] == [(7,), (7,)]
    assert queue.oldest().number == 3
    assert not queue.oldest().done


def test_puts_with_other_tags_wait_for_the_next_entry() -> None:
    queue = PendingQueue()
    for number, tag in enumerate(["a", "a", "b", "a"], 1):
        queue.push(a_put(number, 1, Tags(tag)))
    assert [put.number for put in queue.snapshot(100)] == [1, 2]


# -- the queue survives ---------------------------------------------------------------------


# -- bytes in memory ---------------------------------------------------------------------------


@pytest.mark.parametrize("durable", [True, False], ids=["durable", "async"])
@pytest.mark.parametrize("threads", [1, 8])
def test_pending_bytes_drain_to_0_and_peak_at_the_buffer_and_one_put(
    store: ObjectStore, shard_id: uuid.UUID, durable: bool, threads: int
) -> None:
    seed = seed_of_run(os.environ.get("HEADGATE_SEED"))
    print(f"HEADGATE_SEED={seed}")
    buffer = 20 * ONE
    config = replace(WAL_ONLY, durable_write=durable, max_wal_buffer_size=buffer, max_wal_flush_interval=0.001)
    writer = open_writer(store, shard_id, config)
    largest = encode_rows(ROWS.stored_rows(rows(*range(40)))).nbytes

    def work(number: int) -> None:
        chance = random.Random(seed + number)
        for turn in range(60):
            count = chance.randint(1, 40)
            first = 100 * (60 * number + turn)
            writer.put(rows(*range(first, first + count)))
            if turn % 20 == 19:
                writer.flush()

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    writer.flush()
    stats = writer.stats().pipeline
    assert (stats.pending_bytes, stats.pending_puts) == (0, 0)
    assert 0 < stats.peak_pending_bytes <= buffer + largest
    writer.close()
    assert len(visible(writer.shard)) == len(set(visible(writer.shard))) == stats.rows


def test_after_each_flush_no_byte_of_the_rows_is_held(store: ObjectStore, shard_id: uuid.UUID) -> None:
    with open_writer(store, shard_id, ASYNC) as writer:
        gc.collect()
        before = pa.total_allocated_bytes()
        for _ in range(3):
            for row in range(20):
                writer.put(rows(*range(row, row + 1000)))
            assert pa.total_allocated_bytes() - before > 20 * 1000 * 8
            writer.flush()
            assert writer.stats().pipeline.pending_bytes == 0
            until(lambda: pa.total_allocated_bytes() <= before)


# -- back-pressure ---------------------------------------------------------------------------------


class Blocked:
    """A writer over a store that answers nothing until told to, and a put that has no room."""

    def __init__(self, store: ObjectStore, shard_id: uuid.UUID, config: WriterConfig, room: int) -> None:
        self.faulty = FaultyStore(store)
        self.writer = open_writer(self.faulty, shard_id, config)
        self.faulty.plan = lambda op: Fault.FAIL if op.verb == "put_if_absent" else None
        self.handles = [self.writer.put(rows(0))]
        self.flushing = Background(self.writer.flush)
        until(lambda: self.writer._flusher._retrying)
        self.handles += [self.writer.put(rows(row)) for row in range(1, room)]
        self.late = Background(lambda: self.writer.put(rows(99)))
        until(lambda: self.writer.stats().pipeline.waits == 1)


RETRYING = replace(
    ASYNC,
    retry=Retry(attempts=10**6, base=0.001, cap=0.001),
    max_wal_buffer_size=2 * ONE,
    max_unflushed_memtable_bytes=5 * ONE,
    backpressure_log_interval=0.05,
)


def test_lance_6675_puts_block_at_the_budget_and_resume(store: ObjectStore, shard_id: uuid.UUID) -> None:
    """While an append is being retried, puts are taken up to the budget and not one byte above it."""
    blocked = Blocked(store, shard_id, RETRYING, room=5)
    stats = blocked.writer.stats().pipeline
    assert (stats.pending_puts, stats.pending_bytes) == (5, 5 * ONE)
    time.sleep(0.05)
    assert blocked.late.running
    assert blocked.writer.stats().pipeline.pending_puts == 5
    blocked.faulty.unscript()
    blocked.late.result().wait()
    blocked.writer.close()
    assert blocked.writer.stats().pipeline.peak_pending_bytes <= 5 * ONE
    assert visible(blocked.writer.shard) == [0, 1, 2, 3, 4, 99]


def test_one_put_above_the_whole_budget_is_taken_when_nothing_else_waits(
    store: ObjectStore, shard_id: uuid.UUID
) -> None:
    config = replace(ASYNC, max_unflushed_memtable_bytes=1, max_wal_buffer_size=1)
    with open_writer(store, shard_id, config) as writer:
        for row in range(5):
            writer.put(rows(row))
    assert visible(writer.shard) == [0, 1, 2, 3, 4]


def test_a_writer_that_waits_at_its_budget_says_so_once_per_interval(store: ObjectStore, shard_id: uuid.UUID) -> None:
    with capture_logs() as logs:
        blocked = Blocked(store, shard_id, RETRYING, room=5)
        until(lambda: len(complaints(logs)) >= 3)
        blocked.faulty.unscript()
        blocked.late.result().wait()
        blocked.writer.close()
    told = complaints(logs)
    assert all(told[0][key] == value for key, value in {"budget": 5 * ONE, "shard": str(shard_id)}.items())
    assert told[0]["pending_bytes"] == 5 * ONE


def test_many_waiting_threads_complain_together_once_per_interval(store: ObjectStore, shard_id: uuid.UUID) -> None:
    with capture_logs() as logs:
        blocked = Blocked(store, shard_id, replace(RETRYING, backpressure_log_interval=3600.0), room=5)
        more = [Background(lambda row=row: blocked.writer.put(rows(row))) for row in range(100, 110)]  # type: ignore[misc]
        until(lambda: blocked.writer.stats().pipeline.waits == 11)
        assert len(complaints(logs)) == 1
        blocked.faulty.unscript()
        for one in (blocked.late, *more):
            one.result().wait()
        blocked.writer.close()
    assert len(complaints(logs)) == 1


def test_a_store_that_hangs_without_an_error_is_told_after_an_interval(store: ObjectStore, shard_id: uuid.UUID) -> None:
    """Puts wait at the buffer, far below the budget: short waits are quiet, a long one is not."""
    faulty = FaultyStore(store)
    config = replace(ASYNC, max_wal_buffer_size=ONE, backpressure_log_interval=0.03)
    with capture_logs() as logs:
        writer = open_writer(faulty, shard_id, config)
        stall = faulty.stall("put_if_absent", "/wal/")
        writer.put(rows(1))
        stall.wait()
        late = Background(lambda: writer.put(rows(2)))
        until(lambda: len(complaints(logs)) >= 2)
        stall.release()
        late.result().wait()
        writer.close()


def test_a_working_store_is_never_complained_about(store: ObjectStore, shard_id: uuid.UUID) -> None:
    with capture_logs() as logs:
        config = replace(ASYNC, max_wal_buffer_size=ONE, backpressure_log_interval=600.0)
        with open_writer(store, shard_id, config) as writer:
            for row in range(50):
                writer.put(rows(row))
        assert writer.stats().pipeline.waits > 0
    assert complaints(logs) == []


def complaints(logs: Sequence[MutableMapping[str, Any]]) -> list[MutableMapping[str, Any]]:
    return [entry for entry in logs if "puts wait" in str(entry["event"])]


def test_a_put_that_waits_for_room_learns_that_the_writer_closes(store: ObjectStore, shard_id: uuid.UUID) -> None:
    blocked = Blocked(store, shard_id, RETRYING, room=5)
    closing = Background(blocked.writer.close)
    with pytest.raises(Closed):
        blocked.late.result()
    blocked.faulty.unscript()
    closing.result()
    assert visible(blocked.writer.shard) == [0, 1, 2, 3, 4]


def test_a_put_that_waits_for_room_learns_of_the_final_error(store: ObjectStore, shard_id: uuid.UUID) -> None:
    blocked = Blocked(store, shard_id, RETRYING, room=5)

    def refuse(op: Operation) -> Fault | None:
        if op.verb == "put_if_absent":
            raise PermissionDenied("The credentials have expired.")
        return None

    blocked.faulty.plan = refuse
    for one in (blocked.late, blocked.flushing):
        with pytest.raises(Poisoned, match=r"not_durable=puts 2 to 5 \(4 rows\), unknown=puts 1 to 1"):
            one.result()
    with pytest.raises(Poisoned):
        blocked.handles[2].wait()
    closing_checks(store, shard_id, set(), range(5), [blocked.writer])


# -- one putter alone ----------------------------------------------------------------------------


def test_a_lone_putter_writes_its_entries_itself(store: ObjectStore, shard_id: uuid.UUID) -> None:
    """No change of threads: what a task of a stream does for each of its shards."""
    faulty = FaultyStore(store)
    writer = open_writer(faulty, shard_id, WAL_ONLY)
    seen: set[int] = set()

    def note(op: Operation) -> Fault | None:
        seen.add(threading.get_ident())
        return None

    faulty.plan = note
    for row in range(3):
        writer.put(rows(row))
    writer.close()
    assert seen == {threading.get_ident()}
    assert visible(writer.shard) == [0, 1, 2]


def test_what_comes_while_a_lone_putter_writes_waits_for_it(store: ObjectStore, shard_id: uuid.UUID) -> None:
    faulty = FaultyStore(store)
    writer = open_writer(faulty, shard_id, WAL_ONLY)
    stall = faulty.stall("put_if_absent", "/wal/")
    first = Background(lambda: writer.put(rows(0)))
    stall.wait()
    late, flushing = Background(lambda: writer.put(rows(1))), Background(writer.flush)
    until(lambda: writer.stats().pipeline.pending_puts == 2)
    time.sleep(0.02)
    assert first.running
    assert late.running
    assert flushing.running
    closing = Background(writer.close)
    stall.release()
    first.result()
    late.result()
    flushing.result()
    closing.result()
    assert visible(writer.shard) == [0, 1]
    assert writer.stats().pipeline.entries == 2


def test_a_lone_putter_that_is_interrupted_leaves_a_put_of_unknown_outcome(
    store: ObjectStore, shard_id: uuid.UUID
) -> None:
    faulty = FaultyStore(store)
    writer = open_writer(faulty, shard_id, WAL_ONLY)

    def interrupt(op: Operation) -> Fault | None:
        raise KeyboardInterrupt

    writer.put(rows(0))
    faulty.plan = interrupt
    with pytest.raises(KeyboardInterrupt):
        writer.put(rows(1))
    faulty.unscript()
    with pytest.raises(Poisoned, match="was interrupted"):
        writer.put(rows(2))
    with pytest.raises(Poisoned):
        writer.close()
    left = writer.take_pending()
    assert [put.number for entry in left.unknown for put in entry.puts] == [2]
    assert visible(writer.shard) == [0]
