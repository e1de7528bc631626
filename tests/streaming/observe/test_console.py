"""The console of the process that runs a stream: it tells of batches from memory, and ends with the stream."""

from __future__ import annotations

import re
import socket
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import headgate
from headgate.console.server import TOKEN_VARIABLE
from headgate.dev.ports import free_port
from headgate.errors import Fenced, InvalidInput
from headgate.streaming.observe.console import show
from headgate.streaming.observe.live import LiveSink
from headgate.streaming.observe.metrics import StreamMetrics
from headgate.streaming.options import SinkOptions
from headgate.streaming.reporting import Reporting
from tests.console.test_pages import words
from tests.support.consoles import orders
from tests.support.runs import SCHEMA, Stream, Topic, until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def page(url: str, path: str) -> str:
    with urllib.request.urlopen(url.rstrip("/") + path, timeout=60) as answer:
        return str(answer.read().decode())


@pytest.mark.spark
@pytest.mark.kafka
def test_a_sink_shows_its_stream_with_phases_and_asks_the_store_no_more_for_a_batch(
    spark: SparkSession, kafka_servers: str, make_topic: Any, tmp_path: Path
) -> None:
    topic = Topic(kafka_servers, make_topic(2), 2)
    topic.put_numbers(range(300))
    table = headgate.create_table(str(tmp_path / "t"), SCHEMA, sharding=headgate.by_partition())
    stream = Stream(spark, table, [topic], tmp_path / "c", max_offsets=50)
    sink = stream.sink(ui_port=0)
    url = sink.reporting.show(table, "s", sink.options)
    assert url is not None
    assert "it waits for its first batch" in words(page(url, "/"))
    query = stream.start(sink, trigger={"processingTime": "0 seconds"})
    try:
        # Rows are visible before the sink's call returns, and Spark reports a trigger some time after that.
        until(lambda: sink.last is not None and {one.until for one in sink.last.sources} == {150}, query)
        assert sink.last is not None
        batches = sink.last.batch_id + 1
        at = "/t/t/stream?stream=s"
        until(lambda: f"batch {batches - 1}, sequence" in page(url, at), query)
        until(lambda: "Spark itself:" in page(url, at), query)
        until(lambda: "everything in Kafka is in the table" in words(page(url, at)), query)
        shown = page(url, at)
        assert len(re.findall(r'<rect class="tasks" ', shown)) == batches
        assert "commit:" in shown
        said = words(shown)
        # A long name is cut, and says so.
        assert re.search(r"/0 0 150 150 0 partition:", said)
        assert re.search(r"/1 0 150 150 0 partition:", said)
        assert "everything in Kafka is in the table" in said
        assert re.search(r"Kafka 2 partitions 0 rows wait \d+ %", said), "where time goes"
    finally:
        query.stop()
        sink.close()
    port = int(url.rstrip("/").rpartition(":")[2])
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), 5).close()


def test_sinks_share_a_console_that_ends_with_the_last_and_a_taken_port_stops_nobody(tmp_path: Path) -> None:
    table = orders(tmp_path / "orders", batches=1, rows=3, partitions=1)
    port = free_port()
    one, two = LiveSink(StreamMetrics()), LiveSink(StreamMetrics())
    first, second = show(table, "one", one, "127.0.0.1", port), show(table, "two", two, "127.0.0.1", port)
    assert first is not None
    assert second is not None
    two.failed(Fenced("A successor runs the stream."))
    said = words(page(first.url, "/"))
    assert "one fine it waits for its first batch" in said
    assert "Fenced: A successor runs the stream." in said
    first.close()
    first.close()
    assert "two" in page(second.url, "/")
    second.close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), 5).close()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert show(table, "one", one, "127.0.0.1", taken.getsockname()[1]) is None


def test_an_address_for_others_without_a_token_is_refused_before_anything_is_claimed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    with pytest.raises(InvalidInput, match="has no token"):
        Reporting.check(SinkOptions(ui_port=0, ui_host="0.0.0.0"), None)  # type: ignore[arg-type]
    assert headgate.ShardSink("somewhere", ui_port=0).reporting.live.head() is None, "nothing listens yet"
