"""WalAppender: never a gap, never an overwrite, fenced at the very next append. Names say whose bug it is."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from headgate.connectors.objects import open_store
from headgate.connectors.objects.port import ObjectInfo, ObjectStore
from headgate.errors import (
    Corrupt,
    DataLoss,
    Fenced,
    HeadgateError,
    InvalidInput,
    PermissionDenied,
    Poisoned,
    StoreError,
    StoreFull,
    Transient,
)
from headgate.retry import Retry
from headgate.shards import names
from headgate.shards.manifest.model import Manifest, encode_manifest
from headgate.shards.rows.schema import RowSchema
from headgate.shards.shard import Claim, Shard, TableHome
from headgate.shards.wal.appender import WalAppender, read_header
from headgate.shards.wal.encoder import encode_barrier, encode_entry, encode_rows
from headgate.shards.wal.entry import EncodedRows, Tags
from headgate.shards.wal.tailer import WalTailer
from headgate.shards.wal.tip import WINDOW, WINDOWS, find_tip
from headgate.steps import watching
from tests.support.closing import (
    AT_ONCE,
    ROWS,
    WAL_ONLY,
    Background,
    closing_checks,
    collect,
    collect_manifests,
    entry_at,
    fenced,
    flush,
    home_of,
    ids_of,
    open_writer,
    rows,
    visible,
    wal_positions,
)
from tests.support.stores import Fault, FaultyStore, OverwritingStore


def chunk(*ids: int) -> list[EncodedRows]:
    return [encode_rows(ROWS.stored_rows(rows(*ids)))]


@pytest.fixture
def shard(store: ObjectStore, shard_id: uuid.UUID) -> Shard:
    return home_of(store).shard(shard_id)


def through(shard: Shard, store: ObjectStore) -> Shard:
    """The same shard over another way to its store."""
    return home_of(store).shard(shard.id)


def opened(shard: Shard, retry: Retry = AT_ONCE) -> WalAppender:
    return WalAppender.open(shard.retrying(retry))


# -- lance#6432: fencing -----------------------------------------------------------


def two_put_one_position(store: ObjectStore, shard_id: uuid.UUID) -> None:
    """The promise itself: of two writers with one epoch and one position, both rows survive."""
    shard = home_of(store).shard(shard_id)
    claim = opened(shard).claim
    one, other = WalAppender.with_claimed_epoch(claim), WalAppender.with_claimed_epoch(claim)
    assert one.append(chunk(1)).position == 1
    assert other.append(chunk(2)).position == 2
    assert visible(shard) == [1, 2]


def test_lance_6432_peers_bug_1_conditional_put_refuses_a_duplicate_position(
    store: ObjectStore, shard_id: uuid.UUID
) -> None:
    two_put_one_position(store, shard_id)


def test_over_a_store_that_silently_overwrites_the_duplicate_position_test_fails(
    store: ObjectStore, shard_id: uuid.UUID
) -> None:
    with pytest.raises(AssertionError):
        two_put_one_position(OverwritingStore(store), shard_id)


def test_over_a_store_that_silently_overwrites_the_closing_checks_fail(store: ObjectStore, shard_id: uuid.UUID) -> None:
    broken = OverwritingStore(store)
    old = open_writer(broken, shard_id)
    old.put(rows(1))
    new = open_writer(broken, shard_id)
    old.put(rows(2))
    new.put(rows(3))
    with pytest.raises(AssertionError):
        closing_checks(broken, shard_id, {1, 2, 3}, {1, 2, 3}, [old, new])


def test_lance_6432_the_barrier_claims_the_next_position(shard: Shard) -> None:
    old = opened(shard)
    for row in range(3):
        old.append(chunk(row))
    new = opened(shard)
    header = entry_at(shard, 4).header
    assert header.barrier
    assert header.epoch == new.epoch == 2
    assert new.next_position == 5
    assert entry_at(shard, 4).batches == ()


def test_lance_6432_the_barrier_skips_forward_past_stale_entries(store: ObjectStore, shard: Shard) -> None:
    """The tip moves between the search and the barrier: it steps by one, and reads each entry it steps over."""
    old = opened(shard)
    faulty = FaultyStore(store)
    stall = faulty.stall("put_if_absent", "/wal/")
    opener = Background(lambda: opened(through(shard, faulty)))
    stall.wait()
    for row in range(5):
        old.append(chunk(row))
    stall.release()
    new = opener.result()
    assert new.next_position == 7
    assert entry_at(shard, 6).header.barrier
    stepped = [op.key for op in faulty.log if op.verb == "get_range"]
    assert stepped == [shard.wal_key(position) for position in range(1, 6)]
    assert visible(shard) == [0, 1, 2, 3, 4]


def test_lance_6432_the_barrier_blocks_the_old_writers_next_append(shard: Shard) -> None:
    old = opened(shard)
    old.append(chunk(1))
    new = opened(shard)
    error = fenced(lambda: old.append(chunk(2)))
    assert (error.shard, error.position) == (str(shard.id), 2)
    assert (error.epoch, error.stored_epoch) == (1, 2)
    assert new.append(chunk(3)).position == 3
    assert visible(shard) == [1, 3]


def test_lance_6432_a_fenced_appender_never_touches_the_store_again(store: ObjectStore, shard: Shard) -> None:
    faulty = FaultyStore(store)
    old = opened(through(shard, faulty))
    opened(shard)
    first = fenced(lambda: old.append(chunk(1)))
    touched = len(faulty.log)
    assert fenced(lambda: old.append(chunk(2))) is first
    assert len(faulty.log) == touched


def test_lance_6432_positions_are_unique_and_sequential(shard: Shard) -> None:
    positions = []
    for writer in range(4):
        appender = opened(shard)
        positions += [appender.append(chunk(10 * writer + row)).position for row in range(5)]
    assert positions == [p for first in (1, 7, 13, 19) for p in range(first, first + 5)]
    assert wal_positions(shard) == list(range(24))


def test_lance_6432_barriers_do_not_disturb_readers(shard: Shard) -> None:
    expected = []
    for writer in range(4):
        appender = opened(shard)
        opened(shard)
        appender = opened(shard)
        appender.append(chunk(writer))
        expected.append(writer)
    read = list(WalTailer(shard).read(1))
    assert [row for one in read for row in ids_of(one.entry)] == expected
    assert sum(one.entry.header.barrier for one in read) == 11


def test_lance_6432_every_claim_gets_an_epoch_and_a_claim_id_of_its_own(shard: Shard) -> None:
    appenders = [opened(shard) for _ in range(5)]
    assert [appender.epoch for appender in appenders] == [1, 2, 3, 4, 5]
    assert len({appender.claim_id for appender in appenders}) == 5


@pytest.mark.parametrize(
    ("epoch", "own_claim", "is_fenced"), [(1, False, True), (2, True, False), (2, False, True), (3, False, False)]
)
def test_lance_6432_check_fenced_at_lower_equal_and_higher_epoch(
    shard: Shard, epoch: int, own_claim: bool, is_fenced: bool
) -> None:
    opened(shard)
    holder = opened(shard)
    claim_id = holder.claim_id if own_claim else "another"
    if is_fenced:
        error = fenced(lambda: shard.manifests.check_fenced(epoch, claim_id))
        assert (error.epoch, error.stored_epoch) == (epoch, 2)
    else:
        stored = shard.manifests.check_fenced(epoch, claim_id)
        assert stored is not None
        assert stored.epoch == 2


def test_lance_6432_check_fenced_with_no_manifest(shard: Shard) -> None:
    assert shard.manifests.check_fenced(1, "a") is None


def test_lance_6432_commit_update_is_refused_when_fenced(shard: Shard) -> None:
    old, new = opened(shard), opened(shard)
    before = shard.manifests.latest()
    with pytest.raises(Fenced):
        shard.manifests.commit_update(old.claim_id, old.epoch, lambda m: replace(m, last_seen=9))
    assert shard.manifests.latest() == before
    shard.manifests.commit_update(new.claim_id, new.epoch, lambda m: replace(m, last_seen=1))


def test_lance_6432_three_writers_in_a_row(store: ObjectStore, shard_id: uuid.UUID) -> None:
    writers = []
    for number in range(3):
        writers.append(open_writer(store, shard_id))
        for row in range(4):
            writers[-1].put(rows(10 * number + row))
    for writer in writers[:-1]:
        assert fenced(lambda writer=writer: writer.put(rows(99))).stored_epoch is not None  # type: ignore[misc]
    expected = {10 * number + row for number in range(3) for row in range(4)}
    closing_checks(store, shard_id, expected, expected, writers)


# -- peers ------------------------------------------------------------------------


def test_peers_bug_2_the_barrier_is_put_before_anything_is_replayed(store: ObjectStore, shard: Shard) -> None:
    """lance#7110. After the barrier the range is fixed; the manifest that replay goes by is read after it."""
    opened(shard).append(chunk(1))
    faulty = FaultyStore(store)
    appender = opened(through(shard, faulty))
    puts = [(op.number, op.key) for op in faulty.log if op.verb == "put_if_absent"]
    assert [key.split("/")[-2] for _, key in puts] == ["manifest", "wal"]
    barrier = puts[-1][0]
    assert not [op for op in faulty.log if op.verb == "get" and "/wal/" in op.key]
    assert [op.verb for op in faulty.log[barrier:]] == ["list"]
    assert appender.opened == shard.manifests.latest()


