"""fsck of a table's shards, logs and checkpoints: every object that a promise depends on. Reads only; fences nobody.

Promises:
1. A table that only headgate and native Lance wrote has no findings, however old, flushed, folded or collected; nor has
   one with running streams: only what two looks both find is reported. (But a checkpoint that is being taken all that
   time, and a consumer that came back when a collection had already chosen what its expired pin held.)
2. Memory holds what any reader holds of the commit logs, sixteen bytes per WAL entry of one shard, and the budget of
   `read_ahead`. All findings are counted; the first MAX_FINDINGS are kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import TypeAlias
from uuid import UUID

from headgate.checkpoints.fsck import expected as lists
from headgate.checkpoints.fsck.archive import check_archive
from headgate.checkpoints.fsck.consumers import check_consumers
from headgate.checkpoints.fsck.entries import EntryJudge, read_entries
from headgate.checkpoints.fsck.expected import Listed
from headgate.checkpoints.fsck.findings import Finding, confirmed, finding
from headgate.checkpoints.fsck.log import LogLook, Named, check_log
from headgate.checkpoints.fsck.pins import PinLook, check_pins, judge_pins, pins_of
from headgate.checkpoints.fsck.shard import ManifestLook, check_manifests, check_sstable
from headgate.checkpoints.fsck.wal import WalContext, judge_listing
from headgate.checkpoints.log.dead_letters import PREFIX, dead_letter_home
from headgate.checkpoints.log.names import ROOT, stream_folder
from headgate.errors import InvalidInput
from headgate.parallel import WORKERS, Pool, in_order
from headgate.shards.placement import bucket_of
from headgate.shards.shard import Shard, TableHome
from headgate.shards.wal.listing import WalListing, list_wal

MAX_FINDINGS = 1000
"""More findings add nothing: the whole table is affected."""

SHARDS = 8
"""Number of shards whose manifests are read concurrently."""

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with the current step, the number of finished items, and the total as far as it is known."""


@dataclass(frozen=True)
class Checked:
    """What a check found, and how much it looked at."""

    findings: tuple[Finding, ...]
    untold: int
    """Number of findings beyond MAX_FINDINGS."""
    objects: Mapping[str, int]
    """Number of checked objects by kind."""

    @property
    def errors(self) -> int:
        return sum(one.is_error for one in self.findings)


def check_table(
    home: TableHome,
    shard_ids: Iterable[UUID],
    *,
    marks: Mapping[UUID, int] | None = None,
    adopts: bool = True,
    progress: Progress = lambda what, done, total: None,
) -> Checked:
    """Check everything below `_mem_wal/` and `_headgate/<table id>/` but table.json.

    1. table checkpoints; pins of consumers; manifests of all shards; then the commit logs; then the WALs (R11).
    2. SSTables that a manifest names and the base has not taken in (`marks`, per shard).
    3. the dead-letter logs, and the archives of the commit logs.
    4. if there are findings, check these shards and logs again: only what is found twice is reported.

    `adopts`: the table's columns are known. Raises StoreError if the store cannot be read.
    """
    with Pool("fsck", WORKERS) as pool, Pool("fsck", SHARDS) as outer:
        look = _Look(home, marks or {}, adopts, progress, pool, outer)
        found = look.run(shard_ids)
        if any(found.values()):
            flagged = frozenset(unit for unit, some in found.items() if some and isinstance(unit, UUID))
            again = _Look(home, marks or {}, adopts, progress, pool, outer, only=flagged).run(flagged)
            found = {unit: confirmed(some, again.get(unit, [])) for unit, some in found.items()}
    told = [one for some in found.values() for one in some]
    return Checked(tuple(told[:MAX_FINDINGS]), max(0, len(told) - MAX_FINDINGS) + look.dropped, dict(look.counts))


def look_over(home: TableHome, shard_ids: Iterable[UUID]) -> list[Finding]:
    """The same check by LIST alone: manifests, logs, and which entries exist. For a table that is too large to read."""
    with Pool("fsck", WORKERS) as pool, Pool("fsck", SHARDS) as outer:

        def look() -> list[Finding]:
            return _Look(home, {}, False, lambda what, done, total: None, pool, outer, only=ids).by_list()

        ids = frozenset(shard_ids)
        first = look()
        return confirmed(first, look()) if first else []


