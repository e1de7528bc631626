"""A key lives in one shard: `upsert` and `delete` route by themselves, and a direct writer refuses strangers."""

from __future__ import annotations

import pickle
from pathlib import Path

import duckdb
import lance
import pandas
import polars
import pyarrow as pa
import pytest

from headgate.checkpoints.stream.driver import StreamDriver
from headgate.errors import Fenced, InvalidInput
from headgate.shards.bucket import bucket_ids
from headgate.shards.config import WriterConfig
from headgate.shards.sharding import Sharding, bucket, by_partition, single
from headgate.shards.wal.appender import WalAppender
from headgate.shards.wal.encoder import encode_rows
from headgate.table.create import create_table
from headgate.table.fsck import fsck
from headgate.table.table import Table, open_table
from tests.support.tables import claimed

SCHEMA = pa.schema([pa.field("id", pa.int64(), False), pa.field("note", pa.string())])
SHARDINGS = [single(), bucket("id", 4)]
WAL_ONLY = WriterConfig(enable_memtable=False)


def _rows(ids: range | list[int], note: str) -> pa.Table:
    return pa.table({"id": list(ids), "note": [note] * len(ids)}, schema=SCHEMA)


def _keys(*ids: int) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(ids, pa.int64())})


def _pairs(table: Table) -> list[tuple[int, str]]:
    return sorted((row["id"], row["note"]) for row in table.scan().read_all().to_pylist())


def _bucket(id: int, n: int = 4) -> int:
    return int(bucket_ids(pa.array([id], pa.int64()), n)[0].as_py())


def _of_bucket(wanted: int, n: int = 4) -> int:
    return next(id for id in range(1000) if _bucket(id, n) == wanted)


def _epochs(table: Table) -> dict[str | None, int]:
    return {info.name: info.epoch for info in claimed(table)}


@pytest.mark.parametrize("sharding", SHARDINGS, ids=str)
def test_rows_are_routed_and_the_last_row_of_a_key_counts(tmp_path: Path, sharding: Sharding) -> None:
    with create_table(str(tmp_path / "t"), SCHEMA, primary_key="id", sharding=sharding) as table:
        lance.write_dataset(_rows([0, 100], "base").cast(table.schema), table.uri, mode="append")
        table.upsert(_rows(range(50), "first"))
        table.upsert([*_rows(range(10), "old").to_batches(), *_rows(range(20), "new").to_batches()])
        table.delete(_keys(3, 40, 100, 999))
        opened = _epochs(table)
        table.upsert(_rows([40], "again"))
        table.upsert(SCHEMA.empty_table())
        assert _epochs(table) == opened, "writers stay open: each open leaves a barrier for ever"
        assert set(opened.values()) == {1}
        expected = {id: "new" if id < 20 else "first" for id in range(50) if id != 3} | {40: "again"}
        assert _pairs(table) == sorted(expected.items())
    assert _pairs(open_table(table.uri)) == sorted(expected.items())
    report = fsck(table.uri)
    assert not report.findings, report.findings
    assert set(opened) == set(sharding.known_names())


def test_writers_are_closed_with_the_table_and_opened_again_when_needed(tmp_path: Path) -> None:
    table = create_table(str(tmp_path / "t"), SCHEMA, primary_key="id")
    table.close()
    assert claimed(table) == [], "nothing was opened"
    table.upsert(_rows([1], "a"))
    table.close()
    table.close()
    table.upsert(_rows([2], "b"))
    assert _epochs(table) == {"single": 2}
    table.flush()
    table.compact()
    table.upsert(_rows([3], "c"))
    assert _pairs(table) == [(1, "a"), (2, "b"), (3, "c")], "a flush lets go of the table's own writers first"
    other = pickle.loads(pickle.dumps(table))
    other.upsert(_rows([4], "d"))
    with pytest.raises(Fenced):
        table.upsert(_rows([5], "e"))
    with pytest.raises(Fenced):
        table.close()
    table.upsert(_rows([5], "e"))
    other.close()
    table.close()
    assert _pairs(table) == [(1, "a"), (2, "b"), (3, "c"), (4, "d"), (5, "e")]


def test_columns_that_were_added_are_written(tmp_path: Path) -> None:
    with create_table(str(tmp_path / "t"), SCHEMA, primary_key="id") as table:
        table.upsert(_rows([1], "a"))
        wide = table.add_column(pa.field("size", pa.int64()))
        wide.upsert(
            pa.table({"id": [2], "note": ["b"], "size": [20]}, schema=pa.schema([*SCHEMA, ("size", pa.int64())]))
        )
        wide.upsert(_rows([3], "c"))
        found = wide.scan().read_all().sort_by("id").to_pylist()
        assert [row["size"] for row in found] == [None, 20, None]
        assert _epochs(table) == {"single": 2}


@pytest.mark.parametrize("config", [WriterConfig(), WAL_ONLY], ids=["memtable", "wal_only"])
def test_a_writer_of_a_bucket_refuses_rows_of_another(tmp_path: Path, config: WriterConfig) -> None:
    table = create_table(str(tmp_path / "t"), SCHEMA, primary_key="id", sharding=bucket("id", 4))
    own, other = _of_bucket(1), _of_bucket(3)
    for shard in ("bucket-00001", table.shard("bucket-00001").id):
        with table.writer(shard, config) as writer:
            writer.put(_rows([own], "own"))
            before = writer.stats().next_position
            for refused in (
                lambda: writer.put(_rows([own, other], "other")),
                lambda: writer.delete(_keys(other)),
                lambda: writer.append(table.home.schema.stored_rows(_rows([other], "other"))),
            ):
                with pytest.raises(InvalidInput, match=r"bucket 3.*bucket 1") as error:
                    refused()
                assert "'id'" in error.value.what
                assert "upsert" in str(error.value.advice)
            assert (writer.stats().next_position, writer.stats().pipeline.pending_puts) == (before, 0)
            writer.delete(_keys(own))
            writer.put(_rows([own], "again"))
    assert _pairs(table) == [(own, "again")]


