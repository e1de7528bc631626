"""Ranges of a topic, read over a network that breaks, stalls, crawls and loses answers: whole, in order, once."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager

import pytest

import headgate
from headgate.connectors.kafka import reader
from headgate.connectors.kafka.consumers import Lent
from headgate.connectors.kafka.options import ConsumerConfig
from headgate.connectors.kafka.reader import offsets, read_range
from headgate.errors import Transient
from tests.support.network import CRAWL, FAULTS, ProxiedKafka
from tests.support.runs import Topic

pytestmark = pytest.mark.kafka

# In `make test` a whole stream reads through the same faults.
deep = pytest.mark.deep


@deep
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


@deep
def test_a_range_with_more_behind_it_than_a_slow_network_brings_in_time_is_read_by_smaller_fetches(
    kafka_behind_proxy: ProxiedKafka,
) -> None:
    """One fetch of librdkafka asks for a megabyte of what there is, whatever the range is: minutes here."""
    broker = kafka_behind_proxy.broker
    broker.create_topic("behind", 1)
    topic = Topic(broker.servers, "behind", 1)
    for first in range(0, 4000, 100):
        topic.put_numbers(range(first, first + 100))
    consumer = headgate.kafka.source(kafka_behind_proxy.servers, "behind").consumer
    with kafka_behind_proxy.proxy.under(CRAWL):
        found = [one for batch in read_range(consumer, "behind", 0, 0, 150) for one in batch["offset"].to_pylist()]
    assert found == list(range(150))


def test_after_an_outage_a_range_is_read_by_usual_fetches_again(
    kafka_behind_proxy: ProxiedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, proxy = kafka_behind_proxy.broker, kafka_behind_proxy.proxy
    broker.create_topic("again", 1)
    Topic(broker.servers, "again", 1).put_numbers(range(2000))
    consumer = headgate.kafka.source(kafka_behind_proxy.servers, "again").consumer
    usual: list[bool] = []
    lend = reader.lend  # type: ignore[attr-defined]

    def lent(config: ConsumerConfig) -> AbstractContextManager[Lent]:
        if config in (consumer, small):
            usual.append(config == consumer)
        if config == small:
            # The outage ends here; who comes next has all the time there is.
            proxy.mend()
            monkeypatch.setattr(reader, "_AS_USUAL", 0.9)
        return lend(config)

    small = consumer.fetching_at_most(reader._SMALL)
    monkeypatch.setattr(reader, "lend", lent)
    # The first client waits for two seconds of silence. As soon as the one of small fetches brings something, its
    # spell is over.
    monkeypatch.setattr(reader, "_AS_USUAL", 2 / 60)
    monkeypatch.setattr(reader, "_SMALL_SPELL", 0.0)
    proxy.cut()
    batches = list(read_range(consumer, "again", 0, 0, 2000, max_rows=20, deadline=60.0))
    assert [one for batch in batches for one in batch["offset"].to_pylist()] == list(range(2000))
    assert usual == [True, False, True]
