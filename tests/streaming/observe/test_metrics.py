"""What a stream counts and says: the names, a live scrape, and its log lines."""

from __future__ import annotations

import io
import json
import re
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import structlog
import yaml
from prometheus_client.parser import text_string_to_metric_families

import headgate
from headgate.caches import Cache
from headgate.checkpoints.log.commit_log import read_head
from headgate.checkpoints.stream.driver import StreamDriver
from headgate.dev.ports import free_port
from headgate.errors import Fenced, InvalidInput
from headgate.shards.sharding import Sharding
from headgate.shards.wal.entry import SourceRange
from headgate.streaming.observe.metrics import METRICS, StreamMetrics, lag_of
from headgate.streaming.observe.server import serve
from headgate.streaming.write.timers import Phases
from tests.support.logs import batch_record
from tests.support.runs import SCHEMA, Stream, Topic, until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OPS = Path(__file__).parents[3] / "ops"
LETTERS: Cache[bytes] = Cache("test_metrics_letters", len)
_NAME = re.compile(r"headgate_[a-z_]+")


def scraped(port: int) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Every series by its name."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
    return found


def listeners(spark: SparkSession) -> int:
    """How many listen to the session's queries."""
    return len(spark._jsparkSession.streams().listListeners())


def used_names() -> dict[str, set[str]]:
    dashboard = json.loads((OPS / "grafana-dashboard.json").read_text())
    rules = yaml.safe_load((OPS / "prometheus-alerts.yml").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked += [one["query"] for one in dashboard["templating"]["list"]]
    alerts = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    return {
        "dashboard": {name for text in asked for name in _NAME.findall(text)},
        "alerts": {name for text in alerts for name in _NAME.findall(text)},
    }


@pytest.fixture
def log_lines() -> Iterator[io.StringIO]:
    out = io.StringIO()
    headgate.configure_logs("json", stream=out)
    yield out
    structlog.reset_defaults()


@pytest.mark.spark
@pytest.mark.kafka
@pytest.mark.parametrize(
    "sharding",
    [
        pytest.param(headgate.by_partition(), id="straight"),
        pytest.param(headgate.bucket("id", 2), id="shuffled", marks=pytest.mark.deep),
    ],
)
def test_a_live_stream_shows_every_name_that_dashboard_and_alerts_use_and_logs_a_line_a_batch(
    spark: SparkSession,
    kafka_servers: str,
    make_topic: Any,
    tmp_path: Path,
    log_lines: io.StringIO,
    sharding: Sharding,
) -> None:
    topic = Topic(kafka_servers, make_topic(2), 2)
    topic.put_numbers(range(300))
    topic.put((0, b"x", b"garbage"))
    table = headgate.create_table(str(tmp_path / "t"), SCHEMA, sharding=sharding)
    stream = Stream(spark, table, [topic], tmp_path / "c", max_offsets=100)
    sink = stream.sink(metrics_port=0, commit_to_kafka=f"g-{time.monotonic_ns()}")
    assert sink.reporting.port is None
    before = listeners(spark)
    query = stream.start(sink, trigger={"processingTime": "0 seconds"})
    began = time.time() * 1000
    try:
        until(lambda: table.scan().read_all().num_rows == 300, query)
        for record in read_head(table.home, "s").recent.values():
            assert record.record_times is not None
            oldest, newest = record.record_times
            assert began - 600_000 < oldest <= newest < time.time() * 1000
        port = sink.reporting.port
        assert port is not None
        assert listeners(spark) == before + 1
        # Spark tells of a batch, and so of what is left, a moment after the batch is committed.
        found: dict[str, list[tuple[dict[str, str], float]]] = {}

        def caught_up() -> bool:
            found.clear()
            found.update(scraped(port))
            heard = "headgate_trigger_seconds" in found
            lags = [found.get(f"headgate_lag_{of}", ()) for of in ("seconds", "rows")]
            return heard and all({value for _, value in lag} == {0} for lag in lags)

        until(caught_up, query)
        for where, names in used_names().items():
            assert names, where
            assert sorted(names - set(found)) == [], f"the {where} asks for what nobody shows"

        def one(name: str, **labels: str) -> float:
            (value,) = [v for there, v in found[name] if labels.items() <= there.items()]
            return value

        assert {labels["table"] for labels, _ in found["headgate_rows_total"]} == {table.uri}
        assert {labels["stream"] for labels, _ in found["headgate_rows_total"]} == {"s"}
        assert one("headgate_rows_total") == 300
        assert one("headgate_dead_letters_total") == 1
        committed = one("headgate_batches_total", outcome="committed")
        assert committed >= 4
        assert sum(v for _, v in found["headgate_lag_rows"]) == 0
        assert one("headgate_lag_seconds") == 0
        phases = {labels["phase"] for labels, _ in found["headgate_batch_seconds_count"]}
        assert phases == {"plan", "wait", "tasks", "decode", "append", "commit", "total"}
        assert one("headgate_store_operations_total", verb="put", where="tasks") >= committed
        assert {labels["shard"] for labels, _ in found["headgate_epoch"]} == set(
            {labels["shard"] for labels, _ in found["headgate_unflushed_bytes"]}
        )
    finally:
        query.stop()
        StreamDriver.open(table.home, "s", "another query", [])
        assert sink.close() is None, "another driver has the stream"
    assert sink.reporting.port is None
    assert listeners(spark) == before
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), 5).close()
    lines = [json.loads(line) for line in log_lines.getvalue().splitlines()]
    assert "another driver took over the stream before its clean stop" in [line["event"] for line in lines]
    batches = [line for line in lines if line["event"] == "batch committed"]
    assert len(batches) == committed
    for number, line in enumerate(batches):
        assert (line["batch"], line["stream"], line["level"]) == (number, "s", "info")
        assert line["query"] == str(query.id)
        assert sum(line["shards"].values()) == line["rows"]
    # Whoever says something of the stream, a batch, maintenance or the end, says of which query and stream.
    assert {(line.get("query"), line.get("stream")) for line in lines} == {(str(query.id), "s")}


