"""Decodes the bytes of a WAL entry to rows; every byte is checked.

Promises:
1. What `decode_entry` returns for one of our entries is what was encoded; any other bytes raise Corrupt. Native's
   entries have no checksum: bad framing, a missing end, invalid Arrow data and zero-row batches are found, a flipped
   value is not.
2. `decode_header` judges the header alone, by its own checksum.
3. Decoding never allocates more than the given bytes can need: an impossible length is Corrupt.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import xxhash

from headgate.errors import Corrupt
from headgate.shards.rows.evolution import FIELD_ID
from headgate.shards.rows.schema import TOMBSTONE, is_reserved
from headgate.shards.wal.entry import (
    ATTEMPT_KEY,
    BARRIER_KEY,
    BODY_KEY,
    EOS,
    EPOCH_KEY,
    FORMAT,
    FORMAT_KEY,
    GENERATION_KEY,
    HEADER_KEY,
    ID_KEY,
    OUR_KEYS,
    ROWS_KEY,
    SOURCES_KEY,
    Entry,
    EntryHeader,
    SourceRange,
    Tags,
    has_dictionaries,
    header_checksum,
    header_length,
)
from headgate.shards.wal.ipc_bounds import check_lengths
from headgate.shards.wal.template import ATTEMPT, BODY, CHECKSUM, ID, MOST, ROWS, SOURCES, Template


def decode_header(data: memoryview) -> EntryHeader:
    """The header from the entry's first bytes (at least `header_length` of them). Raises Corrupt."""
    length = header_length(data)
    if len(data) < length:
        raise Corrupt(f"A WAL entry is cut off inside its header: {len(data)} of {length} bytes.")
    return _parse_header(data[:length])


def decode_entry(data: memoryview) -> Entry:
    """The whole entry, checked. Raises Corrupt."""
    length = header_length(data)
    if len(data) < length + len(EOS):
        raise Corrupt(f"A WAL entry is cut off: {len(data)} bytes, but its header alone has {length}.")
    header = _parse_header(data[:length])
    if header.body_checksum is not None and xxhash.xxh3_64(data[length:]).hexdigest() != header.body_checksum:
        raise Corrupt("The rows of a WAL entry do not match its checksum.")
    if header.body_checksum is None or header.has_dictionaries:
        batches = _stream_batches(data, validate=header.body_checksum is None)
    else:
        batches = _own_batches(data[length:], header.schema)
    entry = Entry(header, batches, len(data))
    if header.barrier and batches:
        raise Corrupt("A fence barrier has rows.")
    if batches and not len(header.schema):
        raise Corrupt("A WAL entry has rows without columns.")
    if header.rows == 0 and not header.barrier:
        raise Corrupt("A WAL entry without rows is not a fence barrier.")
    if header.rows is not None and header.rows != entry.rows:
        raise Corrupt(f"A WAL entry states {header.rows} rows, but has {entry.rows}.")
    return entry


def _parse_header(data: memoryview) -> EntryHeader:
    raw = bytes(data)
    known = _known.get(len(raw))
    header = known.read(raw) if known is not None else None
    return header if header is not None else _parse_new_header(raw)


def _parse_new_header(raw: bytes) -> EntryHeader:
    data = memoryview(raw)
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(data))
        _check_names(list(schema))
    except (pa.ArrowException, OSError, ValueError, MemoryError, NotImplementedError) as error:
        raise Corrupt("The schema of a WAL entry is invalid.") from error
    metadata = schema.metadata or {}
    header = EntryHeader(
        epoch=_number(metadata, EPOCH_KEY),
        barrier=_flag(metadata, BARRIER_KEY),
        schema=schema,
        generation=_number(metadata, GENERATION_KEY) if GENERATION_KEY in metadata else None,
    )
    if not _is_ours(header, raw):
        return header
    header = _with_tags(header, raw)
    if len(_known) >= MOST:
        _known.clear()
    own = schema.field(TOMBSTONE).metadata
    template = Template(raw, {name: own[key] for name, key in _PLACES.items() if key in own})
    _known[len(raw)] = _Known(template, header)
    return header


def _check_names(columns: Sequence[pa.Field]) -> None:
    """Raises ValueError if a column name is not text or occurs twice: Arrow would report it only when
    the name is used.
    """
    names = [column.name for column in columns]
    if len(set(names)) < len(names) or any("\0" in name for name in names):
        raise ValueError(f"columns are named {names}")
    for column in columns:
        _check_names([column.type.field(i) for i in range(column.type.num_fields)])


def _is_ours(header: EntryHeader, raw: bytes) -> bool:
    """True if headgate wrote it: damage must not turn one of our entries into one of native's, which has no checksum.

    Native writes a barrier without columns, rows with a generation, or (WAL-only) the caller's rows as they are,
    without field ids and `_tombstone`. Everything else is ours, or was.
    """
    if any(key in raw for key in OUR_KEYS):
        return True
    if header.barrier:
        return len(header.schema) > 0
    return header.generation is None and (FIELD_ID in raw or TOMBSTONE.encode() in raw)


