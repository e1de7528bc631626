"""fsck finds nothing on tables that only headgate and native Lance wrote to, whatever they have been through."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import headgate
from headgate.checkpoints.fsck.check import check_table
from headgate.checkpoints.log.archive.archive import LogArchive
from headgate.checkpoints.log.commit_log import CommitLog
from headgate.checkpoints.offline.retention import BeforePosition, expire
from headgate.checkpoints.stream.driver import StreamDriver
from headgate.errors import Fenced
from headgate.shards import names
from headgate.shards.wal.listing import list_wal
from headgate.shards.wal.tailer import WalTailer
from headgate.shards.writer import ShardWriter
from headgate.steps import watching
from headgate.table.create import create_table
from headgate.table.fsck import TableReport, fsck
from headgate.table.table import Table
from tests.checkpoints.fsck.damages import record_file
from tests.support.closing import Background
from tests.support.datasets import LanceFaultyStore
from tests.support.histories import (
    DIRECT,
    STREAM,
    WAL_ONLY,
    batches,
    collect,
    copied,
    dead_attempt,
    flush,
    make,
    open_stream,
    pin,
    rows,
    shard_of,
)
from tests.support.life import SCHEMA, ranges_of
from tests.support.stores import Crash
from tests.support.tables import claimed


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """Made once; tests go on with a copy."""
    return make(tmp_path_factory.mktemp("fsck") / "table")


@pytest.fixture
def table(whole: Table, tmp_path: Path) -> Table:
    return copied(whole, tmp_path / "table")


def holds(table: Table) -> TableReport:
    report = fsck(table.uri)
    assert [f"{one.code} at {one.place}: {one.what}" for one in report.findings] == []
    return report


def test_a_new_table(tmp_path: Path) -> None:
    table = create_table(str(tmp_path / "new"), SCHEMA)
    assert holds(table).checked.objects.get("entries", 0) == 0


def test_an_open_record_that_came_late_into_the_slot_of_a_collected_batch(tmp_path: Path) -> None:
    """Its opener had given that request up and put another one; it counts for nobody (R6)."""
    table = create_table(str(tmp_path / "new"), SCHEMA, primary_key="id")
    batches(open_stream(table), [0, 1])
    second = open_stream(table)
    second.fold()
    log = CommitLog(table.home.records, STREAM, table.uri)
    opened = second.head.opened
    assert opened is not None
    assert opened.sequence == 4
    table.home.records.delete(f"{log.folder}/log/{2:020d}.json")
    log.put(replace(opened, sequence=2, record_id="late"))
    os.utime(record_file(table, 2), (later := time.time() + 60, later))
    holds(table)


def test_streams_with_restarts_and_dead_attempts_flushes_folds_and_direct_writers(table: Table) -> None:
    before = {path: path.stat().st_mtime_ns for path in Path(table.uri).rglob("*")}
    looked_at = holds(table).checked.objects
    assert {path: path.stat().st_mtime_ns for path in Path(table.uri).rglob("*")} == before, "fsck only reads"
    entries = sum(names.wal_position(path.name) is not None for path in Path(table.uri).glob("_mem_wal/*/wal/*"))
    manifests = len(list(Path(table.uri).glob("_mem_wal/*/manifest/*.binpb")))
    records = len(list(Path(table.uri).glob("_headgate/*/streams/*/*/*.json")))
    assert (looked_at["entries"], looked_at["manifests"], looked_at["records"]) == (entries, manifests, records)
    assert looked_at["sstables"] == 5
    assert looked_at["dead_letter_entries"] > 0


def test_a_table_without_a_key(tmp_path: Path) -> None:
    holds(make(tmp_path / "table", keyed=False))


def test_a_collected_table_with_holes_and_barriers_below_replay_after(table: Table) -> None:
    collect(table)
    listing = list_wal(shard_of(table, 0))
    assert listing.gaps(0, listing.highest) != [], "entries below replay_after are gone"
    assert listing.has(0), "barriers stay"
    holds(table)


def test_a_stream_with_an_archive_whatever_was_collected_before_and_after(table: Table) -> None:
    collect(table)
    archive = LogArchive(table.home.records, STREAM, table.uri)
    archive.begin()
    assert archive.since() > 0
    holds(table)
    for number in (9, 10):
        driver = open_stream(table)
        batches(driver, [number])
        driver.fold()
        collect(table)
    assert holds(table).checked.objects["archives"] == len(archive.names()) > 0


def test_a_checkpoint_and_a_table_that_went_on(table: Table) -> None:
    pin(table)
    driver = open_stream(table)
    batches(driver, [9])
    flush(driver)
    driver.fold()
    with table.writer(DIRECT) as writer:
        writer.put(rows(10**9 + 20))
        writer.flush_memtable()
    collect(table)
    assert holds(table).checked.objects["checkpoints"] == 1


def test_a_table_that_was_flushed_to_the_last_entry_compacted_and_collected(table: Table) -> None:
    table.flush()
    table.compact()
    holds(table)
    collect(table)
    holds(table)


@pytest.mark.parametrize("kind", ["shallow", "deep", "with a WAL store"])
def test_a_clone_before_and_after_it_went_on(table: Table, tmp_path: Path, kind: str) -> None:
    wal_uri = str(tmp_path / "wal") if kind == "with a WAL store" else None
    collect(table)
    clone = table.clone(str(tmp_path / "clone"), deep=kind == "deep", wal_uri=wal_uri, names=[DIRECT])
    holds(clone)
    holds(table)
    batches(open_stream(clone), [9])
    with clone.writer(DIRECT, WAL_ONLY) as writer:
        writer.put(rows(10**9 + 30))
    collect(clone)
    holds(clone)


def test_a_wal_whose_older_entries_were_let_go(tmp_path: Path) -> None:
    table = create_table(str(tmp_path / "table"), SCHEMA, sharding=headgate.by_partition())
    batches(open_stream(table), [0, 1, 2])
    shard = shard_of(table, 0)
    (gone,) = expire(table.home, table.shard_ids(), BeforePosition(3), shard=shard.id)
    assert gone.upto == 2
    holds(table)
    collect(table)
    assert not list_wal(shard).has(1)
    holds(table)


def test_a_stream_that_died_before_its_first_open_record(tmp_path: Path) -> None:
    """Its shards have an owner, and there is no log of it."""
    table = create_table(str(tmp_path / "table"), SCHEMA)

    def die(step: str) -> None:
        if step == "open record":
            raise Crash

    with pytest.raises(Crash):
        with watching(die):
            StreamDriver.open(table.home, "s", "q", table.sharding.known_names())
    assert shard_owner(table) == "s"
    holds(table)


def test_an_opener_that_was_fenced_puts_its_barrier_late(tmp_path: Path) -> None:
    """Above the rows of its successor, with a lower epoch and no row."""
    table = create_table(str(tmp_path / "table"), SCHEMA)
    with table.writer("single", WAL_ONLY) as first:
        first.put(rows(0))
    successor = []

    def overtaken(step: str) -> None:
        if step == "tip":
            successor.append(table.writer("single", WAL_ONLY))
            successor[0].put(rows(1))

    with pytest.raises(Fenced):
        with watching(overtaken):
            ShardWriter.open(table.home, table.home.shard("single").id, WAL_ONLY)
    successor[0].put(rows(2))
    successor[0].close()
    epochs = [one.entry.header.epoch for one in WalTailer(table.home.shard("single")).read(1)]
    assert epochs == [1, 3, 3, 2, 3]
    holds(table)
    assert table.scan().read_all().num_rows == 3


def shard_owner(table: Table) -> str | None:
    (one,) = claimed(table)
    return one.owner


def test_a_shard_that_native_lance_wrote_to(tmp_path: Path) -> None:
    table = create_table(str(tmp_path / "table"), SCHEMA, primary_key="id")
    shard = table.home.shard("single")
    for number in range(2):
        with table.writer("single") as writer:
            writer.put(rows(number))
        native = lance.dataset(table.uri).mem_wal_writer(str(shard.id), max_memtable_rows=100)
        native.put(pa.Table.from_batches([rows(10 + number)]))
        native.close()
    assert holds(table).checked.objects["entries"] > 4


def test_what_a_flush_and_a_collection_took_away_between_two_reads_is_no_finding(table: Table) -> None:
    store = LanceFaultyStore(table.home.store)
    shard = shard_of(table, 0)
    first = store.stall("list", f"{shard.id}/wal")
    check = Background(
        lambda: check_table(replace(table.home, store=store, wal_store=store), table.shard_ids()).findings
    )
    first.wait()
    # The manifest has been read: everything above its replay_after must be there, and now it is not any more.
    flush(open_stream(table))
    collect(table)
    again = store.stall("list", f"{shard.id}/wal")
    first.release()
    again.wait()  # the first look has found something: it looks again
    again.release()
    assert check.result() == ()


def test_a_stream_that_commits_flushes_folds_and_collects_meanwhile(table: Table) -> None:
    """What one look finds because the table moved on under it is not found by the second."""
    stop = threading.Event()
    problems: list[BaseException] = []

    def live() -> None:
        number = 9
        try:
            while not stop.is_set():
                driver = open_stream(table)
                for _ in range(3):
                    batches(driver, [number])
                    number += 1
                dead_attempt(driver, ranges_of(number))
                driver = open_stream(table)
                flush(driver)
                driver.fold()
                collect(table)
        except BaseException as error:
            problems.append(error)

    thread = threading.Thread(target=live)
    thread.start()
    try:
        for _ in range(6):
            found = check_table(table.home, table.shard_ids()).findings
            assert [f"{one.code} at {one.place}: {one.what}" for one in found] == []
    finally:
        stop.set()
        thread.join()
    assert problems == []
    holds(table)
