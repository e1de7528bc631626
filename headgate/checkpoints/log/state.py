"""The sum of a commit log's records: the stream's head, and which positions are visible. Pure.

Promises:
1. `replayed` takes records in order; its cost is proportional to their number.
2. A log that no driver could have written (a batch of a fenced driver, a position listed twice) raises Corrupt instead
   of giving an answer.
3. Replaying a fold and what follows it equals replaying everything, except that attempt ids below the fold, and
   positions at or below its replay_after, are gone.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias
from uuid import UUID

from headgate.checkpoints.log.records import (
    BatchRecord,
    Fold,
    FoldedShard,
    LogRecord,
    OpenRecord,
    PartitionPass,
    RewindRecord,
    SchemaRecord,
    Span,
)
from headgate.errors import Corrupt

RECENT = 100
"""Number of batches kept in full: as many as Spark keeps (spark.sql.streaming.minBatchesToRetain)."""


@dataclass(frozen=True)
class ShardPositions:
    """The visible positions of one shard, as one stream's log lists them.

    `attempts` has those above the fold, each with its attempt; `folded` has those below it. Nothing is known of
    positions up to `known_above`: they were flushed when the log was folded.
    """

    shard: str
    attempts: Mapping[int, str] = field(default_factory=dict)
    folded: tuple[Span, ...] = ()
    known_above: int = -1
    last: int = -1
    """The highest position that was ever listed; -1 before the first."""

    def lists(self, position: int) -> bool:
        """True if a record lists the position."""
        if position in self.attempts:
            return True
        index = bisect_right(self.folded, position, key=lambda run: run[0]) - 1
        return index >= 0 and position <= self.folded[index][1]

    def runs(self) -> Iterator[Span]:
        """All listed positions as runs, rising."""
        return merged(sorted((*self.folded, *((position, position) for position in self.attempts))))


@dataclass(frozen=True)
class Head:
    """Where a stream is: everything that the next batch is checked against."""

    stream: str
    sequence: int = 0
    """Sequence of the last record; 0 if the log is empty."""
    opened: OpenRecord | None = None
    last: BatchRecord | None = None
    ends: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """Start of the next batch, by topic and partition."""
    opaque_ends: Mapping[str, str] = field(default_factory=dict)
    starts: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """Start of the stream's first batch since a rewind, by topic and partition, if known."""
    listed: Mapping[UUID, int] = field(default_factory=dict)
    """Per shard, the highest position that a record lists."""
    recent: Mapping[tuple[str, int], BatchRecord] = field(default_factory=dict)
    """The last batches by query and batch id, oldest first, the last one included."""
    rewound: RewindRecord | None = None
    """The last rewind."""
    passes: tuple[PartitionPass, ...] = ()
    """Passes that rewinds ended, in the order of the log."""
    changed: int = 0
    """Sequence of the last schema record: columns that were read before it must be read again (R22)."""

    @property
    def is_rewound(self) -> bool:
        """True if a rewind is newer than the last batch."""
        return self.rewound is not None and (self.last is None or self.last.sequence < self.rewound.sequence)

    def next_starts(self) -> dict[tuple[str, int], int]:
        """Offsets where the partitions of the last batch, or of a rewind after it, continue. (`ends` also has topics
        that the query no longer reads.)
        """
        if self.is_rewound and self.rewound is not None:
            return {(one.topic, one.partition): one.after for one in self.rewound.offsets}
        return {} if self.last is None else {(one.topic, one.partition): one.until for one in self.last.sources}

    def after(self, record: LogRecord) -> Head:
        """The head after one more record. Raises Corrupt if the record cannot follow."""
        machine = LogMachine(self)
        machine.take(record)
        return machine.head()


@dataclass(frozen=True)
class LogState:
    """A commit log as of `head.sequence`."""

    head: Head
    shards: Mapping[UUID, ShardPositions]
    """Shards and dead-letter logs alike."""
    fold_sequence: int = 0

    @property
    def stream(self) -> str:
        return self.head.stream

    @property
    def sequence(self) -> int:
        """Sequence of the last record; 0 if the log is empty."""
        return self.head.sequence

    @property
    def entries_above_fold(self) -> int:
        """Number of entries above the fold."""
        return sum(len(shard.attempts) for shard in self.shards.values())


def empty(stream: str) -> LogState:
    """The log of a stream that never ran."""
    return LogState(Head(stream), {})


