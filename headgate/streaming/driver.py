"""StreamDriver: the one that owns a stream's epochs, plans its batches and commits them.

Lives in the driver process for as long as its query runs. Promises:
1. After `open` has returned, no earlier driver of the stream commits, and no entry that is not
   listed by then ever counts.
2. A batch becomes visible whole, by one record, or not at all.
3. Per batch the driver reads nothing of the table and writes one record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from uuid import UUID

from headgate.checkpoints.commit_log import CommitLog, OpenedLog
from headgate.checkpoints.decisions import next_plan
from headgate.checkpoints.log_state import Head, LogState, Positions
from headgate.checkpoints.records import Batch, BatchRecord, Run, ShardClaim, ShardPart
from headgate.errors import Fenced, HeadgateError, InvalidInput
from headgate.shards.appender import Pause, WalAppender, no_pause
from headgate.shards.manifest import Manifest
from headgate.shards.retry import Retry
from headgate.shards.shard import Claim, Shard, TableHome
from headgate.streaming.dead_letters import PREFIX, dead_letter_shard
from headgate.streaming.flush import FlushJob

MAX_UNFLUSHED_ENTRIES = 512
"""So many small entries make replay slow, whatever their size."""

CLAIMERS = 16
"""Shards claimed at once at a start: on S3 each takes a handful of round trips."""


@dataclass(frozen=True)
class Planned:
    """Where the attempts of one batch start, per shard and per dead-letter log."""

    claims: Mapping[str, Claim]
    dead_letters: Mapping[str, Claim]


@dataclass
class _Unflushed:
    """Entries of a shard that count and that no SSTable covers, as far as this driver knows."""

    attempts: dict[int, str]
    folded: tuple[Run, ...] = ()
    sizes: dict[int, int] = field(default_factory=dict)
    """Of the entries in `attempts`, as far as the log remembers them."""

    @property
    def last(self) -> int | None:
        """The highest position."""
        return max([*self.attempts, *(run[1] for run in self.folded)], default=None)

    def add(self, part: ShardPart) -> None:
        """What a batch has just put there."""
        self.attempts.update(dict.fromkeys(part.positions, part.attempt_id))
        self.sizes.update(dict.fromkeys(part.positions, part.nbytes // len(part.positions)))

    def forget(self, replay_after: int) -> None:
        """Entries up to there are in SSTables."""
        self.attempts = {position: attempt for position, attempt in self.attempts.items() if position > replay_after}
        self.sizes = {position: size for position, size in self.sizes.items() if position > replay_after}
        self.folded = tuple((max(a, replay_after + 1), b) for a, b in self.folded if b > replay_after)

    def is_due(self, max_bytes: int) -> bool:
        """Whether it is time to flush them: they are large or many, or so old that nobody knows how large."""
        known = len(self.sizes) == len(self.attempts) and not self.folded
        return not known or len(self.attempts) >= MAX_UNFLUSHED_ENTRIES or sum(self.sizes.values()) >= max_bytes


class StreamDriver:
    """One stream in the hands of one query. Used by one thread."""

    def __init__(
        self, home: TableHome, stream: str, log: OpenedLog, claims: dict[str, Claim], retry: Retry, pause: Pause
    ) -> None:
        """Use `open`."""
        self.home = home
        self.stream = stream
        self._log = log
        self._claims = claims
        self._retry = retry
        self._pause = pause
        self._replay_after: dict[UUID, int] = {}
        self._unflushed = {name: _unflushed(log.state, claim) for name, claim in claims.items()}

    @classmethod
    def open(
        cls,
        home: TableHome,
        stream: str,
        query_id: str,
        shards: Iterable[str],
        *,
        accept: Callable[[Head], object] = lambda head: None,
        retry: Retry = Retry(),  # noqa: B008
        pause: Pause = no_pause,
    ) -> StreamDriver:
        """Take the stream over. THIS WRITES, AND IT FENCES AN EARLIER DRIVER.

        1. read the log: where the stream stands, and which shards it has had. `accept` may refuse
           by raising, and a shard of another stream is refused as well: nothing was written yet.
        2. claim and barrier every shard, in parallel.
        3. put the open record at the log's next sequence: from here no predecessor commits.
        4. re-read every manifest: each claim still stands and its barrier lies above replay_after.
        5. shards that a predecessor added between 1 and 3 are claimed as well.

        Raises Fenced where another driver came later, InvalidInput where a shard belongs to
        another stream, DataLoss, Transient.
        """
        log = CommitLog(home.records, stream, home.uri, retry, pause)
        head = log.read().head
        accept(head)
        names = sorted({*shards, *(head.opened.shards if head.opened else ())})
        _check_owners(home, stream, names, retry)
        claims = _claim_all(home, stream, names, head.listed, retry, pause)
        opened = log.open(query_id, _told(claims))
        pause("re-read")
        _check_held(claims, retry)
        driver = cls(home, stream, opened, claims, retry, pause)
        listed = {positions.shard for positions in opened.state.shards.values()}
        if late := sorted(name for name in listed - claims.keys() if not name.startswith(PREFIX)):
            driver._extend(late)
        return driver

    @classmethod
    def resume(
        cls,
        home: TableHome,
        stream: str,
        log: OpenedLog,
        *,
        retry: Retry = Retry(),  # noqa: B008
        pause: Pause = no_pause,
    ) -> StreamDriver:
        """Go on under the open record that the caller put before, by what the log says. Reads and writes nothing."""
        claims = {
            name: Claim(Shard(home, claim.shard_id), claim.epoch, claim.claim_id, claim.barrier + 1)
            for name, claim in log.record.shards.items()
        }
        return cls(home, stream, log, claims, retry, pause)

    @property
    def head(self) -> Head:
        """Where the stream stands, own commits included."""
        return self._log.head

    @property
    def claims(self) -> Mapping[str, Claim]:
        """Per shard, what this driver holds."""
        return self._claims

    def plan(self, shards: Iterable[str]) -> Planned:
        """Where the next batch goes. Shards that the stream has not had before are claimed first."""
        names = sorted(set(shards))
        if new := [name for name in names if name not in self._claims]:
            self._extend(new)
        head = self.head
        claims = {}
        dead = {}
        for name in names:
            claim = self._claims[name]
            advanced = self._replay_after.get(claim.shard.id)
            position = next_plan(head, claim.shard.id, barrier=claim.next_position - 1, advanced=advanced)
            claims[name] = replace(claim, next_position=position)
            shard = dead_letter_shard(self.home, self.stream, name)
            dead[name] = replace(claim, shard=shard, next_position=head.listed.get(shard.id, -1) + 1)
        return Planned(claims, dead)

    def commit(self, batch: Batch) -> BatchRecord:
        """Make the batch visible: one PUT. Raises Fenced or Poisoned, both final."""
        self._pause("commit")
        record = self._log.commit(batch, self._replay_after)
        self._pause("committed")
        if batch.mode == "memtable":
            # Without MemTables nothing ever leaves the WAL, and a list of it would grow with every batch.
            for name, part in record.shards.items():
                self._unflushed[name].add(part)
        return record

    def flush_jobs(self, max_bytes: int) -> list[FlushJob]:
        """The shards whose unflushed entries have passed the size, or are many."""
        jobs = []
        for name, held in self._unflushed.items():
            if not held.is_due(max_bytes):
                continue
            claim = self._claims[name]
            manifest = claim.shard.manifests_retried(self._retry).latest()
            assert manifest is not None
            held.forget(manifest.replay_after)
            if held.is_due(max_bytes) and held.last is not None:
                visible = Positions(name, dict(held.attempts), held.folded)
                jobs.append(FlushJob(name, claim, manifest, visible, held.last, max_bytes))
        return jobs

    def flushed(self, manifests: Mapping[str, Manifest]) -> None:
        """Manifests that this driver has just written."""
        for name, manifest in manifests.items():
            self._unflushed[name].forget(manifest.replay_after)
            self._replay_after[manifest.shard_id] = manifest.replay_after

    def _extend(self, names: list[str]) -> None:
        """The log first: a driver that was fenced meanwhile must not fence its successor's shards."""
        head = self.head
        if self._log.log.read().sequence != head.sequence:
            raise Fenced(
                "A successor has taken the stream over.",
                table=self.home.uri,
                stream=self.stream,
                advice="stop this query; another driver runs the stream",
            )
        _check_owners(self.home, self.stream, names, self._retry)
        more = _claim_all(self.home, self.stream, names, head.listed, self._retry, self._pause)
        self._pause("extend")
        self._log.extend(_told({**self._claims, **more}))
        _check_held(more, self._retry)
        self._claims.update(more)
        self._unflushed.update({name: _unflushed(self._log.state, claim) for name, claim in more.items()})


