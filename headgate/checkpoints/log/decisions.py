"""The decisions of the streaming protocol. Pure: no store, no clock, no Spark.

What a batch may do (step 2, R8, R17, R23), who has a slot of the log (R2, R6, R22), how far replay_after
may go (R1), where the next batch is planned (R4), what is visible, and whether a snapshot holds
(R11). The exhaustive tests drive these functions.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias
from uuid import UUID

from headgate.checkpoints.log.records import (
    Batch,
    BatchRecord,
    OpaqueRange,
    OpenRecord,
    Record,
    RewindRecord,
    Run,
    SchemaRecord,
)
from headgate.checkpoints.log.state import Head, Positions
from headgate.errors import InvalidInput
from headgate.shards.wal.entry import SourceRange

Earliest: TypeAlias = Callable[[str, int], int]
"""The earliest offset that a topic's partition still has. Asked only where the answer decides."""

_EARLIEST = -2
"""Spark's number for "earliest" in startingOffsets."""


@dataclass(frozen=True, slots=True)
class NewPartition:
    """A partition that Spark meets for the first time in a batch: it starts at its earliest offset."""

    topic: str
    partition: int
    until: int


@dataclass(frozen=True, slots=True)
class BatchSources:
    """What one batch reads, as Spark's checkpoint plans it."""

    ranges: tuple[SourceRange, ...] = ()
    new: tuple[NewPartition, ...] = ()
    opaque: tuple[OpaqueRange, ...] = ()

    def partitions(self) -> list[tuple[str, int]]:
        """Every topic and partition that is read."""
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
class Refuse:
    """The batch does not continue the log. Nothing was written; raise the error."""

    error: InvalidInput


Decision: TypeAlias = Skip | Write | Refuse


def decide_batch(head: Head, query_id: str, batch_id: int, sources: BatchSources, earliest: Earliest) -> Decision:
    """Step 2, for a batch that arrives.

    1. No topic partition and no source may be there twice.
    2. The log has (query, batch): Skip where the sources are equal, otherwise refuse (R8). Refuse it as well where
       the stream was rewound since: to skip it would leave out what was to be read again.
       The start of a partition that is new in this batch is not compared: Spark asks Kafka
       for it anew each time, and retention moves it.
    3. The query already committed a later batch: refuse.
    4. The log has no batch and no rewind: batch 0 may start anywhere, any other is refused (R23). What the batches
       before it read is in another table, such as one that was dropped here.
    5. Each partition starts where its last record ended, or a rewind put it; one that no record has, at its
       earliest offset (R17).
    6. Otherwise: Write. A new query id is welcome if it continues exactly.
    """
    if (twice := _twice(sources)) is not None:
        return Refuse(
            _refusal(head, query_id, batch_id, sources, f"{twice} is read by two sources of the query", _TWICE)
        )
    record = head.recent.get((query_id, batch_id))
    if record is not None:
        if head.rewound is not None and record.sequence < head.rewound.sequence:
            return Refuse(_refusal(head, query_id, batch_id, sources, "it is a batch of the time before"))
        if _same(record, sources):
            return Skip(record)
        what = f"the log has this batch with other offsets: {_told(record.sources, record.opaque)}"
        return Refuse(_refusal(head, query_id, batch_id, sources, what))
    if head.last is not None and head.last.query_id == query_id and batch_id <= head.last.batch_id:
        what = f"the query already committed batch {head.last.batch_id}, and the log no longer has this one"
        return Refuse(_refusal(head, query_id, batch_id, sources, what))
    if batch_id > 0 and head.last is None and head.rewound is None:
        what = f"it has no batch in this table, and the query's batches before {batch_id} went elsewhere"
        return Refuse(_refusal(head, query_id, batch_id, sources, what, _ELSEWHERE))
    ranges = sources.resolved(earliest)
    broken = [text for r in ranges if (text := _broken(head, r, earliest)) is not None]
    broken += [text for o in sources.opaque if (text := _broken_opaque(head, o)) is not None]
    if broken:
        return Refuse(_refusal(head, query_id, batch_id, sources, "; ".join(broken[:5])))
    return Write(ranges, sources.opaque)


