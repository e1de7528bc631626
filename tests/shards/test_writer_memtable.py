"""ShardWriter in MemTable mode: fencing as in lance#6432, positions as in lance#6675, native's holes."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pytest

from headgate.connectors.objects import open_store
from headgate.errors import AlreadyExists, DataLoss, Fenced, InvalidInput, Poisoned
from headgate.shards import names
from headgate.shards.config import WriterConfig
from headgate.shards.manifest.model import decode_manifest
from headgate.shards.wal.decoder import decode_entry
from headgate.shards.wal.encoder import encode_entry, encode_rows
from headgate.shards.wal.tailer import WalTailer
from headgate.shards.writer import ShardWriter
from headgate.steps import watching
from tests.support.closing import wal_positions
from tests.support.datasets import (
    ASYNC,
    MEMTABLE,
    NO_RETRY,
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
from tests.support.stores import Fault

SHARD = uuid.UUID(int=17)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return make_table(tmp_path)


# -- lance#6432 in MemTable mode -------------------------------------------------------


def test_lance_6432_peers_bug_1_conditional_put_refuses_a_duplicate_position(uri: str) -> None:
    with ShardWriter.open(uri, SHARD, MEMTABLE) as writer:
        (position,) = writer.put(batch([(1, "a")])).positions
        shard = writer.shard
        before = bytes(shard.wal.get(shard.wal_key(position)))
        with pytest.raises(AlreadyExists):
            shard.wal.put_if_absent(shard.wal_key(position), b"other")
        assert bytes(shard.wal.get(shard.wal_key(position))) == before


def test_lance_6432_the_barrier_claims_the_next_position_and_blocks_the_old_writers_next_put(uri: str) -> None:
    old = ShardWriter.open(uri, SHARD, MEMTABLE)
    old.put(batch([(1, "a")]))
    wanted = old.claim.next_position
    with ShardWriter.open(uri, SHARD, MEMTABLE) as new:
        entry = decode_entry(new.shard.wal.get(new.shard.wal_key(wanted)))
        assert entry.header.barrier
        assert entry.header.epoch == 2
        with pytest.raises(Fenced) as raised:
            old.put(batch([(2, "zombie")]))
        error = raised.value
        assert (error.shard, error.position, error.epoch, error.stored_epoch) == (str(SHARD), wanted, 1, 2)
        assert "puts 2 to 2 (1 rows)" in str(error)
        new.put(batch([(3, "c")]))
        assert pairs(new.scan()) == [(1, "a"), (3, "c")]
    assert seen(uri, SHARD) == [(1, "a"), (3, "c")]


def test_lance_6432_a_fenced_writer_flushes_nothing(uri: str) -> None:
    old = ShardWriter.open(uri, SHARD, MEMTABLE)
    old.put(batch([(1, "a")]))
    with ShardWriter.open(uri, SHARD, MEMTABLE) as new:
        before = new.shard.manifests.latest()
        with pytest.raises(Fenced):
            old.flush_memtable()
        with pytest.raises(Fenced):
            old.close()
        assert new.shard.manifests.latest() == before


def test_lance_6432_the_barrier_skips_forward_past_stale_entries(uri: str) -> None:
    old = ShardWriter.open(uri, SHARD, MEMTABLE)
    old.put(batch([(1, "a")]))

    def late(step: str) -> None:
        if step == "barrier":
            old.put(batch([(2, "b")]))
            old.put(batch([(3, "c")]))

    with watching(late)(ShardWriter.open)(uri, SHARD, MEMTABLE) as new:
        assert pairs(new.scan()) == [(1, "a"), (2, "b"), (3, "c")]
        assert new.stats().next_position == 5
    with pytest.raises(Fenced):
        old.put(batch([(4, "zombie")]))


def test_lance_6432_positions_are_unique_and_sequential_and_barriers_disturb_no_replay(uri: str) -> None:
    expected = []
    for life in range(4):
        with ShardWriter.open(uri, SHARD, replace(MEMTABLE, max_memtable_rows=3)) as writer:
            assert pairs(writer.scan()) == expected
            for put in range(2):
                expected.append((len(expected), f"{life}.{put}"))
                writer.put(batch(expected[-1:]))
    assert wal_positions(writer.shard) == list(range(12))
    barriers = [e.position for e in WalTailer(writer.shard).read(0) if e.entry.header.barrier]
    assert barriers == [0, 3, 6, 9]
    assert seen(uri, SHARD) == expected


def test_lance_6432_three_writers_in_a_row(uri: str) -> None:
    writers = []
    for number in range(3):
        writer = ShardWriter.open(uri, SHARD, MEMTABLE)
        writer.put(batch([(number, "n")]))
        writers.append(writer)
    assert [writer.stats().epoch for writer in writers] == [1, 2, 3]
    for old in writers[:2]:
        with pytest.raises(Fenced):
            old.put(batch([(9, "zombie")]))
    assert pairs(writers[2].scan()) == [(0, "n"), (1, "n"), (2, "n")]


def test_lance_6432_check_fenced_and_commit_update_follow_the_claim(uri: str) -> None:
    first = ShardWriter.open(uri, SHARD, MEMTABLE).claim
    second = ShardWriter.open(uri, SHARD, MEMTABLE).claim
    manifests = first.shard.manifests
    manifests.check_fenced(second.epoch, second.claim_id)
    manifests.check_fenced(second.epoch + 1)
    for epoch, claim_id in ((first.epoch, first.claim_id), (second.epoch, first.claim_id)):
        with pytest.raises(Fenced):
            manifests.check_fenced(epoch, claim_id)
    with pytest.raises(Fenced):
        manifests.commit_update(first.claim_id, first.epoch, lambda manifest: manifest)


# -- lance#6675 in MemTable mode -------------------------------------------------------


def test_lance_6675_the_first_entry_is_the_barrier_at_0_and_rows_start_at_1(uri: str) -> None:
    with ShardWriter.open(uri, SHARD, MEMTABLE) as writer:
        assert wal_positions(writer.shard) == [0]
        assert writer.put(batch([(1, "a")])).positions == (1,)


@pytest.mark.parametrize("leads", ["last_seen", "replay_after"])
def test_lance_6675_stats_after_a_reopen_are_above_the_higher_of_the_two(uri: str, leads: str) -> None:
    writer = ShardWriter.open(uri, SHARD, MEMTABLE)
    for i in range(3):
        writer.put(batch([(i, "n")]))
    if leads == "replay_after":
        writer.flush_memtable()
    else:
        writer.close()
    with ShardWriter.open(uri, SHARD, MEMTABLE) as again:
        assert again.stats().next_position == 5
        assert len(pairs(again.scan())) == 3


def test_lance_6675_the_queue_survives_a_failed_append(uri: str) -> None:
    store = faulty(uri)
    config = replace(ASYNC, retry=MEMTABLE.retry)
    with ShardWriter.open(home_over(store, uri), SHARD, config) as writer:
        writer.put(batch([(1, "a")]))
        writer.put(batch([(2, "b")]))
        store.script("put_if_absent", Fault.FAIL, Fault.FAIL)
        assert pairs(writer.scan()) == [(1, "a"), (2, "b")]
        writer.flush()
        assert writer.stats().retries == 2
        assert pairs(writer.scan()) == [(1, "a"), (2, "b")]
    assert seen(uri, SHARD) == [(1, "a"), (2, "b")]


@pytest.mark.parametrize("call", ["get", "scan", "memtable_stats", "active_memtable", "flush_memtable"])
def test_lance_6675_wal_only_refuses_what_needs_a_memtable(uri: str, call: str) -> None:
    arguments: dict[str, tuple[Any, ...]] = {"get": (keys(1),)}
    with ShardWriter.open(uri, SHARD, WriterConfig(enable_memtable=False)) as writer:
        with pytest.raises(InvalidInput):
            getattr(writer, call)(*arguments.get(call, ()))


@pytest.mark.parametrize("wal_only", [True, False])
def test_lance_6675_an_open_with_an_index_it_cannot_keep_fences_nobody(uri: str, wal_only: bool) -> None:
    with ShardWriter.open(uri, SHARD, MEMTABLE) as writer:
        config = replace(MEMTABLE, enable_memtable=not wal_only, maintained_indexes=("nope",))
        with pytest.raises(InvalidInput):
            ShardWriter.open(uri, SHARD, config)
        writer.put(batch([(1, "a")]))


# -- peers' bugs and native's holes, in MemTable mode ------------------------------------


def test_peers_bug_5_lance_7547_rows_that_failed_to_become_durable_are_never_shown(uri: str) -> None:
    store = faulty(uri)
    writer = ShardWriter.open(home_over(store, uri), SHARD, replace(MEMTABLE, retry=NO_RETRY))
    writer.put(batch([(1, "a")]))
    store.script("put_if_absent", Fault.FAIL)
    with pytest.raises(Poisoned):
        writer.put(batch([(2, "b")]))
    assert writer.memtable_stats()[-1].rows == 1
    for call in (writer.scan, writer.flush_memtable, writer.close):
        with pytest.raises(Poisoned):
            call()
    assert seen(uri, SHARD) == [(1, "a")]


def test_peers_bug_12_lance_hole_11_a_lost_response_doubles_nothing(tmp_path: Path) -> None:
    uri = make_table(tmp_path, PLAIN)
    store = faulty(uri)
    with ShardWriter.open(home_over(store, uri), SHARD, MEMTABLE) as writer:
        store.script("put_if_absent", Fault.LOST)
        writer.put(batch([(1, "a")], PLAIN))
        assert pairs(writer.scan()) == [(1, "a")]
        assert writer.stats().next_position == 2
    assert seen(uri, SHARD) == [(1, "a")]


def test_lance_hole_1_a_claim_without_a_slot_costs_no_row(uri: str) -> None:
    """The old writer's puts are still acknowledged; the next opener, who takes the slot, has them."""
    writer = ShardWriter.open(uri, SHARD, MEMTABLE)
    writer.shard.manifests.claim()
    writer.put(batch([(1, "a")]))
    with pytest.raises(Fenced):
        writer.flush_memtable()
    assert seen(uri, SHARD) == [(1, "a")]