def test_peers_bug_3_the_fence_never_lands_behind_the_cursor(store: ObjectStore, shard_id: uuid.UUID) -> None:
    """slatedb#1682. The manifest's last_seen is far behind the writer; the barrier is at the writer's slot."""
    old = open_writer(store, shard_id)
    for row in range(100):
        old.put(rows(row))
    manifest = old.shard.manifests.latest()
    assert manifest is not None
    assert manifest.last_seen == 0
    new = open_writer(store, shard_id)
    assert entry_at(old.shard, 101).header.epoch == 2
    assert fenced(lambda: old.put(rows(100))).position == 101
    assert new.stats().next_position == 102
    closing_checks(store, shard_id, range(100), range(100), [old, new])


@pytest.mark.parametrize("closed", [True, False], ids=["clean-stop", "crash"])
def test_peers_bug_4_slatedb_1622_a_stalled_writer_wakes_after_everything_was_collected(
    store: ObjectStore, shard_id: uuid.UUID, closed: bool
) -> None:
    """A stalls before its PUT at P; B opens, writes 20 entries; all that may be deleted is. A wakes: Fenced."""
    faulty = FaultyStore(store)
    a = open_writer(faulty, shard_id)
    for row in range(3):
        a.put(rows(row))
    stall = faulty.stall("put_if_absent", "/wal/")
    stalled = Background(lambda: a.put(rows(99)))
    stall.wait()
    b = open_writer(store, shard_id)
    for row in range(100, 120):
        b.put(rows(row))
    flush(b)
    if closed:
        b.close()
    assert collect(b.shard) == [1, 2, 3, *range(5, 24)]
    collect_manifests(b.shard)
    assert wal_positions(b.shard) == [0, 4, 24]  # the barriers, and the tip
    stall.release()
    error = fenced(stalled.result)
    assert (error.position, error.epoch, error.stored_epoch) == (4, 1, 2)
    expected = {0, 1, 2, *range(100, 120)}
    assert sorted(visible(b.shard)) == sorted(expected)
    closing_checks(store, shard_id, expected, expected, [a, b])


