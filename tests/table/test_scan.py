"""table.scan and table.get: base, SSTables and the visible tail at one instant (R11)."""

from __future__ import annotations

import subprocess
import sys
import threading
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance import CompactedSsTable

from headgate.checkpoints.log.commit_log import CommitLog
from headgate.checkpoints.log.records import Batch, ShardClaim, ShardPart
from headgate.checkpoints.log.state import fold
from headgate.checkpoints.snapshots.snapshot import read_snapshot
from headgate.errors import DataLoss, InvalidInput
from headgate.shards.config import WriterConfig
from headgate.shards.sharding import Sharding, bucket, by_partition, single
from headgate.shards.wal.appender import WalAppender
from headgate.shards.wal.encoder import encode_rows
from headgate.shards.wal.entry import Tags
from headgate.steps import watching
from headgate.table.create import create_table
from headgate.table.table import Table, open_table

SCHEMA = pa.schema([pa.field("id", pa.int64(), False), pa.field("note", pa.string())])
WAL_ONLY = WriterConfig(enable_memtable=False)
OF_BUCKETS = [(2, 3, 4), (0, 12, 14), (1, 5, 6)]
"""Ids that belong to each of three buckets."""


def _rows(*pairs: tuple[int, str]) -> pa.Table:
    return pa.table([pa.array([i for i, _ in pairs], pa.int64()), pa.array([n for _, n in pairs])], schema=SCHEMA)


def _keys(*ids: int) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(ids, pa.int64())})


def _pairs(rows: Any) -> list[tuple[int, str]]:
    table = rows.read_all() if isinstance(rows, pa.RecordBatchReader) else rows
    return sorted(zip(table.column("id").to_pylist(), table.column("note").to_pylist(), strict=True))


def _add_to_base(table: Table, *pairs: tuple[int, str]) -> None:
    lance.write_dataset(_rows(*pairs).cast(table.schema), table.uri, mode="append")


@pytest.fixture(params=["keyed", "plain"])
def key(request: pytest.FixtureRequest) -> str | None:
    return "id" if request.param == "keyed" else None


@pytest.mark.parametrize("sharding", [single(), bucket("id", 3)], ids=["single", "bucket"])
@pytest.mark.parametrize("mode", [WriterConfig(), WAL_ONLY], ids=["memtable", "wal_only"])
def test_a_scan_shows_base_sstables_and_tail_of_every_shard(
    tmp_path: Path, key: str | None, sharding: Sharding, mode: WriterConfig
) -> None:
    table = create_table(str(tmp_path / "t"), SCHEMA, primary_key=key, sharding=sharding)
    _add_to_base(table, (100, "base"), (101, "base"))
    expected = [(100, "base"), (101, "base")]
    names = sharding.known_names()
    writers = [table.writer(name, mode) for name in names]
    for (first, second, _), writer in zip(OF_BUCKETS, writers, strict=False):
        writer.put(_rows((first, "flushed")))
        if mode.enable_memtable:
            writer.flush_memtable()
        writer.put(_rows((second, "tail")))
        expected += [(first, "flushed"), (second, "tail")]
    assert _pairs(table.scan()) == sorted(expected)
    assert _pairs(open_table(table.uri).scan()) == sorted(expected)
    assert _pairs(table.scan(filter="note = 'tail'")) == [pair for pair in sorted(expected) if pair[1] == "tail"]
    assert table.scan(columns=["note"]).schema.names == ["note"]
    # Nobody was fenced by all this reading.
    for (_, _, third), writer in zip(OF_BUCKETS, writers, strict=False):
        writer.put(_rows((third, "more")))
        writer.close()
    assert len(_pairs(table.scan())) == len(expected) + len(names)


def test_the_newest_row_of_a_key_counts_and_deletes_hide(tmp_path: Path) -> None:
    table = create_table(str(tmp_path / "t"), SCHEMA, primary_key="id")
    _add_to_base(table, (1, "base"), (2, "base"), (3, "base"), (4, "base"))
    with table.writer("single") as writer:
        writer.put(_rows((1, "sstable"), (5, "sstable")))
        writer.delete(_keys(2))
        writer.flush_memtable()
        writer.put(_rows((1, "tail")))
        writer.delete(_keys(3, 5))
        expected = [(1, "tail"), (4, "base")]
        assert _pairs(table.scan()) == _pairs(writer.scan()) == expected
        assert _pairs(table.get(_keys(1, 2, 3, 4, 5, 6))) == expected
        assert _pairs(table.scan(filter="note = 'sstable'")) == []


