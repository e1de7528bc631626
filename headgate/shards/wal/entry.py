"""Bytes of a WAL entry: Lance's own format, plus our tags where native keeps them harmless.

An entry is an Arrow IPC stream whose schema metadata names the writer's epoch. Ours
also carry, in the field metadata of `_tombstone` (the one place where native ignores
it): a unique entry id, the row count, a checksum of the header and one of the rest,
and for streams the attempt id and the source ranges.

Promises:
1. What `decode_entry` returns for one of our entries is what was encoded; any other
   bytes raise Corrupt. Native's entries have no checksum: bad framing, a missing end,
   invalid Arrow data and zero-row batches are found, a flipped value is not.
2. `decode_header` judges the header alone, by its own checksum.
3. Decoding never allocates more than the bytes at hand call for: a length that they cannot have is Corrupt.
"""

from __future__ import annotations

import json
import secrets
import struct
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa
import xxhash

from headgate.errors import Corrupt, InvalidInput
from headgate.shards.rows.evolution import FIELD_ID
from headgate.shards.rows.schema import TOMBSTONE, RowSchema, is_reserved
from headgate.shards.wal.ipc_bounds import check_lengths

Compression = Literal["lz4", "zstd"]

FORMAT = b"1"
"""Version of our tags. A newer one is refused: its rules are unknown here."""

_EOS = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_CONTINUATION = b"\xff\xff\xff\xff"
_FORMAT_KEY = b"headgate:format"
_ID_KEY = b"headgate:entry"
_ATTEMPT_KEY = b"headgate:attempt"
_SOURCES_KEY = b"headgate:sources"
_ROWS_KEY = b"headgate:rows"
_BODY_KEY = b"headgate:body"
_HEADER_KEY = b"headgate:header"
_OUR_KEYS = (_FORMAT_KEY, _ID_KEY, _ATTEMPT_KEY, _SOURCES_KEY, _ROWS_KEY, _BODY_KEY, _HEADER_KEY)
_EPOCH_KEY = b"writer_epoch"
_GENERATION_KEY = b"generation"
_BARRIER_KEY = b"fence_sentinel"

_ROWS_DIGITS = 20
"""Written at full width, so that the headers of one writer differ in known places only."""

_MAX_HEADER = 16 << 20
"""A schema message above 16 MiB is a damaged length, not a schema."""

HEADER_GUESS = 16 << 10
"""How much of an entry to ask for when only its header is wanted: most schemas fit."""


@dataclass(frozen=True, slots=True)
class SourceRange:
    """Offsets [start, until) of one topic partition."""

    topic: str
    partition: int
    start: int
    until: int


@dataclass(frozen=True, slots=True)
class Tags:
    """What a stream's task adds to an entry. Without an attempt an entry is visible by itself."""

    attempt_id: str | None = None
    sources: tuple[SourceRange, ...] = ()


@dataclass(frozen=True)
class EntryHeader:
    """What an entry says of itself. Native's entries have no id, rows or tags.

    `schema` is that of the rows; of ours without what belongs to the entry alone.
    """

    epoch: int
    barrier: bool
    schema: pa.Schema
    generation: int | None = None
    entry_id: str | None = None
    rows: int | None = None
    tags: Tags = field(default=Tags())
    body_checksum: str | None = None
    has_dictionaries: bool = False


@dataclass(frozen=True)
class Entry:
    """A decoded entry. A barrier has no batches."""

    header: EntryHeader
    batches: tuple[pa.RecordBatch, ...]
    nbytes: int

    @property
    def rows(self) -> int:
        """How many rows and tombstones it holds."""
        return sum(batch.num_rows for batch in self.batches)


@dataclass(frozen=True)
class Chunk:
    """Record batches as the bytes they will have in an entry: made by the putting thread, joined by the writing one."""

    buffers: tuple[pa.Buffer, ...]
    rows: int
    nbytes: int
    batches: tuple[pa.RecordBatch, ...] = ()
    """The rows themselves, where a MemTable will want them."""


@dataclass(frozen=True)
class EncodedEntry:
    """An entry ready to be stored: the buffers one after the other."""

    entry_id: str
    buffers: tuple[bytes | pa.Buffer, ...]
    rows: int
    nbytes: int


