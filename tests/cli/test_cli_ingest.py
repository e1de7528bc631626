from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import Headgate, started
from confluent_kafka import Producer
from stream_tables import COLUMNS, Stream

from headgate.shards.sharding import by_partition
from headgate.table import create_table, open_table

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

    def __init__(self, servers: str, topic: str, table: str, *options: str) -> None:
        arguments = ["--servers", servers, "--topic", topic, "--table", table, "--cores", "2", "--output", "json"]
        self.process = started("ingest", *arguments, *options)

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


CREATE = ("--create", "id bigint not null, note string", "--primary-key", "id", "--key-is-partitioned")


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

    code, batches, err = Run(kafka_servers, topic, uri, *small).end()
    assert (code, err) == (0, "")
    assert [batch["batch"] for batch in batches] == list(range(len(batches)))
    assert len(batches) == 3
    assert sum(batch["rows"] for batch in batches) == 396
    assert sum(batch["dead_letters"] for batch in batches) == 4

    send(topic, range(400, 500))
    code, more, err = Run(kafka_servers, topic, uri, *CREATE, "--once", "--no-direct", "--wal-only").end()
    assert (code, err) == (0, "")
    assert sum(batch["rows"] for batch in more) == 99
    assert more[0]["query"] == batches[0]["query"]

    status = json.loads(headgate("status", uri, "--servers", kafka_servers, "--output", "json").stdout)
    (stream,) = status["streams"]
    assert (stream["stream"], stream["lag"], stream["batch"]) == (topic, 0, more[-1]["batch"])
    assert stream["recent_rows"] == more[-1]["rows"], "a clean stop folds the log: the last batch is left in it"
    told = headgate("verify", uri, "--servers", kafka_servers, "--topic", topic, "--output", "json")
    report = json.loads(told.stdout)
    assert (told.exit_code, report["holds"], report["records"]) == (0, True, 500)
    # Of 500 records 5 are no JSON, and 10 delete the row before them.
    assert (report["rows"], report["dead_letters"]) == (475, 5)
    letters = headgate("dead-letters", "show", uri, "--output", "json").stdout.splitlines()
    assert [json.loads(letter)["value"] for letter in letters] == ["{broken"] * 5


@pytest.mark.spark
def test_sigterm_exits_0_and_a_restart_goes_on(
    headgate: Headgate, tmp_path: Path, kafka_servers: str, make_topic: Callable[..., str], send: Send
) -> None:
    topic, uri = make_topic(2), str(tmp_path / "orders")
    send(topic, range(2_000))
    run = Run(kafka_servers, topic, uri, *CREATE, "--max-offsets", "100")
    first = run.batch()
    run.process.send_signal(signal.SIGTERM)
    code, _, err = run.end()
    assert (code, err) == (0, "")
    code, batches, err = Run(kafka_servers, topic, uri, "--once").end()
    assert (code, err) == (0, "")
    assert batches
    assert batches[-1]["query"] == first["query"]
    report = json.loads(
        headgate("verify", uri, "--servers", kafka_servers, "--topic", topic, "--output", "json").stdout
    )
    assert (report["holds"], report["records"]) == (True, 2_000)


@pytest.mark.spark
def test_a_driver_whose_stream_was_taken_over_exits_4_with_one_sentence(
    tmp_path: Path, kafka_servers: str, make_topic: Callable[..., str], send: Send
) -> None:
    topic, uri = make_topic(2), str(tmp_path / "orders")
    send(topic, range(100))
    run = Run(kafka_servers, topic, uri, *CREATE)
    run.batch()
    Stream(open_table(uri), topic, 2)
    send(topic, range(100, 200))
    code, _, err = run.end()
    assert code == 4
    told = json.loads(err)
    assert told["error"] == "Fenced"
    assert told["next"]


@pytest.mark.spark
def test_a_store_that_fails_the_tasks_alone_exits_by_its_kind_of_error(
    tmp_path: Path, kafka_servers: str, make_topic: Callable[..., str], send: Send
) -> None:
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
        (("--once", "--trigger", "1"), "exclude"),
        (("--kafka-option", "kafka.sasl.password=s3cret"), "kafka.sasl.password"),
        (("--kafka-option", "=s3cret"), "KEY=VALUE"),
        (("--topic-pattern", "t.*"), "one of the two"),
        (("--topic", "u"), "needs a name"),
        (("--start", "soon"), "instant"),
        (("--start", "2026-01-01T00:00:00", "--stream", "s"), "zone"),
        (("--kafka-option", "startingOffsets=latest", "--start", "earliest"), "argument of its own"),
    ],
)
def test_a_call_that_cannot_be_is_refused_without_repeating_values(
    headgate: Headgate, tmp_path: Path, options: tuple[str, ...], said: str
) -> None:
    result = headgate("ingest", "--servers", "127.0.0.1:1", "--topic", "t", "--table", str(tmp_path / "t"), *options)
    assert result.exit_code == 2
    assert said in result.stderr
    assert "s3cret" not in result.stderr
