"""Columns added while a stream runs: no value of a batch that commits after `add_column` has returned is lost."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lance
import pyarrow as pa
import pytest
from click.testing import CliRunner

import headgate
from headgate.checkpoints.log.commit_log import CommitLog
from headgate.cli import main
from headgate.steps import watching
from headgate.streaming.sink import ShardSink
from tests.support.runs import Stream, Topic, make_table, until
from tests.support.services import MakeTopic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


def test_a_decoder_that_follows_the_table_loses_no_value_of_an_added_column(
    spark: SparkSession, tmp_path: Path, kafka_servers: str, make_topic: MakeTopic
) -> None:
    """Four records per step; each has all the fields, from the beginning."""
    topic = Topic(kafka_servers, make_topic(2), 2)
    table = make_table(tmp_path, headgate.by_partition(), schema=pa.schema([pa.field("id", pa.int64(), False)]))
    steps: dict[str, Any] = {}
    passed: Counter[str] = Counter()

    def pause(step: str) -> None:
        passed[step] += 1
        steps.pop(step, lambda: None)()

    stream = Stream(spark, table, [topic], tmp_path / "checkpoint", options={"enable_memtable": False})
    sink = stream.sink(decode=headgate.decode.json())
    rows_written: list[int] = []

    def count(sink: ShardSink) -> None:
        assert sink.last is not None
        rows_written.append(sink.last.rows)

    with watching(pause):
        query = stream.start(sink, trigger={"processingTime": "100 milliseconds"}, each=count)

    def batch(number: int) -> None:
        ids = range(4 * number, 4 * number + 4)
        fields = ("before", "during", "native", "renamed")
        topic.put(*((n % 2, b"k", json.dumps({"id": n, **dict.fromkeys(fields, n)}).encode()) for n in ids))
        until(lambda: sum(rows_written) == 4 * number + 4, query)

    batch(0)
    table.add_column(pa.field("before", pa.int64()))
    batch(1)  # its record meets the schema record, and the batch is written again
    # While the entries of a batch are there and its record is not.
    steps["commit"] = lambda: table.add_column(pa.field("during", pa.int64()))
    batch(2)
    assert not steps
    # By native, which tells nobody, as a changer that died: the next look heals it.
    lance.dataset(table.uri).add_columns(pa.field("native", pa.int64()))
    assert sink._run is not None
    beside = sink._run._maintenance._look
    beside._last = float("-inf")  # the next look is due now, not in a minute
    until(lambda: beside._other_columns, query)
    batch(3)
    steps["commit"] = lambda: table.rename_column("native", "renamed")
    batch(4)
    query.stop()
    sink.close()

    rows = {one["id"]: one for one in table.refreshed().scan().read_all().to_pylist()}
    assert sorted(rows) == list(range(20)), "every row once"
    assert {n: row["before"] for n, row in rows.items()} == {n: n if n >= 4 else None for n in range(20)}
    assert {n: row["during"] for n, row in rows.items()} == {n: n if n >= 8 else None for n in range(20)}
    assert {n: row["renamed"] for n, row in rows.items()} == {n: n if n >= 12 else None for n in range(20)}
    head = CommitLog(table.home.records, "s", table.uri).read().head
    assert head.opened is not None
    assert head.last is not None
    assert head.opened.query_id == head.last.query_id, "nobody was fenced"
    assert passed["columns changed"] == 3, "three batches met a schema record"
    told = CliRunner().invoke(main, ["verify", table.uri, "--servers", kafka_servers, "--topic", topic.name])
    assert told.exit_code == 0, (told.stdout, told.stderr)
