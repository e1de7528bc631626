"""checkpoint(durable) and open_table(checkpoint=…): exactly the rows of that instant, as long as the name is there."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import headgate
from headgate.checkpoints.jobs.flush import run_here
from headgate.checkpoints.jobs.policy import CompactLimits
from headgate.checkpoints.snapshots.snapshot import read_instant, read_snapshot
from headgate.checkpoints.snapshots.take import take
from headgate.checkpoints.stream.checkpoint import checkpoint_stream
from headgate.connectors.lance.base.tags import held_versions
from headgate.connectors.objects import ObjectInfo, open_store
from headgate.errors import DataLoss, InvalidInput, NotFound, Transient
from headgate.shards.writer import ShardWriter
from headgate.steps import watching
from headgate.table.table import Table, open_table
from tests.support.datasets import LanceFaultyStore, pairs
from tests.support.stores import Operation
from tests.support.tables import (
    CONFIG,
    DIRECT,
    faulty,
    ids,
    make,
    of_batches,
    open_stream,
    rows,
    run_batch,
    shard_of,
    through,
)

MB = 1 << 20


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return make(tmp_path)


def at(table: Table, name: str) -> Table:
    return open_table(table.uri, checkpoint=name)


# -- what it records ---------------------------------------------------------------------


def test_it_flushes_nothing_fences_nobody_and_writes_one_tag_and_one_record(table: Table) -> None:
    driver = open_stream(table)
    run_batch(driver, 0)
    writer = table.writer(DIRECT, CONFIG)
    writer.put(rows(-1))
    store = faulty(table)
    checkpoint = take(through(table, store).home, table.shard_ids(), name="now")
    assert [
        (one.verb, one.key) for one in store.log if one.verb not in ("get", "get_range", "head", "list", "list_folders")
    ] == [("put_if_absent", f"_headgate/{table.table_id}/checkpoints/now/{checkpoint.checkpoint_id}.json")]
    assert held_versions(table.home.store) == {checkpoint.tag: checkpoint.base_version}
    run_batch(driver, 1)
    writer.put(rows(-2))
    assert ids(at(table, "now")) == of_batches([0]) + Counter([-1])
    assert ids(table) == of_batches(range(2)) + Counter([-1, -2])


def test_a_batch_that_commits_after_the_wals_were_listed_and_before_the_log_is_read_is_in_it(table: Table) -> None:
    """On a store that takes its time both are asked side by side."""
    driver = open_stream(table)
    run_batch(driver, 0)
    listed, left = threading.Semaphore(0), [1]

    class Late(LanceFaultyStore):
        def list(self, prefix: str) -> Iterator[ObjectInfo]:
            found = [*super().list(prefix)]
            if prefix.endswith("/wal/"):
                listed.release()
            return iter(found)

        def list_folders(self, prefix: str) -> Iterator[str]:
            if prefix.endswith("/streams/") and left:
                for _ in driver.claims:
                    assert listed.acquire(timeout=60)
                run_batch(driver, left.pop())
            return super().list_folders(prefix)

    assert ids(through(table, Late(open_store(table.uri)))) == of_batches(range(2))
    assert not left


def test_a_batch_that_is_written_and_not_committed_is_not_in_it(table: Table) -> None:
    driver = open_stream(table)
    run_batch(driver, 0, attempts=2)
    table.checkpoint(name="now")
    run_batch(driver, 1)
    table.checkpoint(name="later")
    assert ids(at(table, "now")) == of_batches([0])
    assert ids(at(table, "later")) == of_batches(range(2))


def test_names_are_unique_by_themselves_and_refused_twice(table: Table) -> None:
    made = {table.checkpoint().name for _ in range(3)}
    assert len(made) == 3
    table.checkpoint(name="now")
    before = held_versions(table.home.store)
    with pytest.raises(InvalidInput, match="Checkpoint 'now' exists already"):
        table.checkpoint(name="now")
    assert held_versions(table.home.store) == before, "its tag is gone again"
    with pytest.raises(InvalidInput, match="auto/"):
        table.checkpoint(name="auto/s/1")


@pytest.mark.parametrize("expires", [0, -1, timedelta(0)])
def test_a_time_that_is_over_already_is_refused(table: Table, expires: float | timedelta) -> None:
    with pytest.raises(InvalidInput, match="expires must be"):
        table.checkpoint(expires=expires)
    assert table.checkpoints() == []


def test_it_expires_by_itself_and_its_record_is_collected(table: Table) -> None:
    table.checkpoint(name="short", expires=timedelta(milliseconds=1))
    table.checkpoint(name="long", expires=3600)
    with pytest.raises(InvalidInput, match="'short' expired"):
        at(table, "short")
    table.collect_garbage(min_age=timedelta(0), apply=True)
    table.collect_garbage(min_age=timedelta(0), apply=True)
    assert [one.checkpoint.name for one in table.checkpoints()] == ["long"]
    assert len(held_versions(table.home.store)) == 1


def test_a_dropped_one_is_gone_with_its_tag(table: Table) -> None:
    table.checkpoint(name="now")
    table.drop_checkpoint("now")
    assert table.checkpoints() == []
    assert held_versions(table.home.store) == {}
    with pytest.raises(NotFound):
        table.drop_checkpoint("now")
    with pytest.raises(NotFound, match="Checkpoint 'now' not found"):
        at(table, "now")


# -- reading it back -----------------------------------------------------------------------


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.deep) for seed in range(3, 60))])
def test_every_checkpoint_shows_its_instant_after_whatever_came_later(tmp_path: Path, seed: int) -> None:
    """A random life of batches, puts, deletes, flushes, compactions, collections, restarts. Replay with the seed."""
    chance = random.Random(seed)
    table = make(tmp_path, key="id")
    driver = open_stream(table)
    writer = table.writer(DIRECT, CONFIG)
    now: dict[int, str] = {}
    then: dict[str, dict[int, str]] = {}
    batches = 0
    kinds = ["batch", "put", "delete", "flush", "all", "durable", "collect", "base", "compact", "stop"]
    for number in range(30):
        kind = chance.choice(kinds)
        if kind == "batch":
            run_batch(driver, batches)
            now |= dict.fromkeys(of_batches([batches]), "n")
            batches += 1
        elif kind == "put":
            chosen = [-chance.randrange(1, 20) for _ in range(3)]
            writer.put(rows(*chosen, note=f"put {number}"))
            now |= dict.fromkeys(chosen, f"put {number}")
        elif kind == "delete":
            gone = -chance.randrange(1, 20)
            writer.delete(pa.record_batch({"id": pa.array([gone], pa.int64())}))
            now.pop(gone, None)
        elif kind == "flush":
            writer.flush_memtable()
            while jobs := driver.flush_jobs(1):
                driver.flushed(run_here(jobs))
        elif kind == "all":
            name = checkpoint_stream(driver, table.shard_ids(), run_here, max_bytes=MB, keep=100).name
            then[name] = dict(now)
        elif kind == "durable":
            then[table.checkpoint().name] = dict(now)
        elif kind == "base":
            lance.write_dataset(pa.Table.from_batches([rows(10**9 + number)]), table.uri, mode="append")
            now[10**9 + number] = "direct"
        elif kind == "compact":
            driver.compact(CompactLimits())
        elif kind == "stop":
            then[table.checkpoint("all").name] = dict(now)
            table.compact()
            driver, writer = open_stream(table), table.writer(DIRECT, CONFIG)
        else:
            table.collect_garbage(min_age=timedelta(0), apply=True)
    assert then, "the seed takes no checkpoint"
    for name, wanted in then.items():
        shown = at(table, name)
        assert pairs(shown.scan()) == sorted(wanted.items()), name
        asked = sorted(wanted)[:3]
        assert pairs(shown.get(pa.record_batch({"id": pa.array(asked, pa.int64())}))) == [(i, wanted[i]) for i in asked]
    assert pairs(table.scan()) == sorted(now.items())


def test_columns_are_those_of_the_checkpoint(table: Table) -> None:
    with table.writer(DIRECT, CONFIG) as writer:
        writer.put(rows(1))
        writer.flush_memtable()
    table.checkpoint(name="now")
    lance.dataset(table.uri).add_columns(pa.field("more", pa.int64()))
    assert open_table(table.uri).schema.names == ["id", "note", "more"]
    then = at(table, "now")
    assert then.schema.names == ["id", "note"]
    assert then.scan().read_all().to_pydict() == {"id": [1], "note": ["direct"]}


def test_nothing_can_be_written_to_it(table: Table) -> None:
    with table.writer(DIRECT, CONFIG) as writer:
        writer.put(rows(1))
    table.checkpoint(name="now")
    then = at(table, "now")
    before = {info.key for info in table.home.store.list("")}
    refused: list[Callable[[], object]] = [
        lambda: then.writer(DIRECT),
        lambda: ShardWriter.open(then.home, then.home.shard(DIRECT).id),
        lambda: open_stream(then),
        lambda: then.checkpoint(),
        lambda: then.checkpoint("all"),
        lambda: then.drop_checkpoint("now"),
        lambda: then.collect_garbage(min_age=timedelta(0), apply=True),
        lambda: then.build_index("note"),
    ]
    for write in refused:
        with pytest.raises(InvalidInput, match="opened at checkpoint 'now', which is read-only"):
            write()
    assert {info.key for info in table.home.store.list("")} == before
    assert [(one.name, one.epoch) for one in then.shards(names=[DIRECT])] == [(DIRECT, 1)]


def test_something_that_went_anyway_is_told_with_the_checkpoints_name(table: Table) -> None:
    with table.writer(DIRECT, CONFIG) as writer:
        writer.put(rows(1))
    table.checkpoint(name="now")
    shard = table.home.shard(DIRECT)
    shard.wal.delete(shard.wal_key(1))
    with pytest.raises(DataLoss, match=r"checkpoint=now"):
        at(table, "now").scan()


# -- the instant -----------------------------------------------------------------------------


@pytest.mark.parametrize("folder", ["absent", "there"])
def test_a_batch_that_claims_a_new_shard_while_the_table_is_read_counts_whole_or_not_at_all(
    table: Table, folder: str
) -> None:
    """The shards are listed first. Without another look the batch would be there without its new shard's rows. A
    folder is there before its first manifest is.
    """
    driver = open_stream(table, [0])
    run_batch(driver, 0, [0])
    known = table.shard_ids() | ({shard_of(table, 1).id} if folder == "there" else set())

    def grow(step: str) -> None:
        if step == "logs" and driver.head.last is not None and driver.head.last.batch_id == 0:
            run_batch(driver, 1, [0, 1])

    assert sorted(
        watching(grow)(read_snapshot)(table.home, known).scan().read_all().column("id").to_pylist()
    ) == sorted((of_batches([0], [0]) + of_batches([1], [0, 1])).elements())
    assert {one.shard.id for one in read_instant(table.home, known).shards} == {
        shard_of(table, 0).id,
        shard_of(table, 1).id,
    }


def test_a_listed_entry_that_is_gone_is_data_loss(table: Table) -> None:
    driver = open_stream(table, [0])
    run_batch(driver, 0, [0])
    shard = shard_of(table, 0)
    shard.wal.delete(shard.wal_key(1))
    with pytest.raises(DataLoss, match="position 1, which a commit record lists"):
        table.checkpoint()
    assert table.checkpoints() == []


@pytest.mark.parametrize("step", ["logs", "tails", "base", "tag"])
def test_a_flush_and_a_collection_that_wait_for_nobody_are_met_by_starting_again(table: Table, step: str) -> None:
    """Garbage collection with no age at all: what the pin names is gone before its record is there."""
    driver = open_stream(table, [0])
    run_batch(driver, 0, [0])
    acted = False

    def flush(at: str) -> None:
        nonlocal acted
        if at == step and not acted:
            acted = True
            driver.close_gaps(driver.settle(run_here, MB))
            table.collect_garbage(min_age=timedelta(0), apply=True)

    with watching(flush):
        take(table.home, table.shard_ids(), name="now")
    assert acted
    assert ids(at(table, "now")) == of_batches([0], [0])
    assert len(held_versions(table.home.store)) == 1


def test_what_is_lost_between_the_record_and_the_look_drops_the_record(table: Table) -> None:
    driver = open_stream(table, [0])
    run_batch(driver, 0, [0])
    run_batch(driver, 1, [0])
    shard = shard_of(table, 0)
    lost: list[str] = []

    def lose(step: str) -> None:
        if step == "check" and not lost:
            lost.append(table.checkpoints()[0].checkpoint.checkpoint_id)
            driver.close_gaps(driver.settle(run_here, MB))
            shard.wal.delete(shard.wal_key(1))

    with watching(lose):
        checkpoint = take(table.home, table.shard_ids(), name="now")
    assert checkpoint.checkpoint_id not in lost
    assert [one.checkpoint for one in table.checkpoints()] == [checkpoint]
    assert ids(at(table, "now")) == of_batches([0, 1], [0])


def test_a_table_that_is_flushed_under_every_try_is_told_to_be_busy(table: Table) -> None:
    with table.writer(DIRECT, CONFIG) as writer:

        def flush(step: str) -> None:
            if step == "check":
                writer.put(rows(1))
                writer.flush_memtable()

        with pytest.raises(Transient, match="Pinning the table failed"):
            with watching(flush):
                take(table.home, table.shard_ids(), name="busy")
    assert table.checkpoints() == []
    assert held_versions(table.home.store) == {}


def test_a_base_version_that_is_cleaned_up_before_the_tag_is_met_by_starting_again(table: Table) -> None:
    """Native's cleanup knows nothing of pins that are not there yet."""
    with table.writer(DIRECT, CONFIG) as writer:
        writer.put(rows(1))
    cleaned: list[int] = []

    def clean(step: str) -> None:
        if step == "tag" and not cleaned:
            lance.write_dataset(pa.Table.from_batches([rows(2)]), table.uri, mode="append")
            dataset = lance.dataset(table.uri)
            cleaned.append(dataset.cleanup_old_versions(older_than=timedelta(0)).old_versions)

    with watching(clean):
        checkpoint = take(table.home, table.shard_ids(), name="now")
    assert cleaned[0] > 0
    assert checkpoint.base_version == lance.dataset(table.uri).version
    assert ids(at(table, "now")) == Counter([1, 2])


def test_lances_own_cleanup_keeps_what_a_checkpoint_names(table: Table) -> None:
    lance.write_dataset(pa.Table.from_batches([rows(1)]), table.uri, mode="append")
    table.checkpoint(name="now")
    dataset = lance.dataset(table.uri)
    dataset.delete("id = 1")
    dataset.cleanup_old_versions(older_than=timedelta(0), error_if_tagged_old_versions=False)
    assert ids(table) == Counter()
    assert ids(at(table, "now")) == Counter([1])


def test_reading_costs_no_row(table: Table) -> None:
    """An instant of a long tail is heads and lists, never entries."""
    driver = open_stream(table, [0])
    for number in range(5):
        run_batch(driver, number, [0])
    store = faulty(table)
    read_instant(through(table, store).home, table.shard_ids())
    entries: list[Operation] = [one for one in store.log if one.verb == "get" and "/wal/" in one.key]
    assert entries == []
    assert headgate.open_table(table.uri).scan().read_all().num_rows == sum(of_batches(range(5), [0]).values())
