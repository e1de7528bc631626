"""The commit log of a stream: who may commit, and what is committed.

The log is one folder of numbered records, each put if absent and never changed:
`streams/<stream>/log/<sequence>.json` in the folder of the table's records, folds beside it.

Promises:
1. A batch record is in the log whole or not at all, and once at most: every row of the
   batch becomes visible with it, in all shards together.
2. After `open` has returned, no driver that opened before commits anything: the slot it
   wants holds a successor's open record, which is never deleted (R2, R5). It may step over
   schema records to get there; these fence nobody (R22).
3. A lost response is not an error: a record is known by its random id.
4. A log that raised Fenced or Poisoned never touches the store again.
5. Committing is one PUT; no GET, no LIST.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from headgate import clock, parallel
from headgate.checkpoints.log import codec
from headgate.checkpoints.log.decisions import Opened, is_announced, is_own, is_stepped_over, judge_open, log_end
from headgate.checkpoints.log.names import by_number, fold_number, record_number, stream_folder
from headgate.checkpoints.log.positions import check_listable
from headgate.checkpoints.log.records import (
    Batch,
    BatchRecord,
    Fold,
    Moved,
    OpenRecord,
    Record,
    RewindRecord,
    SchemaRecord,
    ShardClaim,
)
from headgate.checkpoints.log.state import Head, LogState, empty, replayed, unfolded
from headgate.connectors.objects import ObjectStore
from headgate.errors import (
    AlreadyExists,
    Corrupt,
    DataLoss,
    Fenced,
    HeadgateError,
    InvalidInput,
    NotFound,
    Poisoned,
    StoreError,
    Transient,
)
from headgate.retry import Retry, note_retry
from headgate.steps import step

OPEN_TRIES = 16
"""As for a shard's claim. Each lost try means that another record came, so more would be a war."""

READ_TRIES = 8
"""A listed record vanishes only to garbage collection, after a newer fold; it does not run that often."""


