"""Damages entries in every way a disk, a network or a bug could, and judges what decoding makes of them.

    python -m tests.shards.wal.fuzz ours|native SEED CASES

A process of its own with limited memory, so that a crash or a huge allocation shows as a failure.
Ours must always be Corrupt; native's must be Corrupt or decode to valid Arrow, never anything else; and whatever
length the damage states, no more memory is asked for than entries of this size call for.
"""

from __future__ import annotations

import random
import resource
import struct
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from headgate.errors import Corrupt
from headgate.shards.rows.schema import RowSchema
from headgate.shards.wal.decoder import decode_entry, decode_header
from headgate.shards.wal.encoder import encode_barrier, encode_entry, encode_rows
from headgate.shards.wal.entry import SourceRange, Tags, header_length

MEMORY = 4 << 30
ALLOCATED = 16 << 20
"""What Arrow may have held at any one time: the entries are some KB, and no damage makes them call for megabytes."""
RESIDENT = 512 << 20
"""The same of the whole process, for what is allocated beside Arrow's pool."""

Mutation = Callable[[random.Random, bytearray], bytes]


def columns(rows: int) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "id": pa.array(range(rows), pa.int64()),
            "text": pa.array([f"text {n}" for n in range(rows)]),
            "nested": pa.array([{"x": n, "tags": ["a", None] * (n % 3)} for n in range(rows)]),
            "vector": pa.array([[1.0, 2.0]] * rows, pa.list_(pa.float32(), 2)),
            "kind": pa.array([f"kind {n % 3}" for n in range(rows)]).dictionary_encode(),
            "nothing": pa.nulls(rows),
            "blob": pa.array([bytes([n % 256]) * n for n in range(rows)], pa.large_binary()),
        }
    )


def joined(buffers: tuple[bytes | pa.Buffer, ...]) -> bytes:
    return b"".join(bytes(buffer) for buffer in buffers)


def our_entries() -> list[bytes]:
    entries = [joined(encode_barrier(epoch=3).buffers)]
    for rows in (1, 40):
        for names in (["id"], columns(1).schema.names):
            for compression in (None, "lz4", "zstd"):
                batch = columns(rows).select(names)
                schema = RowSchema.of(batch.schema.with_metadata({"k": "v"}))
                tags = Tags("attempt", (SourceRange("topic", 1, 2, 3),)) if rows == 1 else Tags()
                chunk = encode_rows(schema.stored_rows(batch), compression)
                entries.append(joined(encode_entry(schema, [chunk, chunk], epoch=3, tags=tags).buffers))
    return entries


def native_entries() -> list[bytes]:
    sentinel = pa.schema([], metadata={"writer_epoch": "5", "fence_sentinel": "true"})
    entries = [bytes(sentinel.serialize()) + b"\xff\xff\xff\xff\0\0\0\0"]
    for rows in (1, 40):
        for compression in (None, "lz4", "zstd"):
            batch = columns(rows).append_column(pa.field("_tombstone", pa.bool_(), False), pa.array([False] * rows))
            schema = batch.schema.with_metadata({"writer_epoch": "3", "generation": "1"})
            sink = pa.BufferOutputStream()
            options = pa.ipc.IpcWriteOptions(compression=compression)
            with pa.ipc.new_stream(sink, schema, options=options) as writer:
                writer.write_batch(batch.replace_schema_metadata(schema.metadata))
                writer.write_batch(batch.replace_schema_metadata(schema.metadata))
            entries.append(sink.getvalue().to_pybytes())
    return entries


# -- ways to damage -----------------------------------------------------------------------


def truncated(chance: random.Random, data: bytearray) -> bytes:
    return bytes(data[: chance.randrange(len(data))])


def bit_flipped(chance: random.Random, data: bytearray) -> bytes:
    for _ in range(chance.choice([1, 1, 1, 2, 8])):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(data)


def header_flipped(chance: random.Random, data: bytearray) -> bytes:
    data[chance.randrange(min(len(data), 1 << 11))] ^= 1 << chance.randrange(8)
    return bytes(data)


def overwritten(chance: random.Random, data: bytearray) -> bytes:
    at, length = chance.randrange(len(data)), chance.choice([1, 2, 4, 8, 64, 512])
    data[at : at + length] = chance.randbytes(min(length, len(data) - at))
    return bytes(data)


def zeroed(chance: random.Random, data: bytearray) -> bytes:
    """A sector that was never written, aligned or not."""
    length = chance.choice([8, 16, 64, 256, 512, 1024, 4096])
    at = chance.randrange(len(data)) // length * length if chance.random() < 0.5 else chance.randrange(len(data))
    data[at : at + length] = bytes(min(length, len(data) - at))
    return bytes(data)


