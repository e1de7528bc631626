"""A lost Spark checkpoint, rebuilt from the commit log: a real query goes on from it, nothing lost, nothing twice."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

import headgate
from headgate.checkpoints.spark.directory import SparkCheckpoint
from headgate.checkpoints.spark.recover import rebuild
from headgate.cli import main
from headgate.connectors.kafka.topics import grow_topic
from headgate.connectors.objects import open_store
from headgate.steps import watching
from headgate.table.fsck import fsck
from tests.support.runs import Stream, Topic, check_table, make_table
from tests.support.services import MakeTopic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


class Killed(Exception):
    """The query ends here."""


@pytest.fixture
def new_topic(kafka_servers: str, make_topic: MakeTopic) -> Callable[[int], Topic]:
    return lambda partitions: Topic(kafka_servers, make_topic(partitions), partitions)


def recover(stream: Stream, *options: str, apply: bool = False) -> dict[str, Any]:
    """What `headgate recover` says, and with `apply` does."""
    arguments = [
        "recover",
        stream.table.uri,
        "--spark-checkpoint",
        str(stream.checkpoint),
        *options,
        "--output",
        "json",
    ]
    done = CliRunner().invoke(main, [*arguments, "--apply"] if apply else arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def killed_at(step: str, batch: int) -> Callable[[str], None]:
    """A pause that ends the query at a step of the batch, counted from the start."""
    seen = 0

    def pause(now: str) -> None:
        nonlocal seen
        seen += now == "batch"
        if now == step and seen > batch:
            raise Killed

    return pause


def test_a_query_goes_on_after_its_checkpoint_was_deleted_and_rebuilt(
    spark: SparkSession, tmp_path: Path, new_topic: Callable[[int], Topic]
) -> None:
    topic = new_topic(2)
    topic.put_orders(400, keys=50)
    table = make_table(tmp_path, headgate.bucket("id", 2), "id")
    stream = Stream(spark, table, [topic], tmp_path / "checkpoint", max_offsets=200)
    before = stream.run().last
    assert before is not None
    assert recover(stream)["state"] == "aligned"
    shutil.rmtree(stream.checkpoint)
    topic.put_orders(400, seed=2, keys=50)
    lost = recover(stream)
    assert (lost["state"], lost["needs_rebuild"]) == ("lost", True)
    assert not stream.checkpoint.exists(), "without --apply nothing is written"
    rebuilt = recover(stream, apply=True)["rebuilt"]
    assert recover(stream)["state"] == "aligned"
    after = stream.run().last
    assert after is not None
    assert (after.query_id, after.query_id != before.query_id) == (rebuilt["query"], True)
    assert after.batch_id == before.batch_id + 2, "batches are numbered on"
    check_table(table, topic)
    assert recover(stream)["state"] == "aligned"
    assert fsck(table.uri).findings == ()


@pytest.mark.deep
def test_two_topics_are_rebuilt_into_one_source_and_grown_ones_are_read_from_their_beginning(
    spark: SparkSession, tmp_path: Path, new_topic: Callable[[int], Topic]
) -> None:
    topics = [new_topic(1), new_topic(2)]
    for topic in topics:
        topic.put_numbers(range(200))
    table = make_table(tmp_path, headgate.by_partition())
    stream = Stream(spark, table, topics, tmp_path / "checkpoint", max_offsets=150)
    stream.run()
    shutil.rmtree(stream.checkpoint)
    grow_topic(topics[0].servers, topics[0].name, 3)
    topics[0].partitions = 3
    for topic in topics:
        topic.put_numbers(range(200, 500))
    recover(stream, apply=True)
    stream.run()
    check_table(table, *topics)


def test_a_batch_that_spark_had_logged_and_the_table_had_not_is_dropped_and_planned_again(
    spark: SparkSession, tmp_path: Path, new_topic: Callable[[int], Topic]
) -> None:
    topic = new_topic(2)
    topic.put_numbers(range(400))
    table = make_table(tmp_path, headgate.by_partition())
    stream = Stream(spark, table, [topic], tmp_path / "checkpoint", max_offsets=100)
    with pytest.raises(Exception, match="Killed"):
        with watching(killed_at("commit", batch=2)):
            stream.run()
    told = recover(stream)
    assert (told["state"], told["needs_rebuild"]) == ("spark ahead", False)
    assert (told["spark"]["logged_batch"], told["spark"]["done_batch"], told["log"]["batch"]) == (2, 1, 1)
    # Without its metadata Spark would start a new query and read everything again.
    (stream.checkpoint / "metadata").unlink()
    assert recover(stream)["state"] == "lost"
    rebuilt = recover(stream, apply=True)["rebuilt"]
    assert (Path(rebuilt["old_directory"]) / "offsets/2").exists(), "the damaged directory is kept"
    assert not (stream.checkpoint / "offsets/2").exists()
    stream.max_offsets = 1000
    again = stream.run().last
    assert again is not None
    assert (again.batch_id, again.rows) == (2, 200), "planned anew, in one batch"
    check_table(table, topic)
    assert fsck(table.uri).findings == ()


def test_a_rebuild_that_died_before_its_last_file_leaves_a_directory_from_which_spark_goes_on(
    spark: SparkSession, tmp_path: Path, new_topic: Callable[[int], Topic]
) -> None:
    topic = new_topic(2)
    topic.put_numbers(range(200))
    table = make_table(tmp_path, headgate.by_partition())
    stream = Stream(spark, table, [topic], tmp_path / "checkpoint", max_offsets=100)
    stream.run()
    shutil.rmtree(stream.checkpoint)

    def pause(step: str) -> None:
        if step.startswith("commits/"):
            raise Killed

    with pytest.raises(Killed):
        with watching(pause):
            rebuild(table.home, "s", SparkCheckpoint(str(stream.checkpoint)), open_store(str(stream.checkpoint)))
    topic.put_numbers(range(200, 300))
    stream.run()
    check_table(table, topic)


@pytest.mark.deep
def test_a_query_of_two_kafka_sources_is_rebuilt_in_the_order_that_is_given(
    spark: SparkSession, tmp_path: Path, new_topic: Callable[[int], Topic]
) -> None:
    topics = [new_topic(1), new_topic(1)]
    table = make_table(tmp_path, headgate.single())
    stream = Stream(spark, table, topics, tmp_path / "checkpoint", path="arrow", options={"enable_memtable": False})

    def run() -> None:
        frames = [
            headgate.kafka.read(spark, topic.servers, topic.name).select("key", "value", "topic", "partition", "offset")
            for topic in reversed(topics)
        ]
        stream.run(frame=frames[0].union(frames[1]))

    for topic in topics:
        topic.put_numbers(range(50))
    run()
    shutil.rmtree(stream.checkpoint)
    for topic in topics:
        topic.put_numbers(range(50, 100))
    recover(stream, "--source", topics[1].name, "--source", topics[0].name, apply=True)
    run()
    check_table(table, *topics)
