"""SSTables: newest rows and tombstones in a small dataset that native reads as its own, told by field id."""

from __future__ import annotations

import os
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from headgate.connectors.lance import datasets
from headgate.errors import DataLoss, Transient
from headgate.shards.rows.schema import TOMBSTONE
from headgate.shards.rows.sstable import open_sstable
from headgate.shards.writer import ShardWriter
from tests.support.datasets import (
    KEY,
    KEYED,
    MEMTABLE,
    PLAIN,
    batch,
    keys,
    make_table,
    native_pairs,
    native_writer,
    pairs,
)

SHARD = uuid.UUID(int=11)


def _only_sstable(writer: ShardWriter) -> Any:
    manifest = writer.shard.manifests.latest()
    assert manifest is not None
    (sstable,) = manifest.sstables
    return open_sstable(writer.shard, sstable).dataset


def test_it_holds_the_newest_row_of_each_key_and_deletes_as_tombstones(tmp_path: Path) -> None:
    uri = make_table(tmp_path, text=True)
    with ShardWriter.open(uri, SHARD, MEMTABLE) as writer:
        writer.put(batch([(1, "a"), (2, "b"), (1, "c")]))
        writer.delete(keys(2, 5))
        writer.flush_memtable()
        dataset = _only_sstable(writer)
        rows = [(row["id"], row["note"], row[TOMBSTONE]) for row in dataset.to_table().to_pylist()]
        manifest = writer.shard.manifests.latest()
    assert rows == [(1, "c", False), (2, None, True), (5, None, True)]
    assert len(dataset.get_fragments()) == 1
    assert [index.name for index in dataset.describe_indices()] == ["note_idx"]
    assert set(os.listdir(f"{dataset.uri}/_pk_index")) == {"page_data.lance", "page_lookup.lance"}
    assert manifest is not None
    (sstable,) = manifest.sstables
    assert (sstable.generation, sstable.physical_rows, sstable.primary_key_bytes) == (1, 3, 24)
    assert sstable.in_memory_bytes
    assert sstable.path.endswith("_gen_1")


def test_it_has_only_the_indexes_that_the_writer_maintains(tmp_path: Path) -> None:
    uri = make_table(tmp_path, text=True)
    lance.dataset(uri).create_scalar_index("note", "INVERTED", name="another", replace=False)
    with ShardWriter.open(uri, SHARD, replace(MEMTABLE, maintained_indexes=("another",))) as writer:
        writer.put(batch([(1, "a")]))
        writer.flush_memtable()
        assert [index.name for index in _only_sstable(writer).describe_indices()] == ["another"]


def test_without_a_key_it_holds_every_row_in_order(tmp_path: Path) -> None:
    uri = make_table(tmp_path, PLAIN)
    with ShardWriter.open(uri, SHARD, MEMTABLE) as writer:
        writer.put(batch([(2, "b"), (1, "a"), (2, "b")], PLAIN))
        writer.flush_memtable()
        dataset = _only_sstable(writer)
    assert dataset.to_table().column("id").to_pylist() == [2, 1, 2]
    assert not os.path.exists(f"{dataset.uri}/_pk_index")