def test_a_table_without_a_key_has_no_lookup(tmp_path: Path) -> None:
    table = create_table(str(tmp_path / "t"), SCHEMA)
    with pytest.raises(InvalidInput):
        table.get(_keys(1))


def test_an_empty_table_is_empty(tmp_path: Path) -> None:
    table = create_table(str(tmp_path / "t"), SCHEMA, primary_key="id")
    assert _pairs(table.scan()) == []
    assert _pairs(table.get(_keys(1))) == []
    table.writer("single").close()
    assert _pairs(table.scan()) == []


def test_lance_hole_9_a_re_created_table_never_shows_old_rows(tmp_path: Path) -> None:
    table = create_table(str(tmp_path / "t"), SCHEMA, primary_key="id")
    with table.writer("single") as writer:
        writer.put(_rows((1, "old")))
        writer.flush_memtable()
        writer.put(_rows((2, "old")))
    lance.write_dataset(_rows((3, "base")).cast(table.schema), table.uri, mode="overwrite")
    again = create_table(table.uri, SCHEMA, primary_key="id")
    assert _pairs(again.scan()) == [(3, "base")]
    with again.writer("single") as writer:
        writer.put(_rows((4, "new")))
        assert _pairs(writer.scan()) == [(3, "base"), (4, "new")]
    assert _pairs(again.scan()) == [(3, "base"), (4, "new")]


def test_lance_hole_8_a_native_clone_is_refused_rather_than_shown_without_fresh_rows(tmp_path: Path) -> None:
    table = create_table(str(tmp_path / "t"), SCHEMA, primary_key="id")
    with table.writer("single") as writer:
        writer.put(_rows((1, "a")))
    clone = str(tmp_path / "clone")
    dataset = lance.dataset(table.uri)
    dataset.shallow_clone(clone, dataset.version)
    with pytest.raises(InvalidInput, match="clone"):
        open_table(clone)


def test_a_separate_wal_store_is_read(tmp_path: Path) -> None:
    table = create_table(str(tmp_path / "t"), SCHEMA, primary_key="id", wal_uri=str(tmp_path / "wal"))
    with table.writer("single") as writer:
        writer.put(_rows((1, "sstable")))
        writer.flush_memtable()
        writer.put(_rows((2, "tail")))
    assert _pairs(open_table(table.uri).scan()) == [(1, "sstable"), (2, "tail")]


# -- streams ------------------------------------------------------------------------------


class _Stream:
    """The driver's side of a stream, by hand: claims, entries, commit records."""

    def __init__(self, table: Table, names: tuple[str, ...]) -> None:
        self.table = table
        self.appenders = {name: WalAppender.open(table.shard(name), owner="s") for name in names}
        claims = {
            name: ShardClaim(a.shard.id, a.epoch, a.claim_id, a.next_position - 1) for name, a in self.appenders.items()
        }
        self.log = CommitLog(table.home.records, "s", table.uri).open("q", claims)
        self.batch = 0

    def append(self, name: str, *pairs: tuple[int, str]) -> ShardPart:
        appender, attempt = self.appenders[name], uuid.uuid4().hex
        chunk = encode_rows(self.table.home.schema.stored_rows(_rows(*pairs)))
        done = appender.append([chunk], Tags(attempt_id=attempt))
        return ShardPart(appender.shard.id, attempt, (done.position,), done.rows, done.nbytes)

    def commit(self, **parts: ShardPart) -> None:
        shards = {name.replace("_", "-"): part for name, part in parts.items()}
        self.log.commit(Batch(query_id="q", batch_id=self.batch, shards=shards), {})
        self.batch += 1


def test_a_batch_is_seen_when_its_record_is_there_in_all_shards_at_once(tmp_path: Path, key: str | None) -> None:
    table = create_table(str(tmp_path / "t"), SCHEMA, primary_key=key, sharding=bucket("id", 2))
    stream = _Stream(table, ("bucket-00000", "bucket-00001"))
    stream.append("bucket-00000", (1, "dead attempt"))
    parts = {
        name: stream.append(name.replace("_", "-"), (i, "a")) for i, name in enumerate(("bucket_00000", "bucket_00001"))
    }
    assert _pairs(table.scan()) == []
    stream.commit(**parts)
    assert _pairs(table.scan()) == [(0, "a"), (1, "a")]
    stream.append("bucket-00001", (3, "not committed"))
    assert _pairs(table.scan()) == [(0, "a"), (1, "a")]
    CommitLog(table.home.records, "s", table.uri).put_fold(
        fold(CommitLog(table.home.records, "s", table.uri).read(), {})
    )
    assert _pairs(table.scan()) == [(0, "a"), (1, "a")]


