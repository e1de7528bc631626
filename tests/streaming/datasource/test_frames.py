"""`df.write.format("headgate")` in a real Spark: one test, since starting jobs is what takes the time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import headgate
from headgate.checkpoints.jobs.flush import run_here
from headgate.checkpoints.log.commit_log import read_head
from headgate.checkpoints.log.names import BATCH_STREAM
from headgate.checkpoints.stream.driver import StreamDriver
from headgate.errors import InvalidInput
from headgate.streaming.datasource.source import FrameWriter, HeadgateDataSource
from headgate.table.table import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.line_has("data_sources")]


def save(frame: DataFrame, table: Table, mode: str = "append", **options: str) -> None:
    frame.write.format("headgate").mode(mode).options(**options).save(table.uri)


def test_frames_become_rows_once_whatever_becomes_of_tasks_jobs_and_streams(
    spark: SparkSession, tmp_path: Path
) -> None:
    headgate.register(spark)
    key, uri = "id bigint not null, note string", str(tmp_path / "keyed")
    keyed = headgate.create_table(uri, key, primary_key="id", sharding=headgate.bucket("id", 2))
    frame = spark.range(0, 200, 1, 4).selectExpr("id", "concat('n', id) AS note", "id AS version")

    with pytest.raises(Exception, match=r"(?s)came from \d tasks.*headgate.by_shard"):
        save(frame, keyed, sequenceBy="version")
    assert keyed.count() == 0
    narrow = frame.withColumn("id", frame.id.cast("int"))
    for _ in range(2):
        save(headgate.by_shard(narrow, keyed), keyed, sequenceBy="version", batchId="first")
    assert keyed.count() == 200
    with pytest.raises(InvalidInput, match="by which the table is sharded"):
        headgate.by_shard(frame.drop("id"), keyed)
    changes = spark.sql(
        "SELECT * FROM VALUES (1L, 'new', 2, false), (1L, 'old', 1, false), (2L, '', 1, true) "
        "AS t(id, note, version, _deleted)"
    )
    save(changes.coalesce(1), keyed, sequenceBy="version")
    assert keyed.count() == 199
    assert [row["note"] for row in keyed.get([1, 2]).to_pylist()] == ["new"]

    # Attempts that are lost after their writes, and a task that never works.
    class Losing(FrameWriter):
        def write(self, iterator: Any) -> Any:
            from pyspark import TaskContext

            written = super().write(iterator)
            context = TaskContext.get()
            assert context is not None
            if context.attemptNumber() == 0 or self._job.settings.batch_id == "bad":
                raise RuntimeError("this attempt is lost")
            return written

    class LosingSource(HeadgateDataSource):
        def writer(self, schema: Any, overwrite: bool) -> FrameWriter:
            return Losing(super().writer(schema, overwrite)._job)

    plain = headgate.create_table(str(tmp_path / "plain"), "id bigint, note string")
    numbers = frame.drop("version").limit(50)
    spark.dataSource.register(LosingSource)
    try:
        save(numbers, plain)
        with pytest.raises(Exception, match="this attempt is lost"):
            save(numbers, plain, batchId="bad")
    finally:
        headgate.register(spark)
    assert plain.count() == 50
    assert [one.owner for one in plain.shards()] == [None]

    # A stream has the shard, and another job comes between.
    driver = StreamDriver.open(plain.home, "orders", "query", ["single"])
    with pytest.raises(Exception, match="belongs to stream 'orders'"):
        save(numbers, plain)
    driver.renew()
    driver.close_gaps(driver.settle(run_here, 1 << 20))
    driver.unseal(forget_owner=True)
    save(numbers, plain, batchId="more")
    assert plain.count() == 100
    for mode, why in (("overwrite", "would delete the table's rows"), ("error", "Append")):
        with pytest.raises(Exception, match=why):
            save(numbers, plain, mode)
    head = read_head(plain.home, BATCH_STREAM)
    assert "batch:more" in head.opaque_ends
    assert "batch:bad" not in head.opaque_ends
    assert headgate.fsck(plain).holds

    # Spark's catalog takes the table and drops it without its rows; beside Delta's catalog Spark refuses to use it.
    spark.sql(f"CREATE TABLE registered USING headgate LOCATION '{plain.uri}'")
    try:
        for statement in ("SELECT count(*) FROM registered", "INSERT INTO registered VALUES (1000, 'by SQL')"):
            with pytest.raises(Exception, match="not a valid Spark SQL Data Source"):
                spark.sql(statement)
    finally:
        spark.sql("DROP TABLE registered")
    assert plain.count() == 100
