"""The wheel in a clean environment outside the checkout: alone, and on a standalone cluster with two workers.

The command that is run on the cluster is the one of docs/operations/deploy.md.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from headgate.dev.ports import free_port
from tests.project.installed import built_wheel, clean_environment, outside
from tests.support.pages import ROOT, blocks_run_by
from tests.support.services import MakeTopic

pytestmark = [pytest.mark.deep, pytest.mark.spark, pytest.mark.kafka]

LINES = 20_000
START = 120.0
WITHOUT_SPARK = """
import pyarrow as pa, headgate, json
table = headgate.create_table("t", pa.schema([("id", pa.int64())]))
with table.writer("single") as writer:
    writer.put(pa.table({"id": [1, 2]}))
print(json.dumps([headgate.__file__, headgate.open_table("t").scan().read_all().num_rows]))
"""
MESSAGES = """
import headgate, json, sys
print(json.dumps(headgate.open_table(sys.argv[1]).scan(columns=["message"]).read_all().column(0).to_pylist()))
"""
WHERE = '''
"""Where each executor finds headgate and runs; then the program that is named."""
import os, runpy, sys
from pyspark.sql import SparkSession

def where(_):
    import time
    import headgate
    time.sleep(2)  # so that both workers are given some
    return headgate.__file__, os.environ["SPARK_EXECUTOR_DIRS"], os.getpid()

if __name__ == "__main__":
    spark = SparkSession.builder.getOrCreate()
    for found in sorted(set(spark.sparkContext.parallelize(range(8), 8).map(where).collect())):
        print("executor:", *found, flush=True)
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
'''


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from this checkout."""
    return built_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Path:
    """Of a clean environment that has the wheel."""
    return clean_environment(tmp_path_factory.mktemp("environment") / "env", wheel, "kafka,spark,s3,metrics")


def ran(command: list[str], folder: Path, programs: Path, seconds: float = 600, **more: str) -> str:
    """What a command of the clean environment prints; it exits 0."""
    done = subprocess.run(
        command, cwd=folder, env=outside(programs, **more), capture_output=True, text=True, timeout=seconds
    )
    assert done.returncode == 0, f"{shlex.join(command)}:\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    return done.stdout


def test_the_wheel_works_alone(programs: Path, wheel: Path, tmp_path: Path) -> None:
    file, rows = json.loads(ran([str(programs / "python"), "-c", WITHOUT_SPARK], tmp_path, programs))
    assert Path(file).is_relative_to(programs.parent)
    assert rows == 2
    assert wheel.name.split("-")[1] in ran(["headgate", "--version"], tmp_path, programs)
    ran(["headgate", "fsck", "t"], tmp_path, programs)
    cache: dict[str, Any] = {"HEADGATE_CACHE": str(tmp_path / "cache")}
    ran(["headgate", "jars", "fetch"], tmp_path, programs, 1800, **cache)
    assert "spark-sql-kafka" in ran(["headgate", "jars", "show", "--comma"], tmp_path, programs, **cache)
    told = json.loads(ran(["headgate", "demo", "--rows", "5000", "--output", "json"], tmp_path, programs, **cache))
    assert told["holds"] is True


def test_spark_submit_on_two_workers_fills_a_table_with_the_topic(
    programs: Path, wheel: Path, kafka_servers: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = make_topic(2)
    python = str(programs / "python")
    sample = [python, str(ROOT / "examples" / "sample_records.py"), "logs", "--servers", kafka_servers]
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    (tmp_path / "where.py").write_text(WHERE)
    (command,) = [block.text for block in blocks_run_by(__file__)]
    with cluster(programs, tmp_path) as master:
        placed = (
            command.replace("spark://master:7077", master)
            .replace("localhost:9092", kafka_servers)
            .replace("--topic logs", f"--topic {topic}")
            .replace("/lake/", f"{tmp_path}/lake/")
        )
        settings: dict[str, Any] = {"PYSPARK_PYTHON": python, "SPARK_LOCAL_IP": "127.0.0.1"}
        ran([*sample, "--topic", topic, "--count", str(LINES)], tmp_path, programs)
        first = ran(["bash", "-c", placed], tmp_path, programs, **settings)
        assert f"{LINES} lines" in first

        # Once more, with new records: it goes on from the checkpoint. The wheel travels, and tasks say where they run.
        ran([*sample, "--topic", topic, "--count", str(LINES)], tmp_path, programs)
        shutil.copy(wheel, tmp_path / "headgate.zip")
        travels = placed.replace("examples/append_logs.py", "--py-files headgate.zip where.py examples/append_logs.py")
        second = ran(["bash", "-c", travels], tmp_path, programs, **settings)
    assert f"{2 * LINES} lines" in second
    executors = [line.split()[1:] for line in second.splitlines() if line.startswith("executor: ")]
    assert {Path(file).parts[-3] for file, _, _ in executors} == {"headgate.zip"}
    assert len({folder for _, folder, _ in executors}) == 2, "both workers ran tasks"
    uri = str(tmp_path / "lake" / "logs")
    check = [python, "-c", MESSAGES, uri]
    messages = Counter(json.loads(ran(check, tmp_path, programs)))
    assert messages == {f"request {number} took {number % 97} ms": 2 for number in range(LINES)}
    ran(["headgate", "verify", uri, "--servers", kafka_servers, "--topic", topic], tmp_path, programs)
    ran(["headgate", "fsck", uri], tmp_path, programs)


@contextmanager
def cluster(programs: Path, folder: Path) -> Iterator[str]:
    """A standalone master and two workers on loopback, from pyspark's own classes; the master's URI."""
    port = free_port()
    master = f"spark://127.0.0.1:{port}"
    home = ran([str(programs / "python"), "-c", "import pyspark; print(pyspark.__path__[0])"], folder, programs).strip()
    run_class = [f"{home}/bin/spark-class", "org.apache.spark.deploy"]
    loopback = ["--host", "127.0.0.1", "--webui-port", "0"]
    with ExitStack() as stack:
        commands = {"master": [f"{run_class[1]}.master.Master", *loopback, "--port", str(port)]}
        for name in ("worker-1", "worker-2"):
            work = ["--cores", "1", "--memory", "1g", "--work-dir", str(folder / name)]
            commands[name] = [f"{run_class[1]}.worker.Worker", *loopback, *work, master]
        for name, arguments in commands.items():
            log = stack.enter_context((folder / f"{name}.log").open("wb"))
            # A session of its own: Ctrl-C ends them in order, below.
            process = subprocess.Popen(
                [run_class[0], *arguments],
                cwd=folder,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env=outside(programs, SPARK_NO_DAEMONIZE="1", SPARK_LOCAL_IP="127.0.0.1"),
            )
            stack.callback(_end, process)
            said = "I have been elected leader" if name == "master" else "Successfully registered with master"
            _wait_for(folder / f"{name}.log", said, process)
        yield master


def _wait_for(log: Path, said: str, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + START
    while time.monotonic() < until and process.poll() is None:
        if said in log.read_text(errors="replace"):
            return
        time.sleep(0.2)
    raise AssertionError(f"{log.name} never said {said!r}:\n{log.read_text(errors='replace')[-3000:]}")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(10)
