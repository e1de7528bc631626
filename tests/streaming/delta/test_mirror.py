"""A Delta mirror in a real Spark: row by row the table, whatever is killed, and refused where it could not be."""

from __future__ import annotations

import os
import random
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import headgate
from headgate.checkpoints.jobs.flush import run_here
from headgate.checkpoints.jobs.policy import CompactLimits
from headgate.errors import InvalidInput
from headgate.table.table import Table
from tests.streaming.delta.tables import catalog_name, check_ledger, check_mirror, rows_of
from tests.support.processes import Driver
from tests.support.runs import Stream, Topic, make_table
from tests.support.tables import commit_changes, make, open_stream, run_batch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.line_has("data_sources")]


def test_a_mirror_begins_with_the_table_as_it_is_and_follows_updates_deletes_and_columns(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = make(tmp_path, key="id")
    driver = open_stream(table)
    commit_changes(table, driver, [(key, f"first {key}") for key in range(20)])
    driver.close_gaps(driver.settle(run_here, 1 << 30))
    driver.compact(CompactLimits())
    commit_changes(table, driver, [(3, None), (4, "fresh"), (30, "fresh")])
    target, place = tmp_path / "mirror", str(tmp_path / "mirror-checkpoint")
    (target / "_delta_log" / "_staged_commits").mkdir(parents=True)
    (target / "part-00000.snappy.parquet").write_bytes(b"left by a start that was killed")
    mirror = headgate.DeltaMirror(table.uri, str(target), maxBatchesPerTrigger=4)
    assert mirror.mode == "merge"
    mirror.run_once(spark, checkpoint=place)
    check_mirror(spark, table, target)

    # Within one micro-batch: a key changed often, deleted and put again, put and deleted, deleted without being there.
    chance = random.Random(7)
    for _ in range(7):
        keys = [chance.randrange(40) for _ in range(25)]
        commit_changes(
            table, driver, [(key, None if chance.random() < 0.4 else f"n {chance.random()}") for key in keys]
        )
    mirror.run_once(spark, checkpoint=place)
    check_mirror(spark, table, target)
    assert [one.checkpoint.name for one in table.checkpoints() if one.checkpoint.name.startswith("mirror-")] == []

    # One that came again, from a driver that was thought dead, changes nothing.
    before = rows_of(spark, target)
    stale = _batches(mirror, spark, place)
    stale(spark.createDataFrame([(1, "stale", "s", 1, "x", 1, 0, False)], _LOG), 1)
    assert rows_of(spark, target) == before

    # A name is data, at any depth: it never becomes a part of the statement that adds it. (Lance takes no such name for
    # a column itself.)
    inner = pa.field("p`q", pa.string(), nullable=False)
    deep = pa.struct([("x`y", pa.int64()), ("many", pa.list_(pa.struct([inner])))])
    table = table.add_column(pa.field("extra", pa.int64())).add_column(pa.field("deep", deep))
    for _ in range(2):  # the second start finds the columns that the first one added
        mirror.run_once(spark, checkpoint=place)
        check_mirror(spark, table, target)
    found: Any = spark.read.format("delta").load(str(target)).schema["deep"].dataType
    assert found.fieldNames() == ["x`y", "many"]

    _refused(spark, table, target, place, tmp_path)


def _refused(spark: SparkSession, table: Table, target: Path, place: str, tmp_path: Path) -> None:
    other = headgate.create_table(str(tmp_path / "other"), table.schema, primary_key="id", sharding=headgate.single())
    plain = tmp_path / "plain"
    spark.range(3).write.format("delta").save(str(plain))
    calls: dict[str, tuple[Any, Path, str]] = {
        "another checkpoint": (table, target, str(tmp_path / "empty")),
        "not a mirror": (table, plain, str(tmp_path / "empty")),
        "mirror of another table": (other, target, place),
        "is missing": (table, tmp_path / "nowhere", place),
    }
    for why, (of, into, at) in calls.items():
        with pytest.raises(InvalidInput, match=why):
            headgate.DeltaMirror(of, str(into)).start(spark, checkpoint=at)
    assert not (tmp_path / "nowhere").exists()


_LOG = "id long, note string, _stream string, _sequence long, _shard string, _position long, _row int, _deleted boolean"


def _batches(mirror: headgate.DeltaMirror, spark: SparkSession, place: str) -> Any:
    from headgate.checkpoints.spark.directory import SparkCheckpoint
    from headgate.streaming.delta.mirror_batches import MirrorBatches

    query_id = SparkCheckpoint(place).query_id()
    target = mirror._name.given
    return MirrorBatches(mirror._table.uri, target, ("id", "note"), ("id",), query_id, f"mirror-{query_id}")


@pytest.mark.deep
def test_a_table_without_a_key_is_mirrored_by_appending(spark: SparkSession, tmp_path: Path) -> None:
    table = make(tmp_path)
    driver = open_stream(table)
    run_batch(driver, 0)
    place = str(tmp_path / "c")
    with catalog_name(spark) as target:
        mirror = headgate.DeltaMirror(table, target, mode="append")
        mirror.run_once(spark, checkpoint=place)
        for number in range(1, 4):
            run_batch(driver, number)
        mirror.run_once(spark, checkpoint=place)
        check_mirror(spark, table, target)
        # Spark forgets that it was done with the last batch: as after a crash between Delta's commit and its own.
        last = max(int(path.name) for path in Path(place, "commits").iterdir() if path.name.isdigit())
        Path(place, "commits", str(last)).unlink()
        Path(place, "commits", f".{last}.crc").unlink(missing_ok=True)
        mirror.run_once(spark, checkpoint=place)
        check_mirror(spark, table, target)
        shutil.rmtree(place)
        with pytest.raises(InvalidInput, match="another checkpoint"):
            mirror.start(spark, checkpoint=place)


class Killed:
    """A table under a stream with a ledger and a mirror, whose driver is killed."""

    def __init__(self, spark: SparkSession, topic: Topic, folder: Path, chance: random.Random, key: str | None) -> None:
        self.spark, self.topic, self.folder, self.chance = spark, topic, folder, chance
        self.table = make_table(folder, headgate.by_partition(key_is_partitioned=key is not None), key)
        self.told: dict[str, Any] = {
            "table": self.table.uri,
            "servers": topic.servers,
            "topic": topic.name,
            "max_offsets": 60,
            "checkpoint": str(folder / "checkpoint"),
            "ledger": str(folder / "ledger"),
            "mirror": str(folder / "mirror"),
            "mirror_checkpoint": str(folder / "mirror-checkpoint"),
            "log": str(folder / "driver.log"),
        }

    def round(self) -> None:
        """Rows come in, a driver works on them and on the mirror, and is killed with kill -9."""
        self.topic.put_orders(600, seed=self.chance.randrange(1 << 30), keys=150)
        driver = Driver(self.told, "tests.streaming.delta.process")
        try:
            driver.wait_for("batch")
            time.sleep(self.chance.random() * 4)
            driver.kill()
            # Its JVM may live a little longer, as a driver does that lost its connection.
            time.sleep(self.chance.random())
        finally:
            driver.end_family()

    def finish(self) -> None:
        """A last run of stream and mirror: then all three say the same."""
        options = {"ledger": self.told["ledger"]}
        place = Path(self.told["checkpoint"])
        Stream(self.spark, self.table, [self.topic], place, max_offsets=1000, options=options).run().close()
        headgate.DeltaMirror(self.table, self.told["mirror"]).run_once(
            self.spark, checkpoint=self.told["mirror_checkpoint"]
        )
        check_mirror(self.spark, self.table, self.told["mirror"])
        rows = check_ledger(self.spark, self.table, self.told["ledger"])
        for partition in range(self.topic.partitions):
            ranges = sorted((row["from_offset"], row["until_offset"]) for row in rows if row["partition"] == partition)
            size = sum(one[0] == partition for one in self.topic.records)
            assert [start for start, _ in ranges] == [0, *(until for _, until in ranges[:-1])], "a hole, or a double"
            assert ranges[-1][1] == size


def _killed(spark: SparkSession, topic: Topic, folder: Path, rounds: int, key: str | None) -> None:
    seed = int(os.environ.get("HEADGATE_SEED", random.randrange(1 << 32)))
    print(f"HEADGATE_SEED={seed}")
    run = Killed(spark, topic, folder, random.Random(seed), key)
    try:
        for _ in range(rounds):
            run.round()
        run.finish()
    except BaseException as error:
        raise AssertionError(f"replay with HEADGATE_SEED={seed}; the drivers' log is {run.told['log']}") from error


@pytest.mark.kafka
@pytest.mark.deep
@pytest.mark.parametrize("key", ["id", None], ids=["merge", "append"])
def test_killed_20_times_at_random_mirror_and_ledger_are_the_tables(
    spark: SparkSession, kafka_servers: str, make_topic: Any, tmp_path: Path, key: str | None
) -> None:
    _killed(spark, Topic(kafka_servers, make_topic(3), 3), tmp_path, 20, key)
