"""The commit logs of a table, as a consumer reads them: every committed batch once, in order (R15).

Promises:
1. Per stream, batches come in order of their sequence, none missing or duplicated, despite flushes, folds, compactions
   and collections: a pin protects unread batches.
2. A consumer that is too late gets Expired, with a checkpoint to start from; it never skips.
3. Nobody is fenced but an earlier run of the same consumer.

Rows that a ShardWriter put without a stream are in no commit log.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias
from uuid import UUID

from headgate import clock, parallel
from headgate.checkpoints.feed.offsets import Limit, LogPart, Offsets, admitted, behind, first_readable, parts_of
from headgate.checkpoints.log.commit_log import CommitLog
from headgate.checkpoints.log.names import list_streams
from headgate.checkpoints.log.pins import ConsumerPin, PinStore, another_run
from headgate.checkpoints.log.records import BatchRecord, LogRecord
from headgate.checkpoints.snapshots.checkpoint import CheckpointStore, TableCheckpoint
from headgate.checkpoints.snapshots.take import READ_PREFIX, take
from headgate.errors import Expired, NotFound
from headgate.shards.shard import Shard, TableHome
from headgate.shards.wal.listing import positions

Start: TypeAlias = Literal["earliest", "latest"] | TableCheckpoint
"""Where a consumer starts: at the oldest existing record, with new records only, or after a checkpoint."""

HOLD = 86_400.0
"""Seconds that a pin is valid after its last renewal, so that a consumer may be down for a day."""

RENEW_EVERY = 30.0
"""Minimum seconds between two renewals; a pin that expires sooner is renewed four times before it does."""

POLL_EVERY = 1.0
"""Minimum seconds between two looks at the logs: Spark asks a hundred times a second."""

TRIES = 4
"""A try to start fails if a fold or collection took something meanwhile, which is rare."""


@dataclass
class LogFeed:
    """One run of one consumer. For one thread; keeps records that are planned but not done."""

    home: TableHome
    shard_ids: Callable[[], Iterable[UUID]]
    consumer: str
    hold: float = HOLD
    poll: float = POLL_EVERY
    clock: Callable[[], float] = clock.monotonic
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self) -> None:
        self._pins = PinStore(self.home.records, self.home.uri)
        self._pin: ConsumerPin | None = None
        self._key: str | None = None
        self._pinned_at = 0.0
        self._records: dict[tuple[str, int], LogRecord] = {}
        self._tips: dict[str, int] = {}
        self._looked_at: float | None = None
        self._listed: dict[UUID, set[int]] = {}
        """Per shard the existing positions; valid during one look."""

    # -- what Spark asks -------------------------------------------------------------

    def start(self, where: Start) -> Offsets:
        """The consumer's start offsets. THIS WRITES a pin. Raises Expired if records or entries after a checkpoint are
        gone.
        """
        for _ in range(TRIES):
            tips = self._look()
            if isinstance(where, TableCheckpoint):
                return self.begin(after(where))
            begin = tips if where == "latest" else {stream: self._first(stream, tip) for stream, tip in tips.items()}
            if self._held(begin):
                return begin
        raise self._expired("Garbage collection deleted log records faster than this consumer could pin them.")

    def begin(self, offsets: Offsets) -> Offsets:
        """Continue from offsets that the consumer had before. THIS WRITES a pin. Raises Expired."""
        self._look()
        if not self._held(offsets):
            raise self._expired("Batches that this consumer has not read were deleted after its pin expired.")
        return offsets

    def latest(self, start: Offsets, limit: Limit | None = None) -> Offsets:
        """The end of the next batch, within the limit: at least one record, and only whole ones."""
        self._begun(start)
        tips = self._look_now_and_then()
        if limit is None:
            return {**start, **{stream: max(tip, start.get(stream, 0)) for stream, tip in tips.items()}}
        ahead = {stream: self._ahead(stream, start.get(stream, 0), tip) for stream, tip in tips.items()}
        return admitted(start, ahead, limit)

    def tips(self) -> Offsets:
        """Last sequence of each stream, as of a moment ago."""
        return self._look_now_and_then()

    def plan(self, start: Offsets, end: Offsets) -> list[LogPart]:
        """The work between two offsets, per shard, in order. Raises Expired."""
        self._begun(start)
        found: list[BatchRecord] = []
        for stream in sorted(end):
            wanted = range(start.get(stream, 0) + 1, end[stream] + 1)
            found += [one for one in self._read(stream, wanted) if isinstance(one, BatchRecord)]
        return parts_of(found)

    def done(self, end: Offsets) -> None:
        """Everything up to `end` was read: move the pin, but not every time."""
        pin = self._begun(end)
        passed = [key for key in self._records if key[1] <= end.get(key[0], 0)]
        positions = dict(pin.positions)
        for key in sorted(passed):
            record = self._records.pop(key)
            if isinstance(record, BatchRecord):
                for part in record.shards.values():
                    positions[part.shard_id] = max(part.positions[-1], positions.get(part.shard_id, -1))
        self._pin = replace(pin, done={**pin.done, **end}, positions=positions)
        self.renew()

    def renew(self, *, now: bool = False) -> None:
        """Renew the pin, if it is time."""
        if self._pin is not None and (now or self.clock() - self._pinned_at >= min(RENEW_EVERY, self.hold / 4)):
            self._put(replace(self._pin, number=self._pin.number + 1), [] if self._key is None else [self._key])

    # -- holding -----------------------------------------------------------------------

    def _begun(self, offsets: Offsets) -> ConsumerPin:
        """The run's pin. The first call of a run takes and checks it, and so does a call after it was not renewed in
        time.
        """
        if self._pin is None or self.clock() - self._pinned_at >= self.hold:
            self.begin(offsets)
        assert self._pin is not None
        self.renew()
        return self._pin

    def _held(self, offsets: Offsets) -> bool:
        """Put a pin at the offsets, then check that everything above it exists."""
        try:
            positions = self._positions(offsets)
        except NotFound:
            return False
        before = self._pins.newest(self.consumer)
        if self._pin is not None and before is not None and before.pin.run_id != self.run_id:
            raise another_run(self.consumer, self.home.uri)
        older = [] if before is None else [*before.older, before.key]
        number = 1 if before is None else before.pin.number + 1
        pin = ConsumerPin(
            consumer=self.consumer,
            number=number,
            run_id=self.run_id,
            done=dict(offsets),
            positions=positions,
            expires_after=self.hold,
        )
        self._put(pin, older)
        return self._is_there(offsets)

    def _put(self, pin: ConsumerPin, older: list[str]) -> None:
        self._key = self._pins.put(pin, older)
        self._pin, self._pinned_at = pin, self.clock()

    def _positions(self, offsets: Offsets) -> dict[UUID, int]:
        """Per shard the last position that is done at these offsets. Raises NotFound if a record above them is gone."""
        states = [self._log(stream).read() for stream in self._tips]
        above = [
            record
            for state in states
            for record in self._records_of(state.stream, range(offsets.get(state.stream, 0) + 1, state.sequence + 1))
        ]
        return behind(states, above)

    def _is_there(self, offsets: Offsets) -> bool:
        """True if every record above the offsets exists, and every entry that they list."""
        self._listed.clear()
        for stream, tip in self._tips.items():
            wanted = range(offsets.get(stream, 0) + 1, tip + 1)
            if not self._are_there(stream, wanted) or any(map(self._lost, self._records_of(stream, wanted))):
                return False
        return True

    def _are_there(self, stream: str, sequences: range) -> bool:
        listed = self._log(stream).sequences()
        return all(map(self._is_record(stream, listed), sequences))

    def _is_record(self, stream: str, listed: set[int]) -> Callable[[int], bool]:
        def there(sequence: int) -> bool:
            if sequence in listed:
                return True
            try:
                self._log(stream).record(sequence)  # it may have been put during the LIST
            except NotFound:
                return False
            return True

        return there

    def _first(self, stream: str, tip: int) -> int:
        """The sequence above which everything still exists."""
        first = first_readable(tip, self._is_record(stream, self._log(stream).sequences()))
        self._listed.clear()
        try:
            above = list(self._records_of(stream, range(first + 1, tip + 1)))
        except NotFound:
            return tip  # folded meanwhile
        return max((record.sequence for record in above if self._lost(record)), default=first)

    def _lost(self, record: LogRecord) -> bool:
        """True if an entry that the record lists is gone."""
        if not isinstance(record, BatchRecord):
            return False
        return any(set(part.positions) - self._entries(part.shard_id) for part in record.shards.values())

    # -- reading -------------------------------------------------------------------------

    def _look_now_and_then(self) -> dict[str, int]:
        if self._looked_at is None or self.clock() - self._looked_at >= self.poll:
            self._look()
        return self._tips

    def _look(self) -> dict[str, int]:
        """The last sequence of each stream. Records are put one after the other, so none is missed."""
        self._looked_at = self.clock()
        streams = list_streams(self.home.records)
        self._tips = {stream: max(self._log(stream).sequences(), default=0) for stream in streams}
        return self._tips

    def _ahead(self, stream: str, start: int, tip: int) -> Iterator[BatchRecord | None]:
        """Each record above the start: a batch, or None for any other record. Reads only as far as the caller asks."""
        for first in range(start + 1, tip + 1, parallel.WORKERS):
            for record in self._read(stream, range(first, min(first + parallel.WORKERS, tip + 1))):
                yield record if isinstance(record, BatchRecord) else None

    def _read(self, stream: str, sequences: range) -> list[LogRecord]:
        try:
            return list(self._records_of(stream, sequences))
        except NotFound as error:
            raise self._expired(
                f"Record {error.detail.get('sequence')} of stream {stream!r} is missing, and this consumer has "
                "not read it yet."
            ) from error

    def _records_of(self, stream: str, sequences: range) -> Iterator[LogRecord]:
        """Records in order; those read before come from memory. Raises NotFound."""
        log = self._log(stream)
        missing = [one for one in sequences if (stream, one) not in self._records]
        found = parallel.each("feed", log.record, missing)
        self._records.update({(stream, record.sequence): record for record in found})
        for sequence in sequences:
            yield self._records[stream, sequence]

    def _log(self, stream: str) -> CommitLog:
        return CommitLog(self.home.records, stream, self.home.uri)

    def _entries(self, shard_id: UUID) -> set[int]:
        if shard_id not in self._listed:
            self._listed[shard_id] = positions(Shard(self.home, shard_id))
        return self._listed[shard_id]

    # -- too late ------------------------------------------------------------------------

    def _expired(self, what: str) -> Expired:
        name = self._checkpoint_to_start_from()
        return Expired(
            what,
            table=self.home.uri,
            consumer=self.consumer,
            checkpoint=name,
            advice=f"read all of checkpoint {name!r}, then start the stream again after it, with an empty "
            f"checkpointLocation and .option('checkpoint', {name!r})",
        )

    def _checkpoint_to_start_from(self) -> str:
        """Name of a checkpoint taken for this consumer earlier that is still usable, otherwise of a new one. What
        follows it is pinned.
        """
        prefix = f"{READ_PREFIX}{self.consumer}/"
        for one in reversed(CheckpointStore(self.home.records, self.home.uri).list()):
            # An expired one is useless; reading it tells, by the store's clock, whether it has expired.
            if one.checkpoint.name.startswith(prefix) and self._held(after(one.checkpoint)):
                return one.checkpoint.name
        self._held(self._look())
        note = f"for consumer {self.consumer!r} of the commit log, which fell too far behind"
        name = f"{prefix}{uuid.uuid4().hex[:8]}"
        return take(self.home, self.shard_ids(), name=name, expires_after=self.hold, note=note).name


def after(checkpoint: TableCheckpoint) -> Offsets:
    """Last sequence of each log when the checkpoint was taken."""
    return {stream: fold.sequence for stream, fold in checkpoint.streams.items()}
