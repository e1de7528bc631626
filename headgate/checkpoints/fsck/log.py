"""fsck of one stream's commit log: every record and fold, and whether a driver could have written them in this order.

Reads only. What the log lists is returned as far as it is readable, so that the WALs can be checked even if a record is
damaged. Memory holds the listed positions above the newest fold, as any reader's does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias, TypeVar
from uuid import UUID

from headgate.checkpoints.fsck.expected import Fences, Listed, ListedPart
from headgate.checkpoints.fsck.findings import Finding, finding
from headgate.checkpoints.log import codec
from headgate.checkpoints.log import state as log_state
from headgate.checkpoints.log.commit_log import CommitLog
from headgate.checkpoints.log.decisions import late_beginning
from headgate.checkpoints.log.names import ARCHIVE, ROOT, by_number, stream_folder
from headgate.checkpoints.log.records import BatchRecord, Fold, LogRecord, OpenRecord, SchemaRecord
from headgate.checkpoints.log.state import Head, LogMachine, Violation
from headgate.connectors.objects import ObjectStore
from headgate.errors import Corrupt, HeadgateError, InvalidInput, NotFound
from headgate.parallel import Pool, in_order

R = TypeVar("R", LogRecord, Fold)

Named: TypeAlias = tuple[int, str]
"""The highest record of a log that something outside the log names, and what names it."""


@dataclass(frozen=True)
class LogLook:
    folder: str
    stream: str | None
    """None if no record is readable."""
    findings: tuple[Finding, ...]
    listed: Mapping[UUID, Listed]
    """What the records list, per shard and dead-letter log."""
    fences: Fences
    whole: bool
    """True if every record was readable: then an entry that is not listed does not count."""
    objects: int


def check_log(store: ObjectStore, folder: str, under: str, pool: Pool, named: Named | None = None) -> LogLook:
    """Check the log in a folder below `streams/`. `under` is the store's place in the table, `named` was read before.

    1. LIST: records, folds, strays.
    2. the newest readable fold; a damaged one is skipped if all records below it exist.
    3. every record: its bytes, its place, and above the fold its order.
    4. the fold against the records that it sums up, if they still exist.
    5. the fences: the open record in force, and the tip.
    6. the first batch is the first of its query, as far as the log still has it (R23).
    7. the log's end against the record that is named elsewhere. (A lost last record that nothing names leaves entries
       like those of a batch that never committed.)
    """
    return _LogCheck(store, folder, under, pool, named).run()


class _LogCheck:
    def __init__(self, store: ObjectStore, folder: str, under: str, pool: Pool, named: Named | None) -> None:
        self._store = store
        self._folder = f"{ROOT}{folder}/"
        self._name = folder
        self._under = under
        self._pool = pool
        self._named = named
        self._findings: list[Finding] = []
        self._stream: str | None = None
        self._listed: dict[UUID, Listed] = {}
        self._fences: dict[UUID, dict[int, int]] = {}
        self._whole = True
        self._taken: Mapping[str, datetime] = {}
        """When the store took each object."""

    def run(self) -> LogLook:
        sequences, folds = self._list()
        read_folds = dict(self._read("folds", folds, codec.decode_fold))
        base = self._base(sequences, folds, read_folds)
        self._take_fold(base)
        above = [sequence for sequence in sequences if base is None or sequence > base.sequence]
        self._check_above(base, above, max(folds, default=0))
        self._check_end(max((*sequences, *folds), default=0))
        if base is not None:
            self._check_below(base, sequences, read_folds)
        if self._stream is None and (sequences or folds):
            self._whole = False
            self._find("log-unreadable", self._folder, "No record of the log can be read, so its stream is unknown.")
        elif self._stream is not None and stream_folder(self._stream) + "/" != self._folder:
            what = f"The folder holds the log of stream {self._stream!r}, which belongs in another folder."
            self._find("log-record-misplaced", self._folder, what)
        if self._stream is not None and self._whole:
            self._check_beginning(CommitLog(self._store, self._stream, ""))
        count = len(sequences) + len(folds)
        return LogLook(self._name, self._stream, tuple(self._findings), self._listed, self._fences, self._whole, count)

    # -- reading ------------------------------------------------------------------

    def _list(self) -> tuple[list[int], list[int]]:
        infos = list(self._store.list(self._folder))
        records, folds = by_number(infos)
        self._taken = {info.key: info.modified for info in infos}
        known = {self._folder + ARCHIVE, *(info.key for found in (records, folds) for info in found.values())}
        for info in infos:
            if info.key not in known:
                self._find("log-stray", info.key, "This is not the name of a record.")
        return sorted(records), sorted(folds)

    def _read(
        self, kind: str, sequences: Iterable[int], decode: Callable[[memoryview], R]
    ) -> Iterator[tuple[int, R | HeadgateError]]:
        """Each with its content, or with the error of reading it. One that vanished since the LIST is left out."""

        def one(sequence: int) -> tuple[int, R | HeadgateError]:
            try:
                return sequence, decode(self._store.get(self._key(kind, sequence)))
            except (Corrupt, InvalidInput, NotFound) as error:
                return sequence, error

        for sequence, found in in_order(self._pool, one, sequences):
            if not isinstance(found, HeadgateError):
                self._stream = self._stream or found.stream
            if not isinstance(found, NotFound):
                yield sequence, found

    # -- the fold from which readers start ---------------------------------------------

    def _base(self, sequences: list[int], folds: list[int], read: Mapping[int, Fold | HeadgateError]) -> Fold | None:
        """The newest readable fold. Damaged folds above it are reported."""
        for sequence in reversed(folds):
            found = read.get(sequence)
            if isinstance(found, Fold) and found.sequence == sequence:
                return found
            if found is None:
                continue
            there = set(sequences)
            known = max((s for s, fold in read.items() if isinstance(fold, Fold) and s < sequence), default=0)
            complete = all(number in there for number in range(known + 1, sequence + 1))
            self._damaged("fold-damaged", "folds", sequence, found, nothing_lost=complete)
        return None

    def _take_fold(self, base: Fold | None) -> None:
        for shard_id, folded in ({} if base is None else base.shards).items():
            self._listed[shard_id] = Listed(folded.shard, folded.visible, folded.replay_after, folded.last)
        if base is not None and base.opened is not None:
            self._take_fences(base.opened)

    # -- records ------------------------------------------------------------------------

    def _check_above(self, base: Fold | None, sequences: list[int], folded: int) -> None:
        """`folded` is the newest fold, readable or not: records up to it may have been collected."""
        head = Head("") if base is None else log_state.unfolded(base).head
        machine = LogMachine(head, self._take_violation)
        following = head.sequence + 1
        for sequence, found in self._read("log", sequences, codec.decode_record):
            if sequence > following:
                if sequence - 1 > folded:
                    self._hole(max(following, folded + 1), sequence - 1)
                machine.lose()
            following = sequence + 1
            if isinstance(found, HeadgateError) or self._misplaced(sequence, found):
                if isinstance(found, HeadgateError):
                    self._damaged("log-record-damaged", "log", sequence, found)
                self._whole = False
                machine.lose()
                continue
            machine.step(found)
            if isinstance(found, OpenRecord):
                self._take_fences(found)
            elif isinstance(found, BatchRecord):
                self._take_batch(found)

    def _take_violation(self, broken: Violation) -> None:
        self._find(f"log-{broken.rule}", self._key("log", broken.sequence), broken.what)

    def _take_fences(self, record: OpenRecord) -> None:
        for claim in record.shards.values():
            self._fences.setdefault(claim.shard_id, {})[claim.barrier] = claim.epoch

    def _take_batch(self, record: BatchRecord) -> None:
        for name, part in record.parts():
            listed = self._listed.setdefault(part.shard_id, Listed(name))
            listed.add(ListedPart(record.sequence, record.batch_id, part.positions, part.attempt_id, part.rows))

    def _misplaced(self, sequence: int, record: LogRecord) -> bool:
        if record.sequence == sequence and record.stream == self._stream:
            return False
        what = f"Its content is record {record.sequence} of stream {record.stream!r}."
        self._find("log-record-misplaced", self._key("log", sequence), what)
        return True

    def _check_end(self, end: int) -> None:
        if self._named is not None and self._named[0] > end:
            self._hole(end + 1, self._named[0], f" The log ends here, but {self._named[1]} names the last of them.")

    def _hole(self, first: int, last: int, why: str = "") -> None:
        self._whole = False
        what = (f"Record {first} is missing." if first == last else f"Records {first} to {last} are missing.") + why
        self._find("log-hole", self._key("log", first), what)

    def _check_beginning(self, log: CommitLog) -> None:
        """Records that are unreadable are reported elsewhere."""
        with suppress(HeadgateError):
            first = log.beginning()
            if first is not None and (late := late_beginning(first, log.read().head)) is not None:
                self._find("log-begins-late", self._key("log", first.sequence), late)

    # -- what lies below the fold ----------------------------------------------------------

    def _check_below(self, base: Fold, sequences: list[int], folds: Mapping[int, Fold | HeadgateError]) -> None:
        """No reader needs the content of these records; open records stay forever as fences (R5)."""
        below = [sequence for sequence in sequences if sequence <= base.sequence]
        in_force: str | None = None
        intact = True
        for sequence, found in self._read("log", below, codec.decode_record):
            if isinstance(found, HeadgateError):
                intact = False
                self._find("log-old-damaged", self._key("log", sequence), found.what)
            elif isinstance(found, OpenRecord):
                self._take_fences(found)
                if base.opened is not None and sequence == base.opened.sequence:
                    in_force = found.record_id
            if isinstance(found, OpenRecord | SchemaRecord) and self._came_after(base, sequence):
                intact = False
        if base.opened is not None and in_force != base.opened.record_id:
            what = f"The open record of query {base.opened.query_id}, the last below fold {base.sequence}, is missing."
            self._find("log-fence-missing", self._key("log", base.opened.sequence), what)
        elif max(sequences, default=0) < base.sequence:
            what = f"The tip of the log is missing: fold {base.sequence} covers records up to that number."
            self._find("log-fence-missing", self._key("log", base.sequence), what)
        earlier = [fold for sequence, fold in folds.items() if isinstance(fold, Fold) and sequence < base.sequence]
        start = max(earlier, key=lambda fold: fold.sequence, default=None)
        first = 1 if start is None else start.sequence + 1
        summed = range(first, base.sequence + 1)
        if intact and set(summed) <= set(below) and (why := self._differs(base, start, summed)):
            self._find("fold-differs", self._key("folds", base.sequence), why)

    def _came_after(self, base: Fold, sequence: int) -> bool:
        """True if the record came into a collected slot: a late request, which counts for nobody (R6)."""
        return self._taken[self._key("log", sequence)] > self._taken[self._key("folds", base.sequence)]

    def _differs(self, base: Fold, start: Fold | None, summed: range) -> str | None:
        """The first difference between the fold and the records it sums up; None without one."""
        state = log_state.empty(base.stream) if start is None else log_state.unfolded(start)
        records = (found for _, found in self._read("log", summed, codec.decode_record))
        try:
            state = log_state.replayed(state, (found for found in records if not isinstance(found, HeadgateError)))
        except Corrupt as error:
            return error.what
        flushed = {shard_id: shard.replay_after for shard_id, shard in base.shards.items() if shard.replay_after}
        again = log_state.fold(state, flushed)
        for name in ("sequence", "stream", "opened", "last", "ends", "opaque_ends", "rewound", "changed", "shards"):
            if getattr(again, name) != getattr(base, name):
                return f"Its {name.replace('_', ' ')} does not match the sum of records {summed[0]} to {summed[-1]}."
        return None

    # -- reporting ------------------------------------------------------------------------------

    def _damaged(self, code: str, kind: str, sequence: int, found: object, *, nothing_lost: bool = False) -> None:
        place = self._key(kind, sequence)
        if isinstance(found, Fold):
            self._find(code, place, f"Its content is fold {found.sequence}.")
        elif isinstance(found, InvalidInput):
            self._find("record-newer", place, found.what)
        elif isinstance(found, HeadgateError):
            lost = "nothing: every record that it sums up still exists" if nothing_lost else None
            do = "delete this fold; readers then read the records instead" if nothing_lost else None
            self._find(code, place, found.what, lost=lost, do=do)
        if not nothing_lost:
            self._whole = False

    def _key(self, kind: str, sequence: int) -> str:
        return f"{self._folder}{kind}/{sequence:020d}.json"

    def _find(self, code: str, key: str, what: str, *, lost: str | None = None, do: str | None = None) -> None:
        self._findings.append(finding(code, self._under + key, what, lost=lost, do=do))
