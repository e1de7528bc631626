"""Keys that come from a role and change while a table is in use: every process asks for the new ones by itself."""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import headgate
from headgate.checkpoints.log.commit_log import CommitLog
from headgate.connectors.objects import open_store
from headgate.table.table import Table
from tests.s3.rotating_s3 import TOKEN, RotatingS3, rotating_s3
from tests.support.processes import driver
from tests.support.runs import SCHEMA as ORDERS
from tests.support.runs import Topic, check_table, until
from tests.support.services import MakeTopic, create_bucket

pytestmark = pytest.mark.s3

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])


@pytest.fixture(params=["token in a file", "token in the environment"])
def role(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[RotatingS3]:
    """A server, and an environment that has nothing but a container's role, as EKS or as others have it."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    token = tmp_path / "token"
    token.write_text(TOKEN)
    with rotating_s3() as server:
        in_file = request.param == "token in a file"
        for name, value in server.environment(str(token) if in_file else None).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
        yield server


@pytest.fixture
def place(role: RotatingS3) -> str:
    """A bucket of that server."""
    name = f"bucket-{uuid.uuid4().hex[:12]}"
    create_bucket(role.endpoint, name, (role.key, role.secret))
    return f"s3://{name}"


def committed(table: Table) -> int:
    """How many records of the topic the table has taken in."""
    return sum(CommitLog(table.home.records, "s", table.uri).read().head.ends.values())


def batch(*ids: int) -> pa.RecordBatch:
    return pa.record_batch({"id": ids}, schema=SCHEMA)


def test_a_writer_and_a_reader_go_on_when_the_keys_of_their_role_change(role: RotatingS3, place: str) -> None:
    table = headgate.create_table(f"{place}/t", SCHEMA)
    with table.writer("single") as writer:
        writer.put(batch(1))
        writer.flush_memtable()
        assert table.scan().read_all()["id"].to_pylist() == [1]
        for number in (2, 3):
            role.rotate()
            writer.put(batch(number))
            writer.flush_memtable()
            assert sorted(table.scan().read_all()["id"].to_pylist()) == list(range(1, number + 1))
    table.compact()
    assert sorted(table.scan().read_all()["id"].to_pylist()) == [1, 2, 3]
    assert set(role.used) == {"AKIATURN1", "AKIATURN2", "AKIATURN3"}
    assert not role.refused
    kept = [bytes(open_store(place).get(info.key)) for info in open_store(place).list("")]
    assert not any(b"the-secret-of-turn" in data or b"AKIATURN" in data for data in kept)


@pytest.mark.deep
@pytest.mark.spark
@pytest.mark.kafka
def test_driver_and_executors_of_a_stream_go_on_when_the_keys_of_their_role_change(
    role: RotatingS3, place: str, tmp_path: Path, kafka_servers: str, make_topic: MakeTopic
) -> None:
    topic = Topic(kafka_servers, make_topic(2), 2)
    sharding = headgate.by_partition(key_is_partitioned=True)
    table = headgate.create_table(f"{place}/t", ORDERS, primary_key="id", sharding=sharding)
    facts = {
        "table": table.uri,
        "servers": topic.servers,
        "topic": topic.name,
        "checkpoint": str(tmp_path / "checkpoint"),
        "log": str(tmp_path / "driver.log"),
        "trigger": {"processingTime": "0 seconds"},
        "memtable": True,
        "max_memtable_size": 1,
    }
    with driver(facts) as running:
        for _ in range(3):
            topic.put_orders(200, seed=role.turn)
            until(lambda: committed(table) == len(topic.records))
            role.rotate()
        topic.put_orders(200, seed=role.turn)
        until(lambda: committed(table) == len(topic.records))
        assert running.process.poll() is None, running.tail()
    check_table(table, topic)
    assert set(role.used) == {f"AKIATURN{turn}" for turn in (1, 2, 3, 4)}
    assert not role.refused
    shown = (tmp_path / "driver.log").read_text(errors="replace")
    assert "the-secret-of-turn" not in shown
    assert "AKIATURN" not in shown
