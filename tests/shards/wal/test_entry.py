"""The bytes of an entry: what is encoded comes back, and whatever is not one of our entries is Corrupt."""

from __future__ import annotations

import datetime as dt
import decimal
import pickle
import struct
from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
import xxhash

from headgate.errors import Corrupt, InvalidInput
from headgate.shards.rows.schema import RowSchema
from headgate.shards.wal import decoder, encoder
from headgate.shards.wal.decoder import decode_entry, decode_header
from headgate.shards.wal.encoder import encode_barrier, encode_entry, encode_rows
from headgate.shards.wal.entry import (
    HEADER_GUESS,
    Compression,
    EncodedEntry,
    EncodedRows,
    Entry,
    SourceRange,
    Tags,
    header_length,
)

EOS = b"\xff\xff\xff\xff\x00\x00\x00\x00"

COLUMNS: dict[str, pa.Array] = {
    "int8": pa.array([1, None, -128], pa.int8()),
    "uint64": pa.array([1, None, 2**64 - 1], pa.uint64()),
    "float16": pa.array([1.5, None, 0.0], pa.float16()),
    "float64": pa.array([1.5, None, float("inf")], pa.float64()),
    "bool": pa.array([True, None, False]),
    "string": pa.array(["a", None, "ü" * 100]),
    "large_string": pa.array(["a", None, ""], pa.large_string()),
    "string_view": pa.array(["a", None, "longer than twelve bytes"], pa.string_view()),
    "binary": pa.array([b"\0\xff", None, b""], pa.binary()),
    "large_binary": pa.array([b"\0\xff", None, b""], pa.large_binary()),
    "fixed_size_binary": pa.array([b"abcd", None, b"efgh"], pa.binary(4)),
    "decimal128": pa.array([decimal.Decimal("1.23"), None, decimal.Decimal("-9.99")], pa.decimal128(20, 2)),
    "decimal256": pa.array([decimal.Decimal("1.23"), None, decimal.Decimal("-9.99")], pa.decimal256(50, 2)),
    "date32": pa.array([dt.date(2024, 2, 29), None, dt.date(1969, 1, 1)], pa.date32()),
    "time64": pa.array([dt.time(1, 2, 3), None, dt.time(0)], pa.time64("us")),
    "timestamp": pa.array([dt.datetime(2024, 1, 1), None, dt.datetime(1960, 1, 1)], pa.timestamp("us")),
    "timestamp_tz": pa.array([0, None, 10**15], pa.timestamp("us", "Europe/Berlin")),
    "duration": pa.array([dt.timedelta(seconds=1), None, dt.timedelta(0)], pa.duration("ns")),
    "null": pa.nulls(3),
    "list": pa.array([[1, None], None, []], pa.list_(pa.int64())),
    "large_list": pa.array([["a"], None, []], pa.large_list(pa.string())),
    "fixed_size_list": pa.array([[1.0, 2.0], None, [3.0, 4.0]], pa.list_(pa.float32(), 2)),
    "struct": pa.array([{"x": 1, "y": ["a"]}, None, {"x": None, "y": []}]),
    "list_of_struct": pa.array([[{"x": 1}], None, []]),
    "map": pa.array([[("a", 1)], None, []], pa.map_(pa.string(), pa.int64())),
    "dictionary": pa.array(["a", None, "a"]).dictionary_encode(),
    "dictionary_of_int64": pa.array([7, None, 9]).dictionary_encode(),
    "list_of_dictionary": pa.array([["a"], None, []], pa.list_(pa.dictionary(pa.int32(), pa.string()))),
}
COMPRESSIONS: list[Compression | None] = [None, "lz4", "zstd"]
TAGS = Tags("attempt-1", (SourceRange("topic ü", 3, 10, 20), SourceRange("b", 0, 0, 2**63)))


def stored(encoded: EncodedEntry) -> memoryview:
    """The entry as a store gives it back."""
    return memoryview(b"".join(bytes(buffer) for buffer in encoded.buffers))