def _unflushed(state: LogState, claim: Claim) -> _Unflushed:
    """What of a shard the log lists; how much of it is flushed already is found out when a flush is due."""
    listed = state.shards.get(claim.shard.id)
    if listed is None:
        return _Unflushed({})
    held = _Unflushed({}, listed.folded)
    for record in state.head.recent.values():
        for part in record.shards.values():
            if part.shard_id == claim.shard.id:
                held.add(part)
    held.attempts = dict(listed.attempts)
    held.sizes = {position: size for position, size in held.sizes.items() if position in held.attempts}
    return held


def _check_owners(home: TableHome, stream: str, names: list[str], retry: Retry) -> None:
    """Refuse another stream's shard before any is claimed. The claims refuse it as well, but not all at once."""

    def check(name: str) -> None:
        shard = home.shard(name)
        stored = shard.manifests_retried(retry).latest()
        if stored is not None and stored.owner not in (None, stream):
            raise InvalidInput(
                f"Shard {name!r} belongs to stream {stored.owner!r} and was opened by stream {stream!r}.",
                **shard.where(),
                stored_epoch=stored.epoch,
                advice=f"write through stream {stored.owner!r}, or release the shard first; nothing was written",
            )

    with ThreadPoolExecutor(CLAIMERS, thread_name_prefix="headgate-claim") as pool:
        list(pool.map(check, names))


