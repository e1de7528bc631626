"""What docs/operations/platforms.md shows, tried on a standalone cluster of two workers for each line of Spark; and its
job files, read.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from examples import append_logs
from headgate.spark import versions
from tests.project.installed import built_wheel
from tests.project.test_cluster import MESSAGES, WHERE, cluster, ran
from tests.support.lines import python_of
from tests.support.pages import ROOT, blocks_run_by
from tests.support.services import MakeTopic

JOBS = ROOT / "ops" / "platforms"
ROWS = 4_000


@pytest.mark.deep
@pytest.mark.spark
@pytest.mark.kafka
@pytest.mark.parametrize("line", versions.LINES)
def test_a_job_on_two_workers_fills_a_table_with_the_topic(
    line: str, kafka_servers: str, make_topic: MakeTopic, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    topic, programs = make_topic(2), python_of(line).parent
    python = str(programs / "python")
    ask = "from headgate.connectors.jars.lists import spark_jars; print(*spark_jars(), sep=',')"
    jars = ran([python, "-c", ask], tmp_path, programs).strip()
    sample = [python, str(ROOT / "examples" / "sample_records.py"), "logs", "--servers", kafka_servers]
    arguments = ["--servers", kafka_servers, "--topic", topic, "--table", str(tmp_path / "lake" / "logs")]
    arguments += ["--spark-checkpoint", str(tmp_path / "lake" / "state"), "--once"]
    with cluster(programs, tmp_path) as master:
        submit = [str(programs / "spark-submit"), "--master", master, "--jars", jars]
        submit += ["--conf", "spark.executor.memory=600m", str(ROOT / "examples" / "append_logs.py"), *arguments]
        for half in (1, 2):
            ran([*sample, "--topic", topic, "--count", str(ROWS)], tmp_path, programs)
            said = ran(submit, tmp_path, programs, PYSPARK_PYTHON=python, SPARK_LOCAL_IP="127.0.0.1")
            assert f"{half * ROWS} lines" in said
    found = Counter(json.loads(ran([python, "-c", MESSAGES, str(tmp_path / "lake" / "logs")], tmp_path, programs)))
    assert found == {f"request {number} took {number % 97} ms": 2 for number in range(ROWS)}
    told = {"Spark": versions.LINES[line].tested, "runs of the job": 2, "rows, each once": 2 * ROWS}
    record_property("found", ["A job on a standalone cluster of two workers", told])


@pytest.mark.deep
@pytest.mark.spark
@pytest.mark.kafka
def test_workers_run_the_python_of_an_archive(
    kafka_servers: str, make_topic: MakeTopic, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    topic, programs = make_topic(2), Path(sys.executable).parent
    built_wheel(tmp_path)
    movable_python(tmp_path / "python")
    shutil.copy(ROOT / "examples" / "append_logs.py", tmp_path)
    (tmp_path / "where.py").write_text(WHERE)
    sample = [sys.executable, str(ROOT / "examples" / "sample_records.py"), "logs", "--servers", kafka_servers]
    ran([*sample, "--topic", topic, "--count", str(ROWS)], tmp_path, programs)
    (block,) = blocks_run_by(__file__)
    with cluster(programs, tmp_path) as master:
        placed = (
            block.text.replace("spark://master:7077", master)
            .replace("localhost:9092", kafka_servers)
            .replace("--topic logs", f"--topic {topic}")
            .replace("/lake/", f"{tmp_path}/lake/")
            .replace("append_logs.py", "where.py append_logs.py")
        )
        settings = {"PIP_CONSTRAINT": str(ROOT / "constraints.txt"), "SPARK_LOCAL_IP": "127.0.0.1"}
        said = ran(["bash", "-ec", placed], tmp_path, programs, 1800, **settings)
    assert f"{ROWS} lines" in said
    executors = [line.split()[1:] for line in said.splitlines() if line.startswith("executor: ")]
    assert {Path(file).relative_to(tmp_path).parts[0] for file, *_ in executors} == {"worker-1", "worker-2"}
    assert all("/python/lib/" in file for file, *_ in executors), "each worker unpacked an archive of its own"
    found = Counter(json.loads(ran([sys.executable, "-c", MESSAGES, f"{tmp_path}/lake/logs"], tmp_path, programs)))
    assert found == {f"request {number} took {number % 97} ms": 1 for number in range(ROWS)}
    told = {"Spark": versions.line().tested, "rows, each once": ROWS}
    record_property("found", ["A Python in an archive, on a standalone cluster of two workers", told])


def movable_python(folder: Path) -> None:
    """A copy of the Python that made this environment, with nothing installed but pip."""
    base, name = Path(sys.base_prefix), f"python{sys.version_info.major}.{sys.version_info.minor}"
    library = Path("lib", name)
    ignored = shutil.ignore_patterns("site-packages", "test", "__pycache__", "config-*")
    shutil.copytree(base / library, folder / library, ignore=ignored)
    for shared in (base / "lib").glob("libpython*.so*"):
        shutil.copy(shared, folder / "lib", follow_symlinks=False)
    (folder / "bin").mkdir()
    shutil.copy(base / "bin" / name, folder / "bin")
    os.symlink(name, folder / "bin" / "python3")
    ran([str(folder / "bin" / "python3"), "-m", "ensurepip"], folder, folder / "bin")


def job(path: Path) -> Any:
    """What a job file says."""
    text = path.read_text()
    return json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)


def words(found: Any) -> list[str]:
    """Every text in it, in order."""
    if isinstance(found, dict):
        return [word for one in found.values() for word in words(one)]
    if isinstance(found, list):
        return [word for one in found for word in words(one)]
    return shlex.split(str(found))


@pytest.mark.parametrize("path", sorted(JOBS.iterdir()), ids=lambda path: path.name)
def test_a_job_file_is_one_and_asks_the_example_for_what_it_takes(path: Path) -> None:
    found = shlex.split(path.read_text(), comments=True) if path.suffix == ".sh" else words(job(path))
    program = next(number for number, word in enumerate(found) if word.endswith("append_logs.py"))
    arguments = [word for word in found[program + 1 :] if word != "--"]
    first = next(number for number, word in enumerate(arguments) if word.startswith("--servers"))
    given = append_logs.parsed([word for word in arguments[first : first + 8]])
    assert not given.once, "a service goes on"
    assert given.table.startswith(("s3://", "/Volumes/", "/mnt/", "/lakehouse/", "/gcs/"))
    assert given.spark_checkpoint != given.table


def test_the_page_has_a_section_for_every_job_file() -> None:
    page = (ROOT / "docs" / "operations" / "platforms.md").read_text()
    assert sorted(re.findall(r"`ops/platforms/([\w.-]+)`", page)) == sorted(path.name for path in JOBS.iterdir())
