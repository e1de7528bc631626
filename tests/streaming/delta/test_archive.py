"""A ledger that is made anew has the rows that were there before, to the row: whatever was folded, collected, rewound
or crashed meanwhile. Here a ledger is a list of rows; tests/delta has the real one.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.checkpoints.fsck.archive import check_archive
from headgate.checkpoints.fsck.consumers import check_consumers
from headgate.checkpoints.gc.collect import collect
from headgate.checkpoints.log import fold as folding
from headgate.checkpoints.log.archive import format as archived
from headgate.checkpoints.log.commit_log import CommitLog
from headgate.checkpoints.log.fold import put_fold, tidy
from headgate.checkpoints.log.opened_log import OpenedLog
from headgate.checkpoints.log.records import Batch, BatchRecord, LogRecord, OffsetMove, RewindRecord
from headgate.checkpoints.log.state import Head, empty, replayed
from headgate.connectors.objects.memory import MemoryStore
from headgate.connectors.objects.port import ObjectStore
from headgate.errors import Corrupt, HeadgateError
from headgate.parallel import Pool
from headgate.shards.sharding import single
from headgate.shards.wal.entry import SourceRange
from headgate.streaming.delta.ledger_feed import LedgerFeed, LedgerPin
from headgate.streaming.delta.ledger_lost import lost_ranges, with_lost
from headgate.streaming.delta.ledger_rows import Folded, LedgerKey, LedgerRecord, TopicPartition, ledger_table
from tests.support.life import home_of
from tests.support.logs import AT_ONCE, CLAIMS, SHARD, batch_record, open_record, part
from tests.support.stores import Crash, FaultyStore

STREAM = "orders"
NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
NOW = timedelta(0)
SIZE = 10


class Life:
    """A stream of one partition, its log, and its ledger."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        self.home = home_of(store)
        self.log = CommitLog(self.home.records.retrying(AT_ONCE), STREAM, self.home.uri)
        self.feed = LedgerFeed(self.home, STREAM)
        self.pin = LedgerPin(self.home, STREAM, "/lake/ledger", hold=0.0)
        """It has always expired: records go as if nobody held them."""
        self.driver = self.open()
        self.offset = self.position = self.number = 0
        self.done = 0
        self.rows: list[dict[str, Any]] = []

    def open(self) -> OpenedLog:
        return self.log.open("q", CLAIMS)

    def batch(self) -> None:
        self.position += 1
        ranges = (SourceRange("t", 0, self.offset, self.offset + SIZE),)
        parts = {"s0": part(self.position)}
        self.driver.commit(Batch(query_id="q", batch_id=self.number, sources=ranges, shards=parts), {SHARD: 0})
        self.number, self.offset = self.number + 1, self.offset + SIZE

    def restart(self) -> None:
        self.driver = self.open()

    def rewind(self) -> None:
        if ("t", 0) in self.driver.head.ends:
            self.driver.rewind((OffsetMove("t", 0, self.offset, self.offset // 2),))
            self.offset //= 2

    def fold(self) -> None:
        put_fold(self.log, self.log.read(), {})
        tidy(self.home.records, self.log)

    def collect(self) -> None:
        collect(self.home, [], min_age=NOW, apply=True)

    def crash(self, after: int) -> None:
        """A collection dies."""
        dying = FaultyStore(self.store, crash_after=after)
        with contextlib.suppress(Crash, HeadgateError):
            collect(home_of(dying), [], min_age=NOW, apply=True)

    def follow(self, most: int | None = None) -> None:
        """The ledger reads on, and in the end all."""
        self.pin.take()
        while True:
            chunk = self.feed.read(self.done, self.ends, most)
            self.rows += self.rows_of(chunk.parts)
            self.done = chunk.upto
            if most is not None or not chunk.more:
                return

    def ends(self) -> dict[TopicPartition, int]:
        last = [row for row in self.rows if row["topic"] is not None]
        return {(row["topic"], row["partition"]): row["until_offset"] for row in last}

    def anew(self, most: int | None) -> list[dict[str, Any]]:
        """What a rebuild of a dropped ledger makes."""
        feed, ends = LedgerFeed(self.home, STREAM), dict[TopicPartition, int]()
        done, found, more = 0, list[dict[str, Any]](), True
        while more:
            chunk = feed.read(done, ends.copy, most)
            found += self.rows_of(chunk.parts)
            ends |= chunk.ends()
            done, more = chunk.upto, chunk.more
        return found

    def rows_of(self, parts: Sequence[LedgerRecord | Folded]) -> list[dict[str, Any]]:
        key = LedgerKey("id", self.home.uri, STREAM)
        found: list[dict[str, Any]] = ledger_table(key, single(), parts).to_pylist()
        return found


@pytest.fixture
def life(store: ObjectStore) -> Life:
    return Life(store)


def findings(life: Life) -> set[str]:
    """The codes of what fsck finds of archive and consumers."""
    with Pool("test", 4) as pool:
        look = check_archive(life.home.records, STREAM, life.home.uri, "", pool)
    return {one.code for one in (*look.findings, *check_consumers(life.home, "").findings)}


def brief(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["kind"], row["sequence"], row["from_offset"], row["until_offset"]


def kinds(rows: list[dict[str, Any]]) -> list[str]:
    return [row["kind"] for row in rows]


def test_a_dropped_ledger_comes_back_to_the_row(life: Life) -> None:
    for _ in range(3):
        life.follow()
        for _ in range(4):
            life.batch()
        life.fold()
        life.collect()
        life.restart()
    life.follow()
    assert life.log.sequences() == {1, 6, 11, 15, 16}, "open records, and what was the tip of the last collection"
    assert kinds(life.rows) == ["batch"] * 12
    assert {row["epoch"] for row in life.rows} == {1}
    assert all(row["committed_at"] and row["opened_at"] for row in life.rows)
    for most in (None, 1, 2, 5, 1000):
        assert life.anew(most) == life.rows
    assert life.feed.lost_upto() == 0


def test_a_ledger_that_was_away_for_longer_than_its_pin_holds_catches_up_from_the_archive(life: Life) -> None:
    life.batch()
    life.follow()
    for _ in range(6):
        life.batch()
    life.fold()
    life.collect()
    assert life.log.sequences() == {1, 8}
    life.pin = LedgerPin(life.home, STREAM, "/lake/ledger")
    life.pin.take()
    # The records that the new pin holds are in the archive; no consumer is broken.
    assert findings(life) == set()
    life.follow(most=4)
    life.follow()
    assert kinds(life.rows) == ["batch"] * 7
    assert life.anew(None) == life.rows


def test_what_was_collected_before_there_was_a_ledger_is_told_and_told_so_again(life: Life) -> None:
    for _ in range(3):
        life.batch()
    life.rewind()
    for _ in range(3):
        life.batch()
    life.fold()
    life.collect()
    life.batch()
    life.follow()
    # A rewind stays in the log, and each reading has offsets of its own.
    assert [told for told in map(brief, life.rows) if told[0] == "folded"] == [
        ("folded", 4, 0, 30),
        ("folded", 7, 15, 35),
    ]
    assert [told[1:] for told in map(brief, life.rows) if told[0] == "batch"] == [(8, 35, 45), (9, 45, 55)]
    life.rewind()
    for _ in range(3):
        life.batch()
    life.fold()
    life.collect()
    life.follow()
    for most in (None, 1, 3):
        assert life.anew(most) == life.rows
    assert life.feed.lost_upto() == 7
    assert findings(life) == set()


def test_an_object_that_is_missing_costs_only_its_own_batches_and_a_damaged_one_is_an_error(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archived, "MAX_RECORDS", 2)
    life.follow()
    for _ in range(7):
        life.batch()
    life.fold()
    life.collect()
    life.follow()
    archive = life.feed.archive
    middle = archive.names()[1]
    assert middle.span == (4, 5)
    life.home.records.delete(archive.key(middle))
    rows = life.anew(None)
    assert rows[:2] + rows[3:] == life.rows[:2] + life.rows[4:]
    assert (rows[2]["kind"], rows[2]["sequence"], rows[2]["from_offset"], rows[2]["until_offset"]) == (
        "folded",
        5,
        20,
        40,
    )
    assert life.feed.lost_upto() == 5
    life.home.records.put_overwrite(archive.key(archive.names()[0]), b"junk")
    with pytest.raises(Corrupt, match="archive"):
        life.anew(None)
    assert findings(life) == {"archive-hole", "archive-damaged"}


STEPS = st.one_of(
    st.sampled_from(["batch", "batch", "batch", "restart", "rewind", "fold", "collect"]).map(lambda name: (name, 0)),
    st.tuples(st.just("crash"), st.integers(1, 40)),
    st.tuples(st.just("follow"), st.integers(1, 4)),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(STEPS, max_size=30), st.integers(1, 5), st.integers(1, 4))
def test_any_history_leaves_a_ledger_that_is_made_anew_to_the_row(
    steps: list[tuple[str, int]], lot: int, most: int
) -> None:
    """Each offset of each reading is in a row, and none in two."""
    name = uuid.uuid4().hex
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(folding, "LOT", lot)
        patched.setattr(archived, "MAX_RECORDS", 3)
        life = Life(MemoryStore(f"memory://{name}"))
        for step, argument in steps:
            getattr(life, step)(*([argument] if argument else []))
        life.follow()
        assert life.anew(most) == life.anew(None) == life.rows
        assert findings(life) == set()
        check_every_reading(life)
    MemoryStore.drop(name)


def check_every_reading(life: Life) -> None:
    head = life.log.read().head
    read = [(one.start, one.until) for one in head.passes]
    if ("t", 0) in head.ends and head.starts["t", 0] != head.ends["t", 0]:
        read.append((head.starts["t", 0], head.ends["t", 0]))
    ranges = [(row["from_offset"], row["until_offset"]) for row in life.rows if row["topic"] is not None]
    joined: list[tuple[int, int]] = []
    for start, until in ranges:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], until)
        else:
            joined.append((start, until))
    assert joined == read


# -- pure ------------------------------------------------------------------------------------


def rewound(sequence: int, before: int | None, after: int) -> RewindRecord:
    return RewindRecord(
        record_id=f"w{sequence}",
        sequence=sequence,
        stream="orders",
        open_id="o1",
        query_id="q",
        offsets=(OffsetMove("t", 0, before, after),),
    )


def told(done: int, records: list[LogRecord], head: Head, ends: dict[TopicPartition, int]) -> list[tuple[Any, ...]]:
    dated = {one.sequence: LedgerRecord(one, NOON) for one in records if isinstance(one, BatchRecord)}
    parts = with_lost(done, records, dated, head, ends)
    return [
        (part.sequence, part.ranges.get(("t", 0))) if isinstance(part, Folded) else (part.record.sequence,)
        for part in parts
    ]


def test_records_that_are_gone_are_told_between_those_that_are_there() -> None:
    whole: list[LogRecord] = [open_record(), *(batch_record(n, n - 2) for n in range(2, 10))]
    head = replayed(empty("orders"), whole).head
    nobody: dict[TopicPartition, int] = {}
    assert told(0, whole, head, nobody) == [(n,) for n in range(2, 10)]
    assert told(0, [whole[0], *whole[3:]], head, nobody) == [(3, (0, 20)), *((n,) for n in range(4, 10))]
    assert told(0, [*whole[:2], *whole[5:]], head, nobody)[:2] == [(2,), (5, (10, 40))]
    assert told(2, whole[4:], head, {("t", 0): 10})[0] == (4, (10, 30))
    assert told(0, [whole[0], open_record(5), whole[8]], head, nobody) == [(8, (0, 70)), (9,)], (
        "one, over an open record"
    )
    assert told(0, [whole[0], open_record(9)], head, nobody) == [(8, (0, 80))], "up to where the stream stands"


def test_each_reading_between_rewinds_is_told_by_itself() -> None:
    whole: list[LogRecord] = [open_record(), batch_record(2, 0), batch_record(3, 1), rewound(4, 20, 10)]
    whole += [batch_record(5, 1), batch_record(6, 2), rewound(7, 30, 0), batch_record(8, 0), batch_record(9, 1)]
    head = replayed(empty("orders"), whole).head
    kept = [whole[0], whole[3], whole[6], whole[8]]
    assert told(0, kept, head, {}) == [(3, (0, 20)), (6, (10, 30)), (8, (0, 10)), (9,)]
    assert lost_ranges(head, 8, [whole[8]], {}) == {("t", 0): (0, 10)}
    assert lost_ranges(head, 2, [whole[2]], {}) == {("t", 0): (0, 10)}
