from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from headgate.checkpoints.jobs.flush import run_here
from headgate.checkpoints.offline.retention import BeforePosition, expire
from headgate.checkpoints.spark.rewind import rewind
from headgate.checkpoints.stream.checkpoint import stop_stream
from headgate.cli.commands.verify import _in_short
from headgate.shards.rows.schema import RowSchema
from headgate.shards.sharding import by_partition
from headgate.streaming.decode import api as decode
from headgate.streaming.decode.provenance import Provenance, provenance_value
from headgate.streaming.replay import replay_dead_letters
from headgate.streaming.verify.history import CommittedRange, Era
from headgate.table.create import create_table
from headgate.table.table import Table
from tests.cli.calls import Headgate
from tests.support.registry import AUTH, serving, wire
from tests.support.streams import COLUMNS, Record, Stream

pytestmark = pytest.mark.kafka

Sent = tuple[str, list[Record]]
Send = Callable[[Sequence[tuple[bytes | None, bytes | None]]], Sent]


@pytest.fixture
def send(kafka_servers: str, make_topic: Callable[..., str]) -> Send:
    """Fills a topic of one partition: keys and values become records."""

    def fill(records: Sequence[tuple[bytes | None, bytes | None]]) -> Sent:
        topic = make_topic()
        producer = Producer({"bootstrap.servers": kafka_servers, "enable.idempotence": True})
        for key, value in records:
            producer.produce(topic, value, key)
        producer.flush()
        return topic, [Record(0, offset, value, key) for offset, (key, value) in enumerate(records)]

    return fill


@pytest.fixture
def verify(headgate: Headgate, kafka_servers: str) -> Callable[..., tuple[int, dict[str, Any]]]:
    def call(table: Table, *topics: str, more: tuple[str, ...] = ()) -> tuple[int, dict[str, Any]]:
        named = [word for topic in topics for word in ("--topic", topic)]
        result = headgate("verify", table.uri, "--servers", kafka_servers, *named, *more, "--output", "json")
        return result.exit_code, json.loads(result.stdout or result.stderr)

    return call


def keyless(tmp_path: Path) -> Table:
    return create_table(str(tmp_path / "t"), COLUMNS, sharding=by_partition())


def keyed(tmp_path: Path) -> Table:
    return create_table(str(tmp_path / "t"), COLUMNS, primary_key="id", sharding=by_partition(key_is_partitioned=True))


def json_of(table: Table) -> dict[str, Any]:
    """What a stream records that reads JSON by the table's columns."""
    return provenance_value(decode.json(table.schema), table.home.schema, changed=False)


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


def test_a_range_fits_on_a_line_of_text() -> None:
    json_rows, raw_rows = (Provenance(kind, RowSchema.of(COLUMNS), None) for kind in ("json", "raw"))
    eras = [Era(0, 3, json_rows, False), Era(3, 5, raw_rows, True)]
    plain = CommittedRange("s", "t", 0, 0, 5, True)
    assert _in_short(plain.value(eras[:1])) == {
        "stream": "s",
        "topic": "t",
        "partition": 0,
        "from": 0,
        "until": 5,
        "decoded_by": "json",
    }
    unusual = _in_short(replace(plain, start_known=False, ended_by=7).value(eras))
    assert (unusual["start_known"], unusual["ended_by_rewind"]) == (False, 7)
    assert unusual["decoded_by"] == "json from 0, raw (assumed) from 3"


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
    Stream(table, topic, decoder=json_of(table)).commit([(0, 0, 5)], records[:4])
    code, told = verify(table, topic)
    assert (code, told["lost"], told["duplicates"], told["wrong"]) == (6, 1, 0, 0)
    lost = {"fault": "lost", "key": None, "column": None, "expected": {"id": 3, "note": "n"}, "found": None}
    assert told["examples"] == [{**lost, "stream": topic, "topic": topic, "partition": 0, "offset": 4}]


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
    Stream(table, topic, decoder=json_of(table)).commit([(0, 0, 5)], [*records, records[0]])
    code, told = verify(table, topic)
    assert (code, told["lost"], told["duplicates"], told["wrong"]) == (6, 0, 1, 0)
    assert [one["found"]["id"] for one in told["examples"]] == [1, 1]


def test_a_dead_letter_that_is_missing_or_there_twice_is_found(tmp_path: Path, send: Send, verify: Any) -> None:
    table = keyless(tmp_path)
    topic, records = send([*ROWS, (None, b"[")])
    Stream(table, topic, decoder=json_of(table)).commit([(0, 0, 6)], [*records[:5], records[2]])
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