def test_a_batch_that_is_committed_between_the_reads_is_seen_whole_or_not_at_all(tmp_path: Path) -> None:
    table = create_table(str(tmp_path / "t"), SCHEMA, primary_key=None, sharding=bucket("id", 2))
    names = ("bucket-00000", "bucket-00001")
    stream = _Stream(table, names)
    ids = [table.shard(name).id for name in names]
    for step in ("manifests", "logs", "tails", "base"):
        done: list[str] = []

        def commit(at: str, step: str = step, done: list[str] = done) -> None:
            if at == step and not done:
                done.append(at)
                parts = [stream.append(name, (stream.batch, step)) for name in names]
                stream.commit(bucket_00000=parts[0], bucket_00001=parts[1])

        with watching(commit):
            shown = _pairs(read_snapshot(table.home, ids).scan())
        assert [note for _, note in shown].count(step) == (2 if step in ("manifests", "logs") else 0)
    assert len(_pairs(table.scan())) == 8


def test_an_entry_that_a_record_lists_and_that_is_missing_is_data_loss(tmp_path: Path) -> None:
    table = create_table(str(tmp_path / "t"), SCHEMA)
    stream = _Stream(table, ("single",))
    part = stream.append("single", (1, "a"))
    stream.commit(single=part)
    shard = table.shard("single")
    shard.wal.delete(shard.wal_key(part.positions[0]))
    with pytest.raises(DataLoss):
        table.scan().read_all()


@pytest.mark.parametrize("closed", [True, False])
def test_a_hole_of_any_width_in_a_direct_writers_wal_is_data_loss_for_every_reader(
    tmp_path: Path, closed: bool
) -> None:
    table = create_table(str(tmp_path / "t"), SCHEMA)
    writer = table.writer("single", WAL_ONLY)
    for i in range(30):
        writer.put(pa.table({"id": [i], "note": ["n"]}, schema=table.schema))
    if closed:
        writer.close()
    for position in range(2, 30):
        writer.shard.wal.delete(writer.shard.wal_key(position))
    for read in (lambda: table.scan().read_all(), lambda: table.checkpoint(name="lossy")):
        with pytest.raises(DataLoss) as caught:
            read()
        assert caught.value.position == 2


# -- the table moves while it is read ------------------------------------------------------


def _compact(table: Table, shard: str, generation: int, rows: pa.Table) -> None:
    merge = lance.dataset(table.uri).merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    mark = CompactedSsTable(str(table.shard(shard).id), generation)
    merge.mark_sstables_as_compacted([mark]).execute(rows.cast(table.schema))


@pytest.mark.parametrize("step", ["manifests", "logs", "tails", "base"])
@pytest.mark.parametrize("move", ["flush", "flush and collect", "flush and compact"])
def test_a_table_that_moves_between_the_reads_loses_and_doubles_no_row(tmp_path: Path, step: str, move: str) -> None:
    table = create_table(str(tmp_path / "t"), SCHEMA, primary_key="id")
    expected = [(i, "n") for i in range(12)]
    with table.writer("single", WriterConfig()) as writer:
        for pair in expected:
            writer.put(_rows(pair))
        moved: list[str] = []

        def act(at: str) -> None:
            if at != step or moved:
                return
            moved.append(at)
            writer.flush_memtable()
            if move == "flush and collect":
                for position in range(1, 12):
                    writer.shard.wal.delete(writer.shard.wal_key(position))
            if move == "flush and compact":
                _compact(table, "single", 1, _rows(*expected))
                lance.dataset(table.uri).delete("id = 0")

        with watching(act):
            shown = _pairs(read_snapshot(table.home, [writer.shard.id]).scan())
        assert shown == (expected[1:] if move == "flush and compact" else expected)
        assert moved


