"""`headgate checkpoint`, `headgate shard release` and `headgate wal expire`: what an operator types, dry runs first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lance
import pytest

from headgate.shards.sharding import by_partition
from headgate.table.create import create_table
from headgate.table.table import Table, open_table
from tests.cli.calls import Headgate
from tests.support.streams import COLUMNS, Record, Stream
from tests.support.tables import claimed

GOOD = b'{"id": %d, "note": "n"}'
SHARD = "partition:orders:0"


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Two batches of a WAL-only stream in one shard, at positions 1 and 2."""
    table = create_table(
        str(tmp_path / "orders"), COLUMNS, primary_key="id", sharding=by_partition(key_is_partitioned=True)
    )
    stream = Stream(table, "orders", 1)
    stream.commit([(0, 0, 2)], [Record(0, 0, GOOD % 1, b"1"), Record(0, 1, GOOD % 2, b"2")])
    stream.commit([(0, 2, 3)], [Record(0, 2, GOOD % 3, b"3")])
    return table


def ids(table: Table) -> list[int]:
    found: list[int] = sorted(table.scan().read_all().column("id").to_pylist())
    return found


def files(table: Table) -> set[str]:
    return {info.key for info in table.home.store.list("")}


def told(headgate: Headgate, *arguments: str) -> Any:
    result = headgate(*arguments, "--output", "json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


# -- checkpoint ------------------------------------------------------------------------


def test_create_list_show_and_drop(headgate: Headgate, table: Table) -> None:
    made = told(headgate, "checkpoint", "create", table.uri, "--name", "before", "--expires", "7d", "--note", "why")
    assert (made["applied"], made["name"], made["scope"], made["expires_after"]) == (True, "before", "durable", 604800)
    (listed,) = [
        json.loads(line) for line in headgate("checkpoint", "list", table.uri, "--output", "json").stdout.splitlines()
    ]
    assert (listed["name"], listed["note"], listed["shards"], listed["unflushed_entries"]) == ("before", "why", 1, 2)
    assert listed["expired"] is False
    shown = told(headgate, "checkpoint", "show", table.uri, "before")
    assert shown["checkpoint_id"] == made["checkpoint_id"]
    (shard,) = shown["shards"]
    assert (shard["name"], shard["replay_after"], shard["end"], shard["owner"]) == (SHARD, 0, 3, "orders")
    (stream,) = shown["streams"]
    assert (stream["stream"], stream["batch"], stream["ends"]) == ("orders", 1, "orders/0 3")
    before = files(table)
    assert told(headgate, "checkpoint", "drop", table.uri, "before")["applied"] is False
    assert files(table) == before
    assert told(headgate, "checkpoint", "drop", table.uri, "before", "--apply")["applied"] is True
    assert headgate("checkpoint", "list", table.uri, "--output", "json").stdout == ""


def test_for_people(headgate: Headgate, table: Table) -> None:
    assert "Checkpoint now of" in headgate("checkpoint", "create", table.uri, "--name", "now").stdout
    lines = headgate("checkpoint", "list", table.uri).stdout.splitlines()
    assert lines[0].split()[:3] == ["name", "scope", "taken_at"]
    assert lines[1].split()[:2] == ["now", "durable"]
    assert "orders/0 3" in headgate("checkpoint", "show", table.uri, "now").stdout


def test_scope_all_says_whom_it_would_fence_and_needs_apply(headgate: Headgate, table: Table) -> None:
    before = files(table)
    asked = told(headgate, "checkpoint", "create", table.uri, "--scope", "all")
    assert asked["applied"] is False
    assert [(one["shard"], one["stream"]) for one in asked["would_fence"]] == [(str(table.shard(SHARD).id), "orders")]
    assert files(table) == before
    made = told(headgate, "checkpoint", "create", table.uri, "--scope", "all", "--apply")
    assert made["scope"] == "all"
    assert "stream 'orders' is WAL only" in made["note"]
    assert ids(open_table(table.uri, checkpoint=made["name"])) == [1, 2, 3]


def test_a_table_that_nobody_ever_wrote_to_needs_no_apply(headgate: Headgate, tmp_path: Path) -> None:
    empty = create_table(str(tmp_path / "empty"), COLUMNS)
    assert told(headgate, "checkpoint", "create", empty.uri, "--scope", "all")["applied"] is True


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("create", "--name", "now"), 2, "Checkpoint 'now' exists already"),
        (("create", "--name", "auto/x"), 2, "reserved for automatic checkpoints of streams"),
        (("create", "--expires", "soon"), 2, "must be a duration"),
        (("create", "--expires", "0"), 2, "expires must be"),
        (("show", "gone"), 3, "Checkpoint 'gone' not found"),
        (("drop", "gone"), 3, "Checkpoint 'gone' not found"),
        (("drop", "gone", "--apply"), 3, "Checkpoint 'gone' not found"),
    ],
)
def test_what_cannot_be_is_one_sentence_and_a_next_step(
    headgate: Headgate, table: Table, arguments: tuple[str, ...], code: int, says: str
) -> None:
    headgate("checkpoint", "create", table.uri, "--name", "now")
    before = files(table)
    command, *rest = arguments
    result = headgate("checkpoint", command, table.uri, *rest)
    assert result.exit_code == code
    assert says in result.stderr
    assert "Next:" in result.stderr
    assert files(table) == before


