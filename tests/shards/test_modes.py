"""What a ShardWriter promises in both of its modes: WAL-only, and with MemTables. Positions and fencing as in
lance#6432 and lance#6675, the queue of puts, what close does, and what is refused.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headgate.connectors.objects.port import ObjectStore
from headgate.errors import AlreadyExists, Closed, DataLoss, Fenced, InvalidInput, Poisoned
from headgate.retry import Retry
from headgate.shards.config import WriterConfig
from headgate.shards.home.home import home_at
from headgate.shards.shard import Shard
from headgate.shards.wal.encoder import encode_entry, encode_rows
from headgate.shards.wal.tailer import WalTailer
from headgate.shards.writer import ShardWriter
from headgate.steps import watching
from tests.shards.wal.test_flusher import until
from tests.support.closing import Background, entry_at, fenced, wal_positions
from tests.support.datasets import (
    MEMTABLE,
    NO_RETRY,
    PLAIN,
    LanceFaultyStore,
    batch,
    faulty,
    home_over,
    keys,
    make_table,
    pairs,
    seen,
)
from tests.support.stores import Fault, FaultyStore

SHARD = uuid.UUID(int=41)
PATIENT = Retry(attempts=10**6, base=0.001, cap=0.001)


@dataclass(frozen=True)
class Mode:
    """A table, and how its shard is opened. `a_sync` opens without durable_write."""

    uri: str
    config: WriterConfig

    @property
    def memtable(self) -> bool:
        return self.config.enable_memtable

    @property
    def shard(self) -> Shard:
        return home_at(self.uri).shard(SHARD)

    def open(self, store: ObjectStore | None = None, shard: uuid.UUID = SHARD, **config: Any) -> ShardWriter:
        home = home_at(self.uri) if store is None else home_over(store, self.uri)
        return ShardWriter.open(home, shard, replace(self.config, **config))

    def a_sync(self, store: ObjectStore | None = None, shard: uuid.UUID = SHARD, **config: Any) -> ShardWriter:
        return self.open(store, shard, durable_write=False, max_wal_flush_interval=3600.0, **config)

    def faulty(self) -> LanceFaultyStore:
        return faulty(self.uri)

    def rows(self) -> list[tuple[int, str]]:
        """What a new writer, which replays everything, shows."""
        return seen(self.uri, SHARD)


@pytest.fixture(params=[False, True], ids=["wal-only", "memtable"])
def mode(request: pytest.FixtureRequest, tmp_path: Path) -> Mode:
    return Mode(make_table(tmp_path, PLAIN), replace(MEMTABLE, enable_memtable=request.param))


def row(number: int, note: str = "n") -> pa.RecordBatch:
    return batch([(number, note)], PLAIN)


def unavailable(op: Any) -> Fault | None:
    return Fault.FAIL if op.verb == "put_if_absent" else None


# -- positions and barriers ----------------------------------------------------------


def test_lance_6675_the_first_entry_is_the_barrier_at_0_and_rows_start_at_1(mode: Mode) -> None:
    with mode.open() as writer:
        assert wal_positions(writer.shard) == [0]
        assert writer.put(row(1)).positions == (1,)


def test_lance_6432_peers_bug_1_conditional_put_refuses_a_duplicate_position(mode: Mode) -> None:
    with mode.open() as writer:
        (position,) = writer.put(row(1)).positions
        shard = writer.shard
        before = bytes(shard.wal.get(shard.wal_key(position)))
        with pytest.raises(AlreadyExists):
            shard.wal.put_if_absent(shard.wal_key(position), b"other")
        assert bytes(shard.wal.get(shard.wal_key(position))) == before


def test_lance_6432_positions_are_unique_and_sequential_and_barriers_disturb_no_replay(mode: Mode) -> None:
    expected: list[tuple[int, str]] = []
    for life in range(4):
        with mode.open(max_memtable_rows=3) as writer:
            for put in range(2):
                expected.append((len(expected), f"{life}.{put}"))
                writer.put(batch(expected[-1:], PLAIN))
    assert wal_positions(mode.shard) == list(range(12))
    barriers = [one.position for one in WalTailer(mode.shard).read(0) if one.entry.header.barrier]
    assert barriers == [0, 3, 6, 9]
    assert mode.rows() == expected


def test_lance_6432_the_barrier_skips_forward_past_stale_entries(mode: Mode) -> None:
    old = mode.open()
    old.put(row(1))

    def late(step: str) -> None:
        if step == "barrier":
            old.put(row(2))
            old.put(row(3))

    with watching(late)(mode.open)() as new:
        assert new.stats().next_position == 5
    with pytest.raises(Fenced):
        old.put(row(4))
    assert mode.rows() == [(1, "n"), (2, "n"), (3, "n")]


def test_lance_6432_three_writers_in_a_row(mode: Mode) -> None:
    writers = []
    for number in range(3):
        writer = mode.open()
        writer.put(row(number))
        writers.append(writer)
    assert [writer.stats().epoch for writer in writers] == [1, 2, 3]
    for old in writers[:2]:
        with pytest.raises(Fenced):
            old.put(row(9))
    assert mode.rows() == [(0, "n"), (1, "n"), (2, "n")]


def test_lance_6432_the_barrier_claims_the_next_position_and_the_error_names_what_is_not_durable(mode: Mode) -> None:
    old = mode.a_sync()
    old.put(row(1)).wait()
    wanted = old.claim.next_position
    with mode.open():
        barrier = entry_at(mode.shard, wanted).header
        assert (barrier.barrier, barrier.epoch) == (True, 2)
        late = [old.put(batch([(2, "n"), (3, "n")], PLAIN)), old.put(row(4))]
        error = fenced(old.flush)
        assert (error.shard, error.position, error.epoch, error.stored_epoch) == (str(SHARD), wanted, 1, 2)
        for part in (str(SHARD), f"position={wanted}", "epoch=1", "stored_epoch=2", "puts 2 to 3 (3 rows)", "Next:"):
            assert part in str(error)
        calls: list[Callable[[], object]] = [lambda: old.put(row(5)), old.flush, old.close]
        for call in [*calls, *(put.wait for put in late)]:
            assert fenced(call) is error
        assert not any(put.done for put in late)
    assert mode.rows() == [(1, "n")]


# -- stats -----------------------------------------------------------------------------


def test_stats_answer_before_the_first_put_and_after_close(mode: Mode) -> None:
    writer = mode.open()
    stats = writer.stats()
    assert (stats.shard, stats.epoch, stats.next_position, stats.retries) == (str(SHARD), 1, 1, 0)
    writer.put(batch([(1, "n"), (2, "n")], PLAIN))
    writer.close()
    stats = writer.stats()
    assert (stats.next_position, stats.pipeline.rows, stats.pipeline.puts, stats.pipeline.entries) == (2, 2, 1, 1)
    assert stats.pipeline.nbytes == entry_at(mode.shard, 1).nbytes
    assert stats.pipeline.pending_bytes == stats.pipeline.pending_puts == 0


@pytest.mark.parametrize("leads", ["last_seen", "replay_after"])
def test_lance_6675_stats_after_a_reopen_are_above_the_higher_of_the_two(mode: Mode, leads: str) -> None:
    with mode.open() as writer:
        for number in range(3):
            writer.put(row(number))
    if leads == "replay_after":
        with ShardWriter.open(mode.uri, SHARD, MEMTABLE) as writer:
            writer.flush_memtable()
    before = writer.claim.next_position
    with mode.open() as again:
        assert again.stats().next_position == before + 1
    assert len(mode.rows()) == 3


def test_retries_are_counted(mode: Mode) -> None:
    store = mode.faulty()
    with mode.open(store) as writer:
        store.script("put_if_absent", Fault.FAIL, Fault.FAIL)
        writer.put(row(1))
        assert writer.stats().retries == 2


# -- the queue ---------------------------------------------------------------------------


def test_lance_6675_the_queue_survives_a_failed_append(mode: Mode) -> None:
    """Puts stay queued while the store fails, and become durable in order when it is back."""
    store = mode.faulty()
    writer = mode.a_sync(store, retry=PATIENT)
    store.plan = unavailable
    first = [writer.put(row(number)) for number in range(3)]
    flushing = Background(writer.flush)
    until(lambda: writer.stats().retries > 2)
    assert writer.stats().pipeline.pending_puts == 3
    assert writer.stats().pipeline.pending_bytes == sum(put.nbytes for put in first)
    more = [writer.put(row(number)) for number in range(3, 6)]
    if mode.memtable:
        assert [number for number, _ in pairs(writer.scan())] == [0, 1, 2, 3, 4, 5], "without durable_write, at once"
    store.unscript()
    flushing.result()
    writer.close()
    assert [put.positions for put in first] == [(1,)] * 3
    assert [put.positions for put in more] == [(2,)] * 3
    assert [number for number, _ in mode.rows()] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_failed_writer_gives_the_rows_back_as_they_were_put(mode: Mode, compression: Any) -> None:
    writer = mode.a_sync(compression=compression)
    successor = mode.open()
    for part in (batch([(1, "x" * 100), (2, "y")], PLAIN), row(3)):
        writer.put(part)
    fenced(writer.flush)
    pending = writer.take_pending()
    assert not pending.unknown
    for put in pending.failed:
        successor.append(put.batches, put.tags)
    successor.close()
    assert mode.rows() == [(1, "x" * 100), (2, "y"), (3, "n")]
    assert writer.take_pending() == replace(pending, failed=())


def test_a_writer_that_works_gives_nothing_back(mode: Mode) -> None:
    writer = mode.open()
    writer.put(row(1))
    with pytest.raises(InvalidInput, match="works"):
        writer.take_pending()
    writer.close()
    pending = writer.take_pending()
    assert (pending.failed, pending.unknown) == ((), ())


def test_peers_bug_5_lance_7547_rows_that_failed_to_become_durable_are_never_shown(mode: Mode) -> None:
    store = mode.faulty()
    writer = mode.open(store, retry=NO_RETRY)
    writer.put(row(1))
    store.script("put_if_absent", Fault.FAIL)
    with pytest.raises(Poisoned):
        writer.put(row(2))
    calls: list[Callable[[], object]] = [writer.flush, writer.close]
    if mode.memtable:
        assert writer.memtable_stats()[-1].rows == 1
        calls[:0] = [writer.scan, writer.flush_memtable]
    for call in calls:
        with pytest.raises(Poisoned):
            call()
    assert mode.rows() == [(1, "n")]


def test_peers_bug_12_lance_hole_11_a_lost_response_doubles_nothing(mode: Mode) -> None:
    store = mode.faulty()
    with mode.open(store) as writer:
        store.script("put_if_absent", Fault.LOST)
        writer.put(row(1))
        assert writer.stats().next_position == 2
    assert mode.rows() == [(1, "n")]


# -- what stands in the WAL ----------------------------------------------------------------


def test_lance_hole_1_a_slot_without_a_claim_costs_no_row(mode: Mode) -> None:
    with mode.open() as writer:
        writer.put(row(1))
        schema, shard = writer.shard.home.schema, writer.shard
        foreign = encode_entry(schema, [encode_rows(schema.stored_rows(row(2, "foreign")))], epoch=1)
        shard.wal.put_if_absent(shard.wal_key(2), foreign.buffers)
        assert writer.put(row(3)).positions == (3,)
    assert mode.rows() == [(1, "n"), (2, "foreign"), (3, "n")]


def test_lance_hole_2_a_gap_is_data_loss(mode: Mode) -> None:
    with mode.open() as writer:
        for number in range(3):
            writer.put(row(number))
        writer.shard.wal.delete(writer.shard.wal_key(2))
    before = mode.shard.manifests.latest()
    with pytest.raises(DataLoss) as raised:
        mode.open()
    assert raised.value.position == 2
    assert mode.shard.manifests.latest() == before


def test_lance_hole_3_a_leftover_in_wal_is_no_position(mode: Mode) -> None:
    with mode.open() as writer:
        writer.put(row(1))
        writer.shard.wal.put_if_absent(writer.shard.wal_key(7) + ".tmp.0123", b"junk")
    with mode.open() as writer:
        assert writer.stats().next_position == 3
    assert mode.rows() == [(1, "n")]


# -- close ---------------------------------------------------------------------------------


def test_close_makes_every_put_durable_and_twice_is_once(mode: Mode) -> None:
    writer = mode.a_sync()
    handles = [writer.put(row(number)) for number in range(7)]
    writer.close()
    assert all(handle.done for handle in handles)
    version = writer.shard.manifests.versions()[-1]
    writer.close()
    writer.flush()
    assert writer.shard.manifests.versions()[-1] == version
    for late in (row(9), batch([], PLAIN)):
        with pytest.raises(Closed):
            writer.put(late)
    assert [number for number, _ in mode.rows()] == list(range(7))


def test_a_writer_that_never_put_closes(mode: Mode) -> None:
    with mode.open():
        pass
    with mode.open() as again:
        assert again.stats().next_position == 2


def test_close_survives_a_store_that_cannot_note_the_tip(mode: Mode) -> None:
    store = mode.faulty()
    writer = mode.open(store)
    writer.put(row(1))
    store.plan = lambda op: Fault.FAIL if "/manifest/" in op.key else None
    writer.close()
    assert mode.rows() == [(1, "n")]


def test_leaving_the_block_raises_what_close_raises_unless_something_else_went_wrong(mode: Mode) -> None:
    def lose(inside: Exception | None) -> None:
        store = mode.faulty()
        with mode.a_sync(store) as writer:
            writer.put(row(1))
            store.plan = unavailable
            if inside is not None:
                raise inside

    with pytest.raises(Poisoned):
        lose(None)
    with pytest.raises(KeyError):
        lose(KeyError("mine"))


@pytest.mark.parametrize("durable", [True, False], ids=["durable", "async"])
def test_peers_bug_9_lance_7769_close_reports_a_failed_write(mode: Mode, durable: bool) -> None:
    store = mode.faulty()
    writer = mode.open(store) if durable else mode.a_sync(store)
    store.plan = unavailable
    handle = None
    if durable:
        with pytest.raises(Poisoned):
            writer.put(row(1))
    else:
        handle = writer.put(row(1))
    for _ in range(2):
        with pytest.raises(Poisoned) as caught:
            writer.close()
        assert "puts 1 to 1 (1 rows)" in str(caught.value)
    if handle is not None:
        with pytest.raises(Poisoned):
            handle.wait()
    stats = writer.stats()
    assert (stats.pipeline.pending_puts, stats.pipeline.entries) == (1, 0)
    assert mode.rows() == []


@pytest.mark.parametrize("pending", [0, 1, 5])
def test_peers_bug_9_lance_context_204_close_never_hangs_when_fenced(mode: Mode, pending: int) -> None:
    """Patient retries must not make a fenced writer wait: close() and what is called after it come back in a second."""
    seconds = []
    for _ in range(3):  # the fastest counts: other tests keep the machine busy
        shard = uuid.uuid4()
        writer = mode.a_sync(shard=shard, retry=Retry(attempts=50, base=60.0, cap=600.0))
        mode.open(shard=shard)
        for number in range(pending):
            writer.put(row(number))
        start = time.monotonic()
        closing = Background(writer.close)
        if pending:
            error = fenced(closing.result)
            assert f"puts 1 to {pending} ({pending} rows)" in str(error)
            for later in (writer.close, writer.flush, partial(writer.put, row(9))):
                assert fenced(Background(later).result) is error
        else:
            closing.result()
        seconds.append(time.monotonic() - start)
        assert seen(mode.uri, shard) == []
    assert min(seconds) < 1


# -- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["get", "scan", "memtable_stats", "active_memtable", "flush_memtable"])
def test_lance_6675_wal_only_refuses_what_needs_a_memtable(tmp_path: Path, call: str) -> None:
    arguments: dict[str, tuple[Any, ...]] = {"get": (keys(1),)}
    uri = make_table(tmp_path)
    with ShardWriter.open(uri, SHARD, replace(MEMTABLE, enable_memtable=False)) as writer:
        with pytest.raises(InvalidInput, match=call) as caught:
            getattr(writer, call)(*arguments.get(call, ()))
        assert caught.value.shard == str(SHARD)
        assert "enable_memtable=True" in str(caught.value)
        assert writer.put(batch([(1, "a")])).positions == (1,)


@pytest.mark.parametrize("kind", ["indexes", "shard-name"])
def test_lance_6675_a_refused_open_fences_nobody(mode: Mode, kind: str) -> None:
    healthy = mode.open()
    healthy.put(row(1))
    store: FaultyStore = mode.faulty()
    before = {info.key: info.modified for info in store.inner.list("")}
    config = replace(mode.config, maintained_indexes=("by_note",)) if kind == "indexes" else mode.config
    shard, named = (str(SHARD), "by_note") if kind == "indexes" else ("../../etc/passwd", "passwd")
    with pytest.raises(InvalidInput, match=named):
        ShardWriter.open(home_over(store, mode.uri), shard, config)
    assert store.log == []
    assert {info.key: info.modified for info in store.inner.list("")} == before
    assert healthy.put(row(2)).positions == (2,)


def test_attach_is_wal_only_and_keeps_no_index(mode: Mode) -> None:
    healthy = mode.open()
    with pytest.raises(InvalidInput, match="enable_memtable=False"):
        ShardWriter.attach(healthy.claim, MEMTABLE)
    with pytest.raises(InvalidInput, match="by_note"):
        ShardWriter.attach(healthy.claim, replace(MEMTABLE, enable_memtable=False, maintained_indexes=("by_note",)))
    assert healthy.put(row(1)).positions == (1,)
