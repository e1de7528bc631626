"""A real driver, killed with -9 at each crash point of the protocol: it goes on, nothing lost, nothing twice."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import headgate
from headgate.checkpoints.log.commit_log import CommitLog
from headgate.checkpoints.log.state import Head
from headgate.cli import main
from headgate.connectors.objects import open_store
from headgate.shards import names
from headgate.table.table import Table
from tests.support.processes import driver
from tests.support.producing import abort
from tests.support.runs import SCHEMA, Topic, check_table, make_table, scanned, until
from tests.support.services import S3_SECRETS, MakeTopic
from tests.support.tables import claimed

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

SHARDING = headgate.by_partition(key_is_partitioned=True)

Steps = tuple[tuple[str, int], ...]
"""Crash points in order, and how many batches are done at each, by its process."""

EACH: Steps = (("tasks", 1), ("between shards", 0), ("commit", 1), ("batch", 1), ("committed", 2))
ONE: Steps = (("between shards", 0),)
"""In the middle of a batch. Between its commit and Spark's own: test_stream_rules, without a kill."""


@pytest.fixture
def topic(kafka_servers: str, make_topic: MakeTopic) -> Topic:
    return Topic(kafka_servers, make_topic(2), 2)


def told(tmp_path: Path, topic: Topic, table: Table, **more: Any) -> dict[str, Any]:
    return {
        "table": table.uri,
        "servers": topic.servers,
        "topic": topic.name,
        "checkpoint": str(tmp_path / "checkpoint"),
        "log": str(tmp_path / "driver.log"),
        **more,
    }


def head(table: Table) -> Head:
    return CommitLog(table.home.records, "s", table.uri).read().head


@pytest.mark.deep
@pytest.mark.parametrize("path", ["direct", "arrow"])
@pytest.mark.parametrize("memtable", [True, False], ids=["memtable", "wal"])
def test_killed_at_each_crash_point_the_stream_goes_on_exactly_once(
    tmp_path: Path, topic: Topic, path: str, memtable: bool
) -> None:
    kill_at_each_point(tmp_path, topic, make_table(tmp_path, SHARDING, "id"), path, memtable)


@pytest.mark.s3
@pytest.mark.real_s3
@pytest.mark.parametrize(
    ("path", "memtable", "steps"),
    [
        pytest.param("direct", True, ONE, id="one"),
        pytest.param("direct", True, EACH, id="memtable", marks=pytest.mark.deep),
        pytest.param("direct", False, EACH, id="wal", marks=pytest.mark.deep),
        pytest.param("arrow", True, EACH, id="arrow", marks=pytest.mark.deep),
    ],
)
@pytest.mark.usefixtures("s3_environment")
def test_on_s3_killed_at_each_crash_point_the_stream_goes_on_exactly_once(
    tmp_path: Path, topic: Topic, bucket: str, path: str, memtable: bool, steps: Steps
) -> None:
    table = headgate.create_table(f"s3://{bucket}/table", SCHEMA, primary_key="id", sharding=SHARDING)
    kill_at_each_point(tmp_path, topic, table, path, memtable, steps)
    shown = (tmp_path / "driver.log").read_text(errors="replace")
    assert not any(secret in shown for secret in S3_SECRETS)


@pytest.mark.deep
@pytest.mark.s3
@pytest.mark.parametrize("where", ["bucket", "disk"])
@pytest.mark.usefixtures("s3_environment")
def test_with_a_separate_wal_store_the_stream_goes_on_exactly_once(
    tmp_path: Path, topic: Topic, make_bucket: Callable[[], str], where: str
) -> None:
    wal = f"s3://{make_bucket()}/wal" if where == "bucket" else str(tmp_path / "wal")
    uri = f"s3://{make_bucket()}/table"
    table = headgate.create_table(uri, SCHEMA, primary_key="id", sharding=SHARDING, wal_uri=wal)
    kill_at_each_point(tmp_path, topic, table, "direct", True)
    assert [info.key for info in open_store(wal).list("_mem_wal/") if names.wal_position(info.key) is not None]
    assert [info.key for info in open_store(uri).list("_mem_wal/") if names.wal_position(info.key) is not None] == []


