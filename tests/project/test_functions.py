"""verify, fsck, recover and rewind as functions: what their commands print, as values."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer

import headgate
from headgate.cli import main
from headgate.errors import InvalidInput
from headgate.shards.sharding import by_partition
from tests.cli.calls import files_of
from tests.support.streams import COLUMNS, Record, Stream


@pytest.fixture
def streamed(tmp_path: Path) -> headgate.Table:
    """Stream orders has read [0, 10) of one partition."""
    return filled(tmp_path, "orders")


def filled(place: Path, topic: str) -> headgate.Table:
    table = headgate.create_table(place / "orders", COLUMNS, sharding=by_partition())
    records = [Record(0, n, b'{"id": %d, "note": "n"}' % n) for n in range(10)]
    Stream(table, topic, 1).commit([(0, 0, 10)], records)
    return table


def printed(*arguments: str) -> dict[str, Any]:
    """What a command prints as JSON."""
    result = CliRunner().invoke(main, [*arguments, "--output", "json"], prog_name="headgate")
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_fsck_is_what_its_command_prints(streamed: headgate.Table) -> None:
    report = headgate.fsck(streamed)
    assert report.holds
    assert report.to_dict() == headgate.fsck(Path(streamed.uri)).to_dict() == printed("fsck", streamed.uri)
    assert repr(report).startswith(f"TableReport(uri={streamed.uri!r}, table_id='{streamed.table_id}', holds=True")
    (Path(streamed.uri) / streamed.shard("partition:orders:0").wal_key(1)).unlink()
    damaged = headgate.fsck(streamed.uri)
    assert (damaged.holds, damaged.to_dict()["errors"] > 0) == (False, True)
    assert "holds=False" in repr(damaged)
    assert "codes={" in repr(damaged)


def test_recover_and_rewind_are_what_their_commands_print(streamed: headgate.Table, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    before = files_of(streamed.home)
    lost = headgate.recover(streamed, spark_checkpoint=checkpoint)
    assert lost.state == "lost"
    assert lost.to_dict() == printed("recover", streamed.uri, "--spark-checkpoint", str(checkpoint))
    assert headgate.recover(streamed.uri).to_dict() == printed("recover", streamed.uri) == {"base": []}
    back = headgate.rewind(streamed, stream="orders", to_offsets={"orders": {0: 5}})
    said = ("--stream", "orders", "--to-offsets", '{"orders":{"0":5}}')
    assert back.to_dict() == printed("rewind", streamed.uri, *said)
    assert files_of(streamed.home) == before, "nothing was written"
    assert "applied=False" in repr(back)
    assert "offsets_again=5" in repr(back)
    done = headgate.rewind(
        streamed, stream="orders", to_offsets='{"orders":{"0":5}}', spark_checkpoint=checkpoint, reason="x", apply=True
    )
    assert (done.to_dict()["applied"], done.to_dict()["reason"]) == (True, "x")
    assert headgate.recover(streamed, spark_checkpoint=checkpoint).state == "aligned"
    for one in (checkpoint / "commits").iterdir():
        one.write_text("")
    mended = headgate.recover(streamed, spark_checkpoint=checkpoint, apply=True)
    assert mended.rebuilt is not None
    assert headgate.recover(streamed, spark_checkpoint=checkpoint).state == "aligned"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "Give exactly one of to_offsets, to_timestamp and adopt"),
        ({"to_offsets": {"orders": {0: 1}}, "adopt": True}, "Give exactly one of to_offsets, to_timestamp and adopt"),
        ({"to_timestamp": 1}, "to_timestamp needs servers"),
        ({"adopt": True}, "adopt needs spark_checkpoint"),
        ({"to_offsets": {"orders": 3}}, "offsets are invalid"),
    ],
    ids=str,
)
def test_a_rewind_that_does_not_say_where_to_is_refused(
    streamed: headgate.Table, given: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidInput, match=said):
        headgate.rewind(streamed, stream="orders", **given)


@pytest.mark.kafka
def test_verify_is_what_its_command_prints(tmp_path: Path, kafka_servers: str, make_topic: Callable[..., str]) -> None:
    topic = make_topic()
    producer = Producer({"bootstrap.servers": kafka_servers, "enable.idempotence": True})
    for number in range(10):
        producer.produce(topic, b'{"id": %d, "note": "n"}' % number)
    producer.flush()
    table = filled(tmp_path, topic)
    decode = headgate.decode.json(table.schema)
    report = headgate.verify(table, servers=kafka_servers, topic=topic, decode=decode)
    command = ("verify", table.uri, "--servers", kafka_servers, "--topic", topic, "--decode", "json")
    assert report.to_dict() == printed(*command)
    assert (report.holds, report.rows) == (True, 10)
    assert repr(report).startswith("Verification(holds=True, records=10, expected_rows=10, rows=10")
    again = headgate.verify(Path(table.uri), servers=kafka_servers, topic=[topic], decode=decode)
    assert again.to_dict() == report.to_dict()
