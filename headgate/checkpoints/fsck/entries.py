"""fsck of one WAL by reading every entry: its bytes, that it matches the commit log, and that no later fence precedes
it.

Reads only, in parallel, and keeps only header facts of an entry: memory is bounded by the budget of `read_ahead` and
sixteen bytes an entry.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import xxhash

from headgate.checkpoints.fsck.expected import ListedPart
from headgate.checkpoints.fsck.findings import Finding, finding
from headgate.checkpoints.fsck.shard import told_misplaced
from headgate.checkpoints.fsck.wal import WalContext, unreadable
from headgate.errors import HeadgateError, NotFound, StoreError
from headgate.parallel import Pool, in_order
from headgate.shards.wal.decoder import decode_entry
from headgate.shards.wal.listing import WalListing

BLOCK = 64
"""Small entries that one worker reads together: handing each over separately would cost more than reading it."""

BLOCK_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class EntryFacts:
    """What is kept of an entry that was read: everything but its rows."""

    position: int
    fault: str | None = None
    """Why the entry is unreadable; then all fields below are unknown."""
    epoch: int = 0
    barrier: bool = False
    attempt_id: str | None = None
    rows: int = 0
    id_hash: int | None = None
    schema_fault: str | None = None
    misplaced: str | None = None
    """Rows whose keys belong to another shard."""


def read_entries(context: WalContext, listing: WalListing, pool: Pool) -> Iterator[list[EntryFacts]]:
    """All entries that are not empty, ascending, in blocks. An entry that was collected meanwhile is left out."""
    sizes = listing.sizes

    def blocks() -> Iterator[tuple[list[int], int]]:
        block: list[int] = []
        held = 0
        for index in np.nonzero(sizes > 0)[0]:
            block.append(int(listing.positions[index]))
            held += int(sizes[index])
            if len(block) >= BLOCK or held >= BLOCK_BYTES:
                yield block, held
                block, held = [], 0
        if block:
            yield block, held

    yield from in_order(pool, partial(_read_block, context), blocks(), lambda block: block[1])


def _read_block(context: WalContext, block: tuple[list[int], int]) -> list[EntryFacts]:
    return [facts for position in block[0] if (facts := _read(context, position)) is not None]


def _read(context: WalContext, position: int) -> EntryFacts | None:
    shard = context.shard
    try:
        entry = decode_entry(shard.wal.get(shard.wal_key(position)))
    except NotFound:
        return None
    except StoreError:
        raise
    except HeadgateError as error:
        return EntryFacts(position, fault=error.what)
    header = entry.header
    schema_fault = misplaced = None
    if context.adopts and not context.covered(position):
        try:
            misplaced = told_misplaced(context.own, map(shard.home.schema.adopted, entry.batches))
        except HeadgateError as error:
            schema_fault = error.what
    return EntryFacts(
        position=position,
        epoch=header.epoch,
        barrier=header.barrier,
        attempt_id=header.tags.attempt_id,
        rows=entry.rows,
        id_hash=None if header.entry_id is None else xxhash.xxh3_64_intdigest(header.entry_id.encode()),
        schema_fault=schema_fault,
        misplaced=misplaced,
    )


class EntryJudge:
    """Checks the entries of one WAL in order. Keeps sixteen bytes of each."""

    def __init__(self, context: WalContext, listing: WalListing) -> None:
        self._context = context
        self._listing = listing
        self._epoch = 0
        self._told_lost_manifest = self._told_lost_log = False
        self._part: ListedPart | None = None
        self._rows: dict[int, int] = {}
        self._ids, self._at = array("Q"), array("Q")

    def take(self, block: Iterable[EntryFacts]) -> Iterator[Finding]:
        """Findings of the next entries."""
        for facts in block:
            if facts.fault is not None:
                yield unreadable(self._context, self._listing, facts.position, "entry-damaged", facts.fault)
            else:
                yield from self._fences(facts)
                yield from self._committed(facts)

    def close(self) -> Iterator[Finding]:
        """Findings that need the whole WAL."""
        yield from self._rows_of_part()
        ids, at = np.frombuffer(self._ids, np.uint64), np.frombuffer(self._at, np.uint64)
        order = np.argsort(ids, kind="stable")
        for index in np.nonzero(np.diff(ids[order]) == 0)[0]:
            first, second = int(at[order[index]]), int(at[order[index + 1]])
            what = f"It is a copy of the entry at position {first}."
            yield finding("entry-twice", self._context.place(second), what)

    def _fences(self, facts: EntryFacts) -> Iterator[Finding]:
        """Epochs never go down, and each barrier that an open record names is there. (An opener that was fenced between
        its claim and its barrier may put its barrier late: it holds no row, and fences nobody.)
        """
        context = self._context
        place = context.place(facts.position)
        fence = context.fences.get(facts.position)
        if fence is not None and (not facts.barrier or facts.epoch != fence):
            found = f"a barrier of epoch {facts.epoch}" if facts.barrier else f"an entry of epoch {facts.epoch}"
            what = f"An open record expects the barrier of epoch {fence} here, but found {found}."
            yield finding("fence-replaced", place, what)
        if facts.epoch < self._epoch and not (facts.barrier and not facts.rows):
            what = f"It has epoch {facts.epoch}, but follows an entry of epoch {self._epoch}."
            yield finding("entry-after-fence", place, what)
        self._epoch = max(self._epoch, facts.epoch)
        manifest = context.manifest
        if manifest is not None and facts.epoch > manifest.epoch and not self._told_lost_manifest:
            self._told_lost_manifest = True
            what = f"An entry has epoch {facts.epoch}, but the latest manifest has epoch {manifest.epoch}."
            yield finding("manifest-latest-lost", place, what)

    def _committed(self, facts: EntryFacts) -> Iterator[Finding]:
        context, listed = self._context, self._context.listed
        if context.owner_without_log and facts.attempt_id is not None and not self._told_lost_log:
            self._told_lost_log = True
            what = "A stream wrote this entry, but the commit log of the stream that owns the shard is missing."
            yield finding("owner-without-log", context.place(facts.position), what)
        part = listed.part_at(facts.position)
        folded = part is None and listed.is_folded(facts.position)
        if part is not None and facts.attempt_id != part.attempt_id:
            what = f"Commit record {part.sequence} lists attempt {part.attempt_id}, but found {_attempt(facts)}."
            yield finding("commit-entry-other", context.place(facts.position), what, lost=self._lost(part))
        elif folded and facts.attempt_id is None:
            what = f"A fold lists it as a stream's entry, but found {_attempt(facts)}."
            yield finding("commit-entry-other", context.place(facts.position), what)
        if part is not self._part:
            yield from self._rows_of_part()
            self._part, self._rows = part, {}
        if part is not None:
            self._rows[facts.position] = facts.rows
        visible = facts.attempt_id is None or folded or (part is not None and facts.attempt_id == part.attempt_id)
        if facts.barrier or not visible:
            return
        if facts.schema_fault is not None:
            yield finding("entry-schema", context.place(facts.position), facts.schema_fault)
        if facts.misplaced is not None:
            yield finding("key-in-wrong-shard", context.place(facts.position), facts.misplaced)
        if facts.id_hash is not None:
            self._ids.append(facts.id_hash)
            self._at.append(facts.position)

    def _rows_of_part(self) -> Iterator[Finding]:
        """If all entries of a batch were read, they must hold as many rows as were committed."""
        part = self._part
        if part is not None and len(self._rows) == len(part.positions) and sum(self._rows.values()) != part.rows:
            what = (
                f"Record {part.sequence} committed {part.rows} rows here, but the entries hold "
                f"{sum(self._rows.values())}."
            )
            yield finding("commit-rows-differ", self._context.place(part.positions[0]), what)

    def _lost(self, part: ListedPart) -> str:
        return f"up to {part.rows:,} rows of batch {part.batch_id} in this shard; readers fail at this position"


def _attempt(facts: EntryFacts) -> str:
    if facts.barrier:
        return "a fence barrier"
    return "an entry of a writer without a stream" if facts.attempt_id is None else f"attempt {facts.attempt_id}"
