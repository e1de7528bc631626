"""ShardWriter in WAL-only mode: what a put makes, requests, grouping, attached tasks. See test_modes for the rest."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from headgate.connectors.objects.port import ObjectStore
from headgate.errors import Closed, Fenced, InvalidInput, NotFound, Poisoned
from headgate.retry import Retry
from headgate.shards.rows.schema import RowSchema
from headgate.shards.shard import TableHome
from headgate.shards.wal.entry import SourceRange, Tags
from headgate.shards.wal.tailer import WalTailer
from headgate.shards.writer import ShardWriter
from tests.support.closing import (
    ASYNC,
    WAL_ONLY,
    Background,
    closing_checks,
    entry_at,
    fenced,
    home_of,
    ids_of,
    open_writer,
    rows,
    visible,
    wal_positions,
)
from tests.support.stores import FaultyStore

KEYED = RowSchema.of(
    pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False, metadata={"lance-schema:unenforced-primary-key": "true"}),
            pa.field("note", pa.string()),
        ]
    )
)


# -- what put makes ------------------------------------------------------------------


def test_a_durable_put_returns_the_positions_of_its_rows(store: ObjectStore, shard_id: uuid.UUID) -> None:
    with open_writer(store, shard_id) as writer:
        for position in (1, 2, 3):
            put = writer.put(rows(position, position + 100))
            assert put.done
            assert put.positions == put.wait() == (position,)
            assert (put.number, put.rows) == (position, 2)
            assert ids_of(entry_at(writer.shard, position)) == [position, position + 100]


def test_a_put_that_is_not_durable_returns_a_handle_to_wait_for(store: ObjectStore, shard_id: uuid.UUID) -> None:
    with open_writer(store, shard_id, ASYNC) as writer:
        put = writer.put(rows(1))
        assert (put.done, put.positions) == (False, ())
        assert wal_positions(writer.shard) == [0]
        assert put.wait() == (1,)
        assert (put.done, put.wait(), put.positions) == (True, (1,), (1,))


def test_waiting_for_a_handle_may_time_out_and_go_on(store: ObjectStore, shard_id: uuid.UUID) -> None:
    faulty = FaultyStore(store)
    with open_writer(faulty, shard_id, ASYNC) as writer:
        stall = faulty.stall("put_if_absent", "/wal/")
        put = writer.put(rows(1))
        with pytest.raises(TimeoutError, match="put 1"):
            put.wait(timeout=0.01)
        stall.release()
        assert put.wait() == (1,)


def test_a_put_without_rows_writes_nothing_and_is_done(store: ObjectStore, shard_id: uuid.UUID) -> None:
    with open_writer(store, shard_id) as writer:
        nothings: list[Any] = [rows(), [], pa.Table.from_batches([rows()])]
        for nothing in nothings:
            put = writer.put(nothing)
            assert put.done
            assert put.wait() == put.positions == ()
        assert wal_positions(writer.shard) == [0]
    with pytest.raises(Closed):
        writer.put(rows())


def test_tables_and_lists_of_batches_are_one_put_in_one_entry(store: ObjectStore, shard_id: uuid.UUID) -> None:
    with open_writer(store, shard_id) as writer:
        assert writer.put([rows(1), rows(), rows(2, 3)]).positions == (1,)
        assert writer.put(pa.Table.from_batches([rows(4), rows(5)])).positions == (2,)
        assert [ids_of(entry_at(writer.shard, at)) for at in (1, 2)] == [[1, 2, 3], [4, 5]]


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_rows_come_back_as_they_were_put(store: ObjectStore, shard_id: uuid.UUID, compression: str | None) -> None:
    config = replace(WAL_ONLY, compression=compression)  # type: ignore[arg-type]
    batch = rows(*range(5000), note="the same again")
    with open_writer(store, shard_id, config) as writer:
        writer.put(batch)
    (one,) = WalTailer(writer.shard).read(1)
    table = pa.Table.from_batches(one.entry.batches)
    assert table.select(["id", "note"]).to_pydict() == pa.Table.from_batches([batch]).to_pydict()
    assert table.column("_tombstone").to_pylist() == [False] * 5000
    raw = batch.get_total_buffer_size()
    assert (one.entry.nbytes < raw / 2) == (compression is not None)


def test_deletes_are_tombstones(store: ObjectStore, shard_id: uuid.UUID) -> None:
    home = TableHome.in_store(store, KEYED)
    with ShardWriter.open(home, shard_id, WAL_ONLY) as writer:
        writer.put(pa.record_batch({"id": [1], "note": ["a"]}, schema=KEYED.logical))
        put = writer.delete(pa.record_batch({"id": pa.array([1, 2], pa.int64())}))
        assert (put.positions, put.rows) == ((2,), 2)
    entry = entry_at(writer.shard, 2)
    assert [batch.to_pydict() for batch in entry.batches] == [
        {"id": [1, 2], "note": [None, None], "_tombstone": [True, True]}
    ]


def test_bad_rows_are_refused_and_cost_no_other_row(store: ObjectStore, shard_id: uuid.UUID) -> None:
    with open_writer(store, shard_id) as writer:
        writer.put(rows(1))
        for bad in (
            pa.record_batch({"id": ["x"]}),
            pa.record_batch({"note": ["x"]}),
            pa.record_batch({"id": [1], "other": [1]}),
            "rows",
        ):
            with pytest.raises(InvalidInput):
                writer.put(bad)
        with pytest.raises(InvalidInput, match="no primary key"):
            writer.delete(pa.record_batch({"id": [1]}))
        assert writer.put(rows(2)).positions == (2,)
    closing_checks(store, shard_id, {1, 2}, {1, 2})


def test_tags_travel_with_the_entry_and_never_share_one(store: ObjectStore, shard_id: uuid.UUID) -> None:
    first = Tags("attempt-1", (SourceRange("topic", 0, 5, 9),))
    second = Tags("attempt-2")
    with open_writer(store, shard_id, ASYNC) as writer:
        handles = [writer.put(rows(n), tags) for n, tags in enumerate([first, first, second, Tags(), Tags()])]
        writer.flush()
        assert [handle.positions for handle in handles] == [(1,), (1,), (2,), (3,), (3,)]
        assert [entry_at(writer.shard, at).header.tags for at in (1, 2, 3)] == [first, second, Tags()]


# -- requests --------------------------------------------------------------------------


def test_the_first_put_after_open_is_one_put_request_and_nothing_else(store: ObjectStore, shard_id: uuid.UUID) -> None:
    with open_writer(store, shard_id) as before:
        before.put(rows(1))
    faulty = FaultyStore(store)
    writer = open_writer(faulty, shard_id)
    faulty.reset_operations()
    writer.put(rows(2))
    assert faulty.operations() == {"put": 1}
    for row in range(3, 8):
        writer.put(rows(row))
    assert faulty.operations() == {"put": 6}


def test_attach_claims_reads_and_writes_nothing(store: ObjectStore, shard_id: uuid.UUID) -> None:
    owner = open_writer(store, shard_id)
    faulty = FaultyStore(store)
    claim = replace(owner.claim, shard=home_of(faulty).shard(shard_id))
    with ShardWriter.attach(claim, WAL_ONLY) as task:
        assert task.stats().next_position == 1
        assert faulty.log == []
        assert task.put(rows(1)).positions == (1,)
    assert faulty.operations() == {"put": 1}
    before = owner.shard.manifests.latest()
    assert before is not None
    assert (before.version, before.last_seen) == (1, 0)


# -- grouping ------------------------------------------------------------------------------


def test_concurrent_putters_share_one_entry(store: ObjectStore, shard_id: uuid.UUID) -> None:
    """Group commit: while one entry is being written, the others gather for the next."""
    faulty = FaultyStore(store)
    writer = open_writer(faulty, shard_id)
    stall = faulty.stall("put_if_absent", "/wal/")
    first = Background(lambda: writer.put(rows(0)))
    stall.wait()
    others = [Background(lambda row=row: writer.put(rows(row))) for row in range(1, 9)]  # type: ignore[misc]
    until(lambda: writer.stats().pipeline.pending_puts == 9)
    stall.release()
    assert first.result().positions == (1,)
    assert {other.result().positions for other in others} == {(2,)}
    stats = writer.stats()
    assert (stats.pipeline.puts, stats.pipeline.entries, stats.next_position) == (9, 2, 3)
    assert faulty.log[-1].key == writer.shard.wal_key(2)
    writer.close()
    closing_checks(store, shard_id, range(9), range(9), [writer])


def test_puts_that_nobody_waits_for_are_grouped_by_size(store: ObjectStore, shard_id: uuid.UUID) -> None:
    one = len(bytes(rows(1).serialize()))
    config = replace(ASYNC, max_wal_buffer_size=one * 20)
    with open_writer(store, shard_id, config) as writer:
        for row in range(100):
            writer.put(rows(row))
        writer.flush()
        sizes = [len(ids_of(entry_at(writer.shard, at))) for at in wal_positions(writer.shard)[1:]]
    assert sum(sizes) == 100
    assert 1 < len(sizes) < 100
    assert max(sizes) <= 20
    assert visible(writer.shard) == list(range(100))


def test_puts_that_nobody_waits_for_are_written_when_the_interval_is_over(
    store: ObjectStore, shard_id: uuid.UUID
) -> None:
    with open_writer(store, shard_id, replace(ASYNC, max_wal_flush_interval=0.02)) as writer:
        handles = [writer.put(rows(row)) for row in range(3)]
        until(lambda: all(handle.done for handle in handles))
        assert visible(writer.shard) == [0, 1, 2]


def test_puts_that_nobody_waits_for_stay_until_the_interval_is_over(store: ObjectStore, shard_id: uuid.UUID) -> None:
    faulty = FaultyStore(store)
    with open_writer(faulty, shard_id, ASYNC) as writer:
        faulty.reset_operations()
        for row in range(50):
            writer.put(rows(row))
        assert faulty.operations() == {}
        assert writer.stats().pipeline.pending_puts == 50
        writer.flush()
        assert faulty.operations() == {"put": 1}
    assert visible(writer.shard) == list(range(50))


def test_a_put_larger_than_the_buffer_is_never_split(store: ObjectStore, shard_id: uuid.UUID) -> None:
    with open_writer(store, shard_id, replace(WAL_ONLY, max_wal_buffer_size=10)) as writer:
        assert writer.put(rows(*range(1000))).positions == (1,)
        assert writer.put([rows(*range(500)), rows(*range(500))]).positions == (2,)


def test_rows_become_durable_in_the_order_of_their_puts(store: ObjectStore, shard_id: uuid.UUID) -> None:
    with open_writer(store, shard_id, replace(ASYNC, max_wal_buffer_size=1 << 12)) as writer:
        for row in range(500):
            writer.put(rows(row))
    assert visible(writer.shard) == list(range(500))


# -- stats, flush, close -------------------------------------------------------------------------


def test_close_notes_the_tip_for_the_next_opener(store: ObjectStore, shard_id: uuid.UUID) -> None:
    with open_writer(store, shard_id) as writer:
        for row in range(30):
            writer.put(rows(row))
    manifest = writer.shard.manifests.latest()
    assert manifest is not None
    assert (manifest.last_seen, manifest.epoch, manifest.replay_after) == (30, 1, 0)
    faulty = FaultyStore(store)
    open_writer(faulty, shard_id)
    assert {op.verb for op in faulty.log if "/wal/" in op.key} == {"list", "head", "put_if_absent"}
    assert (faulty.operations()["head"], [op.verb for op in faulty.log if "/wal/" in op.key].count("list")) == (2, 1)


def test_a_fenced_writer_whose_puts_are_durable_answers_within_a_second(store: ObjectStore) -> None:
    patient = replace(WAL_ONLY, retry=Retry(attempts=50, base=60.0, cap=600.0))
    seconds = []
    for _ in range(3):  # as above
        shard_id = uuid.uuid4()
        writer = open_writer(store, shard_id, patient)
        open_writer(store, shard_id)
        start = time.monotonic()
        error = fenced(Background(partial(writer.put, rows(1))).result)
        for later in (writer.close, writer.close, writer.flush, partial(writer.put, rows(2))):
            assert fenced(Background(later).result) is error
        seconds.append(time.monotonic() - start)
    assert min(seconds) < 1


def test_every_thread_that_waits_learns_that_the_writer_is_fenced(store: ObjectStore, shard_id: uuid.UUID) -> None:
    faulty = FaultyStore(store)
    writer = open_writer(faulty, shard_id)
    stall = faulty.stall("put_if_absent", "/wal/")
    putters = [Background(lambda row=row: writer.put(rows(row))) for row in range(6)]  # type: ignore[misc]
    stall.wait()
    until(lambda: writer.stats().pipeline.pending_puts == 6)
    open_writer(store, shard_id)
    stall.release()
    for putter in putters:
        fenced(putter.result)


def test_a_thread_that_dies_of_a_bug_poisons_and_says_why(store: ObjectStore, shard_id: uuid.UUID) -> None:
    class Buggy(FaultyStore):
        broken = False

        def put_if_absent(self, key: str, data: Any) -> None:
            if self.broken:
                raise ZeroDivisionError("a bug")
            super().put_if_absent(key, data)

    buggy = Buggy(store)
    writer = open_writer(buggy, shard_id)
    buggy.broken = True
    with pytest.raises(Poisoned, match="a bug") as caught:
        writer.put(rows(1))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    with pytest.raises(Poisoned):
        writer.close()


# -- by URI ---------------------------------------------------------------------------------------


def test_a_table_that_is_not_there_is_not_found(tmp_path: Path, shard_id: uuid.UUID) -> None:
    with pytest.raises(NotFound):
        ShardWriter.open(str(tmp_path / "none"), shard_id, WAL_ONLY)
    assert not (tmp_path / "none").exists()


def test_a_table_is_opened_by_its_uri(tmp_path: Path, shard_id: uuid.UUID) -> None:
    uri = str(tmp_path / "table")
    lance.write_dataset(pa.table({"id": [1], "note": ["base"]}), uri)
    with ShardWriter.open(uri, str(shard_id), WAL_ONLY) as writer:
        assert writer.put(pa.table({"id": [2], "note": ["x"]})).positions == (1,)
    assert (tmp_path / "table" / "_mem_wal" / str(shard_id) / "wal").is_dir()


# -- attached tasks ----------------------------------------------------------------------------------


def test_a_zombie_task_is_fenced_with_the_claim_it_was_given(store: ObjectStore, shard_id: uuid.UUID) -> None:
    driver = open_writer(store, shard_id)
    zombie = ShardWriter.attach(driver.claim, WAL_ONLY)
    successor = open_writer(store, shard_id)
    fenced(lambda: zombie.put(rows(1), Tags("attempt")))
    with pytest.raises(Fenced):
        zombie.close()
    successor.put(rows(2))
    assert visible(driver.shard) == [2]


def test_many_attempts_with_one_claim_leave_no_gap(store: ObjectStore, shard_id: uuid.UUID) -> None:
    claim = open_writer(store, shard_id).claim

    def attempt(number: int) -> None:
        with ShardWriter.attach(claim, WAL_ONLY) as task:
            for row in range(5):
                task.put(rows(100 * number + row), Tags(f"attempt-{number}"))

    threads = [threading.Thread(target=attempt, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = {100 * number + row for number in range(6) for row in range(5)}
    assert wal_positions(claim.shard) == list(range(31))
    closing_checks(store, shard_id, expected, expected)


def until(condition: Callable[[], bool]) -> None:
    """Wait for another thread to get there."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.001)
