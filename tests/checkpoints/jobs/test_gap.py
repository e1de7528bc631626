"""Closing gaps and letting native in: what may follow which manifest, and what is refused."""

from __future__ import annotations

import gc
import uuid
from collections import Counter
from dataclasses import replace
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from headgate.checkpoints.jobs.advance import close_gap, unseal, without_gap
from headgate.checkpoints.jobs.flush import run_here
from headgate.checkpoints.offline.checkpoint import release
from headgate.errors import Fenced, InvalidInput, NotFound
from headgate.shards.manifest.model import Manifest, SsTable
from headgate.table.table import Table
from tests.support.tables import ids, make, manifest_of, of_batches, open_stream, rows, run_batch, shard_of


def manifest(replay_after: int, generation: int = 2, last_seen: int = 0) -> Manifest:
    sstables = (SsTable(1, "a_gen_1"),)
    return Manifest(
        version=5,
        epoch=3,
        replay_after=replay_after,
        last_seen=last_seen,
        generation=generation,
        sstables=sstables,
        shard_id=uuid.UUID(int=4),
    )


@pytest.mark.parametrize(
    ("stored", "flushed", "upto", "after"),
    [
        (manifest(3), manifest(3), 7, 7),
        (manifest(7), manifest(3), 7, 7),  # an earlier try landed, and its response was lost
        (manifest(5), manifest(3), 7, None),  # another job moved it: nothing is known of what lies between
        (manifest(3, generation=3), manifest(3), 7, None),  # another flush came
        (replace(manifest(3), sstables=()), manifest(3), 7, 7),  # compaction took the SSTables in: no matter
    ],
)
def test_the_gap_is_passed_only_from_what_the_flush_left(
    stored: Manifest, flushed: Manifest, upto: int, after: int | None
) -> None:
    found = without_gap(stored, flushed, upto)
    assert (None if found is None else found.replay_after) == after
    if found is not None:
        assert found == replace(stored, replay_after=upto, last_seen=upto)


def test_last_seen_never_goes_back() -> None:
    found = without_gap(manifest(3, last_seen=9), manifest(3), 7)
    assert found is not None
    assert found.last_seen == 9


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return make(tmp_path, key="id")


def test_a_flush_in_between_makes_the_caller_stop(table: Table) -> None:
    driver = open_stream(table, [0])
    run_batch(driver, 0, [0])
    claim, before = driver.claims["partition:orders:0"], manifest_of(shard_of(table, 0))
    settled = driver.settle(run_here, 1 << 20)
    with pytest.raises(Fenced, match="Another job changed this shard"):
        close_gap(claim, before, 5)
    driver.close_gaps(settled)
    assert ids(table) == of_batches([0], [0])


def test_a_shard_with_rows_in_its_wal_alone_is_not_unsealed(table: Table) -> None:
    driver = open_stream(table, [0])
    run_batch(driver, 0, [0])
    driver.renew()
    with pytest.raises(InvalidInput, match="not in an SSTable yet"):
        unseal(driver.claims["partition:orders:0"])
    assert manifest_of(shard_of(table, 0)).sealed


def test_a_stream_that_has_no_shard_cannot_be_released(table: Table) -> None:
    run_batch(open_stream(table, [0]), 0, [0])
    with pytest.raises(NotFound, match=r"Stream 'x' not found.*its streams are: s;"):
        release(table.home, table.shard_ids(), "x")
    release(table.home, table.shard_ids(), "s", forget_owner=True)
    with pytest.raises(InvalidInput, match="No shard belongs to stream 's'"):
        release(table.home, table.shard_ids(), "s")


def test_a_generation_that_native_noted_is_never_cut_in_two(table: Table) -> None:
    """Native wrote to a released shard and died; the stream takes it over with SSTables of one byte. What is left of
    native's generation behind the first SSTable would be taken for flushed.
    """
    driver = open_stream(table, [0])
    run_batch(driver, 0, [0])
    release(table.home, table.shard_ids(), "s")
    native = lance.dataset(table.uri).mem_wal_writer(str(shard_of(table, 0).id), max_wal_flush_interval_ms=1)
    for number in (-1, -2, -3):
        native.put(pa.Table.from_batches([rows(number)]))
    del native  # as a crash would: closing flushes
    gc.collect()
    driver = open_stream(table, [0])
    driver.close_gaps(driver.settle(run_here, 1))
    assert ids(table) == of_batches([0], [0]) + Counter([-1, -2, -3])
    assert manifest_of(shard_of(table, 0)).generation == 3, "one for the stream's rows, one for native's"
