from __future__ import annotations

import json
from pathlib import Path

import pytest

from headgate.shards.config import WriterConfig
from headgate.shards.shard import TableHome
from headgate.shards.sharding import by_partition
from headgate.shards.wal.appender import WalAppender
from headgate.shards.writer import ShardWriter
from headgate.table.create import create_table
from tests.cli.calls import ROWS, SHARD, Headgate, files_of, opened, wal_file
from tests.support.streams import COLUMNS, Stream


def test_json_shows_manifest_and_wal_of_one_shard(headgate: Headgate, written: TableHome) -> None:
    result = headgate("shard", "show", written.uri, str(SHARD), "--output", "json")
    shown = json.loads(result.stdout)
    stored = written.shard(SHARD).manifests.latest()
    assert stored is not None
    assert shown == {
        "shard": str(SHARD),
        "name": None,
        "manifest_version": stored.version,
        "epoch": 2,
        "claim": stored.claim_id,
        "owner": None,
        "sealed": False,
        "native_safe": True,
        "replay_after": 0,
        "last_seen": 4,
        "generation": 1,
        "sstable_count": 0,
        "tip": 5,
        "unflushed_entries": 4,
        "unflushed_bytes": sum(wal_file(written, position).stat().st_size for position in (1, 2, 3, 4)),
        "strays": 0,
        "sstables": [],
        "problems": [],
    }
    assert result.exit_code == 0


def test_text_shows_the_same(headgate: Headgate, written: TableHome) -> None:
    shown = headgate("shard", "show", written.uri, str(SHARD)).stdout
    facts = dict(line.strip("│ ").split("│") for line in shown.splitlines() if "│" in line)
    facts = {name.strip(): value.strip() for name, value in facts.items()}
    assert facts.items() >= {"epoch": "2", "owner": "-", "native_safe": "yes", "tip": "5", "last_seen": "4"}.items()


def test_without_a_shard_every_one_is_a_row(headgate: Headgate, written: TableHome) -> None:
    other = written.shard("00000000-0000-0000-0000-000000000001")
    WalAppender.open(other, owner="orders")
    lines = headgate("shard", "show", written.uri, "--output", "json").stdout.splitlines()
    first, second = map(json.loads, lines)
    assert (first["shard"], first["owner"], first["sealed"], first["native_safe"]) == (
        str(other.id),
        "orders",
        True,
        False,
    )
    assert second == json.loads(headgate("shard", "show", written.uri, str(SHARD), "--output", "json").stdout)
    head, *rows = headgate("shard", "show", written.uri).stdout.splitlines()
    assert head.startswith("shard ")
    assert [row.split()[0] for row in rows] == [str(other.id), str(SHARD)]


def test_flushed_generations_are_shown_and_covered_entries_do_not_count(headgate: Headgate, tmp_path: Path) -> None:
    import lance

    uri = str(tmp_path / "base")
    lance.write_dataset(ROWS.slice(0, 0), uri)
    with ShardWriter.open(uri, SHARD, WriterConfig()) as writer:
        writer.put(ROWS)
        writer.flush_memtable()
        writer.put(ROWS)
    shown = json.loads(headgate("shard", "show", uri, str(SHARD), "--output", "json").stdout)
    assert (shown["replay_after"], shown["tip"], shown["unflushed_entries"], shown["generation"]) == (1, 3, 1, 2)
    assert [(one["generation"], one["rows"]) for one in shown["sstables"]] == [(1, 2)]
    assert "sstables" in headgate("shard", "show", uri, str(SHARD)).stdout


@pytest.mark.parametrize("arguments", [[str(SHARD)], []])
@pytest.mark.parametrize("output", ["text", "json"])
def test_a_hole_is_named_as_data_loss_with_exit_code_6(
    headgate: Headgate, written: TableHome, arguments: list[str], output: str
) -> None:
    wal_file(written, 2).unlink()
    result = headgate("shard", "show", written.uri, *arguments, "--output", output)
    assert result.exit_code == 6
    assert "The WAL has a hole: entry 2 is missing." in result.stdout
    if output == "json":
        (problem,) = json.loads(result.stdout)["problems"]
        assert problem["error"] == "DataLoss"


def test_missing_entries_at_the_end_are_known_by_what_the_manifest_has_seen(
    headgate: Headgate, written: TableHome
) -> None:
    wal_file(written, 3).unlink()
    wal_file(written, 4).unlink()
    result = headgate("shard", "show", written.uri, str(SHARD), "--output", "json")
    assert result.exit_code == 6
    assert json.loads(result.stdout)["problems"][0]["what"] == "The WAL has a hole: entries 3 to 4 are missing."


def test_a_damaged_manifest_is_named_and_the_wal_is_still_shown(headgate: Headgate, written: TableHome) -> None:
    manifests = sorted((Path(written.uri) / f"_mem_wal/{SHARD}/manifest").glob("*.binpb"))
    for path in manifests:
        path.write_bytes(b"damaged")
    result = headgate("shard", "show", written.uri, str(SHARD), "--output", "json")
    shown = json.loads(result.stdout)
    assert (result.exit_code, shown["problems"][0]["error"], shown["epoch"], shown["tip"]) == (6, "Corrupt", None, 5)
    for path in manifests:
        path.unlink()
    result = headgate("shard", "show", written.uri, str(SHARD), "--output", "json")
    assert result.exit_code == 6
    assert json.loads(result.stdout)["problems"][0]["what"] == "The shard has WAL entries, but no manifest."


def test_it_writes_nothing_and_a_running_writer_continues(headgate: Headgate, written: TableHome) -> None:
    with opened(written) as writer:
        writer.put(ROWS)
        before = files_of(written)
        assert headgate("shard", "show", written.uri).exit_code == 0
        assert files_of(written) == before
        writer.put(ROWS)


def test_a_table_without_shards_is_not_found(headgate: Headgate, tmp_path: Path) -> None:
    result = headgate("shard", "show", str(tmp_path), "--output", "json")
    assert (result.exit_code, json.loads(result.stderr)["error"]) == (3, "NotFound")


def test_every_shard_of_a_partitioned_table_has_its_name(headgate: Headgate, tmp_path: Path) -> None:
    table = create_table(str(tmp_path / "t"), COLUMNS, sharding=by_partition())
    Stream(table, "orders", partitions=2)
    lines = headgate("shard", "show", table.uri, "--output", "json").stdout.splitlines()
    assert [json.loads(line)["name"] for line in lines] == ["partition:orders:0", "partition:orders:1"]
    # A log that cannot be read tells no name, and hinders nothing.
    for record in (tmp_path / "t").rglob("log/*.json"):
        record.write_bytes(b"junk")
    lines = headgate("shard", "show", table.uri, "--output", "json").stdout.splitlines()
    assert [json.loads(line)["name"] for line in lines] == [None, None]
