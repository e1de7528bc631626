"""The parts of a stream's state as small values, and what the product makes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple, TypeAlias
from uuid import UUID

import pyarrow as pa

from headgate.checkpoints.log import codec
from headgate.checkpoints.log.records import Batch, BatchRecord, LogRecord, OpenRecord, ShardClaim, ShardPart
from headgate.checkpoints.log.state import LogState, ShardPositions, empty, replayed, unfolded
from headgate.checkpoints.stream.backlog import Unflushed
from headgate.errors import HeadgateError
from headgate.shards.manifest.model import Manifest, SsTable
from headgate.shards.wal.entry import Entry, EntryHeader, SourceRange, Tags
from headgate.shards.wal.tailer import WalEntry
from tests.explorer.rules import Rules
from tests.explorer.slots import Slots, found, there

STREAM, QUERY, TOPIC = "orders", "q", "t"
_SCHEMA = pa.schema([])


class Planned(NamedTuple):
    """One batch as Spark's checkpoint has it: its offsets, and the shards that get their rows."""

    start: int
    until: int
    shards: tuple[int, ...]

    @property
    def source(self) -> SourceRange:
        return SourceRange(TOPIC, 0, self.start, self.until)


def batches(*shards: tuple[int, ...]) -> tuple[Planned, ...]:
    """A batch of one offset per tuple of shards. One without shards has no rows."""
    return tuple(Planned(number, number + 1, to) for number, to in enumerate(shards))


# -- shards ------------------------------------------------------------------------


class Written(NamedTuple):
    """An entry of a WAL."""

    epoch: int
    driver: int
    task: tuple[int, int] | None = None
    """Batch and attempt; None: a barrier."""

    def entry_id(self, shard: int) -> str:
        """Its id, which for a task's entry is its attempt's as well."""
        if self.task is None:
            return f"barrier of epoch {self.epoch}"
        return attempt_id(self.driver, self.task[0], shard, self.task[1])


Wal: TypeAlias = Slots[Written]


def rows_of(plans: Sequence[Sequence[Planned]], entry: Written) -> range:
    """The rows of an entry that counts: a row is its offset."""
    assert entry.task is not None
    return range(*plans[entry.driver][entry.task[0]][:2])


class Job(NamedTuple):
    """A flush or a checkpoint of one shard that is not done: what it does next, and what the manifest said before."""

    step: str
    started_from: int = 0
    generation: int = 0
    last: int = 0
    """Of the rows in the SSTable."""
    rows: tuple[int, ...] = ()
    upto: int | None = None
    """Of a checkpoint: how far replay_after is to go in the end."""


class Hold(NamedTuple):
    """What a driver has of a shard."""

    step: str = "claim"
    epoch: int = 0
    claim: str = ""
    at: int = -1
    """Where to look for the tip; the tip; the barrier."""
    covered: int = 0
    """The replay_after that it has read at its start, or written."""
    floor: int | None = None
    """The replay_after that it has written or is about to write."""
    job: Job | None = None


class Task(NamedTuple):
    """One attempt to write one entry, and where it stands."""

    batch: int
    attempt: int
    epoch: int
    at: int
    done: bool = False


Tasks: TypeAlias = tuple[Task, ...]


def shard_id(shard: int) -> UUID:
    return UUID(int=shard + 1)


def attempt_id(driver: int, batch: int, shard: int, attempt: int) -> str:
    return f"driver {driver}, batch {batch}, shard {shard}, attempt {attempt}"


def sstable_of(driver: int, generation: int, rows: Sequence[int]) -> SsTable:
    """Named after its rows."""
    return SsTable(generation, "_".join(map(str, (driver, *rows))))


def rows_in(manifest: Manifest | None) -> list[int]:
    """The rows of all its SSTables."""
    return [int(row) for one in (manifest.sstables if manifest else ()) for row in one.path.split("_")[1:]]


def replay_after(manifest: Manifest | None) -> int:
    return 0 if manifest is None else manifest.replay_after


# -- the log -----------------------------------------------------------------------


class Part(NamedTuple):
    """What a record lists of one shard."""

    position: int
    attempt: int


class Logged(NamedTuple):
    """A record of the log; without a batch it is an open record."""

    driver: int
    sequence: int
    claims: tuple[tuple[int, str, int], ...] = ()
    """Of an open record: epoch, claim id and barrier per shard."""
    open_id: str = ""
    """Of a batch: the open record it was committed under."""
    batch: int | None = None
    planned: Planned = Planned(0, 0, ())
    parts: tuple[Part | None, ...] = ()

    @property
    def record_id(self) -> str:
        """A driver never puts two records for one sequence."""
        return f"record {self.sequence} of driver {self.driver}"


