"""Limits the memory that the compressed buffers of an Arrow message may ask for.

A compressed buffer starts with its uncompressed length, and Arrow allocates that much before it looks at the rest.

Promises:
1. A message that passes `check_lengths` asks for no more than its compressed blocks can hold, and its buffers together
   take no more bytes than it has.
2. Nothing is decompressed, and the work is per block (64 KiB and more of rows), never per row.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pyarrow as pa

from headgate.errors import Corrupt

LZ4, ZSTD = 0, 1
"""Arrow's numbers of the codecs."""

_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3
_AS_IT_IS = -1
"""Stated length of a buffer that was left uncompressed because it would not get smaller."""

_ZSTD_BLOCK = 128 << 10
"""No zstd block holds more, whatever its header says."""

_ZSTD_REPEATED, _ZSTD_COMPRESSED = 1, 2
"""Kinds of blocks: one byte repeated, and compressed; lower numbers are raw bytes."""

_LZ4_RATIO = 255
"""A byte of an lz4 block never stands for more bytes."""


def check_lengths(message: pa.Message) -> None:
    """Raises Corrupt if a compressed buffer of the message states an impossible length."""
    body = _bytes(message.body)
    try:
        codec, buffers = _buffers(_bytes(message.metadata))
        if codec is None:
            return
        if any(min(offset, length) < 0 for offset, length in buffers) or sum(n for _, n in buffers) > len(body):
            raise Corrupt("The compressed buffers of a WAL entry are outside its body.")
        for offset, length in buffers:
            if length:
                _check(codec, body[offset : offset + length])
    except (struct.error, IndexError) as error:
        raise Corrupt("A compressed buffer of a WAL entry is invalid.") from error


def most_in(codec: int, frame: memoryview) -> int:
    """The maximum number of bytes that a compressed frame can hold, from its block headers.

    Raises Corrupt, struct.error or IndexError if it is not such a frame.
    """
    if not frame:
        return 0
    if codec == LZ4:
        return sum(_lz4_blocks(frame))
    if codec == ZSTD:
        return sum(_zstd_blocks(frame))
    raise Corrupt(f"A WAL entry has an unknown compression codec {codec}.")


def _check(codec: int, data: memoryview) -> None:
    (stated,) = struct.unpack_from("<q", data)
    if stated == _AS_IT_IS:
        return
    most = most_in(codec, data[8:])
    if not 0 <= stated <= most:
        raise Corrupt(f"A compressed buffer of a WAL entry states {stated} bytes, but its blocks hold at most {most}.")


def _bytes(buffer: pa.Buffer | None) -> memoryview:
    """As unsigned bytes; those of Arrow's own view are signed."""
    return memoryview(buffer if buffer is not None else b"").cast("B")


# -- what is in a frame --------------------------------------------------------


def _zstd_blocks(data: memoryview) -> Iterator[int]:
    """The maximum size of each block (RFC 8878), of every frame."""
    at = 0
    while at < len(data):
        if bytes(data[at : at + 4]) != b"\x28\xb5\x2f\xfd":
            raise Corrupt("A compressed buffer of a WAL entry is not zstd.")
        flags = data[at + 4]
        single = flags >> 5 & 1
        content_size = (single, 2, 4, 8)[flags >> 6]
        dictionary_id = (0, 1, 2, 4)[flags & 3]
        at += 5 + (1 - single) + dictionary_id + content_size
        last = 0
        while not last:
            head = data[at] | data[at + 1] << 8 | data[at + 2] << 16
            last, kind, size = head & 1, head >> 1 & 3, head >> 3
            yield _ZSTD_BLOCK if kind >= _ZSTD_COMPRESSED else min(size, _ZSTD_BLOCK)
            at += 3 + (1 if kind == _ZSTD_REPEATED else size)
        at += 4 if flags & 4 else 0
        if at > len(data):
            raise Corrupt("A compressed buffer of a WAL entry is cut off.")


def _lz4_blocks(data: memoryview) -> Iterator[int]:
    """The maximum size of each block of the frame; Arrow accepts no second frame."""
    if bytes(data[:4]) != b"\x04\x22\x4d\x18":
        raise Corrupt("A compressed buffer of a WAL entry is not an lz4 frame.")
    flags, largest = data[4], 1 << 8 + 2 * (data[5] >> 4 & 7)
    at = 7 + (8 if flags & 8 else 0) + (4 if flags & 1 else 0)
    while (size := struct.unpack_from("<I", data, at)[0]) != 0:
        stored = size & 0x7FFFFFFF
        yield min(largest, stored if size >> 31 else stored * _LZ4_RATIO)
        at += 4 + stored + (4 if flags & 16 else 0)


# -- where the buffers are: flatbuffers, which Arrow has verified --------------


def _buffers(metadata: memoryview) -> tuple[int | None, list[tuple[int, int]]]:
    """The codec, if there is one, and offset and length of each buffer of the body."""
    message = _follow(metadata, 0)
    kind, batch = _slot(metadata, message, 1), _slot(metadata, message, 2)
    if not kind or not batch or metadata[kind] not in (_DICTIONARY_BATCH, _RECORD_BATCH):
        return None, []
    table = _follow(metadata, batch)
    if metadata[kind] == _DICTIONARY_BATCH:
        data = _slot(metadata, table, 1)
        if not data:
            return None, []
        table = _follow(metadata, data)
    compression, vector = _slot(metadata, table, 3), _slot(metadata, table, 2)
    if not compression or not vector:
        return None, []
    codec = _slot(metadata, _follow(metadata, compression), 0)
    start = _follow(metadata, vector)
    (count,) = struct.unpack_from("<I", metadata, start)
    pairs = metadata[start + 4 : start + 4 + 16 * count]
    return metadata[codec] if codec else LZ4, list(struct.iter_unpack("<qq", pairs))


def _follow(metadata: memoryview, at: int) -> int:
    return at + int(struct.unpack_from("<I", metadata, at)[0])


def _slot(metadata: memoryview, table: int, slot: int) -> int:
    """Offset of a field of a table, or 0 if it is left out."""
    vtable = table - struct.unpack_from("<i", metadata, table)[0]
    (size,) = struct.unpack_from("<H", metadata, vtable)
    if 4 + 2 * slot >= size:
        return 0
    (offset,) = struct.unpack_from("<H", metadata, vtable + 4 + 2 * slot)
    return table + int(offset) if offset else 0
