"""ShardWriter in MemTable mode: what a fenced writer flushes, native's holes. See test_modes for the rest."""

from __future__ import annotations

import uuid
from pathlib import Path

import lance
import pytest

from headgate.connectors.objects import open_store
from headgate.errors import Fenced
from headgate.shards import names
from headgate.shards.manifest.model import decode_manifest
from headgate.shards.wal.decoder import decode_entry
from headgate.shards.wal.encoder import encode_entry, encode_rows
from headgate.shards.writer import ShardWriter
from tests.support.closing import wal_positions
from tests.support.datasets import (
    MEMTABLE,
    batch,
    make_table,
    native_writer,
    pairs,
    seen,
)

SHARD = uuid.UUID(int=17)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return make_table(tmp_path)


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


def test_lance_hole_1_a_claim_without_a_slot_costs_no_row(uri: str) -> None:
    """The old writer's puts are still acknowledged; the next opener, who takes the slot, has them."""
    writer = ShardWriter.open(uri, SHARD, MEMTABLE)
    writer.shard.manifests.claim()
    writer.put(batch([(1, "a")]))
    with pytest.raises(Fenced):
        writer.flush_memtable()
    assert seen(uri, SHARD) == [(1, "a")]


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
