"""What a ledger reads of a commit log: every record once, whatever is folded meanwhile; and what is gone is told."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from headgate.checkpoints.fsck.consumers import check_consumers
from headgate.checkpoints.jobs.flush import run_here
from headgate.checkpoints.log.pins import PinStore
from headgate.checkpoints.stream.driver import StreamDriver
from headgate.errors import Fenced
from headgate.shards.wal.listing import positions
from headgate.streaming.delta import ledger_feed
from headgate.streaming.delta.ledger_feed import LedgerFeed, LedgerPin, LogChunk
from headgate.streaming.delta.ledger_rows import Folded, LedgerRecord, rows_of
from headgate.table.fsck import fsck
from headgate.table.table import Table
from tests.support.life import TOPIC
from tests.support.tables import SIZE, make, open_stream, run_batch, shard_of, tip_of

NOW = timedelta(0)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return make(tmp_path)


def feed_of(table: Table) -> LedgerFeed:
    return LedgerFeed(table.home, "s")


def batches(chunk: LogChunk) -> list[int]:
    return [part.record.batch_id for part in chunk.parts if isinstance(part, LedgerRecord)]


def grown(driver: StreamDriver, numbers: range, fold: bool = False) -> None:
    for number in numbers:
        run_batch(driver, number)
        if fold:
            driver.close_gaps(driver.settle(run_here, 1 << 30))
            driver.fold()


def test_records_come_once_in_order_with_epochs_and_times(table: Table) -> None:
    driver, feed = open_stream(table), feed_of(table)
    assert feed.read(0) == LogChunk(1)
    grown(driver, range(3))
    first = feed.read(0, most=2)
    assert (batches(first), first.upto) == ([0], 2)
    driver = open_stream(table)
    grown(driver, range(3, 5))
    rest = feed.read(first.upto)
    assert batches(rest) == [1, 2, 3, 4]
    assert feed.read(rest.upto) == LogChunk(rest.upto)
    dated = [part for part in (*first.parts, *rest.parts) if isinstance(part, LedgerRecord)]
    shard = shard_of(table, 0).id
    assert [one.epochs[shard] for one in dated] == [1, 1, 1, 2, 2]
    assert all(abs(datetime.now(UTC) - one.committed_at) < timedelta(hours=1) for one in dated)
    assert all(one.opened_at is not None for one in dated)
    # Another reader, which begins in the middle, finds the open record below.
    assert [one.epochs for one in feed_of(table).read(rest.upto - 1).parts if isinstance(one, LedgerRecord)] == [
        dated[-1].epochs
    ]


def test_a_chunk_ends_where_its_records_make_many_rows(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = open_stream(table)
    grown(driver, range(3))
    driver = open_stream(table)
    grown(driver, range(3, 6))
    whole = feed_of(table).read(0)
    made = [rows_of(part.record) for part in whole.parts if isinstance(part, LedgerRecord)]
    monkeypatch.setattr(ledger_feed, "ROWS", sum(made[:2]) - 1)
    feed, at, more = feed_of(table), 0, True
    parts: list[object] = []
    sizes: list[int] = []
    while more:
        chunk = feed.read(at, most=100)
        at, more = chunk.upto, chunk.more
        parts += chunk.parts
        sizes.append(chunk.records)
    assert tuple(parts) == whole.parts
    assert sizes == [2, 2, 2]
    monkeypatch.setattr(ledger_feed, "ROWS", 0)
    assert feed_of(table).read(0).records == 1, "one record is always taken"


def test_what_the_ledger_does_not_have_outlives_folds_and_collection_and_holds_no_entry(table: Table) -> None:
    driver, feed = open_stream(table), feed_of(table)
    pin = LedgerPin(table.home, "s", "/lake/ledger")
    pin.take()
    grown(driver, range(2))
    done = feed.read(0).upto
    pin.move(done, now=True)
    grown(driver, range(2, 7), fold=True)
    table.collect_garbage(min_age=NOW, apply=True)
    assert batches(feed.read(done)) == [2, 3, 4, 5, 6]
    shard = shard_of(table, 0)
    # Barrier and tip stay; the entries went, though the ledger has not seen their records.
    assert positions(shard) == {0, tip_of(shard) - 1}
    assert check_consumers(table.home, "").findings == ()
    assert [one.pin.note for one in PinStore(table.home.records, table.uri).list()] == ["ledger /lake/ledger"]
    pin.complain("no room")
    assert [one.pin.note for one in PinStore(table.home.records, table.uri).list()] == ["ledger /lake/ledger: no room"]


def test_a_later_run_of_a_ledger_fences_the_earlier_and_goes_on_holding(table: Table) -> None:
    driver = open_stream(table)
    grown(driver, range(2))
    first, second = (LedgerPin(table.home, "s", "/lake/ledger") for _ in range(2))
    first.take()
    first.move(2, now=True)
    second.take()
    assert [one.pin.done for one in PinStore(table.home.records, table.uri).list()] == [{"s": 2}]
    with pytest.raises(Fenced):
        first.move(3, now=True)


def test_records_that_are_gone_are_told_with_the_offsets_that_they_had_read(table: Table) -> None:
    driver, feed = open_stream(table), feed_of(table)
    grown(driver, range(6), fold=True)
    assert feed.lost_upto() > 0
    folded, *rest = feed.read(0).parts
    assert isinstance(folded, Folded)
    first = next(part.record for part in rest if isinstance(part, LedgerRecord))
    until = {(part.topic, part.partition): part.start for part in first.sources}
    assert folded.ranges == {(TOPIC, partition): (0, until[TOPIC, partition]) for partition in (0, 1)}
    assert folded.sequence == first.sequence - 1 == feed.lost_upto()
    # A ledger that has the first batch lacks only what came after it.
    folded, *_ = feed.read(2, lambda: {(TOPIC, 0): SIZE, (TOPIC, 1): SIZE}).parts
    assert isinstance(folded, Folded)
    assert folded.ranges[TOPIC, 0] == (SIZE, until[TOPIC, 0])
    assert not any(isinstance(part, Folded) for part in feed.read(folded.sequence).parts)


def test_a_clone_has_an_archive_of_its_own_and_tells_what_came_before_it(table: Table, tmp_path: Path) -> None:
    driver = open_stream(table)
    LedgerPin(table.home, "s", "/lake/ledger", hold=0.0).take()
    grown(driver, range(3), fold=True)
    table.collect_garbage(min_age=NOW, apply=True)
    assert batches(feed_of(table).read(0)) == [0, 1, 2]
    clone = table.clone(str(tmp_path / "clone"))
    feed = feed_of(clone)
    assert not feed.archive.has_begun()
    folded, *rest = feed.read(0).parts
    assert isinstance(folded, Folded)
    assert folded.ranges == {(TOPIC, partition): (0, 3 * SIZE) for partition in (0, 1)}
    assert rest == []
    LedgerPin(clone.home, "s", "/lake/other", hold=0.0).take()
    grown(open_stream(clone), range(3, 6), fold=True)
    clone.collect_garbage(min_age=NOW, apply=True)
    assert feed.archive.names()
    chunk = feed_of(clone).read(0)
    assert (chunk.parts[0], batches(chunk)) == (folded, [3, 4, 5])
    assert fsck(clone.uri).findings == fsck(table.uri).findings == ()
