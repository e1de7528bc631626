"""MemTables: when they freeze, in which order they are flushed, and what a failing flush does."""

from __future__ import annotations

import threading
import time
import uuid
from dataclasses import replace
from functools import partial
from itertools import count, takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headgate.connectors.lance import datasets
from headgate.errors import Closed, Fenced, HeadgateError, InvalidInput, Poisoned, Transient
from headgate.retry import Retry
from headgate.shards import writer as writer_module
from headgate.shards.memtable.memtable import MemTable
from headgate.shards.memtable.memtables import MemTables
from headgate.shards.memtable.notes import GenerationNotes
from headgate.shards.memtable.replay import replay
from headgate.shards.rows.schema import RowSchema
from headgate.shards.rows.sstable import write_sstable
from headgate.shards.wal.appender import WalAppender
from headgate.shards.wal.entry import Tags
from headgate.shards.writer import ShardWriter
from tests.support.closing import Background, fenced
from tests.support.datasets import (
    ASYNC,
    AT_ONCE,
    KEYED,
    MEMTABLE,
    NO_RETRY,
    batch,
    faulty,
    home_over,
    keys,
    make_table,
    pairs,
    seen,
)
from tests.support.stores import PATIENCE, Fault, Operation

SHARD = uuid.UUID(int=7)


def test_a_memtable_keeps_what_was_put_and_shows_the_newest() -> None:
    schema = RowSchema.of(KEYED)
    table = MemTable(schema, 1, 0)
    table.add(schema.stored_rows(batch([(1, "a"), (2, "b")])), 1)
    before = table.table()
    table.add(schema.stored_rows(batch([(1, "c")])), 2, puts=3)
    assert before.num_rows == 2
    assert table.table().column("note").to_pylist() == ["a", "b", "c"]
    assert table.newest().column("note").to_pylist() == ["b", "c"]
    stats = table.stats()
    assert (stats.rows, stats.batches, stats.first_position, stats.last_position) == (3, 2, 1, 2)
    with pytest.raises(AssertionError):
        table.add(schema.stored_rows(batch([(1, "late")])), 1)


@pytest.mark.parametrize(
    ("limits", "flushed"),
    [({"max_memtable_rows": 5}, [6]), ({"max_memtable_batches": 2}, [4]), ({"max_memtable_size": 90}, [4])],
)
def test_a_memtable_is_frozen_by_rows_puts_or_bytes(tmp_path: Path, limits: dict[str, int], flushed: list[int]) -> None:
    uri = make_table(tmp_path)
    with ShardWriter.open(uri, SHARD, replace(MEMTABLE, **limits)) as writer:  # type: ignore[arg-type]
        for put in range(3):
            writer.put(batch([(2 * put, "abcdefghij"), (2 * put + 1, "abcdefghij")]))
        shard = writer.shard
    manifest = shard.manifests.latest()
    assert manifest is not None
    assert [sstable.physical_rows for sstable in manifest.sstables] == flushed
    assert manifest.replay_after == flushed[0] // 2
    assert manifest.generation == 2
    assert [i for i, _ in seen(uri, SHARD)] == list(range(6))


def test_a_put_larger_than_a_memtable_is_taken_whole(tmp_path: Path) -> None:
    uri = make_table(tmp_path)
    with ShardWriter.open(uri, SHARD, replace(MEMTABLE, max_memtable_rows=3)) as writer:
        writer.put(batch([(i, "n") for i in range(10)]))
        writer.flush_memtable()
        manifest = writer.shard.manifests.latest()
        assert manifest is not None
        assert [sstable.physical_rows for sstable in manifest.sstables] == [10]
        assert len(pairs(writer.scan())) == 10


def test_a_flush_without_rows_writes_nothing(tmp_path: Path) -> None:
    uri = make_table(tmp_path)
    store = faulty(uri)
    with ShardWriter.open(home_over(store, uri), SHARD, MEMTABLE) as writer:
        done = len(store.log)
        writer.flush_memtable()
        writer.put(batch([]))
        writer.flush_memtable()
        assert store.log[done:] == []
        writer.put(batch([(1, "a")]))
        writer.flush_memtable()
        version = writer.shard.manifests.latest()
        writer.flush_memtable()
        assert writer.shard.manifests.latest() == version


