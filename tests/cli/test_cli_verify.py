from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import Headgate
from confluent_kafka import Producer
from stream_tables import COLUMNS, Record, Stream

from headgate.checkpoints.expiring import BeforePosition, expire
from headgate.checkpoints.rewinding import rewind
from headgate.shards.sharding import by_partition
from headgate.table import Table, create_table

pytestmark = pytest.mark.kafka

Sent = tuple[str, list[Record]]
Send = Callable[[list[tuple[bytes | None, bytes | None]]], Sent]


@pytest.fixture
def send(kafka_servers: str, make_topic: Callable[..., str]) -> Send:
    """Fills a topic of one partition: keys and values become records."""

    def fill(records: list[tuple[bytes | None, bytes | None]]) -> Sent:
        topic = make_topic()
        producer = Producer({"bootstrap.servers": kafka_servers, "enable.idempotence": True})
        for key, value in records:
            producer.produce(topic, value, key)
        producer.flush()
        return topic, [Record(0, offset, value, key) for offset, (key, value) in enumerate(records)]

    return fill


@pytest.fixture
def verify(headgate: Headgate, kafka_servers: str) -> Callable[..., tuple[int, dict[str, Any]]]:
    def call(table: Table, *topics: str) -> tuple[int, dict[str, Any]]:
        named = [word for topic in topics for word in ("--topic", topic)]
        result = headgate("verify", table.uri, "--servers", kafka_servers, *named, "--output", "json")
        return result.exit_code, json.loads(result.stdout or result.stderr)

    return call


def keyless(tmp_path: Path) -> Table:
    return create_table(str(tmp_path / "t"), COLUMNS, sharding=by_partition())


def keyed(tmp_path: Path) -> Table:
    return create_table(str(tmp_path / "t"), COLUMNS, "id", by_partition(key_is_partitioned=True))


def row(number: int, note: str = "n") -> bytes:
    return json.dumps({"id": number, "note": note}).encode()


ROWS = [(None, row(1)), (None, row(2)), (None, b"{"), (None, row(2)), (None, row(3))]
CHANGES = [
    (b"1", row(1, "a")),
    (b"2", row(2, "a")),
    (b"1", row(1, "b")),
    (b"2", None),
    (b"3", row(3, "a")),
    (None, None),
]


def test_every_row_once_holds_equal_rows_included(tmp_path: Path, send: Send, verify: Any) -> None:
    table = keyless(tmp_path)
    topic, records = send(ROWS)
    stream = Stream(table, topic)
    stream.commit([(0, 0, 2)], records[:2])
    stream.commit([(0, 2, 5)], records[2:])
    code, told = verify(table, topic)
    assert (code, told["holds"]) == (0, True)
    assert (told["records"], told["expected_rows"], told["rows"], told["dead_letters"]) == (5, 4, 4, 1)


def test_what_is_not_committed_yet_is_not_missed(tmp_path: Path, send: Send, verify: Any) -> None:
    table = keyless(tmp_path)
    topic, records = send(ROWS)
    Stream(table, topic).commit([(0, 1, 2)], records[1:2])
    code, told = verify(table, topic)
    assert (code, told["rows"]) == (0, 1)
    assert [(part["from"], part["until"]) for part in told["ranges"]] == [(1, 2)]


def test_a_stream_that_did_not_begin_with_its_first_batch_is_not_fine_unless_that_is_on_record(
    tmp_path: Path, send: Send, verify: Any
) -> None:
    """As a release left it that took any batch into an empty log."""
    table = keyless(tmp_path)
    topic, records = send(ROWS)
    stream = Stream(table, topic)
    stream._batch = 1
    stream.commit([(0, 3, 5)], records[3:])
    code, told = verify(table, topic)
    assert (code, told["holds"], told["lost"]) == (6, False, 0)
    assert "begins with batch 1 of query" in told["begins_late"][0]
    rewind(table.home, topic, {(topic, 0): 0})
    Stream(table, topic).commit([(0, 0, 5)], records)
    assert verify(table, topic)[1]["holds"]


def test_a_lost_row_is_found_and_shown(tmp_path: Path, send: Send, verify: Any) -> None:
    table = keyless(tmp_path)
    topic, records = send(ROWS)
    Stream(table, topic).commit([(0, 0, 5)], records[:4])
    code, told = verify(table, topic)
    assert (code, told["lost"], told["duplicates"], told["wrong"]) == (6, 1, 0, 0)
    assert told["examples"] == [{"fault": "lost", "topic": topic, "partition": 0, "row": {"id": 3, "note": "n"}}]


def test_rows_that_were_let_go_are_told_from_a_loss_as_far_as_that_can_be(
    tmp_path: Path, send: Send, verify: Any
) -> None:
    table = keyless(tmp_path)
    topic, records = send(ROWS)
    stream = Stream(table, topic)
    ((_, part),) = stream.commit([(0, 0, 2)], records[:2]).parts()
    stream.commit([(0, 2, 5)], records[2:])
    expire(table.home, [part.shard_id], BeforePosition(part.positions[-1] + 1), shard=part.shard_id)
    code, told = verify(table, topic)
    assert (code, told["holds"], told["lost"], told["duplicates"]) == (1, False, 2, 0)
    assert told["expired_entries"] > 0


