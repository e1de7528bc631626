"""`headgate table scan|get|count`: the rows that a scan shows, in every form, and what is refused."""

from __future__ import annotations

import csv
import json
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headgate.shards.sharding import bucket
from headgate.table.create import create_table
from headgate.table.table import Table
from tests.cli.calls import Headgate

COLUMNS = pa.schema(
    [
        pa.field("order_id", pa.int64(), nullable=False),
        pa.field("note", pa.string()),
        pa.field("placed_at", pa.timestamp("us", "UTC")),
    ]
)
FIRST = 1_234_567
AT = datetime(2024, 2, 29, 12, tzinfo=UTC)


@pytest.fixture
def orders(tmp_path: Path) -> Table:
    """25 rows that are in the write-ahead logs alone, and a checkpoint of the first 24."""
    with create_table(
        str(tmp_path / "orders"), COLUMNS, primary_key="order_id", sharding=bucket("order_id", 2)
    ) as table:
        ids = list(range(FIRST, FIRST + 25))
        rows = pa.table({"order_id": ids, "note": ["late, and cold"] * 25, "placed_at": [AT] * 25}, COLUMNS)
        table.upsert(rows.slice(0, 24))
        table.checkpoint(name="then")
        table.upsert(rows.slice(24))
    return table


def test_scan_prints_the_rows_for_people_with_whole_ids_under_the_names_of_the_columns(
    headgate: Headgate, orders: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    shown = headgate("table", "scan", orders.uri, "--columns", "order_id,note").stdout
    assert "order_id" in shown
    assert str(FIRST) in shown
    assert shown.count("1234") == 20
    assert "Showing the first 20 rows; --limit N shows more." in shown
    assert headgate("table", "scan", orders.uri, "--limit", "25").stdout.count("1234") == 25


def test_scan_gives_machines_the_rows_that_were_asked_for(headgate: Headgate, orders: Table, tmp_path: Path) -> None:
    wanted = ("table", "scan", orders.uri, "--filter", f"order_id >= {FIRST + 22}")
    found = [json.loads(line) for line in headgate(*wanted, "--output", "json").stdout.splitlines()]
    assert sorted(row["order_id"] for row in found) == [FIRST + 22, FIRST + 23, FIRST + 24]
    assert found[0]["placed_at"] == "2024-02-29T12:00:00+00:00"
    rows = list(csv.DictReader(StringIO(headgate(*wanted, "--limit", "2", "--output", "csv").stdout)))
    assert [row["note"] for row in rows] == ["late, and cold"] * 2
    file = tmp_path / "rows.parquet"
    done = headgate(*wanted, "--checkpoint", "then", "--output", "parquet", "--file", str(file))
    assert (done.exit_code, done.stdout) == (0, "")
    assert sorted(pq.read_table(file)["order_id"].to_pylist()) == [FIRST + 22, FIRST + 23]
    assert [path.name for path in tmp_path.iterdir() if path.name != "orders"] == ["rows.parquet"]


def test_get_gives_the_rows_of_the_keys_that_are_there(headgate: Headgate, orders: Table) -> None:
    asked = ("table", "get", orders.uri, str(FIRST), "7")
    assert str(FIRST) in headgate(*asked).stdout
    assert json.loads(headgate(*asked, "--columns", "order_id", "--output", "json").stdout) == {"order_id": FIRST}


def test_get_takes_keys_of_several_columns(headgate: Headgate, tmp_path: Path) -> None:
    schema = pa.schema([pa.field("shop", pa.string(), nullable=False), pa.field("id", pa.int32(), nullable=False)])
    with create_table(str(tmp_path / "t"), schema, primary_key=("shop", "id"), sharding=bucket("id", 2)) as table:
        table.upsert(pa.table({"shop": ["a,b", "c"], "id": [1, 2]}, schema))
    result = headgate("table", "get", table.uri, '"a,b",1', "c,1", "--output", "json")
    assert json.loads(result.stdout) == {"shop": "a,b", "id": 1}
    assert "must have 2 values" in headgate("table", "get", table.uri, "c").stderr


def test_count_counts_now_and_at_a_checkpoint(headgate: Headgate, orders: Table) -> None:
    def counted(*options: str) -> int:
        return int(json.loads(headgate("table", "count", orders.uri, *options, "--output", "json").stdout)["rows"])

    assert (counted(), counted("--checkpoint", "then"), counted("--filter", f"order_id < {FIRST + 3}")) == (25, 24, 3)
    assert "25 rows in" in headgate("table", "count", orders.uri).stdout
    assert headgate("table", "count", orders.uri, "--output", "csv").stdout.splitlines() == ['"rows"', "25"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("scan", "--output", "parquet"), 2, "--file"),
        (("scan", "--file", "x"), 2, "--output json"),
        (("scan", "--output", "csv", "--file", "no/such/folder/x"), 2, "cannot be written"),
        (("scan", "--columns", "order"), 2, "order"),
        (("scan", "--filter", "order_id >"), 2, "order_id >"),
        (("scan", "--checkpoint", "never"), 3, "never"),
        (("get", "one"), 2, "int64"),
        (("get", "1", "--columns", "order"), 2, "no column 'order'"),
    ],
)
def test_what_cannot_be_read_is_told(
    headgate: Headgate, orders: Table, arguments: tuple[str, ...], code: int, said: str
) -> None:
    command, *rest = arguments
    result = headgate("table", command, orders.uri, *rest)
    assert (result.exit_code, result.stdout) == (code, "")
    assert said in result.stderr


def test_a_table_without_a_key_has_no_row_to_get(headgate: Headgate, tmp_path: Path) -> None:
    table = create_table(str(tmp_path / "t"), pa.schema([pa.field("id", pa.int64())]))
    result = headgate("table", "get", table.uri, "1")
    assert result.exit_code == 2
    assert "headgate table scan" in result.stderr


def test_columns_are_added_renamed_and_dropped_and_another_type_is_refused(headgate: Headgate, orders: Table) -> None:
    def columns(*arguments: str) -> list[str]:
        result = headgate("table", arguments[0], orders.uri, *arguments[1:], "--output", "json")
        assert result.exit_code == 0, result.stderr
        return [one["name"] for one in json.loads(result.stdout)["columns"]]

    assert columns("add-column", "channel string") == ["order_id", "note", "placed_at", "channel"]
    assert columns("rename-column", "channel", "source") == ["order_id", "note", "placed_at", "source"]
    assert columns("drop-column", "source") == ["order_id", "note", "placed_at"]
    refused = headgate("table", "add-column", orders.uri, "note bigint")
    assert refused.exit_code == 2
    assert "add a column under another name, fill it" in refused.stderr
    assert columns("show") == ["order_id", "note", "placed_at"]
