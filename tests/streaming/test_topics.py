"""Several topics, patterns, instants, and what Kafka is told of a stream: with a real Spark and a real Kafka."""

from __future__ import annotations

import io
import json
import re
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import structlog
from confluent_kafka import Consumer
from pyspark.sql import functions as f

import headgate
from headgate.checkpoints.log.commit_log import CommitLog
from headgate.connectors.kafka.options import ConsumerConfig
from headgate.connectors.kafka.topics import QUIET, create_topic
from headgate.streaming import setup
from headgate.streaming.observe.group import KafkaProgress
from tests.support.groups import group_offsets
from tests.support.registry import AUTH, serving, wire
from tests.support.runs import NOW, SCHEMA, Topic, until, wait

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


def test_topics_of_a_pattern_since_an_instant_flow_into_one_table_and_kafka_sees_how_far(
    spark: SparkSession, kafka_servers: str, make_topic: object, tmp_path: Path
) -> None:
    names = [make_topic(2), make_topic(1)]  # type: ignore[operator]
    topics = [Topic(kafka_servers, names[0], 2), Topic(kafka_servers, names[1], 1)]
    for topic in topics:
        topic.put_numbers(range(10))
    time.sleep(0.05)
    since = datetime.now(UTC)
    time.sleep(0.05)
    topics[0].put_numbers(range(100, 120))
    table = headgate.create_table(str(tmp_path / "t"), SCHEMA, sharding=headgate.by_partition())
    later = Topic(kafka_servers, f"{names[1]}-later", 1)
    pattern = "|".join(map(re.escape, [*names, later.name]))
    source = headgate.kafka.source(kafka_servers, pattern=pattern, max_offsets_per_trigger=7, start=since)
    group = f"lag-{time.monotonic_ns()}"
    sink = headgate.ShardSink(
        table, source=source, decode=headgate.decode.json(SCHEMA), stream="s", commit_to_kafka=group
    )
    parts = [(names[0], 0), (names[0], 1), (names[1], 0), (later.name, 0)]
    seen: list[dict[tuple[str, int], int]] = []

    def batch(df: object, number: int) -> None:
        sink(df, number)  # type: ignore[arg-type]
        told = group_offsets(source.consumer, group, parts)
        ends = CommitLog(table.home.records, "s", table.uri).read().head.ends
        assert all(end <= ends[place] for place, end in told.items()), "Kafka was told more than the table has"
        seen.append(dict(ends))
        # A canary: once Spark takes this into the query's progress, a sink can fill it (docs/operations/monitoring.md).
        df.limit(1).observe("headgate", f.count(f.lit(1)).alias("rows")).collect()  # type: ignore[attr-defined]

    def start(**trigger: Any) -> StreamingQuery:
        writer = source.read(spark).writeStream.foreachBatch(batch).trigger(**trigger)
        return writer.option("checkpointLocation", str(tmp_path / "c")).start()

    def ids() -> list[int]:
        return sorted(row["id"] for row in table.scan().read_all().to_pylist())

    wait(start(**NOW), sink)
    assert len(seen) > 1
    assert ids() == list(range(100, 120))

    # A group that somebody else is in refuses the offsets: the stream goes on, and says so once, until it may.
    headgate.configure_logs("json", stream=(said := io.StringIO()))
    settings = {"bootstrap.servers": kafka_servers, "group.id": group, "enable.auto.commit": False}
    member = Consumer(settings, logger=QUIET)
    member.subscribe([names[1]])
    until(lambda: member.poll(0.1) is None and bool(member.assignment()))
    topics[1].put_numbers([500])
    query = start(processingTime="0 seconds")
    try:
        until(lambda: 500 in ids(), query)
        # A topic that the pattern names and that appears while the query runs is read from its beginning.
        create_topic(kafka_servers, later.name, 1)
        later.put_numbers([700, 701])
        until(lambda: {700, 701} <= set(ids()), query)
        progress = sink.reporting._progress
        assert progress is not None
        until(lambda: progress.failures > 0)
        assert group_offsets(source.consumer, group, parts) != seen[-1]
        member.close()
        until(lambda: progress.is_current)
        until(lambda: len(query.recentProgress) > 1, query)
        assert [one for one in query.recentProgress if "headgate" in one.observedMetrics] == []
    finally:
        query.stop()
    sink.close()
    structlog.reset_defaults()
    told = [line for text in said.getvalue().splitlines() if "consumer group" in (line := json.loads(text))["event"]]
    assert [(line["level"], line["stream"], line["group"]) for line in told] == [
        ("warning", "s", group),
        ("info", "s", group),
    ]
    assert sink.last is not None
    assert {line["query"] for line in told} == {sink.last.query_id}
    ends = CommitLog(table.home.records, "s", table.uri).read().head.ends
    assert group_offsets(source.consumer, group, parts) == dict(ends)
    assert ids() == [*range(100, 120), 500, 700, 701]


