"""Contents of a stream's commit log, as values. `headgate.records` encodes them; see `codec`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias
from uuid import UUID

from headgate.errors import InvalidInput
from headgate.records import LEFT_OUT
from headgate.shards.wal.entry import SourceRange

WriteMode = Literal["wal", "memtable"]
Span: TypeAlias = tuple[int, int]
"""Positions from the first to the last, inclusive."""

DEAD_LETTERS = "dead-letters:"
"""Prefix of the names of dead-letter logs in records."""

BATCH = "batch:"
"""Prefix of the sources of batch writes; the rest is the caller's batch id."""


@dataclass(frozen=True, slots=True)
class ShardClaim:
    """A driver's hold on one shard: epoch, claim id, and the position of its barrier."""

    shard_id: UUID
    epoch: int
    claim_id: str
    barrier: int


@dataclass(frozen=True, slots=True)
class ShardPart:
    """What one batch wrote to one shard (or dead-letter log): the visible positions and their attempt."""

    shard_id: UUID
    attempt_id: str
    positions: tuple[int, ...]
    rows: int
    nbytes: int

    def __post_init__(self) -> None:
        rising = all(a < b for a, b in zip(self.positions, self.positions[1:], strict=False))
        if not self.positions or not rising or self.positions[0] < 0:
            raise InvalidInput(f"The positions of a batch must be increasing and not empty, got {self.positions[:20]}.")


@dataclass(frozen=True, slots=True)
class OpaqueRange:
    """Progress of a source that is not Kafka, as Spark writes it. `start` is None at the source's beginning.

    `source` is the number or name that the source has in Spark's checkpoint.
    """

    ROW: ClassVar = True
    source: str
    start: str | None
    until: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One micro-batch, ready to commit. A batch without rows has no shards."""

    query_id: str
    batch_id: int
    sources: tuple[SourceRange, ...] = ()
    opaque: tuple[OpaqueRange, ...] = ()
    shards: Mapping[str, ShardPart] = field(default_factory=dict)
    dead_letters: Mapping[str, ShardPart] = field(default_factory=dict)
    mode: WriteMode = "wal"
    record_times: tuple[int, int] | None = field(default=None, metadata=LEFT_OUT)
    """Oldest and newest Kafka timestamp among the records looked at, in milliseconds: the first and the last record of
    each read, and some between. None if none was seen. Nothing depends on it.
    """

    @property
    def rows(self) -> int:
        """Rows in the shards, without dead letters."""
        return sum(part.rows for part in self.shards.values())

    @property
    def nbytes(self) -> int:
        """Bytes of the entries in the shards."""
        return sum(part.nbytes for part in self.shards.values())

    @property
    def is_replay(self) -> bool:
        """True if its rows are replayed dead letters of the stream: then it is no batch of a query, and does not move
        any source.
        """
        return bool(self.opaque) and not self.sources and all(is_dead_letters(part.source) for part in self.opaque)

    def parts(self) -> Iterable[tuple[str, ShardPart]]:
        """Shards, then dead-letter logs: visibility treats them alike."""
        yield from self.shards.items()
        yield from self.dead_letters.items()


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRecord(Batch):
    """The commit record: everything it lists becomes visible at once."""

    KIND: ClassVar = "batch"
    DERIVED: ClassVar = ("rows", "nbytes")
    record_id: str
    sequence: int
    stream: str
    open_id: str
    """Id of the open record under which it was committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRecord:
    """A driver took over; every earlier driver is fenced from here on."""

    KIND: ClassVar = "open"
    record_id: str
    sequence: int
    stream: str
    query_id: str
    shards: Mapping[str, ShardClaim]
    opened_at: str = ""
    """For people. Nothing depends on it."""
    decoder: Mapping[str, Any] | None = field(default=None, metadata=LEFT_OUT)
    """How records become rows from here on, see `streaming.decode.provenance`; None: as the previous
    open record says.
    """
    ends: tuple[tuple[str, int, int], ...] = field(default=(), metadata=LEFT_OUT)
    """With a decoder: start of the first batch that it decodes, as (topic, partition, offset)."""

    def claim_of(self, shard_id: UUID) -> ShardClaim | None:
        """This driver's claim of a shard, None without one."""
        return next((claim for claim in self.shards.values() if claim.shard_id == shard_id), None)


@dataclass(frozen=True, slots=True)
class OffsetMove:
    """Where a partition was at a rewind, and where it continues. `before` is None if the stream had not read it."""

    ROW: ClassVar = True
    topic: str
    partition: int
    before: int | None
    after: int

    @property
    def again(self) -> int:
        """Offsets that will be read a second time."""
        return 0 if self.before is None else max(0, self.before - self.after)

    @property
    def skipped(self) -> int:
        """Offsets that will not be read, as far as is known; 0 for a partition that is new."""
        return 0 if self.before is None else max(0, self.after - self.before)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewindRecord:
    """A deliberate move of the stream: the next batch starts at other offsets than the last one ended at."""

    KIND: ClassVar = "rewind"
    record_id: str
    sequence: int
    stream: str
    open_id: str
    """Id of the open record under which it was put."""
    query_id: str
    offsets: tuple[OffsetMove, ...]
    """Every partition that the next batch is checked against, including those that stay."""
    rewound_at: str = ""
    """For people, like `by` and `reason`. Nothing depends on them."""
    by: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaRecord:
    """The table's columns changed before it was put: a driver that reaches it reads the columns again (R22).

    It belongs to no driver, fences nobody, and contains no columns: the base has them.
    """

    KIND: ClassVar = "schema"
    record_id: str
    sequence: int
    stream: str
    changed_at: str = ""
    """For people. Nothing depends on it."""


@dataclass(frozen=True, slots=True)
class PartitionPass:
    """One pass over a partition, from its start until a rewind ended it."""

    ROW: ClassVar = True
    topic: str
    partition: int
    start: int | None
    """None if an earlier release lost it by folding."""
    until: int
    ended_by: int
    """Sequence of the rewind."""


@dataclass(frozen=True, slots=True)
class FoldedShard:
    """A shard's listed positions above `replay_after`, as runs without attempt ids.

    A position names one entry forever, so the attempt id was only a second proof. `last` is the highest position that
    any record ever listed, flushed or not.
    """

    shard: str
    replay_after: int
    last: int
    visible: tuple[Span, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """All records up to `sequence` in one: readers ignore the originals (R6)."""

    KIND: ClassVar = "fold"
    sequence: int
    stream: str
    opened: OpenRecord | None
    last: BatchRecord | None
    ends: tuple[tuple[str, int, int], ...]
    """Start of the next batch, as (topic, partition, offset)."""
    opaque_ends: tuple[tuple[str, str], ...]
    shards: Mapping[UUID, FoldedShard]
    starts: tuple[tuple[str, int, int], ...] = ()
    """Start of the first batch since a rewind, as (topic, partition, offset); missing if an earlier release lost it by
    folding.
    """
    rewound: RewindRecord | None = field(default=None, metadata=LEFT_OUT)
    """The last rewind."""
    passes: tuple[PartitionPass, ...] = field(default=(), metadata=LEFT_OUT)
    """Passes that rewinds ended."""
    changed: int = field(default=0, metadata=LEFT_OUT)
    """Sequence of the last schema record; 0 if there is none."""


LogRecord: TypeAlias = OpenRecord | BatchRecord | RewindRecord | SchemaRecord


def is_dead_letters(source: str) -> bool:
    """True if a source is a dead-letter log of the stream. Spark's sources never have such a name."""
    return source.startswith(DEAD_LETTERS)
