"""Single Lance files through the objects port: what the end of one says, and a small one as bytes.

A Lance file ends in a table of contents and a footer, so that its row count and its schema's
metadata are read without pylance, from any store, in one or two ranges. Bytes that are no Lance
file, however damaged, are Corrupt and nothing else.
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
"""Of the small files written here: the one in which Lance writes its own index files."""

_FOOTER = struct.Struct("<QQQIIHH4s")
"""Where column metadata, its offsets and the buffer table start; how many buffers and columns; version; magic."""
_BUFFER = struct.Struct("<QQ")
_TAIL = 64 << 10
"""Bytes read at first: the end of a file of some hundred columns fits."""

Fetch = Callable[[int, int], "bytes | memoryview"]


@dataclass(frozen=True, slots=True)
class FileEnd:
    """What the end of a Lance file tells."""

    rows: int
    metadata: Mapping[str, str]
    """Of its schema."""


def end_of(data: bytes | memoryview) -> FileEnd:
    """The end of a file that is in memory. Raises Corrupt."""
    return _end(lambda start, length: data[start : start + length], len(data))


def read_end(store: ObjectStore, key: str, size: int) -> FileEnd:
    """The end of a stored file of that size. Raises NotFound, Corrupt."""
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
    """A Lance file with these rows, and this metadata in its schema. Made by pylance in a temporary folder."""
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
"""The few fields of Lance's FileDescriptor that matter here."""
