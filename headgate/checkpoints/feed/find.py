"""Find an offset of a topic: unread, its batch and entry, a dead letter, or flushed. Reads only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import pyarrow.compute as pc

from headgate.checkpoints.log.commit_log import CommitLog
from headgate.checkpoints.log.dead_letters import dead_letter_home
from headgate.checkpoints.log.records import BatchRecord, LogRecord, ShardPart
from headgate.checkpoints.log.state import Head
from headgate.errors import NotFound
from headgate.shards.shard import Shard, TableHome
from headgate.shards.wal.appender import read_header
from headgate.shards.wal.decoder import decode_entry
from headgate.shards.wal.entry import SourceRange

MOST_ENTRIES = 64
"""Entries of one batch that are searched at most."""

Layer = Literal["wal", "flushed", "collected"]
OffsetState = Literal["committed", "dead letter", "waiting", "before", "folded", "never read"]


@dataclass(frozen=True, slots=True)
class EntryPlace:
    """An entry that may hold the offset's row."""

    shard: str
    shard_id: str
    position: int
    layer: Layer
    """Where the entry is. "wal": only in the WAL; "flushed": an SSTable or the base has it too; "collected": gone from
    the WAL.
    """
    ranges: tuple[SourceRange, ...] = ()
    """Source ranges in the entry's header; empty if its rows went through a shuffle, or if the entry is gone."""


@dataclass(frozen=True, slots=True)
class OffsetPlace:
    state: OffsetState
    at: int | None = None
    """The stream's current offset in the partition; None: the stream never read it."""
    first: int | None = None
    """First offset that the stream read there, if known."""
    record: BatchRecord | None = None
    """The batch that read it."""
    entries: tuple[EntryPlace, ...] = ()
    error: str | None = None
    """Why it became a dead letter."""


def find_offset(home: TableHome, stream: str, topic: str, partition: int, offset: int) -> OffsetPlace:
    """Find an offset in what the stream has read since its last rewind.

    A binary search finds the record: a few GETs, however long the log is. Raises DataLoss, Corrupt, Transient.
    """
    log = CommitLog(home.records, stream, home.uri)
    head = log.read().head
    place = (topic, partition)
    at, first = head.ends.get(place), head.starts.get(place)
    if at is None:
        return OffsetPlace("never read")
    if offset >= at:
        return OffsetPlace("waiting", at, first)
    if first is not None and offset < first:
        return OffsetPlace("before", at, first)
    record = _batch_of(log, head, topic, partition, offset)
    if record is None:
        return OffsetPlace("folded", at, first)
    error = _dead_letter(home, record, topic, partition, offset)
    if error is not None:
        return OffsetPlace("dead letter", at, first, record, (), error)
    return OffsetPlace("committed", at, first, record, tuple(_entries(home, record, topic, partition, offset)))


def _batch_of(log: CommitLog, head: Head, topic: str, partition: int, offset: int) -> BatchRecord | None:
    """The batch that read the offset; None: its record was folded and collected."""

    def part_of(record: LogRecord | None) -> SourceRange | None:
        if not isinstance(record, BatchRecord) or record.is_replay:
            return None
        return next((one for one in record.sources if (one.topic, one.partition) == (topic, partition)), None)

    for known in head.recent.values():
        part = part_of(known)
        if part is not None and part.start <= offset < part.until and known.sequence > _rewound(head):
            return known
    sequences = sorted(one for one in log.sequences() if one > _rewound(head))
    low, high = 0, len(sequences)
    while low < high:
        middle = (low + high) // 2
        at, part = middle, None
        # Records of other kinds have no ranges: the next batch decides.
        while at < high and part is None:
            record = _record(log, sequences[at])
            part, at = part_of(record), at + 1
        if part is None or part.start > offset:
            high = middle
        elif part.until > offset and isinstance(record, BatchRecord):
            return record
        else:
            low = at
    return None


def _rewound(head: Head) -> int:
    return 0 if head.rewound is None else head.rewound.sequence


def _record(log: CommitLog, sequence: int) -> LogRecord | None:
    try:
        return log.record(sequence)
    except NotFound:
        return None


def _entries(home: TableHome, record: BatchRecord, topic: str, partition: int, offset: int) -> Iterator[EntryPlace]:
    """Entries of the batch whose ranges contain the offset, or that have no ranges."""
    left = MOST_ENTRIES
    for name, part in record.shards.items():
        shard = home.shard(part.shard_id)
        manifest = shard.manifests.latest()
        replay_after = -1 if manifest is None else manifest.replay_after
        for position in part.positions[:left]:
            left -= 1
            covered: Layer = "flushed" if position <= replay_after else "wal"
            try:
                ranges = read_header(shard, position).tags.sources
            except NotFound:
                if covered == "flushed":
                    yield EntryPlace(name, str(part.shard_id), position, "collected")
                continue
            if not ranges or any(_holds(one, topic, partition, offset) for one in ranges):
                yield EntryPlace(name, str(part.shard_id), position, covered, ranges)


def _holds(part: SourceRange, topic: str, partition: int, offset: int) -> bool:
    return (part.topic, part.partition) == (topic, partition) and part.start <= offset < part.until


def _dead_letter(home: TableHome, record: BatchRecord, topic: str, partition: int, offset: int) -> str | None:
    """Why the offset's record became a dead letter; None if it became a row, or its dead letter is gone."""
    dead = dead_letter_home(home, record.stream)
    for part in record.dead_letters.values():
        for position in part.positions[:MOST_ENTRIES]:
            if (error := _letter(Shard(dead, part.shard_id), part, position, topic, partition, offset)) is not None:
                return error
    return None


def _letter(shard: Shard, part: ShardPart, position: int, topic: str, partition: int, offset: int) -> str | None:
    try:
        entry = decode_entry(shard.wal.get(shard.wal_key(position)))
    except NotFound:
        return None
    for batch in entry.batches:
        here = pc.and_(pc.equal(batch.column("partition"), partition), pc.equal(batch.column("offset"), offset))
        found = batch.filter(pc.and_(here, pc.equal(batch.column("topic"), topic)))
        if found.num_rows:
            return str(found.column("error")[0].as_py())
    return None