@pytest.mark.deep
@pytest.mark.s3
@pytest.mark.usefixtures("s3_environment")
def test_with_sparks_checkpoint_on_s3_as_well_the_stream_goes_on_exactly_once(
    tmp_path: Path, topic: Topic, bucket: str
) -> None:
    fetch = [sys.executable, "-m", "headgate.connectors.jars.fetch", "s3a"]
    fetched = subprocess.run(fetch, capture_output=True, text=True)
    assert fetched.returncode == 0, fetched.stderr
    table = headgate.create_table(f"s3://{bucket}/table", SCHEMA, primary_key="id", sharding=SHARDING)
    kill_at_each_point(tmp_path, topic, table, "direct", True, checkpoint=f"s3a://{bucket}/checkpoint")
    assert not (tmp_path / "checkpoint").exists()
    # The checkpoint is there, as everybody sees it: `recover` finds that it goes with the table.
    arguments = ["recover", table.uri, "--spark-checkpoint", f"s3a://{bucket}/checkpoint", "--output", "json"]
    done = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert json.loads(done.stdout)["state"] == "aligned"
    shown = (tmp_path / "driver.log").read_text(errors="replace")
    assert not any(secret in shown for secret in S3_SECRETS)


def kill_at_each_point(
    tmp_path: Path, topic: Topic, table: Table, path: str, memtable: bool, steps: Steps = EACH, **more: Any
) -> None:
    facts = told(tmp_path, topic, table, path=path, memtable=memtable, max_memtable_size=4 << 10, **more)
    topic.put_orders(4000, keys=500)
    # Each process but that "between shards" stands at its point in its second batch, and is killed there. The next one
    # starts with what that left: a batch in flight, or one that Spark does not know to be done.
    armed = tmp_path / "armed"
    for step, least in steps:
        before = batches_done(table)
        if step == "between shards":
            armed.touch()
            with driver(facts, armed=str(armed)) as one:
                one.wait_for("pid")
                until((tmp_path / "reached").exists)
                one.kill()
        else:
            with driver(facts, batch=1, step=step) as one:
                assert one.wait_for("stands") == step
                one.kill()
        assert batches_done(table) - before == least, step
    with driver(facts) as one:
        assert one.finish() == 0, one.tail()
    check_table(table, topic)
    flushed = [info.replay_after for info in claimed(table)]
    assert all(flushed) if memtable else not any(flushed)


@pytest.mark.deep
@pytest.mark.parametrize("rows", [True, False], ids=["rows", "no-rows"])
def test_a_driver_that_wakes_after_its_successor_committed_five_batches_is_fenced(
    tmp_path: Path, topic: Topic, rows: bool
) -> None:
    wake_after_five_batches(tmp_path, topic, make_table(tmp_path, headgate.by_partition()), rows)


@pytest.mark.deep
@pytest.mark.s3
@pytest.mark.parametrize("rows", [True, False], ids=["rows", "no-rows"])
@pytest.mark.usefixtures("s3_environment")
def test_on_s3_a_driver_that_wakes_after_its_successor_committed_five_batches_is_fenced(
    tmp_path: Path, topic: Topic, bucket: str, rows: bool
) -> None:
    table = headgate.create_table(f"s3://{bucket}/table", SCHEMA, sharding=headgate.by_partition())
    wake_after_five_batches(tmp_path, topic, table, rows)


def wake_after_five_batches(tmp_path: Path, topic: Topic, table: Table, rows: bool) -> None:
    facts = told(tmp_path, topic, table, max_offsets=100)
    if rows:
        topic.put_numbers(range(100))
    else:
        # The batch has offsets and no row: what stands there was aborted.
        abort(topic.servers, topic.name, [b"nothing"] * 5)
    go = tmp_path / "go"
    with driver(facts, step="commit", go=str(go)) as paused:
        paused.wait_for("stands")
        paused.pause()
        go.touch()
        stood = batches_done(table)
        topic.put_numbers(range(100, 600))
        with driver(facts) as successor:
            assert successor.finish() == 0, successor.tail()
        assert batches_done(table) - stood >= 5
        after = head(table).sequence
        paused.wake()
        assert paused.wait_for("error") == "Fenced"
        assert paused.process.wait(60) != 0
    assert head(table).sequence == after, "nothing of it is in the log"
    assert [one["id"] for one in scanned(table)] == list(range(0 if rows else 100, 600))


def batches_done(table: Table) -> int:
    """How many batches the log has."""
    last = head(table).last
    return 0 if last is None else last.batch_id + 1
