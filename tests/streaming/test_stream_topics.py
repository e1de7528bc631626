"""Several topics, patterns, instants, and what Kafka is told of a stream: with a real Spark and a real Kafka."""

from __future__ import annotations

import json
import re
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from stream_runs import NOW, SCHEMA, Topic, wait

import headgate
from headgate.checkpoints.commit_log import CommitLog
from headgate.connectors.kafka.groups import group_offsets
from headgate.streaming.sink import ShardSink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
    pattern = "|".join(map(re.escape, names))
    source = headgate.kafka.source(kafka_servers, pattern=pattern, max_offsets_per_trigger=7, start=since)
    group = f"lag-{time.monotonic_ns()}"
    sink = ShardSink(table, source=source, decode=headgate.decode.json(SCHEMA), stream="s", commit_to_kafka=group)
    parts = [(names[0], 0), (names[0], 1), (names[1], 0)]
    seen: list[dict[tuple[str, int], int]] = []

    def batch(df: object, number: int) -> None:
        sink(df, number)  # type: ignore[arg-type]
        told = group_offsets(source.consumer, group, parts)
        ends = CommitLog(table.home.records, "s", table.uri).read().head.ends
        assert all(end <= ends[place] for place, end in told.items()), "Kafka was told more than the table has"
        seen.append(dict(ends))

    def run() -> None:
        writer = source.read(spark).writeStream.foreachBatch(batch).trigger(**NOW)
        wait(writer.option("checkpointLocation", str(tmp_path / "c")).start(), sink)

    run()
    assert len(seen) > 1
    assert sorted(row["id"] for row in table.scan().read_all().to_pylist()) == list(range(100, 120))
    topics[1].put_numbers([500])
    run()
    sink.close()
    ends = CommitLog(table.home.records, "s", table.uri).read().head.ends
    assert group_offsets(source.consumer, group, parts) == dict(ends)
    assert 500 in [row["id"] for row in table.scan().read_all().to_pylist()]


def test_change_events_of_two_topics_become_one_table_with_a_key_exactly_once(
    spark: SparkSession, kafka_servers: str, make_topic: object, tmp_path: Path
) -> None:
    topic = Topic(kafka_servers, make_topic(2), 2)  # type: ignore[operator]
    table = headgate.create_table(str(tmp_path / "t"), SCHEMA, "id", headgate.bucket("id", 2))

    def put(op: str, number: int, note: str | None, **more: object) -> None:
        row = {"id": number, "note": note, "amount": 1.0}
        told = {"op": op, "after": None if op == "d" else row, "before": row if op == "d" else None, **more}
        topic.put(
            (number % 2, json.dumps({"payload": {"id": number}}).encode(), json.dumps({"payload": told}).encode())
        )

    for number in range(6):
        put("r", number, "snapshot")
    put("u", 1, "updated")
    put("d", 2, None)
    topic.put((0, b'{"payload": {"id": 2}}', None))
    put("d", 3, None)
    put("c", 3, "again")
    put("t", 0, None)
    source = headgate.kafka.source(kafka_servers, [topic.name])
    sink = ShardSink(table, source=source, decode=headgate.decode.debezium(table.schema), stream="cdc")
    writer = source.read(spark).writeStream.foreachBatch(sink).trigger(**NOW)
    wait(writer.option("checkpointLocation", str(tmp_path / "c")).start(), sink)
    rows = {row["id"]: row["note"] for row in table.scan().read_all().to_pylist()}
    assert rows == {0: "snapshot", 1: "updated", 3: "again", 4: "snapshot", 5: "snapshot"}
    letters = pa.concat_tables(headgate.streaming.dead_letters.read_dead_letters(table.home)).to_pylist()
    assert ["says nothing of one row" in one["error"] for one in letters] == [True]
    sink.close()