@pytest.mark.parametrize(
    "command",
    [
        ("checkpoint", "create"),
        ("checkpoint", "list"),
        ("checkpoint", "show"),
        ("checkpoint", "drop"),
        ("shard", "release"),
        ("wal", "expire"),
    ],
)
def test_help_has_an_example(headgate: Headgate, command: tuple[str, ...]) -> None:
    shown = headgate(*command, "--help").stdout
    assert "Example:" in shown
    assert "--output" in shown


# -- shard release -----------------------------------------------------------------------


def test_release_flushes_and_lets_native_in(headgate: Headgate, table: Table) -> None:
    before = files(table)
    asked = told(headgate, "shard", "release", table.uri, "--stream", "orders")
    assert (asked["applied"], asked["stream"], asked["shards"][0]["sealed"]) == (False, "orders", True)
    assert files(table) == before
    done = told(headgate, "shard", "release", table.uri, SHARD, "--apply")
    (shard,) = done["shards"]
    assert (shard["sealed"], shard["native_safe"], shard["owner"], shard["sstables"]) == (False, True, "orders", 1)
    (checkpoint,) = table.checkpoints()
    assert checkpoint.checkpoint.name == done["checkpoint"]
    assert checkpoint.expires_at is not None
    writer = lance.dataset(table.uri).mem_wal_writer(shard["shard"])
    assert sorted(writer.lsm_scanner().to_table().column("id").to_pylist()) == [1, 2, 3]
    writer.close()
    assert ids(table) == [1, 2, 3]


def test_a_released_shard_belongs_to_its_stream_until_that_is_forgotten(headgate: Headgate, table: Table) -> None:
    told(headgate, "shard", "release", table.uri, SHARD, "--apply")
    assert claimed(table)[0].owner == "orders"
    told(headgate, "shard", "release", table.uri, SHARD, "--forget-owner", "--apply")
    assert claimed(table)[0].owner is None
    table.writer(SHARD).close()
    assert ids(table) == [1, 2, 3]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ((), 2, "Give either a SHARD or --stream"),
        ((SHARD, "--stream", "orders"), 2, "Give either a SHARD or --stream"),
        (("--stream", "x"), 3, "Stream 'x' not found in the table"),
        (("partition:orders:9",), 3, "The table has no shard"),
        (("bucket-0",), 2, "The table has no shard"),
    ],
)
def test_what_cannot_be_released(
    headgate: Headgate, table: Table, arguments: tuple[str, ...], code: int, says: str
) -> None:
    before = files(table)
    result = headgate("shard", "release", table.uri, *arguments, "--apply")
    assert (result.exit_code, says in result.stderr) == (code, True), result.stderr
    assert files(table) == before


# -- wal expire ----------------------------------------------------------------------------


def test_expire_by_position_checkpoint_and_age(headgate: Headgate, table: Table) -> None:
    before = files(table)
    asked = told(headgate, "wal", "expire", table.uri, "--before-position", "2", "--shard", SHARD)
    assert (asked["applied"], asked["entries"], asked["shards"][0]["upto"]) == (False, 1, 1)
    assert files(table) == before
    assert told(headgate, "wal", "expire", table.uri, "--older-than", "7d")["entries"] == 0
    done = told(headgate, "wal", "expire", table.uri, "--before-position", "2", "--shard", SHARD, "--apply")
    assert (done["applied"], done["entries"]) == (True, 1)
    assert ids(table) == [3]
    told(headgate, "checkpoint", "create", table.uri, "--name", "now")
    told(headgate, "wal", "expire", table.uri, "--before-checkpoint", "now", "--stream", "orders", "--apply")
    assert ids(table) == []
    assert ids(open_table(table.uri, checkpoint="now")) == [3]


def test_a_position_without_a_shard_is_refused(headgate: Headgate, table: Table) -> None:
    result = headgate("wal", "expire", table.uri, "--before-position", "2", "--apply")
    assert result.exit_code == 2
    assert "A position needs a shard" in result.stderr
    assert ids(table) == [1, 2, 3]


@pytest.mark.parametrize("limits", [(), ("--older-than", "7d", "--before-checkpoint", "now")])
def test_what_is_expired_is_said_in_one_way(headgate: Headgate, table: Table, limits: tuple[str, ...]) -> None:
    result = headgate("wal", "expire", table.uri, *limits, "--apply")
    assert result.exit_code == 2
    assert "exactly one of" in result.stderr
    assert ids(table) == [1, 2, 3]
