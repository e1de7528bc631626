"""Encodes rows to the bytes of a WAL entry: the putting threads encode chunks, the writing thread joins them."""

from __future__ import annotations

import json
import secrets
import uuid
from collections.abc import Sequence

import pyarrow as pa
import xxhash

from headgate.errors import InvalidInput
from headgate.shards.rows.schema import TOMBSTONE, RowSchema
from headgate.shards.wal.entry import (
    ATTEMPT_KEY,
    BARRIER_KEY,
    BODY_KEY,
    EOS,
    EPOCH_KEY,
    FORMAT,
    FORMAT_KEY,
    HEADER_KEY,
    ID_KEY,
    MAX_HEADER,
    ROWS_DIGITS,
    ROWS_KEY,
    SOURCES_KEY,
    Compression,
    EncodedEntry,
    EncodedRows,
    Tags,
    has_dictionaries,
    header_checksum,
    header_length,
)
from headgate.shards.wal.template import ATTEMPT, BODY, CHECKSUM, ID, MOST, ROWS, SOURCES, Template

_BARRIER = pa.schema([pa.field(TOMBSTONE, pa.bool_(), nullable=False)])


def encode_rows(
    batches: Sequence[pa.RecordBatch], compression: Compression | None = None, *, keep: bool = False
) -> EncodedRows:
    """The batches (storage schema, none of them empty) as IPC messages; with `keep`, the batches themselves as well."""
    if any(batch.num_rows == 0 for batch in batches):
        raise InvalidInput("A batch must have rows: native Lance would refuse to open the shard.")
    if compression is None and batches and not has_dictionaries(batches[0].schema):
        buffers = tuple(batch.serialize() for batch in batches)
        own = [pa.ipc.read_record_batch(buffer, batches[0].schema) for buffer in buffers] if keep else []
    else:
        buffers = tuple(_streamed(batch, compression) for batch in batches)
        own = [_own(batch) for batch in batches] if keep else []
    return EncodedRows(buffers, sum(b.num_rows for b in batches), sum(b.size for b in buffers), tuple(own))


def decode_rows(schema: RowSchema, chunk: EncodedRows) -> tuple[pa.RecordBatch, ...]:
    """The batches that were passed to `encode_rows`."""
    if chunk.batches:
        return chunk.batches
    stream = pa.ipc.open_stream(b"".join([schema.storage.serialize(), *chunk.buffers, EOS]))
    return tuple(stream)


def encode_entry(
    schema: RowSchema,
    chunks: Sequence[EncodedRows],
    *,
    epoch: int,
    tags: Tags = Tags(),  # noqa: B008 - frozen
    entry_id: str | None = None,
) -> EncodedEntry:
    """One entry of all chunks, in order. The id is new unless given."""
    rows = sum(chunk.rows for chunk in chunks)
    if rows == 0:
        raise InvalidInput("An entry must have rows; only a barrier has none.")
    body = [buffer for chunk in chunks for buffer in chunk.buffers]
    return _seal(schema.storage, body, epoch, schema.table_metadata, tags, rows, entry_id)


def encode_barrier(*, epoch: int, entry_id: str | None = None) -> EncodedEntry:
    """A fence barrier: an entry without rows."""
    return _seal(_BARRIER, [], epoch, {BARRIER_KEY: b"true"}, Tags(), 0, entry_id)


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
    digest.update(EOS)
    values = {
        ID: entry_id.encode(),
        ROWS: f"{rows:0{ROWS_DIGITS}d}".encode(),
        BODY: digest.hexdigest().encode(),
        CHECKSUM: secrets.token_hex(8).encode(),
    }
    if tags.attempt_id is not None:
        values[ATTEMPT] = tags.attempt_id.encode()
    if tags.sources:
        ranges = [[r.topic, r.partition, r.start, r.until] for r in tags.sources]
        values[SOURCES] = json.dumps(ranges, separators=(",", ":")).encode()
    header = _header(schema, epoch, metadata, values)
    nbytes = len(header) + sum(buffer.size for buffer in body) + len(EOS)
    return EncodedEntry(entry_id, (header, *body, EOS), rows, nbytes)


def _header(schema: pa.Schema, epoch: int, metadata: dict[bytes, bytes], values: dict[str, bytes]) -> bytes:
    """The schema message. The checksum replaces its placeholder."""
    like = (id(schema), epoch, *((name, len(value)) for name, value in values.items()))
    known = _templates.get(like)
    template = known[1] if known is not None else None
    if template is None or not template.usable:
        index = schema.get_field_index(TOMBSTONE)
        own = {FORMAT_KEY: FORMAT, **{_KEYS[name]: value for name, value in values.items()}}
        tagged = schema.set(index, schema.field(index).with_metadata(own))
        header: bytes = tagged.with_metadata({**metadata, EPOCH_KEY: str(epoch).encode()}).serialize().to_pybytes()
        if len(header) > MAX_HEADER:
            raise InvalidInput(
                f"The schema and tags of an entry have {len(header)} bytes; the maximum is {MAX_HEADER}."
            )
        if len(_templates) >= MOST:
            _templates.clear()
        template = Template(header, values)
        _templates[like] = (schema, template)
    else:
        header = template.filled(values)
    at = header.index(values[CHECKSUM])
    return bytes(header[:at] + header_checksum(header, at) + header[at + 16 :])


_KEYS = {
    ID: ID_KEY,
    ROWS: ROWS_KEY,
    BODY: BODY_KEY,
    CHECKSUM: HEADER_KEY,
    ATTEMPT: ATTEMPT_KEY,
    SOURCES: SOURCES_KEY,
}

_templates: dict[tuple[object, ...], tuple[pa.Schema, Template]] = {}
"""By the identity of the schema (which is kept alive for that), the epoch and the widths of the values."""


def _own(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A copy of the batch in its own memory: a caller may overwrite its buffers, and a slice would keep all of its
    parent.
    """
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return pa.ipc.open_stream(sink.getvalue()).read_next_batch()


def _streamed(batch: pa.RecordBatch, compression: Compression | None) -> pa.Buffer:
    """The messages of one batch as a stream writer makes them, without schema message and end."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_batch(batch)
    stream = sink.getvalue()
    start = header_length(memoryview(stream))
    return stream.slice(start, stream.size - start - len(EOS))
