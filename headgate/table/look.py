"""The state of a shard: its manifest, its WAL from one LIST, and what is missing. Reads only. It does not open the base
dataset, so it works even if the base is damaged.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from headgate.checkpoints.snapshots.shards import names_in_logs
from headgate.connectors.objects import open_store
from headgate.errors import DataLoss, HeadgateError, InvalidInput, NotFound
from headgate.shards.home.record import read_record, record_ids, shard_folders
from headgate.shards.home.stores import open_wal
from headgate.shards.manifest.model import Manifest
from headgate.shards.rows.schema import RowSchema
from headgate.shards.shard import Shard, TableHome
from headgate.shards.wal.listing import has_entry, list_wal
from headgate.table.table import open_table

HOLES_SHOWN = 20
"""Maximum holes that are reported one by one; the first ones show where to look."""


@dataclass(frozen=True)
class Place:
    """A table's stores and the known names of its shards; without the schema."""

    home: TableHome
    names: Mapping[uuid.UUID, str]


def open_place(uri: str, storage_options: Mapping[str, str]) -> Place:
    """Open what is needed to read manifests and WALs, even if the base is damaged.

    The base is read only if several tables were created at the same URI one after the other: it names the current one.
    A dataset without a record is a plain Lance table.
    """
    store = open_store(uri, storage_options)
    nothing = RowSchema.of(pa.schema([]))
    records = record_ids(store)
    if not records:
        return Place(TableHome.in_store(store, nothing), {})
    if len(records) > 1:
        table = open_table(uri, storage_options=storage_options)
        home, record = table.home, table.record
    else:
        record = read_record(store, records[0])
        record, wal_store = open_wal(store, record, storage_options)
        home = TableHome(nothing, store, wal_store, record.table_id)
    return Place(home, names_in_logs(home) | {home.shard(name).id: name for name in record.sharding.known_names()})


def shards_of(place: Place) -> list[Shard]:
    """Every shard that has an object, by name and id. Raises NotFound if there is none."""
    home = place.home
    found = [Shard(home, shard_id) for shard_id in shard_folders(home.store)]
    if not found:
        raise NotFound(
            f"No shards found at {home.uri}.",
            advice="check the URI; a table has shards once a writer has opened one",
        )
    return sorted(found, key=lambda shard: (place.names.get(shard.id, ""), str(shard.id)))


def find_shard(place: Place, name_or_id: str) -> Shard:
    """The shard of that id, or name. Raises InvalidInput, NotFound."""
    home = place.home
    listing = f"`headgate shard show {home.uri}` lists the shards"
    try:
        wanted = home.shard(name_or_id)
    except InvalidInput as error:
        error.advice = listing
        raise
    if wanted not in shards_of(place):
        raise NotFound(f"The table has no shard {name_or_id!r}.", table=home.uri, shard=str(wanted.id), advice=listing)
    return wanted


# -- looking -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Problem:
    """A missing or damaged part."""

    error: str
    what: str

    @classmethod
    def of(cls, error: HeadgateError) -> Problem:
        """The same, for a list of several."""
        return cls(type(error).__name__, error.what)


@dataclass(frozen=True, slots=True)
class WalLook:
    """A WAL from one LIST."""

    tip: int
    entries: int
    nbytes: int
    holes: tuple[range, ...]
    strays: int


@dataclass(frozen=True, slots=True)
class ShardLook:
    """One shard: its manifest, None if missing or unreadable, and its WAL."""

    shard: Shard
    name: str | None
    manifest: Manifest | None
    wal: WalLook
    problems: tuple[Problem, ...]

    def value(self) -> dict[str, Any]:
        """As plain values."""
        manifest = self.manifest
        return {
            "shard": str(self.shard.id),
            "name": self.name,
            "manifest_version": manifest and manifest.version,
            "epoch": manifest and manifest.epoch,
            "claim": manifest and manifest.claim_id,
            "owner": manifest and manifest.owner,
            "sealed": manifest and manifest.sealed,
            "native_safe": manifest and not manifest.sealed and self.shard.home.wal_store is self.shard.home.store,
            "replay_after": manifest and manifest.replay_after,
            "last_seen": manifest and manifest.last_seen,
            "generation": manifest and manifest.generation,
            "sstable_count": manifest and len(manifest.sstables),
            "tip": self.wal.tip,
            "unflushed_entries": self.wal.entries,
            "unflushed_bytes": self.wal.nbytes,
            "strays": self.wal.strays,
            "sstables": [_sstable(manifest, number) for number in range(len(manifest.sstables))] if manifest else [],
            "problems": [asdict(problem) for problem in self.problems],
        }


def look_at(place: Place, shard: Shard) -> ShardLook:
    """Read the manifest, then the WAL with one LIST. If something is missing, read both again: a flush between the two
    may have allowed garbage collection to remove entries that the old manifest needed.
    """
    look = _look_once(place, shard)
    return _look_once(place, shard) if look.wal.holes else look


def _look_once(place: Place, shard: Shard) -> ShardLook:
    problems = []
    manifest = None
    try:
        manifest = shard.manifests.latest()
    except DataLoss as error:
        problems.append(error)
    wal = look_at_wal(shard, manifest)
    if manifest is None and not problems and wal.entries:
        problems.append(DataLoss("The shard has WAL entries, but no manifest."))
    for hole in wal.holes[:HOLES_SHOWN]:
        what = f"entry {hole.start} is" if len(hole) == 1 else f"entries {hole.start} to {hole.stop - 1} are"
        problems.append(DataLoss(f"The WAL has a hole: {what} missing."))
    if len(wal.holes) > HOLES_SHOWN:
        problems.append(DataLoss(f"The WAL has {len(wal.holes) - HOLES_SHOWN} more holes."))
    return ShardLook(shard, place.names.get(shard.id), manifest, wal, tuple(map(Problem.of, problems)))


def look_at_wal(shard: Shard, manifest: Manifest | None) -> WalLook:
    """The WAL above replay_after. Without a manifest the lowest entry counts as the first."""
    listing = list_wal(shard)
    first = manifest.replay_after + 1 if manifest else int(next(iter(listing.positions), 0))
    known = max(manifest.last_seen, manifest.replay_after) if manifest else first - 1
    tip = max(known, listing.highest) + 1
    gaps = (_still_missing(shard, low, high) for low, high in listing.gaps(first, tip))
    count, nbytes = listing.above(first)
    return WalLook(tip, count, nbytes, tuple(gap for gap in gaps if gap), len(listing.strays))


def _still_missing(shard: Shard, low: int, high: int) -> range:
    """The gap without entries that a running writer has put since the LIST; it puts one after the other."""
    while low <= high and has_entry(shard, low):
        low += 1
    return range(low, high + 1)


def _sstable(manifest: Manifest, number: int) -> dict[str, Any]:
    sstable = manifest.sstables[number]
    return {
        "generation": sstable.generation,
        "path": sstable.path,
        "rows": sstable.physical_rows,
        "in_memory_bytes": sstable.in_memory_bytes,
    }
