"""Streams with a real Spark and a real Kafka: a topic whose content is known, and what a table must show of it."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from confluent_kafka import Producer

import headgate
from headgate.checkpoints.log.dead_letters import read_dead_letters
from headgate.connectors.kafka.topics import QUIET
from headgate.shards.sharding import Sharding
from headgate.streaming.sink import ShardSink
from headgate.table.table import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SCHEMA = pa.schema([pa.field("id", pa.int64(), False), pa.field("note", pa.string()), pa.field("amount", pa.float64())])
NOW: Mapping[str, Any] = {"availableNow": True}
PATHS = ("direct", "arrow")
PATIENCE = 180.0


@dataclass
class Topic:
    """A topic and all that was ever put into it, in order, by partition."""

    servers: str
    name: str
    partitions: int
    records: list[tuple[int, bytes | None, bytes | None]] = field(default_factory=list)
    """Partition, key, value."""

    def put(self, *records: tuple[int, bytes | None, bytes | None]) -> None:
        """Add records, acknowledged."""
        # Idempotent, so that a retry never puts a record behind a later one.
        producer = Producer(
            {"bootstrap.servers": self.servers, "linger.ms": 5, "enable.idempotence": True}, logger=QUIET
        )
        for partition, key, value in records:
            producer.produce(self.name, value, key, partition=partition)
        assert producer.flush(30) == 0
        self.records += records

    def put_orders(self, count: int, seed: int = 1, keys: int = 200, bad: bool = True) -> None:
        """Inserts and updates, deletes and bad records. A key stays in its partition."""
        chance = random.Random(seed)
        start = len(self.records)
        made: list[tuple[int, bytes | None, bytes | None]] = []
        for number in range(start, start + count):
            key = chance.randrange(keys)
            value: bytes | None = json.dumps({"id": key, "note": f"order {number}", "amount": number * 0.5}).encode()
            kind = chance.random()
            if bad and kind < 0.02:
                value = chance.choice([b"garbage{", b'{"id": "text"}', b'{"note": "no id"}'])
            elif kind < 0.06:
                value = None
            made.append((key % self.partitions, b"%d" % key, value))
        self.put(*made)

    def put_numbers(self, numbers: Sequence[int], partition: int | None = None) -> None:
        """One row per number."""
        self.put(
            *(
                (n % self.partitions if partition is None else partition, b"%d" % n, json.dumps(row(n)).encode())
                for n in numbers
            )
        )

    def good_rows(self) -> list[dict[str, Any]]:
        """What the values hold, bad ones and deletes left out."""
        decoded = (_row(value) for _, _, value in self.records)
        return [one for one in decoded if one is not None]

    def newest(self) -> dict[int, dict[str, Any]]:
        """The newest row of each key, deletes applied."""
        found: dict[int, dict[str, Any]] = {}
        for _, key, value in self.records:
            if value is None and key is not None:
                found.pop(int(key), None)
            elif (one := _row(value)) is not None:
                found[one["id"]] = one
        return found

    def bad_places(self, keyed: bool) -> Counter[tuple[int, int]]:
        """Partition and offset of every record that cannot become a row."""
        offsets: Counter[int] = Counter()
        found: Counter[tuple[int, int]] = Counter()
        for partition, _, value in self.records:
            if (value is None and not keyed) or (value is not None and _row(value) is None):
                found[partition, offsets[partition]] += 1
            offsets[partition] += 1
        return found


def row(number: int, note: str | None = None) -> dict[str, Any]:
    """The row of a number."""
    return {"id": number, "note": note or f"order {number}", "amount": number * 0.5}


def _row(value: bytes | None) -> dict[str, Any] | None:
    try:
        found = json.loads(value or b"")
    except ValueError:
        return None
    return found if isinstance(found.get("id"), int) else None


@dataclass
class Stream:
    """A query over topics into a table: started as often as a test likes, with one checkpoint."""

    spark: SparkSession
    table: Table
    topics: Sequence[Topic]
    checkpoint: Path
    path: str = "direct"
    stream: str = "s"
    max_offsets: int | None = 1000
    source_options: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    schema: Any = SCHEMA

    def sink(self, **more: Any) -> ShardSink:
        """A sink of its own, as a fresh process would have."""
        direct = {"source": self._source()} if self.path == "direct" else {}
        decode = headgate.decode.json(self.schema)
        return ShardSink(self.table, **{"stream": self.stream, "decode": decode, **direct, **self.options, **more})

    def frame(self) -> DataFrame:
        """The bare frame of the topics."""
        if self.path == "direct":
            return self._source().read(self.spark)
        return headgate.kafka.read(
            self.spark,
            self.topics[0].servers,
            self._names,
            max_offsets_per_trigger=self.max_offsets,
            **self.source_options,
        )

    def run(
        self,
        sink: ShardSink | None = None,
        frame: DataFrame | None = None,
        each: Callable[[ShardSink], None] | None = None,
        **more: Any,
    ) -> ShardSink:
        """Until everything that is there now is written. Raises the sink's own error, or Spark's.

        `each` is called after every batch.
        """
        sink = sink or self.sink(**more)
        query = self.start(sink, frame, NOW, each)
        wait(query, sink)
        assert sink.wait_for_maintenance(PATIENCE)
        return sink

    def start(
        self,
        sink: ShardSink,
        frame: DataFrame | None = None,
        trigger: Mapping[str, Any] = NOW,
        each: Callable[[ShardSink], None] | None = None,
        mode: str = "append",
    ) -> StreamingQuery:
        """Start the query."""
        context = copy_context()  # whoever watches steps here watches those of the sink, which Spark calls in a thread

        def batch(df: DataFrame, number: int) -> None:
            context.copy().run(sink, df, number)
            if each is not None:
                each(sink)

        frame = self.frame() if frame is None else frame
        writer = frame.writeStream.foreachBatch(batch).outputMode(mode)
        return writer.option("checkpointLocation", str(self.checkpoint)).trigger(**trigger).start()

    def _source(self) -> headgate.kafka.KafkaSource:
        return headgate.kafka.source(
            self.topics[0].servers, self._names, max_offsets_per_trigger=self.max_offsets, **self.source_options
        )

    @property
    def _names(self) -> str:
        return ",".join(topic.name for topic in self.topics)


def wait(query: StreamingQuery, sink: ShardSink) -> None:
    """Until the query ends. Raises the sink's own error, or Spark's."""
    from pyspark.errors import StreamingQueryException

    try:
        query.awaitTermination()
    except StreamingQueryException:
        if sink.error is not None:
            raise sink.error from None
        raise


def until(condition: Callable[[], bool], query: StreamingQuery | None = None) -> None:
    """Wait for something that another process does."""
    end = time.monotonic() + PATIENCE
    while not condition():
        if query is not None and query.exception() is not None:
            raise AssertionError(str(query.exception()))
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


def make_table(
    path: Path, sharding: Sharding, key: str | None = None, schema: pa.Schema = SCHEMA, **more: Any
) -> Table:
    """A table in a folder of its own."""
    return headgate.create_table(str(path / "table"), schema, primary_key=key, sharding=sharding, **more)


def scanned(table: Table) -> list[dict[str, Any]]:
    """All rows that a reader sees, by id and note."""
    rows: list[dict[str, Any]] = table.scan().read_all().to_pylist()
    return sorted(rows, key=lambda one: (one["id"], one.get("note") or ""))


def dead_places(table: Table) -> Counter[tuple[int, int]]:
    """Partition and offset of every dead letter that counts."""
    found: Counter[tuple[int, int]] = Counter()
    for letters in read_dead_letters(table.home):
        found.update(zip(letters["partition"].to_pylist(), letters["offset"].to_pylist(), strict=True))
    return found


def check_table(table: Table, *topics: Topic) -> None:
    """The table shows what the topics hold, each row once, and every bad record is a dead letter, once."""
    keyed = bool(table.primary_key)
    if keyed:
        wanted = [one for topic in topics for one in topic.newest().values()]
    else:
        wanted = [one for topic in topics for one in topic.good_rows()]
    assert scanned(table) == sorted(wanted, key=lambda one: (one["id"], one["note"]))
    bad = [topic.bad_places(keyed) for topic in topics]
    assert dead_places(table) == sum(bad, Counter())