def test_without_a_key_any_shard_takes_any_row(tmp_path: Path) -> None:
    """There a row in another bucket is shown once all the same."""
    table = create_table(str(tmp_path / "t"), SCHEMA, sharding=bucket("id", 4))
    with table.writer("bucket-00001") as writer:
        writer.put(_rows([_of_bucket(3)], "here"))
    assert len(_pairs(table)) == 1
    assert not fsck(table.uri).findings


def _stray(table: Table, shard: str, *ids: int) -> None:
    """What a writer of an earlier release, or native Lance, may have put into any shard."""
    stored = table.home.schema.stored_rows(_rows(list(ids), "stray"))
    WalAppender.open(table.home.shard(shard)).append([encode_rows(stored)])


@pytest.mark.parametrize("flushed", [False, True], ids=["entry", "sstable"])
def test_fsck_finds_keys_in_the_wrong_shard(tmp_path: Path, flushed: bool) -> None:
    table = create_table(str(tmp_path / "t"), SCHEMA, primary_key="id", sharding=bucket("id", 4))
    key = _of_bucket(3)
    with table:
        table.upsert(_rows([key], "right"))
    _stray(table, "bucket-00001", _of_bucket(1), key, key)
    assert len(_pairs(table)) == 3, "the harm: the key is shown twice"
    if flushed:
        table.flush()
    (found,) = fsck(table.uri).findings
    assert (found.code, found.is_error) == ("key-in-wrong-shard", True)
    assert "bucket 1" in found.what
    assert "'id'" in found.what
    assert str(table.shard("bucket-00001").id) in found.place
    # The remedy that it names.
    table.flush()
    table.compact()
    with table:
        table.upsert(_rows([key], "right"))
    assert _pairs(table) == sorted([(_of_bucket(1), "stray"), (key, "right")])
    assert not fsck(table.uri).findings


def test_what_cannot_be_routed_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    plain = create_table(str(tmp_path / "plain"), SCHEMA, sharding=bucket("id", 4))
    with pytest.raises(InvalidInput, match="no primary key") as error:
        plain.upsert(_rows([1], "a"))
    assert "table.writer" in str(error.value.advice)
    with pytest.raises(InvalidInput, match="no primary key"):
        plain.delete(_keys(1))
    parts = create_table(
        str(tmp_path / "parts"), SCHEMA, primary_key="id", sharding=by_partition(key_is_partitioned=True)
    )
    with pytest.raises(InvalidInput, match="topic partition") as error:
        parts.upsert(_rows([1], "a"))
    assert "partition:TOPIC:N" in str(error.value.advice)
    keyed = create_table(str(tmp_path / "keyed"), SCHEMA, primary_key="id", sharding=bucket("id", 4))
    with pytest.raises(InvalidInput, match="Column 'other' not found"):
        keyed.upsert(pa.table({"other": [1]}))
    with pytest.raises(InvalidInput, match="exactly the key columns"):
        keyed.delete(_rows([1], "a"))
    at = keyed.checkpoint(name="then")
    with pytest.raises(InvalidInput, match="is read-only"):
        open_table(keyed.uri, checkpoint=at.name).upsert(_rows([1], "a"))
    assert [claimed(table) for table in (plain, parts, keyed)] == [[], [], []]


def test_a_stream_s_shards_are_its_own(tmp_path: Path) -> None:
    """R16: also where it owns only one of the shards, nothing is claimed of the others."""
    sharding = bucket("id", 2)
    table = create_table(str(tmp_path / "t"), SCHEMA, primary_key="id", sharding=sharding)
    StreamDriver.open(table.home, "s", "query", [sharding.shard_name(1)])
    rows = pa.record_batch({"id": [_of_bucket(0, 2), _of_bucket(1, 2)], "note": ["a", "b"]}, schema=SCHEMA)
    with pytest.raises(InvalidInput, match="stream 's'"):
        table.upsert(rows)
    with pytest.raises(InvalidInput, match="stream 's'"):
        table.delete(rows.select(["id"]))
    assert _epochs(table) == {"bucket-00001": 1}
    table.upsert(rows.slice(0, 1))
    table.close()


def test_upsert_takes_the_frames_that_other_libraries_export(tmp_path: Path) -> None:
    columns = "id bigint not null, note string"
    with create_table(tmp_path / "t", columns, primary_key="id") as table:
        table.upsert(polars.DataFrame({"id": [1, 2], "note": ["a", None]}))
        table.upsert(duckdb.sql("select 3::bigint id, 'c' note"))
        table.upsert(pandas.DataFrame({"id": [4], "note": ["d"]}))
        table.upsert(table)
        assert table.to_arrow().sort_by("id").column("note").to_pylist() == ["a", None, "c", "d"]
        with pytest.raises(InvalidInput, match="from_pylist"):
            table.upsert([{"id": 5}])
        with pytest.raises(InvalidInput, match="must be int64"):
            table.upsert(polars.DataFrame({"id": ["5"]}))
