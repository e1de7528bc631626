"""Replay on open: exactly what the WAL holds and no SSTable does, and nobody is fenced by an open that fails."""

from __future__ import annotations

import gc
import threading
import uuid
from dataclasses import replace
from itertools import count
from pathlib import Path

import lance
import pytest

from headgate.connectors.objects import open_store
from headgate.errors import Corrupt, DataLoss, Fenced
from headgate.shards.config import WriterConfig
from headgate.shards.home.home import home_at
from headgate.shards.memtable.replay import replay, scan_wal
from headgate.shards.shard import Shard
from headgate.shards.wal.appender import WalAppender
from headgate.shards.wal.encoder import encode_entry, encode_rows
from headgate.shards.wal.entry import Tags
from headgate.shards.writer import ShardWriter
from headgate.steps import watching
from tests.support.closing import collect
from tests.support.datasets import (
    MEMTABLE,
    PLAIN,
    batch,
    faulty,
    home_over,
    keys,
    make_table,
    native_writer,
    pairs,
    seen,
)
from tests.support.stores import Crash, Operation

SHARD = uuid.UUID(int=9)
WAL_ONLY = WriterConfig(enable_memtable=False)


def test_a_writer_that_is_dropped_without_close_loses_nothing(tmp_path: Path) -> None:
    uri = make_table(tmp_path, base=[(100, "base")])
    writer = ShardWriter.open(uri, SHARD, replace(MEMTABLE, max_memtable_rows=3))
    writer.put(batch([(1, "a"), (2, "b")]))
    writer.put(batch([(2, "c"), (100, "new")]))
    writer.delete(keys(1))
    before = pairs(writer.scan())
    del writer
    gc.collect()
    assert before == [(2, "c"), (100, "new")]
    assert seen(uri, SHARD) == before
    assert seen(uri, SHARD) == before


def test_replay_on_a_fresh_shard_finds_nothing_and_seeds_the_appender(tmp_path: Path) -> None:
    uri = make_table(tmp_path)
    store = faulty(uri)
    with ShardWriter.open(home_over(store, uri), SHARD, MEMTABLE) as writer:
        assert writer.memtable_stats()[0].rows == 0
        assert writer.stats().next_position == 1
        store.reset_operations()
        assert writer.put(batch([(1, "a")])).positions == (1,)
        assert store.operations() == {"put": 1}


@pytest.mark.parametrize("flushed", [False, True])
def test_the_first_put_after_a_reopen_is_one_put_request_and_nothing_else(tmp_path: Path, flushed: bool) -> None:
    uri = make_table(tmp_path)
    with ShardWriter.open(uri, SHARD, MEMTABLE) as writer:
        writer.put(batch([(1, "a")]))
        if flushed:
            writer.flush_memtable()
    store = faulty(uri)
    with ShardWriter.open(home_over(store, uri), SHARD, MEMTABLE) as writer:
        store.reset_operations()
        assert writer.put(batch([(2, "b")])).positions == (3,)
        assert store.operations() == {"put": 1}
        assert pairs(writer.scan()) == [(1, "a"), (2, "b")]


def test_an_open_reads_each_entry_once(tmp_path: Path) -> None:
    uri = make_table(tmp_path)
    with ShardWriter.open(uri, SHARD, MEMTABLE) as writer:
        for i in range(10):
            writer.put(batch([(i, "n")]))
    store = faulty(uri)
    with ShardWriter.open(home_over(store, uri), SHARD, MEMTABLE):
        read = [operation.key for operation in store.log if operation.verb == "get" and "/wal/" in operation.key]
        there = sorted(set(read) & {writer.shard.wal_key(position) for position in range(1, 11)})
        assert len(there) == 10
        assert [read.count(key) for key in there] == [1] * 10
        assert [op.verb for op in store.log if "/wal/" in op.key and "arrow" not in op.key] == ["list"]


def test_peers_bugs_7_and_8_replay_after_a_flush_doubles_nothing_and_appends_nothing(tmp_path: Path) -> None:
    """lance#6767, lance#7791. On a table without a key, where nothing would hide a doubled row."""
    uri = make_table(tmp_path, PLAIN)
    expected = []
    store = open_store(uri)
    for life in range(4):
        with ShardWriter.open(uri, SHARD, replace(MEMTABLE, max_memtable_rows=3)) as writer:
            before = len(list(store.list(f"_mem_wal/{SHARD}/wal/")))
            for put in range(2):
                expected.append((life * 2 + put, "n"))
                writer.put(batch(expected[-1:], PLAIN))
            if life == 2:
                writer.flush_memtable()
            assert pairs(writer.scan()) == expected
        assert len(list(store.list(f"_mem_wal/{SHARD}/wal/"))) == before + 2
    assert seen(uri, SHARD) == expected


