"""A stream that is sent back, and forward: a real query reads again exactly what it was sent to, and says so."""

from __future__ import annotations

import io
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import structlog
from click.testing import CliRunner

import headgate
from headgate.cli import main
from headgate.connectors.kafka.options import ConsumerConfig
from headgate.errors import Fenced
from headgate.steps import watching
from headgate.table.fsck import fsck
from tests.support.groups import group_offsets
from tests.support.runs import Stream, Topic, dead_places, make_table, row, scanned, until, wait
from tests.support.services import MakeTopic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

FAR = "2999-01-01T00:00:00Z"


@pytest.fixture(autouse=True)
def _logs_elsewhere() -> Iterator[None]:
    """A stream of this process logs while a command of this process prints."""
    headgate.configure_logs("json", stream=io.StringIO())
    yield
    structlog.reset_defaults()


def call(*arguments: str) -> dict[str, Any]:
    done = CliRunner().invoke(main, [*arguments, "--output", "json"], catch_exceptions=False)
    assert done.exit_code == 0, (done.stdout, done.stderr)
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def rewind(stream: Stream, *options: str) -> dict[str, Any]:
    """What `headgate rewind` does, with Spark's checkpoint rebuilt."""
    place = ("--spark-checkpoint", str(stream.checkpoint), "--servers", stream.topics[0].servers)
    return call("rewind", stream.table.uri, "--stream", "s", *place, *options)


def verify(stream: Stream) -> dict[str, Any]:
    topic = stream.topics[0]
    return call("verify", stream.table.uri, "--servers", topic.servers, "--topic", topic.name)


def ends(stream: Stream) -> dict[int, int]:
    shown = call("status", stream.table.uri)["partitions"]
    return {one["partition"]: one["committed"] for one in shown}


def in_group(topic: Topic, group: str) -> dict[int, int]:
    """What Kafka was told of the stream."""
    cluster = ConsumerConfig.from_spark({"kafka.bootstrap.servers": topic.servers})
    found = group_offsets(cluster, group, [(topic.name, number) for number in range(topic.partitions)])
    return {partition: end for (_, partition), end in found.items()}


def records_of(topic: Topic, partition: int, start: int, end: int) -> list[Any]:
    return [record for record in topic.records if record[0] == partition][start:end]


def by_id(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda one: (one["id"], one["note"]))


@pytest.fixture
def topic(kafka_servers: str, make_topic: MakeTopic) -> Callable[[], Topic]:
    return lambda: Topic(kafka_servers, make_topic(2), 2)


@pytest.mark.deep
def test_rows_without_a_key_are_there_twice_in_the_range_and_what_is_skipped_is_not_there(
    spark: SparkSession, tmp_path: Path, topic: Callable[[], Topic]
) -> None:
    numbers = topic()
    numbers.put_numbers(range(200))
    numbers.put((0, b"k", b"garbage{"))
    table = make_table(tmp_path, headgate.by_partition())
    stream = Stream(spark, table, [numbers], tmp_path / "checkpoint", max_offsets=60)
    first = stream.run().last
    assert first is not None
    assert ends(stream) == {0: 101, 1: 100}
    name = numbers.name
    told = rewind(stream, "--to-offsets", json.dumps({name: {"0": 80}}), "--reason", "once more", "--apply")
    assert (told["offsets_again"], told["offsets_skipped"]) == (21, 0)
    numbers.put_numbers(range(200, 220))
    again = stream.run().last
    assert again is not None
    assert (again.query_id != first.query_id, again.batch_id > first.batch_id) == (True, True)
    twice = Topic(numbers.servers, name, 2, [*numbers.records, *records_of(numbers, 0, 80, 101)])
    assert scanned(table) == by_id(twice.good_rows())
    assert dead_places(table) == Counter({(0, 100): 2}), "the bad record came again as well"
    checked = verify(stream)
    assert (checked["holds"], checked["rewinds"][0]["reason"]) == (True, "once more")
    assert [(one["partition"], one["from"], one["until"]) for one in checked["ranges"]] == [
        (0, 0, 101),
        (0, 80, 111),
        (1, 0, 110),
    ]
    # Forward, while the query still runs: it is fenced, and what lies between is never read.
    sink = stream.sink()
    query = stream.start(sink, trigger={"processingTime": "200 milliseconds"})
    numbers.put_numbers([220, 221])
    until(lambda: ends(stream) == {0: 112, 1: 111}, query)
    read = [*twice.records, *numbers.records[-2:]]
    moved = call(
        "rewind", table.uri, "--stream", "s", "--to-offsets", json.dumps({name: {"0": 114, "1": 111}}), "--apply"
    )
    assert (moved["offsets_skipped"], moved["rebuilt"]) == (2, None)
    numbers.put_numbers(range(222, 230))
    with pytest.raises(Fenced):
        wait(query, sink)
    stream.checkpoint = tmp_path / "fresh"
    stream.source_options = {"startingOffsets": moved["starting_offsets"]}
    stream.run()
    after = [*records_of(numbers, 0, 114, 200), *records_of(numbers, 1, 111, 200)]
    assert scanned(table) == by_id(Topic(numbers.servers, name, 2, [*read, *after]).good_rows())
    assert row(222) not in scanned(table)
    assert verify(stream)["holds"]
    assert fsck(table.uri).findings == ()


def close_told(sink: headgate.ShardSink) -> None:
    """Close it once Kafka's group has all: a close waits for that only for a while."""
    progress = sink.reporting._progress
    assert progress is not None
    until(lambda: progress.is_current)
    sink.close()


def test_rows_with_a_key_replace_themselves_and_times_are_resolved_by_kafka(
    spark: SparkSession, tmp_path: Path, topic: Callable[[], Topic]
) -> None:
    orders = topic()
    orders.put_orders(300, keys=40)
    table = make_table(tmp_path, headgate.bucket("id", 2), "id")
    group = f"rewound-{time.monotonic_ns()}"
    options = {"commit_to_kafka": group}
    stream = Stream(spark, table, [orders], tmp_path / "checkpoint", max_offsets=100, options=options)
    close_told(stream.run())
    stood = ends(stream)
    assert in_group(orders, group) == stood
    far = rewind(stream, "--to-timestamp", FAR)
    assert (far["offsets_again"], far["offsets_skipped"], far["applied"]) == (0, 0, False), "it has read all"
    told = rewind(stream, "--to-timestamp", "2001-01-01T00:00:00Z", "--apply")
    assert told["offsets_again"] == sum(stood.values())
    assert ends(stream) == {0: 0, 1: 0}
    assert in_group(orders, group) == stood, "a rewind does not talk to Kafka's groups"
    orders.put_orders(100, seed=2, keys=40)

    def pause(step: str) -> None:
        if step == "tasks":  # nothing is committed before the group was told where the stream was sent
            until(lambda: in_group(orders, group) in ({0: 0, 1: 0}, ends(stream)))
            looks.append(in_group(orders, group))

    looks: list[dict[int, int]] = []
    with watching(pause):
        close_told(stream.run())
    assert looks[0] == {0: 0, 1: 0}
    assert in_group(orders, group) == ends(stream)
    assert scanned(table) == by_id(list(orders.newest().values()))
    assert verify(stream)["holds"]
    stream.table.checkpoint("durable")
    assert fsck(table.uri).findings == ()
    with pytest.raises(AssertionError, match="Kafka has offsets"):
        rewind(stream, "--to-offsets", json.dumps({orders.name: {"0": 10_000}}))
