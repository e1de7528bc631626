"""Compaction of every kind of column and key, on S3 too, of streams that were stopped, and of clones."""

from __future__ import annotations

import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import headgate
from headgate.checkpoints.jobs.flush import run_here
from headgate.checkpoints.jobs.policy import BasePolicy
from headgate.checkpoints.stream.checkpoint import stop_stream
from headgate.errors import Fenced
from headgate.steps import watching
from headgate.table.create import create_table
from headgate.table.table import open_table
from tests.support.compactions import CONFIG, claimed, in_base, layered, make_table, one_round, scanned
from tests.support.datasets import pairs
from tests.support.services import S3_SECRETS
from tests.support.stores import Crash
from tests.support.tables import ids, manifest_of, of_batches, open_stream, run_batch, shard_of
from tests.support.tables import make as make_streamed

COLUMNS = pa.schema(
    [
        pa.field("id", pa.int64(), False),
        pa.field("point", pa.struct([pa.field("x", pa.int32()), pa.field("tags", pa.list_(pa.string()))])),
        pa.field("vector", pa.list_(pa.float32(), 2)),
        pa.field("when", pa.timestamp("us", "UTC")),
        pa.field("data", pa.large_binary()),
        pa.field("price", pa.decimal128(10, 2)),
        pa.field("needed", pa.string(), False),
    ]
)


def full_row(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "point": None if number % 3 == 0 else {"x": number, "tags": ["a", None, str(number)]},
        "vector": [number, number + 0.5],
        "when": None if number % 2 else 1_700_000_000_000_000 + number,
        "data": b"\x00" * number,
        "price": None if number % 4 == 0 else Decimal(number) / 4,
        "needed": f"n{number}",
    }


@pytest.mark.parametrize("key", ["id", None])
def test_columns_of_every_kind_keep_their_values(tmp_path: Path, key: str | None) -> None:
    table = create_table(str(tmp_path / "t"), COLUMNS, primary_key=key)
    with table.writer("single", CONFIG) as writer:
        for start in (0, 10):
            found = [full_row(number) for number in range(start, start + 10)]
            writer.put(pa.RecordBatch.from_pylist(found, schema=table.schema))
            writer.flush_memtable()
        if key:
            writer.delete(pa.record_batch({"id": pa.array([3], pa.int64())}))
            writer.flush_memtable()
    before = table.scan().read_all().sort_by("id").to_pylist()
    assert len(before) == (19 if key else 20)
    table.compact()
    assert lance.dataset(table.uri).to_table().sort_by("id").to_pylist() == before
    assert table.scan().read_all().sort_by("id").to_pylist() == before


KEY_TYPES = [
    pa.int8(),
    pa.uint64(),
    pa.bool_(),
    pa.string(),
    pa.large_string(),
    pa.binary(),
    pa.large_binary(),
]


@pytest.mark.parametrize("kind", KEY_TYPES, ids=str)
def test_keys_of_every_kind_meet_their_rows(tmp_path: Path, kind: pa.DataType) -> None:
    schema = pa.schema([pa.field("k", kind, False), pa.field("part", pa.int64(), False), pa.field("n", pa.int64())])
    table = create_table(str(tmp_path / "t"), schema, primary_key=["k", "part"])
    values = pa.array([0, 1], pa.int8()).cast(pa.string() if "binary" in str(kind) else kind).cast(kind)

    def rows(part: int, n: int) -> pa.RecordBatch:
        return pa.record_batch([values, pa.array([part] * 2), pa.array([n, n + 1])], schema=table.schema)

    with table.writer("single", CONFIG) as writer:
        writer.put(rows(1, 10))
        writer.put(rows(2, 20))
        writer.flush_memtable()
    table.compact()
    with table.writer("single", CONFIG) as writer:
        writer.put(rows(1, 30))
        writer.delete(rows(2, 0).select(["k", "part"]).slice(0, 1))
        writer.flush_memtable()
    done = table.compact()
    assert (done.rows, done.deleted) == (2, 1)
    found = lance.dataset(table.uri).to_table()
    assert sorted(zip(found["part"].to_pylist(), found["n"].to_pylist(), strict=True)) == [(1, 30), (1, 31), (2, 21)]


# -- stores ----------------------------------------------------------------------------------


