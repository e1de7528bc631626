"""Retention of WAL-only streams: what was asked for goes, by a record, through the stream's ownership, and no more."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import headgate
from headgate.checkpoints.log.records import Batch
from headgate.checkpoints.offline.retention import (
    BeforeCheckpoint,
    BeforePosition,
    Expiry,
    OlderThan,
    expire,
    plan_expiry,
    read_expired,
)
from headgate.errors import Fenced, HeadgateError, InvalidInput, NotFound
from headgate.shards.config import WriterConfig
from headgate.table.table import Table
from tests.support.life import QUERY
from tests.support.stores import Crash
from tests.support.tables import (
    DIRECT,
    copied,
    faulty,
    ids,
    make,
    manifest_of,
    of_batches,
    open_stream,
    rows,
    run_batch,
    shard_of,
    through,
)

WAL_ONLY = WriterConfig(enable_memtable=False)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """A WAL-only stream of three batches in two shards, at positions 1 to 3."""
    table = make(tmp_path)
    driver = open_stream(table)
    for number in range(3):
        run_batch(driver, number, mode="wal")
    return table


def objects(table: Table) -> set[str]:
    return {info.key for info in table.home.store.list("")}


def test_a_dry_run_says_what_would_go_and_writes_nothing(table: Table) -> None:
    before = objects(table)
    shard = shard_of(table, 0)
    (planned,) = plan_expiry(table.home, table.shard_ids(), BeforePosition(3), shard=shard.id)
    assert (planned.replay_after, planned.upto, planned.entries) == (0, 2, 2)
    assert planned.nbytes == sum(len(shard.wal.get(shard.wal_key(position))) for position in (1, 2))
    assert (planned.name, planned.stream) == ("partition:orders:0", "s")
    assert objects(table) == before


def test_entries_before_a_position_of_one_shard_go_and_the_stream_goes_on(table: Table) -> None:
    shard = shard_of(table, 0)
    zombie = open_stream(table)
    (gone,) = expire(table.home, table.shard_ids(), BeforePosition(3), shard=shard.id)
    assert gone.upto == 2
    assert manifest_of(shard).replay_after == 2
    assert manifest_of(shard_of(table, 1)).replay_after == 0
    wanted = of_batches([2], [0]) + of_batches(range(3), [1])
    assert ids(table) == wanted
    (record,) = read_expired(table.home, shard.id)
    assert (record["kind"], record["replay_after"], record["upto"], record["before"]) == ("expire", 0, 2, "position 3")
    with pytest.raises(Fenced):
        zombie.commit(Batch(query_id=QUERY, batch_id=3))
    run_batch(open_stream(table), 3, mode="wal")
    assert ids(table) == wanted + of_batches([3])
    assert manifest_of(shard).sealed


def test_everything_that_a_checkpoint_had_goes_and_the_checkpoint_keeps_it(table: Table) -> None:
    table.checkpoint(name="old")
    driver = open_stream(table)
    run_batch(driver, 3, mode="wal")
    gone = expire(table.home, table.shard_ids(), BeforeCheckpoint("old"), stream="s")
    assert {one.upto for one in gone} == {3}
    assert ids(table) == of_batches([3])
    table.collect_garbage(min_age=timedelta(0), apply=True)
    assert ids(headgate.open_table(table.uri, checkpoint="old")) == of_batches(range(3)), "it is pinned"
    table.drop_checkpoint("old")
    found = table.collect_garbage(min_age=timedelta(0), apply=True).found
    assert len([one for one in found if one.kind == "wal entry"]) == 6
    assert ids(table) == of_batches([3])
    run_batch(open_stream(table), 4, mode="wal")
    assert ids(table) == of_batches([3, 4])


def test_ages_are_the_stores(table: Table) -> None:
    hour_ago = time.time() - 3600
    for position in (1, 2):
        os.utime(Path(table.uri) / shard_of(table, 0).wal_key(position), (hour_ago, hour_ago))
    os.utime(Path(table.uri) / shard_of(table, 1).wal_key(2), (hour_ago, hour_ago))
    gone = expire(table.home, table.shard_ids(), OlderThan(timedelta(minutes=30)))
    assert {one.name: one.upto for one in gone} == {"partition:orders:0": 2, "partition:orders:1": 0}
    assert ids(table) == of_batches([2], [0]) + of_batches(range(3), [1]), "an old entry above a young one stays"


def test_all_of_it_may_go_and_never_what_comes_later(table: Table) -> None:
    (gone,) = expire(table.home, table.shard_ids(), BeforePosition(10**6), shard=shard_of(table, 0).id)
    assert gone.upto == 4, "up to the barrier of the one who expires"
    assert ids(table) == of_batches(range(3), [1])
    run_batch(open_stream(table), 3, mode="wal")
    assert ids(table) == of_batches(range(3), [1]) + of_batches([3])


def test_a_stream_with_memtables_is_refused(tmp_path: Path) -> None:
    table = make(tmp_path)
    run_batch(open_stream(table), 0)
    before = objects(table)
    for arguments in ({"stream": "s"}, {"shard": shard_of(table, 0).id}):
        with pytest.raises(InvalidInput, match="does not write WAL only"):
            expire(table.home, table.shard_ids(), OlderThan(timedelta(0)), **arguments)
    with pytest.raises(InvalidInput, match="No shard of a WAL-only stream"):
        expire(table.home, table.shard_ids(), OlderThan(timedelta(0)))
    with pytest.raises(NotFound, match="Stream 'x' not found"):
        expire(table.home, table.shard_ids(), OlderThan(timedelta(0)), stream="x")
    assert objects(table) == before


def test_rows_that_would_come_back_are_refused(tmp_path: Path) -> None:
    """The WAL holds the newest row of a key, and its older one is in the base: it must not show again."""
    table = make(tmp_path, key="id")
    lance.write_dataset(pa.Table.from_batches([rows(0)]), table.uri, mode="append")
    table = headgate.open_table(table.uri)
    run_batch(open_stream(table), 0, mode="wal")
    with pytest.raises(InvalidInput, match="would reappear"):
        expire(table.home, table.shard_ids(), OlderThan(timedelta(0)), stream="s")


def test_a_position_needs_a_shard_and_a_checkpoint_must_be_there(table: Table) -> None:
    with pytest.raises(InvalidInput, match="needs a shard"):
        plan_expiry(table.home, table.shard_ids(), BeforePosition(3))
    with pytest.raises(NotFound, match="Checkpoint 'x' not found"):
        plan_expiry(table.home, table.shard_ids(), BeforeCheckpoint("x"))


def test_a_direct_writers_shard_goes_only_where_it_is_named(table: Table) -> None:
    with table.writer(DIRECT, WAL_ONLY) as writer:
        writer.put(rows(-1))
        writer.put(rows(-2))
    shard = table.home.shard(DIRECT)
    assert all(one.shard_id != shard.id for one in plan_expiry(table.home, table.shard_ids(), OlderThan(timedelta(0))))
    writer = table.writer(DIRECT, WAL_ONLY)
    expire(table.home, table.shard_ids(), BeforePosition(2), shard=shard.id)
    with pytest.raises(Fenced):
        writer.put(rows(-3))
    assert ids(table) == of_batches(range(3)) + Counter([-2])
    assert len(read_expired(table.home, shard.id)) == 1


def test_a_crash_after_every_operation_lets_go_no_more_than_was_asked_for(tmp_path: Path) -> None:
    model = make(tmp_path)
    driver = open_stream(model, [0])
    for number in range(3):
        run_batch(driver, number, [0], "wal")
    kept, gone = of_batches([2], [0]), of_batches(range(2), [0])

    def life(of: Table) -> list[Expiry]:
        return expire(of.home, of.shard_ids(), BeforePosition(3), shard=shard_of(of, 0).id)

    number = 0
    while True:
        number += 1
        table = copied(model, tmp_path / f"run-{number}")
        store = faulty(table, crash_after=number)
        with contextlib.suppress(Crash, HeadgateError):
            life(through(table, store))
        shown = ids(table)
        assert shown in (kept, kept + gone)
        if shown == kept:
            assert read_expired(table.home, shard_of(table, 0).id), "the record comes first"
        if number % 4 == 0 or not store.crashed:
            life(table)
            assert ids(table) == kept
            run_batch(open_stream(table, [0]), 3, [0], "wal")
            assert ids(table) == kept + of_batches([3], [0])
        shutil.rmtree(table.uri)
        if not store.crashed:
            break
    assert number > 30