def schema_of(*names: str) -> RowSchema:
    return RowSchema.of(pa.schema([pa.field(name, COLUMNS[name].type) for name in names], metadata={"k": "v"}))


def encoded(
    *names: str,
    compression: Compression | None = None,
    tags: Tags = Tags(),  # noqa: B008
    batches: int = 1,
) -> tuple[RowSchema, pa.RecordBatch, EncodedEntry]:
    schema = schema_of(*names)
    batch = pa.record_batch([COLUMNS[name] for name in names], names=list(names))
    chunks = [encode_rows(schema.stored_rows(batch), compression) for _ in range(batches)]
    return schema, batch, encode_entry(schema, chunks, epoch=7, tags=tags)


# -- round trips -----------------------------------------------------------------------


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("name", [*COLUMNS])
def test_every_type_comes_back_as_it_was(name: str, compression: Compression | None) -> None:
    schema, batch, made = encoded(name, compression=compression)
    entry = decode_entry(stored(made))
    assert [one.column(name).to_pylist() for one in entry.batches] == [batch.column(name).to_pylist()]
    assert entry.batches[0].column(name).type == COLUMNS[name].type
    assert (entry.rows, entry.header.rows, entry.nbytes) == (3, 3, made.nbytes)
    assert entry.header.schema.names == [name, "_tombstone"]
    assert entry.header.schema.field(name).equals(schema.storage.field(name), check_metadata=True)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_many_columns_chunks_and_batches_come_back_in_order(compression: Compression | None) -> None:
    schema = schema_of(*COLUMNS)
    batch = pa.record_batch([*COLUMNS.values()], names=[*COLUMNS])
    chunks = [encode_rows(schema.stored_rows([batch, batch.slice(1, 1)]), compression) for _ in range(3)]
    made = encode_entry(schema, chunks, epoch=2**64 - 1, tags=TAGS)
    entry = decode_entry(stored(made))
    assert [one.num_rows for one in entry.batches] == [3, 1] * 3
    assert entry.rows == made.rows == 12
    for one, expected in zip(entry.batches, [batch, batch.slice(1, 1)] * 3, strict=True):
        assert one.drop_columns(["_tombstone"]).to_pydict() == expected.to_pydict()
    assert entry.header.epoch == 2**64 - 1


def test_dictionaries_that_differ_from_batch_to_batch_are_replaced_not_mixed_up() -> None:
    schema = RowSchema.of(pa.schema([pa.field("d", pa.dictionary(pa.int32(), pa.string()))]))
    parts = [pa.array(values).dictionary_encode() for values in (["a", "b"], ["c"], ["b", "a"])]
    chunks = [encode_rows(schema.stored_rows(pa.record_batch([part], names=["d"]))) for part in parts]
    entry = decode_entry(stored(encode_entry(schema, chunks, epoch=1)))
    assert [batch.column("d").to_pylist() for batch in entry.batches] == [["a", "b"], ["c"], ["b", "a"]]


@pytest.mark.parametrize("tags", [Tags(), Tags("a"), Tags(""), Tags("a", ()), Tags(None, TAGS.sources), TAGS])
def test_tags_come_back(tags: Tags) -> None:
    _, _, made = encoded("int8", tags=tags)
    for header in (decode_entry(stored(made)).header, decode_header(stored(made))):
        assert header.tags == tags
        assert header.entry_id == made.entry_id
        assert (header.epoch, header.barrier, header.generation) == (7, False, None)


def test_a_barrier_holds_nothing_but_who_came() -> None:
    made = encode_barrier(epoch=12, entry_id="mine")
    entry = decode_entry(stored(made))
    assert (entry.rows, entry.batches, entry.header.barrier, entry.header.epoch) == (0, (), True, 12)
    assert entry.header.entry_id == made.entry_id == "mine"
    assert decode_header(stored(made)) == entry.header


