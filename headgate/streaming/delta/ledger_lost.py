"""What a ledger tells of records that neither the log nor its archive has: the offsets that they had read. Pure.

Promises:
1. Records that follow each other and are gone become one Folded, unless the stream was rewound between them: the log
   keeps rewinds, and each reading has offsets of its own.
2. A Folded ends where what follows begins, and begins where what the ledger has ends; so every offset that the stream
   has read is in some row, as far as the log still knows where it began.
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
    """The records after `done`, rising, and between them what is missing. `ends` is where the ledger's ranges end."""
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
    """Per partition what lies between the ledger's end, or where the stream began, and what follows the records that
    are gone, up to `gone`.

    A partition that nothing there reads or rewinds was read up to where the stream stands. The start is None where an
    earlier release folded it away.
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
    """Where the reading of a partition began that was under way at a sequence; None: it is not known."""
    later = (one.start for one in head.passes if (one.topic, one.partition) == place and one.ended_by > gone)
    return next(later, head.starts.get(place))