def late_beginning(first: BatchRecord | RewindRecord | None, head: Head) -> str | None:
    """What is wrong with a log that begins with a batch that is not the first of its query, where no rewind says that
    this was meant (R23). `first` is the log's first batch or rewind, as far as it is there. None: nothing.
    """
    if not isinstance(first, BatchRecord) or first.batch_id == 0 or head.rewound is not None:
        return None
    return (
        f"The log begins with batch {first.batch_id} of query {first.query_id}: what the batches before it read is not "
        "in this table."
    )


def is_another_table(table_id: UUID | None, named: str | None) -> bool:
    """Whether the id that a base names is that of another table than the one that was opened (R23)."""
    return table_id is not None and bool(named) and named != str(table_id)


def starting_offsets(head: Head, partitions: Iterable[tuple[str, int]] = ()) -> str:
    """Where the stream goes on, as Spark's `startingOffsets`.

    Spark wants every partition of a topic named: `partitions` without a record start at earliest.
    """
    ends: dict[str, dict[str, int]] = {}
    known: Mapping[tuple[str, int], int] = {**dict.fromkeys(partitions, _EARLIEST), **head.ends}
    for (topic, partition), end in sorted(known.items()):
        ends.setdefault(topic, {})[str(partition)] = end
    return json.dumps(ends, separators=(",", ":"))


# -- the log -------------------------------------------------------------------


def log_end(records: Iterable[int], folds: Iterable[int]) -> int:
    """The sequence of the last record, of what LIST shows: the record itself may be folded and collected (R6)."""
    return max(max(records, default=0), max(folds, default=0))


def is_own(mine: Record, stored: Record) -> bool:
    """Whether the record that has our slot is our own, after a lost response; then what is stored counts.

    A schema record is stepped over. Any other is another driver's: one that opens the log reads on, one that commits
    is fenced (R2).
    """
    return stored.record_id == mine.record_id


def is_stepped_over(stored: Record) -> bool:
    """Whether the record that has a driver's slot belongs to nobody: then the next slot by one is the driver's, never
    one behind the log's end, and the columns are read again before (R22).
    """
    return isinstance(stored, SchemaRecord)


class Opened(Enum):
    """What an opener learns by its LIST."""

    HELD = "nobody came after it"
    AGAIN = "its record may lie in a slot that was collected, which fences nobody"
    FENCED = "another driver came after it"


def judge_open(mine: Record, above: Iterable[Record | None], folded: int) -> Opened:
    """Whether an open record that was just put has taken the log over (R6, R22).

    `above` is what LIST shows above it (None: gone since), `folded` the newest fold's sequence. A batch above it, or a
    fold over it, with no other's open record above, means that the slot was free only because it had been collected.
    """
    found = list(above)
    if any(isinstance(one, OpenRecord) for one in found):
        return Opened.FENCED
    if folded >= mine.sequence or not all(isinstance(one, SchemaRecord) for one in found):
        return Opened.AGAIN
    return Opened.HELD


def is_announced(mine: SchemaRecord, folded: int) -> bool:
    """Whether a schema record that was just put lies where every driver comes to it: above the newest fold (R22)."""
    return folded < mine.sequence


def holds_log(mine: Head, now: Head) -> bool:
    """Whether the log is still in the hands of the driver that knows it as `mine`: its open record is the last."""
    return mine.opened is not None and now.opened is not None and mine.opened.record_id == now.opened.record_id


# -- positions -----------------------------------------------------------------


def settled_position(head: Head, shard_id: UUID, *, barrier: int | None = None) -> int | None:
    """Up to where every entry is decided, hence how far replay_after may go (R1). None: nowhere.

    The highest of the driver's own barrier, from its open record or given for a shard that it
    claimed after that, and the last position that a record lists.
    """
    known = [
        position for position in (_barrier(head, shard_id, barrier), head.listed.get(shard_id)) if position is not None
    ]
    return max(known, default=None)


def next_plan(head: Head, shard_id: UUID, *, barrier: int | None = None, advanced: int | None = None) -> int:
    """Where all attempts of the next batch start (R4): above barrier, last listed position and `advanced`.

    `advanced` is the replay_after that this driver itself has written or is about to write.
    A manifest that another wrote must never raise the plan: it would hide that we are fenced.
    """
    settled = settled_position(head, shard_id, barrier=barrier)
    if settled is None:
        raise InvalidInput("A batch was planned for a shard that this driver did not claim.", shard=str(shard_id))
    return max(settled, -1 if advanced is None else advanced) + 1


