"""The wheel: what it holds, what it asks for, and that it works where nothing else of this repository is."""

from __future__ import annotations

import email
import json
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.project.installed import ROOT, built_wheel, clean_environment, outside
from tests.support.pages import blocks_run_by

BLOCKED = (
    "confluent_kafka",
    "pyspark",
    "botocore",
    "s3fs",
    "prometheus_client",
    "delta",
    "starlette",
    "uvicorn",
    "jinja2",
)

WITHOUT_EXTRAS = """
import json, sys

for name in filter(None, sys.argv[1].split(",")):
    sys.modules[name] = None  # as if it were not installed

import pyarrow as pa
from click.testing import CliRunner

import headgate
from headgate.cli import COMMANDS, main
from headgate.errors import HeadgateError

def used(call):
    try:
        call()
        return None
    except HeadgateError as error:
        return [type(error).__name__, error.advice]

def command(*words):
    result = CliRunner().invoke(main, words, prog_name="headgate", catch_exceptions=False)
    return [result.exit_code, result.stderr.strip()]

table = headgate.create_table("t", pa.schema([("id", pa.int64()), ("note", pa.string())]), full_text="note")
with table.writer("single") as writer:
    writer.put(pa.table({"id": [1], "note": ["late delivery"]}))
assert table.search("delivery").num_rows == table.scan().read_all().num_rows == 1
source = headgate.kafka.source("127.0.0.1:1", "topic")
sink = headgate.ShardSink(table, source=source, decode=headgate.decode.json(table.schema), stream="s")
from headgate.streaming.kafka.source import KafkaSource
from headgate.streaming.spark.session import local_session
from headgate.streaming.kafka.offsets import earliest
from headgate.streaming.options import SinkOptions
from headgate.streaming.reporting import Reporting
print(json.dumps({
    "help": {name: command(name, "--help")[0] for name in COMMANDS},
    "status": command("status", "t"),
    "fsck": command("fsck", "t"),
    "gc": command("gc", "t"),
    "compact": command("compact", "t"),
    "dead letters": command("dead-letters", "summary", "t"),
    "ingest": command("ingest", "--servers", "127.0.0.1:1", "--topic", "t", "--table", "t"),
    "demo": command("demo"),
    "kafka": command("kafka", "start", "--dir", "broker"),
    "ui": command("ui", "t"),
    "register": used(lambda: headgate.register(None)),
    "session": used(local_session),
    "offsets": used(lambda: earliest(source.consumer, "topic", 0)),
    "group": used(lambda: Reporting.check(SinkOptions(commit_to_kafka="group"), None)),
    "metrics": used(lambda: Reporting.check(SinkOptions(metrics_port=0), None)),
}))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from this checkout."""
    return built_wheel(tmp_path_factory.mktemp("wheel"))


def test_the_wheel_owns_one_name_and_has_all_of_it(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    version = wheel.name.split("-")[1]
    assert {name.partition("/")[0] for name in names} == {"headgate", f"headgate-{version}.dist-info"}
    package = ROOT / "headgate"
    files = (path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    assert {path.relative_to(ROOT).as_posix() for path in files} - names == set()
    assert {
        "headgate/connectors/jars/jar_lists/lines/spark-4.2.xml",
        "headgate/connectors/jars/jar_lists/kafka.xml",
        "headgate/console/static/console.css",
        "headgate/console/templates/base.html",
    } <= names
    assert [name for name in names if "__pycache__" in name or "/tests/" in name] == []


def test_the_wheel_names_its_extras_and_its_command(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        folder = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA")).rpartition("/")[0]
        metadata = email.message_from_bytes(archive.read(f"{folder}/METADATA"))
        commands = archive.read(f"{folder}/entry_points.txt").decode()
    assert {"kafka", "spark", "s3", "delta", "metrics", "ui"} <= set(metadata.get_all("Provides-Extra") or [])
    needed = [line for line in metadata.get_all("Requires-Dist") or [] if "extra ==" not in line]
    assert [line for line in needed if line.startswith(("confluent", "pyspark", "delta", "s3fs"))] == []
    assert "headgate = headgate.cli:main" in commands


def test_a_missing_extra_is_told_when_it_is_used_and_not_before(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRAS, ",".join(BLOCKED)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    check_told(json.loads(done.stdout.splitlines()[-1]))


def check_told(told: dict[str, Any]) -> None:
    """What needs no extra works, and what needs one says which."""
    assert {name for name, code in told["help"].items() if code} == set()
    for name in ("status", "fsck", "gc", "compact", "dead letters"):
        assert told[name][0] == 0, (name, told[name])
    for name, extra in {"ingest": "kafka", "demo": "kafka", "kafka": "kafka", "ui": "ui"}.items():
        code, text = told[name]
        assert code == 2, (name, text)
        assert f"pip install 'headgate[{extra}]'" in text
    for name, extra in {"register": "spark", "session": "spark", "offsets": "kafka", "group": "kafka"}.items():
        kind, advice = told[name]
        assert kind == "MissingExtra"
        assert f"headgate[{extra}]" in advice
    assert "headgate[metrics]" in told["metrics"][1]


@pytest.mark.deep
def test_the_commands_of_the_installation_page_work_in_a_clean_environment(tmp_path: Path) -> None:
    (block,) = blocks_run_by(__file__)
    release, install, *commands = block.text.splitlines()
    subprocess.run(release, shell=True, cwd=ROOT, check=True, timeout=1800)
    venv.create(tmp_path / "env", with_pip=True)
    programs = tmp_path / "env" / "bin"
    cache = {"HEADGATE_CACHE": str(tmp_path / "cache")}
    # pyspark comes as source, and is built with what is tested.
    tools = "pip install -q -c constraints.txt setuptools wheel"
    for command in (tools, install.replace("pip install", "pip install -q --no-build-isolation"), *commands):
        done = subprocess.run(
            command,
            shell=True,
            cwd=ROOT,
            env=outside(programs, **cache),
            capture_output=True,
            text=True,
            timeout=1800,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


@pytest.mark.deep
def test_a_bare_install_says_what_is_missing_and_the_delta_extra_brings_it(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "env"
    programs = clean_environment(environment, wheel, "")
    python = str(programs / "python")

    def ran(code: str, *arguments: str) -> str:
        done = subprocess.run(
            [python, "-c", code, *arguments],
            cwd=tmp_path,
            env=outside(programs),
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return done.stdout.splitlines()[-1]

    looks = "import importlib.util as u, json, sys; print(json.dumps([n for n in sys.argv[1:] if u.find_spec(n)]))"
    assert json.loads(ran(looks, *BLOCKED)) == [], "nothing of an extra came with the bare wheel"
    check_told(json.loads(ran(WITHOUT_EXTRAS, "")))
    clean_environment(environment, wheel, "delta")
    assert {"delta", "pyspark"} <= set(json.loads(ran(looks, *BLOCKED)))
    versions = "import delta, importlib.metadata as m; print(m.version('delta-spark'), m.version('pyspark'))"
    found = ran(versions).split()
    limits = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    assert found == [limits["delta_spark"], limits["pyspark"]]
    done = subprocess.run([python, "-m", "pip", "check"], env=outside(programs), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
