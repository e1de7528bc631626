"""Spark Connect: the session is a client, and the sink runs in a process that Spark's server starts."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from pyspark import cloudpickle

import headgate
from headgate.dev.ports import free_port

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("note", pa.string())])
START = 120.0
"""Seconds until the server must answer: a JVM on a busy machine."""


def test_a_sink_survives_cloudpickle_before_its_first_call(tmp_path: Path) -> None:
    table = headgate.create_table(str(tmp_path / "table"), SCHEMA)
    for given in (table, table.uri):
        sink = headgate.ShardSink(
            given, decode=headgate.decode.json(SCHEMA), stream="s", checkpoint_location="/c", max_entry_bytes=7
        )
        copy = pickle.loads(cloudpickle.dumps(sink))
        assert copy.options == sink.options
        assert copy.table.table_id == table.table_id
        assert copy.stream == "s"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Connect server on loopback, from pyspark's own jars."""
    folder = tmp_path_factory.mktemp("connect")
    port = free_port()
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
    }
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    command = [
        str(submit),
        "--master",
        "local[2]",
        "--class",
        "org.apache.spark.sql.connect.service.SparkConnectServer",
    ]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    log = folder / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, "spark-internal"],
            stdout=out,
            stderr=out,
            cwd=folder,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        )
        try:
            _wait(process, port, log)
            yield f"sc://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(60)


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise AssertionError(f"The Connect server did not start:\n{log.read_text()[-4000:]}")


@pytest.mark.spark
@pytest.mark.line_has("connect")
@pytest.mark.parametrize("face", ["data_source", pytest.param("sink", marks=pytest.mark.deep)])
def test_a_stream_on_connect_is_exactly_once_over_restarts(server: str, face: str, files: Any, tmp_path: Path) -> None:
    table = headgate.create_table(str(tmp_path / "table"), SCHEMA, sharding=headgate.bucket("id", 2))
    for run in range(2):
        for number in range(2):
            start = (run * 2 + number) * 50
            files.put(f"{run}-{number}", range(start, start + 50))
        client = [sys.executable, str(Path(__file__).with_name("connect_client.py"))]
        done = subprocess.run(
            [*client, server, face, str(files.folder), table.uri, str(tmp_path / "checkpoint")],
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        assert sorted(table.scan().read_all().column("id").to_pylist()) == list(range((run + 1) * 100))