def test_names_are_the_tables_and_nothing_listens_before_it_is_asked_to() -> None:
    suffixes = ("_bucket", "_sum", "_count")
    shown = {name + end for name, one in METRICS.items() for end in (suffixes if one.kind == "histogram" else ("",))}
    for where, names in used_names().items():
        assert names <= shown, where
    before = threading.active_count()
    sink = headgate.ShardSink("somewhere", metrics_port=0)
    assert (sink.reporting.port, threading.active_count()) == (None, before)


def test_sinks_share_an_address_and_one_that_is_taken_stops_nobody() -> None:
    one, two = StreamMetrics(), StreamMetrics()
    one.stream, two.stream = "one", "two"
    port = free_port()
    first, second = serve(one, "127.0.0.1", port), serve(two, "127.0.0.1", port)
    assert first is not None
    assert second is not None
    try:
        one.failed(Fenced("gone"))
        one.took({"total": 0.02})
        assert {labels["stream"]: v for labels, v in scraped(port)["headgate_fences_total"]} == {"one": 1, "two": 0}
        first.close()
        first.close()
        assert [labels["stream"] for labels, _ in scraped(port)["headgate_fences_total"]] == ["two"]
    finally:
        second.close()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert serve(one, "127.0.0.1", taken.getsockname()[1]) is None


def test_lag_is_what_kafka_had_and_the_trigger_did_not_take() -> None:
    told = [{"latestOffset": '{"t":{"0":10,"1":5}}', "endOffset": {"t": {"0": 7, "1": 5}}}, {"endOffset": "x"}]
    assert lag_of(told) == {("t", "0"): 3, ("t", "1"): 0}
    assert lag_of([{"endOffset": 5, "latestOffset": 5}]) is None
    metrics = StreamMetrics()
    metrics.progress({"sources": told, "durationMs": {"addBatch": 1500}})
    values = {sample.metric.name: sample.value for sample in metrics.samples()}
    assert values["headgate_trigger_seconds"] == 1.5
    assert 0 <= values["headgate_lag_seconds"] < 60  # type: ignore[operator]