def test_frozen_memtables_are_seen_while_their_flush_is_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Native misses them: 29 to 39 of 40 scans came back short."""
    uri = make_table(tmp_path, base=[(100, "base")])
    gate = threading.Event()
    write = datasets.write_dataset

    def slow(*args: object, **kwargs: object) -> None:
        assert gate.wait(PATIENCE)
        write(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(datasets, "write_dataset", slow)
    with ShardWriter.open(uri, SHARD, replace(MEMTABLE, max_memtable_rows=2)) as writer:
        expected = [(100, "base")]
        for i in range(8):
            writer.put(batch([(i, "n")]))
            expected.append((i, "n"))
            assert pairs(writer.scan()) == sorted(expected)
        assert [stats.frozen for stats in writer.memtable_stats()] == [True] * 4 + [False]
        assert writer.active_memtable().num_rows == 0
        gate.set()
        writer.flush_memtable()
        assert [stats.frozen for stats in writer.memtable_stats()] == [False]
        assert pairs(writer.scan()) == sorted(expected)


def test_a_scan_beside_puts_and_flushes_never_misses_and_never_doubles_a_row(tmp_path: Path) -> None:
    """On a table without a key, where nothing would hide a doubled row."""
    uri = make_table(tmp_path, schema=_plain())
    failures: list[str] = []
    done = 0
    stop = threading.Event()
    with ShardWriter.open(uri, SHARD, replace(MEMTABLE, max_memtable_rows=7)) as writer:

        def read() -> None:
            while not stop.is_set():
                before = done
                ids = writer.scan(["id"]).read_all().column("id").to_pylist()
                if sorted(ids) != list(range(len(ids))) or len(ids) < before:
                    failures.append(f"{before} rows were durable, a scan showed {sorted(ids)}")

        readers = [threading.Thread(target=read) for _ in range(2)]
        for reader in readers:
            reader.start()
        for i in range(150):
            writer.put(batch([(i, "n")], _plain()))
            done = i + 1
        stop.set()
        for reader in readers:
            reader.join()
    assert not failures, failures[0]


def test_a_put_is_seen_when_it_is_durable(tmp_path: Path) -> None:
    uri = make_table(tmp_path)
    store = faulty(uri)
    with ShardWriter.open(home_over(store, uri), SHARD, MEMTABLE) as writer:
        stall = store.stall("put_if_absent", "/wal/")
        putter = threading.Thread(target=writer.put, args=(batch([(1, "a")]),))
        putter.start()
        stall.wait()
        assert pairs(writer.scan()) == []
        stall.release()
        putter.join()
        assert pairs(writer.scan()) == [(1, "a")]


def test_without_durable_write_a_put_is_seen_at_once(tmp_path: Path) -> None:
    uri = make_table(tmp_path)
    config = replace(MEMTABLE, durable_write=False, max_wal_flush_interval=3600.0)
    with ShardWriter.open(uri, SHARD, config) as writer:
        put = writer.put(batch([(1, "a")]))
        assert not put.done
        assert pairs(writer.scan()) == [(1, "a")]
        assert pairs(writer.get(keys(1))) == [(1, "a")]
        writer.delete(keys(1))
        assert pairs(writer.scan()) == []
        writer.flush()
        assert put.done
        assert pairs(writer.scan()) == []


def test_a_memtable_holds_rows_of_its_own(tmp_path: Path) -> None:
    """A caller that uses its buffers again must not change what a scan or an SSTable shows."""
    uri = make_table(tmp_path)
    ids = np.arange(4, dtype=np.int64)
    rows = pa.record_batch([pa.array(ids), pa.array(["n"] * 4)], schema=KEYED)
    with ShardWriter.open(uri, SHARD, MEMTABLE) as writer:
        writer.put(rows)
        ids += 100
        assert [i for i, _ in pairs(writer.scan())] == [0, 1, 2, 3]
        big = batch([(i, "x" * 100) for i in range(1000)])
        writer.put(big.slice(0, 1))
        held = sum(b.get_total_buffer_size() for b in writer.active_memtable().to_batches())
        assert held < 4096


def test_rows_of_an_attempt_are_refused(tmp_path: Path) -> None:
    uri = make_table(tmp_path)
    with ShardWriter.open(uri, SHARD, MEMTABLE) as writer:
        with pytest.raises(InvalidInput):
            writer.put(batch([(1, "a")]), Tags(attempt_id="x"))
        assert pairs(writer.scan()) == []


# -- failing flushes -----------------------------------------------------------------


def test_peers_bug_6_lance_8293_a_failed_flush_is_never_passed_by_a_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = make_table(tmp_path)
    tried: list[int] = []
    write = writer_module.write_sstable  # type: ignore[attr-defined]

    def failing(shard: Any, maintained: Any, table: MemTable) -> object:
        tried.append(table.generation)
        if table.generation == 2:
            raise Transient("A fault.")
        return write(shard, maintained, table)

    monkeypatch.setattr(writer_module, "write_sstable", failing)
    writer = ShardWriter.open(uri, SHARD, replace(MEMTABLE, max_memtable_rows=2, retry=NO_RETRY))
    acked = []

    def put_until_it_fails() -> None:
        deadline = time.monotonic() + 60
        for i in takewhile(lambda _: time.monotonic() < deadline, count()):
            writer.put(batch([(i, "n")]))
            acked.append((i, "n"))

    with pytest.raises(Poisoned) as raised:
        put_until_it_fails()
    assert "generation 2" in str(raised.value)
    with pytest.raises(Poisoned):
        writer.flush_memtable()
    with pytest.raises(Poisoned):
        writer.scan()
    with pytest.raises(Poisoned):
        writer.close()
    manifest = writer.shard.manifests.latest()
    assert manifest is not None
    assert [sstable.generation for sstable in manifest.sstables] == [1]
    assert manifest.replay_after == 2
    assert tried == [1, 2]
    monkeypatch.undo()
    after = seen(uri, SHARD)
    assert after[: len(acked)] == acked
    assert len(after) - len(acked) in (0, 1)


def test_peers_bug_9_close_reports_a_flush_that_fails_while_it_closes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = make_table(tmp_path)
    gate = threading.Event()

    def failing(*args: object) -> object:
        assert gate.wait(PATIENCE)
        raise OSError("the disk is on fire")

    monkeypatch.setattr(writer_module, "write_sstable", failing)
    writer = ShardWriter.open(uri, SHARD, replace(MEMTABLE, max_memtable_rows=1))
    writer.put(batch([(1, "a")]))
    threading.Timer(0.05, gate.set).start()
    for _ in range(2):
        with pytest.raises(Poisoned) as raised:
            writer.close()
        assert "disk is on fire" in str(raised.value.__cause__)
    monkeypatch.undo()
    assert seen(uri, SHARD) == [(1, "a")]


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.LOST_EXISTS, Fault.FAIL])
@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_lost_response_to_the_manifest_of_a_flush_is_no_error(tmp_path: Path, fault: Fault, times: int) -> None:
    uri = make_table(tmp_path, schema=_plain())
    store = faulty(uri)
    with ShardWriter.open(home_over(store, uri), SHARD, MEMTABLE) as writer:
        writer.put(batch([(1, "a")], _plain()))
        store.script("put_if_absent", *[fault] * times)
        writer.flush_memtable()
        assert store.injected > 0
        store.unscript()
        manifest = writer.shard.manifests.latest()
        assert manifest is not None
        assert [sstable.generation for sstable in manifest.sstables] == [1]
        writer.put(batch([(2, "b")], _plain()))
        writer.flush_memtable()
        assert pairs(writer.scan()) == [(1, "a"), (2, "b")]
    assert seen(uri, SHARD) == [(1, "a"), (2, "b")]


def test_a_manifest_that_landed_after_all_tries_is_known_by_the_sstables_name(tmp_path: Path) -> None:
    """R9. Every response of one commit is lost; the next try meets its own SSTable."""
    uri = make_table(tmp_path, schema=_plain())
    store = faulty(uri)
    with ShardWriter.open(home_over(store, uri), SHARD, MEMTABLE) as writer:
        writer.put(batch([(1, "a")], _plain()))
        tries = AT_ONCE.attempts + 1
        left = {"put_if_absent": tries, "get": tries}

        def plan(operation: Operation) -> Fault | None:
            """The put never answers, nor does the read after it; then, before the next try, the put arrives."""
            if "/manifest/" not in operation.key or not left.get(operation.verb):
                return None
            if operation.verb == "get" and left["put_if_absent"]:
                return None
            left[operation.verb] -= 1
            if left["get"] == 0:
                store.deliver()
            return Fault.LATE if operation.verb == "put_if_absent" else Fault.FAIL

        store.plan = plan
        writer.flush_memtable()
        assert left == {"put_if_absent": 0, "get": 0}
        assert store.late == []
    manifest = writer.shard.manifests.latest()
    assert manifest is not None
    assert len(manifest.sstables) == 1
    assert seen(uri, SHARD) == [(1, "a")]


def test_a_writer_fenced_during_a_flush_learns_it_and_loses_nothing(tmp_path: Path) -> None:
    uri = make_table(tmp_path, schema=_plain())
    store = faulty(uri)
    writer = ShardWriter.open(home_over(store, uri), SHARD, MEMTABLE)
    writer.put(batch([(1, "a")], _plain()))
    stall = store.stall("put_if_absent", "/manifest/")
    failures: list[HeadgateError] = []

    def flush() -> None:
        try:
            writer.flush_memtable()
        except HeadgateError as error:
            failures.append(error)

    flushing = threading.Thread(target=flush)
    flushing.start()
    stall.wait()
    assert seen(uri, SHARD) == [(1, "a")]
    stall.release()
    flushing.join(PATIENCE)
    assert [type(error) for error in failures] == [Fenced]
    for call in (writer.close, writer.scan, writer.flush_memtable, lambda: writer.put(batch([(2, "b")], _plain()))):
        with pytest.raises(Fenced):
            call()
    manifest = writer.shard.manifests.latest()
    assert manifest is not None
    assert manifest.sstables == ()
    assert seen(uri, SHARD) == [(1, "a")]


@pytest.mark.parametrize("durable", [True, False], ids=["durable", "async"])
def test_lance_context_204_close_of_a_fenced_writer_does_not_wait_for_a_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool
) -> None:
    """A flush that hangs and patient retries: close() and what is called after it still come back in a second."""
    uri = make_table(tmp_path)
    never = threading.Event()
    standing = threading.Event()

    def stuck(*args: object) -> object:
        standing.set()
        never.wait(PATIENCE)
        raise Transient("A fault.")

    patient = Retry(attempts=50, base=60.0, cap=600.0)
    config = replace(MEMTABLE if durable else ASYNC, max_memtable_rows=1, retry=patient)
    seconds = []
    for _ in range(3):  # the fastest counts: other tests keep the machine busy
        shard = uuid.uuid4()
        standing.clear()
        with monkeypatch.context() as patched:
            patched.setattr(writer_module, "write_sstable", stuck)
            writer = ShardWriter.open(uri, shard, config)
        put = writer.put(batch([(1, "a")]))
        writer.flush()
        assert put.done
        assert standing.wait(PATIENCE)
        assert seen(uri, shard) == [(1, "a")]
        start = time.monotonic()
        late = Background(partial(writer.put, batch([(2, "b")])))
        # One that is not durable is only taken: the pipeline meets the successor's barrier.
        error = fenced(late.result) if durable else late.result() and None
        for call in (writer.close, writer.close, writer.scan, writer.flush_memtable, partial(writer.get, keys(1))):
            told = fenced(Background(call).result)
            assert error is None or told is error
        fenced(Background(partial(writer.put, batch([(3, "c")]))).result)
        seconds.append(time.monotonic() - start)
    assert min(seconds) < 1, "close() waits for a flush that hangs"
    never.set()


def test_another_flush_under_the_same_claim_abandons_this_one(tmp_path: Path) -> None:
    """R9: a job that attached to the claim was quicker."""
    uri = make_table(tmp_path)
    writer = ShardWriter.open(uri, SHARD, MEMTABLE)
    writer.put(batch([(1, "a")]))
    claim = writer.claim
    writer.shard.manifests.commit_update(
        claim.claim_id, claim.epoch, lambda manifest: replace(manifest, generation=manifest.generation + 1)
    )
    with pytest.raises(Fenced):
        writer.flush_memtable()
    manifest = writer.shard.manifests.latest()
    assert manifest is not None
    assert (manifest.sstables, manifest.replay_after) == ((), 0)


def test_a_closed_writer_neither_flushes_nor_shows(tmp_path: Path) -> None:
    uri = make_table(tmp_path)
    writer = ShardWriter.open(uri, SHARD, MEMTABLE)
    writer.put(batch([(1, "a")]))
    writer.close()
    writer.close()
    for call in (writer.flush_memtable, writer.scan, lambda: writer.get(keys(1))):
        with pytest.raises(Closed):
            call()
    assert writer.memtable_stats()[-1].rows == 1


# -- the budget ------------------------------------------------------------------------


def test_puts_wait_at_the_budget_and_go_on_when_a_flush_has_made_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = make_table(tmp_path)
    gate = threading.Event()
    peak = 0
    write = writer_module.write_sstable  # type: ignore[attr-defined]

    def slow(*args: Any) -> object:
        assert gate.wait(PATIENCE)
        return write(*args)

    monkeypatch.setattr(writer_module, "write_sstable", slow)
    config = replace(MEMTABLE, max_unflushed_memtable_bytes=4_000)
    with ShardWriter.open(uri, SHARD, config) as writer:
        threading.Timer(0.2, gate.set).start()
        for i in range(20):
            writer.put(batch([(i, "x" * 800)]))
            peak = max(peak, sum(stats.nbytes for stats in writer.memtable_stats()))
        assert writer.stats().pipeline.waits > 0
        assert len(pairs(writer.scan())) == 20
        assert writer.shard.manifests.latest().sstables  # type: ignore[union-attr]
    assert peak <= 4_000


def test_replay_flushes_on_the_way_and_stays_within_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = make_table(tmp_path)
    with ShardWriter.open(uri, SHARD, MEMTABLE) as writer:
        for i in range(20):
            writer.put(batch([(i, "x" * 800)]))
    sizes: list[int] = []
    write = writer_module.write_sstable  # type: ignore[attr-defined]

    def measured(shard: Any, maintained: Any, table: MemTable) -> object:
        sizes.append(table.nbytes)
        return write(shard, maintained, table)

    monkeypatch.setattr(writer_module, "write_sstable", measured)
    config = replace(MEMTABLE, max_unflushed_memtable_bytes=4_000)
    with ShardWriter.open(uri, SHARD, config) as writer:
        assert sizes
        assert max(sizes) <= 4_900
        assert len(pairs(writer.scan())) == 20


@pytest.mark.parametrize(
    ("noting", "budget", "flushed"),
    [
        ([None] * 8, 1 << 20, [3, 6]),
        ([None, None, None, None, 1, None, None, None], 1 << 20, [5, 8]),
        ([None, None, None, None, None, 2, 2, None], 1 << 20, [5, 8]),
        ([None, None, None, None, None, 2, 2, None], 1, [1, 7, 8]),
        ([None, 1, None, None, 2, 2, None, None], 1 << 20, [4, 7]),
        ([1, 2, 3, 4, 5, 6, 7, 8], 1 << 20, [3, 6]),
    ],
    ids=["nothing", "the first", "the second", "the second, without budget", "both", "each its own"],
)
def test_a_replay_ends_its_flushes_where_no_later_entry_notes_their_generation(
    tmp_path: Path, noting: list[int | None], budget: int, flushed: list[int]
) -> None:
    """One row in each entry, three in a MemTable; a flush of generation 2 must reach the last entry that notes 1 or 2.

    Before a generation that is noted later there is no end without need: it would come to hold more than native put
    into it, and native would refuse to open.
    """
    uri = make_table(tmp_path)
    config = replace(MEMTABLE, max_memtable_rows=3, max_unflushed_memtable_bytes=budget)
    with ShardWriter.open(uri, SHARD, replace(MEMTABLE, enable_memtable=False)) as writer:
        for i in range(len(noting)):
            writer.put(batch([(i, "n")]))
    appender = WalAppender.open(writer.shard)
    assert appender.opened is not None
    tables = MemTables(appender.claim, appender.opened, config, partial(write_sstable, appender.claim, ()))
    parts = replay(writer.shard, appender.opened, appender.next_position - 1, epoch=appender.epoch)
    tables.restore(
        (replace(part, generation=noting[part.position - 1]) for part in parts),
        GenerationNotes.of(enumerate(noting, start=1)),
    )
    tables.close()
    ends: list[int] = []
    version = tables.manifest.version
    while version > appender.opened.version:
        ends.insert(0, writer.shard.manifests.read(version).replay_after)
        version -= 1
    assert ends == flushed


def test_a_flush_that_fails_during_replay_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = make_table(tmp_path)
    with ShardWriter.open(uri, SHARD, MEMTABLE) as writer:
        for i in range(4):
            writer.put(batch([(i, "n")]))
    monkeypatch.setattr(writer_module, "write_sstable", _always_failing)
    real = writer_module._replayed

    def failed_already(*args: Any) -> MemTables:
        tables = real(*args)
        while tables.error is None:
            time.sleep(0.01)
        return tables

    monkeypatch.setattr(writer_module, "_replayed", failed_already)
    writer = ShardWriter.open(uri, SHARD, replace(MEMTABLE, max_memtable_rows=4, retry=NO_RETRY))
    with pytest.raises(Poisoned):
        writer.put(batch([(9, "n")]))
    with pytest.raises(Poisoned):
        writer.close()
    monkeypatch.undo()
    assert len(seen(uri, SHARD)) == 4


def _always_failing(*args: object) -> object:
    raise Transient("A fault.")


def _plain() -> pa.Schema:
    return pa.schema([pa.field("id", pa.int64(), False), pa.field("note", pa.string())])
