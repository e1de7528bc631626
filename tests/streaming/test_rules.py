"""What a stream refuses, skips and survives, with a real Spark and a real Kafka."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import headgate
from headgate.checkpoints.log.commit_log import CommitLog
from headgate.connectors.kafka.options import ConsumerConfig
from headgate.connectors.kafka.topics import QUIET, grow_topic
from headgate.errors import DataLoss, Fenced, InvalidInput
from headgate.shards.sharding import Sharding
from headgate.steps import watching
from headgate.streaming import sink as sink_module
from headgate.streaming.sink import ShardSink
from headgate.streaming.verify.verify import verify_table
from headgate.table.table import Table
from tests.support.closing import Steps
from tests.support.producing import abort, commit
from tests.support.runs import (
    NOW,
    Stream,
    Topic,
    check_table,
    dead_places,
    make_table,
    row,
    scanned,
    until,
    wait,
)
from tests.support.services import MakeTopic
from tests.support.tables import claimed

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

KEYED_PARTITIONS = headgate.by_partition(key_is_partitioned=True)


@pytest.fixture
def topic(kafka_servers: str, make_topic: MakeTopic) -> Topic:
    return Topic(kafka_servers, make_topic(2), 2)


@pytest.fixture(params=["direct", pytest.param("arrow", marks=pytest.mark.deep)])
def stream(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path, topic: Topic) -> Stream:
    """A stream of the topic into a table without a key, by partition.

    Spark's own path deep, but where what was read is gone.
    """
    table = make_table(tmp_path, headgate.by_partition())
    return Stream(spark, table, [topic], tmp_path / "checkpoint", request.param)


def sequence(table: Table, stream: str = "s") -> int:
    return CommitLog(table.home.records, stream, table.uri).read().sequence


def read_up_to(sink: ShardSink, end: int) -> bool:
    return sink.last is not None and sum(part.until for part in sink.last.sources) == end


# -- triggers ----------------------------------------------------------------------------


def test_a_processing_time_trigger_goes_on_until_it_is_stopped(stream: Stream, topic: Topic) -> None:
    sink = stream.sink()
    topic.put_numbers(range(100))
    query = stream.start(sink, trigger={"processingTime": "100 milliseconds"})
    try:
        for end in (200, 300):
            topic.put_numbers(range(end - 100, end))
            until(partial(read_up_to, sink, end), query)
    finally:
        query.stop()
    check_table(stream.table, topic)
    topic.put_numbers(range(300, 400))
    stream.run()
    check_table(stream.table, topic)


def test_a_once_trigger_takes_everything_in_one_batch(
    stream: Stream, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[bool] = []
    monkeypatch.setattr(sink_module, "exit_after_native_calls", lambda: waits.append(True))
    topic.put_numbers(range(3000))
    sink = stream.sink()
    wait(stream.start(sink, trigger={"once": True}), sink)
    assert waits == [True], "the process that runs a sink ends by its own exit code"
    assert sink.last is not None
    assert sink.last.batch_id == 0
    check_table(stream.table, topic)


# -- frames ------------------------------------------------------------------------------


def test_direct_reading_refuses_a_frame_with_anything_on_top(spark: SparkSession, tmp_path: Path, topic: Topic) -> None:
    topic.put_numbers(range(10))
    stream = Stream(spark, make_table(tmp_path, headgate.single()), [topic], tmp_path / "checkpoint")
    with pytest.raises(InvalidInput, match="has transformations"):
        stream.run(frame=stream.frame().where("offset > 5"))
    stream.checkpoint = tmp_path / "other"
    sink = stream.sink()
    query = (
        stream.frame()
        .writeStream.foreachBatch(lambda frame, number: sink(frame.where("offset > 5"), number))
        .option("checkpointLocation", str(tmp_path / "third"))
        .trigger(**NOW)
        .start()
    )
    with pytest.raises(InvalidInput, match="has transformations"):
        wait(query, sink)
    assert scanned(stream.table) == []
    assert claimed(stream.table) == [], "nothing was claimed"


def test_other_columns_of_the_source_frame_may_be_filtered_on_spark_s_own_path(
    spark: SparkSession, tmp_path: Path, topic: Topic
) -> None:
    topic.put_numbers(range(100))
    stream = Stream(spark, make_table(tmp_path, headgate.bucket("id", 2)), [topic], tmp_path / "checkpoint", "arrow")
    stream.run(frame=stream.frame().where("offset % 2 = 0"))
    assert [one["id"] for one in scanned(stream.table)] == [n for n in range(100) if n // 2 % 2 == 0]
    # `verify` says that these rows are Spark's, and judges those that the decoder made of the bare source.
    topic.put_numbers(range(100, 110))
    stream.run()
    kafka = ConsumerConfig.from_spark({"kafka.bootstrap.servers": topic.servers})
    report = verify_table(stream.table, {topic.name: kafka})
    assert (report.holds, report.records, report.rows) == (True, 10, 60)
    assert ["rows were computed in Spark" in one for one in report.unjudged] == [True]
    assert {era.made.changed for eras in report.eras for era in eras} == {True, False}


def typed(stream: Stream, *origin: str) -> DataFrame:
    """The rows as Spark parses them, with these columns of their origin."""
    parsed = f.from_json(f.col("value").cast("string"), "id bigint, note string, amount double")
    beside = [f.col(name[1:]).alias(name) for name in origin]
    return stream.frame().select(parsed.alias("row"), *beside).select("row.*", *origin)


@pytest.mark.parametrize(
    "sharding",
    [
        pytest.param(headgate.bucket("id", 3), id="bucket", marks=pytest.mark.deep),
        pytest.param(KEYED_PARTITIONS, id="by_partition"),
        pytest.param(headgate.single(), id="single", marks=pytest.mark.deep),
    ],
)
def test_typed_rows_with_their_origin_keep_their_order_through_a_shuffle(
    spark: SparkSession, tmp_path: Path, topic: Topic, sharding: Sharding
) -> None:
    topic.put(*((n % 2, b"k", json.dumps(row(n % 10, f"version {n}")).encode()) for n in range(2_000)))
    table = make_table(tmp_path, sharding, "id")
    stream = Stream(spark, table, [topic], tmp_path / "checkpoint", "arrow", options={"decode": None})
    frame = typed(stream, "_topic", "_partition", "_offset")
    stream.run(frame=frame.repartition(4))
    check_table(table, topic)


@pytest.mark.parametrize(
    "sharding",
    [
        pytest.param(headgate.bucket("id", 3), id="bucket"),
        pytest.param(headgate.single(), id="single", marks=pytest.mark.deep),
    ],
)
def test_typed_rows_are_ordered_by_the_column_that_is_named(
    spark: SparkSession, tmp_path: Path, topic: Topic, sharding: Sharding
) -> None:
    topic.put(
        *((n % 2, b"k", json.dumps({**row(n % 10, f"version {n}"), "amount": float(n)}).encode()) for n in range(500))
    )
    table = make_table(tmp_path, sharding, "id")
    options = {"decode": None, "sequence_by": "amount"}
    stream = Stream(spark, table, [topic], tmp_path / "checkpoint", "arrow", options=options)
    stream.run(frame=typed(stream).repartition(4, f.rand()))
    check_table(table, topic)


def test_typed_rows_of_unknown_order_are_refused_on_a_table_with_a_key(
    spark: SparkSession, tmp_path: Path, topic: Topic
) -> None:
    topic.put_numbers(range(10))
    table = make_table(tmp_path, headgate.single(), "id")
    stream = Stream(spark, table, [topic], tmp_path / "checkpoint", "arrow", options={"decode": None})
    with pytest.raises(InvalidInput, match="sequence_by="):
        stream.run(frame=typed(stream))
    assert claimed(table) == []


def test_complete_output_is_refused(spark: SparkSession, tmp_path: Path, topic: Topic) -> None:
    topic.put_numbers(range(10))
    table = make_table(tmp_path, headgate.single())
    stream = Stream(spark, table, [topic], tmp_path / "checkpoint", "arrow", options={"decode": None})
    counts = typed(stream).groupBy("id").agg(f.first("note").alias("note"))
    sink = stream.sink()
    query = stream.start(sink, counts, mode="complete")
    with pytest.raises(InvalidInput, match="outputMode complete"):
        wait(query, sink)


def test_records_of_another_source_are_decoded_as_kafka_s_are(spark: SparkSession, tmp_path: Path) -> None:
    records = [(f'{{"id": {n}}}'.encode(), 0, n, "t", None) for n in range(20)] + [(b"bad", 0, 20, "t", None)]
    columns = "value binary, partition int, offset long, topic string, key binary"
    spark.createDataFrame(records, columns).coalesce(1).write.parquet(str(tmp_path / "files"))
    for name, sharding in (("single", headgate.single()), ("bucket", headgate.bucket("id", 2))):
        table = make_table(tmp_path / name, sharding)
        stream = Stream(spark, table, [], tmp_path / name / "checkpoint", "arrow")
        stream.run(frame=spark.readStream.schema(columns).parquet(str(tmp_path / "files")))
        assert [one["id"] for one in scanned(table)] == list(range(20))
        assert dead_places(table) == {(0, 20): 1}


# -- offsets that hold no row, and offsets that are gone ----------------------------------


def test_aborted_rows_are_not_read_and_a_batch_without_rows_has_its_record(
    stream: Stream, topic: Topic, kafka_servers: str
) -> None:
    def values(*numbers: int) -> list[bytes]:
        return [json.dumps(row(n)).encode() for n in numbers]

    commit(kafka_servers, topic.name, values(1, 2))
    abort(kafka_servers, topic.name, values(3, 4))
    sink = stream.run()
    assert [one["id"] for one in scanned(stream.table)] == [1, 2]
    assert sink.last is not None
    assert sink.last.sources[0].until == 6, "two rows and two, each with a control record"
    abort(kafka_servers, topic.name, values(5))
    sink = stream.run()
    assert sink.last is not None
    assert (sink.last.rows, sink.last.sources[0].start, sink.last.sources[0].until) == (0, 6, 8)
    commit(kafka_servers, topic.name, values(6))
    stream.run()
    assert [one["id"] for one in scanned(stream.table)] == [1, 2, 6]


@pytest.mark.parametrize(
    ("when", "stream"),
    [
        ("before the restart", "arrow"),
        ("after the plan", "direct"),
        pytest.param("before the restart", "direct", marks=pytest.mark.deep),
        pytest.param("after the plan", "arrow", marks=pytest.mark.deep),
    ],
    indirect=["stream"],
)
def test_offsets_that_are_gone_are_data_loss_with_the_range(
    stream: Stream, topic: Topic, kafka_servers: str, when: str
) -> None:
    def vanish() -> None:
        admin = AdminClient({"bootstrap.servers": kafka_servers}, logger=QUIET)
        gone = TopicPartition(topic.name, 1, 150)
        admin.delete_records([gone])[gone].result(30)

    def after_the_plan(step: str) -> None:
        if step == "tasks":
            vanish()

    topic.put_numbers(range(100), partition=1)
    stream.run()
    topic.put_numbers(range(100, 300), partition=1)
    if when == "before the restart":
        vanish()
    with pytest.raises(DataLoss) as error:
        with watching(after_the_plan if when == "after the plan" else None):
            stream.run()
    assert (error.value.detail["lost_from"], error.value.detail["lost_until"]) == (100, 150)
    assert error.value.detail["partition"] == 1
    assert topic.name in str(error.value)
    assert len(scanned(stream.table)) == 100


# -- restarts ----------------------------------------------------------------------------


def test_peers_bug_14_paimon_9666_a_batch_whose_commit_spark_forgot_is_skipped(stream: Stream, topic: Topic) -> None:
    topic.put_numbers(range(1500))
    stream.run()
    before = sequence(stream.table)
    commits = stream.checkpoint / "commits"
    last = max(int(file.name) for file in commits.iterdir() if file.name.isdigit())
    (commits / str(last)).unlink()
    (commits / f".{last}.crc").unlink(missing_ok=True)
    sink = stream.run()
    assert sink.last is not None
    assert (sink.last.batch_id, sink.skipped) == (last, True)
    assert sequence(stream.table) == before + 1, "the open record and nothing else"
    check_table(stream.table, topic)


def test_offsets_that_do_not_continue_are_refused_with_the_ones_to_use(stream: Stream, topic: Topic) -> None:
    topic.put_numbers(range(200))
    stream.run()
    owner = sequence(stream.table)
    topic.put_numbers(range(200, 300))
    advised = json.dumps({topic.name: {"0": 100, "1": 100}}, separators=(",", ":"))
    for number, start in enumerate(("earliest", json.dumps({topic.name: {"0": 110, "1": 110}}))):
        stream.checkpoint = stream.checkpoint.with_name(f"lost-{number}")
        stream.source_options = {"startingOffsets": start}
        with pytest.raises(InvalidInput, match=r"goes back to 0|jumps to 110") as error:
            stream.run()
        assert advised in str(error.value)
    assert sequence(stream.table) == owner, "a refused start writes nothing and fences nobody"
    stream.checkpoint, stream.source_options = stream.checkpoint.with_name("new"), {"startingOffsets": advised}
    stream.run()
    check_table(stream.table, topic)


@pytest.mark.deep
def test_a_sink_that_runs_again_takes_the_stream_over_from_whoever_had_it_meanwhile(
    stream: Stream, topic: Topic
) -> None:
    topic.put_numbers(range(50))
    first, second = stream.sink(), stream.sink()
    for number, sink in enumerate((first, second, first), 1):
        stream.run(sink)
        check_table(stream.table, topic)
        topic.put_numbers(range(number * 50, number * 50 + 50))


@pytest.mark.parametrize("rows", [True, pytest.param(False, marks=pytest.mark.deep)], ids=["rows", "no-rows"])
def test_the_first_of_two_drivers_is_fenced_and_its_query_stops(
    stream: Stream, topic: Topic, kafka_servers: str, tmp_path: Path, rows: bool
) -> None:
    topic.put_numbers(range(100))
    stream.run()
    steps = Steps("commit")
    sink = stream.sink()
    if rows:
        topic.put_numbers(range(100, 200))
    else:
        abort(kafka_servers, topic.name, [b"not for anybody"])
    with watching(steps):
        query = stream.start(sink)
    steps.wait()
    start = {"startingOffsets": json.dumps({topic.name: {"0": 50, "1": 50}})}
    Stream(stream.spark, stream.table, [topic], tmp_path / "successor", stream.path, source_options=start).run()
    after = sequence(stream.table)
    steps.release()
    with pytest.raises(Fenced, match="stop this query; another driver runs the stream"):
        wait(query, sink)
    assert not query.isActive
    assert sequence(stream.table) == after, "nothing of it is in the log"
    check_table(stream.table, topic)


# -- growth and owners -------------------------------------------------------------------


@pytest.mark.deep
def test_a_grown_topic_is_read_from_its_earliest_offset(stream: Stream, topic: Topic, kafka_servers: str) -> None:
    topic.put_numbers(range(100))
    stream.run()
    grow_topic(kafka_servers, topic.name, 3)
    topic.put_numbers(range(100, 150), partition=2)
    stream.run()
    check_table(stream.table, topic)
    assert len(claimed(stream.table)) == 3


@pytest.mark.parametrize(
    ("rows", "path"),
    [
        pytest.param(0, "direct", id="no-rows-yet-direct", marks=pytest.mark.deep),
        pytest.param(0, "arrow", id="no-rows-yet-arrow", marks=pytest.mark.deep),
        pytest.param(50, "direct", id="rows-direct"),
        pytest.param(50, "arrow", id="rows-arrow", marks=pytest.mark.deep),
    ],
)
def test_on_a_table_with_a_key_a_grown_topic_is_refused(
    spark: SparkSession, tmp_path: Path, topic: Topic, kafka_servers: str, path: str, rows: int
) -> None:
    table = make_table(tmp_path, KEYED_PARTITIONS, "id")
    stream = Stream(spark, table, [topic], tmp_path / "checkpoint", path)
    topic.put_numbers(range(100))
    stream.run()
    grow_topic(kafka_servers, topic.name, 3)
    if rows:
        topic.put_numbers(range(100, 100 + rows), partition=2)
    else:
        topic.put_numbers(range(100, 101), partition=0)
    with pytest.raises(InvalidInput, match=rf"new partitions \({topic.name}/2\)"):
        stream.run()
    assert len(scanned(table)) == 100


@pytest.mark.deep
@pytest.mark.parametrize("path", ["direct", "arrow"])
def test_two_streams_on_different_topics_share_a_table_and_not_their_shards(
    spark: SparkSession, tmp_path: Path, kafka_servers: str, make_topic: MakeTopic, path: str
) -> None:
    topics = [Topic(kafka_servers, make_topic(2), 2) for _ in range(2)]
    table = make_table(tmp_path, headgate.by_partition())
    streams = [Stream(spark, table, [t], tmp_path / t.name, path, stream=t.name) for t in topics]
    for number, one in enumerate(topics):
        one.put_numbers(range(number * 1000, number * 1000 + 500))
    sinks = [one.sink() for one in streams]
    queries = [one.start(sink) for one, sink in zip(streams, sinks, strict=True)]
    for query, sink in zip(queries, sinks, strict=True):
        wait(query, sink)
    check_table(table, *topics)
    assert sorted(str(owner) for owner in {info.owner for info in claimed(table)}) == sorted(t.name for t in topics)
    other = Stream(spark, table, [topics[0]], tmp_path / "third", path, stream="third")
    with pytest.raises(InvalidInput, match=rf"belongs to stream '{topics[0].name}' .*stream 'third'"):
        other.run()
    topics[0].put_numbers(range(500, 600))
    streams[0].run()
    check_table(table, *topics)


# -- WAL-only and MemTable -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "key"),
    [("direct", "id"), pytest.param("arrow", None, marks=pytest.mark.deep)],
    ids=["direct-keyed", "arrow-keyless"],
)
def test_a_stream_changes_between_wal_only_and_memtable_with_rows_in_flight(
    spark: SparkSession, tmp_path: Path, topic: Topic, path: str, key: str | None
) -> None:
    table = make_table(tmp_path, headgate.bucket("id", 2), key)
    stream = Stream(spark, table, [topic], tmp_path / "checkpoint", path, max_offsets=400)
    stopped: list[str] = []

    def stop(step: str) -> None:
        if step == "commit" and len(stopped) < 2:
            stopped.append(step)
            if len(stopped) == 2:
                raise KeyError("killed with rows in flight")

    sstables = []
    for number, memtable in enumerate((False, True, False)):
        topic.put_orders(1000, seed=number)
        stopped.clear()
        options: dict[str, Any] = {"enable_memtable": memtable, "max_memtable_size": 4 << 10}
        with pytest.raises(StreamingQueryException, match="killed with rows in flight"):
            with watching(stop):
                stream.run(**options)
        stream.run(**options)
        check_table(table, topic)
        sstables.append(sum(info.sstables for info in claimed(table)))
        assert all(info.replay_after > 0 for info in claimed(table)) is (number > 0)
    assert sstables[0] == 0 < sstables[1] == sstables[2], "flushes happened with MemTables, and only then"


def test_a_flush_that_fails_does_not_fail_the_stream(spark: SparkSession, tmp_path: Path, topic: Topic) -> None:
    table = make_table(tmp_path, headgate.single())
    stream = Stream(spark, table, [topic], tmp_path / "checkpoint", max_offsets=500)
    topic.put_numbers(range(1000))
    stream.run(enable_memtable=False)
    # A base that is away once the stream has begun: SSTables are made in its likeness.
    hidden = Path(table.uri) / "_versions"

    def hide(step: str) -> None:
        if step == "tasks" and hidden.exists():
            hidden.rename(hidden.with_name("hidden"))

    topic.put_numbers(range(1000, 2000))
    with watching(hide):
        sink = stream.run(max_memtable_size=1 << 10)
    assert sink.last is not None
    assert sink.last.batch_id == 3
    assert sink._run is not None
    sink._run.end(wait=False)  # else it tries again
    hidden.with_name("hidden").rename(hidden)
    assert [info.sstables for info in claimed(table)] == [0]
    check_table(table, topic)
    topic.put_numbers(range(2000, 2100))
    stream.run(max_memtable_size=1 << 10)
    assert [info.sstables for info in claimed(table)] != [0]
    check_table(table, topic)