def test_every_entry_has_an_id_of_its_own() -> None:
    assert len({encode_barrier(epoch=1).entry_id for _ in range(100)}) == 100


def test_an_entry_is_an_arrow_stream_that_anyone_can_read() -> None:
    _, batch, made = encoded("int8", "string", "struct", tags=TAGS)
    table = pa.ipc.open_stream(stored(made)).read_all()
    assert table.drop_columns(["_tombstone"]).to_pydict() == batch.to_pydict()
    assert table.schema.metadata == {b"k": b"v", b"writer_epoch": b"7"}
    own = [key for field in table.schema for key in (field.metadata or {}) if key.startswith(b"headgate")]
    assert own == [key for key in table.schema.field("_tombstone").metadata]
    assert stored(made)[-8:] == EOS


def test_the_header_alone_tells_everything_but_the_rows() -> None:
    _, _, made = encoded("string", tags=TAGS)
    data = stored(made)
    length = header_length(data)
    assert decode_header(data[:length]) == decode_entry(data).header
    with pytest.raises(Corrupt, match="cut off inside its header"):
        decode_header(data[: length - 1])


def test_a_header_is_judged_without_the_rows() -> None:
    _, _, made = encoded("string")
    data = bytearray(stored(made))
    data[-30] ^= 1
    assert decode_header(memoryview(bytes(data))).entry_id == made.entry_id
    with pytest.raises(Corrupt, match="checksum"):
        decode_entry(memoryview(bytes(data)))


def test_uncompressed_rows_are_not_copied_when_they_are_read() -> None:
    schema = RowSchema.of(pa.schema([pa.field("a", pa.int64())]))
    batch = pa.record_batch({"a": list(range(10_000))})
    data = stored(encode_entry(schema, [encode_rows(schema.stored_rows(batch))], epoch=1))
    before = pa.total_allocated_bytes()
    entry = decode_entry(data)
    assert pa.total_allocated_bytes() == before
    assert entry.rows == 10_000


def test_headers_and_tags_survive_pickling() -> None:
    _, _, made = encoded("string", tags=TAGS)
    assert pickle.loads(pickle.dumps(decode_entry(stored(made)).header)) == decode_header(stored(made))


# -- what cannot be encoded -------------------------------------------------------------


def test_nothing_without_rows_is_encoded() -> None:
    schema = schema_of("int8")
    empty = schema.storage.empty_table().to_batches() or [pa.RecordBatch.from_pylist([], schema=schema.storage)]
    with pytest.raises(InvalidInput, match="must have rows"):
        encode_rows(empty)
    for chunks in ([], [EncodedRows((), 0, 0)], [encode_rows([])]):
        with pytest.raises(InvalidInput, match="must have rows"):
            encode_entry(schema, chunks, epoch=1)


def test_a_header_that_no_reader_would_accept_is_not_written() -> None:
    schema = RowSchema.of(pa.schema([pa.field("a", pa.int64())], metadata={"huge": "x" * (17 << 20)}))
    chunk = encode_rows(schema.stored_rows(pa.record_batch({"a": [1]})))
    with pytest.raises(InvalidInput, match="16777216"):
        encode_entry(schema, [chunk], epoch=1)


# -- crafted: everything fits together, and one thing is wrong -------------------------------


