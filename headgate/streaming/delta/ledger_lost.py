"""Offsets of records that are in neither the log nor its archive. Pure functions.

Promises:
1. Consecutive missing records become one Folded, unless the stream was rewound between them: the log keeps rewinds, and
   each pass has its own offsets.
2. A Folded begins at the end of the ledger's ranges and ends where the next record begins; so every offset that the
   stream has read is in some row, as far as the log knows its start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headgate.checkpoints.log.records import BatchRecord, LogRecord, OpenRecord, RewindRecord, SchemaRecord
from headgate.checkpoints.log.state import Head
from headgate.streaming.delta.ledger_rows import Folded, LedgerRecord, TopicPartition


def with_lost(
    done: int,
    records: Sequence[LogRecord],
    dated: Mapping[int, LedgerRecord],
    head: Head,
    ends: Mapping[TopicPartition, int],
) -> list[LedgerRecord | Folded]:
    """The records after `done`, rising, with markers for missing ones. `ends` are the ends of the ledger's ranges."""
    found: list[LedgerRecord | Folded] = []
    stands = dict(ends)
    lost, at = 0, done
    for place, record in enumerate(records):
        lost = record.sequence - 1 if record.sequence > at + 1 else lost
        at = record.sequence
        if isinstance(record, OpenRecord | SchemaRecord):
            continue
        if lost:
            found.append(_folded(lost, head, records[place:], stands))
            lost = 0
        if isinstance(record, RewindRecord):
            stands |= {(one.topic, one.partition): one.after for one in record.offsets}
        else:
            found.append(dated[record.sequence])
            stands |= {(one.topic, one.partition): one.until for one in record.sources}
    return [*found, _folded(lost, head, (), stands)] if lost else found


def lost_ranges(
    head: Head, gone: int, following: Sequence[LogRecord], ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, tuple[int | None, int]]:
    """Per partition, the range between the ledger's end (or the stream's start) and the first record after the missing
    ones, up to `gone`.

    A partition that no later record reads or rewinds was read up to the stream's head. The start is None if an earlier
    release folded it away.
    """
    firsts: dict[TopicPartition, int] = {}
    for record in following:
        if isinstance(record, BatchRecord):
            for part in record.sources:
                firsts.setdefault((part.topic, part.partition), part.start)
        elif isinstance(record, RewindRecord):
            for moved in record.offsets:
                if moved.before is not None:
                    firsts.setdefault((moved.topic, moved.partition), moved.before)
    found: dict[TopicPartition, tuple[int | None, int]] = {}
    for place, end in {**head.ends, **firsts}.items():
        start = ends[place] if place in ends else _began(head, gone, place)
        if start is None or start < end:
            found[place] = (start, end)
    return found


def _folded(gone: int, head: Head, following: Sequence[LogRecord], stands: dict[TopicPartition, int]) -> Folded:
    folded = Folded(gone, lost_ranges(head, gone, following, stands))
    stands |= {place: until for place, (_, until) in folded.ranges.items()}
    return folded


def _began(head: Head, gone: int, place: TopicPartition) -> int | None:
    """The start of the pass over a partition at a sequence; None if unknown."""
    later = (one.start for one in head.passes if (one.topic, one.partition) == place and one.ended_by > gone)
    return next(later, head.starts.get(place))
