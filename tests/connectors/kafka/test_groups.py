from __future__ import annotations

import time

import pytest
from confluent_kafka import Consumer

from headgate.connectors.kafka.groups import commit_group
from headgate.connectors.kafka.options import ConsumerConfig
from headgate.connectors.kafka.topics import QUIET
from headgate.dev.broker import LocalBroker
from headgate.errors import InvalidInput
from headgate.streaming.observe.group import KafkaProgress
from tests.support.groups import group_offsets

pytestmark = pytest.mark.kafka


def config(servers: str) -> ConsumerConfig:
    return ConsumerConfig.from_spark({"kafka.bootstrap.servers": servers})


def test_offsets_of_a_group_are_what_was_written_last_and_a_group_with_members_refuses_them(
    kafka_servers: str, make_topic: object
) -> None:
    topic, group = make_topic(2), f"group-{time.monotonic_ns()}"  # type: ignore[operator]
    cluster = config(kafka_servers)
    commit_group(cluster, group, {(topic, 0): 5, (topic, 1): 0})
    commit_group(cluster, group, {(topic, 0): 7})
    assert group_offsets(cluster, group, [(topic, 0), (topic, 1)]) == {(topic, 0): 7, (topic, 1): 0}
    member = Consumer({"bootstrap.servers": kafka_servers, "group.id": group}, logger=QUIET)
    try:
        member.subscribe([topic])
        until = time.monotonic() + 30
        while not member.assignment() and time.monotonic() < until:
            member.poll(0.1)
        with pytest.raises(InvalidInput, match="members"):
            commit_group(cluster, group, {(topic, 0): 8})
    finally:
        member.close()


@pytest.mark.deep
def test_a_broker_that_is_away_is_no_matter_and_gets_the_newest_offsets_when_it_is_back(
    own_broker: LocalBroker,
) -> None:
    own_broker.create_topic("t")
    cluster = config(own_broker.servers)
    progress = KafkaProgress(cluster, "lag", "orders")
    progress.update({("t", 0): 1})
    until = time.monotonic() + 30
    while not progress.is_current and time.monotonic() < until:
        time.sleep(0.05)
    own_broker.kill()
    began = time.monotonic()
    for end in range(2, 100):
        progress.update({("t", 0): end})
    assert time.monotonic() - began < 20, "a broker that is away is waited for longer, each time"
    own_broker.start()
    until = time.monotonic() + 60
    while not progress.is_current and time.monotonic() < until:
        time.sleep(0.1)
    assert group_offsets(cluster, "lag", [("t", 0)]) == {("t", 0): 99}
    assert progress.stop()