def crafted(
    *,
    own: dict[bytes, bytes | None] | None = None,
    metadata: dict[bytes, bytes | None] | None = None,
    batches: list[pa.RecordBatch] | None = None,
    tombstone: bool = True,
    trailer: bytes = EOS,
) -> memoryview:
    """An entry with right checksums of wrong contents: what a bug or a vandal could write."""
    storage = schema_of("int8").storage
    rows = batches if batches is not None else schema_of("int8").stored_rows(pa.record_batch({"int8": COLUMNS["int8"]}))
    body = b"".join(bytes(batch.serialize()) for batch in rows) + trailer
    placeholder = b"0123456789abcdef"
    tags: dict[bytes, bytes | None] = {
        b"headgate:format": b"1",
        b"headgate:entry": b"some-id",
        b"headgate:rows": str(sum(batch.num_rows for batch in rows)).encode(),
        b"headgate:body": xxhash.xxh3_64(body).hexdigest().encode(),
        b"headgate:header": placeholder,
        **(own or {}),
    }
    at_schema: dict[bytes, bytes | None] = {b"writer_epoch": b"7", **(metadata or {})}
    last = pa.field("_tombstone" if tombstone else "x", pa.bool_(), nullable=False)
    last = last.with_metadata({key: value for key, value in tags.items() if value is not None})
    schema = pa.schema(
        [storage.field(0), last], metadata={key: value for key, value in at_schema.items() if value is not None}
    )
    header = bytes(schema.serialize())
    if placeholder in header:
        at = header.index(placeholder)
        digest = xxhash.xxh3_64(header[:at] + b"0" * 16 + header[at + 16 :]).hexdigest().encode()
        header = header[:at] + digest + header[at + 16 :]
    return memoryview(header + body)


def test_the_crafted_entry_is_right_where_nothing_is_wrong() -> None:
    assert decode_entry(crafted()).rows == 3


OWN: dict[bytes, list[bytes | None]] = {
    b"headgate:format": [None, b"2", b"", b"one"],
    b"headgate:entry": [None, b"", b"\xff\xfe"],
    b"headgate:rows": [None, b"", b"2", b"4", b"-3", b"3.0", b" 3", b"9" * 30, b"\xb2", "٣".encode()],
    b"headgate:body": [None, b"", b"0" * 16, b"\xff" * 16],
    b"headgate:header": [None, b"", b"0" * 16, b"0123"],
    b"headgate:attempt": [b"\xff"],
    b"headgate:sources": [
        b"",
        b"x",
        b"{}",
        b'{"abcd":1}',
        b"5",
        b"null",
        b"[5]",
        b'["abcd"]',
        b'[["t",0,1]]',
        b'[["t",0,1,2,3]]',
        b'[["t","0",1,2]]',
        b'[["t",0,1.5,2]]',
        b'[["t",true,1,2]]',
        b"[[0,0,1,2]]",
        b"[" * 100_000,
        b"\xff",
    ],
}
AT_SCHEMA: dict[bytes, list[bytes | None]] = {
    b"writer_epoch": [None, b"", b"-1", b"1.5", b"x", b"0x1", b"18446744073709551616", b"1" * 5000],
    b"fence_sentinel": [b"true", b"false", b"TRUE", b"1", b""],
    b"generation": [b"", b"x", b"-1", b"18446744073709551616"],
}

WRONG: dict[str, Callable[[], memoryview]] = {
    **{
        f"own {key!r}={value!r:.30}": partial(crafted, own={key: value})
        for key, values in OWN.items()
        for value in values
    },
    **{
        f"schema {key!r}={value!r:.30}": partial(crafted, metadata={key: value})
        for key, values in AT_SCHEMA.items()
        for value in values
    },
    "no tombstone": lambda: crafted(tombstone=False),
    "a batch without rows": lambda: crafted(batches=[pa.RecordBatch.from_pylist([], schema=schema_of("int8").storage)]),
    "no batches": lambda: crafted(batches=[]),
    "no end of stream": lambda: crafted(trailer=b""),
    "two ends of stream": lambda: crafted(trailer=EOS + EOS),
    "junk behind the end": lambda: crafted(trailer=EOS + b"12345678"),
    "another schema's batch": lambda: crafted(batches=[pa.record_batch({"a": ["x", "y"]})]),
}


@pytest.mark.parametrize("wrong", list(WRONG))
def test_wrong_contents_under_right_checksums_are_corrupt(wrong: str) -> None:
    with pytest.raises(Corrupt):
        decode_entry(WRONG[wrong]())


