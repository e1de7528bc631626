"""Replay: the rows of a WAL that no SSTable covers, for opening or reading a shard.

Promises:
1. Exactly [replay_after + 1, stop): every visible row once, in order; nothing is appended again.
2. An entry of a higher epoch aborts it: this opener was fenced meanwhile.
3. A damaged or missing entry is found before anything is claimed (`scan_wal`), so that a failed
   open fences nobody. The scan is bounded: it goes to the end that the WAL has when it begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from operator import is_

import pyarrow as pa

from headgate.errors import DataLoss, Fenced, HeadgateError
from headgate.shards.manifest.decisions import replay_start
from headgate.shards.manifest.model import Manifest
from headgate.shards.memtable.notes import GenerationNotes
from headgate.shards.shard import Shard
from headgate.shards.wal.entry import EntryHeader
from headgate.shards.wal.moved import check_place
from headgate.shards.wal.tailer import WalEntry, WalTailer
from headgate.shards.wal.tip import listed_end

IsVisible = Callable[[EntryHeader, int], bool]
"""True if the entry at a position is visible."""


def untagged(header: EntryHeader, position: int) -> bool:
    """Visibility without a commit log: entries of direct writers count, those of a stream's tasks do not."""
    return header.tags.attempt_id is None


@dataclass(frozen=True)
class WalScan:
    """Result of a WAL scan."""

    entries: tuple[WalEntry, ...] = ()
    """Entries that were kept in memory; their rows are in the current storage schema."""
    notes: GenerationNotes = field(default_factory=GenerationNotes)
    """Notes of all entries."""
    stop: int = 0
    """End of the WAL when the scan began: everything below it was checked."""


@dataclass(frozen=True)
class ReplayedEntry:
    """The rows of one entry, in the current storage schema, and the generation that native noted in it."""

    position: int
    batches: tuple[pa.RecordBatch, ...]
    generation: int | None = None

    @property
    def rows(self) -> int:
        """Number of rows, including tombstones."""
        return sum(batch.num_rows for batch in self.batches)


def scan_wal(shard: Shard, keep_bytes: int) -> WalScan:
    """Read and check everything that a replay will need, up to the end that one LIST shows. Keeps the first
    `keep_bytes`, so that most opens read once.

    Writes nothing. A living writer continues meanwhile. What it appends is replayed after the barrier is put. What it
    flushed may be collected: then its manifest says so, and the scan continues above. Raises Corrupt or DataLoss, with
    shard and position.
    """
    manifests = shard.manifests
    manifest = manifests.latest()
    check_place(shard, manifest)
    stop = listed_end(shard, manifest, manifests.latest)
    kept: list[WalEntry] = []
    noted: dict[int, int] = {}
    held, position = 0, replay_start(manifest)
    while position < stop:
        try:
            for found in WalTailer(shard).read(position, stop):
                batches = tuple(_adopted(shard, found.position, batch) for batch in found.entry.batches)
                position = found.position + 1
                if (generation := found.entry.header.generation) is not None:
                    noted[generation] = found.position
                held += found.entry.nbytes
                if held <= keep_bytes:
                    same = all(map(is_, batches, found.entry.batches))
                    kept.append(found if same else replace(found, entry=replace(found.entry, batches=batches)))
        except DataLoss:
            manifest = manifests.latest(manifest)
            check_place(shard, manifest)
            if replay_start(manifest) <= position:
                raise
            position = replay_start(manifest)
    return WalScan(tuple(kept), GenerationNotes(noted), stop)


def replay(
    shard: Shard,
    manifest: Manifest,
    stop: int,
    *,
    epoch: int,
    visible: IsVisible = untagged,
    scan: WalScan = WalScan(),  # noqa: B008
) -> Iterator[ReplayedEntry]:
    """The visible rows of [replay_after + 1, stop). Raises Fenced, DataLoss, Corrupt."""
    for found in _entries(shard, manifest.replay_after + 1, stop, scan):
        header = found.entry.header
        if header.epoch > epoch:
            raise Fenced(
                "WAL replay aborted: this writer was fenced by a successor's entry.",
                **shard.where(),
                position=found.position,
                epoch=epoch,
                stored_epoch=header.epoch,
            )
        if visible(header, found.position):
            yield from uncovered(shard, manifest, [found])


def generation_notes(
    shard: Shard,
    manifest: Manifest,
    stop: int,
    *,
    scan: WalScan = WalScan(),  # noqa: B008
) -> GenerationNotes:
    """The generations that native noted in [replay_after + 1, stop), found before the replay. Raises DataLoss, Corrupt.

    Reads again only what came after the scan: mostly nothing.
    """
    later = WalTailer(shard).read(max(manifest.replay_after + 1, scan.stop), stop)
    notes = scan.notes.then(GenerationNotes.of((found.position, found.entry.header.generation) for found in later))
    return notes.since(manifest.generation)


def uncovered(shard: Shard, manifest: Manifest, entries: Iterable[WalEntry]) -> Iterator[ReplayedEntry]:
    """The rows above replay_after that no SSTable has."""
    for found in entries:
        generation = found.entry.header.generation
        # Native notes the generation of an entry's rows; an older generation is in an SSTable already.
        if found.entry.batches and (generation is None or generation >= manifest.generation):
            batches = tuple(_adopted(shard, found.position, batch) for batch in found.entry.batches)
            yield ReplayedEntry(found.position, batches, generation)


def _entries(shard: Shard, start: int, stop: int, scan: WalScan) -> Iterator[WalEntry]:
    """Entries are immutable, so those read before the claim are still valid."""
    position = start
    for found in scan.entries:
        if start <= found.position < stop:
            yield found
            position = found.position + 1
    yield from WalTailer(shard).read(position, stop)


def _adopted(shard: Shard, position: int, batch: pa.RecordBatch) -> pa.RecordBatch:
    try:
        return shard.home.schema.adopted(batch)
    except HeadgateError as error:
        raise shard.at_position(error, position)  # noqa: B904 - the same error, told where
