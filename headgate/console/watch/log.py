"""A stream's commit log for the console: the newest records, when the store wrote them, the stream's offsets.

Promises:
1. The first look costs as much as `headgate status`, plus OLDER records. A later one costs a LIST, and a GET for each
   new record. If more than MOST_NEW are new, only the newest FEW are read; the others count as batches with an unknown
   number of rows.
2. It writes nothing, fences no one, and reads no record twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeAlias

from headgate.checkpoints.log.commit_log import CommitLog
from headgate.checkpoints.log.records import BatchRecord, LogRecord, OpenRecord, RewindRecord
from headgate.console.watch.live import BatchTiming, LiveStream
from headgate.errors import NotFound
from headgate.shards.shard import TableHome

MOST_NEW, FEW = 8, 3
OLDER = 24
"""Records below the newest fold that the first look reads for the timeline."""
KEPT = 240
"""Records that are kept for display."""

Place: TypeAlias = tuple[str, int]
"""Topic and partition."""


@dataclass(frozen=True)
class Batch:
    """One line of the timeline."""

    sequence: int
    at: datetime | None
    """When the store wrote its record, or when the driver reported it; None if unknown."""
    record: BatchRecord | None
    """None if it was not read."""
    timing: BatchTiming | None = None

    @property
    def rows(self) -> int | None:
        """Number of rows; None if unknown."""
        return None if self.record is None else self.record.rows

    @property
    def dead_letters(self) -> int:
        """Records that did not become rows."""
        return 0 if self.record is None else sum(part.rows for part in self.record.dead_letters.values())


@dataclass(frozen=True)
class StreamLog:
    """What is known of a log at one moment."""

    stream: str
    sequence: int = 0
    """Sequence of the last record; 0 if there is none."""
    opened: OpenRecord | None = None
    rewound: RewindRecord | None = None
    last: BatchRecord | None = None
    ends: Mapping[Place, int] = field(default_factory=dict)
    """Where the next batch starts."""
    starts: Mapping[Place, int] = field(default_factory=dict)
    batches: tuple[Batch, ...] = ()
    """Oldest first."""
    takeovers: tuple[int, ...] = ()
    """Sequences of open records among or after the batches."""

    @property
    def last_at(self) -> datetime | None:
        """When the last batch with a known time was committed."""
        return next((one.at for one in reversed(self.batches) if one.at is not None), None)

    def rows_per_second(self, now: datetime, window: float = 60.0) -> float:
        """Rows per second over the last `window` seconds. A batch that was not read counts with the average of the
        others."""
        inside = [one for one in self.batches if one.at is not None and (now - one.at).total_seconds() <= window]
        known = [one.rows for one in inside if one.rows is not None]
        return sum(known) / len(known) * len(inside) / window if known else 0.0

    def history(self, now: datetime, buckets: int = 40, seconds: float = 15.0) -> list[float]:
        """Rows per second for a sparkline, oldest first."""
        sums = [0.0] * buckets
        for one in self.batches:
            if one.at is not None and one.rows is not None:
                place = buckets - 1 - int(max(0.0, (now - one.at).total_seconds()) // seconds)
                if place >= 0:
                    sums[place] += one.rows / seconds
        return sums


class LogTail:
    """Follows one stream's log. Must be used by one thread at a time."""

    def __init__(self, home: TableHome, stream: str) -> None:
        self._log = CommitLog(home.records, stream, home.uri)
        self._stream = stream
        self._starts: Mapping[Place, int] | None = None
        self._records: dict[int, LogRecord] = {}
        self._times: dict[int, datetime] = {}
        self._ends: dict[Place, int] = {}
        self._opened: OpenRecord | None = None
        self._last: BatchRecord | None = None
        self._rewound: RewindRecord | None = None
        self._seen = 0

    def look(self) -> StreamLog:
        """The log as it is now. Raises as `CommitLog.read` does."""
        if self._starts is None:
            self._begin()
        times = self._log.taken_at()
        if not self._times:
            # Records that a fold covers may still exist; the timeline begins with them.
            older = sorted(sequence for sequence in times if sequence <= self._seen and sequence not in self._records)
            self._read(older[-OLDER:], self._keep)
        self._times |= times
        new = sorted(sequence for sequence in times if sequence > self._seen)
        self._seen = max([self._seen, *new])
        self._read(new if len(new) <= MOST_NEW else new[-FEW:], self._take)
        last, opened = self._last, self._opened
        if last is not None and opened is not None and last.open_id != opened.record_id:
            # Either a new driver has just started, or its open record was not read.
            self._opened = opened if opened.sequence > last.sequence else None
        kept = sorted({*self._times, *self._records})[-KEPT:]
        self._times = {sequence: self._times[sequence] for sequence in kept if sequence in self._times}
        self._records = {sequence: self._records[sequence] for sequence in kept if sequence in self._records}
        return self._shown(kept)

    def _read(self, sequences: Sequence[int], take: Callable[[LogRecord], None]) -> None:
        for sequence in sequences:
            with suppress(NotFound):  # folded and collected since the LIST
                take(self._log.record(sequence))

    def _keep(self, record: LogRecord) -> None:
        self._records[record.sequence] = record

    def _begin(self) -> None:
        head = self._log.read().head
        self._ends, self._starts, self._seen = dict(head.ends), head.starts, head.sequence
        self._opened, self._last, self._rewound = head.opened, head.last, head.rewound
        records = (*head.recent.values(), head.opened, head.rewound)
        self._records = {one.sequence: one for one in records if one is not None}

    def _take(self, record: LogRecord) -> None:
        self._keep(record)
        if isinstance(record, OpenRecord):
            self._opened = record
        elif isinstance(record, RewindRecord):
            self._rewound = record
            self._ends.update({(one.topic, one.partition): one.after for one in record.offsets})
        elif isinstance(record, BatchRecord) and not record.is_replay:
            self._last = record
            self._ends.update({(one.topic, one.partition): one.until for one in record.sources})

    def _shown(self, kept: Sequence[int]) -> StreamLog:
        batches = tuple(
            Batch(sequence, self._times.get(sequence), record if isinstance(record, BatchRecord) else None)
            for sequence in kept
            if (record := self._records.get(sequence)) is None or isinstance(record, BatchRecord)
        )
        opens = tuple(one.sequence for one in self._records.values() if isinstance(one, OpenRecord))
        return StreamLog(
            self._stream,
            max(kept, default=self._seen),
            self._opened,
            self._rewound,
            self._last,
            dict(self._ends),
            self._starts or {},
            batches,
            tuple(sorted(opens)),
        )


def live_log(stream: str, live: LiveStream) -> StreamLog | None:
    """A StreamLog from the memory of the process that runs the stream; None before its first batch."""
    head = live.head()
    if head is None:
        return None
    timings = {one.sequence: one for one in live.batches()}
    batches = []
    for record in head.recent.values():
        timing = timings.get(record.sequence)
        at = None if timing is None else datetime.fromtimestamp(timing.at, UTC)
        batches.append(Batch(record.sequence, at, record, timing))
    opens = () if head.opened is None else (head.opened.sequence,)
    return StreamLog(
        stream, head.sequence, head.opened, head.rewound, head.last, head.ends, head.starts, tuple(batches), opens
    )
