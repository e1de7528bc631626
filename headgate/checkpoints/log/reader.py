"""Reading the commit log of a stream. Writes nothing and fences nobody."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from headgate import parallel
from headgate.checkpoints.log import codec
from headgate.checkpoints.log.names import by_number, fold_number, record_number, stream_folder
from headgate.checkpoints.log.records import (
    BatchRecord,
    Fold,
    LogRecord,
    OpenRecord,
    RewindRecord,
)
from headgate.checkpoints.log.state import LogState, empty, replayed, unfolded
from headgate.connectors.objects import ObjectStore
from headgate.errors import (
    Corrupt,
    DataLoss,
    HeadgateError,
    InvalidInput,
    NotFound,
    Transient,
)

READ_TRIES = 8
"""A listed record vanishes only to garbage collection, after a newer fold, which is rare."""


class RecordReader:
    """One stream's log, for reading."""

    def __init__(
        self,
        store: ObjectStore,
        stream: str,
        table_uri: str,
    ) -> None:
        self.stream = stream
        self.folder = stream_folder(stream)
        self.table = table_uri
        self._store = store

    def read(self, known: LogState | None = None) -> LogState:
        """Read the log. With an earlier state, only what came after it is read.

        1. LIST.
        2. The newest fold, unless the known state is beyond it.
        3. Every record above, in parallel. A missing one is DataLoss, unless a newer fold covers it.

        Raises Corrupt, and InvalidInput for a record of a newer release.
        """
        newest = -1
        for _ in range(READ_TRIES):
            before = newest
            listed, folds = self._list()
            newest = max(folds, default=0)
            try:
                state = known if known is not None and known.sequence >= newest else self._unfolded(newest)
                return self._replayed(state, listed)
            except NotFound as error:
                # At first it may have been collected since the LIST; then a newer fold exists.
                if newest == before:
                    missing = error.detail["sequence"]
                    raise DataLoss(
                        f"The commit log has a hole: {'fold' if missing == newest else 'record'} {missing} is missing.",
                        **self._where(),
                        sequence=missing,
                        fold=newest,
                    ) from error
        raise Transient(f"The commit log was folded during each of {READ_TRIES} reads.", **self._where())

    def record(self, sequence: int) -> LogRecord:
        """The record at a sequence. Raises NotFound, Corrupt, InvalidInput."""
        return self.stored(sequence)[0]

    def stored(self, sequence: int) -> tuple[LogRecord, bytes]:
        """The record at a sequence, and its bytes. Raises as `record`."""
        key = self._key("log", sequence)
        with self._with_context(sequence):
            data = bytes(self._store.get(key))
            record = codec.decode_record(data)
            self._check_place(record, sequence)
            return record, data

    def beginning(self) -> BatchRecord | RewindRecord | None:
        """The first batch or rewind of the log. None if there is none, or the log's first records were collected, even
        if a late open record came into the slot of one (R6): the next batch does not name it.
        """
        opened = None
        for sequence in itertools.count(1):
            try:
                record = self.record(sequence)
            except NotFound:
                return None
            if isinstance(record, OpenRecord):
                opened = record.record_id
            elif isinstance(record, BatchRecord | RewindRecord):
                return record if record.open_id == opened else None
        return None

    def sequences(self) -> set[int]:
        """Sequences of the existing records. One LIST; what is put meanwhile may be left out."""
        return self._list()[0]

    def taken_at(self) -> dict[int, datetime]:
        """Time at which the store took each existing record. One LIST; what is put meanwhile may be left out."""
        records, _ = by_number(self._store.list(self.folder + "/log/"))
        return {sequence: info.modified for sequence, info in records.items()}

    # -- helpers ------------------------------------------------------------------

    def _list(self) -> tuple[set[int], set[int]]:
        """Sequences of the existing records, and of the existing folds."""
        keys = list(self._store.list_keys(self.folder + "/"))
        records, folds = map(record_number, keys), map(fold_number, keys)
        return {one for one in records if one is not None}, {one for one in folds if one is not None}

    def _unfolded(self, sequence: int) -> LogState:
        if sequence == 0:
            return empty(self.stream)
        key = self._key("folds", sequence)
        with self._with_context(sequence):
            fold = codec.decode_fold(self._store.get(key))
            self._check_place(fold, sequence)
            return unfolded(fold)

    def _replayed(self, state: LogState, listed: set[int]) -> LogState:
        """The state plus every record above it. Raises NotFound for the first missing one."""
        above = sorted(sequence for sequence in listed if sequence > state.sequence)
        for place, sequence in enumerate(above, state.sequence + 1):
            if place != sequence:
                # LIST may leave out a record that was put meanwhile, although it shows a later one.
                self.record(place)
                return self._replayed(state, listed | {place})
        if len(above) <= 2:
            return replayed(state, map(self.record, above))
        with parallel.Pool("log") as pool:
            return replayed(state, pool.map(self.record, above))

    def _check_place(self, record: LogRecord | Fold, sequence: int) -> None:
        if record.stream != self.stream:
            raise InvalidInput(
                f"The folder of stream {self.stream!r} is in use by stream {record.stream!r}.",
                advice="choose a name that differs by more than case; nothing was written",
            )
        if record.sequence != sequence:
            raise Corrupt(f"A record of the commit log has the wrong number {record.sequence}.")

    def _key(self, folder: str, sequence: int) -> str:
        return f"{self.folder}/{folder}/{sequence:020d}.json"

    def _where(self) -> dict[str, Any]:
        return {"table": self.table, "stream": self.stream[:200]}

    @contextmanager
    def _with_context(self, sequence: int) -> Iterator[None]:
        try:
            yield
        except HeadgateError as error:
            error.with_context(**self._where(), sequence=sequence)
            raise