def test_without_the_rule_that_barriers_stay_the_stalled_writers_row_would_be_lost(
    store: ObjectStore, shard_id: uuid.UUID
) -> None:
    """R5 is needed: the same story with the barrier deleted acknowledges a row that no replay reads."""
    a = open_writer(store, shard_id)
    a.put(rows(1))
    b = open_writer(store, shard_id)
    b.put(rows(2))
    flush(b)
    b.put(rows(3))
    store.delete(b.shard.wal_key(2))
    a.put(rows(9))
    assert 9 not in visible(b.shard)


@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.LATE], ids=lambda f: f.name)
def test_peers_bug_5_lance_7547_after_a_put_that_failed_for_good_only_a_reopen_helps(
    store: ObjectStore, shard_id: uuid.UUID, fault: Fault
) -> None:
    faulty = FaultyStore(store)
    writer = open_writer(faulty, shard_id)
    writer.put(rows(1))
    faulty.plan = lambda op: fault if op.verb == "put_if_absent" and "/wal/" in op.key else None
    with pytest.raises(Poisoned) as caught:
        writer.put(rows(2))
    assert (caught.value.position, caught.value.epoch) == (2, 1)
    assert isinstance(caught.value.__cause__, Transient)
    touched = len(faulty.log)
    faulty.unscript()
    for call in (lambda: writer.put(rows(3)), writer.flush, writer.close):
        with pytest.raises(Poisoned):
            call()
    assert len(faulty.log) == touched
    faulty.deliver()
    closing_checks(store, shard_id, {1}, {1, 2}, [writer])


def test_peers_bug_10_a_manifest_never_names_an_entry_that_is_not_durable(
    store: ObjectStore, shard_id: uuid.UUID
) -> None:
    """slatedb#1018, #1885. Whenever a manifest is written, everything up to its last_seen is in the WAL."""
    seen = []
    shard = home_of(store).shard(shard_id)

    class Watching(FaultyStore):
        def put_if_absent(self, key: str, data: Any) -> None:
            super().put_if_absent(key, data)
            version = names.manifest_version(key)
            if version is not None:
                last_seen = shard.manifests.read(version).last_seen
                seen.append(last_seen)
                assert set(range(1, last_seen + 1)) <= set(wal_positions(shard))

    config = replace(WAL_ONLY, durable_write=False, max_wal_flush_interval=3600.0)
    for _ in range(3):
        writer = open_writer(Watching(store), shard_id, config)
        for row in range(4):
            writer.put(rows(row))
        writer.close()
    assert seen == [0, 1, 1, 3, 3, 5]