def unfolded(fold: Fold) -> LogState:
    """The log as of the fold's sequence."""
    head = Head(
        stream=fold.stream,
        sequence=fold.sequence,
        opened=fold.opened,
        last=fold.last,
        ends={(topic, partition): end for topic, partition, end in fold.ends},
        opaque_ends=dict(fold.opaque_ends),
        starts={(topic, partition): start for topic, partition, start in fold.starts},
        listed={shard_id: shard.last for shard_id, shard in fold.shards.items()},
        recent={} if fold.last is None else {(fold.last.query_id, fold.last.batch_id): fold.last},
        rewound=fold.rewound,
        passes=fold.passes,
        changed=fold.changed,
    )
    # If replay_after is 0, nothing was ever flushed; and a dead-letter log has its first entry at position 0.
    shards = {
        shard_id: ShardPositions(shard.shard, {}, shard.visible, shard.replay_after or -1, shard.last)
        for shard_id, shard in fold.shards.items()
    }
    return LogState(head, shards, fold.sequence)


def replayed(state: LogState, records: Iterable[LogRecord]) -> LogState:
    """The log after these records, which must follow it without a gap. Raises Corrupt."""
    machine = LogMachine(state.head)
    attempts: dict[UUID, dict[int, str]] = {}
    names: dict[UUID, str] = {}
    for record in records:
        machine.take(record)
        if isinstance(record, BatchRecord):
            for name, part in record.parts():
                attempts.setdefault(part.shard_id, {}).update(dict.fromkeys(part.positions, part.attempt_id))
                names[part.shard_id] = name
    head = machine.head()
    shards = dict(state.shards)
    for shard_id, added in attempts.items():
        before = shards.get(shard_id) or ShardPositions(names[shard_id])
        shards[shard_id] = replace(before, attempts={**before.attempts, **added}, last=head.listed[shard_id])
    return LogState(head, shards, state.fold_sequence)


def fold(state: LogState, replay_after: Mapping[UUID, int]) -> Fold:
    """The whole log as one record (R6).

    `replay_after` is per shard the lowest of the committed manifest's and of every pinned one: a reader that starts
    from a lower one could not tell dead rows from visible ones. A shard that is missing keeps all its positions.
    """
    shards = {}
    for shard_id, positions in state.shards.items():
        flushed = max(positions.known_above, replay_after.get(shard_id, -1))
        kept = tuple(_above(positions.runs(), flushed))
        shards[shard_id] = FoldedShard(positions.shard, max(flushed, 0), positions.last, kept)
    head = state.head
    return Fold(
        sequence=head.sequence,
        stream=head.stream,
        opened=head.opened,
        last=head.last,
        starts=tuple(sorted((topic, partition, start) for (topic, partition), start in head.starts.items())),
        ends=tuple(sorted((topic, partition, end) for (topic, partition), end in head.ends.items())),
        opaque_ends=tuple(sorted(head.opaque_ends.items())),
        shards=shards,
        rewound=head.rewound,
        passes=head.passes,
        changed=head.changed,
    )


def merged(runs: Iterable[Span]) -> Iterator[Span]:
    """Ascending runs, with touching runs joined."""
    current: Span | None = None
    for run in runs:
        if current is not None and run[0] <= current[1] + 1:
            current = (current[0], max(current[1], run[1]))
        else:
            if current is not None:
                yield current
            current = run
    if current is not None:
        yield current


def _above(runs: Iterable[Span], floor: int) -> Iterator[Span]:
    for first, last in runs:
        if last > floor:
            yield max(first, floor + 1), last


# -- the machine ---------------------------------------------------------------------------


LogRule: TypeAlias = Literal["fenced-batch", "position-twice", "position-fenced", "offsets-jump"]


@dataclass(frozen=True, slots=True)
class Violation:
    """A record that no driver would have put."""

    rule: LogRule
    sequence: int
    what: str
    refused: bool
    """True if readers refuse a log with this record."""
    shard: str | None = None


def refuse(violation: Violation) -> None:
    """Raises Corrupt if no reader may continue. (Where a batch starts was checked when it was committed.)"""
    if violation.refused:
        raise Corrupt(
            f"Record {violation.sequence} does not belong to this log: {violation.what}", shard=violation.shard
        )