class CommitLog:
    """One stream's log. Reading writes nothing and fences nobody."""

    def __init__(
        self,
        store: ObjectStore,
        stream: str,
        table_uri: str,
        retry: Retry = Retry(),  # noqa: B008
    ) -> None:
        self.stream = stream
        self.folder = stream_folder(stream)
        self.table = table_uri
        self._store = store
        self._retry = retry

    # -- reading ---------------------------------------------------------------

    def read(self, known: LogState | None = None) -> LogState:
        """The log as it is. Given an earlier state, only what came after it is read.

        1. LIST.
        2. The newest fold, unless the known state is beyond it.
        3. Every record above, in parallel. One that is missing is DataLoss, unless a newer
           fold explains it.

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
                # The first time it may have been collected since the LIST, and a newer fold is there.
                if newest == before:
                    missing = error.detail["sequence"]
                    raise DataLoss(
                        f"The commit log has a hole: {'fold' if missing == newest else 'record'} {missing} is missing.",
                        **self._where(),
                        sequence=missing,
                        fold=newest,
                    ) from error
        raise Transient(f"The commit log was folded during each of {READ_TRIES} reads.", **self._where())

    def record(self, sequence: int) -> Record:
        """The record at a sequence. Raises NotFound, Corrupt, InvalidInput."""
        return self.stored(sequence)[0]

    def stored(self, sequence: int) -> tuple[Record, bytes]:
        """The record at a sequence, and its bytes. Raises as `record`."""
        key = self._key("log", sequence)
        with self._located(sequence):
            data = bytes(self._retry.run(lambda: self._store.get(key)))
            record = codec.decode_record(data)
            self._check_place(record, sequence)
            return record, data

    def beginning(self) -> BatchRecord | RewindRecord | None:
        """The first batch or rewind of the log. None: there is none, or the log's first records were collected."""
        for sequence in itertools.count(1):
            try:
                record = self.record(sequence)
            except NotFound:
                return None
            if isinstance(record, BatchRecord | RewindRecord):
                return record
        return None

    def sequences(self) -> set[int]:
        """Of the records that are there. One LIST; what is put meanwhile may be left out."""
        return self._list()[0]

    def taken_at(self) -> dict[int, datetime]:
        """Of the records that are there, when the store took each. One LIST; as `sequences` otherwise."""
        records, _ = by_number(self._retry.run(lambda: list(self._store.list(self.folder + "/log/"))))
        return {sequence: info.modified for sequence, info in records.items()}

    # -- opening ---------------------------------------------------------------

    def open(
        self,
        query_id: str,
        claims: Mapping[str, ShardClaim],
        known: LogState | None = None,
        decoder: Mapping[str, Any] | None = None,
    ) -> OpenedLog:
        """Take the log over. THIS WRITES, AND IT FENCES AN EARLIER DRIVER.

        Call it after every shard of the stream was claimed and has its barrier. `decoder` is how the driver makes
        rows; None for one that makes none.

        1. read the log; given an earlier state, only what came after it.
        2. put the open record at the next sequence. Taken by another: read on and try
           again. Taken by our own id: a response was lost, and it counts.
        3. LIST once: another's open record above it means Fenced (R6). A batch above it, or a
           fold over it: it lies in a slot that was collected; once more. Schema records above
           it belong to the log from here on (R22).

        Read the table's columns afterwards: a change that no schema record tells is in them.

        A crash after any step leaves a log that opens. Raises Fenced where another driver
        came later; Poisoned where the store did not answer, so that the record may or may
        not be there (it would fence others, and harm nothing).
        """
        step("read")
        state = self.read(known)
        opened_at = _now()
        for _ in range(OPEN_TRIES):
            record = OpenRecord(
                record_id=uuid.uuid4().hex,
                sequence=state.sequence + 1,
                stream=self.stream,
                query_id=query_id,
                shards=dict(claims),
                opened_at=opened_at,
                decoder=decoder,
                ends=_ends(state.head, decoder),
            )
            step("open record")
            try:
                taken = self._put(record)
            except Fenced:
                # The slot was taken, folded and collected since the log was read: it went on.
                state = self.read(state)
                continue
            if taken is None or is_own(record, taken):
                step("prove")
                if (proven := self._proven(replayed(state, [record]), record)) is not None:
                    return OpenedLog(self, record, proven)
                state = self.read(state)
                continue
            state = self.read(state)
            if state.sequence < taken.sequence:
                # A put that has not returned yet need not be listed.
                state = replayed(state, [taken])
        raise Transient(f"Others wrote to the commit log in each of {OPEN_TRIES} tries.", **self._where())

    def _proven(self, state: LogState, record: OpenRecord) -> LogState | None:
        """The log with what lies above our open record, which is the last of the state. None: put it once more."""
        listed, folds = self._list()
        folded = max(folds, default=0)
        above = self._above(record.sequence, listed, every=folded < record.sequence)
        judged = judge_open(record, above, folded)
        if judged is Opened.FENCED:
            raise Fenced(
                "Another driver wrote to the commit log while this one was opening it.",
                **self._where(),
                sequence=record.sequence,
                last_sequence=log_end(listed, folds),
            )
        return replayed(state, filter(None, above)) if judged is Opened.HELD else None

    def _above(self, sequence: int, listed: set[int], *, every: bool) -> list[Record | None]:
        """The records above a sequence that LIST shows; `every` one up to the last, since a LIST may leave out what was
        put meanwhile. None: it is gone.
        """
        last = max(listed, default=0)
        wanted = range(sequence + 1, last + 1) if every else sorted(one for one in listed if one > sequence)
        found: list[Record | None] = []
        for place in wanted:
            try:
                found.append(self.record(place))
            except NotFound:
                found.append(None)
        return found

    # -- a change of columns ---------------------------------------------------

    def put_schema_record(self) -> SchemaRecord:
        """Tell the stream's driver, whoever it is, that the table's columns changed. THIS WRITES; it fences nobody.

        Call it after the base has changed. Twice equals once: a driver reads the columns once more.

        1. LIST: where the log ends.
        2. put the record there. A slot that is taken: the next one. Taken by our own id: a response was lost.
        3. LIST: a fold at or above the record means that it may lie in a slot that was collected, to which no driver
           comes any more: once more.

        From here on no batch commits that was not decided upon after the change (R22). Raises Poisoned where the store
        does not answer, Transient where others were faster each time; InvalidInput, Corrupt.
        """
        for _ in range(OPEN_TRIES):
            step("log end")
            sequence = log_end(*self._list()) + 1
            with suppress(Fenced):  # the slot was collected since: the log went on, so look for its end again
                record = self._put_at(sequence)
                step("announced")
                if is_announced(record, max(self._list()[1], default=0)):
                    return record
        raise Transient(f"The commit log was folded during each of {OPEN_TRIES} tries.", **self._where())

    def _put_at(self, first: int) -> SchemaRecord:
        record_id, changed_at = uuid.uuid4().hex, _now()
        for sequence in itertools.count(first):
            record = SchemaRecord(record_id=record_id, sequence=sequence, stream=self.stream, changed_at=changed_at)
            step("schema record")
            taken = self._put(record)
            if taken is None or is_own(record, taken):
                break
        return record

    # -- folding ---------------------------------------------------------------

    def put_fold(self, fold: Fold) -> None:
        """Store a fold of this log. Anyone may, and twice equals once: what it sums up never changes."""
        if fold.stream != self.stream or fold.sequence < 1:
            raise InvalidInput(f"A fold of {fold.stream!r} at {fold.sequence} is none of this log.", **self._where())
        key, data = self._key("folds", fold.sequence), codec.encode(fold)
        with suppress(AlreadyExists):
            self._retry.run(lambda: self._store.put_if_absent(key, data))

    def begin(self, fold: Fold, opened: OpenRecord) -> None:
        """Begin the log of a clone: the fold of what came before, and an open record above it. Twice equals once."""
        self.put_fold(fold)
        key, data = self._key("log", opened.sequence), codec.encode(opened)
        with suppress(AlreadyExists):
            self._retry.run(lambda: self._store.put_if_absent(key, data))

    # -- what the above is made of -----------------------------------------------

    def _list(self) -> tuple[set[int], set[int]]:
        """The sequences of the records and of the folds that are there."""
        keys = self._retry.run(lambda: list(self._store.list_keys(self.folder + "/")))
        records, folds = map(record_number, keys), map(fold_number, keys)
        return {one for one in records if one is not None}, {one for one in folds if one is not None}

    def _unfolded(self, sequence: int) -> LogState:
        if sequence == 0:
            return empty(self.stream)
        key = self._key("folds", sequence)
        with self._located(sequence):
            fold = codec.decode_fold(self._retry.run(lambda: self._store.get(key)))
            self._check_place(fold, sequence)
            return unfolded(fold)

    def _replayed(self, state: LogState, listed: set[int]) -> LogState:
        """The state and every record above it. Raises NotFound for the first that is missing."""
        above = sorted(sequence for sequence in listed if sequence > state.sequence)
        for place, sequence in enumerate(above, state.sequence + 1):
            if place != sequence:
                # A record that came during the LIST may be left out of it, though a later one is in.
                self.record(place)
                return self._replayed(state, listed | {place})
        if len(above) <= 2:
            return replayed(state, map(self.record, above))
        with parallel.Pool("log") as pool:
            return replayed(state, pool.map(self.record, above))

    def _put(self, record: Record) -> Record | None:
        """None: stored. Otherwise the record that has the slot, perhaps our own.

        A store that does not answer is asked again with the same bytes for the same slot.
        Raises Poisoned where the outcome stays unknown, Fenced where the log has gone on.
        """
        key, data = self._key("log", record.sequence), codec.encode(record)
        delays = self._retry.delays()
        while True:
            cause: StoreError
            try:
                self._store.put_if_absent(key, data)
                return None
            except AlreadyExists as error:
                cause = error
                if (taken := self._taken(record)) is not None:
                    return taken
            except Transient as error:
                cause = error
            except StoreError as error:
                raise self._unknown(record) from error
            if (delay := next(delays, None)) is None:
                raise self._unknown(record) from cause
            note_retry()
            clock.sleep(delay)

    def _taken(self, record: Record) -> Record | None:
        """Who has the slot? None: nobody, a conflict that left nothing; try again."""
        try:
            return self.record(record.sequence)
        except NotFound:
            # Or a batch that was folded and collected. Only the tip can tell.
            listed, folds = self._list()
        except Transient as error:
            raise self._unknown(record) from error
        if record.sequence in listed:
            return None  # it came since, and the next try reads it
        if log_end(listed, folds) >= record.sequence:
            raise self._fenced(record, None)
        return None

    def _fenced(self, record: Record, successor: Record | None) -> Fenced:
        return Fenced(
            "A successor has taken the stream over; the record was not committed.",
            **self._where(),
            sequence=record.sequence,
            query_id=_query_of(record),
            successor_query_id=_query_of(successor),
            successor_record_id=successor and successor.record_id,
            advice="stop this query; another driver runs the stream. Start again only if that one should stop",
        )

    def _unknown(self, record: Record) -> Poisoned:
        return Poisoned(
            "A record of the commit log could not be stored; whether it was is unknown.",
            **self._where(),
            sequence=record.sequence,
            query_id=_query_of(record),
            advice="call it again: twice equals once"
            if isinstance(record, SchemaRecord)
            else "start the query again: the log then says whether the batch counts",
        )

    def _check_place(self, record: Record | Fold, sequence: int) -> None:
        if record.stream != self.stream:
            raise InvalidInput(
                f"The folder of stream {self.stream!r} is in use by stream {record.stream!r}.",
                advice="choose a name that differs by more than case; nothing was written",
            )
        if record.sequence != sequence:
            raise Corrupt(f"A record of the commit log says that it is number {record.sequence}.")

    def _key(self, folder: str, sequence: int) -> str:
        return f"{self.folder}/{folder}/{sequence:020d}.json"

    def _where(self) -> dict[str, Any]:
        return {"table": self.table, "stream": self.stream[:200]}

    @contextmanager
    def _located(self, sequence: int) -> Iterator[None]:
        try:
            yield
        except HeadgateError as error:
            error.located(**self._where(), sequence=sequence)
            raise