def test_peers_bug_10_a_writer_that_could_not_drain_leaves_the_manifest_alone(
    store: ObjectStore, shard_id: uuid.UUID
) -> None:
    faulty = FaultyStore(store)
    writer = open_writer(faulty, shard_id, replace(WAL_ONLY, durable_write=False, max_wal_flush_interval=3600.0))
    before = writer.shard.manifests.latest()
    writer.put(rows(1))
    faulty.plan = lambda op: Fault.FAIL if op.verb == "put_if_absent" else None
    with pytest.raises(Poisoned):
        writer.close()
    assert home_of(store).shard(shard_id).manifests.latest() == before


def test_peers_bug_11_slatedb_1694_the_replay_range_is_exact(store: ObjectStore, shard_id: uuid.UUID) -> None:
    writer = open_writer(store, shard_id)
    for row in range(1, 31):
        writer.put(rows(row))
    tailer = WalTailer(writer.shard)
    for start, stop in [(1, 31), (5, 9), (30, 31), (7, 7), (31, 31)]:
        assert [one.position for one in tailer.read(start, stop)] == list(range(start, stop))
    assert [one.position for one in tailer.read(29)] == [29, 30]
    manifest = flush(writer)
    writer.put(rows(31))
    assert manifest.replay_after == 30
    assert [ids_of(one.entry) for one in tailer.read(manifest.replay_after + 1)] == [[31]]


def test_peers_bug_12_equal_content_is_no_proof_a_unique_id_is(shard: Shard) -> None:
    """Two writers put the very same rows at one slot; neither takes the other's entry for its own."""
    claim = opened(shard).claim
    one, other = WalAppender.with_claimed_epoch(claim), WalAppender.with_claimed_epoch(claim)
    same = chunk(7)
    first, second = one.append(same), other.append(same)
    assert (first.position, second.position) == (1, 2)
    assert first.entry_id != second.entry_id


def test_peers_bug_13_a_409_is_tried_again_at_the_same_position(store: ObjectStore, shard: Shard) -> None:
    faulty = FaultyStore(store)
    appender = opened(through(shard, faulty))
    faulty.script("put_if_absent", Fault.FAIL, Fault.FAIL)
    start = len(faulty.log)
    assert appender.append(chunk(1)).position == 1
    assert [(op.verb, op.key) for op in faulty.log[start:]] == [("put_if_absent", shard.wal_key(1))] * 3
    assert appender.retries == 2


def test_peers_bug_13_a_412_is_never_tried_again_at_the_same_position(store: ObjectStore, shard: Shard) -> None:
    faulty = FaultyStore(store)
    claim = opened(through(shard, faulty)).claim
    WalAppender.with_claimed_epoch(replace_shard(claim, shard)).append(chunk(1))
    start = len(faulty.log)
    late = WalAppender.with_claimed_epoch(claim)
    assert late.append(chunk(2)).position == 2
    puts = [op.key for op in faulty.log[start:] if op.verb == "put_if_absent"]
    assert puts == [shard.wal_key(1), shard.wal_key(2)]
    assert late.retries == 0


def replace_shard(claim: Claim, shard: Shard) -> Claim:
    return replace(claim, shard=shard)


# -- holes of native -------------------------------------------------------------------


def test_lance_hole_1_a_claim_without_a_slot_costs_no_row(store: ObjectStore, shard_id: uuid.UUID) -> None:
    """The old writer's acknowledged rows stay: the next barrier goes above them."""
    old = open_writer(store, shard_id)
    old.shard.manifests.claim()
    old.put(rows(1))
    old.put(rows(2))
    new = open_writer(store, shard_id)
    assert new.stats().next_position == 4
    closing_checks(store, shard_id, {1, 2}, {1, 2}, [old, new])


def test_lance_hole_1_a_slot_without_a_claim_costs_no_row(store: ObjectStore, shard_id: uuid.UUID) -> None:
    """Someone took the slot with the same epoch: step over it, and a flush takes its rows along."""
    writer = open_writer(store, shard_id)
    stranger = encode_entry(ROWS, chunk(50), epoch=1)
    store.put_if_absent(writer.shard.wal_key(1), stranger.buffers)
    assert writer.put(rows(1)).positions == (2,)
    flush(writer)
    collect(writer.shard)
    closing_checks(store, shard_id, {1, 50}, {1, 50}, [writer])


def test_lance_hole_2_a_gap_is_data_loss_and_nobody_is_fenced_by_the_open_that_finds_it(
    store: ObjectStore, shard_id: uuid.UUID
) -> None:
    writer = open_writer(store, shard_id)
    for row in range(1, 6):
        writer.put(rows(row))
    hidden = bytes(store.get(writer.shard.wal_key(3)))
    store.delete(writer.shard.wal_key(3))
    before = writer.shard.manifests.latest()
    with pytest.raises(DataLoss, match="entry 3 is missing") as caught:
        open_writer(store, shard_id)
    assert (caught.value.shard, caught.value.position) == (str(shard_id), 3)
    assert writer.shard.manifests.latest() == before
    assert wal_positions(writer.shard) == [0, 1, 2, 4, 5]
    assert writer.put(rows(6)).positions == (6,)
    store.put_if_absent(writer.shard.wal_key(3), hidden)
    closing_checks(store, shard_id, range(1, 7), range(1, 7), [writer])


