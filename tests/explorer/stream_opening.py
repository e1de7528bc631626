"""How a driver takes a stream over, and how it renews its claims for a clean stop."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from headgate.checkpoints.log.decisions import OpenOutcome
from headgate.checkpoints.log.records import OpenRecord
from headgate.shards.manifest.decisions import Slot
from headgate.shards.manifest.model import Manifest
from tests.explorer.exploring import Action, Move
from tests.explorer.slots import first_free, found, put, there
from tests.explorer.stream_bounds import Piece, replaced
from tests.explorer.stream_parts import (
    STREAM,
    Driver,
    Hold,
    Known,
    Log,
    Logged,
    Wal,
    Written,
    as_record,
    as_state,
    fold_sequence,
    read_log,
    shard_id,
)


class Opening(Piece):
    """Claim, tip and barrier of every shard; then the open record; then the re-read."""

    def actions(self) -> Iterator[Action]:
        for d in self.drivers:
            driver, holds = f"driver{d}", self.per_shard(f"hold{d}.")
            before = (f"driver{d - 1}",) if d and self.bounds.alike else ()
            for s in self.shards:
                others = tuple(f"hold{o}.{s}" for o in self.drivers if o != d)
                parts = (driver, f"manifest{s}", "log", "fold", *holds, *others, *before)
                yield Action(parts, partial(self._claim, d, s), _is_claiming)
                parts = (driver, f"hold{d}.{s}", f"wal{s}", f"manifest{s}")
                yield Action(parts, partial(self._bar, d, s), _is_claiming)
            yield Action((driver, "log", "fold", *holds), partial(self._read, d), lambda driver: driver.step == "claim")
            yield Action(
                (driver, "log", *holds), partial(self._open, d), lambda driver: driver.step in ("log", "renew")
            )
            parts = (driver, "log", "fold", "opens", *holds, *self.per_shard("manifest"))
            yield Action(parts, partial(self._re_read, d), lambda driver: driver.step in ("re-read", "renewed"))
            if self.bounds.stops:
                parts = (driver, "log", "fold", "stops", *holds)
                yield Action(parts, partial(self._renew, d), lambda driver: driver.step == "open")

    def _claim(
        self, d: int, s: int, driver: Driver, manifest: Manifest | None, log: Log, fold: bytes | None, *rest: Any
    ) -> Iterator[Move]:
        holds, others = self.halves(rest)
        if holds[s].step != "claim" or not (self.bounds.parallel or all(one.step == "held" for one in holds[:s])):
            return
        if any(isinstance(one, Driver) and one.step == "off" for one in others):
            return
        known = read_log(log, fold)
        assert known is not None
        claim = f"claim of driver {d}" + (", renewed" if driver.step == "renew" else "")
        stored = self.rules.claimed(manifest, shard_id(s), owner=STREAM, claim_id=claim, write_id="", spec_id=0)
        start = self.rules.search_start(manifest, as_state(known).head.listed.get(shard_id(s)))
        mine = holds[s]._replace(step="tip", epoch=stored.epoch, claim=claim, at=start)
        over = (one._replace(job=None) if isinstance(one, Hold) else one for one in others)
        claiming = driver._replace(step="claim") if driver.step == "off" else driver
        yield Move(
            (f"driver {d} claims shard {s} with epoch {stored.epoch}",),
            (claiming, stored, log, fold, *replaced(holds, s, mine), *over),
        )

    def _bar(self, d: int, s: int, driver: Driver, hold: Hold, wal: Wal, manifest: Manifest | None) -> Iterator[Move]:
        who = f"driver {d}, shard {s}:"
        if hold.step == "tip":
            free = first_free(wal, hold.at)
            if free is not None:
                looked = hold._replace(step="barrier", at=free)
                yield Move((who, "the tip is", free), (driver, looked, wal, manifest))
            elif manifest is not None and self.rules.held_by(manifest, hold.epoch, hold.claim):
                yield Move((who, "looks for the tip"), (driver, hold, wal, manifest), "invariant 4: the WAL has a hole")
        elif hold.step == "barrier":
            barrier = Written(hold.epoch, d)
            if not there(wal, hold.at):
                held = hold._replace(step="held")
                yield Move((who, "barrier at", hold.at), (driver, held, put(wal, hold.at, barrier), manifest))
            elif self.in_the_way(s, barrier, found(wal, hold.at)) is Slot.STALE:
                above = hold._replace(at=hold.at + 1)
                yield Move((who, "the barrier steps over", hold.at), (driver, above, wal, manifest))

    def _read(self, d: int, driver: Driver, log: Log, fold: bytes | None, *holds: Hold) -> Iterator[Move]:
        if all(hold.step == "held" for hold in holds):
            known = read_log(log, fold)
            assert known is not None
            step = "log" if self.rules.puts_open_record(as_state(known)) else "re-read"
            label = (f"driver {d} reads the log up to", as_state(known).sequence)
            yield Move(label, (driver._replace(step=step, known=known), log, fold, *holds))

    def _open(self, d: int, driver: Driver, log: Log, *holds: Hold) -> Iterator[Move]:
        """A driver that renews its claims puts one more open record where its next record belongs, nowhere else."""
        sequence = as_state(driver.known).sequence + 1
        if not there(log.slots, sequence - 1) and all(hold.step == "held" for hold in holds):
            record = Logged(d, sequence, tuple((hold.epoch, hold.claim, hold.at) for hold in holds))
            step = "re-read" if driver.step == "log" else "renewed"
            opened = driver._replace(step=step, known=driver.known.after(record))
            changed = log._replace(slots=put(log.slots, sequence - 1, record))
            yield Move((f"driver {d} puts an open record at", sequence), (opened, changed, *holds))

    def _re_read(self, d: int, driver: Driver, log: Log, fold: bytes | None, opens: int, *rest: Any) -> Iterator[Move]:
        """LIST proves that nothing lies above the open record; then every claim must stand."""
        holds, manifests = self.halves(rest)
        if driver.step == "re-read" and self.rules.proves_end:
            mine = OpenRecord(record_id="", sequence=as_state(driver.known).sequence, stream="", query_id="", shards={})
            above = [None if one is None else as_record(one) for one in log.slots[mine.sequence :]]
            # Who put no open record, against the rules, has only what it read.
            put = bool(driver.known.records) and driver.known.records[-1].driver == d
            judged = self.rules.judge_open(mine, above, fold_sequence(fold) if put else 0)
            if judged is OpenOutcome.AGAIN:
                label = f"driver {d} lies in a collected slot: once more"
                again = driver._replace(step="claim", known=Known())
                yield Move((label,), (again, log, fold, opens, *rest))
            if judged is not OpenOutcome.HELD:
                return
        for hold, manifest in zip(holds, manifests, strict=True):
            if not self.rules.claim_stands(manifest, hold.epoch, hold.claim, hold.at):
                return
        held = (hold._replace(covered=one.replay_after) for hold, one in zip(holds, manifests, strict=True))
        if driver.step == "re-read":
            opened, opens, label = driver._replace(step="open", turn=opens + 1), opens + 1, "has the stream"
        else:
            opened, label = driver._replace(step="stop"), "has its claims anew"
        yield Move((f"driver {d} {label}",), (opened, log, fold, opens, *held, *manifests))

    def _renew(self, d: int, driver: Driver, log: Log, fold: bytes | None, stops: int, *holds: Hold) -> Iterator[Move]:
        """A clean stop begins. A batch that is under way is given up; one job per shard at a time."""
        known = read_log(log, fold)
        assert known is not None
        if not stops or any(hold.job for hold in holds):
            return
        if as_state(known).sequence == as_state(driver.known).sequence:
            stopping = driver._replace(step="renew" if self.rules.renews else "stop", flight=None)
            again = (hold._replace(step="claim") for hold in holds) if self.rules.renews else holds
            yield Move((f"driver {d} begins to stop",), (stopping, log, fold, stops - 1, *again))


def _is_claiming(driver: Driver) -> bool:
    return driver.step in ("off", "claim", "renew")