@pytest.mark.s3
@pytest.mark.parametrize("key", ["id", None])
def test_on_s3_it_is_the_same(s3_options: dict[str, str], bucket: str, key: str | None) -> None:
    kind = "key" if key else "no key"
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("note", pa.string())])
    uri = f"s3://{bucket}/t"
    table = create_table(uri, schema, primary_key=key, storage_options=s3_options)
    expected = layered(table, kind)
    table.compact(policy=BasePolicy(max_small=2))
    assert scanned(table) == expected
    native = lance.dataset(uri, storage_options=s3_options)
    assert pairs(native.to_table()) == [pair for pair in expected if pair[1] != "tail"]
    assert not any(secret in str(native.config()) for secret in S3_SECRETS)


# -- streams -----------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["id", None])
def test_a_stream_that_stopped_cleanly_is_compacted_and_native_still_opens_its_shards(
    tmp_path: Path, key: str | None
) -> None:
    table = make_streamed(tmp_path, key=key)
    driver = open_stream(table)
    for number in range(3):
        run_batch(driver, number)
        driver.flushed(run_here(driver.flush_jobs(1)))
    stop_stream(driver, table.shard_ids(), run_here, max_bytes=1 << 20, keep=1)
    done = table.compact()
    assert done.sstables == 6
    assert ids(table) == of_batches(range(3))
    for partition in (0, 1):
        manifest = manifest_of(shard_of(table, partition))
        assert (manifest.sealed, manifest.owner, manifest.sstables) == (False, "s", ())
        lance.dataset(table.uri).mem_wal_writer(str(manifest.shard_id)).close()
    assert lance.dataset(table.uri).count_rows() == len(list(of_batches(range(3)).elements()))


def test_a_stream_that_runs_is_fenced_by_a_compaction_and_nothing_of_it_is_lost(tmp_path: Path) -> None:
    table = make_streamed(tmp_path)
    driver = open_stream(table)
    run_batch(driver, 0)
    driver.flushed(run_here(driver.flush_jobs(1)))
    run_batch(driver, 1)
    table.compact()
    assert ids(table) == of_batches(range(2))
    assert all(manifest_of(shard_of(table, partition)).sealed for partition in (0, 1)), "it was not stopped"
    with pytest.raises(Fenced):
        driver.settle(run_here, 1 << 20)
    again = open_stream(table)
    run_batch(again, 2)
    assert ids(table) == of_batches(range(3))


def test_a_clone_taken_while_an_append_is_unfinished_reads_compacts_and_is_tidied(tmp_path: Path) -> None:
    """Its base carries the notes of its parent's shards, and versions of its own."""
    for step, deep in (("append", False), ("append", True), ("finish", False), ("finish", True)):
        table = make_table(tmp_path / f"{step}{deep}", "no key")
        expected = layered(table, "no key")

        def pause(reached: str, step: str = step) -> None:
            if reached == step:
                raise Crash(step)

        with pytest.raises(Crash):
            with watching(pause):
                one_round(claimed(table))
        clone = table.clone(str(tmp_path / f"clone-{step}{deep}"), deep=deep)
        assert scanned(clone) == expected
        clone.flush()
        done = clone.compact(policy=BasePolicy(keep_versions=BasePolicy().keep_versions * 0))
        assert scanned(clone) == in_base(clone) == expected
        assert done.tidied is not None
        assert done.tidied.versions_removed > 0
        assert scanned(open_table(table.uri)) == expected
        headgate.open_table(table.uri).compact()
        assert scanned(table) == expected


# -- memory --------------------------------------------------------------------------------------

COMPACTING = """
import resource, sys
from headgate.table.table import open_table
open_table(sys.argv[1]).compact()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.deep
@pytest.mark.parametrize("kind", ["key", "no key"])
def test_memory_is_bounded_by_the_sstables_and_not_by_the_base(tmp_path: Path, kind: str) -> None:
    """The same SSTables over a small and a large base, each compacted by a process of its own.

    Lance reads ahead of the base's key columns, a few bytes a row; a join that collected the base took 60.
    """
    peaks = []
    for count in (10_000, 8_000_000):
        table = make_table(tmp_path / f"{count}", kind)
        for start in range(0, count, 1_000_000):
            ids = pa.array(range(start, min(count, start + 1_000_000)), pa.int64())
            rows = pa.table([ids, ids.cast(pa.string())], schema=table.schema)
            lance.write_dataset(rows, table.uri, mode="append")
        layered(table, kind)
        done = subprocess.run(
            [sys.executable, "-c", COMPACTING, table.uri], capture_output=True, text=True, check=True, timeout=600
        )
        peaks.append(int(done.stdout.split()[-1]) / 1024)
    small, large = peaks
    assert large - small < 24 * 8, f"{small:.0f} MB over the small base, {large:.0f} MB over the large one"