def test_lance_hole_1_a_slot_without_a_claim_costs_no_row(uri: str) -> None:
    with ShardWriter.open(uri, SHARD, MEMTABLE) as writer:
        writer.put(batch([(1, "a")]))
        schema, shard = writer.shard.home.schema, writer.shard
        foreign = encode_entry(schema, [encode_rows(schema.stored_rows(batch([(2, "foreign")])))], epoch=1)
        shard.wal.put_if_absent(shard.wal_key(2), foreign.buffers)
        assert writer.put(batch([(3, "c")])).positions == (3,)
    assert seen(uri, SHARD) == [(1, "a"), (2, "foreign"), (3, "c")]


def test_a_slot_taken_without_a_claim_is_not_passed_by_a_flush(uri: str) -> None:
    """A flush covers positions, not only rows of this writer: what another attempt left below must not get lost."""
    with ShardWriter.open(uri, SHARD, MEMTABLE) as writer:
        schema, shard = writer.shard.home.schema, writer.shard
        foreign = encode_entry(schema, [encode_rows(schema.stored_rows(batch([(2, "foreign")])))], epoch=1)
        shard.wal.put_if_absent(shard.wal_key(1), foreign.buffers)
        writer.put(batch([(3, "c")]))
        writer.flush_memtable()
        assert pairs(writer.scan()) == [(2, "foreign"), (3, "c")]
    assert seen(uri, SHARD) == [(2, "foreign"), (3, "c")]