# -- encoding ------------------------------------------------------------------


def encode_chunk(
    batches: Sequence[pa.RecordBatch], compression: Compression | None = None, *, keep: bool = False
) -> Chunk:
    """The batches (storage schema, none of them empty) as IPC messages; `keep` the batches themselves as well."""
    if any(batch.num_rows == 0 for batch in batches):
        raise InvalidInput("A batch without rows cannot be stored: native Lance would refuse to open the shard.")
    if compression is None and batches and not _has_dictionary(batches[0].schema):
        buffers = tuple(batch.serialize() for batch in batches)
        own = [pa.ipc.read_record_batch(buffer, batches[0].schema) for buffer in buffers] if keep else []
    else:
        buffers = tuple(_streamed(batch, compression) for batch in batches)
        own = [_own(batch) for batch in batches] if keep else []
    return Chunk(buffers, sum(b.num_rows for b in batches), sum(b.size for b in buffers), tuple(own))


def decode_chunk(schema: RowSchema, chunk: Chunk) -> tuple[pa.RecordBatch, ...]:
    """The batches that `encode_chunk` was given."""
    if chunk.batches:
        return chunk.batches
    stream = pa.ipc.open_stream(b"".join([schema.storage.serialize(), *chunk.buffers, _EOS]))
    return tuple(stream)


def encode_entry(
    schema: RowSchema,
    chunks: Sequence[Chunk],
    *,
    epoch: int,
    tags: Tags = Tags(),  # noqa: B008 - frozen
    entry_id: str | None = None,
) -> EncodedEntry:
    """One entry of all chunks, in order. The id is new unless given."""
    rows = sum(chunk.rows for chunk in chunks)
    if rows == 0:
        raise InvalidInput("An entry without rows cannot be stored; only a barrier has none.")
    body = [buffer for chunk in chunks for buffer in chunk.buffers]
    return _seal(schema.storage, body, epoch, schema.table_metadata, tags, rows, entry_id)


def encode_barrier(*, epoch: int, entry_id: str | None = None) -> EncodedEntry:
    """A fence barrier: no rows, only who came."""
    schema = pa.schema([pa.field(TOMBSTONE, pa.bool_(), nullable=False)])
    return _seal(schema, [], epoch, {_BARRIER_KEY: b"true"}, Tags(), 0, entry_id)


def _seal(
    schema: pa.Schema,
    body: Sequence[pa.Buffer],
    epoch: int,
    metadata: dict[bytes, bytes],
    tags: Tags,
    rows: int,
    entry_id: str | None,
) -> EncodedEntry:
    entry_id = entry_id or uuid.uuid4().hex
    digest = xxhash.xxh3_64()
    for buffer in body:
        digest.update(buffer)
    digest.update(_EOS)
    placeholder = secrets.token_hex(8).encode()
    own = {
        _FORMAT_KEY: FORMAT,
        _ID_KEY: entry_id.encode(),
        _ROWS_KEY: f"{rows:0{_ROWS_DIGITS}d}".encode(),
        _BODY_KEY: digest.hexdigest().encode(),
        _HEADER_KEY: placeholder,
    }
    if tags.attempt_id is not None:
        own[_ATTEMPT_KEY] = tags.attempt_id.encode()
    if tags.sources:
        ranges = [[r.topic, r.partition, r.start, r.until] for r in tags.sources]
        own[_SOURCES_KEY] = json.dumps(ranges, separators=(",", ":")).encode()
    index = schema.get_field_index(TOMBSTONE)
    tagged = schema.set(index, schema.field(index).with_metadata(own))
    header = tagged.with_metadata({**metadata, _EPOCH_KEY: str(epoch).encode()}).serialize().to_pybytes()
    if len(header) > _MAX_HEADER:
        raise InvalidInput(f"The schema and tags of an entry take {len(header)} bytes; {_MAX_HEADER} is the most.")
    at = header.index(placeholder)
    header = header[:at] + _header_checksum(header, at) + header[at + 16 :]
    nbytes = len(header) + sum(buffer.size for buffer in body) + len(_EOS)
    return EncodedEntry(entry_id, (header, *body, _EOS), rows, nbytes)


