"""One stream through several lines of Spark: killed on each, gone on with, and taken over by the next one up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import headgate
from headgate.spark import versions
from tests.recovery.test_crash_points import told
from tests.support.lines import python_of
from tests.support.processes import driver
from tests.support.runs import Topic, check_table, make_table, until
from tests.support.services import MakeTopic

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

READS = "has no data sources in Python"


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(("3.5", "4.0"), id="oldest"),
        pytest.param(tuple(versions.LINES), id="all", marks=pytest.mark.deep),
    ],
)
def test_a_stream_is_killed_on_a_line_of_spark_and_goes_on_there_and_on_the_next_one(
    tmp_path: Path,
    kafka_servers: str,
    make_topic: MakeTopic,
    record_property: Callable[[str, object], None],
    lines: tuple[str, ...],
) -> None:
    pythons = {line: python_of(line) for line in lines}
    topic = Topic(kafka_servers, make_topic(2), 2)
    # By bucket, so that every batch is shuffled to the tasks of its shards.
    table = make_table(tmp_path, headgate.bucket("id", 3), "id", full_text=["note"])
    facts = told(tmp_path, topic, table, memtable=True, max_memtable_size=4 << 10)
    for line, python in pythons.items():
        topic.put_orders(800, seed=len(topic.records) + 1, keys=300)
        armed, reached = tmp_path / "armed", tmp_path / "reached"
        reached.unlink(missing_ok=True)
        armed.touch()
        with driver(facts, python=python, armed=str(armed)) as killed:
            killed.wait_for("pid")
            until(reached.exists)
            killed.kill()
        with driver(facts, python=python, search="order") as again:
            found, read = again.wait_for("found"), again.wait_for("read")
            assert again.finish() == 0, again.tail()
        check_table(table, topic)
        ids = sorted(topic.newest())
        assert found == ids, line
        assert read == ids if versions.LINES[line].data_sources else READS in read
    row = {"Spark, in this order": ", ".join(versions.LINES[line].tested for line in lines), "kills": len(lines)}
    record_property("found", ["One stream through lines of Spark", {**row, "records": len(topic.records)}])
