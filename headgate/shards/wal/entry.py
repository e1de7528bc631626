"""A WAL entry: Lance's own format, plus our tags, in a place that native ignores.

An entry is an Arrow IPC stream whose schema metadata names the writer's epoch. Ours also carry, in the field metadata
of `_tombstone` (the one place where native ignores it): a unique entry id, the row count, a checksum of the header and
one of the rest, and for streams the attempt id and the source ranges.

The bytes are made by `encoder` and read by `decoder`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import pyarrow as pa
import xxhash

from headgate.errors import Corrupt

Compression = Literal["lz4", "zstd"]

FORMAT = b"1"
"""Version of our tags. A newer one is refused: its rules are unknown here."""

EOS = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_CONTINUATION = b"\xff\xff\xff\xff"
FORMAT_KEY = b"headgate:format"
ID_KEY = b"headgate:entry"
ATTEMPT_KEY = b"headgate:attempt"
SOURCES_KEY = b"headgate:sources"
ROWS_KEY = b"headgate:rows"
BODY_KEY = b"headgate:body"
HEADER_KEY = b"headgate:header"
OUR_KEYS = (FORMAT_KEY, ID_KEY, ATTEMPT_KEY, SOURCES_KEY, ROWS_KEY, BODY_KEY, HEADER_KEY)
EPOCH_KEY = b"writer_epoch"
GENERATION_KEY = b"generation"
BARRIER_KEY = b"fence_sentinel"

ROWS_DIGITS = 20
"""Always written with this many digits, so that the headers of one writer differ in known places only."""

MAX_HEADER = 16 << 20
"""A schema message above 16 MiB is a damaged length, not a schema."""

HEADER_GUESS = 16 << 10
"""Bytes to read if only the header of an entry is needed: most schemas fit."""


@dataclass(frozen=True, slots=True)
class SourceRange:
    """Offsets [start, until) of one topic partition."""

    ROW: ClassVar = True
    topic: str
    partition: int
    start: int
    until: int


@dataclass(frozen=True, slots=True)
class Tags:
    """What a stream's task adds to an entry. An entry without an attempt is visible by itself."""

    attempt_id: str | None = None
    sources: tuple[SourceRange, ...] = ()


@dataclass(frozen=True)
class EntryHeader:
    """The facts in an entry's header. Native's entries have no id, rows or tags.

    `schema` is that of the rows; in our entries without what belongs to the single entry.
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
        """Number of rows and tombstones."""
        return sum(batch.num_rows for batch in self.batches)


@dataclass(frozen=True)
class EncodedRows:
    """Record batches encoded as the bytes of an entry: the putting thread encodes them, the writing
    thread joins them.
    """

    buffers: tuple[pa.Buffer, ...]
    rows: int
    nbytes: int
    batches: tuple[pa.RecordBatch, ...] = ()
    """The rows themselves, if a MemTable needs them."""


@dataclass(frozen=True)
class EncodedEntry:
    """An entry ready to be stored: consecutive buffers."""

    entry_id: str
    buffers: tuple[bytes | pa.Buffer, ...]
    rows: int
    nbytes: int


# -- shared by encoder and decoder -----------------------------------------------


def header_length(data: memoryview) -> int:
    """Length of the header, from its first eight bytes. Raises Corrupt."""
    if len(data) < 8 or bytes(data[:4]) != _CONTINUATION:
        raise Corrupt("A WAL entry does not start as an Arrow IPC stream.")
    (length,) = struct.unpack_from("<i", data, 4)
    if not 0 < length <= MAX_HEADER:
        raise Corrupt(f"A WAL entry gives its header a length of {length} bytes.")
    return 8 + int(length)


def header_checksum(header: bytes | memoryview, at: int) -> bytes:
    """The checksum of a header: the schema message with the sixteen characters at `at` taken as zeros."""
    digest = xxhash.xxh3_64(header[:at])
    digest.update(b"0" * 16)
    digest.update(header[at + 16 :])
    return digest.hexdigest().encode()


def has_dictionaries(schema: pa.Schema) -> bool:
    """True if a column, or a part of one, is dictionary-encoded."""

    def inside(kind: pa.DataType) -> bool:
        if pa.types.is_dictionary(kind):
            return True
        return any(inside(kind.field(i).type) for i in range(kind.num_fields))

    return any(inside(field.type) for field in schema)