def test_avro_by_a_registry_and_raw_bytes_flow_through_a_stream(
    spark: SparkSession, kafka_servers: str, make_topic: object, tmp_path: Path
) -> None:
    """Both in one topic: what is no Avro is a dead letter of the one table, and a row of the other."""
    schema = {
        "type": "record",
        "name": "Row",
        "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": "string"}],
    }
    topic = Topic(kafka_servers, make_topic(2), 2)  # type: ignore[operator]
    values = [wire(schema, {"id": number, "note": f"note {number}"}) for number in range(50)]
    values += [b"\xff\x00 no Avro", wire(schema, {"id": 99, "note": "of nobody's schema"}, 8)]
    topic.put(*((number % 2, None, value) for number, value in enumerate(values)))
    rows = headgate.create_table(str(tmp_path / "rows"), SCHEMA, sharding=headgate.by_partition())
    raw = headgate.create_table(
        str(tmp_path / "raw"), pa.schema([("value", pa.binary())]), sharding=headgate.by_partition()
    )
    with serving({"/schemas/ids/7": (200, {"schema": json.dumps(schema)})}) as registry:
        avro = headgate.decode.avro(SCHEMA, registry=registry, auth=AUTH)
        for table, decode in ((rows, avro), (raw, headgate.decode.raw("value"))):
            source = headgate.kafka.source(kafka_servers, topic.name)
            sink = headgate.ShardSink(table, source=source, decode=decode, stream="s")
            writer = source.read(spark).writeStream.foreachBatch(sink).trigger(**NOW)
            wait(writer.option("checkpointLocation", f"{table.uri}-checkpoint").start(), sink)
            sink.close()
    found = {row["id"]: row["note"] for row in rows.scan().read_all().to_pylist()}
    assert found == {number: f"note {number}" for number in range(50)}
    letters = pa.concat_tables(headgate.checkpoints.log.dead_letters.read_dead_letters(rows.home)).to_pylist()
    assert sorted(letter["value"] for letter in letters) == sorted(values[50:])
    assert sorted(raw.scan().read_all()["value"].to_pylist()) == sorted(values)
    assert list(headgate.checkpoints.log.dead_letters.read_dead_letters(raw.home)) == []


def test_change_events_of_two_topics_become_one_table_with_a_key_exactly_once_though_the_groups_broker_is_away(
    spark: SparkSession, kafka_servers: str, make_topic: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The consumer group belongs to a broker that is not there.
    away = ConsumerConfig.from_spark({"kafka.bootstrap.servers": "127.0.0.1:1"})
    monkeypatch.setattr(setup, "_cluster", lambda facts, source: away)
    monkeypatch.setattr(KafkaProgress, "patience", 0.1)
    topic = Topic(kafka_servers, make_topic(2), 2)  # type: ignore[operator]
    other = Topic(kafka_servers, make_topic(1), 1)  # type: ignore[operator]
    table = headgate.create_table(str(tmp_path / "t"), SCHEMA, primary_key="id", sharding=headgate.bucket("id", 2))

    def put(op: str, number: int, note: str | None, **more: object) -> None:
        row = {"id": number, "note": note, "amount": 1.0}
        told = {"op": op, "after": None if op == "d" else row, "before": row if op == "d" else None, **more}
        # Keys from 100 on come from the other topic.
        (topic if number < 100 else other).put(
            (
                number % 2 if number < 100 else 0,
                json.dumps({"payload": {"id": number}}).encode(),
                json.dumps({"payload": told}).encode(),
            )
        )

    for number in range(6):
        put("r", number, "snapshot")
    put("u", 1, "updated")
    put("d", 2, None)
    topic.put((0, b'{"payload": {"id": 2}}', None))
    put("d", 3, None)
    put("c", 3, "again")
    put("t", 0, None)
    put("c", 100, "other")
    put("c", 101, "other")
    put("u", 101, "other again")
    put("d", 100, None)
    source = headgate.kafka.source(kafka_servers, [topic.name, other.name], max_offsets_per_trigger=9)
    decode = headgate.decode.debezium(table.schema)
    sink = headgate.ShardSink(table, source=source, decode=decode, stream="cdc", commit_to_kafka="away")
    writer = source.read(spark).writeStream.foreachBatch(sink).trigger(**NOW)
    wait(writer.option("checkpointLocation", str(tmp_path / "c")).start(), sink)
    progress = sink.reporting._progress
    assert progress is not None
    assert not progress.is_current, "nobody took the offsets, and no batch waited for that"
    rows = {row["id"]: row["note"] for row in table.scan().read_all().to_pylist()}
    kept = {0: "snapshot", 1: "updated", 3: "again", 4: "snapshot", 5: "snapshot"}
    assert rows == {**kept, 101: "other again"}
    letters = pa.concat_tables(headgate.checkpoints.log.dead_letters.read_dead_letters(table.home)).to_pylist()
    assert ["does not change a single row" in one["error"] for one in letters] == [True]
    sink.close()
