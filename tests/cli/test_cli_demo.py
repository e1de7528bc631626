from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

from headgate.dev.demo.orders import DDL, PARTITIONS, Orders
from headgate.streaming.decode.api import json as json_decoder
from headgate.table.ddl import arrow_schema
from tests.cli.command_line import started


def left_running(directory: Path) -> list[str]:
    """Processes that were started with this directory for their temporary files, or name it."""
    found = []
    for process in psutil.process_iter():
        try:
            named = str(directory) in " ".join(process.cmdline())
            if named or process.environ().get("TMPDIR", "").startswith(str(directory)):
                found.append(f"{process.pid} {process.name()}")
        except psutil.Error:
            continue
    return found


def wait_until_all_ended(directory: Path) -> list[str]:
    """Spark's workers end by themselves when their JVM is gone, within about a second."""
    until = time.monotonic() + 20
    while (left := left_running(directory)) and time.monotonic() < until:
        time.sleep(0.2)
    return left


@pytest.mark.spark
@pytest.mark.kafka
def test_a_small_demo_holds_and_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    process = started("demo", "--rows", "5000", "--output", "json")
    out, err = process.communicate(timeout=280)
    assert process.returncode == 0, out + err
    told = json.loads(out)
    assert told["holds"] is True
    assert (told["records"], told["duplicates"], told["lost"], told["wrong"]) == (5_000, 0, 0, 0)
    orders = Orders.make(5_000)
    assert told["dead_letters"] == orders.bad > 0
    assert told["rows"] == orders.expected(arrow_schema(DDL)).num_rows
    assert told["search_hits"] == told["search_hits_expected"] > 0
    assert told["checkpoint_rows"] == told["rows"]
    assert told["plain_lance_rows"] == told["rows"]
    assert [batch["batch"] for batch in told["batches"]] == list(range(len(told["batches"])))
    assert wait_until_all_ended(tmp_path) == []
    assert [path.name for path in tmp_path.glob("headgate-*")] == []


@pytest.mark.spark
@pytest.mark.kafka
def test_ctrl_c_in_the_middle_ends_every_process_and_removes_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    process = started("demo", "--rows", "2000")
    assert process.stdout is not None
    assert "Kafka runs" in process.stdout.readline()
    assert "Produced" in process.stdout.readline()
    while len(left_running(tmp_path)) < 3:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert wait_until_all_ended(tmp_path) == []
    assert [path.name for path in tmp_path.glob("headgate-*")] == []


def test_the_orders_are_what_the_demo_says_they_are() -> None:
    orders, again = Orders.make(3_000), Orders.make(3_000)
    records = list(orders._records())
    assert records == list(again._records())
    decoder = json_decoder(arrow_schema(DDL))
    decoded = decoder.decode(pa.array([value for _, _, value in records], pa.binary()))
    assert (len(decoded.bad), len(decoded.nulls)) == (orders.bad, orders.deletes)
    # One order, one partition: otherwise its changes would have no order.
    assert all(partition == int(key) % PARTITIONS for partition, key, _ in records)
    table: dict[int, object] = {}
    rows = iter(decoded.rows.to_pylist())
    good = set(decoded.indices.to_pylist())
    for at, (_, key, value) in enumerate(records):
        if at in good:
            row = next(rows)
            table[row["order_id"]] = row
        elif value is None:
            table.pop(int(key), None)
    assert orders.expected(decoder.schema).to_pylist() == [table[order] for order in sorted(table)]
