"""What happens beside the batches: flush, checkpoint, fold, the end of a clean stop, garbage collection."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import product
from uuid import UUID

from headgate.checkpoints.log.state import ShardPositions
from headgate.shards.manifest.model import Manifest
from tests.explorer.exploring import Action, Move
from tests.explorer.slots import first_free, found, taken, without
from tests.explorer.stream_bounds import Piece
from tests.explorer.stream_parts import (
    Driver,
    Hold,
    Job,
    Log,
    Wal,
    as_state,
    fold_sequence,
    folded,
    rows_of,
    shard_id,
    sstable_of,
    unflushed,
    visible_entries,
)


class Upkeep(Piece):
    """One job per shard and driver at a time, beside a batch or between two."""

    def actions(self) -> Iterator[Action]:
        bounds = self.bounds
        for d, s in product(self.drivers, self.shards):
            driver, hold, wal, manifest = f"driver{d}", f"hold{d}.{s}", f"wal{s}", f"manifest{s}"
            if bounds.flushes:
                yield Action((driver, hold, wal, manifest, "flushes"), partial(self._flush, d, s), _is_up)
            if bounds.checkpoints:
                yield Action((driver, hold, wal, manifest, "checkpoints"), partial(self._settle, d, s), _is_up)
                yield Action((hold, driver, wal, manifest), partial(self._settled, d, s), _job_is("read"))
                yield Action((hold, manifest), partial(self._close_gap, d, s), _job_is("gap"))
            yield Action((hold, manifest), partial(self._cover, d, s), _job_is("flush"))
            if bounds.stops:
                yield Action((driver, hold, manifest), partial(self._unseal, d, s), lambda one: one.step == "stop")
        if bounds.folds:
            for d in self.drivers:
                holds = self.per_shard(f"hold{d}.")
                yield Action((f"driver{d}", "fold", "folds", *holds), partial(self._fold, d), _is_up)

    # -- flush -------------------------------------------------------------------------

    def _flush(
        self, d: int, s: int, driver: Driver, hold: Hold, wal: Wal, manifest: Manifest, left: int
    ) -> Iterator[Move]:
        if not left or hold.job is not None:
            return
        held = unflushed(driver.known, s, manifest)
        last = self.rules.flush_end(held, len(wal))
        positions = {shard_id(s): held.positions(f"s{s}")}
        if last is not None and (made := self._made(wal, s, positions, manifest, last)) is not None:
            label = (f"driver {d}, shard {s}: an SSTable of rows", made.rows, "for replay_after", made.last)
            yield Move(label, (driver, hold._replace(job=made), wal, manifest, left - 1))

    def _made(
        self, wal: Wal, s: int, positions: Mapping[UUID, ShardPositions], manifest: Manifest, upto: int
    ) -> Job | None:
        """A job that has made its SSTable, which may be empty; None: entries were gone."""
        start = manifest.replay_after + 1
        entries = visible_entries(self.rules, wal, s, positions, start, upto + 1)
        if isinstance(entries, str):
            return None
        rows = tuple(row for _, entry in entries for row in rows_of(self.bounds.plans, entry))
        last = self.rules.flushed_to(max((at for at, _ in entries), default=manifest.replay_after), upto)
        return Job("flush", manifest.replay_after, manifest.generation, last, rows)

    def _cover(self, d: int, s: int, hold: Hold, manifest: Manifest) -> Iterator[Move]:
        job = hold.job
        assert job is not None
        if not self.rules.held_by(manifest, hold.epoch, hold.claim):
            return
        sstable = sstable_of(d, job.generation, job.rows)
        changed = self.rules.covered(manifest, sstable, started_from=job.started_from, last_position=job.last)
        if changed is not None:
            gap = Job("gap", changed.replay_after, changed.generation, upto=job.upto)
            done = hold._replace(job=None if job.upto is None else gap)
            yield Move((f"driver {d}, shard {s}: replay_after is", job.last), (_passed(done, job.last), changed))

    # -- checkpoint(all) -----------------------------------------------------------------

    def _settle(
        self, d: int, s: int, driver: Driver, hold: Hold, wal: Wal, manifest: Manifest, left: int
    ) -> Iterator[Move]:
        """How far everything is decided; the plan goes above it, if the claim stands after the tip was read."""
        if not left or hold.job is not None:
            return
        if not self.rules.held_by(manifest, hold.epoch, hold.claim) and self.rules.raises_held:
            return
        head = as_state(driver.known).head
        plan = self.rules.next_plan(head, shard_id(s), barrier=hold.at, advanced=hold.floor)
        planned = None if driver.flight is None else driver.flight[1][s]
        if (tip := first_free(wal, plan)) is None:
            return
        limit = self.rules.checkpoint_limit(head, shard_id(s), next_position=tip, planned=planned, barrier=hold.at)
        assert limit is not None
        if limit > hold.covered:
            raised = hold._replace(job=Job("read", upto=limit), floor=max(limit, hold.floor or 0))
            label = (f"driver {d}, shard {s}: a checkpoint begins, the tip is", tip, "and the limit", limit)
            yield Move(label, (driver, raised, wal, manifest, left - 1))

    def _settled(self, d: int, s: int, hold: Hold, driver: Driver, wal: Wal, manifest: Manifest) -> Iterator[Move]:
        """Every visible row up to the limit is in an SSTable."""
        assert hold.job is not None
        assert hold.job.upto is not None
        positions = as_state(driver.known).shards
        if (made := self._made(wal, s, positions, manifest, hold.job.upto)) is not None:
            job = made._replace(step="flush" if made.rows else "gap", upto=hold.job.upto)
            label = (f"driver {d}, shard {s}: the checkpoint's SSTable has rows", made.rows)
            yield Move(label, (hold._replace(job=job), driver, wal, manifest))

    def _close_gap(self, d: int, s: int, hold: Hold, manifest: Manifest) -> Iterator[Move]:
        job = hold.job
        assert job is not None
        assert job.upto is not None
        if not self.rules.held_by(manifest, hold.epoch, hold.claim):
            return
        flushed = replace(manifest, replay_after=job.started_from, generation=job.generation)
        changed = self.rules.without_gap(manifest, flushed, job.upto)
        if changed is not None:
            done = _passed(hold._replace(job=None), job.upto)
            yield Move((f"driver {d}, shard {s}: replay_after passes the gap to", job.upto), (done, changed))

    def _fold(self, d: int, driver: Driver, fold: bytes | None, left: int, *holds: Hold) -> Iterator[Move]:
        state = as_state(driver.known)
        if left and state.sequence > fold_sequence(fold):
            made = folded(self.rules, driver.known, tuple(hold.covered for hold in holds))
            yield Move((f"driver {d} folds the log up to", state.sequence), (driver, made, left - 1, *holds))

    def _unseal(self, d: int, s: int, driver: Driver, hold: Hold, manifest: Manifest) -> Iterator[Move]:
        """The end of a clean stop, once its checkpoint has passed everything."""
        if hold.job is None and manifest.sealed and self.rules.held_by(manifest, hold.epoch, hold.claim):
            unsealed = self.rules.unsealed(manifest, hold.at)
            if unsealed is not None:
                yield Move((f"driver {d} lets native open shard {s}",), (driver, hold, unsealed))


class Collecting(Piece):
    """Single deletes, in any order and at any time."""

    def actions(self) -> Iterator[Action]:
        if self.bounds.collects:
            for s in self.shards:
                yield Action((f"wal{s}", f"manifest{s}"), partial(self._entries, s))
            yield Action(("log", "fold"), self._records)

    def _entries(self, s: int, wal: Wal, manifest: Manifest | None) -> Iterator[Move]:
        if manifest is None:
            return
        for at in self.rules.collectable_wal(taken(wal), [manifest]):
            if found(wal, at).task is not None or not self.rules.keeps_fence("barrier"):
                yield Move((f"garbage collection takes entry {at} of shard {s}",), (without(wal, at), manifest))

    def _records(self, log: Log, fold: bytes | None) -> Iterator[Move]:
        stored = [] if fold is None else [fold_sequence(fold)]
        records = [at + 1 for at in taken(log.slots)]
        last = self.rules.last_batch(records, lambda sequence: found(log.slots, sequence - 1).batch is not None)
        for sequence in self.rules.collectable_records(records, stored):
            is_batch = found(log.slots, sequence - 1).batch is not None and sequence != last
            if is_batch or not self.rules.keeps_fence("open record"):
                changed = log._replace(slots=without(log.slots, sequence - 1))
                yield Move((f"garbage collection takes record {sequence}",), (changed, fold))


def _is_up(driver: Driver) -> bool:
    return driver.step in ("open", "stop")


def _job_is(step: str) -> Callable[[Hold], bool]:
    return lambda hold: hold.job is not None and hold.job.step == step


def _passed(hold: Hold, at: int) -> Hold:
    """The driver has written this replay_after."""
    return hold._replace(covered=max(at, hold.covered), floor=max(at, hold.floor or 0))
