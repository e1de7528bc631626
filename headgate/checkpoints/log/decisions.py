"""The decisions of the streaming protocol. Pure: no store, no clock, no Spark.

What a batch may do (step 2, R8, R17, R23), who has a slot of the log (R2, R6, R22), and which of its records may be
deleted. Decisions about a shard's positions are in `positions`. The exhaustive tests drive these functions.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import TypeAlias
from uuid import UUID

from headgate.checkpoints.log.records import (
    BATCH,
    BatchRecord,
    LogRecord,
    OpaqueRange,
    OpenRecord,
    RewindRecord,
    SchemaRecord,
)
from headgate.checkpoints.log.state import Head
from headgate.errors import InvalidInput
from headgate.shards.wal.entry import SourceRange

Earliest: TypeAlias = Callable[[str, int], int]
"""Returns the earliest offset that a topic's partition still has. Called only if the answer decides."""

_EARLIEST = -2
"""Spark's number for "earliest" in startingOffsets."""


@dataclass(frozen=True, slots=True)
class NewPartition:
    """A partition that is new to Spark in a batch: it starts at its earliest offset."""

    topic: str
    partition: int
    until: int


@dataclass(frozen=True, slots=True)
class BatchSources:
    """What one batch reads, according to Spark's checkpoint."""

    ranges: tuple[SourceRange, ...] = ()
    new: tuple[NewPartition, ...] = ()
    opaque: tuple[OpaqueRange, ...] = ()

    def partitions(self) -> list[tuple[str, int]]:
        """Every topic and partition that the batch reads."""
        return [(r.topic, r.partition) for r in self.ranges] + [(n.topic, n.partition) for n in self.new]

    def resolved(self, earliest: Earliest) -> tuple[SourceRange, ...]:
        """All ranges, sorted; new partitions from their earliest offset."""
        found = (SourceRange(n.topic, n.partition, earliest(n.topic, n.partition), n.until) for n in self.new)
        return _sorted((*self.ranges, *found))


@dataclass(frozen=True, slots=True)
class Skip:
    """The log has the batch: return at once; read and write nothing."""

    record: BatchRecord


@dataclass(frozen=True, slots=True)
class Write:
    """The batch continues the log: write it, and commit it with these sources."""

    ranges: tuple[SourceRange, ...]
    opaque: tuple[OpaqueRange, ...]


@dataclass(frozen=True, slots=True)
class Refusal:
    """The batch does not continue the log. Nothing was written; raise the error."""

    error: InvalidInput


BatchDecision: TypeAlias = Skip | Write | Refusal


def decide_batch(head: Head, query_id: str, batch_id: int, sources: BatchSources, earliest: Earliest) -> BatchDecision:
    """Step 2: decide about a batch that arrives.

    1. No topic partition and no source may appear twice.
    2. The log has (query, batch): Skip if the sources are equal, otherwise refuse (R8). Also refuse it if the stream
       was rewound since: skipping it would leave out what must be read again. The start of a partition that is new in
       this batch is not compared: Spark asks Kafka for it anew each time, and retention moves it.
    3. The query already committed a later batch: refuse.
    4. The log has no batch and no rewind: batch 0 may start anywhere, any other is refused (R23). What the batches
       before it read is in another table, such as one that was dropped here.
    5. Each partition starts where its last record ended, or where a rewind put it; a partition without a record starts
       at its earliest offset (R17).
    6. Otherwise: Write. A new query id is accepted if it continues exactly.
    """
    if (twice := _twice(sources)) is not None:
        return Refusal(
            _refusal(head, query_id, batch_id, sources, f"{twice} is read by two sources of the query", _TWICE)
        )
    record = head.recent.get((query_id, batch_id))
    if record is not None:
        if head.rewound is not None and record.sequence < head.rewound.sequence:
            return Refusal(_refusal(head, query_id, batch_id, sources, "the batch predates the last rewind"))
        if _same(record, sources):
            return Skip(record)
        what = f"the log has this batch with other offsets: {_told(record.sources, record.opaque)}"
        return Refusal(_refusal(head, query_id, batch_id, sources, what))
    if head.last is not None and head.last.query_id == query_id and batch_id <= head.last.batch_id:
        what = f"the query already committed batch {head.last.batch_id}, and this batch is older"
        return Refusal(_refusal(head, query_id, batch_id, sources, what))
    if batch_id > 0 and head.last is None and head.rewound is None:
        what = f"the query has no batch in this table: its batches before {batch_id} went to another table"
        return Refusal(_refusal(head, query_id, batch_id, sources, what, _ELSEWHERE))
    ranges = sources.resolved(earliest)
    broken = [text for r in ranges if (text := _broken(head, r, earliest)) is not None]
    broken += [text for o in sources.opaque if (text := _broken_opaque(head, o)) is not None]
    if broken:
        return Refusal(_refusal(head, query_id, batch_id, sources, "; ".join(broken[:5])))
    return Write(ranges, sources.opaque)