def _query_of(record: Record | None) -> str | None:
    return getattr(record, "query_id", None)


def _now() -> str:
    return clock.now().isoformat(timespec="seconds")


class OpenedLog:
    """The log in the hands of the driver that opened it. One thread commits; others may read `head`."""

    def __init__(self, log: CommitLog, record: OpenRecord, state: LogState) -> None:
        self.log = log
        self.record = record
        """The open record."""
        self.state = state
        """The log as the open record fixed it."""
        self.on_record: Callable[[Record], object] = lambda record: None
        """Told of every record that comes after: this driver's own, and schema records that it steps over."""
        self._head = state.head
        self._error: HeadgateError | None = None

    @property
    def head(self) -> Head:
        """Where the stream stands now, own commits included."""
        return self._head

    def extend(self, claims: Mapping[str, ShardClaim], decoder: Mapping[str, Any] | None = None) -> None:
        """Note that this driver has claimed further shards, or makes rows in another way: one more open record, with
        all its claims.

        It goes where this driver's next record belongs and nowhere else: a driver that was fenced
        meanwhile must not take the stream back. Raises Fenced, Poisoned.
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
                ends=_ends(self._head, decoder),
            )
            stored = self._append(record)
        self.record = record

    def commit(self, batch: Batch, replay_after: Mapping[UUID, int]) -> BatchRecord | None:
        """Make a batch visible. Returns the record as it is stored. None: a schema record has the slot, and was stepped
        over; read the columns, write the batch again where that is needed, and call again (R22).

        `replay_after` is per shard what this driver knows to be written or about to be.

        1. check that a record may list these positions. InvalidInput: nothing was written,
           and another try is welcome.
        2. put the record at the next sequence. One PUT.
        3. the slot is taken: our own id means that a response was lost, and what is stored
           counts; a schema record is stepped over; anything else is a successor's: Fenced.
        4. the store does not answer: the same slot again after a pause, then Poisoned.

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

    def rewind(self, offsets: tuple[Moved, ...], *, by: str = "", reason: str = "") -> RewindRecord:
        """Let the stream go on at other offsets: one record where this driver's next one belongs, and nowhere else.

        Raises Fenced and Poisoned, both final, and Corrupt where the offsets are not where the stream stands.
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
                rewound_at=_now(),
                by=by,
                reason=reason,
            )
            self._head.after(record)  # refuses what no reader could follow, before anything is written
            step("rewind record")
            stored = self._append(record)
        return stored if isinstance(stored, RewindRecord) else record

    def _check_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _append(self, record: Record) -> Record | None:
        """The record as it is stored at the next sequence. None: a schema record is there, and was stepped over.

        Raises Fenced, Poisoned; both are final.
        """
        self._check_error()
        log = self.log
        # Whatever interrupts the put leaves its outcome unknown.
        self._error = log._unknown(record)
        try:
            taken = log._put(record)
        except InvalidInput as error:
            # We could not have written what we cannot read: a successor of a newer release.
            self._error = log._fenced(record, None)
            raise self._error from error
        except HeadgateError as error:
            self._error = error
            raise
        stored = taken or record
        mine = is_own(record, stored)
        if not mine and not is_stepped_over(stored):
            self._error = log._fenced(record, stored)
            raise self._error
        self._head = self._head.after(stored)
        self.on_record(stored)
        self._error = None
        return stored if mine else None


def _ends(head: Head, decoder: Mapping[str, Any] | None) -> tuple[tuple[str, int, int], ...]:
    """What an open record says beside its decoder: batch records are collected, and then nothing else tells which
    offsets were decoded how.
    """
    return () if decoder is None else tuple((*place, end) for place, end in sorted(head.ends.items()))
