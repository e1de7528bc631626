"""Where topics end and what waits there, as the console asks a real broker."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import headgate
from headgate.console.server import Console
from headgate.console.watch import kafka
from headgate.dev.ports import free_port
from tests.console.test_pages import words
from tests.support.consoles import COLUMNS, ask, console_of, value
from tests.support.producing import abort, produce
from tests.support.runs import until
from tests.support.services import MakeTopic
from tests.support.streams import Record, Stream


def shows(console: Console, *wanted: str) -> None:
    """Waits until the stream's page says all of it."""
    until(lambda: all(re.search(one, words(ask(console, "/t/orders/stream").text)) for one in wanted))


@pytest.mark.kafka
def test_ends_are_kafka_s_own(
    tmp_path: Path, kafka_servers: str, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka, "EVERY", 0.2)
    topic = make_topic(2)
    produce(kafka_servers, topic, [value(n) for n in range(30)])
    produce(kafka_servers, topic, [value(n) for n in range(20)], 1)
    table = headgate.create_table(str(tmp_path / "orders"), COLUMNS, sharding=headgate.by_partition())
    stream = Stream(table, topic, 2)
    stream.commit([(0, 0, 10), (1, 0, 20)], [Record(0, n, value(n)) for n in range(10)])
    with console_of(table.uri, servers=kafka_servers) as console:
        shows(console, "20 rows are on their way", "Kafka 2 partitions 20 rows wait", f"{topic}/0 0 10 30 20 ")
        shows(console, f"{topic}/1 0 20 20 0 ")
        assert "lag 20" in words(ask(console, "/").text)
        # The end of a transaction is an offset without a row: it is no lag once the stream has read past it.
        abort(kafka_servers, topic, [value(30), value(31)])
        stream.commit([(0, 10, 33)], [Record(0, n, value(n)) for n in range(10, 30)])
        shows(console, "everything in Kafka is in the table", f"{topic}/0 0 33 33 0 ")


def test_a_broker_that_does_not_answer_is_told_and_delays_no_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka, "PATIENCE", 0.5)
    table = headgate.create_table(str(tmp_path / "orders"), COLUMNS, sharding=headgate.by_partition())
    Stream(table, "t", 1).commit([(0, 0, 1)], [Record(0, 0, value(0))])
    with console_of(table.uri, servers=f"127.0.0.1:{free_port()}") as console:
        shows(console, "needs attention", "Kafka was asked where its topics end", "t/0 0 1 – – partition:t:0")