def test_it_has_the_file_version_of_the_base(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    lance.write_dataset(batch([]), uri, schema=KEYED, data_storage_version="2.0").initialize_mem_wal()
    with ShardWriter.open(uri, SHARD, MEMTABLE) as writer:
        writer.put(batch([(1, "a")]))
        writer.flush_memtable()
        assert _only_sstable(writer).data_storage_version == lance.dataset(uri).data_storage_version == "2.0"


WIDE = pa.schema(
    [
        pa.field("gone", pa.int32()),
        pa.field("id", pa.int64(), False, KEY),
        pa.field("inner", pa.struct([("a", pa.int32()), ("b", pa.list_(pa.int32()))])),
        pa.field("old", pa.int32()),
        pa.field("map", pa.map_(pa.string(), pa.int32())),
        pa.field("note", pa.string()),
        pa.field("vector", pa.list_(pa.float32(), 2)),
    ]
)
ROW = {"inner": {"a": 1, "b": [1, 2]}, "map": [("k", 1)], "note": "n", "vector": [1.0, 2.0]}


def _wide(**extra: Any) -> dict[str, Any]:
    return {**ROW, **extra}


def _base_with_gaps(tmp_path: Path) -> str:
    """Two columns dropped, one added and one cast since: the ids are neither dense nor in order."""
    uri = str(tmp_path / "t")
    rows = pa.Table.from_pylist([_wide(id=100, gone=0, old=0)], schema=WIDE)
    dataset = lance.write_dataset(rows, uri)
    dataset.drop_columns(["gone", "old"])
    dataset.add_columns({"added": "id * 2"})
    dataset.alter_columns({"path": "note", "data_type": pa.large_string()})
    dataset.create_scalar_index("note", "INVERTED")
    dataset.initialize_mem_wal()
    return uri


def _ids(dataset: Any) -> dict[str, int]:
    return {field.name(): field.id() for field in dataset.lance_schema.fields()}


def test_it_carries_the_bases_field_ids_whatever_these_are(tmp_path: Path) -> None:
    uri = _base_with_gaps(tmp_path)
    base = lance.dataset(uri)
    ids = datasets.field_ids(base)
    assert ids != sorted(ids)
    with ShardWriter.open(uri, SHARD, MEMTABLE) as writer:
        writer.put(pa.RecordBatch.from_pylist([_wide(id=1, added=5)], schema=base.schema))
        writer.flush_memtable()
        dataset = _only_sstable(writer)
        assert datasets.field_ids(dataset)[:-1] == ids
        assert _ids(dataset)[TOMBSTONE] == max(ids) + 1
        assert [index.field_names for index in dataset.describe_indices()] == [["note"]]
        mine = writer.scan(filter="id = 1").read_all().to_pylist()
    assert mine == [_wide(id=1, added=5)]
    with native_writer(uri, SHARD) as native:
        rows = {row["id"]: row for row in native.lsm_scanner().to_table().to_pylist()}
    assert rows == {1: _wide(id=1, added=5), 100: _wide(id=100, added=200)}


@pytest.mark.parametrize("theirs", [False, True], ids=["ours", "native"])
def test_after_a_rename_a_drop_and_an_added_column_both_sides_read_it(tmp_path: Path, theirs: bool) -> None:
    uri = str(tmp_path / "t")
    schema = pa.schema([*KEYED, pa.field("x", pa.int32()), pa.field("in", pa.struct([("a", pa.int32())]))])
    first = pa.RecordBatch.from_pylist([{"id": 1, "note": "a", "x": 7, "in": {"a": 3}}], schema=schema)
    lance.write_dataset(first.slice(0, 0), uri, schema=schema).initialize_mem_wal()
    if theirs:
        with native_writer(uri, SHARD) as native:
            native.put(first)
    else:
        with ShardWriter.open(uri, SHARD, MEMTABLE) as writer:
            writer.put(first)
            writer.flush_memtable()
    dataset = lance.dataset(uri)
    dataset.alter_columns({"path": "note", "name": "remark"})
    dataset.alter_columns({"path": "in.a", "name": "z"})
    dataset.drop_columns(["x"])
    dataset.add_columns(pa.field("later", pa.string()))
    expected = [{"id": 1, "remark": "a", "in": {"z": 3}, "later": None}]
    with ShardWriter.open(uri, SHARD, MEMTABLE) as writer:
        assert writer.scan().read_all().to_pylist() == expected
        assert writer.scan(["in"], "remark = 'a' AND later IS NULL").read_all().to_pylist() == [{"in": {"z": 3}}]
        assert writer.scan(filter="remark = 'b'").read_all().num_rows == 0
        assert writer.get(keys(1)).to_pylist() == expected
        writer.delete(keys(1))
        assert writer.scan().read_all().num_rows == 0


def test_swapped_names_do_not_swap_values(tmp_path: Path) -> None:
    """Two columns of one type: by name alone nothing would show that they changed places."""
    uri = str(tmp_path / "t")
    schema = pa.schema([pa.field("id", pa.int64(), False, KEY), pa.field("a", pa.string()), pa.field("b", pa.string())])
    lance.write_dataset(schema.empty_table(), uri).initialize_mem_wal()
    with ShardWriter.open(uri, SHARD, MEMTABLE) as writer:
        writer.put(pa.RecordBatch.from_pylist([{"id": 1, "a": "A", "b": "B"}], schema=schema))
        writer.flush_memtable()
        writer.put(pa.RecordBatch.from_pylist([{"id": 2, "a": "A", "b": "B"}], schema=schema))
    dataset = lance.dataset(uri)
    for old, new in (("a", "tmp"), ("b", "a"), ("tmp", "b")):
        dataset.alter_columns({"path": old, "name": new})
    with ShardWriter.open(uri, SHARD, MEMTABLE) as writer:
        rows = writer.scan().read_all().sort_by("id").to_pylist()
    assert rows == [{"id": i, "a": "B", "b": "A"} for i in (1, 2)]


def test_a_writer_that_is_open_while_the_base_changes_goes_on(tmp_path: Path) -> None:
    uri = make_table(tmp_path, base=[(100, "base")])
    with ShardWriter.open(uri, SHARD, MEMTABLE) as writer:
        lance.dataset(uri).alter_columns({"path": "note", "name": "remark"})
        writer.put(batch([(1, "a")]))
        writer.flush_memtable()
        assert pairs(writer.scan()) == [(1, "a"), (100, "base")]
    with ShardWriter.open(uri, SHARD, MEMTABLE) as writer:
        assert writer.scan(["remark"]).read_all().column("remark").to_pylist() == ["a", "base"]


def test_native_scans_ours_and_we_scan_natives(tmp_path: Path) -> None:
    uri = make_table(tmp_path, base=[(100, "base"), (101, "base")], text=True)
    with ShardWriter.open(uri, SHARD, MEMTABLE) as writer:
        writer.put(batch([(1, "a"), (100, "b")]))
        writer.delete(keys(101))
        writer.flush_memtable()
    with native_writer(uri, SHARD) as native:
        assert native_pairs(native) == [(1, "a"), (100, "b")]
        native.put(batch([(1, "c"), (2, "d")]))
        native.delete(keys(100))
    with ShardWriter.open(uri, SHARD, MEMTABLE) as writer:
        manifest = writer.shard.manifests.latest()
        assert manifest is not None
        assert len(manifest.sstables) == 2
        assert pairs(writer.scan()) == [(1, "c"), (2, "d")]


def test_everything_is_synced_before_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lance never syncs. The WAL behind an SSTable may go, so the SSTable must survive a power loss."""
    uri = make_table(tmp_path, text=True)
    synced: set[int] = set()
    real = os.fsync

    def fsync(handle: int) -> None:
        synced.add(os.fstat(handle).st_ino)
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    with ShardWriter.open(uri, SHARD, MEMTABLE) as writer:
        writer.put(batch([(1, "a")]))
        writer.flush_memtable()
        root = _only_sstable(writer).uri
    missing = [
        path
        for folder, _, files in os.walk(root)
        for path in (folder, *(os.path.join(folder, name) for name in files))
        if os.stat(path).st_ino not in synced
    ]
    assert missing == []
    assert os.stat(os.path.dirname(root)).st_ino in synced


def test_a_missing_sstable_is_data_loss(tmp_path: Path) -> None:
    import shutil

    uri = make_table(tmp_path)
    with ShardWriter.open(uri, SHARD, MEMTABLE) as writer:
        writer.put(batch([(1, "a")]))
        writer.flush_memtable()
        shutil.rmtree(_only_sstable(writer).uri)
        with pytest.raises(DataLoss):
            writer.scan().read_all()


def test_what_lance_refuses_is_transient(tmp_path: Path) -> None:
    """The writer tries again under another name, and in the end is Poisoned: the rows stay in the WAL."""
    from headgate.connectors.objects import open_store

    with pytest.raises(Transient):
        datasets.write_dataset(
            open_store(str(tmp_path)),
            "x",
            pa.table({"id": [1]}),
            field_ids=[0],
            primary_key=["no such column"],
            indexes=[],
            file_version="9.9",
        )