def test_an_entry_of_a_higher_epoch_aborts_replay(tmp_path: Path) -> None:
    uri = make_table(tmp_path)
    with ShardWriter.open(uri, SHARD, MEMTABLE) as writer:
        writer.put(batch([(1, "a")]))
        shard, next_position = writer.shard, writer.claim.next_position
    schema = shard.home.schema
    entry = encode_entry(schema, [encode_rows(schema.stored_rows(batch([(2, "b")])))], epoch=99)
    shard.wal.put_if_absent(shard.wal_key(next_position), entry.buffers)
    with pytest.raises(Fenced, match=r"WAL replay aborted.*fenced") as raised:
        ShardWriter.open(uri, SHARD, MEMTABLE)
    assert (raised.value.position, raised.value.stored_epoch) == (next_position, 99)


def test_a_successor_that_comes_during_replay_fences_this_writer(tmp_path: Path) -> None:
    """The flushes that replay makes are refused; nothing is lost."""
    uri = make_table(tmp_path, PLAIN)
    expected = [(i, "n") for i in range(6)]
    with ShardWriter.open(uri, SHARD, MEMTABLE) as writer:
        for pair in expected:
            writer.put(batch([pair], PLAIN))

    def successor(step: str) -> None:
        if step == "replay":
            assert seen(uri, SHARD) == expected

    def zombie() -> None:
        with watching(successor):
            late = ShardWriter.open(uri, SHARD, replace(MEMTABLE, max_memtable_rows=2))
        late.put(batch([(7, "zombie")], PLAIN))

    with pytest.raises(Fenced):
        zombie()
    assert seen(uri, SHARD) == expected


@pytest.mark.parametrize("clean", [True, False], ids=["closed", "dropped"])
@pytest.mark.parametrize("lost", [range(3, 30), range(3, 41)], ids=["hole", "end"])
def test_an_open_that_misses_many_entries_fences_nobody(tmp_path: Path, lost: range, clean: bool) -> None:
    """More than are read ahead. Without its end, a WAL that nobody closed looks like a shorter one."""
    uri = make_table(tmp_path)
    writer = ShardWriter.open(uri, SHARD, MEMTABLE)
    for i in range(40):
        writer.put(batch([(i, "n")]))
    if clean:
        writer.close()
    for position in lost:
        writer.shard.wal.delete(writer.shard.wal_key(position))
    before = writer.shard.manifests.latest()
    if lost.stop == 41 and not clean:
        assert len(seen(uri, SHARD)) == 2
        return
    with pytest.raises(DataLoss) as raised:
        ShardWriter.open(uri, SHARD, MEMTABLE)
    assert raised.value.position == 3
    assert writer.shard.manifests.latest() == before


@pytest.mark.parametrize("damage", ["flipped", "cut", "missing"])
def test_an_open_that_meets_damage_fences_nobody(tmp_path: Path, damage: str) -> None:
    """lance hole 5."""
    uri = make_table(tmp_path)
    writer = ShardWriter.open(uri, SHARD, MEMTABLE)
    for i in range(3):
        writer.put(batch([(i, "n")]))
    key = writer.shard.wal_key(2)
    data = bytes(writer.shard.wal.get(key))
    writer.shard.wal.delete(key)
    if damage != "missing":
        broken = data[:-9] if damage == "cut" else data[:-30] + bytes([data[-30] ^ 1]) + data[-29:]
        writer.shard.wal.put_if_absent(key, broken)
    before = writer.shard.manifests.latest()
    with pytest.raises(DataLoss if damage == "missing" else Corrupt) as raised:
        ShardWriter.open(uri, SHARD, MEMTABLE)
    assert raised.value.position == 2
    assert writer.shard.manifests.latest() == before
    writer.put(batch([(9, "n")]))
    writer.shard.wal.delete(key)
    writer.shard.wal.put_if_absent(key, data)
    writer.close()
    assert len(seen(uri, SHARD)) == 4


