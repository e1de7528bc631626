"""Ranges of a topic, read over a network that breaks, stalls, crawls and loses answers: whole, in order, once."""

from __future__ import annotations

import threading

import pytest
from network import FAULTS, ProxiedKafka
from stream_runs import Topic

import headgate
from headgate.connectors.kafka.reader import offsets, read_range
from headgate.errors import Transient

# In `make test` a whole stream reads through the same faults.
pytestmark = [pytest.mark.kafka, pytest.mark.deep]


def test_ranges_are_read_whole_and_in_order_through_every_fault(kafka_behind_proxy: ProxiedKafka) -> None:
    broker, proxy = kafka_behind_proxy.broker, kafka_behind_proxy.proxy
    broker.create_topic("read", 1)
    topic = Topic(broker.servers, "read", 1)
    topic.put_numbers(range(500))
    consumer = headgate.kafka.source(kafka_behind_proxy.servers, "read").consumer
    assert offsets(consumer, "read") == {0: (0, 500)}
    for fault in FAULTS:
        proxy.begin(fault)
        ending = threading.Timer(1.5, proxy.end, [fault])
        ending.start()
        found = [one for batch in read_range(consumer, "read", 0, 0, 500) for one in batch["offset"].to_pylist()]
        ending.join()
        assert found == list(range(500)), fault.name
    proxy.cut()
    try:
        with pytest.raises(Transient) as caught:
            list(read_range(consumer, "read", 0, 0, 500, deadline=1.0))
    finally:
        proxy.mend()
    assert (caught.value.detail["topic"], caught.value.detail["partition"]) == ("read", 0)
