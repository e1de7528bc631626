"""Dead letters in groups, and on their way to a topic: without a broker, then with one."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer

import headgate
from headgate.cli import main
from headgate.connectors.kafka.producer import OutRecord
from headgate.connectors.kafka.topics import QUIET
from headgate.errors import InvalidInput, NotFound
from headgate.shards.sharding import by_partition
from headgate.steps import watching
from headgate.streaming import forward
from headgate.streaming.decode import api as decode
from headgate.streaming.forward import forward_dead_letters
from headgate.streaming.letters import dead_letter_summary
from headgate.table.table import Table
from tests.support.streams import COLUMNS, Record, Stream

NOWHERE = "127.0.0.1:1"
AT = datetime(2026, 11, 19, 8, tzinfo=UTC)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Six dead letters of one stream, in two batches and two partitions."""
    sharding = by_partition(key_is_partitioned=True)
    table = headgate.create_table(str(tmp_path / "orders"), COLUMNS, primary_key="id", sharding=sharding)
    orders = Stream(table, "orders", 2)
    wrong = [b'{"id": "a"}', b'{"id": "b", "note": "x"}', b'{"id": 1, "note": 7}', b"garbage"]
    orders.commit([(0, 0, 5)], [Record(0, at, value, b"k%d" % at) for at, value in enumerate([*wrong, b'{"id": 5}'])])
    late = [Record(1, 0, b'{"id": "c"}', b"k"), Record(1, 1, None, b"?")]
    orders.commit([(1, 0, 2)], late)
    return table