def test_of_an_old_version_and_of_a_row_that_came_back_key_column_and_both_values_are_shown(
    tmp_path: Path, send: Send, verify: Any
) -> None:
    table = keyed(tmp_path)
    topic, records = send(CHANGES)
    Stream(table, topic, decoder=json_of(table)).commit([(0, 0, 6)], [records[0], records[1], records[4], records[5]])
    code, told = verify(table, topic)
    assert (code, told["lost"], told["duplicates"], told["wrong"]) == (6, 0, 0, 2)
    assert told["examples"] == [
        {"fault": "wrong", "key": {"id": 1}, "column": "note", "expected": "b", "found": "a"},
        {"fault": "wrong", "key": {"id": 2}, "column": None, "expected": None, "found": {"id": 2, "note": "a"}},
    ]


@pytest.mark.parametrize("keys", [False, True], ids=["append", "keyed"])
def test_after_a_rewind_each_pass_is_expected_as_far_as_it_came(
    tmp_path: Path, send: Send, verify: Any, keys: bool
) -> None:
    table = keyed(tmp_path) if keys else keyless(tmp_path)
    topic, records = send(CHANGES if keys else ROWS)
    Stream(table, topic, decoder=json_of(table)).commit([(0, 0, 5)], records[:5])
    rewind(table.home, topic, {(topic, 0): 1})
    assert verify(table, topic)[1]["holds"], "nothing was read again yet"
    # Keys show older values until the stream has caught up: that is what was asked for.
    Stream(table, topic, decoder=json_of(table)).commit([(0, 1, 3)], records[1:3])
    code, told = verify(table, topic)
    assert (code, told["holds"], len(told["rewinds"])) == (0, True, 1), told
    assert [(part["from"], part["until"]) for part in told["ranges"]] == [(0, 5), (1, 3)]
    assert told["rows"] == (3 if keys else 5)
    Stream(table, topic, decoder=json_of(table)).commit([(0, 3, 5)], [])
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
    assert code == 3
    assert "ingest" in told["next"]


AVRO = {"type": "record", "name": "r", "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": "string"}]}


def change(op: str, number: int, note: str) -> bytes:
    return json.dumps({"op": op, "before": {"id": number}, "after": {"id": number, "note": note}}).encode()


@pytest.mark.parametrize("kind", ["json", "debezium", "avro", "raw"])
def test_records_are_decoded_as_their_stream_recorded_it(tmp_path: Path, send: Send, verify: Any, kind: str) -> None:
    sharding = by_partition(key_is_partitioned=kind == "debezium")
    columns = pa.schema([("payload", pa.binary())]) if kind == "raw" else COLUMNS
    table = create_table(
        str(tmp_path / "t"), columns, primary_key="id" if kind == "debezium" else None, sharding=sharding
    )
    secret: str | None = None
    values = [row(1), b"{", row(2)]
    with serving({"/schemas/ids/7": (200, {"schema": json.dumps(AVRO)})}) as registry:
        if kind == "debezium":
            values = [change("c", 1, "a"), change("c", 2, "a"), b"{", change("u", 1, "b"), change("d", 2, "")]
            made: decode.Decoder = decode.debezium(table.schema)
        elif kind == "avro":
            values, secret = [wire(AVRO, {"id": 1, "note": "a"}), b"no", wire(AVRO, {"id": 2, "note": "b"})], AUTH
            made = decode.avro(table.schema, registry=registry, auth=AUTH)
        else:
            made = decode.raw("payload") if kind == "raw" else decode.json(table.schema)
        topic, records = send([(None, value) for value in values])
        told = provenance_value(made, table.home.schema, changed=False)
        Stream(table, topic, decode=made, decoder=told).commit([(0, 0, len(values))], records)
        code, report = verify(table, topic, more=() if secret is None else ("--registry-auth", secret))
    assert (code, report["holds"], report["unjudged"]) == (0, True, []), report
    assert report["rows"] == {"json": 2, "debezium": 1, "avro": 2, "raw": 3}[kind]
    assert [one["decoder"] for part in report["ranges"] for one in part["decoded_by"]] == [kind]
    assert "secret" not in "".join(path.read_text() for path in (tmp_path / "t" / "_headgate").rglob("log/*.json"))


