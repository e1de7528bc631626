"""StreamDriver: owns a stream's epochs, plans its batches and commits them.

Lives in the driver process as long as its query runs. Promises:
1. After `open` has returned, no earlier driver of the stream commits, and no entry that is not listed by then ever
   counts.
2. A batch becomes visible whole, by one record, or not at all.
3. Per batch the driver reads nothing of the table and writes one record.
What `shards` promises holds as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from headgate import parallel
from headgate.checkpoints.log.commit_log import CommitLog
from headgate.checkpoints.log.dead_letters import PREFIX, dead_letter_shard
from headgate.checkpoints.log.decisions import holds_log
from headgate.checkpoints.log.opened_log import OpenedLog
from headgate.checkpoints.log.records import Batch, BatchRecord, OffsetMove, RewindRecord
from headgate.checkpoints.log.state import Head
from headgate.checkpoints.stream.claims import check_held, check_owners, claim_all, shard_claims
from headgate.checkpoints.stream.shards import StreamShards
from headgate.connectors.lance.base.damage import settle_base
from headgate.errors import Fenced
from headgate.shards.shard import Claim, Shard, TableHome
from headgate.shards.wal.appender import WalAppender
from headgate.steps import step


@dataclass(frozen=True)
class Planned:
    """Start positions of one batch's attempts, per shard and per dead-letter log."""

    claims: Mapping[str, Claim]
    dead_letters: Mapping[str, Claim]


