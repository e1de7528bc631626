"""What Spark knows of a query, and how seldom it is asked."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import headgate
from headgate.checkpoints.log.commit_log import CommitLog
from headgate.errors import InvalidInput
from headgate.streaming import sink as sink_module
from headgate.streaming.options import DEFAULT_STREAM
from headgate.streaming.sink import ShardSink
from headgate.streaming.spark.query import QueryFacts, query_facts, task_tries
from headgate.table.table import Table
from tests.support.runs import NOW, Stream, Topic, check_table, make_table, scanned, wait
from tests.support.services import MakeTopic
from tests.support.tables import claimed


@pytest.mark.parametrize(
    ("master", "tries"),
    [
        ("local", 1),
        ("local[2]", 1),
        ("local[*]", 1),
        ("local[2,4]", 4),
        ("local[*, 3]", 3),
        ("local-cluster[2,1,1024]", 7),
        ("spark://host:7077", 7),
        ("", 7),
    ],
)
def test_a_task_is_tried_as_often_as_the_master_says(master: str, tries: int) -> None:
    assert task_tries({"spark.master": master, "spark.task.maxFailures": "7"}) == tries
    if tries == 7:
        assert task_tries({"spark.master": master}) == 4


# -- session defaults ------------------------------------------------------------------


@pytest.fixture
def settings(spark: SparkSession) -> Iterator[Callable[..., None]]:
    """Settings of the session, for one test."""
    taken: list[str] = []

    def use(**values: str) -> None:
        for name, value in values.items():
            taken.append(f"spark.headgate.{name}")
            spark.conf.set(taken[-1], value)

    yield use
    for name in taken:
        spark.conf.unset(name)


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path) -> Callable[..., ShardSink]:
    """Forty rows, from files, as one batch through a sink with these arguments."""
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "a.json").write_text("\n".join(json.dumps({"id": n, "note": "n", "amount": 1.0}) for n in range(40)))
    frame = spark.readStream.schema("id long, note string, amount double").json(str(folder))

    def start(table: Table, checkpoint: str = "checkpoint", **arguments: Any) -> ShardSink:
        sink = ShardSink(table, **arguments)
        writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path / checkpoint))
        wait(writer.trigger(**NOW).start(), sink)
        return sink

    return start


def committed(table: Table, stream: str) -> bool:
    return CommitLog(table.home.records, stream, table.uri).read().head.last is not None


@pytest.mark.spark
def test_a_sink_takes_session_defaults_unless_it_was_told_otherwise(
    run: Callable[..., ShardSink], settings: Callable[..., None], tmp_path: Path
) -> None:
    settings(streamName="of the session", enableMemtable="false", maxEntryBytes="64m")
    table = make_table(tmp_path / "a", headgate.single())
    sink = run(table, max_entry_bytes=1 << 20)
    assert committed(table, "of the session")
    assert sink.last is not None
    assert sink.last.mode == "wal"
    assert (sink.options.stream, sink.options.max_entry_bytes) == ("of the session", 1 << 20)

    other = make_table(tmp_path / "b", headgate.single())
    told = run(other, "other", stream="mine", enable_memtable=True)
    assert committed(other, "mine")
    assert told.last is not None
    assert told.last.mode == "memtable"


@pytest.mark.spark
def test_without_any_say_of_argument_session_and_query_a_stream_has_the_default_name(
    run: Callable[..., ShardSink], tmp_path: Path
) -> None:
    table = make_table(tmp_path, headgate.single())
    run(table)
    assert committed(table, DEFAULT_STREAM)


@pytest.mark.spark
def test_a_setting_that_cannot_be_is_refused_before_anything_is_claimed(
    run: Callable[..., ShardSink], settings: Callable[..., None], tmp_path: Path
) -> None:
    table = make_table(tmp_path, headgate.single())
    settings(onBadRecords="fail")
    with pytest.raises(InvalidInput, match=r"did you mean 'spark\.headgate\.onBadRecord'"):
        run(table)
    assert claimed(table) == []


@pytest.mark.spark
def test_a_checkpoint_of_another_query_is_refused_before_anything_is_claimed(
    run: Callable[..., ShardSink], tmp_path: Path
) -> None:
    run(make_table(tmp_path / "a", headgate.single()), "first")
    table = make_table(tmp_path / "b", headgate.single())
    with pytest.raises(InvalidInput, match="The checkpoint location belongs to another query"):
        run(table, "second", checkpoint_location=str(tmp_path / "first"))
    assert claimed(table) == []
    run(table, "second", checkpoint_location=str(tmp_path / "second"))
    assert len(scanned(table)) == 40


@pytest.mark.spark
def test_by_partition_without_kafka_is_refused_before_anyone_is_fenced(
    run: Callable[..., ShardSink], tmp_path: Path
) -> None:
    table = make_table(tmp_path, headgate.by_partition())
    with pytest.raises(InvalidInput, match="by_partition needs Kafka partitions"):
        run(table, stream="s")
    assert CommitLog(table.home.records, "s", table.uri).read().sequence == 0


# -- once per run ----------------------------------------------------------------------


@pytest.mark.spark
@pytest.mark.kafka
def test_a_query_is_looked_at_once_per_run_and_again_when_the_same_sink_runs_again(
    spark: SparkSession,
    tmp_path: Path,
    kafka_servers: str,
    make_topic: MakeTopic,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[QueryFacts] = []

    def look(frame: DataFrame) -> QueryFacts:
        looked.append(query_facts(frame))
        return looked[-1]

    monkeypatch.setattr(sink_module, "query_facts", look)
    topic = Topic(kafka_servers, make_topic(2), 2)
    stream = Stream(spark, make_table(tmp_path, headgate.by_partition()), [topic], tmp_path / "checkpoint")
    stream.max_offsets = 100
    sink = stream.sink()
    # A session takes another master, as a builder sets it, and the context goes on with its own.
    master = spark.conf.get("spark.master")
    assert master is not None
    assert spark is spark.builder.master("local[1]").getOrCreate()
    for run in (1, 2):
        topic.put_numbers(range((run - 1) * 300, run * 300))
        stream.run(sink)
        assert sink.last is not None
        assert sink.last.batch_id == run * 3 - 1, "three batches each"
        assert len(looked) == run
        check_table(stream.table, topic)
    spark.builder.master(master).getOrCreate()
    assert [one.task_tries for one in looked] == [4, 4]
    assert looked[0].run_id != looked[1].run_id
    assert looked[0].query_id == looked[1].query_id

    # The same sink, the same query, and now has transformations of the source: the checks are made anew.
    topic.put_numbers(range(600, 610))
    with pytest.raises(InvalidInput, match="has transformations"):
        stream.run(sink, stream.frame().where("offset > 5"))
    assert len(scanned(stream.table)) == 600
    stream.run(sink)
    check_table(stream.table, topic)


@pytest.mark.spark
@pytest.mark.kafka
def test_direct_reading_refuses_what_is_done_to_any_batch(
    spark: SparkSession, tmp_path: Path, kafka_servers: str, make_topic: MakeTopic
) -> None:
    topic = Topic(kafka_servers, make_topic(1), 1)
    topic.put_numbers(range(300))
    stream = Stream(spark, make_table(tmp_path, headgate.single()), [topic], tmp_path / "checkpoint", max_offsets=100)
    sink = stream.sink()

    def batch(frame: DataFrame, number: int) -> None:
        sink(frame.where("offset % 2 = 0") if number == 1 else frame, number)

    writer = stream.frame().writeStream.foreachBatch(batch).option("checkpointLocation", str(stream.checkpoint))
    with pytest.raises(InvalidInput, match="has transformations"):
        wait(writer.trigger(**NOW).start(), sink)
    assert [one["id"] for one in scanned(stream.table)] == list(range(100)), "the first batch and nothing of the second"