def _header_checksum(header: bytes | memoryview, at: int) -> bytes:
    """Of the schema message with the sixteen characters at `at` taken as zeros."""
    digest = xxhash.xxh3_64(header[:at])
    digest.update(b"0" * 16)
    digest.update(header[at + 16 :])
    return digest.hexdigest().encode()


def _own(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch in memory of its own: a caller may write over its buffers, and a slice would hold all of its parent."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return pa.ipc.open_stream(sink.getvalue()).read_next_batch()


def _has_dictionary(schema: pa.Schema) -> bool:
    def inside(kind: pa.DataType) -> bool:
        if pa.types.is_dictionary(kind):
            return True
        return any(inside(kind.field(i).type) for i in range(kind.num_fields))

    return any(inside(field.type) for field in schema)


def _streamed(batch: pa.RecordBatch, compression: Compression | None) -> pa.Buffer:
    """The messages of one batch as a stream writer makes them, schema message and end cut off."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_batch(batch)
    stream = sink.getvalue()
    start = _message_length(memoryview(stream))
    return stream.slice(start, stream.size - start - len(_EOS))


# -- decoding ------------------------------------------------------------------


def header_length(data: memoryview) -> int:
    """Bytes of the header, told by the first eight. Raises Corrupt."""
    return _message_length(data)


def decode_header(data: memoryview) -> EntryHeader:
    """The header from the entry's first bytes (at least `header_length` of them). Raises Corrupt."""
    length = _message_length(data)
    if len(data) < length:
        raise Corrupt(f"A WAL entry ends inside its header: {len(data)} of {length} bytes.")
    return _parse_header(data[:length])


def decode_entry(data: memoryview) -> Entry:
    """The whole entry, checked. Raises Corrupt."""
    length = _message_length(data)
    if len(data) < length + len(_EOS):
        raise Corrupt(f"A WAL entry is cut short: {len(data)} bytes, its header alone takes {length}.")
    header = _parse_header(data[:length])
    if header.body_checksum is not None and xxhash.xxh3_64(data[length:]).hexdigest() != header.body_checksum:
        raise Corrupt("The rows of a WAL entry do not match its checksum.")
    if header.body_checksum is None or header.has_dictionaries:
        batches = _stream_batches(data, validate=header.body_checksum is None)
    else:
        batches = _own_batches(data[length:], header.schema)
    entry = Entry(header, batches, len(data))
    if header.barrier and batches:
        raise Corrupt("A fence barrier holds rows.")
    if batches and not len(header.schema):
        raise Corrupt("A WAL entry holds rows without columns.")
    if header.rows == 0 and not header.barrier:
        raise Corrupt("A WAL entry without rows is no fence barrier.")
    if header.rows is not None and header.rows != entry.rows:
        raise Corrupt(f"A WAL entry says {header.rows} rows and holds {entry.rows}.")
    return entry


def _message_length(data: memoryview) -> int:
    if len(data) < 8 or bytes(data[:4]) != _CONTINUATION:
        raise Corrupt("A WAL entry does not start as an Arrow IPC stream.")
    (length,) = struct.unpack_from("<i", data, 4)
    if not 0 < length <= _MAX_HEADER:
        raise Corrupt(f"A WAL entry gives its header a length of {length} bytes.")
    return 8 + int(length)


def _parse_header(data: memoryview) -> EntryHeader:
    raw = bytes(data)
    template = _templates.get(len(raw))
    known = template.read(raw) if template is not None else None
    return known if known is not None else _parse_new_header(raw)


def _parse_new_header(raw: bytes) -> EntryHeader:
    data = memoryview(raw)
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(data))
        _check_names(list(schema))
    except (pa.ArrowException, OSError, ValueError, MemoryError, NotImplementedError) as error:
        raise Corrupt("The schema of a WAL entry cannot be read.") from error
    metadata = schema.metadata or {}
    header = EntryHeader(
        epoch=_number(metadata, _EPOCH_KEY),
        barrier=_flag(metadata, _BARRIER_KEY),
        schema=schema,
        generation=_number(metadata, _GENERATION_KEY) if _GENERATION_KEY in metadata else None,
    )
    if not _is_ours(header, raw):
        return header
    header = _with_tags(header, raw)
    if len(_templates) >= _MAX_TEMPLATES:
        _templates.clear()
    _templates[len(raw)] = _Template(raw, header, _header_checksum_of(schema))
    return header


