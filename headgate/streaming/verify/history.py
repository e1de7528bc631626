"""What a table's streams have committed and how it was decoded, from their commit logs. Reads only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headgate import parallel
from headgate.checkpoints.log.commit_log import CommitLog
from headgate.checkpoints.log.decisions import late_beginning
from headgate.checkpoints.log.records import BatchRecord, LogRecord, OpenRecord, PartitionPass
from headgate.checkpoints.log.state import Head
from headgate.connectors.kafka.options import ConsumerConfig
from headgate.connectors.kafka.reading import offsets
from headgate.errors import NotFound
from headgate.streaming.decode.provenance import Provenance
from headgate.table.table import Table


@dataclass(frozen=True)
class Era:
    """Part of a range whose records were decoded in one way."""

    start: int
    until: int
    made: Provenance
    assumed: bool
    """True if neither the log nor the caller names the decoder."""


@dataclass(frozen=True)
class CommittedRange:
    """The offsets that one stream committed of one partition in one pass: between two rewinds, or since the last."""

    stream: str
    topic: str
    partition: int
    start: int
    until: int
    start_known: bool
    """False if the log no longer has the first records; then the topic's earliest offset is used."""
    after: int = 0
    """The sequence of the rewind that it began with; 0: it is the first pass."""
    ended_by: int | None = None
    """The sequence of the rewind that it ended with; None: it is the last pass."""

    def is_of(self, sequence: int) -> bool:
        """True if the record belongs to this pass."""
        return self.after < sequence and (self.ended_by is None or sequence < self.ended_by)

    def value(self, eras: Iterable[Era]) -> dict[str, Any]:
        """As JSON values, with the decoders of its records."""
        return {
            "stream": self.stream,
            "topic": self.topic,
            "partition": self.partition,
            "from": self.start,
            "until": self.until,
            "start_known": self.start_known,
            "ended_by_rewind": self.ended_by,
            "decoded_by": [
                {"from": era.start, "until": era.until, "decoder": era.made.kind, "assumed": era.assumed}
                for era in eras
            ],
        }


@dataclass(frozen=True)
class History:
    """A stream's remaining batch records, oldest first, and whether none is missing."""

    batches: tuple[BatchRecord, ...]
    complete: bool
    late: str | None = None
    """The problem, if the log begins with a later batch than the first of its query (R23)."""
    opens: tuple[OpenRecord, ...] = ()
    """The open records that name a decoder, oldest first. Open records are never deleted."""


def history_of(table: Table, head: Head) -> History:
    """The remaining log of a stream, up to its head."""
    log = CommitLog(table.home.records, head.stream, table.uri)

    def record(sequence: int) -> LogRecord | None:
        """None if it was folded and deleted."""
        try:
            return log.record(sequence)
        except NotFound:
            return None

    found = parallel.each("log", record, range(1, head.sequence + 1))
    batches = tuple(one for one in found if isinstance(one, BatchRecord))
    opens = tuple(one for one in found if isinstance(one, OpenRecord) and one.decoder is not None)
    return History(batches, None not in found, late_beginning(log.beginning(), head), opens)


def eras_of(part: CommittedRange, said: Sequence[tuple[OpenRecord, Provenance]], otherwise: Era) -> tuple[Era, ...]:
    """How the records of a range were decoded, from its start to its end; `otherwise` where no record says how."""
    marks: list[tuple[int, Provenance | None]] = [(part.start, None)]
    for record, made in said:
        if record.sequence <= part.after:
            marks = [(part.start, made)]
        elif part.is_of(record.sequence):
            began = {(topic, partition): end for topic, partition, end in record.ends}
            at = began.get((part.topic, part.partition), part.start)
            marks = [mark for mark in marks if mark[0] < max(at, part.start)]
            marks.append((max(at, part.start), made))
    edges = [*(at for at, _ in marks[1:]), part.until]
    return tuple(
        replace(otherwise, start=start, until=until)
        if made is None
        else Era(start, min(until, part.until), made, False)
        for (start, made), until in zip(marks, edges, strict=True)
        if start < part.until
    )


def committed_ranges(heads: Sequence[Head], topics: Mapping[str, ConsumerConfig]) -> tuple[CommittedRange, ...]:
    """The committed ranges per stream and partition, pass by pass. Asks Kafka only if a log does not contain the
    start.
    """
    ranges = []
    for head in heads:
        for (topic, partition), until in sorted(head.ends.items()):
            earlier = [one for one in head.passes if (one.topic, one.partition) == (topic, partition)]
            began = 0
            for one in earlier:
                ranges.append(_range(head, one.start, one, began, topics))
                began = one.ended_by
            last = PartitionPass(topic, partition, head.starts.get((topic, partition)), until, 0)
            ranges.append(_range(head, last.start, last, began, topics))
    return tuple(ranges)


def _range(
    head: Head, start: int | None, part: PartitionPass, began: int, topics: Mapping[str, ConsumerConfig]
) -> CommittedRange:
    known = start is not None
    if start is None:
        start = offsets(topics[part.topic], part.topic)[part.partition][0] if part.topic in topics else 0
    place = (head.stream, part.topic, part.partition)
    return CommittedRange(*place, min(start, part.until), part.until, known, began, part.ended_by or None)
