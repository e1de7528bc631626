"""The slots of a commit log: one record each, put if absent. Whoever puts the record owns the slot."""

from __future__ import annotations

from contextlib import suppress

from headgate import clock
from headgate.checkpoints.log import codec
from headgate.checkpoints.log.decisions import log_end
from headgate.checkpoints.log.reader import RecordReader
from headgate.checkpoints.log.records import Fold, LogRecord, SchemaRecord
from headgate.errors import (
    AlreadyExists,
    Fenced,
    InvalidInput,
    NotFound,
    Poisoned,
    StoreError,
    Transient,
)
from headgate.retry import note_retry


class LogSlots(RecordReader):
    """Puts single records into one stream's log. THIS WRITES; callers decide what to put where."""

    def put(self, record: LogRecord) -> LogRecord | None:
        """Put the record into its slot. None if it was stored; otherwise the record that has the slot, perhaps our own.

        If the store does not answer, the same bytes are sent again for the same slot, by the store's retry policy; a
        slot that is taken and free again uses up the remaining tries. Raises Poisoned if the outcome stays unknown,
        Fenced if the log has gone on.
        """
        key, data = self._key("log", record.sequence), codec.encode(record)
        delays = self._store.retry.delays()
        while True:
            cause: StoreError
            try:
                self._store.put_once(key, data)
                return None
            except AlreadyExists as error:
                cause = error
                if (taken := self._taken(record)) is not None:
                    return taken
            except Transient as error:
                cause = error
            except StoreError as error:
                raise self.unknown(record) from error
            if (delay := next(delays, None)) is None:
                raise self.unknown(record) from cause
            note_retry()
            clock.sleep(delay)

    def put_fold(self, fold: Fold) -> None:
        """Store a fold of this log. Anyone may call it; idempotent, because what it sums up never changes."""
        if fold.stream != self.stream or fold.sequence < 1:
            raise InvalidInput(
                f"A fold of {fold.stream!r} at {fold.sequence} does not belong to this log.", **self._where()
            )
        key, data = self._key("folds", fold.sequence), codec.encode(fold)
        with suppress(AlreadyExists):
            self._store.put_if_absent(key, data)

    def fenced(self, record: LogRecord, successor: LogRecord | None) -> Fenced:
        """The error if the log has gone on."""
        return Fenced(
            "Another driver took over the stream; the record was not committed.",
            **self._where(),
            sequence=record.sequence,
            query_id=_query_of(record),
            successor_query_id=_query_of(successor),
            successor_record_id=successor and successor.record_id,
            advice="stop this query; another driver runs the stream. Start it again only if you want to stop the "
            "other driver",
        )

    def unknown(self, record: LogRecord) -> Poisoned:
        """The error if a put was not answered."""
        return Poisoned(
            "The store did not answer the put of a commit record; it may be stored or not.",
            **self._where(),
            sequence=record.sequence,
            query_id=_query_of(record),
            advice="call it again: that is safe"
            if isinstance(record, SchemaRecord)
            else "start the query again: the log then tells whether the batch counts",
        )

    def _taken(self, record: LogRecord) -> LogRecord | None:
        """The record in the slot. None if the slot is free (a conflict that left nothing): try again."""
        try:
            return self.record(record.sequence)
        except NotFound:
            # Or a batch was there, folded and collected. Only the tip can tell.
            listed, folds = self._list()
        except Transient as error:
            raise self.unknown(record) from error
        if record.sequence in listed:
            return None  # it came since; the next try reads it
        if log_end(listed, folds) >= record.sequence:
            raise self.fenced(record, None)
        return None


def _query_of(record: LogRecord | None) -> str | None:
    return getattr(record, "query_id", None)
