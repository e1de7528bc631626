"""Kafka's own columns beside what the value holds: as Kafka has them, or the record is bad."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headgate
from headgate.checkpoints.log.dead_letters import read_dead_letters
from headgate.connectors.kafka.rows import row_schema
from headgate.errors import InvalidInput
from headgate.shards.rows.schema import TOMBSTONE, RowSchema
from headgate.shards.sharding import Single
from headgate.streaming.decode import api as decode
from headgate.streaming.decode.contract import Decoder
from headgate.streaming.decode.metadata import KAFKA, WithMetadata, parse_metadata
from headgate.streaming.replay import replay_dead_letters
from headgate.streaming.write.rows import RowMaker
from tests.support.life import KEYED
from tests.support.streams import Record, Stream

AT = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
ALL = ("key", "topic", "partition", "offset", "timestamp", "headers")
HEADERS: list[dict[str, Any]] = [{"key": "trace", "value": b"\xff"}, {"key": "trace", "value": None}]


def records(*values: bytes | None, keys: list[bytes | None] | None = None, **more: Any) -> pa.RecordBatch:
    count = len(values)
    found: dict[str, Any] = {
        "value": values,
        "key": keys or [b"k%d" % n for n in range(count)],
        "topic": ["t"] * count,
        "partition": [3] * count,
        "offset": range(10, 10 + count),
        "timestamp": [AT] * count,
        "headers": [HEADERS, *[None] * (count - 1)],
        **more,
    }
    schema = row_schema(["value", *ALL])
    return pa.RecordBatch.from_arrays([pa.array(found[field.name], field.type) for field in schema], schema=schema)


def made(decoder: Decoder, batch: pa.RecordBatch, schema: pa.Schema | None = None, **more: Any) -> Any:
    maker = RowMaker(RowSchema.of(decoder.schema if schema is None else schema), Single(), decoder, **more)
    found = maker.make(batch)
    rows = [row for part in found.parts for row in part.rows.drop_columns([TOMBSTONE]).to_pylist()]
    return rows, dict(found.bad)


def test_kafka_has_what_the_reader_gives() -> None:
    assert row_schema(KAFKA.names) == KAFKA


def test_columns_are_filled_with_what_kafka_says_of_each_record() -> None:
    rows, bad = made(decode.json("id bigint", metadata=ALL), records(b'{"id": 1, "key": 9}', b"no", b'{"id": 2}'))
    beside = {"topic": "t", "partition": 3, "timestamp": AT}
    assert rows == [
        {"id": 1, "key": b"k0", "offset": 10, "headers": HEADERS, **beside},
        {"id": 2, "key": b"k2", "offset": 12, "headers": None, **beside},
    ]
    assert list(bad) == [1]


def test_columns_may_have_names_and_types_of_their_own() -> None:
    ddl = "sku string, who string, at timestamp, partition bigint"
    decoder = decode.json(ddl, metadata={"who": "key", "at": "timestamp", "partition": "partition", "from": "topic"})
    batch = records(b'{"sku": "a", "who": "?", "at": 7}', keys=[b"me"]).drop_columns(["topic"])
    rows, bad = made(decoder, batch, topic="t")
    assert (rows, bad) == ([{"sku": "a", "who": "me", "at": AT, "partition": 3, "from": "t"}], {})


def test_what_a_column_cannot_hold_is_a_bad_record_and_costs_no_other_row() -> None:
    columns = pa.schema(
        [pa.field("id", pa.int64()), pa.field("key", pa.string(), False), ("at", pa.timestamp("s", "UTC"))]
    )
    decoder = decode.json(columns, metadata={"key": "key", "at": "timestamp"})
    times = [AT.replace(microsecond=0), AT, *[AT.replace(microsecond=0)] * 3]
    values = [b'{"id": %d}' % n for n in range(5)]
    rows, bad = made(decoder, records(*values, keys=[b"a", b"b", b"\xff", None, b"e"], timestamp=times))
    assert [row["id"] for row in rows] == [0, 4]
    assert bad == {
        1: "column 'at': timestamp[s, tz=UTC] cannot hold the record's timestamp",
        2: "column 'key': string cannot hold the record's key",
        3: "column 'key' must not be null",
    }


@pytest.mark.parametrize(
    ("decoder", "value"),
    [
        (decode.raw("value", kind=pa.string(), metadata=("offset",)), b"text"),
        (decode.debezium(KEYED, metadata=("offset",)), b'{"op": "c", "after": {"id": 1, "note": "n"}}'),
        (decode.avro("id bigint", schemas={7: '"long"'}, metadata=("offset",)), b"\0\0\0\0\x07\x02"),
    ],
    ids=["raw", "debezium", "avro"],
)
def test_every_decoder_takes_them(decoder: Decoder, value: bytes) -> None:
    rows, bad = made(decoder, records(value, value))
    assert ([row["offset"] for row in rows], bad) == ([10, 11], {})


def test_deletes_stay_deletes() -> None:
    decoder = decode.debezium(KEYED, metadata=("offset",))
    delete = b'{"op": "d", "before": {"id": 5}}'
    maker = RowMaker(RowSchema.of(decoder.schema), Single(), decoder)
    (part,) = maker.make(records(delete, None, keys=[None, b'{"payload": {"id": 6}}'])).parts
    assert part.rows.select(["id", TOMBSTONE]).to_pylist() == [{"id": n, TOMBSTONE: True} for n in (5, 6)]


@pytest.mark.parametrize(
    ("ddl", "metadata", "said"),
    [
        ("id bigint", ("timestmp",), "did you mean 'timestamp'"),
        ("id bigint", "timestamp", "must be a list of names"),
        (
            "id bigint, timestamp bigint",
            ("timestamp",),
            "'timestamp' has type int64, but Kafka's",
        ),
        ("id bigint, offset int", ("offset",), "declare the column as int64"),
        ("id bigint, topic binary", ("topic",), "'topic' has type binary"),
        ("key binary", ("key",), "at least one column"),
    ],
)
def test_what_cannot_be_is_refused_when_the_decoder_is_made(ddl: str, metadata: Any, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        decode.json(ddl, metadata=metadata)


def test_a_decoder_that_follows_the_table_takes_the_table_s_types(tmp_path: Path) -> None:
    table = headgate.create_table(tmp_path / "t", "id bigint, seen timestamp, key string")
    decoder = decode.json(metadata={"seen": "timestamp", "key": "key"}).of(table)
    assert isinstance(decoder, WithMetadata)
    rows, _ = made(decoder, records(b'{"id": 1, "seen": "2001-01-01"}'), table.schema)
    assert rows == [{"id": 1, "seen": AT, "key": "k0"}]


def test_text_names_them_too() -> None:
    assert parse_metadata(["key", " at=timestamp "]) == {"key": "key", "at": "timestamp"}


def test_dead_letters_keep_them_for_their_replay(tmp_path: Path) -> None:
    """A letter whose stream did not read them is not replayed with nulls in their place."""
    table = headgate.create_table(
        tmp_path / "t",
        "id bigint, at timestamp, headers array<struct<key: string, value: binary>>",
        sharding=headgate.by_partition(),
    )
    wanted = {"at": "timestamp", "headers": "headers"}
    plain = Stream(table, "plain")
    plain.commit([(0, 0, 1)], [Record(0, 0, b"bare")])
    full = Stream(table, "full", decode=decode.json("id bigint", metadata=wanted))
    full.commit([(0, 0, 2)], [Record(0, 0, b"1", timestamp=AT, headers=HEADERS), Record(0, 1, b"2", timestamp=AT)])
    letters = {name: pa.concat_tables(read_dead_letters(table.home, name)).to_pylist() for name in ("plain", "full")}
    assert [row["timestamp"] for row in letters["plain"]] == [None]
    assert [(row["timestamp"], row["headers"]) for row in letters["full"]] == [(AT, HEADERS), (AT, None)]

    class Numbers:
        schema = pa.schema([("id", pa.int64())])

        def decode(self, values: pa.Array) -> Any:
            texts = [json.dumps({"id": len(value)}).encode() for value in values.to_pylist()]
            return decode.json(self.schema).decode(pa.array(texts, pa.binary()))

    mended = WithMetadata(Numbers(), pa.schema([table.schema.field(name) for name in wanted]), tuple(wanted.values()))
    refused = replay_dead_letters(table, stream="plain", decode=mended, apply=True)
    assert (refused.rows, refused.refused) == (0, 1)
    assert "has no Kafka columns" in refused.examples[0]["error"]
    assert replay_dead_letters(table, stream="full", decode=mended, apply=True).rows == 2
    rows = table.scan().read_all().to_pylist()
    assert [(row["at"], row["headers"]) for row in rows] == [(AT, HEADERS), (AT, None)]
