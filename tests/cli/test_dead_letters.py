from __future__ import annotations

import json
from pathlib import Path

import pytest

from headgate.shards.sharding import by_partition
from headgate.table.create import create_table
from headgate.table.table import Table
from tests.cli.calls import Headgate
from tests.support.streams import COLUMNS, Record, Stream

LONG = b'{"id": ' + b"x" * 300


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Four dead letters of stream orders, one of stream returns."""
    table = create_table(
        str(tmp_path / "orders"), COLUMNS, primary_key="id", sharding=by_partition(key_is_partitioned=True)
    )
    orders = Stream(table, "orders")
    orders.commit([(0, 0, 3)], [Record(0, 0, b'{"id": 1}'), Record(0, 1, b"\xff\x1b[2J", b"k"), Record(0, 2, LONG)])
    orders.commit([(0, 3, 5)], [Record(0, 3, None), Record(0, 4, b'{"id": null}', b"\x00")])
    Stream(table, "returns").commit([(0, 0, 1)], [Record(0, 0, b"")])
    return table


def test_every_committed_dead_letter_is_shown_with_place_error_and_bytes(headgate: Headgate, table: Table) -> None:
    lines = headgate("dead-letters", "show", table.uri, "--output", "json").stdout.splitlines()
    found = [json.loads(line) for line in lines]
    assert [(one["stream"], one["topic"], one["partition"], one["offset"]) for one in found] == [
        ("orders", "orders", 0, 1),
        ("orders", "orders", 0, 2),
        ("orders", "orders", 0, 3),
        ("orders", "orders", 0, 4),
        ("returns", "returns", 0, 0),
    ]
    assert all(one["error"] for one in found)
    assert [one["value"] for one in found] == ["\\xff\x1b[2J", LONG[:120].decode() + "…", None, '{"id": null}', ""]
    assert [one["value_bytes"] for one in found] == [5, len(LONG), None, 12, 0]
    assert (found[0]["key"], found[2]["key"]) == ("k", None)


def test_bytes_that_would_move_the_cursor_are_shown_as_escapes(headgate: Headgate, table: Table) -> None:
    shown = headgate("dead-letters", "show", table.uri).stdout
    assert "\x1b" not in shown
    assert "\\xff\\x1b[2J" in shown


def test_limit_and_stream_choose_and_full_cuts_nothing(headgate: Headgate, table: Table) -> None:
    def offsets(*options: str) -> list[tuple[str, int]]:
        lines = headgate("dead-letters", "show", table.uri, "--output", "json", *options).stdout.splitlines()
        return [(json.loads(line)["stream"], json.loads(line)["offset"]) for line in lines]

    assert offsets("--limit", "3") == [("orders", 1), ("orders", 2), ("orders", 3)]
    assert offsets("--stream", "returns") == [("returns", 0)]
    shown = headgate("dead-letters", "show", table.uri, "--full", "--output", "json").stdout
    assert LONG.decode() in [json.loads(line)["value"] for line in shown.splitlines()]


@pytest.mark.parametrize(
    "command",
    [
        ("dead-letters", "show", "TABLE", "--stream", "order"),
        ("dead-letters", "replay", "TABLE", "--stream", "order"),
        ("ledger", "rebuild", "TABLE", "--stream", "order", "--ledger", "./ledger"),
        ("rewind", "TABLE", "--stream", "order", "--to-offsets", '{"t": {"0": 1}}'),
        ("recover", "TABLE", "--stream", "order", "--spark-checkpoint", "./nowhere"),
        ("shard", "release", "TABLE", "--stream", "order"),
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_a_stream_that_is_not_there_has_one_exit_code_and_those_that_are_are_named(
    headgate: Headgate, table: Table, command: tuple[str, ...]
) -> None:
    result = headgate(*(table.uri if word == "TABLE" else word for word in command))
    assert result.exit_code == 3, result.stderr
    assert "orders, returns" in result.stderr


def test_a_table_without_any_shows_nothing(headgate: Headgate, tmp_path: Path) -> None:
    create_table(str(tmp_path / "new"), COLUMNS)
    result = headgate("dead-letters", "show", str(tmp_path / "new"), "--output", "json")
    assert (result.exit_code, result.stdout) == (0, "")
