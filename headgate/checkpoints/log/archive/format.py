"""Format of the archive's objects, which keep batch records that leave a commit log: gzip of JSON lines. Pure: no
store, no clock.

Promises:
1. A record is kept as its own JSON, with the time at which the store had taken it, which its deletion would lose.
2. The name of an object is exact: it contains every batch record from its first sequence to its last; any other number
   between is an object of the log that is never deleted (an open record, a rewind). So a LIST shows what an archive
   has.
3. The same records make the same name, whoever puts them. Damaged bytes raise Corrupt.
4. An object has at most MAX_RECORDS records and MAX_BYTES of JSON, or one record.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

import xxhash

from headgate import records
from headgate.checkpoints.log.codec import record_from
from headgate.checkpoints.log.records import BatchRecord, Span
from headgate.checkpoints.log.state import merged
from headgate.errors import Corrupt

MAX_RECORDS = 1000
"""Maximum records of one object: some hundred kilobytes, read in one GET."""

MAX_BYTES = 8 << 20
"""Maximum JSON of one object, before compression: what a reader holds in memory. A record of a thousand shards has 200
kB.
"""

_WHAT = "An archive of the commit log"
_NAME = re.compile(r"([0-9]{20})-([0-9]{20})-([0-9a-f]{16})\.jsonl\.gz")


@dataclass(frozen=True, slots=True)
class ArchivedBatch:
    """A batch record of an archive."""

    record: BatchRecord
    committed_at: datetime
    """When the store took the record into the log."""

    @property
    def sequence(self) -> int:
        """Sequence of the record in the log."""
        return self.record.sequence


@dataclass(frozen=True, slots=True)
class Leaving(ArchivedBatch):
    """A record that is about to be archived."""

    text: bytes
    """JSON of the record, as it is in the log."""


@dataclass(frozen=True, slots=True, order=True)
class ArchiveName:
    """Content of an object's name: it has all batch records from the first sequence to the last."""

    first: int
    last: int
    digest: str

    @property
    def span(self) -> Span:
        """The first and the last sequence."""
        return self.first, self.last

    def __str__(self) -> str:
        return f"{self.first:020d}-{self.last:020d}-{self.digest}.jsonl.gz"


@dataclass(frozen=True, slots=True)
class _Head:
    """The first line of an object."""

    KIND: ClassVar = "archive"
    stream: str
    records: int
    digest: str


def name_of(text: str) -> ArchiveName | None:
    """The parsed name; None if it is not the name of an archive's object."""
    match = _NAME.fullmatch(text)
    name = match and ArchiveName(int(match[1]), int(match[2]), match[3])
    return name if name and name.first <= name.last else None


def runs_of(names: Iterable[ArchiveName]) -> list[Span]:
    """The ranges of sequences that an archive covers, ascending."""
    return list(merged(sorted(name.span for name in names)))


def covers(runs: Sequence[Span], sequence: int) -> bool:
    """True if a sequence is in one of the ascending runs."""
    index = bisect_right(runs, sequence, key=lambda run: run[0]) - 1
    return index >= 0 and sequence <= runs[index][1]


def pieces(found: Iterable[Leaving], stays: Callable[[int], bool]) -> Iterator[list[Leaving]]:
    """Splits ascending records into lots, one per object.

    A lot ends where a number between two records is neither kept in the log forever (`stays`) nor here: another
    collection took that record, or it is unreadable; the name of this object must not claim it.
    """
    piece: list[Leaving] = []
    size = 0
    for one in found:
        if piece and (
            len(piece) >= MAX_RECORDS
            or size + len(one.text) > MAX_BYTES
            or not all(map(stays, range(piece[-1].sequence + 1, one.sequence)))
        ):
            yield piece
            piece, size = [], 0
        piece.append(one)
        size += len(one.text)
    if piece:
        yield piece


# -- bytes -----------------------------------------------------------------------------


def encode(piece: Sequence[Leaving]) -> tuple[ArchiveName, bytes]:
    """Name and bytes of one object: a header line, then one line per record."""
    lines = b"".join(map(_line, piece))
    name = ArchiveName(piece[0].sequence, piece[-1].sequence, xxhash.xxh3_64_hexdigest(lines))
    head = records.encode(_Head(piece[0].record.stream, len(piece), name.digest))
    return name, gzip.compress(_one_line(head) + b"\n" + lines, mtime=0)


def decode(data: bytes | memoryview, name: ArchiveName, stream: str) -> list[ArchivedBatch]:
    """Records of an object, ascending. Raises Corrupt, and InvalidInput for an object of a newer release."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(bytes(data))) as lines:
            head = records.decode(_Head, lines.readline(), _WHAT)
            digest = xxhash.xxh3_64()
            found = []
            for line in lines:
                digest.update(line)
                found.append(_archived(line))
    except (OSError, EOFError, zlib.error) as error:
        raise Corrupt(f"{_WHAT} is damaged: decompression failed.") from error
    _check(head, found, digest.hexdigest(), name, stream)
    return found


def _check(head: _Head, found: Sequence[ArchivedBatch], digest: str, name: ArchiveName, stream: str) -> None:
    if len(found) != head.records or digest != head.digest:
        raise Corrupt(f"{_WHAT} does not have its {head.records} records; found {len(found)}.")
    sequences = [one.sequence for one in found]
    if (
        not sequences
        or digest != name.digest
        or sequences != sorted(set(sequences))
        or (sequences[0], sequences[-1]) != (name.first, name.last)
    ):
        raise Corrupt(f"{_WHAT} has records that do not match its name.")
    if any(one.record.stream != stream for one in found):
        raise Corrupt(f"Found an archive of stream {head.stream!r} in the place of stream {stream!r}.")


def _line(one: Leaving) -> bytes:
    at = json.dumps(one.committed_at.isoformat()).encode()
    return b'{"committed_at": ' + at + b', "record": ' + _one_line(one.text) + b"}\n"


def _one_line(text: bytes) -> bytes:
    """JSON on one line. Line ends are only between values: inside strings they are escaped."""
    return b" ".join(text.split(b"\n")).strip()


def _archived(line: bytes) -> ArchivedBatch:
    with records.understood(_WHAT):
        found = json.loads(line)
        record, committed_at = found["record"], datetime.fromisoformat(found["committed_at"])
    batch = record_from(record)
    if not isinstance(batch, BatchRecord):
        raise Corrupt(f"{_WHAT} has record {batch.sequence}, which is not a batch.")
    return ArchivedBatch(batch, committed_at)
