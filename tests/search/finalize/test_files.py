"""The end of a Lance file is read as native reads it, and damaged bytes are Corrupt and nothing else."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from lance.file import LanceFileReader, LanceFileWriter

from headgate.connectors.lance.files import end_of, read_end, small_file
from headgate.connectors.objects import open_store
from headgate.errors import Corrupt, NotFound
from tests.support.indexes import Staged

EMPTY = pa.record_batch([], schema=pa.schema([]))
SMALL = small_file(pa.record_batch({"a": [b"x"]}), {"one": "1", "two": "é" * 40})


def test_it_says_what_native_says_of_every_file_of_an_index(staged: Staged) -> None:
    store = open_store(staged.uri)
    files = [path for path in staged.path.rglob("*") if path.is_file()]
    assert len(files) == 16
    for path in files:
        native = LanceFileReader(str(path)).metadata()
        found = read_end(store, str(path.relative_to(staged.uri)), path.stat().st_size)
        metadata = native.schema.metadata or {}
        assert (found.rows, found.metadata) == (native.num_rows, {k.decode(): v.decode() for k, v in metadata.items()})


def test_the_end_of_a_large_file_is_read_in_a_few_ranges(tmp_path: Path) -> None:
    path = tmp_path / "large.lance"
    with LanceFileWriter(str(path), pa.schema([("n", pa.int64())])) as writer:
        writer.add_schema_metadata("long", "x" * 200_000)  # more than is read at first
        writer.write_batch(pa.record_batch({"n": range(500_000)}))
    store = open_store(str(tmp_path))
    end = read_end(store, "large.lance", path.stat().st_size)
    assert (end.rows, len(end.metadata["long"])) == (500_000, 200_000)
    assert store.operations()["get"] <= 3


@pytest.mark.parametrize("batch", [EMPTY, pa.record_batch({"a": [1, 2]})], ids=["no columns", "rows"])
def test_native_reads_a_small_file(tmp_path: Path, batch: pa.RecordBatch) -> None:
    data = small_file(batch, {"partitions": "[1]"})
    (tmp_path / "small.lance").write_bytes(data)
    native = LanceFileReader(str(tmp_path / "small.lance"))
    assert native.metadata().schema.metadata == {b"partitions": b"[1]"}
    assert end_of(data).metadata == {"partitions": "[1]"}
    assert native.num_rows() == end_of(data).rows == batch.num_rows


@settings(max_examples=300, deadline=None)
@given(
    cut=st.integers(0, len(SMALL)),
    changes=st.lists(st.tuples(st.integers(0, len(SMALL) - 1), st.integers(0, 255)), max_size=6),
)
@example(cut=0, changes=[])
def test_damaged_bytes_are_corrupt_and_nothing_else(cut: int, changes: list[tuple[int, int]]) -> None:
    data = bytearray(SMALL)
    for position, byte in changes:
        data[position] = byte
    with contextlib.suppress(Corrupt):
        end_of(bytes(data[cut:]))


def test_an_absent_file_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        read_end(open_store(str(tmp_path)), "none.lance", 100)
