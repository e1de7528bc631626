"""`headgate doctor`: what it says of a fit machine, a store that lies, a table that may only be read; and no secret."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from headgate.cli import main
from headgate.connectors.objects import open_store
from headgate.connectors.objects.memory import MemoryStore
from headgate.connectors.objects.port import Bytes, ObjectInfo
from headgate.doctor import machine
from headgate.doctor.machine import Check, _wanted, check_packages, check_spark, room_of
from headgate.doctor.store import PROBES, check_store
from headgate.errors import InvalidInput, PermissionDenied
from headgate.spark import versions
from headgate.table.create import create_table
from tests.cli.calls import Headgate, files_of
from tests.support.services import MakeTopic
from tests.support.streams import COLUMNS

SECRET = "do-not-print-me-9f2c"


def told(headgate: Headgate, *options: str) -> tuple[int, dict[tuple[str, str], dict[str, Any]]]:
    result = headgate("doctor", *options, "--output", "json")
    found = json.loads(result.stdout)
    assert found["fit"] == (result.exit_code == 0)
    return result.exit_code, {(one["area"], one["check"]): one for one in found["checks"]}


def test_a_machine_and_a_table_that_are_fit_are_told_so_and_nothing_is_left(headgate: Headgate, tmp_path: Path) -> None:
    table = create_table(str(tmp_path / "orders"), COLUMNS)
    before = files_of(table.home)
    code, checks = told(headgate, "--table", table.uri)
    assert code == 0, checks
    assert {state: [key for key, one in checks.items() if one["state"] == state] for state in ("bad",)} == {"bad": []}
    for name in ("pyarrow", "pylance", "obstore", "pyspark", "confluent-kafka", "s3fs", "delta-spark"):
        assert ("packages", name) in checks
    for name in ("write", "put if absent, twice", "read", "list", "clock", "delete"):
        assert checks["table's store", name]["state"] == "ok", name
    assert files_of(table.home) == before, "the probe is gone"
    text = headgate("doctor", "--table", table.uri)
    assert "Fit: " in text.stdout
    assert "put if absent, twice" in text.stdout


def test_the_line_of_spark_is_told_with_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    (here,) = [one for one in check_spark() if one.name == "line"]
    assert (here.state, here.what.split(",")[0]) == ("ok", versions.line().name)
    monkeypatch.setattr(versions, "line", lambda: versions.LINES["3.5"])
    monkeypatch.setattr(sys, "version_info", (3, 12, 1))
    found = {(one.name, one.state): one.what for one in check_spark()}
    assert "Spark 3.5 runs on Python 3.11 and older" in found["Python", "bad"]
    assert len([one for one in check_spark() if one.name == "not on this line"]) == len(versions.LINES["3.5"].lacks)

    def other() -> versions.Line:
        raise InvalidInput("headgate runs on Spark …, and this is 4.3.0.", advice="install one of these")

    monkeypatch.setattr(versions, "line", other)
    (refused,) = check_spark()
    assert (refused.state, refused.do) == ("bad", "install one of these")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody listens there, and nobody will."""
    monkeypatch.setattr("headgate.cli.commands.doctor.KAFKA_SECONDS", 0.5)


def test_what_is_missing_is_bad_with_what_to_do(headgate: Headgate, tmp_path: Path, quick: None) -> None:
    code, checks = told(headgate, "--table", str(tmp_path / "nowhere"))
    assert code == 1
    assert checks["table", "open"]["state"] == "bad"
    assert checks["table", "open"]["do"]
    unreachable = told(headgate, "--store", str(tmp_path / "new"), "--servers", "127.0.0.1:1")
    assert unreachable[0] == 1
    assert unreachable[1]["kafka", "reach"]["state"] == "bad"
    assert unreachable[1]["store", "put if absent, twice"]["state"] == "ok"
    assert headgate("doctor", "--topic", "orders").exit_code == 2


@pytest.mark.kafka
def test_kafka_and_its_topics_are_looked_at(headgate: Headgate, kafka_servers: str, make_topic: MakeTopic) -> None:
    topic = make_topic(3)
    code, checks = told(headgate, "--servers", kafka_servers, "--topic", topic, "--topic", "no-such-topic")
    assert code == 1
    assert checks["kafka", "reach"]["state"] == "ok"
    assert checks["kafka", topic]["seen"] == "3 partitions, 0 offsets"
    assert checks["kafka", "no-such-topic"]["state"] == "bad"


