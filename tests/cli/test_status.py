from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from headgate.shards.sharding import by_partition
from headgate.table.create import create_table
from headgate.table.table import Table
from tests.cli.calls import Headgate, OnTerminal, started
from tests.support.streams import COLUMNS, QUERY, Record, Stream

GOOD = b'{"id": %d, "note": "n"}'


@pytest.fixture
def streamed(tmp_path: Path) -> Table:
    """Two batches of two partitions, one bad record in the second."""
    table = create_table(str(tmp_path / "orders"), COLUMNS, sharding=by_partition())
    stream = Stream(table, "orders", 2)
    stream.commit([(0, 0, 2), (1, 5, 6)], [Record(0, 0, GOOD % 1), Record(0, 1, GOOD % 2), Record(1, 5, GOOD % 3)])
    stream.commit([(0, 2, 4), (1, 6, 6)], [Record(0, 2, GOOD % 4), Record(0, 3, b"{")])
    return table


def test_status_shows_streams_shards_and_batches_beside_positions_and_offsets(
    headgate: Headgate, streamed: Table
) -> None:
    told = json.loads(headgate("status", streamed.uri, "--output", "json").stdout)
    (stream,) = told["streams"]
    assert (stream["stream"], stream["batch"], stream["query"], stream["sequence"]) == ("orders", 1, QUERY, 3)
    assert (stream["rows"], stream["recent_rows"], stream["recent_dead_letters"], stream["lag"]) == (1, 4, 1, None)
    assert [(part["partition"], part["committed"]) for part in told["partitions"]] == [(0, 4), (1, 6)]
    assert [(shard["name"], shard["owner"], shard["epoch"], shard["tip"]) for shard in told["shards"]] == [
        ("partition:orders:0", "orders", 1, 3),
        ("partition:orders:1", "orders", 1, 2),
    ]
    assert all(shard["unflushed_bytes"] > 0 and shard["native_safe"] is False for shard in told["shards"])
    first, second = told["batches"]
    assert first["positions"] == {"partition:orders:0": [1], "partition:orders:1": [1]}
    assert first["offsets"] == [
        {"topic": "orders", "partition": 0, "from": 0, "until": 2},
        {"topic": "orders", "partition": 1, "from": 5, "until": 6},
    ]
    assert (second["batch"], second["rows"], second["dead_letters"]) == (1, 1, 1)
    assert second["positions"] == {"partition:orders:0": [2]}


def test_status_for_people_has_a_line_per_batch_and_shard(headgate: Headgate, streamed: Table) -> None:
    lines = headgate("status", streamed.uri).stdout.splitlines()
    assert any("partition:orders:0" in line and "orders/0 [0, 2)" in line for line in lines)
    assert any("partition:orders:1" in line and "orders/1 [5, 6)" in line for line in lines)


def test_status_shows_what_caches_may_hold(
    headgate: Headgate, streamed: Table, cache_budget: Callable[[int], None]
) -> None:
    cache_budget(12_345_678)
    caches = json.loads(headgate("status", streamed.uri, "--output", "json").stdout)["caches"]
    assert caches["limit"] == 12_345_678
    assert {"bases", "tails", "sstable_keys"} <= caches["nbytes"].keys()
    assert "Caches of this process, limit 12,345,678 B" in headgate("status", streamed.uri).stdout


def test_batches_limits_what_is_shown(headgate: Headgate, streamed: Table) -> None:
    shown = [
        json.loads(headgate("status", streamed.uri, "--batches", str(n), "--output", "json").stdout) for n in (0, 1)
    ]
    assert [[batch["batch"] for batch in one["batches"]] for one in shown] == [[], [1]]


def test_a_table_that_no_stream_wrote_to_has_a_status(headgate: Headgate, tmp_path: Path) -> None:
    create_table(str(tmp_path / "new"), COLUMNS)
    result = headgate("status", str(tmp_path / "new"))
    assert result.exit_code == 0
    assert "No stream" in result.stdout


def test_a_shard_with_a_lost_entry_is_named_and_the_exit_code_says_it(headgate: Headgate, streamed: Table) -> None:
    shard = streamed.shard("partition:orders:0")
    (Path(streamed.uri) / shard.wal_key(1)).unlink()
    result = headgate("status", streamed.uri, "--output", "json")
    assert result.exit_code == 6
    (problem,) = json.loads(result.stdout)["shards"][0]["problems"]
    assert "entry 1 is missing" in problem


def test_watch_shows_the_next_batch_and_ends_with_ctrl_c(streamed: Table) -> None:
    process = started("status", streamed.uri, "--watch", "--every", "0.1", "--output", "json")
    assert process.stdout is not None
    try:
        assert json.loads(process.stdout.readline())["streams"][0]["batch"] == 1
        Stream(streamed, "orders", 2).commit([(0, 4, 5)], [Record(0, 4, GOOD % 5)])
        while json.loads(process.stdout.readline())["streams"][0]["sequence"] < 5:
            pass
    finally:
        process.send_signal(2)
        process.communicate()
    assert process.returncode == 0


def test_watch_on_a_terminal_paints_over_what_it_showed_and_gives_the_terminal_back(streamed: Table) -> None:
    terminal = OnTerminal("status", streamed.uri, "--watch", "--every", "0.1")
    try:
        terminal.until("orders/0 [2, 4)")
        assert "orders/0 [4, 5)" not in terminal.shown
        Stream(streamed, "orders", 2).commit([(0, 4, 5)], [Record(0, 4, GOOD % 5)])
        terminal.until("orders/0 [4, 5)")
    finally:
        code = terminal.end()
    assert code == 0
    looks = terminal.shown.split("\x1b[1A")  # one line up: each look begins where the last one did
    assert len(looks) > 20, "a look is many lines high"
    assert terminal.shown.count("\x1b[?25l") == terminal.shown.count("\x1b[?25h") == 1, "the cursor is back"
    assert "Traceback" not in terminal.shown


def test_kafka_options_without_servers_are_refused(headgate: Headgate, streamed: Table) -> None:
    result = headgate("status", streamed.uri, "--kafka-option", "kafka.client.id=x")
    assert result.exit_code == 2
    assert "--servers" in result.stderr


@pytest.mark.kafka
def test_the_lag_counts_what_kafka_has_and_the_table_has_not(
    headgate: Headgate, tmp_path: Path, kafka_servers: str, make_topic: object
) -> None:
    from confluent_kafka import Producer

    topic = make_topic(2)  # type: ignore[operator]
    producer = Producer({"bootstrap.servers": kafka_servers, "enable.idempotence": True})
    for number in range(7):
        producer.produce(topic, GOOD % number, partition=number % 2)
    producer.flush()
    table = create_table(str(tmp_path / "orders"), COLUMNS, sharding=by_partition())
    Stream(table, topic, 2).commit([(0, 0, 1)], [Record(0, 0, GOOD % 0)])
    told = json.loads(headgate("status", table.uri, "--servers", kafka_servers, "--output", "json").stdout)
    assert told["streams"][0]["lag"] == 6
    assert [(part["committed"], part["end"], part["lag"]) for part in told["partitions"]] == [(1, 4, 3), (None, 3, 3)]