def late_beginning(first: BatchRecord | RewindRecord | None, head: Head) -> str | None:
    """Describes the problem if a log begins with a batch that is not the first of its query, and no rewind made that
    legal (R23). `first` is the log's first batch or rewind, if it still exists. None if there is no problem.
    """
    if not isinstance(first, BatchRecord) or first.batch_id == 0 or head.rewound is not None:
        return None
    return (
        f"The log begins with batch {first.batch_id} of query {first.query_id}: the rows of earlier batches are "
        "not in this table."
    )


def has_batch(head: Head, batch_id: str | None) -> bool:
    """True if the log of batch writes has the job with this id, however long ago. Asked before anything is claimed, and
    again after the open record: only then can nobody else commit it. None means that the caller gave no id.
    """
    return batch_id is not None and BATCH + batch_id in head.opaque_ends


def is_another_table(table_id: UUID | None, named: str | None) -> bool:
    """True if the id in a base's configuration is that of another table than the opened one (R23)."""
    return table_id is not None and bool(named) and named != str(table_id)


def starting_offsets(head: Head, partitions: Iterable[tuple[str, int]] = ()) -> str:
    """The offsets where the stream continues, as Spark's `startingOffsets`.

    Spark wants every partition of a topic named: `partitions` without a record start at earliest.
    """
    ends: dict[str, dict[str, int]] = {}
    known: Mapping[tuple[str, int], int] = {**dict.fromkeys(partitions, _EARLIEST), **head.ends}
    for (topic, partition), end in sorted(known.items()):
        ends.setdefault(topic, {})[str(partition)] = end
    return json.dumps(ends, separators=(",", ":"))


# -- the log -------------------------------------------------------------------


def log_end(records: Iterable[int], folds: Iterable[int]) -> int:
    """Sequence of the last record, from a LIST: the record itself may be folded and collected (R6)."""
    return max(max(records, default=0), max(folds, default=0))


def is_own(mine: LogRecord, stored: LogRecord) -> bool:
    """True if the record in our slot is our own, after a lost response; then the stored one counts.

    A schema record is stepped over. Any other record is another driver's: an opener reads on, a committer is fenced
    (R2).
    """
    return stored.record_id == mine.record_id


def is_stepped_over(stored: LogRecord) -> bool:
    """True if the record in a driver's slot belongs to no driver: then the driver takes the next slot, never one behind
    the log's end, and reads the columns again first (R22).
    """
    return isinstance(stored, SchemaRecord)


class OpenOutcome(Enum):
    """Result of an opener's LIST."""

    HELD = "it was fenced by nobody"
    AGAIN = "its record may be in a deleted slot, which fences nobody"
    FENCED = "another driver took over after it"


def judge_open(mine: LogRecord, above: Iterable[LogRecord | None], folded: int) -> OpenOutcome:
    """Decides whether an open record that was just put has taken over the log (R6, R22).

    `above` is what LIST shows above it (None: gone since), `folded` the newest fold's sequence. A batch above it, or a
    fold over it, with no other's open record above, means that the slot was free only because it had been collected.
    """
    found = list(above)
    if any(isinstance(one, OpenRecord) for one in found):
        return OpenOutcome.FENCED
    if folded >= mine.sequence or not all(isinstance(one, SchemaRecord) for one in found):
        return OpenOutcome.AGAIN
    return OpenOutcome.HELD


def is_announced(mine: SchemaRecord, folded: int) -> bool:
    """True if a schema record that was just put is where every driver will read it: above the newest fold (R22)."""
    return folded < mine.sequence


def holds_log(mine: Head, now: Head) -> bool:
    """True if the driver that knows the log as `mine` still has it: its open record is the last one."""
    return mine.opened is not None and now.opened is not None and mine.opened.record_id == now.opened.record_id


def collectable_records(
    records: Iterable[int], folds: Mapping[int, datetime], before: datetime, needed_above: int | None = None
) -> tuple[list[int], list[int]]:
    """Sequences of records that may be deleted IF they are batch records, which only their content says, and not the
    last of these (see `last_batch`); and of folds.

    A fold that is older than `before` sums them up, so that no reader needs what is below it. `needed_above` is the
    lowest sequence that a consumer of the log has read (R15). Never the log's tip, which fences.
    """
    summed = max((sequence for sequence, taken in folds.items() if taken <= before), default=0)
    rising = sorted(records)
    limit = summed if needed_above is None else min(summed, needed_above)
    return (
        [sequence for sequence in rising[:-1] if sequence <= limit],
        sorted(sequence for sequence in folds if sequence < summed),
    )