def test_a_look_beside_a_writer_that_flushes_and_collects_goes_on_above_what_is_gone(tmp_path: Path) -> None:
    uri = make_table(tmp_path)
    writer = ShardWriter.open(uri, SHARD, MEMTABLE)
    for i in range(5):
        writer.put(batch([(i, "n")]))
    store = faulty(uri)
    place = Shard(home_over(store, uri), SHARD)
    stall = store.stall("get", place.wal_key(1))
    found: list[int] = []
    looking = threading.Thread(target=lambda: found.extend(e.position for e in scan_wal(place, 1 << 20).entries))
    looking.start()
    stall.wait()
    writer.flush_memtable()
    writer.put(batch([(6, "n")]))
    assert collect(writer.shard)
    stall.release()
    looking.join()
    assert found == [], "the WAL ended at 5 when the scan_wal began"


@pytest.mark.parametrize("config", [MEMTABLE, WAL_ONLY], ids=["memtable", "wal-only"])
def test_an_opener_behind_a_writer_that_never_pauses_is_bounded_by_the_wals_length(
    tmp_path: Path, config: WriterConfig
) -> None:
    """The writer appends before every single operation of the scan_wal."""
    uri, length = make_table(tmp_path, PLAIN), 20
    writer = ShardWriter.open(uri, SHARD, config)
    for i in range(length):
        writer.put(batch([(i, "n")], PLAIN))
    store, appended = faulty(uri), count(length)

    def busy(operation: Operation) -> None:
        if operation.verb == "put_if_absent":
            store.plan = None  # claimed
        elif (row := next(appended)) < 40 * length:  # an end, so that a scan_wal without one fails
            writer.put(batch([(row, "n")], PLAIN))

    store.plan = busy
    with ShardWriter.open(home_over(store, uri), SHARD, config):
        pass
    rows = next(appended)
    scan_wal = store.log[: store.verbs().index("put_if_absent")]
    listed = [op.number for op in scan_wal if op.verb == "list" and "/wal/" in op.key]
    assert len(listed) == 1
    read = [op for op in scan_wal if op.verb == "get" and "/wal/" in op.key]
    assert len(read) == (length + listed[0] if config is MEMTABLE else 0), "what the WAL held at the LIST"
    again = [op for op in store.log if op.verb == "get" and "/wal/" in op.key]
    assert len(again) - len(read) <= 2 * (rows - length), "what came meanwhile is read twice at most"
    assert [i for i, _ in seen(uri, SHARD)] == list(range(rows))


def test_an_entry_that_a_successor_collected_during_replay_is_fencing_and_no_loss(tmp_path: Path) -> None:
    uri = make_table(tmp_path, PLAIN)
    with ShardWriter.open(uri, SHARD, MEMTABLE) as writer:
        for i in range(5):
            writer.put(batch([(i, "n")], PLAIN))

    def successor(step: str) -> None:
        if step == "replay":
            with ShardWriter.open(uri, SHARD, MEMTABLE) as later:
                later.flush_memtable()
                assert collect(later.shard)

    with pytest.raises(Fenced):
        with watching(successor):
            ShardWriter.open(uri, SHARD, replace(MEMTABLE, max_memtable_size=1))  # keeps nothing in memory
    assert [i for i, _ in seen(uri, SHARD)] == list(range(5))


def test_what_was_looked_at_and_flushed_since_is_not_replayed_again(tmp_path: Path) -> None:
    uri = make_table(tmp_path, PLAIN)
    writer = ShardWriter.open(uri, SHARD, MEMTABLE)
    writer.put(batch([(1, "a")], PLAIN))

    def flush(step: str) -> None:
        if step == "looked":
            writer.put(batch([(2, "b")], PLAIN))
            writer.flush_memtable()
            writer.put(batch([(3, "c")], PLAIN))

    with watching(flush)(ShardWriter.open)(uri, SHARD, MEMTABLE) as successor:
        assert pairs(successor.scan()) == [(1, "a"), (2, "b"), (3, "c")]


def test_more_than_is_kept_from_the_look_is_read_again(tmp_path: Path) -> None:
    uri = make_table(tmp_path, PLAIN)
    with ShardWriter.open(uri, SHARD, MEMTABLE) as writer:
        for i in range(30):
            writer.put(batch([(i, "x" * 100)], PLAIN))
    assert len(scan_wal(writer.shard, 4_000).entries) < 10
    with ShardWriter.open(uri, SHARD, replace(MEMTABLE, max_memtable_size=4_000)) as writer:
        assert [i for i, _ in pairs(writer.scan())] == list(range(30))


