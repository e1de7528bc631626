"""How a ledger reads a stream's commit log: every record once, in order, and markers for lost ones.

Promises:
1. A ledger's first run begins the archive of the log (see `checkpoints.log.archive`): from then on every record can be
   read from the log or the archive, at any time and any number of times.
2. A pin (R15) holds the records that the ledger does not have yet (but no entries), so that they stay in the log. It
   expires some time after its last renewal; records deleted then are in the archive.
3. Records that were collected before that are read as Folded, with their offsets as far as known (see `ledger_lost`).
   None is skipped silently.
4. The result depends only on the log and its archive: the same records always make the same rows.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from uuid import UUID

import xxhash

from headgate import clock, parallel
from headgate.checkpoints.feed.feed import RENEW_EVERY
from headgate.checkpoints.log.archive.archive import LogArchive
from headgate.checkpoints.log.archive.format import ArchivedBatch, covers
from headgate.checkpoints.log.pins import ConsumerPin, PinStore
from headgate.checkpoints.log.records import BatchRecord, LogRecord, OpenRecord
from headgate.errors import NotFound
from headgate.shards.shard import TableHome
from headgate.streaming.delta.ledger_lost import with_lost
from headgate.streaming.delta.ledger_rows import Folded, LedgerRecord, TopicPartition, rows_of

HOLD = 7 * 86_400.0
"""Seconds that records wait in the log for a ledger whose stream is down: a week. A record is a few kilobytes."""

ROWS = 50_000
"""Maximum rows that are made at once: some 100 MB."""

Ends = Callable[[], Mapping[TopicPartition, int]]
"""The end of the ledger's ranges per partition; needed only if records are missing."""


@dataclass(frozen=True)
class LogChunk:
    """Records after a position of the log."""

    upto: int
    """The last sequence that it covers; the position itself if nothing follows."""
    parts: tuple[LedgerRecord | Folded, ...] = ()
    more: bool = False
    """True if more records follow."""

    @property
    def lost_upto(self) -> int:
        """The last sequence that it gives as Folded; 0: none."""
        return max((part.sequence for part in self.parts if isinstance(part, Folded)), default=0)

    @property
    def records(self) -> int:
        """Batch records in it."""
        return sum(isinstance(part, LedgerRecord) for part in self.parts)

    def ends(self) -> dict[TopicPartition, int]:
        """The end of the last range per partition."""
        found: dict[TopicPartition, int] = {}
        for part in self.parts:
            if isinstance(part, Folded):
                found |= {place: until for place, (_, until) in part.ranges.items()}
            else:
                found |= {(one.topic, one.partition): one.until for one in part.record.sources}
        return found


@dataclass
class LedgerFeed:
    """One reader of one stream's log. One thread."""

    home: TableHome
    stream: str

    def __post_init__(self) -> None:
        self.archive = LogArchive(self.home.records, self.stream, self.home.uri)
        self.log = self.archive.log
        self._opens: dict[str, OpenRecord] = {}

    def read(self, done: int, ends: Ends = dict, most: int | None = None) -> LogChunk:
        """The records after `done`, at most this many, fewer if they make more than ROWS rows. Raises Corrupt,
        Transient.

        1. LIST the log, with times.
        2. if some were deleted, read the archive: second, because a record is archived before it is deleted.
        3. GET the rest. If one was deleted meanwhile, start again at 1.
        4. missing records become Folded.
        """
        while True:
            taken_at = self.log.taken_at()
            tip = max(taken_at, default=0)
            archived: dict[int, ArchivedBatch] = {}
            try:
                if self._gone(done, tip, taken_at) > done:
                    archived = {one.sequence: one for one in islice(self.archive.above(done), most)}
                known = sorted({*archived, *(one for one in taken_at if one > done)})
                there = known[:most]
                records = _fitting(self._records(there, archived))
                there = there[: len(records)]
                dated = self._dated(records, archived, taken_at)
                upto = max((done, *there))
                parts: list[LedgerRecord | Folded] = [*dated.values()]
                if len(there) < upto - done:
                    parts = with_lost(done, records, dated, self.log.read().head, ends())
                    if len(known) > len(there) and isinstance(parts[-1], Folded):
                        # Only a later record shows how far the lost ones had read, and this chunk has none: read more.
                        most = 2 * len(there)
                        continue
            except NotFound:
                continue
            return LogChunk(upto, tuple(parts), len(known) > len(there))

    def lost_upto(self) -> int:
        """The last sequence whose record is in neither the log nor its archive; 0: none."""
        taken_at = self.log.taken_at()
        sequence = self._gone(0, max(taken_at, default=0), taken_at)
        runs = self.archive.runs() if sequence else []
        while sequence and (sequence in taken_at or covers(runs, sequence)):
            sequence -= 1
        return sequence

    def _records(self, sequences: Sequence[int], archived: Mapping[int, ArchivedBatch]) -> list[LogRecord]:
        """The records of these sequences, in order. Raises NotFound if one was deleted meanwhile."""
        listed = [one for one in sequences if one not in archived]
        found = dict(zip(listed, parallel.each("ledger", self.log.record, listed), strict=True))
        return [archived[one].record if one in archived else found[one] for one in sequences]

    def _gone(self, done: int, tip: int, taken_at: dict[int, datetime]) -> int:
        """The last sequence above `done` whose record was deleted; `done` if none was."""
        for sequence in range(tip, done, -1):
            if sequence not in taken_at:
                try:
                    # It may have been put during the LIST, although a later one was listed. Older ones cannot.
                    self.log.record(sequence)
                except NotFound:
                    return sequence
                if (at := self.log.taken_at().get(sequence)) is None:
                    return sequence
                taken_at[sequence] = at
        return done

    def _dated(
        self, records: Sequence[LogRecord], archived: Mapping[int, ArchivedBatch], taken_at: Mapping[int, datetime]
    ) -> dict[int, LedgerRecord]:
        """The batches among them by sequence, with the time at which the record was first stored."""
        found = {}
        for record in records:
            if isinstance(record, OpenRecord):
                self._opens[record.record_id] = record
            if not isinstance(record, BatchRecord):
                continue
            opened = self._opened(record, taken_at)
            epochs: dict[UUID, int] = {}
            if opened is not None:
                epochs = {claim.shard_id: claim.epoch for claim in opened.shards.values()}
            at = opened and _time(opened.opened_at)
            one = archived.get(record.sequence)
            committed_at = taken_at[record.sequence] if one is None else one.committed_at
            found[record.sequence] = LedgerRecord(record, committed_at, at or None, epochs)
        return found

    def _opened(self, record: BatchRecord, taken_at: Mapping[int, datetime]) -> OpenRecord | None:
        """The open record under which it was committed: the next one below, which is never deleted (R5)."""
        if record.open_id not in self._opens:
            for sequence in sorted((one for one in taken_at if one < record.sequence), reverse=True):
                below = self.log.record(sequence)
                if isinstance(below, OpenRecord):
                    self._opens[below.record_id] = below
                    break
        return self._opens.get(record.open_id)