def test_a_batch_that_hangs_is_behind_until_it_is_committed() -> None:
    metrics = StreamMetrics()

    def shown() -> tuple[list[float], list[float]]:
        samples = list(metrics.samples())
        return tuple(  # type: ignore[return-value]
            [one.value for one in samples if one.metric.name == f"headgate_lag_{what}"] for what in ("rows", "seconds")
        )

    assert shown() == ([], [])
    metrics.progress({"sources": [{"latestOffset": {"t": {"0": 10}}, "endOffset": {"t": {"0": 10}}}]})
    assert shown() == ([0], [0])
    metrics.planned([SourceRange("t", 0, 10, 40)])
    rows, (seconds,) = shown()
    assert rows == [30]
    # Counted from the batch's begin: an hour without rows before it is no lag.
    assert 0 < seconds < 60
    metrics.committed(batch_record(2, 0))
    assert shown() == ([0], [0])
    metrics.planned([SourceRange("t", 0, 40, 50)])
    metrics.committed(batch_record(2, 0))
    metrics.progress({"sources": [{"latestOffset": {"t": {"0": 90}}, "endOffset": {"t": {"0": 50}}}]})
    assert shown()[0] == [40]
    metrics.planned([SourceRange("t", 0, 50, 60)])
    assert shown()[0] == [40]
    metrics.committed(batch_record(2, 0))
    assert shown()[0] == [30], "of what was left, the batch has taken ten"


def test_lag_ends_with_a_batch_that_the_log_had_and_with_a_partition_that_is_not_read_any_more() -> None:
    metrics = StreamMetrics()

    def lag() -> dict[tuple[str, ...], float]:
        return {one.labels: one.value for one in metrics.samples() if one.metric.name == "headgate_lag_rows"}  # type: ignore[misc]

    metrics.planned([SourceRange("t", 0, 100, 150)])
    # Its record landed and the answer was lost: the next run finds it in the log.
    metrics.failed(InvalidInput("lost"))
    assert lag() == {("t", "0"): 50}
    metrics.skipped()
    at_end = {"latestOffset": {"t": {"0": 150}}, "endOffset": {"t": {"0": 150}}}
    behind = {"latestOffset": {"old": {"0": 40}}, "endOffset": {"old": {"0": 0}}}
    metrics.progress({"sources": [at_end, behind]})
    assert lag() == {("t", "0"): 0, ("old", "0"): 40}
    metrics.progress({"sources": [at_end]})
    assert lag() == {("t", "0"): 0}
    assert [one.value for one in metrics.samples() if one.metric.name == "headgate_lag_seconds"] == [0]


def test_how_old_records_are_when_they_become_visible_is_counted_and_the_newest_is_known() -> None:
    metrics, now = StreamMetrics(), time.time()
    metrics.committed(batch_record(2, 0))
    assert not [one for one in metrics.samples() if "record" in one.metric.labels]
    for oldest, newest in ((40.0, 3.0), (700.0, 600.0), (9.0, -5.0)):
        times = (int((now - oldest) * 1000), int((now - newest) * 1000))
        metrics.committed(replace(batch_record(2, 0), record_times=times))
    found = {(one.metric.name, *one.labels): one.value for one in metrics.samples()}
    assert found["headgate_newest_record_timestamp_seconds",] == pytest.approx(now + 5, abs=0.01)
    buckets, total = found["headgate_freshness_seconds", "newest"]  # type: ignore[misc]
    assert dict(buckets)["0.005"] == 1, "a producer whose clock is ahead"
    assert (dict(buckets)["120.0"], dict(buckets)["+Inf"]) == (2, 3)
    assert total == pytest.approx(603, abs=60)
    assert found["headgate_freshness_seconds", "oldest"][1] == pytest.approx(749, abs=60)  # type: ignore[index]


def test_phases_count_what_making_takes_and_not_what_is_done_with_it() -> None:
    phases = Phases()

    def slow() -> Iterator[int]:
        for number in range(3):
            time.sleep(0.01)
            yield number

    began = time.perf_counter()
    for _ in phases.over("make", slow()):
        time.sleep(0.05)
    assert 0.03 <= phases.seconds["make"] <= time.perf_counter() - began - 0.15


def test_what_the_caches_hold_is_shown_by_cache(cache_budget: Callable[[int], None]) -> None:
    cache_budget(0)
    cache_budget(1_000)
    LETTERS.put("a", b"abc")
    shown = {(one.metric.name, *one.labels): one.value for one in StreamMetrics().samples()}
    assert shown["headgate_cache_bytes", "test_metrics_letters"] == 3
    assert shown["headgate_cache_limit_bytes",] == 1_000


def test_a_log_form_that_there_is_not_is_refused() -> None:
    with pytest.raises(InvalidInput):
        headgate.configure_logs("xml")  # type: ignore[arg-type]
