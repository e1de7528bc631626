"""Tasks that fail or die half-way through a batch: Spark tries again, and every row is there once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import headgate
from headgate.errors import HeadgateError, Poisoned, Transient
from headgate.shards import names
from headgate.shards.sharding import Bucket, Sharding
from tests.streaming.away_store import AwayDecoder, Tries, behind
from tests.support.runs import SCHEMA, Stream, Topic, check_table, make_table, row
from tests.support.services import MakeTopic
from tests.support.tables import claimed
from tests.support.unsteady import Unsteady

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


@pytest.mark.parametrize(
    ("how", "sharding", "path"),
    [
        pytest.param("raise", headgate.single(), "direct", id="raise-single-direct", marks=pytest.mark.deep),
        pytest.param("raise", headgate.single(), "arrow", id="raise-single-arrow", marks=pytest.mark.deep),
        pytest.param("kill", headgate.single(), "direct", id="kill-single-direct", marks=pytest.mark.deep),
        pytest.param("kill", headgate.single(), "arrow", id="kill-single-arrow"),
        pytest.param("kill", headgate.bucket("id", 2), "direct", id="kill-bucket-direct"),
        pytest.param("kill", headgate.bucket("id", 2), "arrow", id="kill-bucket-arrow", marks=pytest.mark.deep),
    ],
)
def test_peers_bug_15_spark_25407_a_task_that_fails_once_after_it_has_written_leaves_no_row_twice(
    spark: SparkSession,
    tmp_path: Path,
    kafka_servers: str,
    make_topic: MakeTopic,
    path: str,
    how: str,
    sharding: Sharding,
) -> None:
    # The last row must come in a second Arrow batch: our own reading makes one per partition, Spark one per 10,000
    # rows, and the order in which it reads partitions depends on the topic's name.
    partitions = 2 if path == "direct" else 1
    topic = Topic(kafka_servers, make_topic(partitions), partitions)
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
        for info in claimed(table)
        for one in table.home.store.list(names.wal_folder(info.id) + "/")
    )
    barriers = len(claimed(table))
    if isinstance(sharding, Bucket):
        assert stored == listed + barriers, "the stage that failed writes nothing"
    else:
        assert stored > listed + barriers, "the attempt that failed had written, and none of it counts"


@pytest.mark.parametrize(
    ("path", "sharding", "where", "kind"),
    [
        ("direct", headgate.by_partition(), "entries", Poisoned),
        pytest.param("arrow", headgate.bucket("id", 2), "entries", Poisoned, marks=pytest.mark.deep),
        pytest.param("direct", headgate.bucket("id", 2), "records", Transient, marks=pytest.mark.deep),
    ],
    ids=["direct", "shuffled", "before the shuffle"],
)
def test_a_store_that_stays_away_is_told_by_its_own_error_after_the_last_try(
    spark: SparkSession,
    tmp_path: Path,
    kafka_servers: str,
    make_topic: MakeTopic,
    path: str,
    sharding: Sharding,
    where: str,
    kind: type[HeadgateError],
) -> None:
    topic = Topic(kafka_servers, make_topic(1), 1)
    topic.put_numbers(range(50))
    table = make_table(tmp_path, sharding)
    stream = Stream(spark, table, [topic], tmp_path / "checkpoint", path)

    def run(tries: Tries) -> None:
        if where == "entries":
            stream.table, stream.options = behind(table, tries), {"store_patience": 0.3}
        else:
            stream.options = {"decode": AwayDecoder(headgate.decode.json(SCHEMA), tries)}
        stream.run()

    always = Tries(tmp_path / "always", 99)
    with pytest.raises(kind) as error:
        run(always)
    assert always.seen() == [0, 1, 2, 3], "every try of local[2,4] was made before the driver was told"
    assert error.value.detail["batch"] == 0
    if where == "entries":
        assert error.value.shard in {str(info.id) for info in claimed(table)}
        assert error.value.position == 1
    assert table.scan().read_all().num_rows == 0

    # Earlier tries are Spark's to repeat: a store that comes back in time costs nothing.
    thrice = Tries(tmp_path / "thrice", 3)
    run(thrice)
    assert thrice.seen() == [0, 1, 2, 3]
    check_table(table, topic)