class LogMachine:
    """Builds a head: applies records one by one and reports the rules they break.

    `on_violation` is called for each broken rule; the record counts all the same. Reading `head` makes a copy, so many
    records cost only one.
    """

    def __init__(self, head: Head, on_violation: Callable[[Violation], None] = refuse) -> None:
        self._stream = head.stream
        self._on_violation = on_violation
        self._whole = True
        self._barriers: dict[UUID, int] = {}
        self._sequence = head.sequence
        self._take_open(head.opened)
        self._last = head.last
        self._ends = dict(head.ends)
        self._opaque = dict(head.opaque_ends)
        self._starts = dict(head.starts)
        self._listed = dict(head.listed)
        self._recent = dict(head.recent)
        self._rewound = head.rewound
        self._passes = list(head.passes)
        self._changed = head.changed

    def take(self, record: LogRecord) -> None:
        """Apply the next record. Raises Corrupt if it is not the next one."""
        if record.stream != self._stream:
            raise Corrupt(f"The log of stream {self._stream!r} contains a record of stream {record.stream!r}.")
        if record.sequence != self._sequence + 1:
            raise Corrupt(f"Record {record.sequence} cannot follow record {self._sequence}.")
        self.step(record)

    def lose(self) -> None:
        """Records are missing: the log's driver and the sources' ends are unknown until later records tell."""
        self._whole = self._holder_known = False
        self._barriers = {}
        self._ends, self._opaque, self._starts = {}, {}, {}

    def step(self, record: LogRecord) -> None:
        """Apply one more record, whatever its number."""
        self._sequence = record.sequence
        if isinstance(record, OpenRecord):
            self._take_open(record)
        elif isinstance(record, SchemaRecord):
            self._changed = record.sequence
        elif isinstance(record, RewindRecord):
            self._check_holder(record, "A rewind")
            self._take_rewind(record)
        else:
            self._check_holder(record, f"Batch {record.batch_id}")
            self._take_batch(record)

    def head(self) -> Head:
        """The stream's head now."""
        return Head(
            self._stream,
            self._sequence,
            self._opened,
            self._last,
            self._ends,
            self._opaque,
            self._starts,
            self._listed,
            self._recent,
            self._rewound,
            tuple(self._passes),
            self._changed,
        )

    def _take_open(self, record: OpenRecord | None) -> None:
        self._opened, self._holder_known = record, True
        claims = () if record is None else record.shards.values()
        self._barriers = {claim.shard_id: claim.barrier for claim in claims}

    def _check_holder(self, record: BatchRecord | RewindRecord, name: str) -> None:
        opened = self._opened
        if self._holder_known and (opened is None or record.open_id != opened.record_id):
            held = "nobody" if opened is None else f"query {opened.query_id}"
            self._broken(
                "fenced-batch", record, f"{name} of {record.query_id}, but {held} owned the log.", refused=True
            )

    def _take_batch(self, record: BatchRecord) -> None:
        for name, part in record.parts():
            first, listed = part.positions[0], self._listed.get(part.shard_id, -1)
            barrier = self._barriers.get(part.shard_id, -1)
            if first <= listed:
                what = f"It lists position {first} of {name} again."
                self._broken("position-twice", record, what, refused=True, shard=name)
            elif first <= barrier:
                what = f"It lists position {first} of {name}; its driver's fence is at {barrier}."
                self._broken("position-fenced", record, what, shard=name)
            self._listed[part.shard_id] = max(part.positions[-1], listed)
        self._check_sources(record)
        self._opaque.update({r.source: r.until for r in record.opaque})
        if record.is_replay:
            # Not a batch of a query: the next one is still checked against the batch before.
            return
        self._last = record
        self._starts |= {key: r.start for r in record.sources if (key := (r.topic, r.partition)) not in self._ends}
        self._ends.update({(r.topic, r.partition): r.until for r in record.sources})
        self._recent.pop((record.query_id, record.batch_id), None)
        self._recent[record.query_id, record.batch_id] = record
        if len(self._recent) > RECENT:
            del self._recent[next(iter(self._recent))]

    def _check_sources(self, record: BatchRecord) -> None:
        for part in record.sources:
            end = self._ends.get((part.topic, part.partition), part.start)
            if part.start != end or part.until < part.start:
                what = (
                    f"{part.topic}/{part.partition} was read as [{part.start},{part.until}), but the stream was at "
                    f"{end}."
                )
                self._broken("offsets-jump", record, what)
        for other in record.opaque:
            before = self._opaque.get(other.source, other.start)
            if other.start != before:
                what = f"Source {other.source} starts at {other.start}, but was at {before}."
                self._broken("offsets-jump", record, what)

    def _take_rewind(self, record: RewindRecord) -> None:
        """The one legal discontinuity: it must begin where the stream was. A partition that moves begins anew; what was
        read of it before is kept as a pass.
        """
        for moved in record.offsets:
            place = (moved.topic, moved.partition)
            stood = self._ends.get(place, None if self._whole else moved.before)
            if stood != moved.before:
                what = f"It rewinds {moved.topic}/{moved.partition} from {moved.before}, but the stream was at {stood}."
                self._broken("offsets-jump", record, what, refused=True)
            self._ends[place] = moved.after
            if moved.before == moved.after:
                continue
            if moved.before is not None and (start := self._starts.get(place)) != moved.before:
                self._passes.append(PartitionPass(*place, start, moved.before, record.sequence))
            self._starts[place] = moved.after
        self._rewound = record

    def _broken(
        self, rule: LogRule, record: LogRecord, what: str, *, refused: bool = False, shard: str | None = None
    ) -> None:
        self._on_violation(Violation(rule, record.sequence, what, refused, shard))
