"""Where an offset is: every answer against what the topic held."""

from __future__ import annotations

from pathlib import Path

import pytest

import headgate
from headgate.checkpoints.feed.find import find_offset
from headgate.table.table import Table
from tests.support.streams import COLUMNS, Record, Stream

GOOD = b'{"id": %d, "note": "n"}'


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Offsets [10, 50) of partition 0 in eight batches, every tenth a bad one; partition 1 in some of them only."""
    made = headgate.create_table(str(tmp_path / "t"), COLUMNS, sharding=headgate.by_partition())
    stream = Stream(made, "topic", 2, mode="memtable")
    for batch in range(8):
        first = 10 + batch * 5
        ranges = [(0, first, first + 5), *([(1, batch, batch + 1)] if batch % 2 == 0 else [])]
        rows = [Record(0, at, b"{" if at % 10 == 3 else GOOD % at) for at in range(first, first + 5)]
        stream.commit(ranges, [*rows, *([Record(1, batch, GOOD % batch)] if batch % 2 == 0 else [])])
    return made


def test_every_offset_is_in_the_batch_that_read_it(table: Table) -> None:
    for offset in range(10, 50):
        found = find_offset(table.home, "topic", "topic", 0, offset)
        assert found.record is not None
        assert found.record.batch_id == (offset - 10) // 5
        if offset % 10 == 3:
            assert (found.state, found.entries) == ("dead letter", ())
            assert found.error
            continue
        (entry,) = found.entries
        assert (found.state, entry.shard, entry.layer) == ("committed", "partition:topic:0", "wal")
        assert entry.position == 1 + (offset - 10) // 5
        assert any(part.start <= offset < part.until for part in entry.ranges)


@pytest.mark.parametrize(
    ("partition", "offset", "state"),
    [(0, 50, "waiting"), (0, 10**18, "waiting"), (0, 9, "before"), (7, 0, "never read"), (1, 4, "committed")],
)
def test_what_is_not_there_is_said_as_what_it_is(table: Table, partition: int, offset: int, state: str) -> None:
    assert find_offset(table.home, "topic", "topic", partition, offset).state == state


def test_another_topic_was_never_read(table: Table) -> None:
    assert find_offset(table.home, "topic", "other", 0, 10).state == "never read"


def test_after_a_flush_it_is_told_as_flushed_and_after_a_collection_as_gone(table: Table) -> None:
    headgate.open_table(table.uri).checkpoint("all")
    flushed = find_offset(table.home, "topic", "topic", 0, 22)
    assert [one.layer for one in flushed.entries] == ["flushed"]
    (Path(table.uri) / table.shard("partition:topic:0").wal_key(flushed.entries[0].position)).unlink()
    gone = find_offset(table.home, "topic", "topic", 0, 22)
    assert [(one.layer, one.position) for one in gone.entries] == [("collected", flushed.entries[0].position)]


def test_a_record_that_was_folded_and_collected_is_told_as_folded(table: Table) -> None:
    headgate.open_table(table.uri).checkpoint("all")
    for path in Path(table.uri).glob("_headgate/*/streams/topic/log/*.json"):
        path.unlink()
    found = find_offset(table.home, "topic", "topic", 0, 12)
    assert (found.state, found.at) == ("folded", 50)


def test_a_long_log_is_halved(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the batches that are remembered, some GETs are enough."""
    stream = Stream(table, "topic", 2)
    for at in range(50, 350):
        stream.commit([(0, at, at + 1)], [Record(0, at, GOOD % at)])
    reader = headgate.open_table(table.uri)
    reader.home.store.reset_operations()
    found = find_offset(reader.home, "topic", "topic", 0, 60)
    assert found.state == "committed"
    assert found.entries
    assert found.entries[0].ranges[0].start == 60
    halving = reader.home.store.operations()["get"] - 309
    assert halving < 30, "the log itself is read once, as status does"
