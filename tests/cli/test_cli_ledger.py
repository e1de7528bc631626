"""`headgate ledger rebuild`: what is refused before Spark starts, and one run in a process of its own.

The commands are those of docs/delta.md.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import Headgate, started
from stream_tables import COLUMNS, Record, Stream

import headgate as hg
from headgate.table import Table


@pytest.fixture
def orders(tmp_path: Path) -> Table:
    table = hg.create_table(str(tmp_path / "orders"), COLUMNS, sharding=hg.by_partition())
    stream = Stream(table, "orders", 2)
    for number in range(3):
        records = [Record(p, number, b'{"id": %d, "note": "n"}' % (10 * number + p)) for p in range(2)]
        stream.commit([(0, number, number + 1), (1, number, number + 1)], records)
    return table


def test_a_stream_or_ledger_that_cannot_be_is_told_before_spark_starts(headgate: Headgate, orders: Table) -> None:
    told = headgate("ledger", "rebuild", orders.uri, "--stream", "nobody", "--ledger", "./ledger")
    assert told.exit_code == 2
    assert "its streams are: orders" in told.stderr
    told = headgate("ledger", "rebuild", orders.uri, "--stream", "orders", "--ledger", "ledger")
    assert told.exit_code == 2
    assert "neither a path nor a name" in told.stderr
    told = headgate("ledger", "rebuild", orders.uri, "--stream", "orders", "--ledger", "lake.ledger")
    assert "headgate.rebuild_ledger" in told.stderr


@pytest.mark.spark
@pytest.mark.deep
def test_a_ledger_is_made_of_the_commit_log_alone(orders: Table, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    arguments = ("ledger", "rebuild", orders.uri, "--stream", "orders", "--ledger", str(ledger), "--output", "json")
    process = started(*arguments, "--apply")
    out, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    done = json.loads(out)
    assert (done["records"], done["rows"], done["replaced"], done["kept"], done["lost_upto"]) == (3, 6, 0, 0, 0)
    assert done["applied"] is True
    assert list(ledger.glob("_delta_log/*.json"))