def test_lance_hole_2_a_gap_wider_than_any_window_is_data_loss_and_fences_nobody(
    store: ObjectStore, shard_id: uuid.UUID
) -> None:
    """A barrier in it would hide the entries above from every replay."""
    writer = open_writer(store, shard_id)
    for row in range(1, 41):
        writer.put(rows(row))
    for position in range(3, 40):
        store.delete(writer.shard.wal_key(position))
    before = writer.shard.manifests.latest()
    with pytest.raises(DataLoss, match="entry 3 is missing"):
        open_writer(store, shard_id)
    assert writer.shard.manifests.latest() == before
    assert wal_positions(writer.shard) == [0, 1, 2, 40]
    assert writer.put(rows(41)).positions == (41,)


@pytest.mark.parametrize(
    "stray",
    ["{name}.tmp.0123abcd", "{name}~", "x{name}", "0{name}", "deep/{name}", "{name}.arrow"],
)
def test_lance_hole_3_a_leftover_in_wal_is_no_position(store: ObjectStore, shard_id: uuid.UUID, stray: str) -> None:
    old = open_writer(store, shard_id)
    for row in range(1, 101):  # more than is asked for one by one, so that LIST decides
        old.put(rows(row))
    folder = names.wal_folder(shard_id)
    name = f"{names.rev64(103)}.arrow"
    store.put_if_absent(f"{folder}/{stray.format(name=name)}", b"")
    new = open_writer(store, shard_id)
    assert new.stats().next_position == 102
    assert fenced(lambda: old.put(rows(99))).position == 101
    closing_checks(store, shard_id, range(1, 101), range(1, 101), [old, new])


def test_lance_hole_3_no_temporary_file_is_ever_in_wal(tmp_path: object, shard_id: uuid.UUID) -> None:
    store = open_store(str(tmp_path))
    writer = open_writer(store, shard_id)
    for row in range(5):
        writer.put(rows(row))
    writer.close()
    keys = [info.key for info in store.list(names.wal_folder(shard_id) + "/")]
    assert len(keys) == 6
    assert all(names.wal_position(key) is not None for key in keys)


def test_lance_hole_4_with_every_collectable_entry_gone_the_fence_still_holds(
    store: ObjectStore, shard_id: uuid.UUID
) -> None:
    old = open_writer(store, shard_id)
    for row in range(1, 6):
        old.put(rows(row))
    flush(old)
    collect(old.shard)
    new = open_writer(store, shard_id)
    assert new.stats().next_position == 7
    assert fenced(lambda: old.put(rows(6))).position == 6
    closing_checks(store, shard_id, range(1, 6), range(1, 6), [old, new])


def test_lance_hole_4_even_with_the_whole_wal_gone_positions_go_on(store: ObjectStore, shard_id: uuid.UUID) -> None:
    """Nobody may delete the tip; where someone did, the manifest still knows how far the WAL went."""
    old = open_writer(store, shard_id)
    for row in range(1, 6):
        old.put(rows(row))
    flush(old)
    for position in wal_positions(old.shard):
        store.delete(old.shard.wal_key(position))
    new = open_writer(store, shard_id)
    assert new.stats().next_position == 7
    fenced(lambda: old.put(rows(6)))
    closing_checks(store, shard_id, range(1, 6), range(1, 6), [old, new])


@pytest.mark.parametrize("damage", ["manifest", "newest-manifest-truncated", "hole", "store-away"])
def test_lance_hole_5_a_failed_open_fences_nobody(store: ObjectStore, shard_id: uuid.UUID, damage: str) -> None:
    writer = open_writer(store, shard_id)
    for row in (1, 2, 3):
        writer.put(rows(row))
    key = names.manifest_key(shard_id, 1)
    good, way = bytes(store.get(key)), FaultyStore(store)
    if damage == "manifest":
        store.put_overwrite(key, b"\xff" * 30)
    elif damage == "newest-manifest-truncated":
        store.put_overwrite(key, good[:-5])
    elif damage == "hole":
        store.put_if_absent(writer.shard.wal_key(5), b"x")
    else:
        way.plan = lambda op: Fault.FAIL if op.key.startswith(names.wal_folder(shard_id)) else None
    with pytest.raises((DataLoss, Transient)):
        open_writer(way, shard_id)
    assert not [op for op in way.log if op.verb.startswith("put")]
    store.put_overwrite(key, good)
    store.delete(writer.shard.wal_key(5))
    writer.put(rows(4))
    closing_checks(store, shard_id, {1, 2, 3, 4}, {1, 2, 3, 4}, [writer])


