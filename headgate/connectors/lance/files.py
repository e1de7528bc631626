"""Reads the end of a Lance file through the objects port, and makes a small file as bytes.

A Lance file ends in a table of contents and a footer. They have its row count and its schema's metadata, which are read
without pylance, from any store, in a few ranges. Any invalid bytes raise Corrupt and no other error.
"""

from __future__ import annotations

import os
import struct
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pyarrow as pa
from google.protobuf.message import DecodeError

from headgate.connectors.lance.protobuf import message_classes
from headgate.connectors.objects import ObjectStore
from headgate.errors import Corrupt

FILE_VERSION = "2.2"
"""Version of the small files written here: the one that Lance uses for its own index files."""

_FOOTER = struct.Struct("<QQQIIHH4s")
"""Offsets of the column metadata, its offset table and the buffer table; number of buffers and columns; version;
magic."""
_BUFFER = struct.Struct("<QQ")
_TAIL = 64 << 10
"""Bytes of the first read: enough for the end of a file with some hundred columns."""

Fetch = Callable[[int, int], "bytes | memoryview"]


@dataclass(frozen=True, slots=True)
class FileEnd:
    """The facts in the end of a Lance file."""

    rows: int
    metadata: Mapping[str, str]
    """The schema's metadata."""


def end_of(data: bytes | memoryview) -> FileEnd:
    """The end of a file that is in memory. Raises Corrupt."""
    return _end(lambda start, length: data[start : start + length], len(data))


def read_end(store: ObjectStore, key: str, size: int) -> FileEnd:
    """The end of a stored file with that size. Raises NotFound, Corrupt."""
    start = max(0, size - _TAIL)
    tail = bytes(store.get_range(key, start, size - start))

    def fetch(position: int, length: int) -> bytes | memoryview:
        if position >= start:
            return tail[position - start : position - start + length]
        return store.get_range(key, position, length)

    try:
        return _end(fetch, size)
    except Corrupt as error:
        error.with_context(store=store.uri, key=key)
        raise


def small_file(batch: pa.RecordBatch, metadata: Mapping[str, str]) -> bytes:
    """The bytes of a Lance file with these rows and this schema metadata. pylance writes it to a temporary folder."""
    from lance.file import LanceFileWriter

    with tempfile.TemporaryDirectory(prefix="headgate-") as folder:
        path = os.path.join(folder, "small.lance")
        with LanceFileWriter(path, batch.schema, version=FILE_VERSION) as writer:
            for key, value in metadata.items():
                writer.add_schema_metadata(key, value)
            if batch.num_columns:
                writer.write_batch(batch)
        with open(path, "rb") as file:
            return file.read()


def _end(fetch: Fetch, size: int) -> FileEnd:
    if size < _FOOTER.size:
        raise Corrupt(f"A Lance file must have at least {_FOOTER.size} bytes, got {size}.")
    footer = fetch(size - _FOOTER.size, _FOOTER.size)
    if len(footer) != _FOOTER.size:
        raise Corrupt("A Lance file became shorter.")
    *_, table, buffers, _, major, _, magic = _FOOTER.unpack(footer)
    if magic != b"LANC" or major != 2:
        raise Corrupt("A file does not end with the footer of a Lance 2 file.")
    if buffers < 1 or table + _BUFFER.size > size:
        raise Corrupt("The table of contents of a Lance file is out of bounds.")
    position, length = _BUFFER.unpack(fetch(table, _BUFFER.size))
    if position + length > size:
        raise Corrupt("The schema of a Lance file is out of bounds.")
    descriptor = _FileDescriptor()
    try:
        descriptor.ParseFromString(bytes(fetch(position, length)))
        metadata = {entry.key: entry.value.decode() for entry in descriptor.schema.metadata}
    except (DecodeError, UnicodeDecodeError) as error:
        raise Corrupt("The schema of a Lance file is invalid.") from error
    return FileEnd(descriptor.length, metadata)


_FileDescriptor = message_classes(
    {
        "Entry": "key=1:str value=2:bytes",
        "Schema": "metadata=5:Entry*",
        "FileDescriptor": "schema=1:Schema length=2:u64",
    }
)["FileDescriptor"]
"""Lance's FileDescriptor, with only the fields that are needed here."""