def _with_tags(header: EntryHeader, raw: bytes) -> EntryHeader:
    """The header of one of our entries: all tags must be present and valid."""
    index = header.schema.get_field_index(TOMBSTONE)
    own = (header.schema.field(index).metadata or {}) if index >= 0 else {}
    version = own.get(FORMAT_KEY)
    checksum = own.get(HEADER_KEY, b"")
    if len(checksum) != 16 or raw.count(checksum) != 1 or header_checksum(raw, raw.index(checksum)) != checksum:
        raise Corrupt("The header of a WAL entry does not match its checksum.")
    if version != FORMAT:
        raise Corrupt(
            f"A WAL entry has format {version!r}; this release reads {FORMAT!r}.",
            advice="use a release of headgate that supports this format",
        )
    if not own.get(ID_KEY) or not own.get(BODY_KEY):
        raise Corrupt("A WAL entry lacks its id or checksum.")
    try:
        entry_id, body_checksum = own[ID_KEY].decode(), own[BODY_KEY].decode()
        tags = _tags(own.get(ATTEMPT_KEY), own.get(SOURCES_KEY))
    except (ValueError, TypeError, RecursionError) as error:
        raise Corrupt("The tags of a WAL entry are invalid.") from error
    return EntryHeader(
        epoch=header.epoch,
        barrier=header.barrier,
        schema=_rows_schema(header.schema, index),
        generation=header.generation,
        entry_id=entry_id,
        rows=_number(own, ROWS_KEY),
        tags=tags,
        body_checksum=body_checksum,
        has_dictionaries=has_dictionaries(header.schema),
    )


def _rows_schema(schema: pa.Schema, tombstone: int) -> pa.Schema:
    """The schema without tags and the entry's own metadata: the entries of one writer then share one schema."""
    table = {key: value for key, value in (schema.metadata or {}).items() if not is_reserved(key)}
    plain = schema.set(tombstone, schema.field(tombstone).remove_metadata())
    return plain.with_metadata(table) if table else plain.remove_metadata()


@dataclass(frozen=True)
class _Known:
    """A header of ours that was parsed before. A header that differs only in the places of the template need not be
    parsed again.
    """

    template: Template
    header: EntryHeader

    def read(self, raw: bytes) -> EntryHeader | None:
        """The header, or None: then it must be parsed, which finds any errors."""
        found = self.template.values(raw)
        if found is None:
            return None
        if header_checksum(raw, self.template.at(CHECKSUM)) != found[CHECKSUM] or not found[ROWS].isdigit():
            return None
        try:
            return replace(
                self.header,
                entry_id=found[ID].decode(),
                rows=int(found[ROWS]),
                tags=_tags(found.get(ATTEMPT), found.get(SOURCES)),
                body_checksum=found[BODY].decode(),
            )
        except (ValueError, TypeError, RecursionError):
            return None


_PLACES = {
    ID: ID_KEY,
    ROWS: ROWS_KEY,
    BODY: BODY_KEY,
    CHECKSUM: HEADER_KEY,
    ATTEMPT: ATTEMPT_KEY,
    SOURCES: SOURCES_KEY,
}

_known: dict[int, _Known] = {}
"""By length: most headers of one writer have one length, or a few."""


def _tags(attempt: bytes | None, sources: bytes | None) -> Tags:
    """Raises ValueError, TypeError."""
    return Tags(None if attempt is None else attempt.decode(), _sources(sources) if sources is not None else ())


def _sources(text: bytes) -> tuple[SourceRange, ...]:
    """The source ranges, each of them [topic, partition, start, until]. Raises ValueError, TypeError."""
    items = json.loads(text)
    if not isinstance(items, list) or [list(map(type, item)) for item in items] != [[str, int, int, int]] * len(items):
        raise ValueError("source ranges must be [topic, partition, start, until]")
    return tuple(SourceRange(*item) for item in items)


def _own_batches(body: memoryview, schema: pa.Schema) -> tuple[pa.RecordBatch, ...]:
    """The batches of bytes with a valid checksum; finds only errors that an encoder could have made."""
    source = pa.BufferReader(pa.py_buffer(body))
    batches = []
    try:
        while source.tell() < len(body) - len(EOS):
            batches.append(pa.ipc.read_record_batch(pa.ipc.read_message(source), schema))
    except (pa.ArrowException, OSError, ValueError, MemoryError, NotImplementedError, EOFError) as error:
        raise Corrupt("The rows of a WAL entry are invalid.") from error
    return _ended(batches, body, source.tell() + len(EOS))


def _ended(batches: Sequence[pa.RecordBatch], data: memoryview, end: int) -> tuple[pa.RecordBatch, ...]:
    if end != len(data) or bytes(data[-len(EOS) :]) != EOS:
        raise Corrupt("A WAL entry has bytes after the end of its stream.")
    if any(batch.num_rows == 0 for batch in batches):
        raise Corrupt("A WAL entry has a batch without rows.")
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
        raise Corrupt("The rows of a WAL entry are invalid.") from error
    return _ended(batches, data, source.tell())


def _number(metadata: dict[bytes, bytes], key: bytes) -> int:
    text = metadata.get(key, b"")
    if not text.isdigit() or len(text) > 20 or int(text) >= 1 << 64:
        raise Corrupt(f"A WAL entry has {key.decode()} = {text[:40]!r}, which is not a number.")
    return int(text)


def _flag(metadata: dict[bytes, bytes], key: bytes) -> bool:
    text = metadata.get(key)
    if text not in (None, b"true"):
        raise Corrupt(f"A WAL entry has {key.decode()} = {text[:40]!r}, which must be true or absent.")
    return text is not None