def test_a_row_that_is_there_twice_is_found_and_shown(tmp_path: Path, send: Send, verify: Any) -> None:
    table = keyless(tmp_path)
    topic, records = send(ROWS)
    Stream(table, topic).commit([(0, 0, 5)], [*records, records[0]])
    code, told = verify(table, topic)
    assert (code, told["lost"], told["duplicates"], told["wrong"]) == (6, 0, 1, 0)
    assert [one["row"]["id"] for one in told["examples"]] == [1, 1]


def test_a_dead_letter_that_is_missing_or_there_twice_is_found(tmp_path: Path, send: Send, verify: Any) -> None:
    table = keyless(tmp_path)
    topic, records = send([*ROWS, (None, b"[")])
    Stream(table, topic).commit([(0, 0, 6)], [*records[:5], records[2]])
    code, told = verify(table, topic)
    assert (code, told["dead_letters"], told["dead_letters_lost"], told["dead_letters_extra"]) == (6, 2, 1, 1)


def test_on_a_keyed_table_the_newest_row_of_each_key_counts_and_deletes_do(
    tmp_path: Path, send: Send, verify: Any
) -> None:
    table = keyed(tmp_path)
    topic, records = send(CHANGES)
    stream = Stream(table, topic)
    stream.commit([(0, 0, 3)], records[:3])
    stream.commit([(0, 3, 6)], records[3:])
    code, told = verify(table, topic)
    assert (code, told["holds"]) == (0, True)
    assert (told["expected_rows"], told["rows"], told["dead_letters"]) == (2, 2, 1)


def test_an_old_version_and_a_row_that_came_back_are_wrong(tmp_path: Path, send: Send, verify: Any) -> None:
    table = keyed(tmp_path)
    topic, records = send(CHANGES)
    Stream(table, topic).commit([(0, 0, 6)], [records[0], records[1], records[4], records[5]])
    code, told = verify(table, topic)
    assert (code, told["lost"], told["duplicates"], told["wrong"]) == (6, 0, 0, 2)
    assert [(one["fault"], one["row"]) for one in told["examples"]] == [
        ("wrong", {"id": 1, "note": "a"}),
        ("wrong", {"id": 2, "note": "a"}),
    ]


@pytest.mark.parametrize("keys", [False, True], ids=["append", "keyed"])
def test_after_a_rewind_each_pass_is_expected_as_far_as_it_came(
    tmp_path: Path, send: Send, verify: Any, keys: bool
) -> None:
    table = keyed(tmp_path) if keys else keyless(tmp_path)
    topic, records = send(CHANGES if keys else ROWS)
    Stream(table, topic).commit([(0, 0, 5)], records[:5])
    rewind(table.home, topic, {(topic, 0): 1})
    assert verify(table, topic)[1]["holds"], "nothing was read again yet"
    # Keys show older values until the stream has caught up: that is what was asked for.
    Stream(table, topic).commit([(0, 1, 3)], records[1:3])
    code, told = verify(table, topic)
    assert (code, told["holds"], len(told["rewinds"])) == (0, True, 1), told
    assert [(part["from"], part["until"]) for part in told["ranges"]] == [(0, 5), (1, 3)]
    assert told["rows"] == (3 if keys else 5)
    Stream(table, topic).commit([(0, 3, 5)], [])
    assert verify(table, topic)[0] == 6, "what is missing from the second pass is missed"


def test_all_topics_of_a_table_are_verified_together(tmp_path: Path, send: Send, verify: Any) -> None:
    table = keyless(tmp_path)
    sent = [send(ROWS), send(ROWS[:2])]
    for topic, records in sent:
        Stream(table, topic).commit([(0, 0, len(records))], records)
    (first, _), (second, _) = sent
    code, told = verify(table, first)
    assert (code, told["error"]) == (2, "InvalidInput")
    assert second in told["what"]
    assert verify(table, first, second)[1]["rows"] == 6


def test_offsets_that_the_topic_no_longer_has_are_named(tmp_path: Path, send: Send, verify: Any) -> None:
    table = keyless(tmp_path)
    topic, records = send(ROWS)
    more = [Record(0, offset, row(offset)) for offset in range(5, 9)]
    Stream(table, topic).commit([(0, 0, 9)], [*records, *more])
    code, told = verify(table, topic)
    assert code == 2
    assert "[0, 9)" in told["what"]
    assert "[0, 5)" in told["what"]


def test_a_table_that_no_stream_wrote_to_cannot_be_verified(tmp_path: Path, send: Send, verify: Any) -> None:
    topic, _ = send(ROWS)
    code, told = verify(keyless(tmp_path), topic)
    assert code == 2
    assert "ingest" in told["next"]