def last_batch(records: Iterable[int], is_batch: Callable[[int], bool]) -> int | None:
    """Sequence of a log's last batch record, which stays: a driver whose response was lost, and that steps over schema
    records, must find its own record in the slot, not a free one (R22). Searches down from the tip.
    """
    return next((sequence for sequence in sorted(records, reverse=True) if is_batch(sequence)), None)


# -- how a batch is compared ------------------------------------------------------

_TWICE = "give each source its own stream, or read the topic once"
_ELSEWHERE = (
    "start with an empty checkpoint directory, so that the stream begins with batch 0; or, if this table does "
    "not need the earlier rows, accept the checkpoint: `headgate rewind TABLE --stream NAME --adopt "
    "--spark-checkpoint DIR --apply`; nothing was written"
)


def _twice(sources: BatchSources) -> str | None:
    partitions = Counter(sources.partitions())
    for (topic, partition), times in partitions.items():
        if times > 1:
            return f"{topic}/{partition}"
    names = [o.source for o in sources.opaque]
    return f"source {names[0]}" if len(set(names)) < len(names) else None


def _same(record: BatchRecord, sources: BatchSources) -> bool:
    stored = {(r.topic, r.partition): (r.start, r.until) for r in record.sources}
    known = {(r.topic, r.partition): (r.start, r.until) for r in sources.ranges}
    found = {key: (stored[key][0], n.until) for n in sources.new if (key := (n.topic, n.partition)) in stored}
    return len(found) == len(sources.new) and {**known, **found} == stored and set(record.opaque) == set(sources.opaque)


def _broken(head: Head, planned: SourceRange, earliest: Earliest) -> str | None:
    """Why a range does not continue the log; None if it does."""
    place = f"{planned.topic}/{planned.partition}"
    if planned.until < planned.start:
        return f"{place} goes backwards, from {planned.start} to {planned.until}: was the topic re-created?"
    end = head.ends.get((planned.topic, planned.partition))
    if end is not None:
        kind = "goes back to" if planned.start < end else "jumps to"
        return None if planned.start == end else f"{place} {kind} {planned.start}, the log ends at {end}"
    if (
        head.last is None
        or planned.start == 0
        or planned.start <= (first := earliest(planned.topic, planned.partition))
    ):
        return None
    return f"{place} is new to the stream and starts at {planned.start}, its earliest offset is {first}"


def _broken_opaque(head: Head, planned: OpaqueRange) -> str | None:
    if head.last is None:
        return None
    end = head.opaque_ends.get(planned.source)
    if planned.start == end:
        return None
    start = "anew" if planned.start is None else f"at {planned.start}"
    return f"source {planned.source} starts {start}, the log ends at {end}"


def _refusal(
    head: Head, query_id: str, batch_id: int, sources: BatchSources, why: str, advice: str | None = None
) -> InvalidInput:
    if advice is None and head.ends:
        offsets = starting_offsets(head, sources.partitions())
        advice = (
            "restore the Spark checkpoint or rebuild it with `headgate recover`; or start a new checkpoint "
            f"directory with .option('startingOffsets', '{offsets}'); nothing was written"
        )
    if head.rewound is not None and (head.is_rewound or (head.last is not None and head.last.query_id != query_id)):
        when = f" at {head.rewound.rewound_at}" if head.rewound.rewound_at else ""
        why = f"it was rewound by record {head.rewound.sequence}{when}; {why}"
    return InvalidInput(
        f"Batch {batch_id} does not continue stream {head.stream!r}: {why}.",
        query_id=query_id,
        last_query_id=None if head.last is None else head.last.query_id,
        last_batch_id=None if head.last is None else head.last.batch_id,
        batch=_told(
            (*sources.ranges, *(SourceRange(n.topic, n.partition, _EARLIEST, n.until) for n in sources.new)),
            sources.opaque,
        ),
        advice=advice or "restore the Spark checkpoint, or give this query its own stream; nothing was written",
    )


def _told(ranges: Iterable[SourceRange], opaque: Iterable[OpaqueRange]) -> str:
    parts = [f"{r.topic}/{r.partition}[{r.start},{r.until})" for r in _sorted(ranges)]
    parts += [f"source {o.source}[{o.start},{o.until})" for o in opaque]
    return " ".join(parts[:20]) + (f" and {len(parts) - 20} more" if len(parts) > 20 else "")


def _sorted(ranges: Iterable[SourceRange]) -> tuple[SourceRange, ...]:
    return tuple(sorted(ranges, key=lambda r: (r.topic, r.partition)))
