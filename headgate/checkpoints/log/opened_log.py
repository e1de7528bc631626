"""The commit log in the hands of the driver that opened it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any
from uuid import UUID

from headgate import clock
from headgate.checkpoints.log.decisions import is_own, is_stepped_over
from headgate.checkpoints.log.positions import check_listable
from headgate.checkpoints.log.records import (
    Batch,
    BatchRecord,
    LogRecord,
    OffsetMove,
    OpenRecord,
    RewindRecord,
    ShardClaim,
)
from headgate.checkpoints.log.slots import LogSlots
from headgate.checkpoints.log.state import Head, LogState
from headgate.errors import (
    HeadgateError,
    InvalidInput,
)
from headgate.steps import step


class OpenedLog:
    """The commit log, held by the driver that opened it. One thread commits; others may read `head`."""

    def __init__(self, log: LogSlots, record: OpenRecord, state: LogState) -> None:
        self.log = log
        self.record = record
        """The open record."""
        self.state = state
        """The log up to the open record."""
        self.on_record: Callable[[LogRecord], object] = lambda record: None
        """Called with every later record: this driver's own, and schema records that it steps over."""
        self._head = state.head
        self._error: HeadgateError | None = None

    @property
    def head(self) -> Head:
        """The stream's head, own commits included."""
        return self._head

    def extend(self, claims: Mapping[str, ShardClaim], decoder: Mapping[str, Any] | None = None) -> None:
        """Note that this driver has claimed further shards, or makes rows in another way: one more open record, with
        all its claims.

        It goes only into the slot of this driver's next record: a driver that was fenced meanwhile must not take the
        stream back. Raises Fenced, Poisoned.
        """
        decoder = self.record.decoder if decoder is None else decoder
        stored = None
        while stored is None:
            record = replace(
                self.record,
                record_id=uuid.uuid4().hex,
                sequence=self._head.sequence + 1,
                shards=dict(claims),
                decoder=decoder,
                ends=decoded_ends(self._head, decoder),
            )
            stored = self._append(record)
        self.record = record

    def commit(self, batch: Batch, replay_after: Mapping[UUID, int]) -> BatchRecord | None:
        """Make a batch visible. Returns the record as it is stored. None if a schema record has the slot and was
        stepped over: read the columns, write the batch again if needed, and call again (R22).

        `replay_after` is, per shard, the highest one that this driver knows to be written or about to be.

        1. check that a record may list these positions. InvalidInput: nothing was written, and the caller may try
           again.
        2. put the record at the next sequence. One PUT.
        3. if the slot is taken: our own id means that a response was lost, and what is stored counts; a schema record
           is stepped over; anything else is a successor's: Fenced.
        4. if the store does not answer: the same slot again after a pause, then Poisoned.

        Fenced and Poisoned are final.
        """
        self._check_error()
        log = self.log
        check_listable(self._head, batch, replay_after)
        record = BatchRecord(
            **{f.name: getattr(batch, f.name) for f in fields(Batch)},
            record_id=uuid.uuid4().hex,
            sequence=self._head.sequence + 1,
            stream=log.stream,
            open_id=self.record.record_id,
        )
        step("commit record")
        stored = self._append(record)
        return stored if isinstance(stored, BatchRecord | None) else record

    def rewind(self, offsets: tuple[OffsetMove, ...], *, by: str = "", reason: str = "") -> RewindRecord:
        """Let the stream continue at other offsets: one record, only in the slot of this driver's next one.

        Raises Fenced and Poisoned, both final, and Corrupt if the offsets do not start where the stream is.
        """
        stored = None
        while stored is None:
            record = RewindRecord(
                record_id=uuid.uuid4().hex,
                sequence=self._head.sequence + 1,
                stream=self.log.stream,
                open_id=self.record.record_id,
                query_id=self.record.query_id,
                offsets=offsets,
                rewound_at=now_text(),
                by=by,
                reason=reason,
            )
            self._head.after(record)  # refuses what no reader accepts, before anything is written
            step("rewind record")
            stored = self._append(record)
        return stored if isinstance(stored, RewindRecord) else record

    def _check_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _append(self, record: LogRecord) -> LogRecord | None:
        """Put the record at the next sequence and return it as stored. None if a schema record is there and was stepped
        over.

        Raises Fenced, Poisoned; both are final.
        """
        self._check_error()
        log = self.log
        # If anything interrupts the put, its outcome is unknown.
        self._error = log.unknown(record)
        try:
            taken = log.put(record)
        except InvalidInput as error:
            # We never write what we cannot read, so this is a successor of a newer release.
            self._error = log.fenced(record, None)
            raise self._error from error
        except HeadgateError as error:
            self._error = error
            raise
        stored = taken or record
        mine = is_own(record, stored)
        if not mine and not is_stepped_over(stored):
            self._error = log.fenced(record, stored)
            raise self._error
        self._head = self._head.after(stored)
        self.on_record(stored)
        self._error = None
        return stored if mine else None


def decoded_ends(head: Head, decoder: Mapping[str, Any] | None) -> tuple[tuple[str, int, int], ...]:
    """The ends that an open record stores beside its decoder. Batch records are collected, and then only these tell
    which offsets were decoded how.
    """
    return () if decoder is None else tuple((*place, end) for place, end in sorted(head.ends.items()))


def now_text() -> str:
    """The current time, for people."""
    return clock.now().isoformat(timespec="seconds")
