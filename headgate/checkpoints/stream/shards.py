"""A driver's shards: their unflushed entries, flushes, compactions and gaps.

Promise: replay_after passes nothing that is visible and in no SSTable, and no batch is planned at or below it (R1, R4).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeAlias
from uuid import UUID

from headgate.checkpoints.jobs.advance import close_gap, unseal
from headgate.checkpoints.jobs.compact import CompactRound, RunCompaction, compact_round
from headgate.checkpoints.jobs.flush import Flushed, FlushJob, RunJobs
from headgate.checkpoints.jobs.policy import CompactLimits
from headgate.checkpoints.log.fold import Folding
from headgate.checkpoints.log.opened_log import OpenedLog
from headgate.checkpoints.log.positions import checkpoint_limit, next_plan, settled_position
from headgate.checkpoints.log.records import Fold, WriteMode
from headgate.checkpoints.log.state import Head, LogState, ShardPositions
from headgate.checkpoints.snapshots.cache import TableCache
from headgate.checkpoints.stream.backlog import Unflushed
from headgate.checkpoints.stream.claims import of_shards
from headgate.errors import HeadgateError, InvalidInput
from headgate.shards.manifest.model import Manifest
from headgate.shards.rows.schema import RowSchema
from headgate.shards.shard import Claim, Shard, TableHome
from headgate.shards.wal.tip import find_tip
from headgate.steps import step


@dataclass(frozen=True, slots=True)
class ShardLoad:
    name: str
    nbytes: int
    """Bytes of the unflushed entries whose size is known."""
    entries: int
    """Number of unflushed entries, as far as they are known one by one."""
    known: bool
    """False if there are more, of which this driver knows neither number nor size."""
    sstables: int
    """SSTables that the base has not taken in."""


Settled: TypeAlias = Mapping[str, tuple[Manifest, int]]
"""Per shard the manifest that the last flush wrote, and the position up to which nothing visible is only in the WAL."""


class StreamShards:
    """One thread runs the stream's batches, others maintain its shards concurrently.

    Shared state is guarded by a lock, which is never held during a read or write of the store.
    """

    def __init__(
        self,
        home: TableHome,
        stream: str,
        log: OpenedLog,
        claims: dict[str, Claim],
        state: LogState | None = None,
        manifests: Mapping[UUID, Manifest] | None = None,
    ) -> None:
        """Use `StreamDriver.open`. `state` is the whole log, None if only its head is known."""
        self.home = home
        self.stream = stream
        self._log = log
        self._claims = claims
        self._floor: dict[UUID, int] = {}
        """Per shard the replay_after that this driver has written or is about to write: no batch is planned at or below
        it (R4).
        """
        manifests = manifests or {}
        self._covered = {shard_id: manifest.replay_after for shard_id, manifest in manifests.items()}
        """Per shard a replay_after that is known to be committed."""
        self._in_flight: Mapping[UUID, int] = {}
        """Per shard the start of the batch that is planned and not committed yet."""
        self._unflushed = {name: Unflushed.of(log.state, claim.shard.id) for name, claim in claims.items()}
        self._folding = Folding(home.records, log.log, state)
        log.on_record = self._folding.add
        self._stored = {
            name: manifests[claim.shard.id] for name, claim in claims.items() if claim.shard.id in manifests
        }
        """Per shard the manifest as this driver last read or wrote it."""
        self.cache = TableCache()
        """The table as checkpoints have read it; contains no tail."""
        self._maintenance = threading.Lock()
        self._compaction = threading.Lock()
        self._guard = threading.RLock()

    @property
    def head(self) -> Head:
        """The stream's head, own commits included."""
        return self._log.head

    @property
    def mode(self) -> WriteMode | None:
        """Mode of the last batch: with MemTables or WAL-only; None before the first."""
        last = self.head.last
        return None if last is None else last.mode

    @property
    def claims(self) -> Mapping[str, Claim]:
        """This driver's claim of each shard."""
        with self._guard:
            return dict(self._claims)

    def use_columns(self, schema: RowSchema) -> None:
        """Batches that are planned from now on have these columns."""
        with self._guard:
            self.home = replace(self.home, schema=schema)
            self._claims = {
                name: replace(claim, shard=Shard(self.home, claim.shard.id)) for name, claim in self._claims.items()
            }

    # -- maintenance ---------------------------------------------------------------

    @contextmanager
    def maintenance(self, what: str) -> Iterator[None]:
        """One at a time: raises InvalidInput if another thread runs maintenance. (Compaction has its own guard: it
        moves no replay_after, and a flush may finish beside it.)
        """
        with self._alone(self._maintenance, "changing the stream's shards", what):
            yield

    @contextmanager
    def _alone(self, lock: threading.Lock, doing: str, what: str) -> Iterator[None]:
        if not lock.acquire(blocking=False):
            raise InvalidInput(
                f"Another thread is {doing}, so {what} was not started.",
                table=self.home.uri,
                stream=self.stream,
                advice="wait for it to end, then try again; nothing was written",
            )
        try:
            yield
        finally:
            lock.release()

    def loads(self) -> list[ShardLoad]:
        """The load of each shard, as far as this driver knows. Reads nothing."""
        with self._guard:
            return [
                ShardLoad(
                    name,
                    held.nbytes,
                    held.entries,
                    held.is_known,
                    len(self._stored[name].sstables) if name in self._stored else 0,
                )
                for name, held in self._unflushed.items()
            ]

    def flush_jobs(self, max_bytes: int, names: Iterable[str] | None = None) -> list[FlushJob]:
        """Flush jobs for the named shards that have unflushed entries; without names, for shards whose flush is due by
        size or number. Raises the plan above what they will cover (R4).
        """
        with self._guard:
            due = [name for name, held in self._unflushed.items() if held.is_due(max_bytes)]
        jobs = []
        for name in due if names is None else names:
            manifests = self._claims[name].shard.manifests
            manifest = manifests.there(manifests.latest())
            self._note(name, manifest)
            with self._guard:
                held = self._unflushed[name]
                held.forget(manifest.replay_after)
                if held.last is not None and (names is not None or held.is_due(max_bytes)):
                    jobs.append(
                        FlushJob(name, self._claims[name], manifest, held.positions(name), held.last, max_bytes)
                    )
                    self._raise_plan(name, held.last)
        return jobs

    def flushed(self, done: Mapping[str, Flushed]) -> None:
        """Note the manifests that this driver has just written."""
        for name, one in done.items():
            self._passed(name, one.manifest)

    def compact(self, limits: CompactLimits, run: RunCompaction | None = None) -> CompactRound | None:
        """Take the oldest SSTables of the stream's shards into the base, see `compact_round`. None if there are none.

        Flushes may run beside it. Raises InvalidInput if another thread compacts.
        """
        with self._alone(self._compaction, "compacting", "a compaction"):
            with self._guard:
                claims = dict(self._claims)
            done = compact_round(claims, limits, run)
            for name, manifest in (self._latest(claims) if done is None else done.manifests).items():
                self._note(name, manifest)
            return done

    def settle(self, run: RunJobs, max_bytes: int) -> Settled:
        """Flush everything decided; replay_after goes to the last row of each shard and no further:

        1. find the end of each shard's WAL, and then check that its claim still stands: a successor's barrier below
           that end must still fence this driver's batches, so it must not raise their plan.
        2. at one instant: choose the limit up to which everything is decided (R1), always below the planned position of
           a batch in flight; and raise the plan above it (R4), so that no batch is planned in between.
        3. flush every visible row up to there, in rounds of `max_bytes` per shard. If one fails, its error names the
           shard; what others have flushed stays.

        Raises Fenced, DataLoss, Transient.
        """
        step("limits")
        tips = self._tips()
        manifests = self._latest(tips)
        step("plan")
        limits = self._raised_to(tips)
        step("flush")
        self._flush_up_to(limits, manifests, run, max_bytes)
        return {name: (manifest, limits[name]) for name, manifest in manifests.items()}

    def close_gaps(self, settled: Settled) -> dict[str, Manifest]:
        """Let replay_after pass barriers and dead entries: no gap is left. Call it only after every flush has
        committed.

        Idempotent. Returns the current manifest per shard. Raises Fenced, Transient.
        """
        step("gaps")

        def close(name: str) -> Manifest:
            flushed, limit = settled[name]
            try:
                return close_gap(self._claims[name], flushed, limit)
            except HeadgateError as error:
                error.with_context(stream=self.stream, name=name)
                raise

        closed = dict(zip(settled, of_shards(self.home, close, settled), strict=True))
        for name, manifest in closed.items():
            self._passed(name, manifest)
        return closed

    def pass_over(self, upto: Mapping[str, int]) -> dict[str, Manifest]:
        """Let replay_after pass entries that no SSTable covers, up to the settled position (R1, R18): THEIR ROWS ARE NO
        LONGER PART OF THE TABLE. Returns the current manifest per shard. Raises Fenced, Transient.
        """
        latest = self._latest(upto)
        limits = {}
        for name, position in upto.items():
            claim = self._claims[name]
            settled = settled_position(self.head, claim.shard.id, barrier=claim.next_position - 1)
            assert settled is not None, "every shard of a driver has its barrier"
            limits[name] = max(latest[name].replay_after, min(position, settled))
            self._raise_plan(name, limits[name])
        return self.close_gaps({name: (latest[name], limit) for name, limit in limits.items()})

    def unseal(self, names: Iterable[str] | None = None, *, forget_owner: bool = False) -> None:
        """Let native open the shards; see `unseal` in `advance`. Call `renew`, `settle` and `close_gaps` before."""

        def let_in(name: str) -> None:
            unseal(self._claims[name], forget_owner=forget_owner, known=self._stored.get(name))

        of_shards(self.home, let_in, self._claims if names is None else names)

    def fold(self) -> Fold:
        """Fold the log as it is now, and tidy it."""
        with self._guard:
            covered = dict(self._covered)
        return self._folding.fold(covered)

    @property
    def fold_is_due(self) -> bool:
        """True if the log has grown enough to be folded."""
        return self._folding.is_due

    def fold_if_due(self) -> Fold | None:
        """Fold the log if that is due; otherwise None."""
        return self.fold() if self._folding.is_due else None

    # -- helpers ----------------------------------------------------------------------

    def _next_position(self, claim: Claim) -> int:
        advanced = self._floor.get(claim.shard.id)
        return next_plan(self.head, claim.shard.id, barrier=claim.next_position - 1, advanced=advanced)

    def _tips(self) -> dict[str, int]:
        """The first free position per shard."""
        with self._guard:
            starts = {name: (claim, self._next_position(claim)) for name, claim in self._claims.items()}

        def tip(name: str) -> int:
            claim, start = starts[name]
            return find_tip(claim.shard, start)

        return dict(zip(starts, of_shards(self.home, tip, starts), strict=True))

    def _raised_to(self, tips: Mapping[str, int]) -> dict[str, int]:
        """How far replay_after may go, per shard; from here on no batch is planned up to there."""
        limits = {}
        with self._guard:
            for name, tip in tips.items():
                claim = self._claims[name]
                limit = checkpoint_limit(
                    self.head,
                    claim.shard.id,
                    next_position=tip,
                    planned=self._in_flight.get(claim.shard.id),
                    barrier=claim.next_position - 1,
                )
                assert limit is not None, "every shard of a driver has its barrier"
                limits[name] = limit
                self._raise_plan(name, limit)
        return limits

    def _flush_up_to(
        self, limits: Mapping[str, int], manifests: dict[str, Manifest], run: RunJobs, max_bytes: int
    ) -> None:
        """Flush until no visible row up to its shard's limit is only in the WAL; updates `manifests`."""

        def visible(name: str, claim: Claim) -> ShardPositions:
            # From the log, not from this driver's memory: batches without MemTables are not remembered.
            return self._folding.state().shards.get(claim.shard.id) or ShardPositions(name)

        left = [
            name for name, limit in limits.items() if self._may_have_rows(name, manifests[name].replay_after, limit)
        ]
        while left:
            jobs = [
                FlushJob(name, claim, manifests[name], visible(name, claim), limits[name], max_bytes)
                for name, claim in ((name, self._claims[name]) for name in left)
            ]
            done = run(jobs)
            self.flushed(done)
            manifests.update({name: one.manifest for name, one in done.items()})
            left = [name for name in left if not done[name].complete]

    def _may_have_rows(self, name: str, replay_after: int, limit: int) -> bool:
        """From this driver's own barrier on, rows count only if a record lists them."""
        claim = self._claims[name]
        if replay_after + 1 < claim.next_position - 1:
            return replay_after < limit
        listed = self._folding.state().shards.get(claim.shard.id)
        return listed is not None and any(first <= limit and last > replay_after for first, last in listed.runs())

    def _latest(self, names: Iterable[str]) -> dict[str, Manifest]:
        """The current manifests. Raises Fenced if a claim is lost."""

        def latest(name: str) -> Manifest:
            claim = self._claims[name]
            return claim.shard.manifests.held(claim.epoch, claim.claim_id, self._stored.get(name))

        names = list(names)
        return dict(zip(names, of_shards(self.home, latest, names), strict=True))

    def _passed(self, name: str, manifest: Manifest) -> None:
        """Note a manifest that this driver has written."""
        shard_id, replay_after = manifest.shard_id, manifest.replay_after
        self._note(name, manifest)
        with self._guard:
            self._unflushed[name].forget(replay_after)
            self._covered[shard_id] = max(replay_after, self._covered.get(shard_id, 0))
            self._raise_plan(name, replay_after)

    def _raise_plan(self, name: str, replay_after: int) -> None:
        with self._guard:
            shard_id = self._claims[name].shard.id
            self._floor[shard_id] = max(replay_after, self._floor.get(shard_id, 0))

    def _note(self, name: str, manifest: Manifest) -> None:
        with self._guard:
            if name not in self._stored or manifest.version >= self._stored[name].version:
                self._stored[name] = manifest

    def _hold(self, claims: Mapping[str, Claim], manifests: Mapping[UUID, Manifest]) -> None:
        """Add shards that this driver has claimed."""
        with self._guard:
            self._covered.update({shard_id: manifest.replay_after for shard_id, manifest in manifests.items()})
            self._claims.update(claims)
            for name, claim in claims.items():
                self._stored[name] = manifests[claim.shard.id]
                self._unflushed.setdefault(name, Unflushed.of(self._log.state, claim.shard.id))
