"""A table that is dropped and made anew: its stream ends, its old checkpoint is refused, unless it is adopted."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

import headgate
from headgate.cli import main
from headgate.errors import Fenced, InvalidInput
from tests.support.runs import Stream, Topic, make_table, row, scanned, until, wait
from tests.support.services import MakeTopic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


def call(*arguments: str) -> dict[str, Any]:
    done = CliRunner().invoke(main, [*arguments, "--output", "json"], catch_exceptions=False)
    assert done.exit_code == 0, (done.stdout, done.stderr)
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def test_a_stream_ends_with_its_table_and_goes_on_in_another_only_where_that_was_asked_for(
    spark: SparkSession, tmp_path: Path, kafka_servers: str, make_topic: MakeTopic
) -> None:
    topic = Topic(kafka_servers, make_topic(1), 1)
    topic.put_numbers(range(10))
    old = make_table(tmp_path, headgate.by_partition())
    stream = Stream(spark, old, [topic], tmp_path / "checkpoint", options={"enable_memtable": False})
    sink = stream.sink()
    query = stream.start(sink, trigger={"processingTime": "100 milliseconds"})
    until(lambda: len(scanned(old)) == 10, query)

    shutil.rmtree(old.uri)
    table = stream.table = make_table(tmp_path, headgate.by_partition())
    assert sink._run is not None
    beside = sink._run._maintenance._look
    beside._last = float("-inf")  # the next look is due now, not in a minute
    until(lambda: beside._another_table is not None, query)
    topic.put_numbers(range(10, 15))
    with pytest.raises(Fenced, match="dropped and re-created"):
        wait(query, sink)
    assert sink.close() is None
    assert not (Path(table.uri) / "_headgate" / str(old.table_id)).exists(), "nothing went into the old one since"

    with pytest.raises(InvalidInput, match="batches before 1 went to another table"):
        stream.run()
    assert scanned(table) == []
    place = ("--spark-checkpoint", str(stream.checkpoint))
    assert call("recover", table.uri, "--stream", "s", *place)["state"] == "foreign"
    planned = call("rewind", table.uri, "--stream", "s", "--adopt", *place)
    assert (planned["applied"], planned["offsets"][0]["after"]) == (False, 10)
    assert "EARLIER RECORDS ARE NOT READ" in planned["means"]
    assert call("rewind", table.uri, "--stream", "s", "--adopt", *place, "--apply")["applied"]
    stream.run()
    assert scanned(table) == [row(number) for number in range(10, 15)]
    assert call("recover", table.uri, *place)["state"] == "aligned"
    assert call("verify", table.uri, "--servers", kafka_servers, "--topic", topic.name)["holds"]
