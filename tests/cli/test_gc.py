from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from headgate.table.create import create_table
from headgate.table.table import Table
from tests.cli.calls import Headgate

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Three rows in an SSTable, and the entries that it covers."""
    table = create_table(str(tmp_path / "orders"), SCHEMA, primary_key="id")
    with table.writer("single") as writer:
        for number in range(3):
            writer.put(pa.record_batch({"id": [number]}, schema=SCHEMA))
        writer.flush_memtable()
    return table


def files(table: Table) -> set[str]:
    return {info.key for info in table.home.store.list("")}


def test_without_apply_everything_is_listed_and_nothing_deleted(headgate: Headgate, table: Table) -> None:
    before = files(table)
    told = json.loads(headgate("gc", table.uri, "--min-age", "0s", "--nothing-else-runs", "--output", "json").stdout)
    assert files(table) == before
    assert told["applied"] is False
    assert told["kinds"] == {"manifest": 1, "wal entry": 2}
    assert told["objects"] == len(told["found"]) == 3
    assert told["bytes"] == sum(one["bytes"] for one in told["found"]) > 0


def test_with_apply_it_is_gone_and_the_rows_stay(headgate: Headgate, table: Table) -> None:
    before = files(table)
    done = headgate("gc", table.uri, "--min-age", "0s", "--nothing-else-runs", "--apply")
    assert done.exit_code == 0
    assert "Deleted from" in done.stdout
    assert len(before - files(table)) == 3
    assert table.scan().read_all().num_rows == 3


def test_an_age_that_is_not_safe_is_refused(headgate: Headgate, table: Table) -> None:
    before = files(table)
    refused = headgate("gc", table.uri, "--min-age", "59m", "--apply")
    assert refused.exit_code == 2
    assert "--nothing-else-runs" in refused.stderr
    assert headgate("gc", table.uri, "--min-age", "soon").exit_code == 2
    assert headgate("gc", table.uri, "--min-age", "9" * 15 + "w").exit_code == 2
    assert headgate("gc", table.uri, "--min-age", "2w").exit_code == 0  # as --expires takes it
    assert files(table) == before


def test_what_is_young_stays(headgate: Headgate, table: Table) -> None:
    assert json.loads(headgate("gc", table.uri, "--output", "json").stdout)["objects"] == 0
