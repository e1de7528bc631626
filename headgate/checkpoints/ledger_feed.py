"""What a ledger reads of a stream's commit log: every record once, in order, and what was lost on the way.

Promises:
1. A pin (R15) holds the records that the ledger does not have yet, and no entry; a fold then deletes none of them. It
   expires so many seconds after its last renewal: so long the stream may be down.
2. Records that were collected all the same (the ledger began later than the stream, or the pin had expired) are told
   as Folded, with the offsets that they had read as far as those are known. None is passed in silence.
3. What is read is a function of the log alone: whoever reads the same records makes the same rows.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime
from uuid import UUID

import xxhash

from headgate.checkpoints.commit_log import READERS, CommitLog
from headgate.checkpoints.consumer_pins import ConsumerPin, PinStore
from headgate.checkpoints.ledger_rows import Folded, LedgerRecord, TopicPartition
from headgate.checkpoints.log_feed import RENEW_EVERY
from headgate.checkpoints.log_state import Head
from headgate.checkpoints.records import BatchRecord, OpenRecord, Record
from headgate.errors import NotFound
from headgate.shards.retry import Retry
from headgate.shards.shard import TableHome

HOLD = 7 * 86_400.0
"""Seconds that records wait for a ledger whose stream is down: a week. A record is a few kilobytes."""

Ends = Callable[[], Mapping[TopicPartition, int]]
"""Per partition where the ledger's ranges end; asked only where records are gone."""


@dataclass(frozen=True)
class Chunk:
    """What follows a place of the log."""

    upto: int
    """The last sequence that it covers; the place itself where nothing follows."""
    parts: tuple[LedgerRecord | Folded, ...] = ()

    @property
    def records(self) -> int:
        """Batch records in it."""
        return sum(isinstance(part, LedgerRecord) for part in self.parts)


@dataclass
class LedgerFeed:
    """One reader of one stream's log. One thread."""

    home: TableHome
    stream: str
    retry: Retry = field(default_factory=Retry)

    def __post_init__(self) -> None:
        self.log = CommitLog(self.home.records, self.stream, self.home.uri, self.retry)
        self._opens: dict[str, OpenRecord] = {}

    def read(self, done: int, ends: Ends = dict, most: int | None = None) -> Chunk:
        """The records after `done`, at most so many. Raises Corrupt, Transient.

        1. LIST: which are there, and since when.
        2. those below that are not there were collected: told as one Folded, with what they read.
        3. GET the rest. One that is gone meanwhile: once more from 1.
        """
        while True:
            taken_at = self.log.taken_at()
            tip = max(taken_at, default=0)
            gone = self._gone(done, tip, taken_at)
            there = sorted(one for one in taken_at if one > max(done, gone))[:most]
            try:
                with ThreadPoolExecutor(READERS, thread_name_prefix="headgate-ledger") as pool:
                    records = list(pool.map(self.log.record, there))
                dated = self._dated(records, taken_at)
                folded = () if gone <= done else (self._folded(gone, records, ends()),)
            except NotFound:
                continue
            return Chunk(max((done, gone, *there)), (*folded, *dated))

    def lost_upto(self) -> int:
        """The last sequence whose record is gone; 0: the whole log is there."""
        taken_at = self.log.taken_at()
        return max(0, self._gone(0, max(taken_at, default=0), taken_at))

    def _gone(self, done: int, tip: int, taken_at: dict[int, datetime]) -> int:
        """The last sequence above `done` whose record was collected; `done` where none was."""
        for sequence in range(tip, done, -1):
            if sequence not in taken_at:
                try:
                    # It may have come during the LIST, and a later one is in it. Older ones cannot.
                    self.log.record(sequence)
                except NotFound:
                    return sequence
                taken_at[sequence] = taken_at[sequence + 1]
        return done

    def _dated(self, records: list[Record], taken_at: Mapping[int, datetime]) -> list[LedgerRecord]:
        found = []
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
            found.append(LedgerRecord(record, taken_at[record.sequence], at or None, epochs))
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

    def _folded(self, gone: int, following: list[Record], ends: Mapping[TopicPartition, int]) -> Folded:
        """What was read before the records that follow, and after what the ledger has."""
        head = self.log.read().head
        return Folded(gone, lost_ranges(head, following, ends))


def lost_ranges(
    head: Head, following: list[Record], ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, tuple[int | None, int]]:
    """Per partition what lies between the ledger's end, or where the stream began, and the first record that is there.

    A partition that no such record reads was read up to where the stream stands. The start is None where an earlier
    release folded it away. Pure.
    """
    until: dict[TopicPartition, int] = dict(head.ends)
    firsts: dict[TopicPartition, int] = {}
    for record in following:
        if isinstance(record, BatchRecord):
            for part in record.sources:
                firsts.setdefault((part.topic, part.partition), part.start)
    found: dict[TopicPartition, tuple[int | None, int]] = {}
    for place, end in {**until, **firsts}.items():
        start = ends.get(place, head.starts.get(place))
        if start is None or start < end:
            found[place] = (start, end)
    return found


# -- holding ---------------------------------------------------------------------------


class LedgerPin:
    """Holds the records of a stream that its ledger does not have. One run at a time has it: the next fences it."""

    def __init__(
        self,
        home: TableHome,
        stream: str,
        ledger: str,
        hold: float = HOLD,
        retry: Retry = Retry(),  # noqa: B008
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pins = PinStore(home.records, home.uri, retry)
        self._stream = stream
        self._name = ledger
        self.consumer = f"ledger-{xxhash.xxh3_64_hexdigest(ledger.encode())}-{stream}"
        self._hold = hold
        self._clock = clock
        self._run_id = uuid.uuid4().hex
        self._pin: ConsumerPin | None = None
        self._key = ""
        self._put_at = 0.0
        self._troubled = False

    def take(self) -> None:
        """Hold what the last run held, or all that is there. THIS WRITES, and fences an earlier run of it. Twice
        equals once.
        """
        if self._pin is not None:
            return
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
        """The ledger has all up to there. Put where it is time, or `now`. Raises Fenced where another run has it."""
        if self._pin is not None:
            self._renew(replace(self._pin, done={self._stream: done}), "", now)

    def complain(self, trouble: str) -> None:
        """What keeps the ledger from going on, for people. Raises Fenced as well."""
        if self._pin is not None:
            self._renew(self._pin, trouble, False)

    def _renew(self, pin: ConsumerPin, trouble: str, now: bool) -> None:
        self._pin = replace(pin, note=f"ledger {self._name}" + (f": {trouble}" if trouble else ""))
        due = self._clock() - self._put_at >= min(RENEW_EVERY, self._hold / 4)
        if due or now or bool(trouble) != self._troubled:
            self._put(replace(self._pin, number=self._pin.number + 1), [self._key])
            self._troubled = bool(trouble)

    def _put(self, pin: ConsumerPin, older: list[str]) -> None:
        self._key = self._pins.put(pin, older)
        self._pin, self._put_at = pin, self._clock()


def _time(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None
