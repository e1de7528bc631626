"""The ledger of a stream in a real Spark, with a real topic. Rows and records without Spark: tests/checkpoints."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import structlog

import headgate
from headgate.cli.commands.status import status_of
from headgate.errors import Transient
from headgate.shards.sharding import Sharding
from headgate.streaming.delta import ledger as streaming_ledger
from headgate.streaming.delta.ledger import rebuild_ledger
from headgate.streaming.delta.ledger_feed import LedgerFeed
from headgate.table.table import Table
from tests.streaming.delta.entries import entry_ids
from tests.streaming.delta.tables import catalog_name, check_ledger, offset_query, until
from tests.support.pages import blocks_run_by
from tests.support.runs import Stream, Topic, make_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


def test_sql_says_where_an_offset_lies(
    spark: SparkSession, kafka_servers: str, make_topic: Any, tmp_path: Path
) -> None:
    topic = Topic(kafka_servers, make_topic(4), 4)
    run = _Run(spark, topic, tmp_path / "straight", headgate.by_partition(), tmp_path / "ledger")
    topic.put_numbers(range(400))
    topic.put((3, b"x", b"garbage"))
    run.stream.run().close()
    # A driver without a ledger leaves a log that is ahead of it; the next one catches up.
    topic.put_numbers(range(400, 600))
    run.stream.run(ledger=None).close()
    topic.put_numbers(range(600, 700))
    run.stream.run().close()
    own = check_ledger(spark, run.table, tmp_path / "ledger")
    assert sum(row["row_count"] or 0 for row in own) == 700
    (sql,) = {block.text for block in blocks_run_by(__file__)}
    (number, garbage) = (
        spark.sql(offset_query(sql, tmp_path / "ledger", topic.name, 3, offset)).collect() for offset in (99, 100)
    )
    assert 4 * 99 + 3 in entry_ids(run.table, number[0]["shard"], number[0]["positions"])
    assert garbage[0]["dead_positions"]


@pytest.mark.deep
@pytest.mark.parametrize("rebuilt", [False, True], ids=["straight", "rebuilt"])
def test_sql_says_where_an_offset_lies_after_failures_crashes_and_over_buckets(
    spark: SparkSession,
    kafka_servers: str,
    make_topic: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    rebuilt: bool,
) -> None:
    headgate.configure_logs("json", level="WARNING", stream=(said := io.StringIO()))
    topic = Topic(kafka_servers, make_topic(4), 4)
    ledger = tmp_path / "place" / "ledger"
    ledger.parent.write_text("a file where a folder must be: the ledger cannot be written")
    straight = _Run(spark, topic, tmp_path / "straight", headgate.by_partition(), ledger)
    topic.put_numbers(range(400))
    topic.put((3, b"x", b"garbage"))

    # A ledger that fails stops nobody, and is seen.
    sink = straight.stream.run()
    following = sink.reporting.ledger
    assert following is not None
    until(lambda: following.failures > 0)
    assert following.behind > 0
    until(lambda: ":" in _note(straight.table))
    samples: dict[Any, Any] = {(one.metric.name, one.labels): one.value for one in sink.reporting.metrics.samples()}
    assert samples["headgate_retries_total", ("ledger",)] >= 1
    assert samples["headgate_ledger_behind", ()] == following.behind
    structlog.reset_defaults()
    assert sink.last is not None
    (warned,) = [
        line for text in said.getvalue().splitlines() if "ledger failed" in (line := json.loads(text))["event"]
    ]
    assert (warned["query"], warned["stream"], warned["ledger"]) == (sink.last.query_id, "s", str(ledger))
    ledger.parent.unlink()
    # As a driver leaves it that is killed here; the follower may be there first.
    (ledger / "_delta_log" / "_staged_commits").mkdir(parents=True, exist_ok=True)
    until(lambda: following.is_current)
    sink.close()
    check_ledger(spark, straight.table, ledger)
    (reader,) = status_of(straight.table)["readers"]
    # A clean stop leaves an open record behind, which has no rows.
    assert reader["behind"] <= 1
    assert reader["note"] == f"ledger {ledger}"

    # A crash leaves a log that is ahead of the ledger; so does a driver without one. The next one catches up.
    topic.put_numbers(range(400, 600))
    straight.stream.run(ledger=None).close()
    topic.put_numbers(range(600, 700))
    straight.stream.run().close()
    own = check_ledger(spark, straight.table, ledger)
    assert sum(row["row_count"] or 0 for row in own) == 700
    assert sum(row["dead_letters"] or 0 for row in own) == 1

    buckets = _Run(spark, topic, tmp_path / "buckets", headgate.bucket("id", 4), ledger)
    buckets.stream.run().close()
    check_ledger(spark, buckets.table, ledger)

    (sql,) = {block.text for block in blocks_run_by(__file__)}  # README and the page have one query
    for offset in (0, 99, 100, 101, 174) if rebuilt else (99, 100):
        # Partition 3 has the numbers 3, 7, 11 …, and the garbage after the first hundred of them.
        number = None if offset == 100 else 4 * (offset - (offset > 100)) + 3
        found = spark.sql(offset_query(sql, ledger, topic.name, 3, offset)).collect()
        (exact,) = [row for row in found if row["table_uri"] == straight.table.uri]
        assert exact["candidates"] == 1
        if number is None:
            assert exact["dead_positions"]
        else:
            assert number in entry_ids(straight.table, exact["shard"], exact["positions"])
        candidates = [row for row in found if row["table_uri"] == buckets.table.uri]
        assert {row["candidates"] for row in candidates} == {len(candidates)}
        if number is not None:
            holding = [row for row in candidates if number in entry_ids(buckets.table, row["shard"], row["positions"])]
            assert len(holding) == 1
    assert spark.sql(offset_query(sql, ledger, topic.name, 3, 176)).collect() == []

    # What was folded is collected, and archived before; the stream goes on.
    straight.table.collect_garbage(min_age=timedelta(0), apply=True)
    feed = LedgerFeed(straight.table.home, "s")
    assert feed.archive.names()
    topic.put_numbers(range(700, 800))
    straight.stream.run().close()
    own = check_ledger(spark, straight.table, ledger)
    assert sum(row["row_count"] or 0 for row in own) == 800

    if not rebuilt:
        return  # a rebuild takes as long again

    # A rebuild brings back every row, whether somebody took out some of them, or the ledger is made elsewhere.
    spark.sql(f"DELETE FROM delta.`{ledger}` WHERE sequence % 2 = 0 AND table_uri = '{straight.table.uri}'")
    dry = rebuild_ledger(spark, straight.table, stream="s", ledger=str(ledger))
    assert (dry.applied, dry.rows, dry.kept, dry.lost_upto) == (False, len(own), 0, 0)
    assert dry.replaced < len(own)
    with pytest.raises(AssertionError):
        check_ledger(spark, straight.table, ledger)
    assert rebuild_ledger(spark, straight.table, stream="s", ledger=str(ledger), apply=True) == replace(
        dry, applied=True
    )
    assert _sorted(check_ledger(spark, straight.table, ledger)) == _sorted(own)
    check_ledger(spark, buckets.table, ledger)
    with catalog_name(spark) as name, monkeypatch.context() as patched:
        patched.setattr(streaming_ledger, "CHUNK", 5)
        assert rebuild_ledger(spark, straight.table, stream="s", ledger=name, apply=True).rows == len(own)
        assert _sorted([row.asDict() for row in spark.table(name).collect()]) == _sorted(own)

    # A collection that looked before the archive began takes a record that the ledger alone has then: it keeps its row.
    log = Path(straight.table.uri, "_headgate", str(straight.table.table_id), feed.log.folder, "log")
    record, taken, looked = log / f"{feed.log.read().head.sequence - 1:020d}.json", tmp_path / "taken", feed.lost_upto

    def taken_meanwhile(self: LedgerFeed) -> int:
        found = looked()
        record.rename(taken)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(LedgerFeed, "lost_upto", taken_meanwhile)
        with pytest.raises(Transient, match="the only copy of them"):
            rebuild_ledger(spark, straight.table, stream="s", ledger=str(ledger), apply=True)
    taken.rename(record)
    assert _sorted(check_ledger(spark, straight.table, ledger)) == _sorted(own)

    # An earlier release archived nothing: what somebody took out of the ledger comes back as far as the log has it.
    # It leaves other tables alone.
    for archived in feed.archive.names():
        straight.table.home.records.delete(feed.archive.key(archived))
    gone = LedgerFeed(straight.table.home, "s").lost_upto()
    lately = sum(row["sequence"] > gone for row in own)
    assert 0 < lately < len(own)
    spark.sql(f"DELETE FROM delta.`{ledger}` WHERE sequence > {gone} AND table_uri = '{straight.table.uri}'")
    dry = rebuild_ledger(spark, straight.table, stream="s", ledger=str(ledger))
    assert (dry.applied, dry.rows, dry.replaced) == (False, lately, 0)
    with pytest.raises(AssertionError):
        check_ledger(spark, straight.table, ledger)
    done = rebuild_ledger(spark, straight.table, stream="s", ledger=str(ledger), apply=True)
    assert (done.rows, done.kept, done.lost_upto) == (lately, len(own) - lately, 0)
    assert len(check_ledger(spark, straight.table, ledger)) == len(own)
    check_ledger(spark, buckets.table, ledger)

    # A ledger that is made anew elsewhere tells what was folded: a range per partition.
    with catalog_name(spark) as name:
        first = rebuild_ledger(spark, straight.table, stream="s", ledger=name, apply=True)
        assert (first.rows, first.lost_upto) == (lately + 4, gone)
        again = rebuild_ledger(spark, straight.table, stream="s", ledger=name, apply=True)
        assert (again.rows, again.replaced, again.kept) == (lately, lately, 4)
        assert spark.table(name).count() == lately + 4
        folded = spark.table(name).where("kind = 'folded'").collect()
        assert {row["partition"]: row["from_offset"] for row in folded} == dict.fromkeys(range(4), 0)


def _sorted(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(repr(sorted(row.items())) for row in rows)


class _Run:
    """A table of its own, and the stream into it."""

    def __init__(self, spark: SparkSession, topic: Topic, folder: Path, sharding: Sharding, ledger: Path) -> None:
        self.table = make_table(folder, sharding)
        options = {"ledger": str(ledger)}
        self.stream = Stream(spark, self.table, [topic], folder / "checkpoint", max_offsets=200, options=options)


def _note(table: Table) -> str:
    readers = status_of(table)["readers"]
    return str(readers[0]["note"]).removeprefix("ledger ") if readers else ""
