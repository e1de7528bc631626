from __future__ import annotations

import json
import signal
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from click.testing import Result

from headgate.shards.manifest.model import Manifest
from headgate.shards.shard import TableHome
from headgate.table.create import create_table
from tests.cli.calls import ROWS, SHARD, Headgate, files_of, opened, started, wal_file


def rows_of(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def positions_of(result: Result) -> list[int]:
    return [row["position"] for row in rows_of(result)]


def advance(table: TableHome, replay_after: int) -> None:
    with opened(table) as writer:
        claim = writer.claim

        def flushed(manifest: Manifest) -> Manifest:
            return replace(manifest, replay_after=replay_after)

        table.shard(SHARD).manifests.commit_update(claim.claim_id, claim.epoch, flushed)


def test_json_has_one_object_per_entry_with_its_tags_and_barriers_as_such(
    headgate: Headgate, written: TableHome
) -> None:
    result = headgate("wal", "tail", written.uri, str(SHARD), "--from", "0", "--output", "json")
    rows = rows_of(result)
    assert [(row["position"], row["epoch"], row["kind"], row["rows"]) for row in rows] == [
        (0, 1, "barrier", 0),
        (1, 1, "rows", 2),
        (2, 1, "rows", 2),
        (3, 2, "barrier", 0),
        (4, 2, "rows", 2),
    ]
    assert [row["bytes"] for row in rows] == [wal_file(written, n).stat().st_size for n in range(5)]
    assert rows[2]["attempt"] == "attempt-1"
    assert rows[2]["sources"] == [{"topic": "orders", "partition": 3, "start": 10, "until": 12}]
    assert (rows[1]["attempt"], rows[1]["sources"]) == (None, [])
    assert len({row["entry"] for row in rows}) == 5


def test_text_has_one_aligned_line_per_entry(headgate: Headgate, written: TableHome) -> None:
    head, *lines = headgate("wal", "tail", written.uri, str(SHARD), "--from", "0").stdout.splitlines()
    assert head.split() == ["position", "epoch", "kind", "rows", "bytes", "attempt", "sources"]
    assert [line.split()[:4] for line in lines] == [
        ["0", "1", "barrier", "0"],
        ["1", "1", "rows", "2"],
        ["2", "1", "rows", "2"],
        ["3", "2", "barrier", "0"],
        ["4", "2", "rows", "2"],
    ]
    assert lines[2].endswith("orders/3 [10, 12)")
    assert lines[2].index("attempt-1") == head.index("attempt")


def test_it_starts_where_replay_would_and_limit_counts_entries(headgate: Headgate, written: TableHome) -> None:
    tail = ["wal", "tail", written.uri, str(SHARD), "--output", "json"]
    assert positions_of(headgate(*tail)) == [1, 2, 3, 4]
    advance(written, 2)
    assert positions_of(headgate(*tail)) == [3, 4, 5]
    assert positions_of(headgate(*tail, "--limit", "2")) == [3, 4]
    assert positions_of(headgate(*tail, "--from", "9")) == []


def test_entries_that_sstables_cover_may_be_gone(headgate: Headgate, written: TableHome) -> None:
    advance(written, 2)
    wal_file(written, 1).unlink()
    result = headgate("wal", "tail", written.uri, str(SHARD), "--from", "0", "--output", "json")
    assert (positions_of(result), result.exit_code) == ([0, 2, 3, 4, 5], 0)


@pytest.mark.parametrize("output", ["text", "json"])
def test_a_hole_ends_the_list_and_is_named_with_exit_code_6(
    headgate: Headgate, written: TableHome, output: str
) -> None:
    wal_file(written, 2).unlink()
    result = headgate("wal", "tail", written.uri, str(SHARD), "--output", output)
    assert result.exit_code == 6
    assert "entry 2 is missing" in result.stderr
    assert "Traceback" not in result.output
    if output == "json":
        assert positions_of(result) == [1]
        assert json.loads(result.stderr)["where"]["position"] == 2


def test_a_damaged_entry_is_named_with_exit_code_6(headgate: Headgate, written: TableHome) -> None:
    for position, start in ((2, "1"), (0, "0")):
        path = wal_file(written, position)
        path.write_bytes(path.read_bytes()[:-20])
        result = headgate("wal", "tail", written.uri, str(SHARD), "--from", start, "--output", "json")
        told = json.loads(result.stderr)
        assert (result.exit_code, told["error"], told["where"]["position"]) == (6, "Corrupt", position)


@pytest.mark.parametrize(("shard", "code"), [("orders", 2), (str(uuid.UUID(int=1)), 3), ("../../etc", 2)])
def test_a_shard_that_is_not_there_is_refused_with_the_way_to_the_list(
    headgate: Headgate, written: TableHome, shard: str, code: int
) -> None:
    result = headgate("wal", "tail", written.uri, shard)
    assert result.exit_code == code
    assert f"headgate shard show {written.uri}" in result.stderr


def test_it_writes_nothing(headgate: Headgate, written: TableHome) -> None:
    before = files_of(written)
    assert headgate("wal", "tail", written.uri, str(SHARD), "--from", "0").exit_code == 0
    assert files_of(written) == before


def read_lines(stream: Any, count: int) -> Sequence[int]:
    return [json.loads(stream.readline())["position"] for _ in range(count)]


def test_follow_shows_new_entries_and_a_running_writer_continues(table: TableHome) -> None:
    with opened(table) as writer:
        writer.put(ROWS)
        with started("wal", "tail", table.uri, str(SHARD), "--follow", "--output", "json") as process:
            assert read_lines(process.stdout, 1) == [1]
            for _ in range(3):
                writer.put(ROWS)
            assert read_lines(process.stdout, 3) == [2, 3, 4]
            writer.put(ROWS)
            assert read_lines(process.stdout, 1) == [5]
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
        assert writer.put(ROWS).positions == (6,)
    assert table.shard(SHARD).manifests.latest().epoch == 1  # type: ignore[union-attr]


@pytest.mark.parametrize("output", ["text", "json"])
def test_a_reader_that_goes_away_ends_it_silently(table: TableHome, output: str) -> None:
    with opened(table) as writer:
        writer.put(ROWS)
        with started("wal", "tail", table.uri, str(SHARD), "--follow", "--output", output) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.readline()
            process.stdout.close()
            writer.put(ROWS)
            assert process.wait(60) == 1
            assert process.stderr.read() == ""


def test_native_entries_are_shown(headgate: Headgate, tmp_path: Path) -> None:
    uri = str(tmp_path / "native")
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string())])
    dataset = lance.write_dataset(pa.Table.from_pylist([], schema), uri)
    dataset.initialize_mem_wal(unsharded=True)
    for _ in range(2):
        with dataset.mem_wal_writer(str(SHARD), max_wal_flush_interval_ms=1) as writer:
            writer.put(pa.record_batch([pa.array([1, 2], pa.int64()), pa.array(["a", "b"])], schema=schema))
    rows = rows_of(headgate("wal", "tail", uri, str(SHARD), "--from", "0", "--output", "json"))
    assert headgate("shard", "show", uri, str(SHARD)).exit_code == 0
    assert [(row["position"], row["kind"], row["rows"], row["entry"]) for row in rows] == [
        (1, "rows", 2, None),
        (2, "barrier", 0, None),
        (3, "rows", 2, None),
    ]


def test_a_table_of_headgate_is_read_by_shard_name_also_where_its_base_is_damaged(
    headgate: Headgate, tmp_path: Path
) -> None:
    table = create_table(str(tmp_path / "t"), ROWS.schema, wal_uri=str(tmp_path / "wal"))
    (name,) = table.sharding.known_names()
    with table.writer(name) as writer:
        writer.put(ROWS)
    for manifest in (tmp_path / "t" / "_versions").iterdir():
        manifest.write_bytes(b"damaged")
    result = headgate("wal", "tail", table.uri, name, "--output", "json")
    assert [(row["position"], row["rows"]) for row in rows_of(result)] == [(1, 2)]
    shown = json.loads(headgate("shard", "show", table.uri, name, "--output", "json").stdout)
    assert (shown["name"], shown["native_safe"], shown["unflushed_entries"]) == (name, False, 1)
