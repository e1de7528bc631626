"""What garbage collection takes from native Lance (R20). Canaries: each fails when native changes."""

from __future__ import annotations

import uuid
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest

from headgate.shards import names
from headgate.shards.home.home import home_at
from headgate.shards.manifest.model import Manifest, encode_manifest
from headgate.shards.names import SsTableName, sstable_name
from headgate.shards.shard import Shard
from headgate.shards.writer import ShardWriter
from tests.support.datasets import MEMTABLE, batch, make_table, native_pairs, native_writer, pairs

SHARD = uuid.UUID(int=20)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return make_table(tmp_path)


def shard_at(uri: str) -> Shard:
    return Shard(home_at(uri), SHARD)


def latest(uri: str) -> Manifest:
    found = shard_at(uri).manifests.latest()
    assert found is not None
    return found


def put(native: object, *numbers: int) -> None:
    native.put(pa.Table.from_batches([batch([(i, f"n{i}") for i in numbers])]))  # type: ignore[attr-defined]


def test_native_opens_reads_and_keeps_an_sstable_whose_name_has_our_epoch(uri: str) -> None:
    with ShardWriter.open(uri, SHARD, MEMTABLE) as writer:
        writer.put(batch([(1, "ours")]))
        writer.flush_memtable()
        epoch = writer.claim.epoch
    (ours,) = latest(uri).sstables
    assert sstable_name(ours.path) == SsTableName(1, epoch)
    with native_writer(uri, SHARD, max_memtable_rows=2) as native:
        assert native_pairs(native) == [(1, "ours")]
        put(native, 2, 3)
    after = latest(uri)
    assert after.sstables[0].path == ours.path, "native's own commit carries the name along"
    theirs = [sstable_name(one.path) for one in after.sstables[1:]]
    assert theirs == [SsTableName(2)], "native's names say the generation, and no epoch"
    with ShardWriter.open(uri, SHARD, MEMTABLE) as writer:
        assert pairs(writer.scan()) == [(1, "ours"), (2, "n2"), (3, "n3")]


def test_natives_flush_checks_the_epoch_alone_and_commits_upon_any_manifest_that_has_it(uri: str) -> None:
    """Hence neither a bumped version nor a note in the manifest fences it, only a claim does."""
    with native_writer(uri, SHARD) as native:
        put(native, 1, 2)
        before = latest(uri)
        bumped = replace(before, version=before.version + 1).with_field("headgate.note", b"collected")
        shard = shard_at(uri)
        shard.home.store.put_if_absent(names.manifest_key(SHARD, bumped.version), encode_manifest(bumped))
        native.close()  # which flushes
    after = latest(uri)
    assert after.version > bumped.version
    assert after.epoch == before.epoch
    assert [sstable_name(one.path) for one in after.sstables] == [SsTableName(1)]
    assert after.generation == 2


def test_natives_flush_commits_nothing_once_the_epoch_is_higher(uri: str) -> None:
    with native_writer(uri, SHARD) as native:
        put(native, 1, 2)
        with ShardWriter.open(uri, SHARD, MEMTABLE) as successor:
            with pytest.raises(OSError, match=r"(?i)fenced|epoch"):
                native.close()
            assert latest(uri).epoch == successor.claim.epoch
            assert pairs(successor.scan()) == [(1, "n1"), (2, "n2")]
    assert all(sstable_name(one.path) != SsTableName(1) for one in latest(uri).sstables)


def test_native_flushes_one_generation_at_a_time(uri: str) -> None:
    """So that a folder below the manifest's generation is never one that native still commits."""
    with native_writer(uri, SHARD, max_memtable_rows=2) as native:
        for number in range(0, 12, 2):
            put(native, number, number + 1)
    shard = shard_at(uri)
    history = [shard.manifests.read(version) for version in shard.manifests.versions()]
    added = [
        (after.generation - before.generation, len(after.sstables) - len(before.sstables))
        for before, after in pairwise(history)
        if after.sstables != before.sstables
    ]
    assert len(added) >= 6
    assert set(added) == {(1, 1)}
    named = [sstable_name(one.path) for one in history[-1].sstables]
    assert named == [SsTableName(one.generation) for one in history[-1].sstables]
    assert sorted(one.generation for one in named if one) == list(range(1, len(named) + 1))