def _check_names(columns: Sequence[pa.Field]) -> None:
    """Raises ValueError where a name is not text or is there twice: Arrow would say so only when it is used."""
    names = [column.name for column in columns]
    if len(set(names)) < len(names) or any("\0" in name for name in names):
        raise ValueError(f"columns are named {names}")
    for column in columns:
        _check_names([column.type.field(i) for i in range(column.type.num_fields)])


def _is_ours(header: EntryHeader, raw: bytes) -> bool:
    """Whether we wrote it: damage must not turn one of ours into one of native's, which has no checksum.

    Native writes a barrier without columns, rows with a generation, or (WAL-only) rows as the
    caller has them, without field ids and `_tombstone`. Everything else is ours, or was.
    """
    if any(key in raw for key in _OUR_KEYS):
        return True
    if header.barrier:
        return len(header.schema) > 0
    return header.generation is None and (FIELD_ID in raw or TOMBSTONE.encode() in raw)


def _with_tags(header: EntryHeader, raw: bytes) -> EntryHeader:
    """One of ours: everything must be there and right."""
    index = header.schema.get_field_index(TOMBSTONE)
    own = (header.schema.field(index).metadata or {}) if index >= 0 else {}
    version = own.get(_FORMAT_KEY)
    checksum = own.get(_HEADER_KEY, b"")
    if len(checksum) != 16 or raw.count(checksum) != 1 or _header_checksum(raw, raw.index(checksum)) != checksum:
        raise Corrupt("The header of a WAL entry does not match its checksum.")
    if version != FORMAT:
        raise Corrupt(
            f"A WAL entry has format {version!r}; this release reads {FORMAT!r}.",
            advice="use a release of headgate that knows this format",
        )
    if not own.get(_ID_KEY) or not own.get(_BODY_KEY):
        raise Corrupt("A WAL entry lacks its id or checksum.")
    try:
        entry_id, body_checksum = own[_ID_KEY].decode(), own[_BODY_KEY].decode()
        attempt = own[_ATTEMPT_KEY].decode() if _ATTEMPT_KEY in own else None
        sources = _sources(own.get(_SOURCES_KEY, b"[]"))
    except (ValueError, TypeError, RecursionError) as error:
        raise Corrupt("The tags of a WAL entry cannot be read.") from error
    return EntryHeader(
        epoch=header.epoch,
        barrier=header.barrier,
        schema=_rows_schema(header.schema, index),
        generation=header.generation,
        entry_id=entry_id,
        rows=_number(own, _ROWS_KEY),
        tags=Tags(attempt, sources),
        body_checksum=body_checksum,
        has_dictionaries=_has_dictionary(header.schema),
    )


def _rows_schema(schema: pa.Schema, tombstone: int) -> pa.Schema:
    """Without the tags and the entry's own metadata: entries of one writer then share one schema."""
    table = {key: value for key, value in (schema.metadata or {}).items() if not is_reserved(key)}
    plain = schema.set(tombstone, schema.field(tombstone).remove_metadata())
    return plain.with_metadata(table) if table else plain.remove_metadata()


