"""Rows for the tests' topics, by way of the real client."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from confluent_kafka import Producer

from headgate.connectors.kafka.options import ConsumerConfig
from headgate.connectors.kafka.reader import offsets
from headgate.connectors.kafka.topics import QUIET


def produce(servers: str, topic: str, values: Sequence[bytes | None], partition: int = 0, **more: Any) -> None:
    """One row per value, acknowledged."""
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True}, logger=QUIET)
    _send(producer, topic, values, partition, **more)
    assert producer.flush(30) == 0


def open_transaction(servers: str) -> Producer:
    """A producer inside a transaction that has no rows yet."""
    producer = Producer({"bootstrap.servers": servers, "transactional.id": uuid.uuid4().hex}, logger=QUIET)
    producer.init_transactions(30)
    producer.begin_transaction()
    return producer


def commit(servers: str, topic: str, values: Sequence[bytes | None]) -> None:
    """The rows in a transaction that commits: they take one offset more than there are rows."""
    before = _end(servers, topic)
    producer = open_transaction(servers)
    _send(producer, topic, values, 0)
    producer.commit_transaction(30)
    _wait_for_end(servers, topic, before + len(values) + 1)


def abort(servers: str, topic: str, values: Sequence[bytes | None]) -> None:
    """The rows in a transaction that is aborted after they are in the log."""
    before = _end(servers, topic)
    producer = open_transaction(servers)
    _send(producer, topic, values, 0)
    assert producer.flush(30) == 0
    producer.abort_transaction(30)
    _wait_for_end(servers, topic, before + len(values) + 1)


def _end(servers: str, topic: str) -> int:
    return offsets(config_for(servers), topic)[0][1]


def _wait_for_end(servers: str, topic: str, end: int) -> None:
    """The control record comes a moment after the producer has its answer."""
    for _ in range(300):
        if _end(servers, topic) >= end:
            return
        time.sleep(0.02)
    raise AssertionError(f"{topic} does not reach offset {end}")


def _send(producer: Producer, topic: str, values: Sequence[bytes | None], partition: int, **more: Any) -> None:
    for value in values:
        producer.produce(topic, value, partition=partition, **more)


def config_for(servers: str, isolation: str = "read_committed", **options: str) -> ConsumerConfig:
    return ConsumerConfig.from_spark(
        {"kafka.bootstrap.servers": servers, "kafka.isolation.level": isolation, **options}
    )


def values_of(batches: Sequence[pa.RecordBatch]) -> list[bytes | None]:
    return [value for batch in batches for value in batch.column("value").to_pylist()]


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"row %d" % number for number in range(start, start + count)]