Unit: TypeAlias = UUID | str
"""The unit of the second look: a shard, or the logs and checkpoints."""


@dataclass
class _Look:
    home: TableHome
    marks: Mapping[UUID, int]
    adopts: bool
    progress: Progress
    pool: Pool
    outer: Pool
    only: frozenset[UUID] | None = None
    """Check only these shards; None: all, including shards that only a commit log knows."""
    counts: Counter[str] = field(default_factory=Counter)
    dropped: int = 0

    def run(self, shard_ids: Iterable[UUID]) -> dict[Unit, list[Finding]]:
        found: dict[Unit, list[Finding]] = {}
        pins = check_pins(self.home, self._under, self.pool)
        self.counts["checkpoints"] += pins.objects
        found["checkpoints"] = self._kept(pins.findings)
        consumers = check_consumers(self.home, self._under)
        self.counts["consumers"] += consumers.objects
        found["consumers"] = self._kept(consumers.findings)
        manifests = self._manifests(sorted(shard_ids))
        logs = self._logs((pins.named, consumers.named))
        for log in logs:
            found[f"log {log.folder}"] = self._kept(chain(log.findings, self._archive(log)))
        if self.only is None:
            manifests |= self._manifests(sorted({shard for log in logs for shard in log.fences} - manifests.keys()))
        for shard_id, context, listing in self._wals(manifests, logs):
            found[shard_id] = self._kept(chain(manifests[shard_id].findings, self._shard(context, listing, pins)))
        for shard_id, some in self._sstables(manifests):
            found[shard_id] += self._kept(some)
        for log in logs:
            found[f"log {log.folder}"] += self._kept(self._dead_letters(log))
        return found

    def by_list(self) -> list[Finding]:
        manifests = self._manifests(sorted(self.only or ()))
        logs = self._logs()
        found = [one for log in logs for one in log.findings]
        for shard_id, context, listing in self._wals(manifests, logs):
            found += [*manifests[shard_id].findings, *judge_listing(context, listing)]
        return self._kept(found)

    # -- manifests and logs -----------------------------------------------------------

    def _manifests(self, shard_ids: Sequence[UUID]) -> dict[UUID, ManifestLook]:
        looks: dict[UUID, ManifestLook] = {}
        check = partial(check_manifests, pool=self.pool)
        for number, look in enumerate(in_order(self.outer, check, map(self._shard_of, shard_ids)), 1):
            if look.latest is None or look.latest.is_of(self.home.table_id):
                looks[shard_ids[number - 1]] = look
            self.counts["manifests"] += look.versions
            self.progress("manifests of shards", number, len(shard_ids))
        return looks

    def _logs(self, named: Iterable[Mapping[str, Named]] = ()) -> list[LogLook]:
        """`named`: what was read before the logs, and names records of them."""
        ends: dict[str, Named] = {}
        for stream, one in chain.from_iterable(some.items() for some in named):
            with suppress(InvalidInput):  # no stream has such a name
                folder = stream_folder(stream).removeprefix(ROOT)
                ends[folder] = max(one, ends.get(folder, (0, "")))
        folders = sorted({*self.home.records.list_folders(ROOT), *ends})
        looks = []
        for number, folder in enumerate(folders, 1):
            looks.append(check_log(self.home.records, folder, self._under, self.pool, ends.get(folder)))
            self.counts["records"] += looks[-1].objects
            self.progress("commit logs", number, len(folders))
        return looks

    def _archive(self, log: LogLook) -> Iterator[Finding]:
        if log.stream is not None:
            look = check_archive(self.home.records, log.stream, self.home.uri, self._under, self.pool)
            self.counts["archives"] += look.objects
            yield from look.findings

    # -- WALs ---------------------------------------------------------------------------

    def _wals(
        self, manifests: Mapping[UUID, ManifestLook], logs: Sequence[LogLook]
    ) -> Iterator[tuple[UUID, WalContext, WalListing]]:
        """Per shard the context to check its WAL with, and the WAL's LIST, which comes after the logs."""
        streams = {log.stream for log in logs}
        told = None not in streams
        whole = all(log.whole for log in logs)
        listings = in_order(self.outer, list_wal, map(self._shard_of, manifests))
        for (shard_id, look), listing in zip(manifests.items(), listings, strict=True):
            manifest = look.latest
            fences: dict[int, int] = {}
            for log in logs:
                fences.update(log.fences.get(shard_id, {}))
            context = WalContext(
                shard=self._shard_of(shard_id),
                manifest=manifest,
                claimed=look.versions > 0,
                listed=lists.joined(log.listed[shard_id] for log in logs if shard_id in log.listed),
                fences=fences,
                logs_whole=whole,
                adopts=self.adopts,
                own=bucket_of(self._shard_of(shard_id)),
                owner_without_log=told and manifest is not None and manifest.owner not in (None, *streams),
            )
            yield shard_id, context, listing

    def _shard(self, context: WalContext, listing: WalListing, pins: PinLook) -> Iterator[Finding]:
        yield from judge_listing(context, listing)
        yield from judge_pins(context.shard, pins_of(context.shard.id, pins.live), listing)
        judge = EntryJudge(context, listing)
        done = 0
        for block in read_entries(context, listing, self.pool):
            yield from judge.take(block)
            done += len(block)
            self.progress(f"entries of shard {context.shard.id}", done, len(listing.positions))
        yield from judge.close()
        self.counts["entries"] += len(listing.positions)
        self.counts["bytes"] += int(listing.sizes.sum())

    # -- SSTables -----------------------------------------------------------------------

    def _sstables(self, manifests: Mapping[UUID, ManifestLook]) -> Iterator[tuple[UUID, list[Finding]]]:
        wanted = [
            (self._shard_of(shard_id), sstable)
            for shard_id, look in manifests.items()
            for sstable in (look.latest.sstables if look.latest else ())
            if sstable.generation > self.marks.get(shard_id, 0)
        ]
        results = in_order(self.outer, lambda one: list(check_sstable(*one)), wanted)
        for number, ((shard, _), found) in enumerate(zip(wanted, results, strict=True), 1):
            self.counts["sstables"] += 1
            self.progress("SSTables", number, len(wanted))
            yield shard.id, found

    # -- dead letters ---------------------------------------------------------------------

    def _dead_letters(self, log: LogLook) -> Iterator[Finding]:
        if log.stream is None:
            return
        home = dead_letter_home(self.home, log.stream)
        under = self._under + home.store.uri.removeprefix(self.home.records.uri).strip("/") + "/"
        for shard_id, listed in log.listed.items():
            if listed.name.startswith(PREFIX):
                yield from self._dead_letter_log(Shard(home, shard_id), listed, under)

    def _dead_letter_log(self, shard: Shard, listed: Listed, under: str) -> Iterator[Finding]:
        context = WalContext(shard, None, listed=listed, under=under)
        listing = list_wal(shard)
        self.counts["dead_letter_entries"] += len(listing.positions)
        for key in listing.strays:
            yield finding(
                "dead-letters-stray", under + key, "This is not the name of an entry: a temporary file, or a copy."
            )
        for position in listed.positions():
            if not listing.has(position):
                what = f"Entry {position}, which a commit record lists, is missing."
                yield finding("dead-letters-missing", context.place(position), what)
        judge = EntryJudge(context, listing)
        blocks = read_entries(context, listing, self.pool)
        found = [one for block in blocks for one in judge.take(block)]
        empty = [one for one in judge_listing(context, listing) if one.code == "entry-empty"]
        for one in (*empty, *found, *judge.close()):
            yield finding("dead-letters-damaged", one.place, one.what)

    # -- names and places -------------------------------------------------------------------

    @property
    def _under(self) -> str:
        """Path of our records relative to the table."""
        return self.home.records.uri.removeprefix(self.home.store.uri).strip("/") + "/"

    def _shard_of(self, shard_id: UUID) -> Shard:
        return Shard(self.home, shard_id)

    def _kept(self, found: Iterable[Finding]) -> list[Finding]:
        kept: list[Finding] = []
        for one in found:
            if len(kept) < MAX_FINDINGS:
                kept.append(one)
            else:
                self.dropped += 1
        return kept
