"""`headgate fsck`: what it prints and how it exits; the findings themselves are tested beside the check."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headgate.shards.sharding import by_partition
from headgate.table.create import create_table
from headgate.table.table import Table
from tests.cli.calls import Headgate
from tests.support.streams import COLUMNS, Record, Stream

GOOD = b'{"id": %d, "note": "n"}'


@pytest.fixture
def streamed(tmp_path: Path) -> Table:
    """Two batches of one partition."""
    table = create_table(str(tmp_path / "orders"), COLUMNS, sharding=by_partition())
    stream = Stream(table, "orders", 1)
    for number in range(2):
        stream.commit([(0, number, number + 1)], [Record(0, number, GOOD % number)])
    return table


def entry(table: Table, position: int) -> Path:
    return Path(table.uri) / table.shard("partition:orders:0").wal_key(position)


def test_a_table_as_it_must_be_exits_0_and_says_what_was_checked(headgate: Headgate, streamed: Table) -> None:
    result = headgate("fsck", streamed.uri, "--output", "json")
    told = json.loads(result.stdout)
    assert (result.exit_code, told["holds"], told["findings"]) == (0, True, [])
    assert told["checked"] == {
        "archives": 0,
        "checkpoints": 0,
        "consumers": 0,
        "manifests": 1,
        "records": 3,
        "entries": 3,
        "bytes": sum(entry(streamed, position).stat().st_size for position in range(3)),
    }
    assert "No problems found" in headgate("fsck", streamed.uri).stdout


def test_a_loss_exits_6_with_code_place_what_is_lost_and_what_to_do(headgate: Headgate, streamed: Table) -> None:
    entry(streamed, 2).unlink()
    result = headgate("fsck", streamed.uri, "--output", "json")
    told = json.loads(result.stdout)
    assert (result.exit_code, told["holds"], told["errors"], told["warnings"]) == (6, False, 1, 0)
    assert told["codes"] == {"commit-entry-missing": 1}
    (found,) = told["findings"]
    assert (found["code"], found["severity"]) == ("commit-entry-missing", "error")
    assert found["place"].endswith("(position 2)")
    assert "1 rows of batch 1" in found["lost"]
    assert "restore" in found["do"]
    shown = headgate("fsck", streamed.uri).stdout
    assert "error commit-entry-missing: Entry 2 is missing. Commit record 3 lists 2." in shown
    assert "Problems found" in shown


def test_warnings_alone_exit_1(headgate: Headgate, streamed: Table) -> None:
    (entry(streamed, 2).parent / "left\x1b[2J.tmp").write_bytes(b"")
    assert json.loads(headgate("fsck", streamed.uri, "--output", "json").stdout)["codes"] == {"wal-stray": 1}
    result = headgate("fsck", streamed.uri)
    assert result.exit_code == 1
    assert "\x1b" not in result.stdout, "names come from outside"


def test_a_base_that_cannot_be_opened_stops_nothing(headgate: Headgate, streamed: Table) -> None:
    for path in (Path(streamed.uri) / "_versions").glob("*.manifest"):
        path.write_bytes(b"")
    entry(streamed, 2).write_bytes(b"")
    result = headgate("fsck", streamed.uri, "--output", "json")
    assert result.exit_code == 6
    assert set(json.loads(result.stdout)["codes"]) == {"base-damaged", "entry-empty"}


def test_a_place_without_a_table_exits_3(headgate: Headgate, tmp_path: Path) -> None:
    result = headgate("fsck", str(tmp_path / "nothing"))
    assert result.exit_code == 3
    assert "No table found" in result.stderr
