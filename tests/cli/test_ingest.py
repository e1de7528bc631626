from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import lance
import psutil
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer

from headgate.checkpoints.spark.directory import default_checkpoint
from headgate.cli.commands.ingest import _has_read
from headgate.connectors.kafka.options import ConsumerConfig
from headgate.shards.sharding import by_partition
from headgate.streaming.signals import ONE_STOP
from headgate.table.create import create_table
from headgate.table.table import open_table
from tests.cli.calls import Headgate, started
from tests.support.disk import filled, small_disk
from tests.support.groups import group_offsets
from tests.support.registry import AUTH, serving, wire
from tests.support.streams import COLUMNS, Record, Stream

pytestmark = [pytest.mark.kafka]

Send = Callable[[str, range], None]


@pytest.fixture
def send(kafka_servers: str) -> Send:
    """Rows for a topic, by key to its partitions; every hundredth is no JSON, every fiftieth a delete."""

    def produce(topic: str, numbers: range) -> None:
        producer = Producer({"bootstrap.servers": kafka_servers, "enable.idempotence": True})
        for number in numbers:
            value: bytes | None = json.dumps({"id": number, "note": f"note {number}"}).encode()
            if number % 100 == 99:
                value = b"{broken"
            elif number % 50 == 25:
                value = None
            producer.produce(topic, value, str(number if value else number - 1).encode(), partition=number // 2 % 2)
        producer.flush()

    return produce


class Run:
    """One `headgate ingest`."""

    def __init__(self, servers: str, topic: str, table: str, *options: str, under: Sequence[str] = ()) -> None:
        named = [] if "--topic-pattern" in options else ["--topic", topic]
        arguments = ["--servers", servers, *named, "--table", table, "--cores", "2", "--output", "json"]
        self.process = started("ingest", *arguments, *options, under=under)

    def batch(self) -> dict[str, Any]:
        """The next one."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()
        found: dict[str, Any] = json.loads(line)
        return found

    def end(self) -> tuple[int, list[dict[str, Any]], str]:
        """Exit code, the batches that were left, stderr."""
        try:
            out, err = self.process.communicate(timeout=240)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        return self.process.returncode, [json.loads(line) for line in out.splitlines()], err


def ledger_rows(ledger: Path) -> list[dict[str, Any]]:
    """All rows of a Delta table, as its log says which files count."""
    files: set[str] = set()
    for commit in sorted(ledger.glob("_delta_log/*.json")):
        actions = [json.loads(line) for line in commit.read_text().splitlines()]
        files -= {one["remove"]["path"] for one in actions if "remove" in one}
        files |= {one["add"]["path"] for one in actions if "add" in one}
    return [row for name in sorted(files) for row in pq.read_table(ledger / name).to_pylist()]


CREATE = (
    "--create",
    "id bigint not null, note string",
    "--primary-key",
    "id",
    "--sharding",
    "by_partition(key_is_partitioned=True)",
)


@pytest.mark.spark
def test_ingest_once_then_status_verify_and_dead_letters_tell_one_story(
    headgate: Headgate, tmp_path: Path, kafka_servers: str, make_topic: Callable[..., str], send: Send
) -> None:
    topic, uri = make_topic(2), str(tmp_path / "orders")
    send(topic, range(400))

    small = (*CREATE, "--once", "--max-offsets", "150")
    code, batches, err = Run(kafka_servers, topic, uri, *small, "--on-bad-record", "fail").end()
    assert (code, batches) == (2, [])
    where = json.loads(err)["where"]
    assert (where["partition"], where["offset"]) == (1, 49)

    ledger = tmp_path / "ledger"
    service = ("timeout", "600")
    run = Run(kafka_servers, topic, uri, *CREATE, "--max-offsets", "150", "--ledger", str(ledger), under=service)
    batches = [run.batch() for _ in range(3)]
    until = time.monotonic() + 240
    while len(ledger_rows(ledger)) < 6 and time.monotonic() < until:
        time.sleep(0.2)
    # As systemd stops a service: every process of it, the JVM and its workers too. `timeout` passes its own one on to
    # the command, and then to the group of it.
    family = psutil.Process(run.process.pid)
    for process in (*family.children(recursive=True), family):
        process.send_signal(signal.SIGTERM)
    assert run.end() == (0, [], "")
    # Of 400 records 4 are no JSON, and 8 delete the row before them.
    assert lance.dataset(uri).count_rows() == 380, "after a clean stop plain Lance readers see every row"
    assert [batch["batch"] for batch in batches] == list(range(len(batches)))
    assert sum(batch["rows"] for batch in batches) == 396
    assert sum(batch["dead_letters"] for batch in batches) == 4
    rows = ledger_rows(ledger)
    facts = ("batch", "topic", "partition", "from_offset", "until_offset")
    told = [(batch["batch"], *range.values()) for batch in batches for range in batch["offsets"]]
    assert sorted(tuple(row[name] for name in facts) for row in rows) == sorted(told)
    assert sum(row["row_count"] for row in rows) == 396
    assert {tuple(row["positions"]) for row in rows} == {
        tuple(places) for batch in batches for places in batch["positions"].values()
    }

    send(topic, range(400, 500))
    checkpoint = Path(default_checkpoint(open_table(uri).home, topic))
    for name in ("metadata", ".metadata.crc", f"offsets/{len(batches) - 1}", f"commits/{len(batches) - 1}"):
        (checkpoint / name).write_text("")  # as a power cut leaves what Spark has written
    code, more, err = Run(kafka_servers, topic, uri, *CREATE, "--once", "--no-direct", "--wal-only").end()
    assert code == 0
    (line,) = err.splitlines()
    assert "The Spark checkpoint is damaged. Spark's `metadata` has no query id." in line
    assert "It was rebuilt from the table." in line
    assert sum(batch["rows"] for batch in more) == 99
    assert more[0]["batch"] == batches[-1]["batch"] + 1

    status = json.loads(headgate("status", uri, "--servers", kafka_servers, "--output", "json").stdout)
    (stream,) = status["streams"]
    assert (stream["stream"], stream["lag"], stream["batch"]) == (topic, 0, more[-1]["batch"])
    assert stream["recent_rows"] == more[-1]["rows"], "a clean stop folds the log: the last batch is left in it"
    verified = headgate("verify", uri, "--servers", kafka_servers, "--topic", topic, "--output", "json")
    report = json.loads(verified.stdout)
    assert (verified.exit_code, report["holds"], report["records"]) == (0, True, 500)
    # Of 500 records 5 are no JSON, and 10 delete the row before them.
    assert (report["rows"], report["dead_letters"]) == (475, 5)
    letters = headgate("dead-letters", "show", uri, "--output", "json").stdout.splitlines()
    assert [json.loads(letter)["value"] for letter in letters] == ["{broken"] * 5


@pytest.mark.spark
def test_ctrl_c_to_the_group_exits_130_and_a_restart_goes_on_with_a_pattern_an_instant_and_a_group(
    headgate: Headgate, tmp_path: Path, kafka_servers: str, make_topic: Callable[..., str], send: Send
) -> None:
    topic, uri = make_topic(2), str(tmp_path / "orders")
    send(topic, range(10_000, 10_020))
    time.sleep(0.05)
    since = datetime.now(UTC).isoformat()
    time.sleep(0.05)
    send(topic, range(2_000))
    group = f"ingest-{time.monotonic_ns()}"
    wanted = ("--topic-pattern", re.escape(topic), "--stream", "orders", "--commit-to-kafka", group, "--start", since)
    run = Run(kafka_servers, topic, uri, *CREATE, "--max-offsets", "10", *wanted, under=["setsid"])
    first = run.batch()
    os.killpg(run.process.pid, signal.SIGINT)
    code, _, err = run.end()
    assert (code, err) == (130, "")
    assert len(open_table(uri).checkpoints()) == 1
    code, batches, err = Run(kafka_servers, topic, uri, "--once", *wanted).end()
    assert (code, err) == (0, "")
    assert batches
    assert batches[-1]["query"] == first["query"]
    assert [one["from"] for one in first["offsets"]] == [10, 10], "what was there before the instant is not read"
    assert set(open_table(uri).scan(columns=["id"]).read_all()["id"].to_pylist()) <= set(range(2_000))
    ends = {(topic, 0): 1_010, (topic, 1): 1_010}
    assert group_offsets(ConsumerConfig.from_spark({"kafka.bootstrap.servers": kafka_servers}), group, ends) == ends
    report = json.loads(
        headgate("verify", uri, "--servers", kafka_servers, "--topic", topic, "--output", "json").stdout
    )
    assert (report["holds"], report["records"]) == (True, 2_000)


def test_what_the_stream_has_read_is_known_by_its_log(tmp_path: Path) -> None:
    uri = str(tmp_path / "orders")
    assert not _has_read(uri, None, "orders", "orders")
    stream = Stream(create_table(uri, COLUMNS, sharding=by_partition()), "orders", 2)
    assert not _has_read(uri, None, "orders", "orders")
    stream.commit([(0, 0, 1)], [Record(0, 0, b'{"id": 1, "note": "n"}')])
    assert _has_read(uri, None, "orders", "orders")
    assert not _has_read(uri, None, "orders", "other")
    assert not _has_read(uri, None, "other", "orders")


def takes(process: int, number: signal.Signals) -> bool:
    """Whether the process has a handler for the signal."""
    (caught,) = re.findall(r"^SigCgt:\s*(\w+)$", Path(f"/proc/{process}/status").read_text(), re.MULTILINE)
    return bool(int(caught, 16) >> (number - 1) & 1)


def test_while_a_topic_that_was_read_is_waited_for_a_signal_ends_the_command_without_spark(
    tmp_path: Path, kafka_servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))  # a Spark could not start
    topic, uri = f"forgotten-{time.monotonic_ns()}", str(tmp_path / "orders")
    stream = Stream(create_table(uri, COLUMNS, sharding=by_partition()), topic)
    stream.commit([(0, 0, 1)], [Record(0, 0, b'{"id": 1, "note": "n"}')])
    run = Run(kafka_servers, topic, uri, "--output", "text")
    end = time.monotonic() + 60
    while not takes(run.process.pid, signal.SIGTERM):
        assert time.monotonic() < end, "it never began"
        time.sleep(0.05)
    time.sleep(1)  # mostly it waits for the topic then
    run.process.send_signal(signal.SIGTERM)
    code, batches, told = run.end()
    assert (code, batches, told.count("\n")) == (0, [], 1)
    assert told.startswith("Stopping: no batch has started, so nothing is lost.")


@pytest.mark.spark
def test_a_second_ingest_takes_over_with_the_same_checkpoint_and_a_second_signal_ends_it_at_once(
    tmp_path: Path, kafka_servers: str, make_topic: Callable[..., str], send: Send
) -> None:
    topic, uri = make_topic(2), str(tmp_path / "orders")
    send(topic, range(100))
    first = Run(kafka_servers, topic, uri, *CREATE)
    first.batch()
    second = Run(kafka_servers, topic, uri, *CREATE, under=["setsid"])
    assert first.process.stdout is not None
    sent = 110
    send(topic, range(100, sent))
    while first.process.stdout.readline():  # until it ends
        send(topic, range(sent, sent := sent + 10))
    code, _, err = first.end()
    told = json.loads(err.splitlines()[-1])
    assert (code, told["error"]) == (4, "Fenced")
    assert told["next"]
    send(topic, range(sent, sent + 10))
    ends: dict[int, int] = {}
    while sum(ends.values()) < sent + 10:
        # A batch names the partitions that had rows: the last ones may come in two batches.
        ends |= {one["partition"]: one["until"] for one in second.batch()["offsets"]}
    java = jvm(second.process.pid)
    java.send_signal(signal.SIGSTOP)  # the query cannot be stopped
    os.killpg(second.process.pid, signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        second.process.wait(ONE_STOP + 0.5)
    os.killpg(second.process.pid, signal.SIGTERM)
    code, _, err = second.end()
    assert (code, java.is_running()) == (130, False)
    assert "Traceback" not in err
    assert sorted(open_table(uri).scan(columns=["id"]).read_all()["id"].to_pylist()) == rows_of(sent + 10)


def rows_of(count: int) -> list[int]:
    """The keys that are left of so many records, as `send` makes them."""
    deleted = {number - 1 for number in range(25, count, 50)}
    return [n for n in range(count) if n % 100 != 99 and n % 50 != 25 and n not in deleted]


@pytest.mark.spark
@pytest.mark.parametrize(
    "at_start",
    [pytest.param(True, marks=pytest.mark.deep), False],
    ids=["while Spark starts", "between batches"],
)
def test_a_jvm_that_dies_is_told_in_one_sentence(
    tmp_path: Path, kafka_servers: str, make_topic: Callable[..., str], send: Send, at_start: bool
) -> None:
    topic, uri = make_topic(2), str(tmp_path / "orders")
    send(topic, range(100))
    run = Run(kafka_servers, topic, uri, *CREATE)
    if not at_start:
        run.batch()
    jvm(run.process.pid).kill()
    code, _, err = run.end()
    # py4j may complain beside it.
    lines = [line for line in err.splitlines() if line.startswith("{")]
    assert len(lines) == 1, (code, err)
    told = json.loads(lines[0])
    assert (code, told["error"]) == (1, "SparkFailed")
    assert "signal 9" in told["what"]
    assert told["next"]
    Path(told["where"]["log"]).unlink()


def jvm(driver: int) -> psutil.Process:
    """The JVM that the driver's Spark lives in, as soon as Python talks to it."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        for child in psutil.Process(driver).children():
            with suppress(psutil.NoSuchProcess):
                if child.name() == "java" and any(one.status == "ESTABLISHED" for one in child.net_connections()):
                    return child
        time.sleep(0.02)
    raise AssertionError("Spark did not start")


@pytest.mark.spark
@pytest.mark.deep
def test_a_store_that_fails_the_tasks_alone_exits_by_its_kind_of_error(
    tmp_path: Path, kafka_servers: str, make_topic: Callable[..., str], send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each of a task's four tries has this patience.
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text("spark.headgate.storePatience 0.2s\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path / "conf"))
    topic, uri = make_topic(2), str(tmp_path / "orders")
    table = create_table(uri, COLUMNS, sharding=by_partition())
    send(topic, range(100))
    # Only tasks write dead letters, and there is no place for them.
    gone = tmp_path / "gone"
    (Path(uri) / "_headgate" / str(table.table_id) / "dead_letters").symlink_to(gone)
    code, batches, err = Run(kafka_servers, topic, uri, "--once").end()
    told = json.loads(err)
    assert (code, told["error"], batches) == (7, "Poisoned", [])
    assert told["where"]["position"] == 0
    assert told["where"]["shard"]
    assert told["next"]
    gone.mkdir()
    code, batches, err = Run(kafka_servers, topic, uri, "--once").end()
    assert (code, err) == (0, "")
    assert sum(batch["rows"] + batch["dead_letters"] for batch in batches) == 100


@pytest.mark.spark
@pytest.mark.deep
@pytest.mark.parametrize("how", ["full", "read-only"])
def test_a_disk_that_takes_no_more_ends_ingest_by_its_kind_of_error_and_it_goes_on_with_room(
    tmp_path: Path, kafka_servers: str, make_topic: Callable[..., str], send: Send, how: str
) -> None:
    topic, disk = make_topic(2), tmp_path / "disk"
    send(topic, range(100))
    with small_disk(disk, 48) as mounted:
        if not mounted:
            pytest.skip("no file system may be mounted here")
        uri = str(disk / "orders")
        run = Run(kafka_servers, topic, uri, *CREATE)
        run.batch()
        if how == "full":
            with filled(disk):
                send(topic, range(100, 200))
                code, _, err = run.end()
        else:
            remount = ["mount", str(disk), "-o"]
            subprocess.run([*remount, "remount,ro"], check=True)
            send(topic, range(100, 200))
            code, _, err = run.end()
            again, _, refused = Run(kafka_servers, topic, uri).end()
            assert (again, json.loads(refused.splitlines()[-1])["error"]) == (8, "PermissionDenied"), refused
            subprocess.run([*remount, "remount,rw"], check=True)
        told = json.loads(err.splitlines()[-1])
        kinds = {"full": [(9, "StoreFull"), (7, "Poisoned")], "read-only": [(8, "PermissionDenied"), (7, "Poisoned")]}
        assert (code, told["error"]) in kinds[how], err
        assert "Traceback" not in err
        assert Run(kafka_servers, topic, uri, "--once").end()[0] == 0
        assert sorted(open_table(uri).scan(columns=["id"]).read_all()["id"].to_pylist()) == rows_of(200)


@pytest.mark.spark
@pytest.mark.deep
def test_avro_by_a_registry_and_raw_values_are_ingested(
    tmp_path: Path, kafka_servers: str, make_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADGATE_REGISTRY_AUTH", AUTH)
    topic = make_topic(1)
    fields = [{"name": "id", "type": "long"}, {"name": "note", "type": "string"}]
    schema = {"type": "record", "name": "Row", "fields": fields}
    values = [wire(schema, {"id": number, "note": f"n {number}"}) for number in range(20)]
    producer = Producer({"bootstrap.servers": kafka_servers, "enable.idempotence": True})
    for value in values:
        producer.produce(topic, value)
    producer.flush()
    rows, raw = str(tmp_path / "rows"), str(tmp_path / "raw")
    with serving({"/schemas/ids/7": (200, {"schema": json.dumps(schema)})}) as registry:
        avro = ("--create", "id bigint, note string", "--decode", "avro", "--registry", registry)
        for uri, options in ((rows, avro), (raw, ("--create", "value binary", "--decode", "raw"))):
            code, batches, err = Run(kafka_servers, topic, uri, *options, "--once", "--log", "json").end()
            assert code == 0, err
            assert sum(batch["rows"] for batch in batches) == 20
            assert AUTH not in err
            assert AUTH.partition(":")[2] not in err
    found = open_table(rows).scan().read_all().to_pylist()
    assert found == [{"id": number, "note": f"n {number}"} for number in range(20)]
    assert open_table(raw).scan().read_all()["value"].to_pylist() == values


def test_a_topic_that_is_not_there_is_told_before_anything_is_written(
    headgate: Headgate, tmp_path: Path, kafka_servers: str
) -> None:
    uri = str(tmp_path / "orders")
    result = headgate("ingest", "--servers", kafka_servers, "--topic", "nowhere", "--table", uri, *CREATE)
    assert result.exit_code == 3
    assert "nowhere" in result.stderr
    assert not Path(uri).exists()


def test_create_with_other_columns_than_the_table_has_is_refused(
    headgate: Headgate, tmp_path: Path, kafka_servers: str, make_topic: Callable[..., str]
) -> None:
    uri = str(tmp_path / "orders")
    create_table(uri, COLUMNS)
    result = headgate("ingest", "--servers", kafka_servers, "--topic", make_topic(), "--table", uri, *CREATE)
    assert result.exit_code == 2
    assert "table show" in result.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--once", "--trigger", "1"), "--once or --trigger, not both"),
        (("--kafka-option", "kafka.sasl.password=s3cret"), "kafka.sasl.password"),
        (("--kafka-option", "=s3cret"), "KEY=VALUE"),
        (("--topic-pattern", "t.*"), "either --topic or"),
        (("--topic", "u"), "needs a name"),
        (("--start", "soon"), "ISO 8601"),
        (("--start", "2026-01-01T00:00:00", "--stream", "s"), "zone"),
        (("--kafka-option", "startingOffsets=latest", "--start", "earliest"), "its own argument"),
    ],
)
def test_a_call_that_cannot_be_is_refused_without_repeating_values(
    headgate: Headgate, tmp_path: Path, options: tuple[str, ...], said: str
) -> None:
    result = headgate("ingest", "--servers", "127.0.0.1:1", "--topic", "t", "--table", str(tmp_path / "t"), *options)
    assert result.exit_code == 2
    assert said in result.stderr
    assert "s3cret" not in result.stderr
