"""A stream whose disk is full: it ends with an error that can be read, nothing is torn, and with room it goes on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import headgate
from headgate.checkpoints.log.commit_log import CommitLog
from headgate.errors import Poisoned, StoreFull
from headgate.table.fsck import fsck
from headgate.table.table import Table
from tests.support.disk import filled, small_disk
from tests.support.runs import PATIENCE, Stream, Topic, check_table, make_table
from tests.support.services import MakeTopic

pytestmark = [pytest.mark.deep, pytest.mark.spark, pytest.mark.kafka]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", 48) as mounted:
        if not mounted:
            pytest.skip("no file system may be mounted here, and a limit on files does not reach Spark's workers")
        yield tmp_path / "disk"


def committed(table: Table) -> int:
    """How many records of the topic the table has taken in."""
    return sum(CommitLog(table.home.records, "s", table.uri).read().head.ends.values())


@pytest.fixture
def topic(kafka_servers: str, make_topic: MakeTopic) -> Topic:
    return Topic(kafka_servers, make_topic(2), 2)


@pytest.mark.parametrize(("path", "memtable"), [("direct", True), ("arrow", False)])
def test_a_stream_on_a_full_disk_ends_readably_and_goes_on_when_there_is_room(
    spark: SparkSession, disk: Path, tmp_path: Path, topic: Topic, path: str, memtable: bool
) -> None:
    table = make_table(disk, headgate.by_partition(key_is_partitioned=True), "id")
    options = {"enable_memtable": memtable, "max_memtable_size": 8 << 10, "store_patience": 0.1}
    stream = Stream(spark, table, [topic], tmp_path / "checkpoint", path, max_offsets=200, options=options)
    topic.put_orders(400)
    stream.run()
    sink = stream.sink()
    query = stream.start(sink, trigger={"processingTime": "0 seconds"})
    topic.put_orders(200, seed=2)
    end = time.monotonic() + PATIENCE
    while committed(table) < 600:
        assert time.monotonic() < end, "the stream goes on after its first end"
        time.sleep(0.1)
    with filled(disk):
        topic.put_orders(600, seed=3)
        while query.isActive:
            assert time.monotonic() < end + PATIENCE, "the query goes on without a disk"
            time.sleep(0.1)
        # Dead letters and rows may find room in a half-filled page; the record of the whole batch did not.
        assert committed(table) < 1200
        shown = str(sink.error)
        assert isinstance(sink.error, StoreFull | Poisoned), shown
        assert "No space left" in shown
        assert "Next:" in shown
        assert table.uri in shown
    sink.close()
    assert fsck(table.uri).findings == ()
    stream.run()
    check_table(table, topic)
    assert fsck(table.uri).findings == ()