def cut_out(chance: random.Random, data: bytearray) -> bytes:
    at = chance.randrange(len(data))
    del data[at : at + chance.choice([1, 4, 8, 64, 512])]
    return bytes(data)


def inserted(chance: random.Random, data: bytearray) -> bytes:
    at = chance.randrange(len(data) + 1)
    data[at:at] = chance.randbytes(chance.choice([1, 4, 8, 64]))
    return bytes(data)


def number_planted(chance: random.Random, data: bytearray) -> bytes:
    """A huge, negative or zero length where lengths, offsets and counts stand."""
    width = chance.choice(["<i", "<q"])
    low, high = (-(2**31), 2**31 - 1) if width == "<i" else (-(2**63), 2**63 - 1)
    value = chance.choice([low, high, -1, 0, 1, high // 2, 1 << 30, chance.randint(low, high)])
    at = chance.randrange(max(1, len(data) - 8)) // 4 * 4
    if len(data) >= at + struct.calcsize(width):
        struct.pack_into(width, data, at, value)
    return bytes(data)


def framing_planted(chance: random.Random, data: bytearray) -> bytes:
    """The length of one of the messages."""
    starts = [at for at in range(len(data) - 8) if data[at : at + 4] == b"\xff\xff\xff\xff"]
    value = chance.choice([-(2**31), 2**31 - 1, -1, 0, 1, 8, 1 << 24, (1 << 24) + 8, chance.randrange(1 << 31)])
    struct.pack_into("<i", data, chance.choice(starts) + 4, value)
    return bytes(data)


def two_mixed(chance: random.Random, data: bytearray) -> bytes:
    """The head of one entry and the tail of another place."""
    half = chance.randrange(len(data))
    return bytes(data[:half] + data[chance.randrange(len(data)) :])


def repeated(chance: random.Random, data: bytearray) -> bytes:
    return bytes(data) + bytes(data[-chance.randrange(1, len(data) + 1) :])


def junk(chance: random.Random, data: bytearray) -> bytes:
    start = b"\xff\xff\xff\xff" + struct.pack("<i", chance.randrange(1, 300)) if chance.random() < 0.5 else b""
    return start + chance.randbytes(chance.randrange(400))


MUTATIONS: list[Mutation] = [
    truncated,
    bit_flipped,
    header_flipped,
    overwritten,
    zeroed,
    cut_out,
    inserted,
    number_planted,
    framing_planted,
    two_mixed,
    repeated,
    junk,
]


# -- judging --------------------------------------------------------------------------------


def judge(kind: str, original: bytes, damaged: bytes) -> str:
    """What decoding made of it. Raises whatever is not allowed."""
    if damaged == original:
        decode_entry(memoryview(damaged))
        return "unchanged"
    try:
        decode_header(memoryview(damaged))
    except Corrupt:
        pass
    else:
        if kind == "ours" and damaged[: header_length(memoryview(original))] != original[: len(_header(original))]:
            raise AssertionError("a damaged header was believed")
    try:
        entry = decode_entry(memoryview(damaged))
    except Corrupt:
        return "corrupt"
    if kind == "ours":
        raise AssertionError(f"a damaged entry was believed: {entry.header}")
    for batch in entry.batches:
        batch.validate(full=True)
        if batch.num_rows < 10_000:
            batch.to_pylist()
    return "decoded"


def peak_kilobytes() -> int:
    """What this process has held at most. (ru_maxrss is no less than what the process held that started this one.)"""
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])


def check_memory() -> None:
    """Peaks never fall, so that the first case that goes too far is the one that is told."""
    allocated = pa.default_memory_pool().max_memory()
    assert allocated < ALLOCATED, f"Arrow held {allocated} bytes"
    resident = peak_kilobytes() * 1024
    assert resident < RESIDENT, f"the process held {resident} bytes"


def _header(original: bytes) -> bytes:
    return original[: header_length(memoryview(original))]


def main(kind: str, seed: int, cases: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    originals = our_entries() if kind == "ours" else native_entries()
    outcomes: Counter[str] = Counter()
    for case in range(cases):
        chance = random.Random(f"{seed}/{case}")
        original = chance.choice(originals)
        mutation = chance.choice(MUTATIONS)
        print(f"{case} {mutation.__name__}", file=sys.stderr, flush=case % 50 == 0)
        try:
            outcomes[judge(kind, original, mutation(chance, bytearray(original)))] += 1
            check_memory()
        except BaseException:
            traceback.print_exc()
            sys.exit(f"case {case} of seed {seed} ({kind}, {mutation.__name__}) is not handled")
    print(" ".join(f"{name}={count}" for name, count in sorted(outcomes.items())))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
