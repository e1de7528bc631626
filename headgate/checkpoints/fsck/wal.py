"""fsck of one WAL by one LIST: no gap (invariant 4), every committed entry exists (1), every fence exists (5).

Also decides what a missing or unreadable entry costs, and how to repair it, from what was flushed, what commit records
list, and where fences are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from headgate.checkpoints.fsck.expected import Listed
from headgate.checkpoints.fsck.findings import Finding, finding
from headgate.shards import names
from headgate.shards.manifest.model import Manifest
from headgate.shards.placement import OneBucket
from headgate.shards.shard import Shard
from headgate.shards.wal.listing import WalListing

MAX_GAPS = 100
"""Runs of missing entries that are reported one by one; a WAL with more gaps has lost its disk."""


@dataclass(frozen=True)
class WalContext:
    """Everything else that is needed to check a WAL."""

    shard: Shard
    manifest: Manifest | None
    """None if the latest manifest is unreadable: then it is unknown what was flushed."""
    claimed: bool = True
    """True if the shard has a manifest."""
    listed: Listed = field(default_factory=lambda: Listed(""))
    fences: Mapping[int, int] = field(default_factory=dict)
    logs_whole: bool = True
    """True if the commit logs are readable: then an entry of an attempt that is not listed is dead."""
    adopts: bool = True
    """True if the table's columns are known."""
    owner_without_log: bool = False
    """True if the log of the stream that owns the shard is missing."""
    under: str = ""
    """Path of the WAL's store relative to the table."""
    own: OneBucket | None = None
    """The bucket to which the keys of all rows must belong."""

    def place(self, position: int) -> str:
        """The name of an entry in findings."""
        return f"{self.under}{self.shard.wal_key(position)} (position {position})"

    def covered(self, position: int) -> bool:
        """True if SSTables cover the position, so that nobody reads it."""
        return self.manifest is not None and position <= self.manifest.replay_after

    def loss_at(self, position: int) -> str:
        """What is lost if the entry at the position is unreadable."""
        part = self.listed.part_at(position)
        if part is not None:
            several = f"some of {part.rows:,}" if len(part.positions) > 1 else f"{part.rows:,}"
            return (
                f"{several} rows of batch {part.batch_id} (commit record {part.sequence}); readers fail at this "
                "position"
            )
        if self.listed.is_folded(position):
            return "rows of a committed batch; readers fail at this position"
        if position in self.fences:
            return "no row: it is a fence barrier; readers fail at this position, and the fence is missing"
        if self._is_dead(position):
            return "no row of a committed batch: no commit record lists it; but readers fail at this position"
        return "acknowledged rows of a writer at this position; readers fail here"

    def mend_at(self, position: int, listing: WalListing) -> str | None:
        """How to repair an entry whose loss costs no row; None if only a restore helps."""
        if self.listed.lists(position) or not self._is_dead(position):
            return None
        below = [at for at in self.fences if at < position and listing.has(at)]
        if not below:
            return None
        return (
            f"stop the stream, then copy the fence barrier {self.shard.wal_key(max(below))} (position "
            f"{max(below)}) over it: it fills the position with an entry without rows"
        )

    def _is_dead(self, position: int) -> bool:
        """True if only tasks of a stream can have put an entry there, so that it counts only if a record lists it.

        The fences around it must have successive epochs; above the last fence, the manifest must still have that
        fence's epoch. Then nobody else claimed the shard in between, such as a direct writer after a release, whose
        rows count without any record.
        """
        if self.manifest is None or not self.logs_whole:
            return False
        below = max((at for at in self.fences if at < position), default=None)
        above = min((at for at in self.fences if at > position), default=None)
        if below is None:
            return False
        if above is None:
            return self.manifest.epoch == self.fences[below]
        return self.fences[above] == self.fences[below] + 1


# -- by LIST ---------------------------------------------------------------------


def judge_listing(context: WalContext, listing: WalListing) -> Iterator[Finding]:
    """Findings: gaps, missing fences, missing committed entries, empty entries, strays."""
    for key in listing.strays:
        yield finding(
            "wal-stray", context.under + key, "This is not the name of an entry: a temporary file, or a copy."
        )
    if not context.claimed and (len(listing.positions) or context.listed.last >= 0 or context.fences):
        place = names.manifest_folder(context.shard.id)
        yield finding("manifest-missing", place, "The shard has entries, but no manifest.")
    if context.manifest is not None:
        yield from _gaps(context, context.manifest, listing)
    for position, epoch in sorted(context.fences.items()):
        if not listing.has(position):
            what = f"The barrier of epoch {epoch}, which an open record names, is missing."
            yield finding("fence-missing", context.place(position), what)
    for index in np.nonzero(listing.sizes == 0)[0]:
        yield unreadable(context, listing, int(listing.positions[index]), "entry-empty", "The entry is empty.")


def _gaps(context: WalContext, manifest: Manifest, listing: WalListing) -> Iterator[Finding]:
    """Below the tip every entry exists or was flushed (invariant 4); the tip itself stays (R5)."""
    known = max(manifest.last_seen, manifest.replay_after, context.listed.last)
    # If the claimer of a new shard died before its first barrier, nothing was flushed either.
    if listing.highest < manifest.replay_after and manifest.replay_after > 0:
        if not len(listing.positions):
            what = f"The WAL is empty, although entries up to {manifest.replay_after} were flushed: the tip is missing."
            yield finding("wal-tip-missing", context.place(manifest.replay_after), what)
        else:
            place = f"{names.manifest_key(context.shard.id, manifest.version)} (version {manifest.version})"
            what = (
                f"It says that entries up to {manifest.replay_after} were flushed, but the WAL ends at "
                f"{listing.highest}: replay_after is wrong, or the end of the WAL was deleted."
            )
            yield finding("manifest-replay-after", place, what)
            return
    gaps = listing.gaps(manifest.replay_after + 1, max(known, listing.highest) + 1)
    for low, high in gaps[:MAX_GAPS]:
        yield from _gap(context, low, high)
    if len(gaps) > MAX_GAPS:
        low = gaps[MAX_GAPS][0]
        yield finding("wal-hole", context.place(low), f"{len(gaps) - MAX_GAPS} more ranges of entries are missing.")


def _gap(context: WalContext, low: int, high: int) -> Iterator[Finding]:
    """One run of missing entries: the batches that lost rows, or else what the gap costs."""
    what = f"Entry {low} is missing." if low == high else f"Entries {low} to {high} are missing."
    committed = False
    for part in context.listed.parts_in(low, high):
        committed = True
        lost = f"up to {part.rows:,} rows of batch {part.batch_id} in this shard; readers fail at this position"
        first = next(position for position in part.positions if low <= position <= high)
        told = f"{what} Commit record {part.sequence} lists {first}."
        yield finding("commit-entry-missing", context.place(first), told, lost=lost)
    for run in context.listed.folded:
        if run[0] <= high and run[1] >= low:
            committed = True
            first = max(run[0], low)
            told = f"{what} A fold of the commit log lists {first}."
            yield finding("commit-entry-missing", context.place(first), told)
    if not committed:
        yield finding("wal-hole", context.place(low), what, lost=context.loss_at(low))


def unreadable(context: WalContext, listing: WalListing, position: int, code: str, what: str) -> Finding:
    """An entry that exists but is unreadable."""
    place = context.place(position)
    if context.covered(position):
        return finding("entry-old-damaged", place, what)
    return finding(code, place, what, lost=context.loss_at(position), do=context.mend_at(position, listing))
