"""What the lines of Spark differ in, and the other way where one lacks something."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headgate.errors import InvalidInput, MissingExtra
from headgate.spark import versions
from headgate.spark.versions import LINES, _murmur, keys_of_tasks, spark_line, spark_version, to_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Callable[[str | None], None]:
    """As if another Spark were installed."""
    uncached = versions.line.__wrapped__

    def use(found: str | None) -> None:
        monkeypatch.setattr(versions, "spark_version", lambda: found)
        monkeypatch.setattr(versions, "line", uncached)

    return use


def test_the_version_is_the_installed_one_s_and_found_where_no_installer_knows_of_it(tmp_path: Path) -> None:
    assert spark_version() == version("pyspark")
    assert spark_line() in LINES
    import pyspark

    # A cluster has Spark's folder on the path, or an archive of it.
    ask = "from headgate.spark.versions import spark_version as v; import sys; print(v(), 'pyspark' in sys.modules)"
    for place in ("folder", "archive.zip"):
        made = f"""
import shutil, sys; from pathlib import Path
home = Path({str(tmp_path)!r}, "of", "pyspark"); home.mkdir(parents=True, exist_ok=True)
for name in ("__init__.py", "version.py"):
    shutil.copy(Path({pyspark.__path__[0]!r}, name), home)
shutil.make_archive({str(tmp_path / "archive")!r}, "zip", {str(tmp_path / "of")!r})
sys.path[:0] = [{str(tmp_path / ("of" if place == "folder" else place))!r}, {str(ROOT)!r}]
{ask}"""
        done = subprocess.run([sys.executable, "-S", "-c", made], capture_output=True, text=True, timeout=60)
        assert done.stdout.split() == [spark_version(), "False"], done.stderr


@pytest.mark.parametrize("found", ["3.4.4", "4.3.0", "5.0.0"])
def test_another_line_is_refused_in_one_sentence(on: Callable[[str | None], None], found: str) -> None:
    on(found)
    with pytest.raises(InvalidInput, match=rf"runs on Spark 3\.5, 4\.0, 4\.1, 4\.2, and this is {found}\."):
        versions.line()


def test_without_spark_the_extra_is_named(on: Callable[[str | None], None]) -> None:
    on(None)
    with pytest.raises(MissingExtra, match=r"headgate\[spark\]"):
        versions.line()


def test_before_4_0_the_data_source_is_refused_and_the_sink_named(on: Callable[[str | None], None]) -> None:
    on("3.5.3")
    with pytest.raises(InvalidInput, match=r"Spark 3\.5 has no data sources in Python.*ShardSink"):
        versions.check_data_sources()
    with pytest.raises(InvalidInput, match="does not run on Spark Connect"):
        versions.check_session(object())


def test_every_patch_of_a_line_is_that_line(on: Callable[[str | None], None]) -> None:
    for name, line in LINES.items():
        for patch in ("0", "17"):
            on(f"{name}.{patch}")
            assert versions.line() is line
        assert line.tested.startswith(f"{name}.")


def test_each_line_has_its_jars_and_its_environment() -> None:
    jars = ROOT / "headgate" / "connectors" / "jars" / "jar_lists"
    for folder, what in (("lines", "spark"), ("optional", "s3a")):
        assert {path.stem for path in (jars / folder).glob("*.xml")} == {f"{what}-{name}" for name in LINES}
    pinned = {name: ROOT / f"constraints-spark-{name}.txt" for name in LINES}
    *others, main = LINES
    assert {path.name for path in ROOT.glob("constraints-spark-*.txt")} == {pinned[name].name for name in others}
    for name in LINES:
        pins = (ROOT / "constraints.txt" if name == main else pinned[name]).read_text().splitlines()
        assert f"pyspark=={LINES[name].tested}" in pins


# -- the shuffle -----------------------------------------------------------------------


def test_the_hash_is_spark_s() -> None:
    """`SELECT hash(0), hash(1)` of Spark."""
    assert (_murmur(0), _murmur(1)) == (933211791, -559580957)


@pytest.mark.parametrize("tasks", [1, 2, 3, 7, 16, 100, 500])
def test_every_task_has_a_key_of_its_own(tasks: int) -> None:
    keys = keys_of_tasks(tasks)
    assert [_murmur(key) % tasks for key in keys] == list(range(tasks))


@pytest.mark.spark
@pytest.mark.parametrize("way", ["this line's", "by hash"])
def test_rows_of_a_number_meet_in_the_task_of_that_number(
    spark: SparkSession, on: Callable[[str | None], None], way: str
) -> None:
    if way == "by hash":
        on("4.0.1")
    for tasks in (1, 3, 16):
        numbered = spark.range(0, 2000, 1, 4).selectExpr("id", f"cast(id % {tasks} as int) as task")
        placed = to_tasks(numbered, tasks, "task")
        assert placed.columns == ["id", "task"]
        where = placed.selectExpr("task", "spark_partition_id() as at").distinct().collect()
        assert sorted((row["task"], row["at"]) for row in where) == [(n, n) for n in range(tasks)]
        assert placed.count() == 2000
        assert placed.rdd.getNumPartitions() == tasks