def test_dead_entries_of_a_stream_are_not_replayed_and_listed_ones_are(tmp_path: Path) -> None:
    uri = make_table(tmp_path)
    home = home_at(uri)
    writer = ShardWriter.open(home, SHARD, WAL_ONLY)
    writer.put(batch([(1, "direct")]))
    for attempt in ("dead", "listed"):
        writer.put(batch([(2, attempt)]), Tags(attempt_id=attempt))
    writer.close()
    assert seen(uri, SHARD) == [(1, "direct")]
    opened = ShardWriter.open(
        home, SHARD, MEMTABLE, visible=lambda header, position: header.tags.attempt_id in (None, "listed")
    )
    with opened:
        assert pairs(opened.scan()) == [(1, "direct"), (2, "listed")]


def test_a_generation_that_native_noted_is_never_cut_in_two(tmp_path: Path) -> None:
    """Native skips entries of a generation below the manifest's: a flush of half of it would lose the rest."""
    uri = make_table(tmp_path)
    expected = [(i, "n") for i in range(10)]
    with native_writer(uri, SHARD) as native:
        for pair in expected:
            native.put(batch([pair]))
        small = replace(MEMTABLE, max_memtable_rows=3, max_unflushed_memtable_bytes=200)
        # No close on either side: the native writer is fenced, ours is dropped.
        ours = ShardWriter.open(uri, SHARD, small)
        ours.flush_memtable()
        manifest = ours.shard.manifests.latest()
        assert manifest is not None
        assert [sstable.physical_rows for sstable in manifest.sstables] == [10]
        for i in range(10, 16):
            expected.append((i, "n"))
            ours.put(batch([(i, "n")]))
    assert seen(uri, SHARD) == expected
    with native_writer(uri, SHARD) as native:
        assert pairs(native.lsm_scanner().to_table()) == expected


@pytest.mark.parametrize("native_wrote", ["before the scan_wal", "after the scan_wal"])
def test_a_flush_reaches_every_entry_that_notes_its_generation(tmp_path: Path, native_wrote: str) -> None:
    """Our entries note none, and native takes them into the generation that it then notes: a flush of ours alone
    would raise the manifest's generation above native's entries, and the next opener would skip them."""
    uri = make_table(tmp_path)
    with ShardWriter.open(uri, SHARD, MEMTABLE) as writer:
        for i in range(4):
            writer.put(batch([(i, "ours")]))
    crashed = []

    def native_writes(step: str) -> None:
        if step == "looked":
            native = lance.dataset(uri).mem_wal_writer(str(SHARD))
            native.put(batch([(10, "native")]))
            crashed.append(native)

    small = replace(MEMTABLE, max_memtable_rows=3)
    expected = [*((i, "ours") for i in range(4)), (10, "native")]
    if native_wrote == "before the scan_wal":
        native_writes("looked")
        opened = ShardWriter.open(uri, SHARD, small)
    else:
        with watching(native_writes):
            opened = ShardWriter.open(uri, SHARD, small)
    with opened:
        assert pairs(opened.scan()) == expected
    assert seen(uri, SHARD) == expected
    with native_writer(uri, SHARD) as native:
        assert pairs(native.lsm_scanner().to_table()) == expected
    manifest = opened.shard.manifests.latest()
    assert manifest is not None
    assert [sstable.physical_rows for sstable in manifest.sstables] == [5]


def test_a_crash_between_claim_and_replay_costs_nothing(tmp_path: Path) -> None:
    uri = make_table(tmp_path)
    with ShardWriter.open(uri, SHARD, MEMTABLE) as writer:
        writer.put(batch([(1, "a")]))

    def die(step: str) -> None:
        if step == "replay":
            raise Crash

    with pytest.raises(Crash):
        with watching(die):
            ShardWriter.open(uri, SHARD, MEMTABLE)
    assert seen(uri, SHARD) == [(1, "a")]


def test_the_replay_range_is_exact(tmp_path: Path) -> None:
    """peers bug 11, in MemTable mode."""
    uri = make_table(tmp_path)
    with ShardWriter.open(uri, SHARD, WAL_ONLY) as writer:
        for i in range(1, 6):
            writer.put(batch([(i, "n")]))
        shard = writer.shard
    opened = WalAppender.open(shard).opened
    assert opened is not None
    for after, stop in ((0, 6), (2, 6), (2, 4), (5, 6)):
        manifest = replace(opened, replay_after=after)
        found = [part.position for part in replay(shard, manifest, stop, epoch=9)]
        assert found == list(range(after + 1, stop))
    with pytest.raises(DataLoss):
        list(replay(shard, opened, 20, epoch=9))