def test_a_newer_format_says_what_to_do() -> None:
    with pytest.raises(Corrupt, match="use a release of headgate that supports this format"):
        decode_entry(crafted(own={b"headgate:format": b"2"}))


# -- native's entries ------------------------------------------------------------------------


def native(
    rows: int = 3, *, metadata: dict[str, str] | None = None, compression: str | None = None, **more: Any
) -> memoryview:
    """An entry as native Lance writes it: no tags, no checksum."""
    at_schema = {"writer_epoch": "3", "generation": "2", **(metadata or {})}
    schema = schema_of("int8", "string", "struct").storage.with_metadata(at_schema)
    names = ["int8", "string", "struct"]
    batch = pa.record_batch([*[COLUMNS[name] for name in names], pa.array([False] * 3)], schema=schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_batch(batch.slice(0, rows))
    return memoryview(sink.getvalue().to_pybytes())


def test_natives_entries_are_read_without_tags() -> None:
    entry = decode_entry(native())
    assert (entry.header.epoch, entry.header.generation, entry.rows) == (3, 2, 3)
    assert (entry.header.entry_id, entry.header.rows, entry.header.body_checksum) == (None, None, None)
    assert entry.header.tags == Tags()


def test_natives_barrier_is_read() -> None:
    schema = pa.schema([], metadata={"writer_epoch": "5", "fence_sentinel": "true"})
    entry = decode_entry(memoryview(bytes(schema.serialize()) + EOS))
    assert (entry.header.barrier, entry.header.epoch, entry.rows) == (True, 5, 0)


def test_natives_wal_only_entries_have_neither_tombstone_nor_generation() -> None:
    schema = pa.schema([pa.field("a", pa.int64())], metadata={"writer_epoch": "5"})
    batch = pa.record_batch({"a": [1, 2]}, schema=schema)
    entry = decode_entry(memoryview(bytes(schema.serialize()) + bytes(batch.serialize()) + EOS))
    assert (entry.rows, entry.header.generation) == (2, None)


def test_a_table_that_speaks_of_headgate_is_still_natives() -> None:
    entry = decode_entry(native(metadata={"headgate:table": "mine", "note": "headgate: the best"}))
    assert entry.rows == 3


def test_rows_in_storage_form_without_generation_and_tags_were_written_by_nobody() -> None:
    """One of ours whose tags were wiped out must not pass for one of native's, which has no checksum."""
    data = native()
    schema = pa.ipc.read_schema(pa.py_buffer(data)).with_metadata({"writer_epoch": "3"})
    body = data[header_length(data) :]
    with pytest.raises(Corrupt):
        decode_entry(memoryview(bytes(schema.serialize()) + bytes(body)))


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_a_native_entry_cut_at_any_byte_is_corrupt(compression: str | None) -> None:
    data = native(compression=compression)
    for length in range(len(data)):
        with pytest.raises(Corrupt):
            decode_entry(data[:length])


def test_a_native_entry_without_its_end_or_with_more_behind_it_is_corrupt() -> None:
    data = bytes(native())
    for bad in (data[:-8], data[:-8] + b"\0" * 8, data + b"\0", data + EOS, data + data):
        with pytest.raises(Corrupt):
            decode_entry(memoryview(bad))


def test_a_zero_row_batch_of_native_is_corrupt() -> None:
    with pytest.raises(Corrupt, match="without rows"):
        decode_entry(native(rows=0))


def test_a_flipped_value_in_a_native_entry_cannot_be_seen() -> None:
    """Documented: native has no checksum. Ours would be Corrupt."""
    data = bytearray(native())
    at = data.rindex(b"\x01\x00\x80") if b"\x01\x00\x80" in data else data.rindex(b"\x80")
    data[at + 2 if data[at] == 1 else at] ^= 0x01
    entry = decode_entry(memoryview(bytes(data)))
    assert entry.batches[0].column("int8").to_pylist() != COLUMNS["int8"].to_pylist()


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
@pytest.mark.parametrize("size", [2**31, 2**40, 2**62, 2**63 - 1, -2, -(2**63), 0])
def test_a_huge_length_in_a_compressed_buffer_is_corrupt(compression: str, size: int) -> None:
    schema = pa.schema([pa.field("a", pa.int64())], metadata={"writer_epoch": "1"})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_batch(pa.record_batch({"a": [5] * 1000}, schema=schema))
    data = bytearray(sink.getvalue().to_pybytes())
    struct.pack_into("<q", data, data.index(struct.pack("<q", 8000), header_length(memoryview(data))), size)
    with pytest.raises(Corrupt):
        decode_entry(memoryview(bytes(data)))


@pytest.mark.parametrize(
    "junk", [b"", b"\0", b"\xff" * 7, b"\xff" * 8, b"\0" * 64, b"ARROW1\0\0", b"PK\x03\x04" * 20, EOS]
)
def test_junk_is_corrupt(junk: bytes) -> None:
    for decode in (decode_entry, decode_header):
        with pytest.raises(Corrupt):
            decode(memoryview(junk))


def test_the_ipc_file_format_is_no_entry() -> None:
    sink = pa.BufferOutputStream()
    batch = pa.record_batch({"a": [1]})
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    with pytest.raises(Corrupt):
        decode_entry(memoryview(sink.getvalue()))


def test_every_error_is_one_that_crosses_processes() -> None:
    with pytest.raises(Corrupt) as caught:
        decode_entry(crafted(own={b"headgate:rows": b"4"}))
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (type(copy), str(copy)) == (Corrupt, str(caught.value))


def test_the_documented_guess_covers_an_ordinary_header() -> None:
    _, _, made = encoded("int8", "string", "struct", tags=TAGS)
    assert header_length(stored(made)) < HEADER_GUESS
    assert isinstance(decode_entry(stored(made)), Entry)


# -- headers that are like another one ---------------------------------------------------


def afresh(call: Callable[[], Any]) -> Any:
    """What it gives where no header was seen before."""
    encoder._templates.clear()
    decoder._known.clear()
    return call()


TAGGED = [
    Tags(),
    *(Tags(f"{n:032x}", (SourceRange("topic", n, 100 + n, 200), SourceRange("ü", 0, n, 10))) for n in range(3)),
    Tags("topic", (SourceRange("topic", 0, 1, 2),)),  # stands twice in the header
    Tags("0" * 16, (SourceRange("0" * 16, 0, 1, 2),)),
    Tags("b" * 32),
    Tags("", ()),
]


@pytest.mark.parametrize("seen", TAGGED)
@pytest.mark.parametrize("tags", TAGGED)
def test_an_entry_has_the_same_bytes_and_header_whichever_was_seen_before(seen: Tags, tags: Tags) -> None:
    schema = RowSchema.of(pa.schema([("x", pa.int64())]))
    chunks = [encode_rows(schema.stored_rows(pa.record_batch({"x": [1, 2, 3]})))]

    def made(tags: Tags) -> tuple[bytes, Any]:
        data = stored(encode_entry(schema, chunks, epoch=7, tags=tags, entry_id="e" * 32))
        return bytes(data), decode_entry(data).header

    alone = afresh(lambda: made(tags))
    afresh(lambda: made(seen))
    assert made(tags) == alone
    assert alone[1].tags == tags


def test_a_header_that_was_damaged_is_found_beside_one_that_is_like_it() -> None:
    schema = RowSchema.of(pa.schema([("x", pa.int64())]))
    chunks = [encode_rows(schema.stored_rows(pa.record_batch({"x": [1]})))]
    data = bytes(stored(encode_entry(schema, chunks, epoch=7, tags=TAGS)))
    length = len(data) - chunks[0].nbytes - len(EOS)
    for at in range(8, length):
        decode_entry(memoryview(data))
        with pytest.raises(Corrupt):
            decode_entry(memoryview(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]))
