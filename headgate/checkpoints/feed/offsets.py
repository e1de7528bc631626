"""How far a consumer of the commit logs goes in one batch, and what lies between two offsets. Pure: no store, no clock.

Offsets are the last sequence read, per stream; a stream that is missing was not read at all. Streams have no order
among each other; a shard belongs to one stream at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias
from uuid import UUID

from headgate.checkpoints.log.records import BatchRecord, LogRecord
from headgate.checkpoints.log.state import LogState

Offsets: TypeAlias = Mapping[str, int]
"""The last sequence read, per stream."""


@dataclass(frozen=True, slots=True)
class Limit:
    """Maximum size of one batch of a consumer, in at most one measure each; a record is never split."""

    rows: int | None = None
    nbytes: int | None = None
    batches: int | None = None

    def room(self, rows: int, nbytes: int, batches: int) -> bool:
        """True if the sizes are still within the limit."""
        pairs = ((rows, self.rows), (nbytes, self.nbytes), (batches, self.batches))
        return all(most is None or amount <= most for amount, most in pairs)


@dataclass(frozen=True, slots=True)
class LogPiece:
    """What one committed batch wrote to one shard."""

    stream: str
    sequence: int
    attempt_id: str
    positions: tuple[int, ...]
    rows: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class LogPart:
    """A shard's share of a consumer's batch, in the order of positions: the work of one task."""

    shard_id: UUID
    shard: str
    pieces: tuple[LogPiece, ...]


def admitted(start: Offsets, ahead: Mapping[str, Iterator[BatchRecord | None]], limit: Limit) -> Offsets:
    """How far a batch goes. `ahead` has per stream the records above the start in order; None: one without rows.

    Streams are served by turns, one record with rows at a time, so that a long one does not starve the others. The
    first such record is taken whatever its size; records without rows cost nothing.
    """
    end = dict(start)
    rows = nbytes = batches = 0
    waiting = dict(sorted(ahead.items()))
    while waiting:
        for stream, records in list(waiting.items()):
            taken = False
            for record in records:
                more = (0, 0, 0) if record is None or not record.shards else (record.rows, record.nbytes, 1)
                total = (rows + more[0], nbytes + more[1], batches + more[2])
                if batches and more[2] and not limit.room(*total):
                    return end
                rows, nbytes, batches = total
                end[stream] = end.get(stream, 0) + 1
                if more[2]:
                    taken = True
                    break
            if not taken:
                del waiting[stream]
    return end


def parts_of(records: Iterable[BatchRecord]) -> list[LogPart]:
    """The work in the records, per shard. A shard that changed its stream keeps the order of its positions."""
    pieces: dict[UUID, list[LogPiece]] = {}
    shard_names: dict[UUID, str] = {}
    for record in records:
        for name, part in record.shards.items():
            shard_names[part.shard_id] = name
            pieces.setdefault(part.shard_id, []).append(
                LogPiece(record.stream, record.sequence, part.attempt_id, part.positions, part.rows, part.nbytes)
            )
    return [
        LogPart(shard_id, shard_names[shard_id], tuple(sorted(some, key=lambda one: one.positions[0])))
        for shard_id, some in sorted(pieces.items())
    ]


def behind(states: Iterable[LogState], unread: Iterable[LogRecord]) -> dict[UUID, int]:
    """Per shard the last position done by a consumer that has not read these records of these logs.

    Positions of a shard rise with the sequence: it is the position before the first unread one, or the last position if
    nothing is unread.
    """
    upto: dict[UUID, int] = {}
    for state in states:
        for shard_id, positions in state.shards.items():
            upto[shard_id] = max(positions.last, upto.get(shard_id, -1))
    firsts: dict[UUID, int] = {}
    for record in unread:
        if isinstance(record, BatchRecord):
            for part in record.shards.values():
                firsts[part.shard_id] = min(part.positions[0], firsts.get(part.shard_id, part.positions[0]))
    return upto | {shard_id: first - 1 for shard_id, first in firsts.items()}


def first_readable(tip: int, readable: Callable[[int], bool]) -> int:
    """The sequence above which every record up to the tip is readable."""
    sequence = tip
    while sequence and readable(sequence):
        sequence -= 1
    return sequence
