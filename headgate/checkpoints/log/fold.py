"""Folding a stream's log: all its records in one, so that a start reads little, however old the stream is (R6).

Promises:
1. A fold has the content of the records; a reader that starts from it sees the same table.
2. The log that LIST shows stays short: what an older fold than the last one sums up is deleted; open records (R5),
   rewinds, schema records and the last batch record stay (R22), and so does what a consumer of the log has not read
   (R15). Where the stream has an archive, a record is archived before, and they go in lots (see `archive`). No age is
   waited for: a reader that misses a record lists the log once more and finds the fold that has it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from uuid import UUID

import structlog

from headgate.checkpoints.log.archive.archive import LOT, LogArchive
from headgate.checkpoints.log.decisions import collectable_records, last_batch
from headgate.checkpoints.log.names import by_number
from headgate.checkpoints.log.pins import live_pins, needed_above
from headgate.checkpoints.log.records import BatchRecord, Fold, LogRecord
from headgate.checkpoints.log.slots import LogSlots
from headgate.checkpoints.log.state import LogState, replayed, unfolded
from headgate.checkpoints.log.state import fold as folded
from headgate.connectors.objects import ObjectStore
from headgate.connectors.objects.deletion import delete_all
from headgate.errors import Corrupt, InvalidInput, NotFound
from headgate.parallel import Pool

FOLD_EVERY = 32
"""Number of records after which a driver folds its log: a start reads at most this many (two rounds of 16) beside the
fold.
"""

_log = structlog.get_logger("headgate.checkpoints")


class Folding:
    """The log of one driver, summed up as it grows. Batches are added while another thread may fold."""

    def __init__(self, records: ObjectStore, log: LogSlots, state: LogState | None) -> None:
        """`state` is the whole log when the driver took it over; None if the driver knows only the head."""
        self._store = records
        self._log = log
        self._state = state
        self._news: list[LogRecord] = []
        self._own: set[int] = set()
        self._since = 0 if state is None else state.sequence - state.fold_sequence
        self._lock = threading.RLock()

    def add(self, record: LogRecord) -> None:
        """Add one more record of this driver, as it is stored."""
        with self._lock:
            self._since += 1
            if isinstance(record, BatchRecord):
                self._own.add(record.sequence)
            if self._state is not None:
                self._news.append(record)
                if len(self._news) >= FOLD_EVERY:
                    self.state()

    def state(self) -> LogState:
        """The whole log as it is now, own records included. Reads it if the driver never had all of it."""
        with self._lock:
            if self._state is None:
                self._state = self._log.read()
            elif self._news:
                self._state, self._news = replayed(self._state, self._news), []
            return self._state

    @property
    def is_due(self) -> bool:
        """True if the log is long enough to be folded."""
        return self._since >= FOLD_EVERY

    def fold(self, replay_after: Mapping[UUID, int]) -> Fold:
        """Put a fold of the log as it is now, and tidy the log. `replay_after` has a committed one for each shard."""
        with self._lock:
            state, since = self.state(), self._since
        made = put_fold(self._log, state, replay_after)
        with self._lock:
            self._since -= since
            if self._state is state:
                # Records that came meanwhile are still among the news; if the state has them already, the next fold
                # removes them.
                self._state = unfolded(made)
        tidy(self._store, self._log, self._own)
        return made


def put_fold(log: LogSlots, state: LogState, replay_after: Mapping[UUID, int]) -> Fold:
    """Fold the log at this state. `replay_after` has a committed one per shard; a shard that is missing keeps all
    positions.
    """
    made = folded(state, replay_after)
    if made.sequence > state.fold_sequence:
        log.put_fold(made)
    return made


def tidy(store: ObjectStore, log: LogSlots, batches: set[int] | None = None) -> list[int]:
    """Delete the records that the last fold but one sums up, and the folds before it. Returns the deleted sequences.

    1. LIST; then the consumers' pins: what a consumer has not read stays.
    2. find the batch records. `batches` are known ones; newly found ones are added to it, deleted ones are removed;
       others are read. Only batch records go, and not the last one (R5, R22).
    3. if the stream has an archive, nothing goes before LOT of them exist and are archived.
    4. delete.
    A crash anywhere leaves a log that reads as before.
    """
    infos = list(store.list(log.folder + "/"))
    if not infos:
        return []
    try:
        # The newest object was put a moment ago: its time is never later than the store's clock.
        pins = live_pins(store, log.table, max(info.modified for info in infos))
    except (Corrupt, InvalidInput) as error:
        _log.warning("a consumer's pin is unreadable, so no record of the log is deleted", error=str(error))
        return []
    records, folds = by_number(infos)
    long_ago = datetime.min.replace(tzinfo=UTC)
    summed_up, old = collectable_records(
        records, dict.fromkeys(sorted(folds)[:-1], long_ago), long_ago, needed_above(pins, log.stream)
    )
    known = set() if batches is None else batches
    archive = LogArchive(store, log.stream, log.table)

    def is_batch(sequence: int) -> bool:
        return sequence in known or _is_batch(log, sequence)

    with Pool("fold") as pool:
        last = last_batch(records, is_batch) if summed_up else None
        gone = [one for one, yes in zip(summed_up, pool.map(is_batch, summed_up), strict=True) if yes and one != last]
        known.update(gone)
        if any(info.key == archive.marker for info in infos):
            kept = archive.keep({one: records[one].modified for one in gone}) if len(gone) >= LOT else set()
            gone = [one for one in gone if one in kept]
    delete_all(store, [records[one].key for one in gone], "commit record")
    delete_all(store, [folds[one].key for one in old], "fold")
    known.difference_update(gone)
    return gone


def _is_batch(log: LogSlots, sequence: int) -> bool:
    try:
        return isinstance(log.record(sequence), BatchRecord)
    except NotFound:
        return False
