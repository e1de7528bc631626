from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import lance
import numpy as np
import pyarrow as pa
import pytest

from headgate.errors import InvalidInput
from headgate.shards.bucket import MAX_BUCKETS, bucket_ids, has_buckets

KEYS = 100_000
SEED = 20_261
ALPHABET = np.array(list("abcxyz019 -_/:é漢🙂\x00"))
HASHED_AS_LONG = (pa.int64(), pa.uint64())

Make = Callable[[np.random.Generator], pa.Array]


def integers(kind: pa.DataType) -> Make:
    def make(random: np.random.Generator) -> pa.Array:
        numpy_type = np.dtype(kind.to_pandas_dtype())
        limits = np.iinfo(numpy_type)
        values = random.integers(limits.min, limits.max, KEYS, numpy_type, endpoint=True)
        values[:4] = [0, 1, limits.min, limits.max]
        return with_nulls(pa.array(values, kind), random)

    return make


def booleans(random: np.random.Generator) -> pa.Array:
    return with_nulls(pa.array(random.integers(0, 2, KEYS).astype(bool)), random)


def texts(kind: pa.DataType) -> Make:
    def make(random: np.random.Generator) -> pa.Array:
        lengths = random.integers(0, 24, KEYS)
        letters = "".join(random.choice(ALPHABET, lengths.sum()))
        ends = np.cumsum(lengths)
        values = [letters[end - length : end] for end, length in zip(ends, lengths, strict=True)]
        values[:3] = ["", "a" * 5_000, "漢" * 777]
        return with_nulls(pa.array(values, kind), random)

    return make


def with_nulls(values: pa.Array, random: np.random.Generator) -> pa.Array:
    mask = random.random(len(values)) < 0.02
    mask[:4] = False
    return pa.compute.if_else(pa.array(mask), None, values)


TYPES: dict[str, Make] = {
    **{str(kind): integers(kind) for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())},
    **{str(kind): integers(kind) for kind in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())},
    "bool": booleans,
    "string": texts(pa.string()),
    "large_string": texts(pa.large_string()),
}


@pytest.mark.parametrize("name", TYPES)
def test_agrees_with_the_spec_that_native_recorded_in_a_table(name: str) -> None:
    random = np.random.default_rng(SEED)
    keys = TYPES[name](random)
    n = int(random.integers(2, MAX_BUCKETS))
    schema = pa.schema([("other", pa.int8()), ("key", keys.type)])
    dataset = lance.write_dataset(schema.empty_table(), "memory://")
    dataset.initialize_mem_wal(bucket_column="key", num_buckets=n)
    details = dataset.mem_wal_index_details()
    assert details is not None
    spec = details["sharding_specs"][0]
    batch = pa.record_batch([pa.nulls(len(keys), pa.int8()), keys], schema=schema)
    native = lance.evaluate_sharding_spec(batch, spec, dataset.lance_schema).column(0)
    assert bucket_ids(keys, n).equals(native), f"SEED={SEED}, n={n}"


@pytest.mark.parametrize("name", TYPES)
def test_the_function_is_what_it_was_when_tables_were_written(name: str) -> None:
    """A new pylance with another hash would send the rows of one key to two shards."""
    random = np.random.default_rng(SEED + 1)
    keys = TYPES[name](random)
    n = int(random.integers(2, MAX_BUCKETS))
    values = keys.to_pylist()
    if pa.types.is_string(keys.type) or pa.types.is_large_string(keys.type):
        hashes = [0 if value is None else hash_bytes(value.encode()) for value in values]
    else:
        words = 2 if keys.type in HASHED_AS_LONG else 1
        hashes = [0 if value is None else hash_words(int(value), words) for value in values]
    expected = [(one & 0x7FFFFFFF) % n for one in hashes]
    assert bucket_ids(keys, n).to_pylist() == expected, f"SEED={SEED + 1}, n={n}"


def test_published_values_stay() -> None:
    assert bucket_ids(pa.array([1, 2, None, 3], pa.int32()), 8).to_pylist() == [2, 7, 0, 1]


