"""`writeStream.format("headgate")` in a real Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer

import headgate
from headgate.checkpoints.log.commit_log import CommitLog
from headgate.checkpoints.log.dead_letters import read_dead_letters
from headgate.checkpoints.stream.driver import StreamDriver
from headgate.connectors.kafka.options import ConsumerConfig
from headgate.shards.wal.tailer import WalTailer
from headgate.streaming.verify.verify import verify_table
from headgate.table.table import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [pytest.mark.spark, pytest.mark.line_has("data_sources")]

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("note", pa.string())])


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return headgate.create_table(str(tmp_path / "table"), SCHEMA, sharding=headgate.bucket("id", 2))


@pytest.fixture
def frame(spark: SparkSession, files: Any) -> DataFrame:
    headgate.register(spark)
    rows = spark.readStream.schema("id long, note string").option("maxFilesPerTrigger", 1).json(str(files.folder))
    return rows.repartition(3)


@pytest.fixture
def run(frame: DataFrame, table: Table, tmp_path: Path) -> Callable[..., StreamingQuery]:
    def start(rows: DataFrame = frame, mode: str = "append", wait: bool = True, **options: str) -> StreamingQuery:
        given = {"checkpointLocation": str(tmp_path / "checkpoint"), "streamName": "s", **options}
        writer = rows.writeStream.format("headgate").outputMode(mode).options(**given)
        query = (writer.trigger(availableNow=True) if wait else writer).start(table.uri)
        if wait:
            query.awaitTermination(240)
        return query

    return start


def ids(table: Table) -> list[int]:
    return sorted(table.scan().read_all().column("id").to_pylist())


def test_every_row_is_there_once_over_restarts_and_other_faces(
    run: Callable[..., StreamingQuery], frame: DataFrame, files: Any, table: Table, tmp_path: Path
) -> None:
    for number in range(3):
        files.put(f"a{number}", range(number * 100, number * 100 + 100))
    run()
    assert ids(table) == list(range(300))
    files.put("b", range(300, 350))
    sink = headgate.ShardSink(table, stream="s", enable_memtable=False)
    by_sink = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path / "checkpoint"))
    by_sink.trigger(availableNow=True).start().awaitTermination(240)
    files.put("c", range(350, 400))
    run()
    assert ids(table) == list(range(400))


def test_attempts_that_are_lost_after_their_writes_leave_no_duplicates(
    run: Callable[..., StreamingQuery], spark: SparkSession, files: Any, table: Table
) -> None:
    from headgate.streaming.datasource.source import BatchWriter, HeadgateDataSource

    class Losing(BatchWriter):
        def write(self, iterator: Any) -> Any:
            from pyspark import TaskContext

            written = super().write(iterator)
            context = TaskContext.get()
            assert context is not None
            if context.attemptNumber() == 0:
                raise RuntimeError("this attempt is lost")
            return written

    class LosingSource(HeadgateDataSource):
        def streamWriter(self, schema: Any, overwrite: bool) -> BatchWriter:
            return Losing(super().streamWriter(schema, overwrite)._plan)

    spark.dataSource.register(LosingSource)
    files.put("a", range(300))
    run()
    assert ids(table) == list(range(300))
    record = CommitLog(table.home.records, "s", table.uri).read().head.last
    assert record is not None
    listed = sum(len(part.positions) for part in record.shards.values())
    assert listed < sum(1 for shard in record.shards for _ in WalTailer(table.shard(shard)).read(1))


def test_a_second_driver_fences_the_first_and_its_query_stops(
    run: Callable[..., StreamingQuery], files: Any, table: Table, tmp_path: Path
) -> None:
    files.put("a", range(10))
    query = run(wait=False)
    query.processAllAvailable()
    StreamDriver.open(table.home, "s", query.id, [])
    files.put("b", range(10, 20))
    with pytest.raises(Exception, match=r"Fenced: Another driver took over the stream"):
        query.processAllAvailable()
    assert not query.isActive
    assert ids(table) == list(range(10))
    run()
    assert ids(table) == list(range(20))


def test_a_batch_that_the_table_has_and_spark_lost_is_skipped(
    run: Callable[..., StreamingQuery], files: Any, table: Table, tmp_path: Path
) -> None:
    files.put("a", range(10))
    run()
    for name in ("0", ".0.crc"):
        (tmp_path / "checkpoint" / "commits" / name).unlink()
    files.put("b", range(10, 20))
    run()
    assert ids(table) == list(range(20))


@pytest.mark.parametrize(
    ("options", "mode", "message"),
    [
        ({"streamNam": "x"}, "append", "Unknown option 'streamnam'.*did you mean 'streamName'"),
        ({"enableMemtable": "true"}, "append", "does not support MemTables"),
        ({}, "complete", "outputMode complete is not supported"),
        ({}, "update", "does not support Update mode"),
        ({"decode": "json"}, "append", "A decoder needs the columns of Spark's Kafka source"),
    ],
)
def test_what_cannot_be_is_refused_in_words(
    run: Callable[..., StreamingQuery],
    frame: DataFrame,
    files: Any,
    table: Table,
    options: dict[str, str],
    mode: str,
    message: str,
) -> None:
    files.put("a", range(10))
    rows = frame.groupBy("id").count() if mode == "complete" else frame
    with pytest.raises(Exception, match=f"(?s){message}"):
        run(rows, mode, **options)
    assert CommitLog(table.home.records, "s", table.uri).read().sequence == 0


def test_session_settings_are_defaults(spark: SparkSession, files: Any, table: Table, tmp_path: Path) -> None:
    spark.conf.set("spark.headgate.streamName", "from the session")
    try:
        headgate.register(spark)
        files.put("a", range(10))
        rows = spark.readStream.schema("id long, note string").json(str(files.folder))
        writer = rows.writeStream.format("headgate").option("checkpointLocation", str(tmp_path / "c"))
        writer.trigger(availableNow=True).start(table.uri).awaitTermination(240)
    finally:
        spark.conf.unset("spark.headgate.streamName")
    assert CommitLog(table.home.records, "from the session", table.uri).read().head.last is not None


@pytest.mark.kafka
def test_a_topic_becomes_a_table_with_updates_deletes_and_dead_letters(
    kafka_servers: str, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = make_topic(3)
    sharding = headgate.by_partition(key_is_partitioned=True)
    table = headgate.create_table(str(tmp_path / "table"), SCHEMA, primary_key="id", sharding=sharding)
    expected: dict[int, str] = {}
    for half in range(2):
        producer = Producer({"bootstrap.servers": kafka_servers, "enable.idempotence": True})
        for i in range(600):
            producer.produce(topic, key=str(i % 150), value=json.dumps({"id": i % 150, "note": f"{half}/{i}"}))
            expected[i % 150] = f"{half}/{i}"
        for key in (3, 4):
            producer.produce(topic, key=str(key), value=None)
            del expected[key]
        producer.produce(topic, key="bad", value=b"{")
        producer.flush()
        application = [sys.executable, str(Path(__file__).with_name("kafka_application.py"))]
        done = subprocess.run(
            [*application, kafka_servers, topic, table.uri, str(tmp_path / "checkpoint")],
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        found = {row["id"]: row["note"] for row in table.scan().read_all().to_pylist()}
        assert found == expected
    letters = pa.concat_tables(read_dead_letters(table.home))
    assert letters.column("value").to_pylist() == [b"{", b"{"]
    kafka = ConsumerConfig.from_spark({"kafka.bootstrap.servers": kafka_servers})
    report = verify_table(table, {topic: kafka})
    assert (report.holds, report.unjudged, report.doubts, report.records) == (True, (), (), 1_206)