def test_scans_beside_a_writer_that_flushes_never_miss_and_never_double_a_row(tmp_path: Path) -> None:
    table = create_table(str(tmp_path / "t"), SCHEMA)
    failures: list[str] = []
    done, stop = 0, threading.Event()
    with table.writer("single", replace(WriterConfig(), max_memtable_rows=7)) as writer:

        def read() -> None:
            while not stop.is_set():
                before = done
                found = sorted(i for i, _ in _pairs(table.scan()))
                if found != list(range(len(found))) or len(found) < before:
                    failures.append(f"{before} rows were durable, a scan showed {found}")

        readers = [threading.Thread(target=read) for _ in range(2)]
        for reader in readers:
            reader.start()
        for i in range(60):
            writer.put(_rows((i, "n")))
            done = i + 1
        stop.set()
        for reader in readers:
            reader.join()
    assert not failures, failures[0]


def test_by_partition_shards_are_found_without_their_names(tmp_path: Path) -> None:
    table = create_table(str(tmp_path / "t"), SCHEMA, primary_key=None, sharding=by_partition())
    for partition in range(3):
        with table.writer(f"partition:topic:{partition}") as writer:
            writer.put(_rows((partition, "n")))
    assert _pairs(table.scan()) == [(0, "n"), (1, "n"), (2, "n")]


def test_columns_that_are_renamed_and_dropped_while_rows_wait_in_the_tail(tmp_path: Path) -> None:
    table = create_table(str(tmp_path / "t"), pa.schema([*SCHEMA, pa.field("x", pa.int32())]), primary_key="id")
    row = {"id": [1], "note": ["a"], "x": [1]}
    with table.writer("single") as writer:
        writer.put(pa.table(row, schema=table.schema))
        writer.flush_memtable()
        writer.put(pa.table({**row, "id": [2]}, schema=table.schema))
    dataset = lance.dataset(table.uri)
    dataset.alter_columns({"path": "note", "name": "remark"})
    dataset.drop_columns(["x"])
    rows = open_table(table.uri).scan(filter="remark = 'a'").read_all().sort_by("id").to_pylist()
    assert rows == [{"id": 1, "remark": "a"}, {"id": 2, "remark": "a"}]


# -- memory ----------------------------------------------------------------------------------

PEAK = """
import sys
from headgate.table.table import open_table
# ru_maxrss is no less than what the process held that started this one.
def most(): return int(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0])
table = open_table(sys.argv[1])
before = most()
rows = sum(batch.num_rows for batch in table.scan(filter=sys.argv[2] or None))
print(rows, most() - before)
"""


def _peak(uri: str, filter: str = "") -> tuple[int, int]:
    """Rows that a scan in a process of its own shows, and the kilobytes it took."""
    done = subprocess.run([sys.executable, "-c", PEAK, uri, filter], capture_output=True, text=True, check=True)
    rows, kilobytes = done.stdout.split()
    return int(rows), int(kilobytes)


def _large(path: Path, rows: int) -> str:
    """A base of that many rows of about 100 bytes, and a tail of a thousand updates."""
    table = create_table(str(path), SCHEMA, primary_key="id")
    chunk = 250_000
    for start in range(0, rows, chunk):
        ids = pa.array(range(start, start + chunk), pa.int64())
        notes = pa.array([f"{i:<90}" for i in range(start, start + chunk)])
        lance.write_dataset(pa.table([ids, notes], schema=table.schema), table.uri, mode="append")
    with table.writer("single") as writer:
        writer.put(_rows(*[(i, "new") for i in range(0, 2_000, 2)]))
        writer.flush_memtable()
        writer.put(_rows(*[(i, "new") for i in range(1, 2_000, 2)]))
    return table.uri


def test_a_scan_of_a_base_four_times_as_large_takes_no_more_memory(tmp_path: Path) -> None:
    small, large = _large(tmp_path / "small", 500_000), _large(tmp_path / "large", 2_000_000)
    rows, peak = _peak(small)
    assert rows == 500_000
    rows, larger = _peak(large)
    assert rows == 2_000_000
    # The larger base has 150 MB more.
    assert larger < peak + 75_000, f"{peak} kB for 500,000 rows, {larger} kB for 2,000,000"


@pytest.mark.deep
def test_a_scan_of_10_million_rows_takes_memory_by_the_tail_and_not_by_the_base(tmp_path: Path) -> None:
    uri = _large(tmp_path / "t", 10_000_000)
    rows, peak = _peak(uri)
    assert rows == 10_000_000
    assert peak < 400_000, f"{peak} kB for a base of 1 GB"
    assert _peak(uri, "note = 'new'")[0] == 2_000