class Sent:
    """What stands in for Kafka where a step is all that matters."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ids: list[str] = []
        self.records: list[OutRecord] = []
        monkeypatch.setattr(forward, "check_topic", lambda config, topic: None)
        monkeypatch.setattr(forward, "send", self._send)

    def _send(self, config: object, topic: str, records: Iterable[OutRecord]) -> int:
        for record in records:
            self.records.append(record)
            self.ids.append((dict(record.headers)["headgate.id"] or b"").decode())
        return len(self.records)


def run(table: Table, *, apply: bool = True, topic: str = "dead") -> Any:
    return forward_dead_letters(table, stream="orders", topic=topic, servers=NOWHERE, apply=apply)


# -- summary -------------------------------------------------------------------------------


def test_letters_are_counted_by_partition_field_and_reason_with_the_first_as_example(table: Table) -> None:
    found = dead_letter_summary(table)
    first = found[0]
    assert (first.partition, first.field, first.letters, first.waiting) == (0, "id", 2, 2)
    assert first.reason == "wanted a whole number, got a string …"
    assert (first.example["offset"], first.example["value"]) == (0, b'{"id": "a"}')
    assert Counter((one.partition, one.field, one.letters) for one in found) == Counter(
        [(0, "id", 2), (0, "note", 1), (0, None, 1), (1, "id", 1), (1, None, 1)]
    )
    assert sum(one.letters for one in found) == 6
    headgate.replay_dead_letters(
        table, stream="orders", decode=decode.json(COLUMNS, coerce="number_to_string"), apply=True
    )
    waiting = {(one.partition, one.field): one.waiting for one in dead_letter_summary(table, stream="orders")}
    assert waiting[0, "note"] == 0
    with pytest.raises(NotFound, match="Stream 'other' not found"):
        dead_letter_summary(table, stream="other")


def test_the_command_shows_the_groups_as_text_and_json(table: Table) -> None:
    def shown(*options: str) -> str:
        return CliRunner().invoke(main, ["dead-letters", "summary", table.uri, *options], catch_exceptions=False).output

    assert "wanted a whole number, got a string …" in shown()
    lines = [json.loads(line) for line in shown("--output", "json").splitlines()]
    assert lines[0]["example"]["key"] == "k0"
    assert [line["letters"] for line in lines] == [2, 1, 1, 1, 1]


# -- forwarding ----------------------------------------------------------------------------------


def test_letters_are_sent_once_in_the_usual_case_and_new_ones_later(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = Sent(monkeypatch)
    before = set(table.home.store.list_keys(""))
    assert run(table, apply=False).letters == 6
    assert set(table.home.store.list_keys("")) == before
    assert run(table).letters == 6
    assert (run(table).letters, len(sent.ids), len(set(sent.ids))) == (0, 6, 6)
    Stream(table, "orders", 2).commit([(0, 5, 6)], [Record(0, 5, b"late", b"k", AT, [{"key": "h", "value": b"1"}])])
    assert run(table).letters == 1
    last = sent.records[-1]
    assert (last.key, last.value, last.timestamp_ms) == (b"k", b"late", int(AT.timestamp() * 1000))
    assert last.headers[0] == ("h", b"1")
    assert dict(last.headers)["headgate.offset"] == b"5"
    assert len(list(table.home.records.list_keys("forwards/"))) == 1, "older records of progress are gone"
    assert run(table, topic="elsewhere").letters == 7
    assert headgate.fsck(table).holds


def test_a_crash_at_any_step_leaves_no_letter_out(
    table: Table, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Crash(BaseException): ...

    monkeypatch.setattr(forward, "CHUNK_BYTES", 1)
    every = Sent(monkeypatch)
    steps: list[str] = []
    with watching(steps.append):
        run(table, topic="dry")
    assert {"send", "sent", "noted"} <= set(steps)
    for number in range(len(steps)):
        sent = Sent(monkeypatch)
        left = iter(range(number))

        def pause(_: str, left: Any = left) -> None:
            if next(left, None) is None:
                raise Crash

        with pytest.raises(Crash), watching(pause):
            run(table, topic=f"crash-{number}")
        run(table, topic=f"crash-{number}")
        assert set(sent.ids) == set(every.ids), steps[number]
        assert len(sent.ids) <= len(every.ids) + 4, "what a crash sends twice is one chunk"


def test_two_at_once_leave_no_letter_out_and_go_on_together(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "CHUNK_BYTES", 1)
    sent = Sent(monkeypatch)
    others = iter([1])

    def meanwhile(step: str) -> None:
        if step == "sent" and next(others, None):
            run(table)

    with watching(meanwhile):
        run(table)
    assert len(set(sent.ids)) == 6
    assert run(table).letters == 0


def test_a_topic_that_the_stream_reads_is_refused(table: Table) -> None:
    with pytest.raises(InvalidInput, match="would come back"):
        run(table, topic="orders")
    with pytest.raises(NotFound, match="not found"):
        forward_dead_letters(table, stream="other", topic="dead", servers=NOWHERE)


@pytest.mark.kafka
def test_letters_arrive_in_a_real_topic(table: Table, kafka_servers: str, make_topic: Callable[..., str]) -> None:
    topic = make_topic(1)
    command = ["dead-letters", "forward", table.uri, "--stream", "orders", "--servers", kafka_servers, "--topic", topic]
    for letters in (6, 0):
        done = CliRunner().invoke(main, [*command, "--apply", "--output", "json"], catch_exceptions=False)
        assert json.loads(done.output)["letters"] == letters
    settings = {"bootstrap.servers": kafka_servers, "group.id": topic, "auto.offset.reset": "earliest"}
    consumer = Consumer(settings, logger=QUIET)
    consumer.subscribe([topic])
    found: list[Any] = []
    while len(found) < 6:
        found += consumer.consume(6, timeout=60)
    consumer.close()
    headers = [dict(one.headers()) for one in found]
    assert len({one["headgate.id"] for one in headers}) == 6
    assert sorted((one["headgate.partition"], one["headgate.offset"]) for one in headers) == [
        (b"0", b"0"),
        (b"0", b"1"),
        (b"0", b"2"),
        (b"0", b"3"),
        (b"1", b"0"),
        (b"1", b"1"),
    ]
    assert {one.value() for one in found} >= {b"garbage", None}
    with pytest.raises(NotFound, match="no topic"):
        forward_dead_letters(table, stream="orders", topic=f"{topic}-none", servers=kafka_servers, apply=True)
