from __future__ import annotations

import json
from pathlib import Path

import lance
import pytest

from headgate.shards.sharding import by_partition
from headgate.table.create import create_table
from headgate.table.table import Table, open_table
from tests.cli.calls import Headgate
from tests.support.streams import COLUMNS, Record, Stream


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Two rows and a dead letter of a stream, and a checkpoint before the second row."""
    table = create_table(
        str(tmp_path / "orders"), COLUMNS, primary_key="id", sharding=by_partition(key_is_partitioned=True)
    )
    orders = Stream(table, "orders")
    orders.commit([(0, 0, 2)], [Record(0, 0, b'{"id": 1}'), Record(0, 1, b"bad")])
    table.checkpoint(name="then")
    orders.commit([(0, 2, 3)], [Record(0, 2, b'{"id": 2}')])
    return table


def ids(uri: Path | str) -> list[int]:
    found: list[int] = sorted(open_table(str(uri)).scan().read_all()["id"].to_pylist())
    return found


def test_a_clone_is_made_and_told(headgate: Headgate, tmp_path: Path, table: Table) -> None:
    result = headgate("clone", table.uri, str(tmp_path / "copy"), "--output", "json")
    assert result.exit_code == 0
    told = json.loads(result.stdout)
    clone = open_table(str(tmp_path / "copy"))
    assert told == {
        "uri": clone.uri,
        "table_id": str(clone.table_id),
        "source": table.uri,
        "source_id": str(table.table_id),
        "checkpoint": None,
        "deep": False,
        "source_tag": f"headgate-clone-{clone.table_id}",
        "wal_uri": None,
        "shards": 1,
    }
    assert told["source_tag"] in lance.dataset(table.uri).tags.list()
    assert ids(clone.uri) == [1, 2]
    letters = headgate("dead-letters", "show", clone.uri, "--output", "json").stdout.splitlines()
    assert [json.loads(line)["value"] for line in letters] == ["bad"]
    assert result.stderr == ""


def test_of_a_checkpoint_deep_and_with_a_wal_store(headgate: Headgate, tmp_path: Path, table: Table) -> None:
    copy, wal = str(tmp_path / "copy"), str(tmp_path / "wal")
    result = headgate("clone", table.uri, copy, "--checkpoint", "then", "--deep", "--wal-uri", wal, "--output", "json")
    told = json.loads(result.stdout)
    assert (told["checkpoint"], told["deep"], told["wal_uri"], told["source_tag"]) == ("then", True, wal, None)
    assert ids(copy) == [1]
    assert json.loads(headgate("shard", "show", copy, "--output", "json").stdout)["unflushed_entries"] == 2
    assert "Cloned" in headgate("clone", table.uri, copy, "--checkpoint", "then", "--deep", "--wal-uri", wal).stdout


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--checkpoint", "now"], 3, "checkpoints: then"),
        (["--wal-uri", "s3://user:secret@bucket/wal"], 2, "storage_options"),
    ],
)
def test_what_cannot_be_is_refused_with_a_next_step(
    headgate: Headgate, tmp_path: Path, table: Table, arguments: list[str], code: int, text: str
) -> None:
    result = headgate("clone", table.uri, str(tmp_path / "copy"), *arguments)
    assert (result.exit_code, text in result.stderr) == (code, True), result.stderr
    assert "secret" not in result.stderr
    assert not (tmp_path / "copy").exists()


def test_a_destination_in_use_and_a_source_that_is_none_are_refused(
    headgate: Headgate, tmp_path: Path, table: Table
) -> None:
    create_table(str(tmp_path / "other"), COLUMNS)
    result = headgate("clone", table.uri, str(tmp_path / "other"))
    assert (result.exit_code, "is not empty" in result.stderr) == (2, True)
    assert headgate("clone", str(tmp_path / "nothing"), str(tmp_path / "copy")).exit_code == 3


def test_a_shard_that_no_stream_wrote_to_is_named_by_hand(headgate: Headgate, tmp_path: Path, table: Table) -> None:
    with table.writer("partition:orders:5") as writer:
        writer.put(open_table(table.uri).scan().read_all().slice(0, 1))
    refused = headgate("clone", table.uri, str(tmp_path / "copy"))
    assert (refused.exit_code, "name is unknown" in refused.stderr) == (2, True)
    assert headgate("clone", table.uri, str(tmp_path / "copy"), "--shard-name", "partition:orders:5").exit_code == 0


def test_shard_show_finds_the_store_that_the_first_writer_chose(headgate: Headgate, tmp_path: Path) -> None:
    table = create_table(str(tmp_path / "t"), COLUMNS)
    clone = table.clone(str(tmp_path / "copy"))
    with open_table(clone.uri, wal_uri=str(tmp_path / "wal")).writer("single") as writer:
        writer.put(COLUMNS.empty_table())
    shown = json.loads(headgate("shard", "show", clone.uri, "--output", "json").stdout)
    assert (shown["unflushed_entries"], shown["native_safe"], shown["problems"]) == (0, False, [])
    assert json.loads(headgate("table", "show", clone.uri, "--output", "json").stdout)["wal_uri"] == str(
        tmp_path / "wal"
    )


def test_help_has_an_example(headgate: Headgate) -> None:
    shown = headgate("clone", "--help").stdout
    assert "Example:" in shown
    assert "headgate clone ./orders ./orders-copy" in shown
    assert "clone" in headgate("--help").stdout