def test_an_open_of_another_owners_shard_writes_nothing(store: ObjectStore, shard: Shard) -> None:
    holder = WalAppender.open(shard, owner="stream-1")
    faulty = FaultyStore(store)
    for owner in (None, "stream-2"):
        with pytest.raises(InvalidInput):
            WalAppender.open(through(shard, faulty), owner=owner)
    assert not [op for op in faulty.log if op.verb.startswith("put")]
    holder.append(chunk(1))
    assert WalAppender.open(shard, owner="stream-1").next_position == 3


# -- lance#6675: positions ---------------------------------------------------------------


def test_lance_6675_the_first_entry_of_a_fresh_shard_is_the_barrier_at_0_and_rows_start_at_1(shard: Shard) -> None:
    appender = opened(shard)
    assert entry_at(shard, 0).header.barrier
    assert appender.append(chunk(1)).position == 1


@pytest.mark.parametrize(
    ("last_seen", "replay_after"), [(30, 10), (10, 30), (30, 30)], ids=["last_seen", "replay_after", "equal"]
)
def test_lance_6675_a_reopen_starts_above_the_higher_of_last_seen_and_replay_after(
    store: ObjectStore, shard: Shard, last_seen: int, replay_after: int
) -> None:
    old = opened(shard)
    for row in range(1, 31):
        old.append(chunk(row))
    shard.manifests.commit_update(
        old.claim_id, old.epoch, lambda m: replace(m, last_seen=last_seen, replay_after=replay_after)
    )
    for position in range(0, 31):
        if position <= replay_after:
            store.delete(shard.wal_key(position))
    faulty = FaultyStore(store)
    new = opened(through(shard, faulty))
    assert new.next_position == max(last_seen, replay_after) + 2  # its barrier is the first one
    assert {op.verb for op in faulty.log if "/wal/" in op.key} == {"list", "head", "put_if_absent"}
    heads = [names.wal_position(op.key) for op in faulty.log if op.verb == "head"]
    assert min(position for position in heads if position is not None) == 31


def test_the_caller_may_know_a_later_position_than_the_manifest(store: ObjectStore, shard: Shard) -> None:
    old = opened(shard)
    for row in range(1, 31):
        old.append(chunk(row))
    faulty = FaultyStore(store)
    new = WalAppender.open(through(shard, faulty), last_known=30)
    heads = [names.wal_position(op.key) for op in faulty.log if op.verb == "head"]
    assert min(position for position in heads if position is not None) == 31
    assert new.next_position == 32


@pytest.mark.parametrize("count", [0, 1, WINDOW - 1, WINDOW, WINDOW * WINDOWS - 1, WINDOW * WINDOWS, 150])
def test_the_tip_is_found_however_far_it_is(store: ObjectStore, shard: Shard, count: int) -> None:
    for position in range(1, count + 1):
        store.put_if_absent(shard.wal_key(position), b"x")
    assert find_tip(shard, 1) == count + 1


@pytest.mark.parametrize("hole", [3, WINDOW + 1, WINDOW * WINDOWS + 5])
def test_a_hole_on_the_way_to_the_tip_is_data_loss(store: ObjectStore, shard: Shard, hole: int) -> None:
    for position in range(1, WINDOW * WINDOWS + 20):
        if position != hole:
            store.put_if_absent(shard.wal_key(position), b"x")
    with pytest.raises(DataLoss) as caught:
        find_tip(shard, 1)
    assert caught.value.position == hole


@pytest.mark.parametrize("lost", [range(12, 13), range(12, 31), range(20, 31)], ids=["hole", "all", "end"])
def test_an_open_finds_a_hole_between_replay_after_and_last_seen_by_one_list(
    store: ObjectStore, shard: Shard, lost: range
) -> None:
    old = opened(shard)
    for row in range(1, 31):
        old.append(chunk(row))
    shard.manifests.commit_update(old.claim_id, old.epoch, lambda m: replace(m, last_seen=30, replay_after=10))
    for position in (*range(1, 11), *lost):
        store.delete(shard.wal_key(position))
    faulty, before = FaultyStore(store), shard.manifests.latest()
    with pytest.raises(DataLoss) as caught:
        opened(through(shard, faulty))
    assert caught.value.position == lost[0]
    assert shard.manifests.latest() == before, "nobody is fenced"
    assert [op.verb for op in faulty.log if "/wal/" in op.key] == ["list", "head"]
    old.append(chunk(31))


def test_a_streams_start_does_not_list_its_wal(store: ObjectStore, shard: Shard) -> None:
    """Its log lists all that counts, and whoever reads finds what is missing."""
    old = WalAppender.open(shard, owner="stream")
    for row in range(1, 31):
        old.append(chunk(row))
    store.delete(shard.wal_key(12))
    faulty = FaultyStore(store)
    assert WalAppender.open(through(shard, faulty), owner="stream", last_known=30).next_position == 32
    assert "list" not in [op.verb for op in faulty.log if "/wal/" in op.key]