@pytest.mark.s3
def test_a_prefix_on_s3_is_probed_and_left_as_it_was(
    headgate: Headgate, s3_options: dict[str, str], bucket: str
) -> None:
    options = [word for key, value in s3_options.items() for word in ("--storage-option", f"{key}={value}")]
    code, checks = told(headgate, "--store", f"s3://{bucket}/new", *options)
    assert code == 0, checks
    for name in ("write", "put if absent, twice", "read", "list", "clock", "delete"):
        assert checks["store", name]["state"] == "ok", checks["store", name]
    assert list(open_store(f"s3://{bucket}/new", s3_options).list("")) == []
    code, checks = told(headgate, "--store", "s3://no-such-bucket-here/new", *options)
    assert (code, checks["store", "write"]["state"]) == (1, "bad")


# -- stores that are not what they should be ------------------------------------------------


class Replacing(MemoryStore):
    """Ignores If-None-Match."""

    def put_if_absent(self, key: str, data: Bytes | Sequence[Bytes]) -> None:
        self.put_overwrite(key, data)


class ReadOnly(MemoryStore):
    def put_if_absent(self, key: str, data: Bytes | Sequence[Bytes]) -> None:
        raise PermissionDenied("S3 refused the request.", key=key)


class Late(MemoryStore):
    """Its clock is an hour behind."""

    def head(self, key: str) -> ObjectInfo:
        info = super().head(key)
        return ObjectInfo(info.key, info.size, datetime.now(UTC) - timedelta(hours=1))


class Hiding(MemoryStore):
    """A LIST does not show what was just put."""

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return iter(())


@pytest.mark.parametrize(
    ("kind", "check", "state"),
    [
        (Replacing, "put if absent, twice", "bad"),
        (ReadOnly, "write", "warn"),
        (Late, "clock", "bad"),
        (Hiding, "list", "bad"),
    ],
)
def test_a_store_that_would_break_a_promise_is_found_out(
    kind: Callable[[str], MemoryStore], check: str, state: str
) -> None:
    store = kind(f"memory://doctor-{check}")
    found: dict[str, Check] = {one.name: one for one in check_store(store, "store")}
    assert (found[check].state, bool(found[check].do)) == (state, True)
    if kind is not Hiding:
        assert list(store.list(PROBES)) == []
    MemoryStore.drop(f"doctor-{check}")


# -- this machine ------------------------------------------------------------------------------


def test_packages_are_held_against_what_headgate_names() -> None:
    lines = ["pyarrow>=21", "pylance<15,>=14", "ruff>=0.9; extra == 'dev'", "pyspark[sql]==4.2.*; extra == 'spark'"]
    wanted = [("pyarrow", ">=21", ""), ("pylance", "<15,>=14", ""), ("pyspark", "==4.2.*", "spark")]
    assert list(_wanted(lines)) == wanted
    assert {one.state for one in check_packages() if one.name in ("pyarrow", "pylance")} == {"ok"}


def test_every_package_of_an_extra_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    wanted = [one for one in _wanted(requires("headgate") or ()) if one[2]]
    assert {"kafka", "spark", "s3", "metrics", "delta", "ui"} == {extra for *_, extra in wanted}
    monkeypatch.setattr(machine, "version", missing)
    checks = {one.name: one for one in check_packages()}
    for name, _, extra in wanted:
        assert (checks[name].state, f"'headgate[{extra}]'" in checks[name].do) == ("warn", True)
    assert checks["pyarrow"].state == "bad"


def test_a_java_that_is_too_old_or_not_there_is_told(
    headgate: Headgate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_292\"' >&2\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    code, checks = told(headgate)
    assert (code, checks["java", "Java"]["state"]) == (1, "bad")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    monkeypatch.setenv("HEADGATE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYSPARK_PYTHON", "no-such-python")
    code, checks = told(headgate)
    assert [checks["java", name]["state"] for name in ("Java", "Spark's jars", "Kafka's jars")] == [
        "bad",
        "warn",
        "warn",
    ]
    assert checks["processes", "PYSPARK_PYTHON"]["state"] == "bad"


def test_little_room_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Usage:
        free = 300 << 20

    monkeypatch.setattr("shutil.disk_usage", lambda place: Usage)
    assert room_of(str(tmp_path), "temporary files").state == "warn"
    Usage.free = 1 << 20
    assert room_of(str(tmp_path), "temporary files").state == "bad"


def test_no_credential_is_printed(quick: None) -> None:
    options = [
        *("--storage-option", f"aws_secret_access_key={SECRET}", "--storage-option", "aws_access_key_id=id"),
        *("--storage-option", "aws_endpoint=http://127.0.0.1:1", "--storage-option", "allow_http=true"),
        *("--storage-option", "aws_region=us-east-1"),
        *("--kafka-option", f"kafka.sasl.jaas.config={SECRET}", "--servers", "127.0.0.1:1"),
    ]
    result = CliRunner().invoke(main, ["doctor", "--table", "s3://bucket/t", *options])
    assert result.exit_code == 1, result.output
    assert SECRET not in result.output