class StreamDriver(StreamShards):
    """One stream, owned by one query."""

    @classmethod
    def open(
        cls,
        home: TableHome,
        stream: str,
        query_id: str,
        shards: Iterable[str],
        *,
        accept: Callable[[Head], object] = lambda head: None,
        free: Callable[[list[str]], object] = lambda held: None,
        decoder: Mapping[str, Any] | None = None,
    ) -> StreamDriver:
        """Take over the stream. THIS WRITES, AND IT FENCES AN EARLIER DRIVER.

        `decoder` says how its batches will become rows, for the open record; None if it commits none.

        1. read the log: the stream's head, and the shards it has had. `accept` may refuse by raising, and a shard of
           another stream is refused as well: nothing was written yet. `free` lets go of shards that batch writes hold.
           Then, on local disk, what a power cut left of the base's newest versions is set aside (R21).
        2. claim and barrier every shard, in parallel.
        3. put the open record at the log's next sequence: from here no predecessor commits.
        4. re-read every manifest: each claim still stands and its barrier lies above replay_after.
        5. shards that a predecessor added between 1 and 3 are claimed as well.

        Raises Fenced if another driver came later, InvalidInput if a shard belongs to another stream, DataLoss,
        Transient.
        """
        log = CommitLog(home.records, stream, home.uri)
        state = log.read()
        head = state.head
        accept(head)
        names = _distinct(home, {*shards, *(head.opened.shards if head.opened else ())})
        read = check_owners(home, stream, names, free=free)
        settle_base(home.store)
        appenders = claim_all(home, stream, read, head.listed)
        claims = _claims(appenders)
        opened = log.open(query_id, shard_claims(claims), state, decoder)
        step("re-read")
        manifests = check_held(appenders)
        driver = cls(home, stream, opened, claims, opened.state, manifests)
        held = {claim.shard.id for claim in claims.values()}
        listed = {one.shard for shard_id, one in opened.state.shards.items() if shard_id not in held}
        if late := sorted(name for name in listed if not name.startswith(PREFIX)):
            driver._claim(late)
        return driver

    @classmethod
    def resume(
        cls,
        home: TableHome,
        stream: str,
        log: OpenedLog,
    ) -> StreamDriver:
        """Continue under the open record that the caller put before, from what the log says. Reads and
        writes nothing.
        """
        claims = {
            name: Claim(Shard(home, claim.shard_id), claim.epoch, claim.claim_id, claim.barrier + 1)
            for name, claim in log.record.shards.items()
        }
        return cls(home, stream, log, claims)

    def describe(self, decoder: Mapping[str, Any]) -> None:
        """Record how batches become rows from here on: one more open record, unless the last one says the same.

        Call it before `plan`, and not while a batch is in flight that must count. Raises Fenced, Poisoned.
        """
        if self._log.record.decoder != decoder:
            self._log.extend(shard_claims(self.claims), decoder)

    def plan(self, shards: Iterable[str]) -> Planned:
        """Plan the next batch. Shards that are new to the stream are claimed first."""
        names = sorted(set(shards))
        if new := [name for name in names if name not in self._claims]:
            self._claim(new)
        head = self.head
        claims = {}
        dead = {}
        with self._guard:
            for name in names:
                claim = self._claims[name]
                claims[name] = replace(claim, next_position=self._next_position(claim))
                shard = dead_letter_shard(self.home, self.stream, name)
                dead[name] = replace(claim, shard=shard, next_position=head.listed.get(shard.id, -1) + 1)
            self._in_flight = {claim.shard.id: claim.next_position for claim in claims.values()}
        return Planned(claims, dead)

    def commit(self, batch: Batch, again: Callable[[], Batch | None] = lambda: None) -> BatchRecord:
        """Make the batch visible: one PUT. Raises Fenced or Poisoned, both final, and what `again` raises.

        `again` is called if someone changed the columns meanwhile (R22): it reads them, and returns the batch written
        again under fresh attempts, or None if what was written counts.
        """
        record = None
        while record is None:
            step("commit")
            with self._guard:
                floor = dict(self._floor)
            record = self._log.commit(batch, floor)
            if record is None:
                step("columns changed")
                batch = again() or batch
        step("committed")
        with self._guard:
            self._in_flight = {}
            if batch.mode == "memtable":
                # Without MemTables nothing ever leaves the WAL, and a list of its entries would grow with every batch.
                for name, part in record.shards.items():
                    self._unflushed[name].add(part)
        return record

    def rewind(self, offsets: tuple[OffsetMove, ...], *, by: str = "", reason: str = "") -> RewindRecord:
        """Let the stream continue at other offsets: one PUT. Do not call it while a batch runs. Raises Fenced or
        Poisoned.
        """
        return self._log.rewind(offsets, by=by, reason=reason)

    def renew(self) -> None:
        """Claim all shards anew, and note it in the log: THIS FENCES this driver's own tasks, wherever they stall.

        A batch that is planned and not committed is abandoned. Raises Fenced if a successor has the stream: it is not
        taken back.
        """
        self._claim(sorted(self._claims))
        self._in_flight = {}

    def _claim(self, names: list[str]) -> None:
        """Checks the log first: a driver that was fenced meanwhile must not fence its successor's shards."""
        head = self.head
        with parallel.Pool("claim", 1) as pool:
            owned = pool.submit(check_owners, self.home, self.stream, names, self._stored)
            if not holds_log(head, self._log.log.read(self._folding.state()).head):
                raise Fenced(
                    "Another driver took over the stream.",
                    table=self.home.uri,
                    stream=self.stream,
                    advice="stop this query; another driver runs the stream",
                )
            read = owned.result()
        appenders = claim_all(self.home, self.stream, read, head.listed)
        more = _claims(appenders)
        step("extend")
        self._log.extend(shard_claims({**self._claims, **more}))
        self._hold(more, check_held(appenders))


def _claims(appenders: Mapping[str, WalAppender]) -> dict[str, Claim]:
    return {name: appender.claim for name, appender in appenders.items()}


def _distinct(home: TableHome, names: Iterable[str]) -> list[str]:
    """The names, each shard once: a shard that was opened by id gets its name if that is known."""
    by_id: dict[UUID, str] = {}
    for name in names:
        shard_id = home.shard(name).id
        if name != str(shard_id) or shard_id not in by_id:
            by_id[shard_id] = name
    return sorted(by_id.values())
