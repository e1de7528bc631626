from __future__ import annotations

import json
import re
import shlex
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

from headgate.dev.demo.demo import MARK
from headgate.dev.demo.orders import DDL, PARTITIONS, Orders
from headgate.streaming.decode.api import json as json_decoder
from headgate.table.ddl import arrow_schema
from headgate.table.table import open_table
from tests.cli.calls import Headgate, started
from tests.support.pages import blocks_of


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


def fixed_words(lines: Sequence[str], place: str) -> list[str]:
    return [re.sub(r"[0-9][0-9,.:]*(?<![.,])", "N", line.replace(place, "headgate-demo")) for line in lines]


@pytest.mark.spark
@pytest.mark.kafka
def test_a_small_demo_holds_prints_what_the_readme_says_and_keeps_only_its_table(
    headgate: Headgate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    place = tmp_path / "kept"
    process = started("demo", "--rows", "5000", "--dir", str(place))
    out, err = process.communicate(timeout=280)
    assert process.returncode == 0, out + err
    (said,) = [block.text.splitlines() for block in blocks_of("README.md") if "Killed the driver" in block.text]
    assert fixed_words(out.splitlines()[-len(said) :], str(place)) == fixed_words(said, str(place))
    orders = Orders.make(5_000)
    expected = orders.expected(arrow_schema(DDL))
    assert f"{orders.bad} of {orders.bad} bad records" in out
    assert open_table(str(place / "orders")).scan(columns=["order_id"]).read_all().num_rows == expected.num_rows
    assert wait_until_all_ended(tmp_path) == []
    assert sorted(path.name for path in place.iterdir()) == [".headgate-demo", "orders"]
    assert [path.name for path in tmp_path.glob("headgate-*")] == []
    tries = [shlex.split(line)[1:] for line in out.splitlines() if line.startswith("  headgate ")]
    assert [headgate(*one).exit_code for one in tries] == [0, 0, 0]
    assert headgate("demo", "--clean", "--dir", str(place)).exit_code == 0
    assert not place.exists()


@pytest.mark.spark
@pytest.mark.kafka
def test_ctrl_c_in_the_middle_ends_every_process_and_removes_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    place = tmp_path / "kept"
    process = started("demo", "--rows", "2000", "--dir", str(place))
    assert process.stdout is not None
    assert "Kafka runs" in process.stdout.readline()
    assert "Produced" in process.stdout.readline()
    while len(left_running(tmp_path)) < 3:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=180)
    assert process.returncode == 130
    assert wait_until_all_ended(tmp_path) == []
    assert [path.name for path in tmp_path.glob("headgate-*")] == []
    assert not place.exists()


def test_clean_removes_only_what_a_demo_has_made(headgate: Headgate, tmp_path: Path) -> None:
    place = tmp_path / "place"
    assert json.loads(headgate("demo", "--clean", "--dir", str(place), "--output", "json").stdout)["removed"] is False
    (place / "orders").mkdir(parents=True)
    refused = headgate("demo", "--clean", "--dir", str(place))
    assert (refused.exit_code, (place / "orders").exists()) == (2, True)
    assert headgate("demo", "--rows", "1000", "--dir", str(place)).exit_code == 2
    (place / MARK).touch()
    (place / "notes.txt").touch()
    assert headgate("demo", "--clean", "--dir", str(place)).exit_code == 0
    assert [path.name for path in place.iterdir()] == ["notes.txt"]


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