def _claim_all(
    home: TableHome, stream: str, names: list[str], listed: Mapping[UUID, int], retry: Retry, pause: Pause
) -> dict[str, Claim]:
    def claim(name: str) -> Claim:
        shard = home.shard(name)
        try:
            return WalAppender.open(shard, owner=stream, seen=listed.get(shard.id), retry=retry, pause=pause).claim
        except HeadgateError as error:
            error.located(stream=stream, name=name)
            raise

    with ThreadPoolExecutor(CLAIMERS, thread_name_prefix="headgate-claim") as pool:
        return dict(zip(names, pool.map(claim, names), strict=True))


def _told(claims: Mapping[str, Claim]) -> dict[str, ShardClaim]:
    return {
        name: ShardClaim(claim.shard.id, claim.epoch, claim.claim_id, claim.next_position - 1)
        for name, claim in claims.items()
    }


def _check_held(claims: Mapping[str, Claim], retry: Retry) -> None:
    """Step 4 of `open` (R3): only after the open record is a claim that still stands safe."""

    def check(claim: Claim) -> None:
        stored = claim.shard.manifests_retried(retry).latest()
        barrier = claim.next_position - 1
        if stored is None or not stored.held_by(claim.epoch, claim.claim_id) or 0 < barrier <= stored.replay_after:
            raise Fenced(
                "Another driver claimed the stream's shard while this one was starting.",
                **claim.shard.where(),
                epoch=claim.epoch,
                stored_epoch=stored.epoch if stored else None,
            )

    with ThreadPoolExecutor(CLAIMERS, thread_name_prefix="headgate-claim") as pool:
        list(pool.map(check, claims.values()))