def test_a_stream_that_did_not_record_its_decoder_is_not_called_lost_and_takes_one(
    tmp_path: Path, send: Send, verify: Any
) -> None:
    table = keyed(tmp_path)
    topic, records = send([(None, change("c", 1, "a")), (None, change("u", 1, "b"))])
    Stream(table, topic, decode=decode.debezium(table.schema)).commit([(0, 0, 2)], records)
    code, told = verify(table, topic)
    assert (code, told["holds"]) == (1, False)
    assert "--decode" in told["doubts"][0]
    assert verify(table, topic, more=("--decode", "debezium"))[0] == 0
    # From here on it says it, and what came before is still as told.
    more = provenance_value(decode.debezium(table.schema), table.home.schema, changed=False)
    Stream(table, topic, decode=decode.debezium(table.schema), decoder=more).commit([(0, 2, 2)], [])
    assert verify(table, topic)[0] == 0


def test_each_record_is_judged_by_the_columns_of_its_time(tmp_path: Path, send: Send, verify: Any) -> None:
    table = create_table(str(tmp_path / "t"), COLUMNS, sharding=by_partition())
    values = [{"id": n, "note": f"n{n}", "more": n, "remark": "r"} for n in range(4)]
    topic, records = send([(None, json.dumps(value).encode()) for value in values])

    def commit(at: int) -> None:
        now = table.refreshed()
        Stream(now, topic, decoder=json_of(now)).commit([(0, at, at + 1)], records[at : at + 1])

    commit(0)
    table.add_column(pa.field("more", pa.int64()))
    commit(1)
    table.rename_column("note", "remark")
    commit(2)
    assert verify(table, topic)[0] == 0
    table.drop_column("more")
    commit(3)
    code, told = verify(table, topic)
    assert (code, told["holds"]) == (0, True), told
    shown = sorted(tuple(one.values()) for batch in table.refreshed().scan() for one in batch.to_pylist())
    assert shown == [(0, "n0"), (1, "n1"), (2, "r"), (3, "r")]
    assert [one["from"] for one in told["ranges"][0]["decoded_by"]] == [0, 1, 2, 3]


def test_of_rows_that_spark_made_offsets_and_counts_are_judged_and_that_is_said(
    tmp_path: Path, send: Send, verify: Any
) -> None:
    table = keyless(tmp_path)
    topic, records = send([(None, b"one"), (None, b"two"), (None, b"three")])
    made = [Record(0, one.offset, row(len(one.value or b""))) for one in records]
    spark = provenance_value(None, table.home.schema, changed=True)
    Stream(table, topic, decoder=spark).commit([(0, 0, 3)], made)
    code, told = verify(table, topic)
    assert (code, told["holds"], told["rows"]) == (0, True, 3)
    (sentence,) = told["unjudged"]
    assert "rows were computed in Spark" in sentence
    assert "offsets and row counts" in sentence
    with table.writer("partition:other:0") as writer:
        writer.put(pa.RecordBatch.from_pylist([{"id": 7, "note": "x"}], schema=COLUMNS))
    assert verify(table, topic)[1]["wrong"] == 1, "one row too many is found by counting"


def test_a_replayed_letter_is_the_row_that_the_replay_made(tmp_path: Path, send: Send, verify: Any) -> None:
    table = keyed(tmp_path)
    topic, records = send([(None, row(1)), (None, change("c", 2, "b")), (None, row(3)), (None, row(2, "later"))])
    Stream(table, topic, decoder=json_of(table)).commit([(0, 0, 3)], records[:3])
    done = replay_dead_letters(table, stream=topic, decode=decode.debezium(table.schema), apply=True)
    assert done.rows == 1
    code, told = verify(table, topic)
    assert (code, told["dead_letters"], told["rows"]) == (0, 1, 3), told
    Stream(table, topic, decoder=json_of(table)).commit([(0, 3, 4)], records[3:])
    code, told = verify(table, topic)
    assert (code, told["holds"]) == (0, True), "what came after the replay is newer than the replayed row"


def test_a_replayed_letter_is_newer_than_the_rows_before_it_also_after_clean_stops(
    tmp_path: Path, send: Send, verify: Any
) -> None:
    """Each stop folds the log and puts one more open record; the record of the batch before the replay is gone."""
    table = keyed(tmp_path)
    topic, records = send([(None, change("c", 2, "letter")), (None, row(2, "old"))])
    stream = Stream(table, topic, mode="memtable", decoder=json_of(table))
    stream.commit([(0, 0, 2)], records)
    stop_stream(stream._driver, table.shard_ids(), run_here, max_bytes=1 << 20, keep=2)
    replay_dead_letters(table, stream=topic, decode=decode.debezium(table.schema), apply=True, overwrite=True)
    code, told = verify(table, topic)
    assert (code, told["holds"]) == (0, True), told
