"""Kafka's own columns in a table, by every way that records take, with a real Spark and a real Kafka."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

import headgate
from headgate.connectors.kafka.options import ConsumerConfig
from headgate.connectors.kafka.topics import QUIET
from headgate.errors import InvalidInput
from headgate.spark import versions
from headgate.streaming.verify.verify import verify_table
from tests.support.runs import NOW, wait

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.kafka]
COLUMNS = (
    "id bigint, `key` string, topic string, `partition` int, `offset` bigint, at timestamp, "
    "headers array<struct<key: string, value: binary>>"
)
METADATA = {name: name for name in ("key", "topic", "partition", "offset", "headers")} | {"at": "timestamp"}


def test_every_way_into_a_table_fills_them_alike(
    spark: SparkSession, kafka_servers: str, make_topic: Any, tmp_path: Path
) -> None:
    topic = make_topic(2)
    began = int(time.time() * 1000)  # Kafka lets go of what is old
    producer = Producer({"bootstrap.servers": kafka_servers}, logger=QUIET)
    for n in range(20):
        headers: list[Any] | None = [("trace", b"%d" % n), ("empty", None)] if n % 2 else None
        value = b"broken" if n == 7 else b'{"id": %d, "at": "2001-01-01T00:00:00Z"}' % n
        producer.produce(topic, value, b"k%d" % n, partition=n % 2, timestamp=began + n, headers=headers)
    assert producer.flush(30) == 0
    found = {}
    for way in ("direct", "spark", "format") if versions.line().data_sources else ("direct", "spark"):
        table = headgate.create_table(tmp_path / way, COLUMNS, sharding=headgate.by_partition())
        source = headgate.kafka.source(kafka_servers, topic, includeHeaders="true")
        writer = source.read(spark).writeStream.option("checkpointLocation", str(tmp_path / f"of-{way}")).trigger(**NOW)
        if way == "format":
            headgate.register(spark)
            metadata = ",".join(f"{column}={field}" for column, field in METADATA.items())
            writer = writer.format("headgate").options(decode="json", metadata=metadata, streamName="s")
            writer.start(table.uri).awaitTermination(240)
        else:
            sink = headgate.ShardSink(
                table,
                decode=headgate.decode.json(metadata=METADATA),
                source=source if way == "direct" else None,
                stream="s",
            )
            wait(writer.foreachBatch(sink).start(), sink)
        found[way] = sorted(table.scan().read_all().to_pylist(), key=lambda row: row["id"])
        report = verify_table(table, {topic: ConsumerConfig.from_spark({"kafka.bootstrap.servers": kafka_servers})})
        assert (report.holds, report.rows, report.dead_letters) == (True, 19, 1)
    assert all(one == found["direct"] for one in found.values())
    row = found["direct"][3]
    assert (row["key"], row["topic"], row["partition"], row["offset"]) == ("k3", topic, 1, 1)
    assert round(row["at"].timestamp() * 1000) == began + 3
    assert row["headers"] == [{"key": "trace", "value": b"3"}, {"key": "empty", "value": None}]
    assert found["direct"][2]["headers"] is None

    table = headgate.create_table(tmp_path / "without", COLUMNS, sharding=headgate.by_partition())
    sink = headgate.ShardSink(table, decode=headgate.decode.json(metadata=METADATA), stream="s")
    bare = headgate.kafka.read(spark, kafka_servers, topic).writeStream.foreachBatch(sink)
    with pytest.raises(InvalidInput, match=r"no column 'headers'.*includeHeaders=true"):
        wait(bare.option("checkpointLocation", str(tmp_path / "c")).trigger(**NOW).start(), sink)
