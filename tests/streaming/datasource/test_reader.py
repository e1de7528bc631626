"""`spark.read` and `spark.readStream` of `format("headgate")` in a real Spark. Most of it is tested without: see
tests/checkpoints/snapshots/test_parts.py and test_log_feed.py.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import headgate
from headgate.checkpoints.jobs.flush import run_here
from headgate.checkpoints.jobs.policy import CompactLimits
from headgate.checkpoints.log.pins import PinStore
from headgate.spark import versions
from headgate.table.table import Table
from tests.support.tables import make, of_batches, open_stream, run_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.line_has("data_sources")]
NOW = timedelta(0)


def ids(frame: DataFrame) -> Counter[int]:
    return Counter(row["id"] for row in frame.select("id").collect())


def flushed(driver: Any) -> None:
    driver.close_gaps(driver.settle(run_here, 1 << 30))
    driver.fold()


@pytest.fixture
def load(spark: SparkSession) -> Callable[..., DataFrame]:
    headgate.register(spark)

    def read(table: Table, **options: str) -> DataFrame:
        return spark.read.format("headgate").options(**options).load(table.uri)

    return read


def test_a_frame_is_one_instant_of_base_sstables_and_tails(
    load: Callable[..., DataFrame], spark: SparkSession, tmp_path: Path
) -> None:
    table = make(tmp_path, key="id")
    driver = open_stream(table)
    for number in range(3):
        run_batch(driver, number)
        flushed(driver)
        if number == 0:
            driver.compact(CompactLimits())
    run_batch(driver, 3)
    frame = load(table)
    assert frame.schema.fieldNames() == ["id", "note"]
    assert ids(frame) == of_batches(range(4))
    table.checkpoint(name="four")
    run_batch(driver, 4)
    flushed(driver)
    driver.compact(CompactLimits())
    table.collect_garbage(min_age=NOW, apply=True)
    assert ids(frame) == of_batches(range(4 if versions.line().keeps_plans else 5))
    assert ids(load(table)) == of_batches(range(5))
    assert ids(load(table, checkpoint="four")) == of_batches(range(4))
    narrow = spark.read.format("headgate").schema("id long").option("filter", "id < 5").load(table.uri)
    assert sorted(ids(narrow)) == [0, 1, 2, 3, 4]
    assert sorted(ids(load(table, filter="id < 5 --"))) == [0, 1, 2, 3, 4]
    for filter, said in (
        ("1=1) or (1=1", "one expression"),
        ("id < 5 order by id", "one expression"),
        ("x = 1", "named x"),
    ):
        with pytest.raises(Exception, match=said):
            ids(load(table, filter=filter))
    with pytest.raises(Exception, match="did you mean 'checkpoint'"):
        load(table, chekpoint="four")


def test_a_stream_of_the_log_sees_each_batch_once_over_restarts(
    load: Callable[..., DataFrame], spark: SparkSession, tmp_path: Path
) -> None:
    table = make(tmp_path)
    driver = open_stream(table)
    seen: list[tuple[int, list[Any]]] = []

    def note(frame: DataFrame, number: int) -> None:
        seen.append((number, frame.select("id", "_stream", "_sequence", "_shard", "_position").collect()))

    def run(**options: str) -> None:
        frame = headgate.read_log(spark, table.uri, consumer="mirror", **options)
        writer = frame.writeStream.foreachBatch(note).option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination(240)

    records = [run_batch(driver, number, mode="wal") for number in range(3)]
    if versions.line().read_limits:
        run(maxBatchesPerTrigger="1")
        assert [len(found) for _, found in seen] == [36, 36, 36]
    else:
        with pytest.raises(Exception, match="cannot be limited"):
            run(maxBatchesPerTrigger="1")
        run()
        assert [len(found) for _, found in seen] == [108]
    for number in (3, 4):
        records.append(run_batch(driver, number))
        flushed(driver)
    table.collect_garbage(min_age=NOW, apply=True)
    run()
    assert Counter(row["id"] for _, found in seen for row in found) == of_batches(range(5))
    sequences = [row["_sequence"] for _, found in seen for row in found]
    assert {min(found)["_stream"] for _, found in seen} == {"s"}
    assert [max(row["_sequence"] for row in found) for _, found in seen] == sorted(
        max(row["_sequence"] for row in found) for _, found in seen
    )
    assert len(set(sequences)) == 5
    listed = {(one.sequence, name, at) for one in records for name, part in one.shards.items() for at in part.positions}
    rows = [row for _, found in seen for row in found]
    assert {(row["_sequence"], row["_shard"], row["_position"]) for row in rows} == listed
    assert all(row["_shard"].endswith(f":{row['id'] // 1_000_000}") for row in rows), "a partition is a shard"


def test_frames_and_a_stream_of_the_log_beside_batches_flushes_compactions_and_collection(
    load: Callable[..., DataFrame], spark: SparkSession, tmp_path: Path
) -> None:
    """A small one; the long one, without Spark, is tests/checkpoints/snapshots/test_soak.py."""
    table = make(tmp_path)
    driver, ended = open_stream(table), threading.Event()
    done: list[int] = []
    seen: Counter[int] = Counter()

    def work() -> None:
        while not ended.is_set():
            run_batch(driver, len(done))
            done.append(len(done))
            flushed(driver)
            if len(done) % 3 == 0:
                driver.compact(CompactLimits())
                table.collect_garbage(min_age=timedelta(seconds=20), apply=True)

    def note(frame: DataFrame, number: int) -> None:
        seen.update(row["id"] for row in frame.collect())

    run_batch(driver, 0)
    done.append(0)
    log = headgate.read_log(spark, table.uri, pollInterval="0.1")
    query = log.writeStream.foreachBatch(note).option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    worker = threading.Thread(target=work)
    # Before the consumer has its pin, folds may delete the records of batches that it would have begun with.
    until = time.monotonic() + 60
    while not PinStore(table.home.records, table.uri).list() and time.monotonic() < until:
        time.sleep(0.1)
    worker.start()
    try:
        for _ in range(3):
            before = len(done)
            found = ids(load(table))
            assert any(found == of_batches(range(number)) for number in range(before, len(done) + 2))
    finally:
        ended.set()
        worker.join()
    query.processAllAvailable()
    query.stop()
    assert query.exception() is None
    assert seen == of_batches(range(len(done)))


@pytest.mark.skipif(versions.spark_line() != "4.2", reason="a canary of Spark 4.2")
def test_canary_spark_pushes_filters_of_one_query_down_to_the_next(spark: SparkSession) -> None:
    """When this fails, Spark is mended, and `TableReader` may take filters by pushFilters."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, EqualTo, Filter, InputPartition

    class Reader(DataSourceReader):
        equal: int | None = None

        def pushFilters(self, filters: list[Filter]) -> Any:
            for one in filters:
                if isinstance(one, EqualTo):
                    self.equal = one.value
                else:
                    yield one

        def read(self, partition: InputPartition) -> Any:
            found = [number for number in range(10) if self.equal in (None, number)]
            yield pa.record_batch({"id": pa.array(found, pa.int64())})

    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return "canary"

        def schema(self) -> str:
            return "id long"

        def reader(self, schema: Any) -> Reader:
            return Reader()

    setting = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(setting, "true")
    try:
        spark.dataSource.register(Source)
        frame = spark.read.format("canary").load()
        assert frame.filter("id = 3").count() == 1
        assert frame.count() == 1  # of ten
    finally:
        spark.conf.unset(setting)