class Log(NamedTuple):
    """The records that are there, and (for the checks alone) every batch that was ever committed."""

    slots: Slots[Logged] = ()
    committed: tuple[Planned, ...] = ()


class Known(NamedTuple):
    """What somebody has read of the log: a fold and the records above it."""

    fold: bytes | None = None
    records: tuple[Logged, ...] = ()

    def after(self, record: Logged) -> Known:
        return self._replace(records=(*self.records, record))


class Driver(NamedTuple):
    """One driver process, without what it holds of shards."""

    step: str = "off"
    """off, claim, log, re-read, open; and for a clean stop renew, renewed, stop, off for good."""
    known: Known = Known()
    flight: tuple[int, tuple[int | None, ...]] | None = None
    """The batch under way, and per shard where it was planned."""
    turn: int = 0
    """How many opens had returned when its own did."""


def as_batch(record: Logged) -> Batch:
    """What a driver would commit."""
    assert record.batch is not None
    shards = {
        f"s{shard}": ShardPart(
            shard_id(shard), attempt_id(record.driver, record.batch, shard, part.attempt), (part.position,), 1, 1
        )
        for shard, part in enumerate(record.parts)
        if part is not None
    }
    return Batch(
        query_id=QUERY, batch_id=record.batch, sources=(record.planned.source,), shards=shards, mode="memtable"
    )


@cache
def as_record(record: Logged) -> LogRecord:
    """The product's record."""
    if record.batch is None:
        claims = {f"s{shard}": ShardClaim(shard_id(shard), *claim) for shard, claim in enumerate(record.claims)}
        return OpenRecord(
            record_id=record.record_id, sequence=record.sequence, stream=STREAM, query_id=QUERY, shards=claims
        )
    batch = as_batch(record)
    return BatchRecord(
        query_id=QUERY,
        batch_id=batch.batch_id,
        sources=batch.sources,
        shards=batch.shards,
        mode=batch.mode,
        record_id=record.record_id,
        sequence=record.sequence,
        stream=STREAM,
        open_id=record.open_id,
    )


@cache
def as_state(known: Known) -> LogState:
    """Where the stream stands. Raises Corrupt for a log that no driver could have written."""
    state = empty(STREAM) if known.fold is None else unfolded(codec.decode_fold(known.fold))
    return replayed(state, [as_record(record) for record in known.records])


@cache
def fold_sequence(fold: bytes | None) -> int:
    return 0 if fold is None else codec.decode_fold(fold).sequence


@cache
def folded(rules: Rules, known: Known, covered: tuple[int, ...]) -> bytes:
    """The fold of a log where so much of each shard is flushed."""
    flushed = {shard_id(shard): at for shard, at in enumerate(covered)}
    return codec.encode(rules.fold(as_state(known), flushed))


def read_log(log: Log, fold: bytes | None) -> Known | None:
    """What a reader finds; None: a record is missing that no fold has."""
    above = log.slots[fold_sequence(fold) :]
    records = tuple(record for record in above if record is not None)
    return Known(fold, records) if len(records) == len(above) else None


def unflushed(known: Known, shard: int, manifest: Manifest) -> Unflushed:
    """What a driver would flush."""
    held = Unflushed.of(as_state(known), shard_id(shard))
    held.forget(manifest.replay_after)
    return held


def visible_entries(
    rules: Rules, wal: Wal, shard: int, positions: Mapping[UUID, ShardPositions], start: int, stop: int | None = None
) -> list[tuple[int, Written]] | str:
    """The entries of [start, stop) that count, as the product reads them; a text says what is lost."""
    end = len(wal) if stop is None else stop
    if not all(there(wal, position) for position in range(start, end)):
        return f"shard {shard} has a hole between {start} and {end}"
    entries = [_as_entry(position, found(wal, position), shard) for position in range(start, end)]
    try:
        counted = rules.visible(positions).visible_entries(shard_id(shard), entries, start, stop)
        return [(one.position, found(wal, one.position)) for one in counted]
    except HeadgateError as error:
        return str(error)


def _as_entry(position: int, written: Written, shard: int) -> WalEntry:
    barrier = written.task is None
    tags = Tags(None if barrier else written.entry_id(shard))
    return WalEntry(position, Entry(EntryHeader(written.epoch, barrier, _SCHEMA, tags=tags), (), 0))