def test_slices_chunks_and_nothing_at_all_give_the_same_buckets() -> None:
    keys = pa.array(["a", None, "bc", "", "漢字", "x" * 100])
    whole = bucket_ids(keys, 7).to_pylist()
    assert bucket_ids(keys[2:5], 7).to_pylist() == whole[2:5]
    assert bucket_ids(pa.chunked_array([keys[:1], keys[1:1], keys[1:]]), 7).to_pylist() == whole
    assert bucket_ids(pa.chunked_array([], pa.string()), 7).to_pylist() == []
    assert bucket_ids(pa.array([], pa.int64()), 7).type == pa.int32()


@pytest.mark.parametrize(
    "kind",
    [
        *(pa.float32(), pa.float64(), pa.date32(), pa.time32("s"), pa.time64("us"), pa.timestamp("us", "UTC")),
        *(pa.binary(), pa.large_binary(), pa.binary(4), pa.float16(), pa.date64(), pa.decimal128(9, 2)),
        *(pa.list_(pa.int8()), pa.struct([("a", pa.int8())]), pa.dictionary(pa.int32(), pa.string()), pa.string_view()),
    ],
    ids=str,
)
def test_a_type_has_buckets_here_exactly_where_native_evaluates_it(kind: pa.DataType) -> None:
    schema = pa.schema([("key", kind)])
    field = lance.ShardingField("bucket", [0], "bucket", None, "int32", {"num_buckets": "4"})
    try:
        # Native refuses a type only when it meets a value of it.
        batch = pa.record_batch([pa.array([_any(kind)], kind)], schema=schema)
        lance.evaluate_sharding_spec(
            batch, lance.ShardingSpec(1, [field]), lance.schema.LanceSchema.from_pyarrow(schema)
        )
        native = True
    except (ValueError, OSError, NotImplementedError):
        native = False
    assert has_buckets(kind) == native
    if not native:
        with pytest.raises(InvalidInput, match="bucket does not support keys"):
            bucket_ids(pa.nulls(1, kind), 4)


@pytest.mark.parametrize("n", [0, -1, MAX_BUCKETS + 1])
def test_a_number_of_buckets_that_native_refuses_is_refused(n: int) -> None:
    with pytest.raises(InvalidInput, match="from 1 to 1024"):
        bucket_ids(pa.array([1]), n)


def test_works_in_a_forked_child_and_starts_no_thread() -> None:
    """A Spark worker is a fork of a process that never called it."""
    code = """
import os, sys, pyarrow as pa
from headgate.shards.bucket import bucket_ids
assert "lance" not in sys.modules, "importing the module must not load pylance"
child = os.fork()
if child == 0:
    before = len(os.listdir("/proc/self/task"))
    assert bucket_ids(pa.array([1, 2, None, 3], pa.int32()), 8).to_pylist() == [2, 7, 0, 1]
    os._exit(0 if len(os.listdir("/proc/self/task")) == before else 3)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert "lance" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def _any(kind: pa.DataType) -> object:
    if pa.types.is_list(kind):
        return [1]
    if pa.types.is_struct(kind):
        return {"a": 1}
    if pa.types.is_dictionary(kind) or pa.types.is_string_view(kind):
        return "a"
    return b"abcd" if "binary" in str(kind) else 1


# -- the function, written down once more, from its definition ------------------


def hash_words(value: int, words: int) -> int:
    h = 0
    for i in range(words):
        h = _mix(h, value >> (32 * i) & 0xFFFFFFFF)
    return _finish(h, 4 * words)


def hash_bytes(data: bytes) -> int:
    h, whole = 0, len(data) & ~3
    for i in range(0, whole, 4):
        h = _mix(h, int.from_bytes(data[i : i + 4], "little"))
    for byte in data[whole:]:
        h = _mix(h, (byte - 256 if byte > 127 else byte) & 0xFFFFFFFF)
    return _finish(h, len(data))


def _mix(h: int, k: int) -> int:
    k = k * 0xCC9E2D51 & 0xFFFFFFFF
    k = (k << 15 | k >> 17) & 0xFFFFFFFF
    h ^= k * 0x1B873593 & 0xFFFFFFFF
    h = (h << 13 | h >> 19) & 0xFFFFFFFF
    return (h * 5 + 0xE6546B64) & 0xFFFFFFFF


def _finish(h: int, length: int) -> int:
    h ^= length
    h = (h ^ h >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    h = (h ^ h >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return h ^ h >> 16