def _fitting(records: list[LogRecord]) -> list[LogRecord]:
    """The first of them, up to ROWS rows; ends with a batch if some are left out."""
    made = 0
    for place, record in enumerate(records, 1):
        made += rows_of(record) if isinstance(record, BatchRecord) else 0
        if made > ROWS:
            return records[:place]
    return records


# -- pins ------------------------------------------------------------------------------


class LedgerPin:
    """Pins the records of a stream that its ledger does not have. Only one run at a time: the next fences it."""

    def __init__(
        self,
        home: TableHome,
        stream: str,
        ledger: str,
        hold: float = HOLD,
    ) -> None:
        self._pins = PinStore(home.records, home.uri)
        self._archive = LogArchive(home.records, stream, home.uri)
        self._stream = stream
        self._name = ledger
        self.consumer = f"ledger-{xxhash.xxh3_64_hexdigest(ledger.encode())}-{stream}"
        self._hold = hold
        self._run_id = uuid.uuid4().hex
        self._pin: ConsumerPin | None = None
        self._key = ""
        self._put_at = 0.0
        self._troubled = False

    def take(self) -> None:
        """Pin what the last run pinned, or all existing records. THIS WRITES, and fences an earlier run. Idempotent.
        The archive is started first: a process that sees neither archive nor pin deletes only records that were folded
        before the ledger existed.
        """
        if self._pin is not None:
            return
        self._archive.begin()
        before = self._pins.newest(self.consumer)
        done = 0 if before is None else before.pin.done.get(self._stream, 0)
        older = [] if before is None else [*before.older, before.key]
        pin = ConsumerPin(
            consumer=self.consumer,
            number=1 if before is None else before.pin.number + 1,
            run_id=self._run_id,
            done={self._stream: done},
            expires_after=self._hold,
            records_of=self._stream,
            note=f"ledger {self._name}",
        )
        self._put(pin, older)

    def move(self, done: int, *, now: bool = False) -> None:
        """Record that the ledger has everything up to there. Written when it is time, or `now`. Raises Fenced if
        another run has the pin.
        """
        if self._pin is not None:
            self._renew(replace(self._pin, done={self._stream: done}), "", now)

    def complain(self, trouble: str) -> None:
        """What blocks the ledger, as a message. Raises Fenced too."""
        if self._pin is not None:
            self._renew(self._pin, trouble, False)

    def _renew(self, pin: ConsumerPin, trouble: str, now: bool) -> None:
        self._pin = replace(pin, note=f"ledger {self._name}" + (f": {trouble}" if trouble else ""))
        due = clock.monotonic() - self._put_at >= min(RENEW_EVERY, self._hold / 4)
        if due or now or bool(trouble) != self._troubled:
            self._put(replace(self._pin, number=self._pin.number + 1), [self._key])
            self._troubled = bool(trouble)

    def _put(self, pin: ConsumerPin, older: list[str]) -> None:
        self._key = self._pins.put(pin, older)
        self._pin, self._put_at = pin, clock.monotonic()


def _time(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None
