"""Frames that delete, in a real Spark: the table is what its source is, whatever order the rows came in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import headgate
from headgate.errors import InvalidInput
from headgate.streaming.sink import ShardSink
from tests.support.runs import NOW, wait

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
PEOPLE = "id bigint not null, name string not null"


@pytest.fixture
def people(tmp_path: Path) -> headgate.Table:
    return headgate.create_table(tmp_path / "people", PEOPLE, primary_key="id", sharding=headgate.bucket("id", 3))


def stream(frame: DataFrame, table: headgate.Table, checkpoint: Path, **options: Any) -> ShardSink:
    sink = ShardSink(table, stream="s", enable_memtable=False, **options)
    wait(
        frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint)).trigger(**NOW).start(), sink
    )
    return sink


def rows(table: headgate.Table) -> Mapping[int, str]:
    return {row["id"]: row["name"] for row in table.scan().read_all().to_pylist()}


@pytest.mark.parametrize("rounds", [2, pytest.param(3, marks=pytest.mark.deep)])
def test_a_table_follows_delta_s_change_data_feed(
    spark: SparkSession, people: headgate.Table, tmp_path: Path, rounds: int
) -> None:
    """Overwrites too: they delete and insert a key in one version."""
    delta = f"delta.`{tmp_path}/delta`"
    spark.sql(f"CREATE TABLE {delta} (id BIGINT, name STRING) USING delta {FEED}")
    changes = (
        spark.readStream.format("delta")
        .options(readChangeFeed="true", startingVersion="0")
        .load(str(tmp_path / "delta"))
        .where("_change_type != 'update_preimage'")
        .drop("_commit_timestamp")
    )
    options = {"delete_when": "_CHANGE_TYPE = 'delete'", "sequence_by": "_commit_version"}
    for number, statements in enumerate(CHANGES[:rounds]):
        for statement in statements:
            spark.sql(statement.format(delta))
        frame = changes.repartition(4) if number % 2 else changes
        stream(frame, people, tmp_path / "checkpoint", **options)
        assert rows(people) == {row["id"]: row["name"] for row in spark.sql(f"SELECT * FROM {delta}").collect()}
    with pytest.raises(InvalidInput, match=r"delete_when='nope = 1' does not fit the frame: .*nope"):
        stream(changes, people, tmp_path / "other", delete_when="nope = 1", sequence_by="_commit_version")
    with pytest.raises(InvalidInput, match="must be boolean, got bigint"):
        stream(changes, people, tmp_path / "third", delete_when="_commit_version", sequence_by="_commit_version")


FEED = "TBLPROPERTIES (delta.enableChangeDataFeed = true)"
CHANGES = (
    (
        "INSERT INTO {} SELECT id, concat('first ', id) FROM range(100)",
        "UPDATE {} SET name = 'second' WHERE id % 3 = 0",
        "DELETE FROM {} WHERE id % 5 = 0",
    ),
    ("INSERT OVERWRITE {} SELECT id, concat('third ', id) FROM range(50, 120)", "DELETE FROM {} WHERE id = 60"),
    ("DELETE FROM {} WHERE id > 100", "INSERT INTO {} VALUES (60, 'again'), (110, 'again')"),
)


def test_rows_of_one_sequence_meet_in_order_without_a_shuffle_too(spark: SparkSession, tmp_path: Path) -> None:
    """One shard takes the frame as it comes, and here an insert comes before the delete of its own commit."""
    table = headgate.create_table(tmp_path / "t", PEOPLE, primary_key="id")
    columns = "id bigint, name string, _deleted boolean, n int"
    changelog = [(1, "new", False, 1), (1, None, True, 1), (2, "kept", None, 0), (3, "gone", False, 0)]
    spark.createDataFrame([*changelog, (3, None, True, 2)], columns).coalesce(1).write.parquet(str(tmp_path / "log"))
    frame = spark.readStream.schema(columns).parquet(str(tmp_path / "log"))
    sink = stream(frame, table, tmp_path / "checkpoint", sequence_by="n")
    assert rows(table) == {1: "new", 2: "kept"}
    record = sink.last
    stream(frame, table, tmp_path / "checkpoint", sequence_by="n")
    assert record is not None
    assert record.rows == 5, "deletes are rows of the batch, too"


@pytest.mark.line_has("data_sources")
def test_the_format_takes_the_column_and_refuses_a_condition(spark: SparkSession, tmp_path: Path) -> None:
    table = headgate.create_table(tmp_path / "t", PEOPLE, primary_key="id")
    headgate.register(spark)
    columns = "id bigint, name string, gone boolean, n int"
    found = [(1, "a", False, 1), (2, "b", False, 1), (1, None, True, 2)]
    spark.createDataFrame(found, columns).coalesce(1).write.parquet(str(tmp_path / "log"))
    frame = spark.readStream.schema(columns).parquet(str(tmp_path / "log"))

    def write(frame: DataFrame, checkpoint: str, **more: str) -> None:
        writer = frame.writeStream.format("headgate").options(streamName="s", sequenceBy="n", **more).trigger(**NOW)
        writer.option("checkpointLocation", str(tmp_path / checkpoint)).start(table.uri).awaitTermination(240)

    write(frame.withColumnRenamed("gone", "_deleted"), "one")
    assert rows(table) == {2: "b"}
    with pytest.raises(Exception, match=r"withColumn\('_deleted'"):
        write(frame, "two", deleteWhen="gone")
