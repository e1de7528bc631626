"""Tasks that fail or die half-way through a batch: Spark tries again, and every row is there once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from services import MakeTopic
from stream_runs import PATHS, SCHEMA, Stream, Topic, check_table, make_table, row
from unsteady import Unsteady

import headgate
from headgate.shards import names
from headgate.shards.sharding import Bucket, Sharding

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("how", "sharding"),
    [("raise", headgate.single()), ("kill", headgate.single()), ("kill", headgate.bucket("id", 2))],
    ids=["raise-single", "kill-single", "kill-bucket"],
)
def test_a_task_that_fails_once_after_it_has_written_leaves_no_row_twice(
    spark: SparkSession,
    tmp_path: Path,
    kafka_servers: str,
    make_topic: MakeTopic,
    path: str,
    how: str,
    sharding: Sharding,
) -> None:
    topic = Topic(kafka_servers, make_topic(2), 2)
    topic.put_numbers(range(12_000))
    last = json.dumps(row(11_999)).encode()
    decoder = Unsteady(headgate.decode.json(SCHEMA), tmp_path / "flag", how, last)
    table = make_table(tmp_path, sharding)
    # Every batch of rows is an entry at once: the first rows are written when the last one fails.
    options = {"decode": decoder, "max_entry_bytes": 1}
    sink = Stream(spark, table, [topic], tmp_path / "checkpoint", path, max_offsets=None, options=options).run()
    assert decoder.flag.exists(), "the task failed"
    check_table(table, topic)
    assert sink.last is not None
    listed = sum(len(part.positions) for part in sink.last.shards.values())
    stored = sum(
        names.wal_position(one.key) is not None
        for info in table.shards()
        for one in table.home.store.list(names.wal_folder(info.id) + "/")
    )
    barriers = len(table.shards())
    if isinstance(sharding, Bucket):
        assert stored == listed + barriers, "the stage that failed writes nothing"
    else:
        assert stored > listed + barriers, "the attempt that failed had written, and none of it counts"
