"""What the streams of a table have committed, as their logs tell. Reads only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from headgate.checkpoints.commit_log import READERS, CommitLog
from headgate.checkpoints.decisions import late_beginning
from headgate.checkpoints.log_state import Head
from headgate.checkpoints.records import BatchRecord, Pass
from headgate.checkpoints.streams import list_streams
from headgate.connectors.kafka.options import ConsumerConfig
from headgate.connectors.kafka.reading import offsets
from headgate.errors import NotFound
from headgate.table import Table


@dataclass(frozen=True)
class CommittedRange:
    """What one stream has committed of one partition in one pass: between two rewinds, or since the last."""

    stream: str
    topic: str
    partition: int
    start: int
    until: int
    start_known: bool
    """False: the log no longer has its first records, and the topic's earliest offset is taken."""
    after: int = 0
    """The sequence of the rewind that it began with; 0: it is the first pass."""
    ended_by: int | None = None
    """The sequence of the rewind that it ended with; None: it is the last pass."""

    def is_of(self, sequence: int) -> bool:
        """Whether a record is of this pass."""
        return self.after < sequence and (self.ended_by is None or sequence < self.ended_by)


def heads_of(table: Table) -> tuple[Head, ...]:
    """Where every stream of the table stands, by name."""
    home = table.home
    return tuple(CommitLog(home.records, name, home.uri).read().head for name in list_streams(home.records))


@dataclass(frozen=True)
class History:
    """The batch records of a stream that are still there, oldest first, and whether all are."""

    batches: tuple[BatchRecord, ...]
    complete: bool
    late: str | None = None
    """What is wrong where the log begins with a later batch than the first of its query (R23)."""


def history_of(table: Table, head: Head) -> History:
    """What is left of a stream's log up to where it stands."""
    log = CommitLog(table.home.records, head.stream, table.uri)

    def record(sequence: int) -> BatchRecord | bool:
        """False: it was folded and collected."""
        try:
            found = log.record(sequence)
        except NotFound:
            return False
        return found if isinstance(found, BatchRecord) else True

    with ThreadPoolExecutor(READERS, thread_name_prefix="headgate-log") as pool:
        found = list(pool.map(record, range(1, head.sequence + 1)))
    late = late_beginning(log.beginning(), head)
    return History(tuple(one for one in found if isinstance(one, BatchRecord)), False not in found, late)


def committed_ranges(heads: Sequence[Head], topics: Mapping[str, ConsumerConfig]) -> tuple[CommittedRange, ...]:
    """Per stream and partition what was committed, pass by pass. Asks Kafka only where a log does not say where it
    began.
    """
    ranges = []
    for head in heads:
        for (topic, partition), until in sorted(head.ends.items()):
            earlier = [one for one in head.passes if (one.topic, one.partition) == (topic, partition)]
            began = 0
            for one in earlier:
                ranges.append(_range(head, one.start, one, began, topics))
                began = one.ended_by
            last = Pass(topic, partition, head.starts.get((topic, partition)), until, 0)
            ranges.append(_range(head, last.start, last, began, topics))
    return tuple(ranges)


def _range(
    head: Head, start: int | None, part: Pass, began: int, topics: Mapping[str, ConsumerConfig]
) -> CommittedRange:
    known = start is not None
    if start is None:
        start = offsets(topics[part.topic], part.topic)[part.partition][0] if part.topic in topics else 0
    place = (head.stream, part.topic, part.partition)
    return CommittedRange(*place, min(start, part.until), part.until, known, began, part.ended_by or None)
