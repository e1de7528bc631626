"""What the pages' tables hold: a stream `orders` of two partitions, with updates, a delete and a dead letter."""

from __future__ import annotations

import json

import pyarrow as pa

import headgate
from headgate.connectors.kafka.topics import QUIET, create_topic, ensure_topic
from headgate.errors import InvalidInput
from tests.support.streams import Record, Stream

TOPIC = "orders"
PARTITIONS = 2
SCHEMA = pa.schema([pa.field("id", pa.int64(), False), pa.field("note", pa.string()), pa.field("amount", pa.float64())])
NOTES = ("late delivery, refund asked", "paid", "gift wrap", "delivery on time")


def records(count: int = 200) -> list[Record]:
    """A key stays in its partition; the tenth record is no JSON, the last but one deletes."""
    made, ends = [], [0] * PARTITIONS
    for number in range(count):
        key = number % (count // 2)
        value: bytes | None = json.dumps(
            {"id": key, "note": f"{NOTES[number % 4]}, order {number}", "amount": number * 0.5}
        ).encode()
        if number == 10:
            value = b"{broken"
        elif number == count - 2:
            value = None
        partition = key % PARTITIONS
        made.append(Record(partition, ends[partition], value, str(key).encode()))
        ends[partition] += 1
    return made


def make_table(uri: str) -> headgate.Table:
    """The table after two batches. Its driver is gone without a word, as after a crash."""
    table = headgate.create_table(
        uri,
        SCHEMA,
        primary_key="id",
        sharding=headgate.by_partition(key_is_partitioned=True),
        full_text="note",
    )
    stream = Stream(table, TOPIC, PARTITIONS, mode="memtable")
    everything = records()
    half = len(everything) // 2
    done = [0] * PARTITIONS
    for part in (everything[:half], everything[half:]):
        ends = [done[number] + sum(one.partition == number for one in part) for number in range(PARTITIONS)]
        stream.commit([(number, done[number], ends[number]) for number in range(PARTITIONS)], part)
        done = ends
    return table


def fill_topic(servers: str, topic: str = TOPIC) -> None:
    """The same records in Kafka. A topic that is there has them: a broker may outlive a run."""
    from confluent_kafka import Producer

    ensure_topic(servers, f"{topic}-dead")
    try:
        create_topic(servers, topic, PARTITIONS)
    except InvalidInput:
        return
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True}, logger=QUIET)
    for one in records():
        producer.produce(topic, one.value, one.key, partition=one.partition)
    assert producer.flush(60) == 0