def test_a_writer_that_fills_slots_while_the_tip_is_searched_makes_no_hole(store: ObjectStore, shard: Shard) -> None:
    """HEAD and LIST go past 1 while it is free; then 1 and 2 are put: taken above free, and yet no hole."""

    class Early(FaultyStore):
        def list(self, prefix: str) -> Iterator[ObjectInfo]:
            return (info for info in super().list(prefix) if info.key != shard.wal_key(1))

    for position in (1, 2):
        store.put_if_absent(shard.wal_key(position), b"x")
    early = Early(store)
    early.plan = lambda op: Fault.VANISHED if op.key == shard.wal_key(1) and "list" not in early.verbs() else None
    assert find_tip(through(shard, early), 1) == 3
    assert early.verbs().count("list") == 1


# -- hot path and faults ---------------------------------------------------------------------


def test_an_append_is_one_put_and_nothing_else(store: ObjectStore, shard: Shard) -> None:
    opened(shard).append(chunk(1))
    faulty = FaultyStore(store)
    appender = opened(through(shard, faulty))
    faulty.reset_operations()
    for row in range(5):
        appender.append(chunk(row))
    assert faulty.operations() == {"put": 5}


def test_an_attached_appender_claims_reads_and_writes_nothing_by_itself(store: ObjectStore, shard: Shard) -> None:
    claim = opened(shard).claim
    faulty = FaultyStore(store)
    appender = WalAppender.with_claimed_epoch(replace(claim, shard=through(shard, faulty)))
    assert faulty.log == []
    assert appender.append(chunk(1), Tags("attempt-1")).position == 1
    assert faulty.verbs() == ["put_if_absent"]
    assert appender.claim.next_position == 2
    assert entry_at(shard, 1).header.tags.attempt_id == "attempt-1"


def test_a_claim_survives_pickling(shard: Shard) -> None:
    claim = opened(shard).claim
    copy = pickle.loads(pickle.dumps(claim))
    assert (copy.epoch, copy.claim_id, copy.next_position) == (claim.epoch, claim.claim_id, claim.next_position)
    assert WalAppender.with_claimed_epoch(copy).append(chunk(1)).position == 1


def test_attempts_of_one_epoch_step_over_each_other_and_read_only_headers(store: ObjectStore, shard: Shard) -> None:
    claim = opened(shard).claim
    for attempt in range(4):
        faulty = FaultyStore(store)
        appender = WalAppender.with_claimed_epoch(replace(claim, shard=through(shard, faulty)))
        assert appender.append(chunk(attempt)).position == attempt + 1
        assert faulty.operations().get("get", 0) == attempt
        assert "get" not in faulty.verbs()


def test_a_conflict_that_left_nothing_is_tried_again_at_the_same_position(store: ObjectStore, shard: Shard) -> None:
    faulty = FaultyStore(store)
    appender = opened(through(shard, faulty))
    faulty.script("put_if_absent", Fault.VANISHED)
    assert appender.append(chunk(1)).position == 1


def test_a_conflict_that_always_leaves_nothing_ends_in_poisoned(store: ObjectStore, shard: Shard) -> None:
    faulty = FaultyStore(store)
    appender = opened(through(shard, faulty))
    faulty.plan = lambda op: Fault.VANISHED if op.verb == "put_if_absent" else None
    with pytest.raises(Poisoned):
        appender.append(chunk(1))
    assert wal_positions(shard) == [0]


def test_an_entry_that_was_collected_under_the_appenders_eyes_is_never_replaced(
    store: ObjectStore, shard: Shard
) -> None:
    """Its slot is at or below replay_after, where no replay reads."""
    faulty = FaultyStore(store)
    holder = opened(shard)
    holder.append(chunk(1))
    zombie = WalAppender.with_claimed_epoch(replace(holder.claim, shard=through(shard, faulty), next_position=1))
    shard.manifests.commit_update(holder.claim_id, holder.epoch, lambda m: replace(m, replay_after=1, last_seen=1))
    faulty.script("put_if_absent", Fault.VANISHED)
    faulty.script("get_range", Fault.VANISHED)
    with pytest.raises(Poisoned, match="flushed and deleted"):
        zombie.append(chunk(2))


@pytest.mark.parametrize("manifest", ["gone", "successor", "unreadable"])
def test_where_the_slot_vanished_only_the_manifest_decides(store: ObjectStore, shard: Shard, manifest: str) -> None:
    faulty = FaultyStore(store)
    appender = opened(through(shard, faulty))
    if manifest == "gone":
        store.delete(names.manifest_key(shard.id, 1))
    elif manifest == "successor":
        shard.manifests.claim()
    else:
        store.put_overwrite(names.manifest_key(shard.id, 1), b"junk")
    faulty.script("put_if_absent", Fault.VANISHED)
    with pytest.raises(Poisoned if manifest == "unreadable" else Fenced):
        appender.append(chunk(1))
    assert wal_positions(shard) == [0]