def test_lance_hole_2_a_gap_is_data_loss(uri: str) -> None:
    with ShardWriter.open(uri, SHARD, MEMTABLE) as writer:
        for i in range(3):
            writer.put(batch([(i, "n")]))
        writer.shard.wal.delete(writer.shard.wal_key(2))
    before = writer.shard.manifests.latest()
    with pytest.raises(DataLoss) as raised:
        ShardWriter.open(uri, SHARD, MEMTABLE)
    assert raised.value.position == 2
    assert writer.shard.manifests.latest() == before


def test_lance_hole_3_a_leftover_in_wal_is_no_position(uri: str) -> None:
    with ShardWriter.open(uri, SHARD, MEMTABLE) as writer:
        writer.put(batch([(1, "a")]))
        writer.shard.wal.put_if_absent(writer.shard.wal_key(7) + ".tmp.0123", b"junk")
    with ShardWriter.open(uri, SHARD, MEMTABLE) as writer:
        assert writer.stats().next_position == 3
        assert pairs(writer.scan()) == [(1, "a")]


def test_lance_hole_4_with_the_whole_wal_gone_a_flushed_shard_goes_on(uri: str) -> None:
    old = ShardWriter.open(uri, SHARD, MEMTABLE)
    for i in range(3):
        old.put(batch([(i, "n")]))
    old.flush_memtable()
    for position in wal_positions(old.shard):
        old.shard.wal.delete(old.shard.wal_key(position))
    with ShardWriter.open(uri, SHARD, MEMTABLE) as new:
        assert new.stats().next_position == 5
        with pytest.raises(Fenced):
            old.put(batch([(9, "zombie")]))
        assert len(pairs(new.scan())) == 3


def test_lance_hole_6_changed_base_metadata_after_a_crash_locks_nobody_out(uri: str) -> None:
    ShardWriter.open(uri, SHARD, MEMTABLE).put(batch([(1, "a")]))
    lance.dataset(uri).update_schema_metadata({"owner": "someone else"})
    with ShardWriter.open(uri, SHARD, MEMTABLE) as writer:
        assert pairs(writer.scan()) == [(1, "a")]
        writer.put(batch([(2, "b")]))
    with native_writer(uri, SHARD) as native:
        assert pairs(native.lsm_scanner().to_table()) == [(1, "a"), (2, "b")]


def test_lance_hole_12_a_put_says_where_it_is_and_a_lost_answer_can_be_looked_up(uri: str) -> None:
    """Native's put returns None; ours the position, and the entry there names its own id."""
    with ShardWriter.open(uri, SHARD, MEMTABLE) as writer:
        (position,) = writer.put(batch([(1, "a")])).positions
        entry = decode_entry(writer.shard.wal.get(writer.shard.wal_key(position)))
        assert entry.header.entry_id
        assert entry.rows == 1


def test_a_new_shard_has_the_spec_id_that_native_would_give_it(tmp_path: Path) -> None:
    for options in ({}, {"unsharded": True}, {"bucket_column": "id", "num_buckets": 4}):
        uri = make_table(tmp_path, **options)
        with native_writer(uri, uuid.UUID(int=1)) as native:
            native.put(batch([(1, "a")]))
        ShardWriter.open(uri, uuid.UUID(int=2), MEMTABLE).close()
        store = open_store(uri)
        found = []
        for number in (1, 2):
            key = names.manifest_key(uuid.UUID(int=number), 1)
            found.append(decode_manifest(store.get(key), shard_id=uuid.UUID(int=number), version=1).spec_id)
        assert found[0] == found[1], options
