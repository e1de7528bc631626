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
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from headgate.checkpoints.log import codec
from headgate.checkpoints.log.decisions import OpenOutcome, is_announced, is_own, judge_open, log_end
from headgate.checkpoints.log.opened_log import OpenedLog, decoded_ends, now_text
from headgate.checkpoints.log.records import (
    Fold,
    LogRecord,
    OpenRecord,
    SchemaRecord,
    ShardClaim,
)
from headgate.checkpoints.log.slots import LogSlots
from headgate.checkpoints.log.state import Head, LogState, replayed
from headgate.errors import (
    AlreadyExists,
    Fenced,
    NotFound,
    Transient,
)
from headgate.shards.shard import TableHome
from headgate.steps import step

OPEN_TRIES = 16
"""As for a shard's claim. Each lost try means that another record was put first; more tries would not help."""


class CommitLog(LogSlots):
    """One stream's log. Reading writes nothing and fences nobody."""

    # -- opening ---------------------------------------------------------------

    def open(
        self,
        query_id: str,
        claims: Mapping[str, ShardClaim],
        known: LogState | None = None,
        decoder: Mapping[str, Any] | None = None,
    ) -> OpenedLog:
        """Take the log over. THIS WRITES, AND IT FENCES AN EARLIER DRIVER.

        Call it after every shard of the stream was claimed and has its barrier. `decoder` is how the driver makes rows;
        None if it makes none.

        1. read the log, or continue from the state that the caller has read: a newer record then takes the slot of 2.
        2. put the open record at the next sequence. If another record has the slot, read on and try again. If it is our
           own (same id), a response was lost, and it counts.
        3. LIST once: another's open record above it means Fenced (R6). A batch above it, or a fold over it, means that
           it lies in a slot that was collected: try again. Schema records above it belong to the log from here on
           (R22).

        Read the table's columns afterwards: they contain every change that no schema record announces.

        A crash after any step leaves a log that opens. Raises Fenced if another driver came later; Poisoned if the
        store did not answer, so that the record may or may not be there (it would fence others, and harm nothing).
        """
        step("read")
        state = known or self.read()
        opened_at = now_text()
        for _ in range(OPEN_TRIES):
            record = OpenRecord(
                record_id=uuid.uuid4().hex,
                sequence=state.sequence + 1,
                stream=self.stream,
                query_id=query_id,
                shards=dict(claims),
                opened_at=opened_at,
                decoder=decoder,
                ends=decoded_ends(state.head, decoder),
            )
            step("open record")
            try:
                taken = self.put(record)
            except Fenced:
                # The slot was taken, folded and collected since the log was read: the log has gone on.
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
                # A concurrent put that has not returned yet may be missing from the list.
                state = replayed(state, [taken])
        raise Transient(f"Other drivers wrote to the commit log during each of {OPEN_TRIES} tries.", **self._where())

    def _proven(self, state: LogState, record: OpenRecord) -> LogState | None:
        """The log with what lies above our open record, which is the last of the state. None if the record must be put
        again.
        """
        listed, folds = self._list()
        folded = max(folds, default=0)
        above = self._above(record.sequence, listed, every=folded < record.sequence)
        judged = judge_open(record, above, folded)
        if judged is OpenOutcome.FENCED:
            raise Fenced(
                "Another driver wrote to the commit log while this driver was opening it.",
                **self._where(),
                sequence=record.sequence,
                last_sequence=log_end(listed, folds),
            )
        return replayed(state, filter(None, above)) if judged is OpenOutcome.HELD else None

    def _above(self, sequence: int, listed: set[int], *, every: bool) -> list[LogRecord | None]:
        """The records above a sequence that LIST shows; with `every`, all up to the last one, since a LIST may leave
        out what was put meanwhile. None in place of a record that is gone.
        """
        last = max(listed, default=0)
        wanted = range(sequence + 1, last + 1) if every else sorted(one for one in listed if one > sequence)
        found: list[LogRecord | None] = []
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
        2. put the record there. If the slot is taken, try the next one; if by our own id, a response was lost.
        3. LIST: a fold at or above the record means that it may lie in a slot that was collected, which no driver will
           read: try again.

        From here on no batch commits that was not decided upon after the change (R22). Raises Poisoned if the store
        does not answer, Transient if others were faster each time; InvalidInput, Corrupt.
        """
        for _ in range(OPEN_TRIES):
            step("log end")
            sequence = log_end(*self._list()) + 1
            with suppress(Fenced):  # the slot was collected since: the log has gone on, so look for its end again
                record = self._put_at(sequence)
                step("announced")
                if is_announced(record, max(self._list()[1], default=0)):
                    return record
        raise Transient(f"The commit log was folded during each of {OPEN_TRIES} reads.", **self._where())

    def _put_at(self, first: int) -> SchemaRecord:
        record_id, changed_at = uuid.uuid4().hex, now_text()
        for sequence in itertools.count(first):
            record = SchemaRecord(record_id=record_id, sequence=sequence, stream=self.stream, changed_at=changed_at)
            step("schema record")
            taken = self.put(record)
            if taken is None or is_own(record, taken):
                break
        return record

    # -- beginning -------------------------------------------------------------

    def begin(self, fold: Fold, opened: OpenRecord) -> None:
        """Begin the log of a clone: the fold of what came before, and an open record above it. Idempotent."""
        self.put_fold(fold)
        key, data = self._key("log", opened.sequence), codec.encode(opened)
        with suppress(AlreadyExists):
            self._store.put_if_absent(key, data)


def read_head(home: TableHome, stream: str) -> Head:
    """The head of a table's stream. Reads its log; raises as `CommitLog.read` does."""
    return CommitLog(home.records, stream, home.uri).read().head