def checkpoint_limit(
    head: Head, shard_id: UUID, *, next_position: int, planned: int | None, barrier: int | None = None
) -> int | None:
    """How far checkpoint(all) may move replay_after once everything visible is flushed (R1).

    Over barriers and dead entries up to the position before `next_position`, but never to or
    past `planned`, where the batch in flight starts (None: no batch is in flight).
    None: the shard has nothing settled, so it must not move at all.
    """
    settled = settled_position(head, shard_id, barrier=barrier)
    if settled is None:
        return None
    if planned is None:
        return max(settled, next_position - 1)
    return min(next_position, planned) - 1


def flush_limit(listed: Iterable[int], folded: Iterable[Run]) -> int | None:
    """How far a flush goes: to the last position that a record lists (R1). None: there is nothing to flush.

    `listed` and `folded` are the positions above replay_after that count.
    """
    return max([*listed, *(last for _, last in folded)], default=None)


def is_visible(attempt_id: str | None, position: int, positions: Positions | None) -> bool:
    """The one rule: an entry without an attempt is visible, another one only where a record lists it.

    Above the fold the attempt must be the listed one as well.
    """
    if attempt_id is None:
        return True
    if positions is None or not positions.lists(position):
        return False
    return positions.attempts.get(position, attempt_id) == attempt_id


def is_stale(replay_after: int, latest: int, end: int | None) -> bool:
    """Whether the tail of a WAL that was read above `replay_after` is no longer the shard's (R11).

    `latest` is the replay_after of a manifest that was read after the tail, `end` the first position that was
    free; None: an entry was missing. False then means a loss: no flush explains it.
    """
    return latest > replay_after if end is None else end <= latest


def check_listable(head: Head, batch: Batch, replay_after: Mapping[UUID, int]) -> None:
    """Whether a record may list these positions. Raises InvalidInput.

    Each must lie above replay_after (R4: no replay would read it), above the barrier of the
    claim it was written under, and above all that was listed before (it would count twice).
    """
    for name, part in batch.parts():
        first = part.positions[0]
        floors = {
            "the barrier of this driver": _barrier(head, part.shard_id, None),
            "replay_after": replay_after.get(part.shard_id),
            "the last position that was listed": head.listed.get(part.shard_id),
        }
        for what, floor in floors.items():
            if floor is not None and first <= floor:
                raise InvalidInput(
                    f"A batch would list position {first}, which is not above {what}, {floor}.",
                    shard=name,
                    position=first,
                    advice="plan the batch above it and write its entries again; no record was written",
                )


# -- how a batch is compared ------------------------------------------------------

_TWICE = "give each source a stream of its own, or read the topic once"
_ELSEWHERE = (
    "start with an empty checkpoint directory, so that the stream begins with batch 0; or, where what was read before "
    "is not wanted in this table, accept the checkpoint: `headgate rewind TABLE STREAM --adopt --checkpoint DIR "
    "--apply`; nothing was written"
)


def _barrier(head: Head, shard_id: UUID, given: int | None) -> int | None:
    claim = None if head.opened is None else head.opened.claim_of(shard_id)
    own = None if claim is None else claim.barrier
    return own if given is None else max(given, -1 if own is None else own)


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
    """Why a range does not continue the log."""
    place = f"{planned.topic}/{planned.partition}"
    if planned.until < planned.start:
        return f"{place} goes backwards, from {planned.start} to {planned.until}: was the topic made anew?"
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
            "restore the Spark checkpoint or let `headgate recover` rebuild it; or start a new checkpoint directory "
            f"with .option('startingOffsets', '{offsets}'); nothing was written"
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
        advice=advice or "restore the Spark checkpoint, or give this query a stream of its own; nothing was written",
    )


def _told(ranges: Iterable[SourceRange], opaque: Iterable[OpaqueRange]) -> str:
    parts = [f"{r.topic}/{r.partition}[{r.start},{r.until})" for r in _sorted(ranges)]
    parts += [f"source {o.source}[{o.start},{o.until})" for o in opaque]
    return " ".join(parts[:20]) + (f" and {len(parts) - 20} more" if len(parts) > 20 else "")


def _sorted(ranges: Iterable[SourceRange]) -> tuple[SourceRange, ...]:
    return tuple(sorted(ranges, key=lambda r: (r.topic, r.partition)))
