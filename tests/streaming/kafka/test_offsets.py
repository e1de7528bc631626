"""Topics that a broker does not know: at once, or only after a while where the stream has read them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable

import pytest

from headgate.connectors.kafka.options import ConsumerConfig
from headgate.connectors.kafka.topics import create_topic
from headgate.errors import NotFound, Transient
from headgate.streaming.kafka.offsets import earliest, wait_for_topics
from tests.support.runs import Topic

pytestmark = pytest.mark.kafka


@pytest.fixture
def consumer(kafka_servers: str) -> ConsumerConfig:
    return ConsumerConfig.from_spark({"kafka.bootstrap.servers": kafka_servers})


@pytest.fixture
def unknown() -> str:
    return f"unknown-{uuid.uuid4().hex}"


def test_a_topic_that_nobody_has_read_is_missing_at_once(consumer: ConsumerConfig, unknown: str) -> None:
    asked: list[str] = []
    with pytest.raises(NotFound, match=unknown):
        wait_for_topics(consumer, [unknown], lambda topic: bool(asked.append(topic)))  # type: ignore[func-returns-value]
    assert asked == [unknown]


def test_a_topic_that_was_read_is_waited_for_and_believed_to_be_gone_in_the_end(
    consumer: ConsumerConfig, kafka_servers: str, unknown: str, make_topic: Callable[..., str]
) -> None:
    asked: list[str] = []

    def comes_back(topic: str) -> bool:
        asked.append(topic)
        create_topic(kafka_servers, topic, 1)
        return True

    wait_for_topics(consumer, [make_topic(1), unknown], comes_back)
    assert asked == [unknown], "once, and only of what Kafka does not know"
    gone = f"{unknown}-gone"
    began = time.monotonic()
    with pytest.raises(NotFound, match=gone):
        wait_for_topics(consumer, [gone], lambda topic: True, patience=1.5)
    assert time.monotonic() - began > 1.4
    over = iter([False, True])
    wait_for_topics(consumer, [gone], lambda topic: True, lambda: next(over))


def test_where_a_new_partition_begins_may_not_be_known_yet(
    consumer: ConsumerConfig, kafka_servers: str, unknown: str, make_topic: Callable[..., str]
) -> None:
    topic = Topic(kafka_servers, make_topic(1), 1)
    topic.put_numbers(range(3))
    assert earliest(consumer, topic.name, 0) == 0
    for name, partition in ((topic.name, 1), (unknown, 0)):
        with pytest.raises(Transient, match="yet"):
            earliest(consumer, name, partition)
