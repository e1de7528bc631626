"""The archive of a stream's commit log: batch records outlive their folding, for readers that need each of them.

A ledger needs them. So a stream that has or had a ledger has an archive, which begins with the ledger and never ends; a
stream without a ledger has none, and pays nothing. `streams/<stream>/archive.json` says that it has begun, and the
objects are `archive/<stream>/<first>-<last>-<digest>.jsonl.gz` in the folder of the table's records (see `format`), not
in the log's own folder: that is listed at every start.

Promises:
1. From its beginning on, a batch record is in the log, in the archive, or in both: it is archived before it is deleted.
2. Two concurrent collections, and a collection that died anywhere, leave each record in some object; a record that is
   in two is read once. A record that the archive has is not put again.
3. No object of an archive is ever changed or deleted. No protocol reads it: fences and visibility are the log's.

A collection that had read the log just before the archive began may still delete records that the archive does not
have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from headgate import records
from headgate.checkpoints.log.archive.format import (
    ArchivedBatch,
    ArchiveName,
    Leaving,
    covers,
    decode,
    encode,
    name_of,
    pieces,
    runs_of,
)
from headgate.checkpoints.log.commit_log import CommitLog
from headgate.checkpoints.log.names import ARCHIVE, ROOT
from headgate.checkpoints.log.records import BatchRecord, LogRecord, Span
from headgate.connectors.objects import ObjectStore
from headgate.errors import AlreadyExists, Corrupt, HeadgateError, InvalidInput, NotFound
from headgate.parallel import Pool, in_order

ARCHIVES = "archive/"
"""Below the folder of the table's own records."""

LOT = 256
"""Number of batch records that a driver collects before it archives them, so that a year's archive is thousands of
objects and not a hundred thousand. The log of such a stream is longer by as many records; one LIST request shows a
thousand.
"""


@dataclass(frozen=True, slots=True)
class _Beginning:
    KIND: ClassVar = "archive"
    stream: str
    since: int


class LogArchive:
    """Archive of one stream. Reading writes nothing."""

    def __init__(self, store: ObjectStore, stream: str, table_uri: str) -> None:
        self.log = CommitLog(store, stream, table_uri)
        self.marker = f"{self.log.folder}/{ARCHIVE}"
        self.folder = ARCHIVES + self.log.folder.removeprefix(ROOT) + "/"
        self._store = store

    # -- beginning ---------------------------------------------------------------------

    def begin(self) -> None:
        """Begin the archive: from here on, nothing is deleted that it does not have. THIS WRITES. Idempotent."""
        if self.has_begun():
            return
        there = self.log.sequences()
        gone = next((one for one in range(max(there, default=0), 0, -1) if one not in there), 0)
        data = records.encode(_Beginning(self.log.stream, gone))
        with suppress(AlreadyExists):
            self._store.put_if_absent(self.marker, data)

    def has_begun(self) -> bool:
        """True if the archive has begun. One HEAD. A listing of the stream's folder shows it too."""
        try:
            self._store.head(self.marker)
        except NotFound:
            return False
        return True

    def since(self) -> int:
        """Last sequence that was already gone when the archive began. Raises NotFound, Corrupt, InvalidInput."""
        what = "The start record of an archive"
        beginning = records.decode(_Beginning, self._store.get(self.marker), what)
        if beginning.stream != self.log.stream:
            raise Corrupt(f"{what} belongs to stream {beginning.stream[:200]!r}.")
        return beginning.since

    # -- archiving ---------------------------------------------------------------------

    def keep(self, batches: Mapping[int, datetime]) -> set[int]:
        """Archive batch records of the log, each with its time. Returns the sequences that may be deleted now. THIS
        WRITES.

        1. LIST: what the archive has is not put again.
        2. GET the others, in order. If one is gone meanwhile, another collection archived it; a damaged one stays in
           the log.
        3. put them, in objects of bounded size. If the name is taken, the same records are there. A name spans only
           records of the object and records that are known not to be batches: an unreadable record may be a batch.

        A crash anywhere leaves all of them in the log.
        """
        runs = self.runs()
        done = {sequence for sequence in batches if covers(runs, sequence)}
        with Pool("archive") as pool:
            leaving = self._leaving({one: at for one, at in batches.items() if one not in done}, pool)
            for piece in pieces(leaving, self._stays):
                name, data = encode(piece)
                with suppress(AlreadyExists):
                    self._put(name, data)
                done |= {one.sequence for one in piece}
        return done

    def _put(self, name: ArchiveName, data: bytes) -> None:
        self._store.put_if_absent(self.key(name), data)

    def _leaving(self, batches: Mapping[int, datetime], pool: Pool) -> Iterator[Leaving]:
        for sequence, (record, text) in in_order(pool, self._stored, sorted(batches)):
            if isinstance(record, BatchRecord):
                yield Leaving(record, batches[sequence], text)

    def _stays(self, sequence: int) -> bool:
        """True if the log is known to keep this record forever: an open record, or a rewind."""
        record, _ = self._stored(sequence)[1]
        return record is not None and not isinstance(record, BatchRecord)

    def _stored(self, sequence: int) -> tuple[int, tuple[LogRecord | None, bytes]]:
        """The record and its bytes; None if it is gone or unreadable."""
        try:
            return sequence, self.log.stored(sequence)
        except (NotFound, Corrupt, InvalidInput):
            return sequence, (None, b"")

    # -- reading -----------------------------------------------------------------------

    def names(self) -> list[ArchiveName]:
        """Names of the existing objects, ascending. One LIST."""
        infos = list(self._store.list(self.folder))
        found = (name_of(info.key.removeprefix(self.folder)) for info in infos)
        return sorted(name for name in found if name is not None)

    def runs(self) -> list[Span]:
        """Ranges of sequences whose batch records the archive has, ascending. One LIST."""
        return runs_of(self.names())

    def read(self, name: ArchiveName) -> list[ArchivedBatch]:
        """Records of an object, ascending. Raises NotFound, Corrupt, InvalidInput."""
        try:
            return decode(self._store.get(self.key(name)), name, self.log.stream)
        except HeadgateError as error:
            error.with_context(table=self.log.table, stream=self.log.stream[:200], key=self.key(name))
            raise

    def above(self, done: int) -> Iterator[ArchivedBatch]:
        """Records after a sequence, ascending, each once; an object is read when its turn comes. Raises as `read`."""
        names = [name for name in self.names() if name.last > done]
        waiting: dict[int, ArchivedBatch] = {}
        for place, name in enumerate(names, 1):
            for one in self.read(name):
                if one.sequence > done:
                    waiting.setdefault(one.sequence, one)
            # Everything below the next object's first record is complete.
            upto = names[place].first if place < len(names) else max(waiting, default=0) + 1
            for sequence in sorted(one for one in waiting if one < upto):
                yield waiting.pop(sequence)

    def key(self, name: ArchiveName) -> str:
        return f"{self.folder}{name}"
