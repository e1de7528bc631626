"""Checkpoints of a running stream with a real Spark: taken between batches, at a clean stop, and never in its way."""

from __future__ import annotations

from pathlib import Path

import lance
import pytest
from pyspark.sql import SparkSession

import headgate
from headgate.checkpoints.log import fold as folding
from headgate.checkpoints.snapshots.take import own_prefix
from headgate.errors import Transient
from headgate.steps import watching
from headgate.table.table import Table
from tests.support.runs import Stream, Topic, check_table, make_table, scanned
from tests.support.services import MakeTopic
from tests.support.tables import claimed

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


@pytest.fixture
def topic(kafka_servers: str, make_topic: MakeTopic) -> Topic:
    return Topic(kafka_servers, make_topic(2), 2)


def own(table: Table) -> list[str]:
    found = [one.checkpoint.name for one in table.checkpoints()]
    assert all(name.startswith(own_prefix("s")) for name in found)
    return found


def test_a_stream_takes_checkpoints_and_after_a_clean_stop_native_opens_its_shards(
    spark: SparkSession, tmp_path: Path, topic: Topic
) -> None:
    table = make_table(tmp_path, headgate.by_partition(key_is_partitioned=True), "id")
    stream = Stream(spark, table, [topic], tmp_path / "checkpoint", max_offsets=300)
    topic.put_orders(900)
    failures = [Transient("The store is away.")]

    def fail_once(step: str) -> None:
        if step == "renew" and failures:
            raise failures.pop()

    sink = stream.run(checkpoint_interval=0, keep_checkpoints=2)
    first = own(table)
    assert len(first) == 2, "three batches, of which the newest two stay"
    assert all(shard.sealed and shard.sstables for shard in claimed(table))
    middle = scanned(headgate.open_table(table.uri, checkpoint=first[0]))
    with watching(fail_once), pytest.raises(Transient):
        sink.close()
    taken = sink.close()
    assert taken is not None
    assert own(table) == [first[1], taken.name]
    assert sink.close() is None, "twice equals once"
    check_table(table, topic)
    newest = sorted(one["id"] for one in topic.newest().values())
    assert sorted(lance.dataset(table.uri).to_table()["id"].to_pylist()) == newest, "a plain reader sees every row"
    for shard in claimed(table):
        assert not shard.sealed
        assert shard.owner == "s"
        writer = lance.dataset(table.uri).mem_wal_writer(str(shard.id))
        seen = writer.lsm_scanner().to_table().column("id").to_pylist()
        writer.close()
        assert sorted(seen) == newest
    topic.put_orders(300, seed=2)
    sink = stream.run(sink)
    check_table(table, topic)
    assert all(shard.sealed for shard in claimed(table)), "the next start seals again"
    assert scanned(headgate.open_table(table.uri, checkpoint=taken.name)) != scanned(table)
    assert middle != scanned(headgate.open_table(table.uri, checkpoint=taken.name))


def test_a_wal_only_stream_is_pinned_and_its_log_is_folded(spark: SparkSession, tmp_path: Path, topic: Topic) -> None:
    table = make_table(tmp_path, headgate.by_partition(), None)
    stream = Stream(spark, table, [topic], tmp_path / "checkpoint", max_offsets=200)
    topic.put_numbers(range(400))
    sink = stream.run(enable_memtable=False, checkpoint_interval="0 seconds")
    (_, last) = own(table)
    (stored,) = [one.checkpoint for one in table.checkpoints() if one.checkpoint.name == last]
    assert "WAL only" in stored.note
    assert stored.streams["s"].sequence == sink.last.sequence if sink.last else False
    assert list(table.home.records.list("streams/s/folds/"))
    closed = sink.close()
    assert closed is not None
    assert "WAL only" in closed.note
    assert all(shard.sealed and not shard.sstables for shard in claimed(table))
    check_table(table, topic)


def test_a_checkpoint_that_fails_does_not_fail_the_stream(spark: SparkSession, tmp_path: Path, topic: Topic) -> None:
    table = make_table(tmp_path, headgate.by_partition(), None)
    stream = Stream(spark, table, [topic], tmp_path / "checkpoint", max_offsets=100)
    topic.put_numbers(range(300))

    def fail(step: str) -> None:
        if step == "limits":
            raise OSError("no space")

    with watching(fail):
        stream.run(checkpoint_interval=0)
    check_table(table, topic)
    assert own(table) == []


@pytest.mark.deep
def test_a_stream_folds_its_log_without_checkpoints(
    spark: SparkSession, tmp_path: Path, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folding, "FOLD_EVERY", 4)
    table = make_table(tmp_path, headgate.by_partition(), None)
    batches = 5
    stream = Stream(spark, table, [topic], tmp_path / "checkpoint", max_offsets=2)
    topic.put_numbers(range(2 * batches))
    sink = stream.run(checkpoint_interval="never")
    assert sink.last is not None
    assert sink.last.batch_id + 1 == batches
    assert sink.wait_for_maintenance(60)
    assert len(list(table.home.records.list("streams/s/folds/"))) == 1
    assert own(table) == []
    check_table(table, topic)