class _Template:
    """A header of ours whose like was understood before: another one that differs only in its id, row count
    and checksums need not be parsed again, which is most of what decoding a small entry costs.
    """

    def __init__(self, raw: bytes, header: EntryHeader, checksum: bytes) -> None:
        assert header.entry_id is not None
        assert header.body_checksum is not None
        self._header = header
        rows = f"{header.rows:0{_ROWS_DIGITS}d}".encode()
        values = {"id": header.entry_id.encode(), "rows": rows, "body": header.body_checksum.encode()}
        values["header"] = checksum
        self._spans = {name: (raw.find(value), len(value)) for name, value in values.items()}
        # A value that stands twice, or of another width, could not be told from its surroundings.
        self._usable = all(raw.count(value) == 1 for value in values.values())
        edges = [0, *(edge for start, size in sorted(self._spans.values()) for edge in (start, start + size)), len(raw)]
        self._fixed = [slice(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True)]
        self._like = [raw[part] for part in self._fixed]

    def read(self, raw: bytes) -> EntryHeader | None:
        """The header, or None: then it must be parsed, and what is wrong with it will be found."""
        if not self._usable or [raw[part] for part in self._fixed] != self._like:
            return None
        entry_id, rows, body, checksum = (
            raw[start : start + size] for start, size in (self._spans[n] for n in ("id", "rows", "body", "header"))
        )
        if _header_checksum(raw, self._spans["header"][0]) != checksum or not rows.isdigit():
            return None
        known = self._header
        return EntryHeader(
            epoch=known.epoch,
            barrier=known.barrier,
            schema=known.schema,
            generation=known.generation,
            entry_id=entry_id.decode("ascii", "replace"),
            rows=int(rows),
            tags=known.tags,
            body_checksum=body.decode("ascii", "replace"),
            has_dictionaries=known.has_dictionaries,
        )


def _header_checksum_of(schema: pa.Schema) -> bytes:
    return bytes(schema.field(TOMBSTONE).metadata[_HEADER_KEY])


_templates: dict[int, _Template] = {}
"""By length. A shard's entries come from one writer or few, and most headers of one have one length."""

_MAX_TEMPLATES = 64


def _sources(text: bytes) -> tuple[SourceRange, ...]:
    """The source ranges, each of them [topic, partition, start, until]. Raises ValueError, TypeError."""
    items = json.loads(text)
    if not isinstance(items, list) or [list(map(type, item)) for item in items] != [[str, int, int, int]] * len(items):
        raise ValueError("source ranges are [topic, partition, start, until]")
    return tuple(SourceRange(*item) for item in items)


def _own_batches(body: memoryview, schema: pa.Schema) -> tuple[pa.RecordBatch, ...]:
    """Of bytes whose checksum was right; only what an encoder could have done wrong is left to find."""
    source = pa.BufferReader(pa.py_buffer(body))
    batches = []
    try:
        while source.tell() < len(body) - len(_EOS):
            batches.append(pa.ipc.read_record_batch(pa.ipc.read_message(source), schema))
    except (pa.ArrowException, OSError, ValueError, MemoryError, NotImplementedError, EOFError) as error:
        raise Corrupt("The rows of a WAL entry cannot be read.") from error
    return _ended(batches, body, source.tell() + len(_EOS))


def _ended(batches: Sequence[pa.RecordBatch], data: memoryview, end: int) -> tuple[pa.RecordBatch, ...]:
    if end != len(data) or bytes(data[-len(_EOS) :]) != _EOS:
        raise Corrupt("A WAL entry does not end where its stream ends.")
    if any(batch.num_rows == 0 for batch in batches):
        raise Corrupt("A WAL entry holds a batch without rows.")
    return tuple(batches)


def _stream_batches(data: memoryview, *, validate: bool) -> tuple[pa.RecordBatch, ...]:
    source = pa.BufferReader(pa.py_buffer(data))
    try:
        if validate:
            for message in pa.ipc.MessageReader.open_stream(pa.BufferReader(pa.py_buffer(data))):
                check_lengths(message)
        batches = tuple(pa.ipc.open_stream(source))
        if validate:
            for batch in batches:
                batch.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, MemoryError, NotImplementedError, EOFError) as error:
        raise Corrupt("The rows of a WAL entry cannot be read.") from error
    return _ended(batches, data, source.tell())


def _number(metadata: dict[bytes, bytes], key: bytes) -> int:
    text = metadata.get(key, b"")
    if not text.isdigit() or len(text) > 20 or int(text) >= 1 << 64:
        raise Corrupt(f"A WAL entry has {key.decode()} = {text[:40]!r}, which is not a number.")
    return int(text)


def _flag(metadata: dict[bytes, bytes], key: bytes) -> bool:
    text = metadata.get(key)
    if text not in (None, b"true"):
        raise Corrupt(f"A WAL entry has {key.decode()} = {text[:40]!r}, which is neither true nor absent.")
    return text is not None
