"""Indexing on Spark: tasks that fail, die or outlive their attempt, and a driver that is killed before it commits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lance
import pytest

import headgate
from headgate.connectors.lance.index import look_index
from headgate.connectors.lance.vectors import read_model
from headgate.errors import DataLoss, Transient
from headgate.search.build.build import BUILD_STAGES, build_index
from headgate.search.build.jobs import Job
from headgate.search.build.plan import Limits
from headgate.search.build.spark import limits_on, on_spark
from headgate.search.build.vectors import VectorKind
from headgate.search.finalize.finalize import Report
from headgate.search.finalize.segment import Segment
from headgate.table.table import Table
from tests.search.build.unsteady import LostJob, Unsteady, watched
from tests.support import vectors
from tests.support.indexes import NAME, SCHEMA, answers, append, coverage, files_in, fragments_of, reference, texts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

TWO = Limits(tasks=2, task_rows=1)
FOUR = Limits(tasks=4, task_rows=1)
PATIENCE = 180.0


@pytest.fixture
def spark(spark: SparkSession) -> Iterator[SparkSession]:
    """Tasks run in a process of their own each: some here fork, which a process that has used Lance must not. Spark
    asks for the setting at each task, and keeps processes that may be used again apart.
    """
    jvm: Any = spark.sparkContext._jvm
    running = jvm.org.apache.spark.SparkEnv.get().conf()
    running.set("spark.python.worker.reuse", "false")
    yield spark
    running.set("spark.python.worker.reuse", "true")


@pytest.fixture
def table(tmp_path: Path) -> Table:
    made = headgate.create_table(str(tmp_path / "table"), SCHEMA, full_text="note")
    lance.write_dataset(texts(160), made.uri, mode="append", max_rows_per_file=40)
    return made


def folders(table: Table) -> set[str]:
    return {path.name for path in (Path(table.uri) / "_indices").iterdir() if files_in(path)}


def in_use(table: Table) -> set[str]:
    return {str(one.index_id) for one in look_index(table.home.store, "note", NAME).segments}


def check(table: Table, tmp_path: Path) -> None:
    """One correct index, and nothing else once garbage is collected."""
    assert coverage(table.uri) == fragments_of(table.uri)
    assert answers(table.uri) == reference(table.uri, tmp_path)
    lance.dataset(table.uri).cleanup_old_versions(older_than=timedelta(0), delete_unverified=False)
    table.collect_garbage(min_age=timedelta(0), apply=True)
    assert folders(table) == in_use(table)
    assert answers(table.uri) == reference(table.uri, tmp_path)


def test_a_task_trains_once_and_the_others_build_segments_of_vectors_though_one_dies(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = vectors.make(tmp_path / "vectors")
    for start in range(0, 1200, 300):
        vectors.append(table, 300, start)
    runner = watched(on_spark(spark, table.uri), Unsteady("built", "kill", tmp_path))
    kind = VectorKind(table.vectors[0])
    built = build_index(table.home.store, "embedding", "embedding_idx", kind=kind, runner=runner, limits=FOUR)
    assert (built.segments, built.fragments, built.rows) == (4, 4, 1200)
    models = {
        read_model(f"{table.uri}/_indices/{one.index_id}", {}).centroids.values.to_numpy().tobytes()
        for one in kind.look(table.home.store, "embedding", "embedding_idx").segments
    }
    assert len(models) == 1
    assert vectors.recall(table, 10) >= 0.95
    assert table.build_index("embedding", spark=spark).rounds == 0


def test_tasks_build_and_finalize_and_the_driver_commits(spark: SparkSession, table: Table, tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    built = table.build_index("note", spark=spark, limits=TWO, progress=lambda *one: told.append(one))
    assert (built.segments, built.fragments, built.rows) == (2, 4, 160)
    assert list(dict.fromkeys(stage for stage, _, _ in told)) == list(BUILD_STAGES)
    assert {stage: (done, total) for stage, done, total in told if stage != "discover"} == {
        **dict.fromkeys(BUILD_STAGES[1:-1], (2, 2)),
        "commit": (1, 1),
    }
    assert limits_on(spark).tasks == 2
    assert table.build_index("note", spark=spark).rounds == 0
    append(table.uri, 50, 700)
    assert table.build_index("note", spark=spark).fragments == 5
    check(table, tmp_path)


@pytest.mark.deep
@pytest.mark.s3
@pytest.mark.usefixtures("s3_environment")
def test_on_s3_tasks_build_and_finalize_also_where_one_dies_and_the_driver_commits(
    spark: SparkSession, bucket: str, s3_options: dict[str, str], tmp_path: Path
) -> None:
    """The options travel to the tasks; this process, which asks native, has them from its environment."""
    table = headgate.create_table(f"s3://{bucket}/table", SCHEMA, full_text="note", storage_options=s3_options)
    lance.write_dataset(texts(160), table.uri, mode="append", max_rows_per_file=40)
    flags = tmp_path / "flags"
    flags.mkdir()
    runner = watched(on_spark(spark), Unsteady("copied", "kill", flags))
    build_index(table.home.store, "note", NAME, runner=runner, limits=TWO)
    assert (flags / "first").exists(), "a task died"
    append(table.uri, 50, 700)
    assert table.build_index("note", spark=spark).fragments == 5
    assert coverage(table.uri) == fragments_of(table.uri)
    assert answers(table.uri) == reference(table.uri, tmp_path)
    lance.dataset(table.uri).cleanup_old_versions(older_than=timedelta(0), delete_unverified=False)
    table.collect_garbage(min_age=timedelta(0), apply=True)
    left = {info.key.split("/")[1] for info in table.home.store.list("_indices/")}
    assert left == in_use(table), "finished, named, and nothing else"
    assert answers(table.uri) == reference(table.uri, tmp_path)


@pytest.mark.parametrize(
    ("step", "how"),
    [
        pytest.param("built", "raise", marks=pytest.mark.deep),
        ("copied", "kill"),
        pytest.param("marked", "raise", marks=pytest.mark.deep),
        pytest.param("build", "fork", marks=pytest.mark.deep),
    ],
)
def test_a_task_that_fails_or_outlives_its_attempt_costs_nothing_but_garbage(
    spark: SparkSession, table: Table, tmp_path: Path, step: str, how: str
) -> None:
    flags = tmp_path / "flags"
    flags.mkdir()
    runner = watched(on_spark(spark), Unsteady(step, how, flags))
    before = folders(table)
    build_index(table.home.store, "note", NAME, runner=runner, limits=TWO)
    assert (flags / "first").exists(), "a task misbehaved"
    if how == "fork":
        wait_for(flags / "outlived")
    assert len(folders(table) - before) == 3, "two segments, and what the failed attempt left"
    assert len(in_use(table)) == 2
    check(table, tmp_path)


def test_what_is_lost_is_told_once_and_not_tried_again(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(DataLoss, match="part_0_docs"):
        on_spark(spark)([LostJob((0,), tmp_path)], lambda stage, done, total: None)
    assert len(list(tmp_path.glob("attempt-*"))) == 1


def test_a_task_that_fails_every_time_ends_the_build_with_one_sentence(spark: SparkSession, table: Table) -> None:
    def runner(jobs: Sequence[Job], report: Report) -> Sequence[Segment]:
        return on_spark(spark)([*jobs[:1], "no job"], report)  # type: ignore[list-item]

    with pytest.raises(Transient, match="Spark gave up"):
        build_index(table.home.store, "note", NAME, runner=runner, limits=TWO)
    assert coverage(table.uri) == []


def test_a_driver_killed_between_build_and_commit_leaves_nothing_but_garbage(
    spark: SparkSession, table: Table, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "tests.search.build.driver", table.uri, str(tmp_path / "spark.log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True, text=True) as driver:
        assert driver.stdout is not None
        try:
            assert driver.stdout.readline() == "stands\n", (tmp_path / "spark.log").read_text()[-2000:]
        finally:
            os.killpg(driver.pid, signal.SIGKILL)
    assert coverage(table.uri) == []
    orphans = folders(table) - in_use(table)
    assert len(orphans) == 2, "built, finalized, and named by nobody"
    table.build_index("note", spark=spark, limits=TWO)
    assert not orphans & in_use(table)
    check(table, tmp_path)


def wait_for(path: Path) -> None:
    end = time.monotonic() + PATIENCE
    while not path.exists():
        assert time.monotonic() < end, f"{path.name} never came"
        time.sleep(0.05)
