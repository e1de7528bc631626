"""The declarative pipeline of examples/pipeline, run as docs/operations/pipelines.md says."""

from __future__ import annotations

import inspect
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

import headgate
from headgate.spark import versions
from tests.support.pages import ROOT, blocks_run_by
from tests.support.runs import Topic, check_table
from tests.support.services import MakeTopic

pytestmark = [pytest.mark.deep, pytest.mark.spark, pytest.mark.kafka, pytest.mark.line_has("pipelines")]


FLOW = ROOT / "examples" / "pipeline" / "flows" / "orders.py"


@pytest.mark.skipif(versions.spark_line() != "4.2", reason="a canary of Spark 4.2")
def test_canary_processes_of_a_data_source_report_profiles_that_nobody_asked_for() -> None:
    """When this fails, Spark is mended (SPARK-59135), and `versions.drop_empty_profiles` may go."""
    from pyspark.sql.worker import utils

    planning = inspect.getsource(utils.worker_run)
    assert planning.index("SQL_UDF_PROFIER") < planning.index("if conf.profiler")


def test_a_flow_ends_in_a_table_exactly_once_over_two_runs(
    kafka_servers: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    flow, commands = [block.text for block in blocks_run_by(__file__)]
    assert FLOW.read_text().endswith(flow), "the page shows the example"
    topic = Topic(kafka_servers, make_topic(2), 2)
    shutil.copytree(FLOW.parents[1], tmp_path / "examples" / "pipeline")
    spec = tmp_path / "examples" / "pipeline" / "spark-pipeline.yml"
    told = spec.read_text().replace("localhost:9092", kafka_servers).replace("topic: orders", f"topic: {topic.name}")
    spec.write_text(told.replace("/lake/", f"{tmp_path}/lake/"))
    create, run = commands.replace("/lake/", f"{tmp_path}/lake/").splitlines()
    home = Path(pyspark.__file__).parent
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    here = {"SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "PATH": programs}

    def bash(command: str) -> None:
        done = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, env=os.environ | here, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-6000:]

    bash(create)
    table = headgate.open_table(tmp_path / "lake" / "orders")
    for half in range(2):
        topic.put_orders(400, seed=half + 1)
        bash(run)
        check_table(table, topic)
