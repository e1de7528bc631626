"""Compressed buffers: a length that their bytes cannot have is Corrupt, before anything is allocated for it."""

from __future__ import annotations

import random
import struct
from typing import Literal

import pyarrow as pa
import pytest

from headgate.errors import Corrupt
from headgate.shards.wal.decoder import decode_entry
from headgate.shards.wal.entry import header_length
from headgate.shards.wal.ipc_bounds import LZ4, ZSTD, check_lengths, most_in

Codec = Literal["lz4", "zstd"]
CODECS: list[Codec] = ["lz4", "zstd"]
NUMBERS = {"lz4": LZ4, "zstd": ZSTD}
MAGIC = {"lz4": b"\x04\x22\x4d\x18", "zstd": b"\x28\xb5\x2f\xfd"}


def native(batch: pa.RecordBatch, compression: Codec) -> bytearray:
    """An entry as native writes it: nothing vouches for its bytes. The batch is in it twice."""
    schema = batch.schema.with_metadata({"writer_epoch": "3"})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        for _ in range(2):
            writer.write_batch(batch.replace_schema_metadata(schema.metadata))
    return bytearray(sink.getvalue().to_pybytes())


def lengths_at(data: bytearray, compression: Codec) -> list[int]:
    """Where the stated length of each compressed buffer stands: before its frame."""
    found = []
    at = header_length(memoryview(data))
    while (at := data.find(MAGIC[compression], at + 1)) >= 0:
        found.append(at - 8)
    return found


@pytest.mark.parametrize("compression", CODECS)
@pytest.mark.parametrize("stated", [1 << 24, 1 << 30, (1 << 31) - 1, 1 << 40, -2])
def test_a_length_that_the_blocks_cannot_hold_is_corrupt_and_nothing_is_allocated(
    compression: Codec, stated: int
) -> None:
    kinds = pa.array([f"kind {n % 100}" for n in range(1000)]).dictionary_encode()
    data = native(pa.record_batch({"a": [5] * 1000, "kind": kinds}), compression)
    places = lengths_at(data, compression)
    assert len(places) == 2 + 2 * 2  # a dictionary's offsets and characters, and twice two columns
    for at in places:
        damaged = bytearray(data)
        struct.pack_into("<q", damaged, at, stated)
        before = pa.default_memory_pool().max_memory()
        with pytest.raises(Corrupt, match=f"states {stated} bytes, but its blocks hold"):
            decode_entry(memoryview(bytes(damaged)))
        assert pa.default_memory_pool().max_memory() == before


@pytest.mark.parametrize("compression", CODECS)
@pytest.mark.parametrize("wrong", ["longer than the body", "negative"])
def test_buffers_that_take_more_bytes_than_there_are_are_corrupt(compression: Codec, wrong: str) -> None:
    """Else a few bytes that hold much could be asked for many times."""
    data = native(pa.record_batch({"a": [5] * 1000, "b": [5] * 1000, "c": [5] * 1000}), compression)
    message = list(pa.ipc.MessageReader.open_stream(pa.BufferReader(bytes(data))))[1]
    metadata, size = bytes(message.metadata), message.body.size
    thirds = [struct.pack("<qq", 2 * size // 3, length) for length in range(1, size)]
    (third,) = [pair for pair in thirds if pair in metadata]  # offset and length of the last column
    at = data.index(metadata) + metadata.index(third)
    struct.pack_into("<qq", data, at, *((0, size) if wrong == "longer than the body" else (-8, 16)))
    with pytest.raises(Corrupt, match="are outside its body"):
        decode_entry(memoryview(bytes(data)))


@pytest.mark.parametrize("compression", CODECS)
@pytest.mark.parametrize("rows", [1, 1000, 300_000])
def test_honest_lengths_pass_however_well_or_badly_the_rows_compress(compression: Codec, rows: int) -> None:
    chance = random.Random(rows)
    batch = pa.record_batch(
        {
            "same": pa.repeat(pa.scalar(0, pa.int64()), rows),
            "counted": pa.array(range(rows), pa.int64()),
            "random": pa.Array.from_buffers(pa.int64(), rows, [None, pa.py_buffer(chance.randbytes(8 * rows))]),
            "text": pa.array(["", "one", None] * rows)[:rows],
            "empty": pa.repeat("", rows),
            "kind": pa.array(["a", "b"] * rows)[:rows].dictionary_encode(),
            "nothing": pa.nulls(rows),
        }
    )
    entry = decode_entry(memoryview(bytes(native(batch, compression))))
    assert [stored.equals(batch) for stored in entry.batches] == [True, True]


@pytest.mark.parametrize("compression", CODECS)
@pytest.mark.parametrize("size", [0, 1, 100, 70_000, 5_000_000])
def test_frames_as_other_writers_make_them_hold_what_they_hold(compression: Codec, size: int) -> None:
    """Streamed: another block size, and no word of the length in the frame itself. Two frames of zstd are one text."""
    for raw in (bytes(size), random.Random(size).randbytes(size)):
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, compression) as stream:
            stream.write(raw)
        frame = sink.getvalue().to_pybytes()
        most = most_in(NUMBERS[compression], memoryview(frame))
        assert len(raw) <= most <= len(raw) + (4 << 20)
    if compression == "zstd":
        assert most_in(ZSTD, memoryview(frame * 2)) == 2 * most


@pytest.mark.parametrize("compression", CODECS)
def test_a_frame_cut_short_is_told_and_no_block_is_read_outside_of_it(compression: Codec) -> None:
    frame = pa.Codec(compression).compress(random.Random(1).randbytes(200_000), asbytes=True)
    for length in [*range(1, 40), 65_600, 131_090, len(frame) - 1]:
        with pytest.raises((Corrupt, struct.error, IndexError)):
            most_in(NUMBERS[compression], memoryview(frame)[:length])


def test_uncompressed_messages_and_schemas_pass() -> None:
    batch = pa.record_batch({"a": [1, 2, 3], "kind": pa.array(["a", "b", "a"]).dictionary_encode()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    messages = list(pa.ipc.MessageReader.open_stream(pa.BufferReader(sink.getvalue())))
    assert [message.type for message in messages] == ["schema", "dictionary", "record batch"]
    for message in messages:
        check_lengths(message)
