"""`headgate rewind`: what the dry run tells, what --apply leaves, and how status and recover tell of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import headgate as product
from headgate.checkpoints.log.commit_log import CommitLog
from headgate.checkpoints.log.records import RewindRecord
from headgate.checkpoints.spark.directory import default_checkpoint
from headgate.shards.sharding import by_partition
from headgate.table.create import create_table
from headgate.table.table import Table
from tests.cli.calls import Headgate, files_of
from tests.support.streams import COLUMNS, QUERY, Record, Stream

GOOD = b'{"id": %d, "note": "n"}'
BACK = '{"orders":{"0":5}}'


def streamed(path: Path, *, keyed: bool = False) -> Table:
    """Stream orders has read [0, 10) of one partition."""
    key = "id" if keyed else None
    table = create_table(str(path), COLUMNS, primary_key=key, sharding=by_partition(key_is_partitioned=keyed))
    Stream(table, "orders", 1).commit([(0, 0, 10)], [Record(0, n, GOOD % n) for n in range(10)])
    return table


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return streamed(tmp_path / "orders")


def told(headgate: Headgate, table: Table, *options: str) -> dict[str, Any]:
    result = headgate("rewind", table.uri, "--stream", "orders", *options, "--output", "json")
    assert result.exit_code == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_the_dry_run_says_what_comes_again_and_what_is_left_out_and_writes_nothing(
    headgate: Headgate, table: Table, tmp_path: Path
) -> None:
    before = files_of(table.home)
    back = told(headgate, table, "--to-offsets", BACK)
    assert (back["applied"], back["record"], back["offsets_again"], back["offsets_skipped"]) == (False, None, 5, 0)
    assert "WILL BE DUPLICATED" in back["means"]
    assert back["starting_offsets"] == BACK
    assert back["offsets"] == [
        {"topic": "orders", "partition": 0, "before": 10, "after": 5, "again": "[5, 10)", "skipped": None}
    ]
    on = told(headgate, table, "--to-offsets", '{"orders":{"0":25}}')
    assert (on["offsets_skipped"], on["offsets"][0]["skipped"]) == (15, "[10, 25)")
    assert "NEVER BE IN THE TABLE" in on["means"]
    keyed = told(headgate, streamed(tmp_path / "keyed", keyed=True), "--to-offsets", BACK)
    assert "replace their rows" in keyed["means"]
    text = headgate("rewind", table.uri, "--stream", "orders", "--to-offsets", BACK)
    assert "nothing was written; add --apply to do it" in text.stdout
    assert files_of(table.home) == before


def test_apply_puts_the_record_rebuilds_the_checkpoint_and_says_so_everywhere(
    headgate: Headgate, table: Table, tmp_path: Path
) -> None:
    place = tmp_path / "checkpoint"
    options = ("--to-offsets", BACK, "--spark-checkpoint", str(place), "--reason", "decoder fixed", "--apply")
    done = told(headgate, table, *options)
    assert (done["applied"], done["reason"], "@" in done["by"]) == (True, "decoder fixed", True)
    record = CommitLog(table.home.records, "orders", table.uri).record(done["record"])
    assert isinstance(record, RewindRecord)
    assert record.query_id != QUERY
    assert json.loads((place / "offsets/0").read_text().split("\n")[2]) == {"orders": {"0": 5}}
    recovered = json.loads(headgate("recover", table.uri, "--spark-checkpoint", str(place), "--output", "json").stdout)
    assert (recovered["state"], recovered["offsets"][0]["table"]) == ("aligned", 5)
    again = told(headgate, table, *options)
    assert (again["applied"], again["rebuilt"], again["means"]) == (False, None, "Nothing moves.")
    shown = json.loads(headgate("status", table.uri, "--output", "json").stdout)
    (stream,) = shown["streams"]
    assert (stream["rewound"]["record"], stream["rewound"]["reason"]) == (done["record"], "decoder fixed")
    assert (stream["rewound"]["offsets_again"], stream["rewound"]["batches_since"]) == (5, 0)
    assert shown["partitions"][0]["committed"] == 5
    assert "rewound by record" in headgate("status", table.uri).stdout
    checked = headgate("fsck", table.uri)
    assert checked.exit_code == 0, checked.stdout


def test_without_a_checkpoint_directory_it_says_what_to_start_with(headgate: Headgate, table: Table) -> None:
    done = told(headgate, table, "--to-offsets", BACK, "--apply")
    assert done["rebuilt"] is None
    assert f".option('startingOffsets', '{BACK}')" in done["next"]
    own = Path(default_checkpoint(table.home, "orders"))
    own.mkdir(parents=True)
    (own / "metadata").write_text("{}")
    assert f"--spark-checkpoint {own}" in told(headgate, table, "--to-offsets", BACK)["next"]
    rebuilt = told(headgate, table, "--to-offsets", BACK, "--spark-checkpoint", str(own), "--apply")
    assert (rebuilt["applied"], rebuilt["rebuilt"]["checkpoint"]) == (False, str(own)), "it was rewound before"


def test_a_clone_and_a_checkpoint_know_of_it(headgate: Headgate, table: Table, tmp_path: Path) -> None:
    told(headgate, table, "--to-offsets", BACK, "--apply")
    Stream(table, "orders", 1).commit([(0, 5, 10)], [Record(0, n, GOOD % n) for n in range(5, 10)])
    done = headgate("clone", table.uri, str(tmp_path / "clone"))
    assert done.exit_code == 0, done.stderr
    shown = json.loads(headgate("status", str(tmp_path / "clone"), "--output", "json").stdout)
    assert shown["streams"][0]["rewound"]["offsets_again"] == 5
    rows = product.open_table(str(tmp_path / "clone")).scan().read_all().column("id").to_pylist()
    assert sorted(rows) == sorted([*range(10), *range(5, 10)])


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ((), "exactly one of"),
        (("--to-offsets", BACK, "--to-timestamp", "0"), "exactly one of"),
        (("--to-offsets", BACK, "--adopt"), "exactly one of"),
        (("--adopt",), "needs --spark-checkpoint"),
        (("--adopt", "--spark-checkpoint", "/nowhere/at/all"), "No readable Spark checkpoint"),
        (("--to-timestamp", "2026-01-01T00:00:00Z"), "needs --servers"),
        (("--to-offsets", "5"), "offsets are invalid"),
        (("--to-offsets", '{"orders":{"0":-2}}'), "unknown without Kafka"),
        (("--to-offsets", '{"other":{"0":1}}'), "does not read the topic"),
    ],
)
def test_what_cannot_be_is_one_sentence_and_a_next_step(
    headgate: Headgate, table: Table, options: tuple[str, ...], what: str
) -> None:
    before = files_of(table.home)
    result = headgate("rewind", table.uri, "--stream", "orders", *options, "--apply")
    assert result.exit_code == 2, (result.stdout, result.stderr)
    assert what in result.stderr
    assert "Next: " in result.stderr
    assert files_of(table.home) == before
