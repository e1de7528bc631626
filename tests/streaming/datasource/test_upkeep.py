"""What `format("headgate")` does for its table after a batch: its processes come and go, and the interval holds."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

import headgate
from headgate.checkpoints.log.commit_log import CommitLog
from headgate.checkpoints.stream.driver import StreamDriver
from headgate.streaming.datasource import upkeep as source_checkpoint
from headgate.streaming.datasource.memory import Hold
from headgate.streaming.datasource.settings import Settings
from headgate.streaming.datasource.upkeep import maintain
from headgate.table.create import create_table
from headgate.table.table import Table
from tests.support.life import AT_ONCE, QUERY, SCHEMA, batch_of, ranges_of, run_task, write_plan, written


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return create_table(str(tmp_path / "table"), SCHEMA, sharding=headgate.by_partition())


@pytest.fixture
def hold(tmp_path: Path) -> Hold:
    return Hold.of(str(tmp_path / "application"), QUERY, "table", "s")


def settings(table: Table, interval: str) -> Settings:
    given = {"path": table.uri, "checkpointLocation": "/c", "streamName": "s", "checkpointInterval": interval}
    return Settings.of(given, {})


def committed(table: Table, numbers: range) -> int:
    """These batches; the sequence of the last."""
    driver = StreamDriver.open(table.home.retrying(AT_ONCE), "s", QUERY, [])
    for number in numbers:
        ranges = ranges_of(number, partitions=[0])
        plan = write_plan(driver, ranges)
        done = written(*(run_task(plan, parts) for parts in plan.sources.values()))
        driver.commit(replace(batch_of(plan, done, number, ranges), mode="wal"))
    return driver.head.sequence


def test_a_checkpoint_is_taken_when_so_much_time_has_passed(table: Table, hold: Hold) -> None:
    sequence = committed(table, range(2))
    maintain(settings(table, "10m"), hold, sequence)
    assert table.checkpoints() == [], "it begins to count"
    maintain(settings(table, "10m"), hold, sequence)
    assert table.checkpoints() == []
    (stamp,) = list(hold.path.parent.glob("*.checkpoint"))
    long_ago = time.time() - 601
    os.utime(stamp, (long_ago, long_ago))
    maintain(settings(table, "10m"), hold, sequence)
    (taken,) = [one.checkpoint for one in table.checkpoints()]
    assert taken.streams["s"].sequence == sequence
    assert "WAL only" in taken.note
    maintain(settings(table, "10m"), hold, sequence)
    assert len(table.checkpoints()) == 1


def test_an_interval_of_zero_is_every_batch_and_the_newest_stay(table: Table, hold: Hold) -> None:
    for number in range(4):
        maintain(settings(table, "0"), hold, committed(table, range(number, number + 1)))
    last = [one.checkpoint.streams["s"].last for one in table.checkpoints()]
    assert [one.batch_id for one in last if one is not None] == [2, 3]


def test_the_log_is_folded_without_checkpoints(table: Table, hold: Hold, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_checkpoint, "FOLD_EVERY", 4)
    for number in range(6):
        maintain(settings(table, "never"), hold, committed(table, range(number, number + 1)))
    log = CommitLog(table.home.records, "s", table.uri)
    assert sorted(log._list()[1]) == [9, 13], "sequences 3, 5, 7 … are batches: every second one folds"
    assert table.checkpoints() == []
    assert table.scan().read_all().num_rows == 6 * 18


def test_what_fails_does_not_fail_the_stream(table: Table, hold: Hold, tmp_path: Path) -> None:
    gone = replace(settings(table, "0"), table=str(tmp_path / "nothing"))
    maintain(gone, hold, 1)
    assert table.checkpoints() == []
