"""From Kafka through Spark into shards: table = topic, by every way of reading and of sharding."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import headgate
from headgate.errors import InvalidInput
from headgate.shards.sharding import Sharding
from headgate.streaming.sink import ShardSink
from tests.support.runs import PATHS, Stream, Topic, check_table, make_table, row, scanned
from tests.support.services import MakeTopic

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

SHARDINGS: dict[str, Sharding] = {
    "by_partition": headgate.by_partition(key_is_partitioned=True),
    "max_shards": headgate.by_partition(max_shards=2, key_is_partitioned=True),
    "bucket": headgate.bucket("id", 3),
    "single": headgate.single(),
}


DIRECT = pytest.mark.parametrize("path", ["direct", pytest.param("arrow", marks=pytest.mark.deep)])
"""The other path deep."""


@pytest.fixture
def topic(kafka_servers: str, make_topic: MakeTopic) -> Topic:
    return Topic(kafka_servers, make_topic(4), 4)


def _cases() -> Iterator[Any]:
    """Either path, with a key and without one, by partition and by bucket; each by each deep."""
    brief = {
        ("by_partition", "direct", "id"),
        ("bucket", "arrow", None),
    }
    for name, path, key in product(SHARDINGS, PATHS, ("id", None)):
        named = f"{name}-{'keyed' if key else 'keyless'}-{path}"
        yield pytest.param(
            SHARDINGS[name], key, path, id=named, marks=[] if (name, path, key) in brief else [pytest.mark.deep]
        )


@pytest.mark.parametrize(("sharding", "key", "path"), _cases())
def test_the_table_shows_the_topic_and_a_batch_costs_its_puts_alone(
    spark: SparkSession, tmp_path: Path, topic: Topic, path: str, key: str | None, sharding: Sharding
) -> None:
    table = make_table(tmp_path, sharding, key)
    stream = Stream(spark, table, [topic], tmp_path / "checkpoint", path)
    costs: list[tuple[Counter[str], Counter[str]]] = []

    def counted() -> Callable[[ShardSink], None]:
        earlier: Counter[str] = Counter()

        def count(sink: ShardSink) -> None:
            """What the batch cost, beside what it may cost."""
            assert sink.last is not None
            logs = [*sink.last.shards.values(), *sink.last.dead_letters.values()]
            tasks = _task_operations(sink) - earlier
            earlier.update(tasks)
            spent = Counter(table.home.store.operations()) + tasks
            costs.append((spent, Counter(put=sum(len(part.positions) for part in logs) + 1)))
            table.home.store.reset_operations()

        return count

    topic.put_orders(1500)
    stream.run(each=counted())
    check_table(table, topic)
    topic.put_orders(1500, seed=2)
    stream.run(each=counted())
    check_table(table, topic)
    assert len(costs) == 4
    # The first batch of a start opens the stream; the others cost one PUT per entry and one for the record.
    for spent, allowed in (costs[1], costs[3]):
        assert spent == allowed, "no GET, no LIST"


def _task_operations(sink: ShardSink) -> Counter[str]:
    """What the tasks of all batches asked of the store, by verb."""
    samples = (one for one in sink.reporting.metrics.samples() if one.metric.name == "headgate_store_operations_total")
    return Counter({one.labels[0]: int(one.value) for one in samples if one.labels[1] == "tasks"})  # type: ignore[arg-type]


NESTED = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("price", pa.decimal128(10, 2)),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("address", pa.struct([("city", pa.string()), ("zip", pa.int32())])),
        pa.field("tags", pa.list_(pa.string())),
    ]
)


@pytest.mark.parametrize(
    ("ddl", "path"),
    [
        pytest.param(True, "direct", id="ddl-direct"),
        pytest.param(False, "arrow", id="arrow-schema-arrow"),
        pytest.param(True, "arrow", id="ddl-arrow", marks=pytest.mark.deep),
        pytest.param(False, "direct", id="arrow-schema-direct", marks=pytest.mark.deep),
    ],
)
def test_nested_values_decimals_and_times_arrive_as_they_were_written(
    spark: SparkSession, tmp_path: Path, topic: Topic, path: str, ddl: bool
) -> None:
    schema = (
        "id bigint, price decimal(10,2), at timestamp, address struct<city: string, zip: int>, tags array<string>"
        if ddl
        else NESTED
    )
    table = make_table(tmp_path, headgate.bucket("id", 2), schema=NESTED)
    value = {
        "id": 1,
        "price": "19.99",
        "at": "2024-02-29T23:59:59.123456+01:00",
        "address": {"city": "Köln", "zip": 50667, "unknown": [1]},
        "tags": ["a", None],
        "more": {},
    }
    topic.put((0, None, json.dumps(value).encode()), (1, None, b'{"id": 2}'), (2, None, b'{"id": 3, "price": 1.999}'))
    Stream(spark, table, [topic], tmp_path / "checkpoint", path, schema=schema).run()
    assert scanned(table) == [
        {
            "id": 1,
            "price": Decimal("19.99"),
            "at": datetime(2024, 2, 29, 22, 59, 59, 123456, UTC),
            "address": {"city": "Köln", "zip": 50667},
            "tags": ["a", None],
        },
        {"id": 2, "price": None, "at": None, "address": None, "tags": None},
    ]
    (letters,) = headgate.checkpoints.log.dead_letters.read_dead_letters(table.home)
    assert letters.column("offset").to_pylist() == [0]
    assert letters.column("partition").to_pylist() == [2]


@pytest.mark.deep
@pytest.mark.parametrize("path", PATHS)
def test_two_topics_flow_into_one_table(
    spark: SparkSession, tmp_path: Path, kafka_servers: str, make_topic: MakeTopic, path: str
) -> None:
    topics = [Topic(kafka_servers, make_topic(n), n) for n in (1, 2)]
    topics[0].put_numbers(range(0, 300))
    topics[1].put_numbers(range(300, 700))
    for name, sharding in (("bucket", headgate.bucket("id", 2)), ("partition", headgate.by_partition())):
        table = make_table(tmp_path / name, sharding)
        sink = Stream(spark, table, topics, tmp_path / name / "checkpoint", path).run()
        check_table(table, *topics)
        assert sink.last is not None
        assert {part.topic for part in sink.last.sources} == {topic.name for topic in topics}


@pytest.mark.parametrize("path", [pytest.param("direct", marks=pytest.mark.deep), "arrow"])
def test_a_topic_partition_that_spark_cuts_is_written_whole_and_in_order(
    spark: SparkSession, tmp_path: Path, kafka_servers: str, make_topic: MakeTopic, path: str
) -> None:
    topic = Topic(kafka_servers, make_topic(2), 2)
    # Partition 0 has three quarters of the rows: of four pieces it gets three, and of two tasks both.
    topic.put(*((n % 4 == 3, b"%d" % (n % 100), json.dumps(row(n % 100, f"v{n}")).encode()) for n in range(30_000)))
    table = make_table(tmp_path, headgate.by_partition(key_is_partitioned=True), "id")
    stream = Stream(spark, table, [topic], tmp_path / "checkpoint", path, max_offsets=None)
    stream.source_options = {"minPartitions": "4"}
    sink = stream.run()
    check_table(table, topic)
    assert sink.last is not None
    first = min(position for part in sink.last.shards.values() for position in part.positions)
    assert first == (1 if path == "direct" else 2), "what Spark cut was written again, and our own reading cuts nothing"


@pytest.mark.parametrize(
    "sharding",
    ["bucket", pytest.param("by_partition", marks=pytest.mark.deep), pytest.param("single", marks=pytest.mark.deep)],
)
def test_order_is_kept_where_the_frame_was_shuffled(
    spark: SparkSession, tmp_path: Path, topic: Topic, sharding: str
) -> None:
    topic.put_orders(3_000, keys=20, bad=False)
    table = make_table(tmp_path, SHARDINGS[sharding], "id")
    stream = Stream(spark, table, [topic], tmp_path / "checkpoint", "arrow", max_offsets=1_500)
    stream.run(frame=stream.frame().repartition(5))
    check_table(table, topic)


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("bucket", "direct"),
        ("by_partition", "arrow"),
        pytest.param("by_partition", "direct", marks=pytest.mark.deep),
        pytest.param("bucket", "arrow", marks=pytest.mark.deep),
    ],
)
def test_rows_do_not_pass_through_the_driver(
    spark: SparkSession, tmp_path: Path, topic: Topic, name: str, path: str
) -> None:
    # The session lets all tasks of a job together send 1 MB to the driver; the batch is much larger.
    assert spark.conf.get("spark.driver.maxResultSize") == "1m"
    topic.put(*((n % 4, None, json.dumps({"id": n, "note": "x" * 1000}).encode()) for n in range(8_000)))
    table = make_table(tmp_path, SHARDINGS[name])
    sink = Stream(spark, table, [topic], tmp_path / "checkpoint", path, max_offsets=None).run()
    assert sink.last is not None
    assert sink.last.nbytes > 7 << 20
    assert table.scan(columns=["id"]).read_all().num_rows == 8_000


@DIRECT
def test_fail_on_bad_record_stops_with_the_first_one_named(
    spark: SparkSession, tmp_path: Path, topic: Topic, path: str
) -> None:
    topic.put_numbers(range(40))
    topic.put((2, None, b"garbage"))
    table = make_table(tmp_path, headgate.single())
    stream = Stream(spark, table, [topic], tmp_path / "checkpoint", path, options={"on_bad_record": "fail"})
    with pytest.raises(InvalidInput, match="could not be decoded: not a JSON object") as error:
        stream.run()
    assert (error.value.detail["topic"], error.value.detail["partition"], error.value.detail["offset"]) == (
        topic.name,
        2,
        10,
    )
    assert scanned(table) == []
    stream.options = {}
    stream.run()
    check_table(table, topic)