@pytest.mark.parametrize("kind", ["damaged", "away"])
def test_an_entry_in_the_way_that_cannot_be_read_poisons(store: ObjectStore, shard: Shard, kind: str) -> None:
    faulty = FaultyStore(store)
    appender = opened(through(shard, faulty))
    store.put_if_absent(shard.wal_key(1), b"junk" * 10)
    if kind == "away":
        faulty.plan = lambda op: Fault.FAIL if op.verb == "get_range" else None
    with pytest.raises(Poisoned) as caught:
        appender.append(chunk(1))
    assert isinstance(caught.value.__cause__, Corrupt if kind == "damaged" else Transient)
    assert caught.value.position == 1


@pytest.mark.parametrize("refusal", [PermissionDenied, StoreFull])
def test_a_store_that_refuses_poisons_at_once(store: ObjectStore, shard: Shard, refusal: type[StoreError]) -> None:
    class Refusing(FaultyStore):
        refuse = False

        def put_if_absent(self, key: str, data: Any) -> None:
            if self.refuse:
                raise refusal("no")
            super().put_if_absent(key, data)

    refusing = Refusing(store)
    appender = opened(through(shard, refusing))
    refusing.refuse = True
    with pytest.raises(Poisoned) as caught:
        appender.append(chunk(1))
    assert isinstance(caught.value.__cause__, refusal)


def test_the_header_of_a_wide_table_takes_a_second_range_read(store: ObjectStore, shard_id: uuid.UUID) -> None:
    wide = pa.schema([pa.field(f"column_{number:04}", pa.int64()) for number in range(400)])
    home = TableHome.in_store(FaultyStore(store), RowSchema.of(wide))
    shard = home.shard(shard_id)
    claim = WalAppender.open(shard).claim
    batch = pa.record_batch([pa.array([1], pa.int64())] * 400, schema=wide)
    stored = [encode_rows(home.schema.stored_rows(batch))]
    WalAppender.with_claimed_epoch(claim).append(stored)
    home.store.reset_operations()
    assert read_header(shard, 1).rows == 1
    assert home.store.operations() == {"get": 2}
    assert WalAppender.with_claimed_epoch(claim).append(stored).position == 2


def test_errors_say_where(store: ObjectStore, shard: Shard) -> None:
    store.put_if_absent(shard.wal_key(3), b"junk")
    with pytest.raises(Corrupt) as caught:
        read_header(shard, 3)
    assert (caught.value.table, caught.value.shard, caught.value.position) == (store.uri, str(shard.id), 3)


def test_the_writers_own_patience_holds_for_its_manifests(store: ObjectStore, shard: Shard) -> None:
    faulty = FaultyStore(store, lambda op: Fault.FAIL if op.verb == "list" else None)
    with pytest.raises(HeadgateError):
        WalAppender.open(through(shard, faulty).retrying(Retry(attempts=5, base=0)))
    assert faulty.verbs() == ["list"] * 6


def test_a_separate_wal_store_holds_the_entries_and_nothing_else(store: ObjectStore, shard_id: uuid.UUID) -> None:
    wal = open_store(f"memory://{uuid.uuid4().hex}")
    shard = TableHome(ROWS, store, wal).shard(shard_id)
    old = opened(shard)
    old.append(chunk(1))
    new = opened(shard)
    fenced(lambda: old.append(chunk(2)))
    new.append(chunk(3))
    assert {names.wal_position(info.key) for info in wal.list("")} == {0, 1, 2, 3}
    assert not [info for info in store.list("") if "/wal/" in info.key]
    assert visible(shard) == [1, 3]


def test_a_barrier_of_an_equal_epoch_under_another_claim_is_stepped_over_and_the_re_read_decides(
    store: ObjectStore, shard: Shard
) -> None:
    """A claimer whose version was collected while it stalled gets an epoch that is not its own (R7)."""
    opened(shard).append(chunk(1))

    def ghost(step: str) -> None:
        if step == "barrier":
            latest = shard.manifests.latest()
            assert latest is not None
            store.put_if_absent(shard.wal_key(2), encode_barrier(epoch=2).buffers)
            rival: Manifest = replace(latest, version=latest.version + 1).with_field("headgate.claim_id", b"rival")
            store.put_if_absent(names.manifest_key(shard.id, rival.version), encode_manifest(rival))

    error = fenced(lambda: watching(ghost)(WalAppender.open)(shard))
    assert (error.epoch, error.stored_epoch) == (2, 2)
