"""fsck of table checkpoints: each record, and that everything it names still exists. Reads only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from uuid import UUID

from headgate import clock
from headgate.checkpoints.fsck.findings import Finding, finding
from headgate.checkpoints.fsck.log import Named
from headgate.checkpoints.snapshots import checkpoint as table_checkpoint
from headgate.checkpoints.snapshots.checkpoint import PinnedShard, StoredCheckpoint, TableCheckpoint, is_key_of
from headgate.connectors.lance import health as dataset_health
from headgate.connectors.objects import ObjectInfo
from headgate.errors import Corrupt, HeadgateError, InvalidInput, NotFound
from headgate.parallel import Pool, in_order
from headgate.shards.rows.sstable import sstable_key
from headgate.shards.shard import Shard, TableHome
from headgate.shards.wal.listing import WalListing


@dataclass(frozen=True)
class PinLook:
    live: tuple[TableCheckpoint, ...]
    """Checkpoints that have not expired."""
    named: Mapping[str, Named]
    """Per stream the highest record that a checkpoint names, expired or not."""
    findings: tuple[Finding, ...]
    objects: int


def check_pins(home: TableHome, under: str, pool: Pool) -> PinLook:
    """Check every record (bytes, name, table), and the base version and tag of each that has not expired."""
    infos = list(home.records.list(table_checkpoint.ROOT))
    found: list[Finding] = []
    live: list[TableCheckpoint] = []
    named: dict[str, Named] = {}
    for info, read in in_order(pool, partial(_read, home), infos):
        place = under + info.key
        if isinstance(read, StoredCheckpoint):
            one = read.checkpoint
            if not is_key_of(info.key, one) or one.table_id != home.table_id:
                what = f"Its content is checkpoint {one.name!r} of table {one.table_id}."
                found.append(finding("checkpoint-damaged", place, what))
                continue
            for stream, fold in one.streams.items():
                named[stream] = max((fold.sequence, f"checkpoint {one.name!r}"), named.get(stream, (0, "")))
            if not read.expired(clock.now()):
                live.append(one)
                found += _check_base(home, one, place)
        elif isinstance(read, InvalidInput):
            found.append(finding("record-newer", place, read.what))
        elif not isinstance(read, NotFound):
            found.append(finding("checkpoint-damaged", place, read.what))
    return PinLook(tuple(live), named, tuple(found), len(infos))


def pins_of(shard_id: UUID, checkpoints: Sequence[TableCheckpoint]) -> Mapping[str, PinnedShard]:
    """What each checkpoint pins of a shard, by name."""
    return {one.name: pin for one in checkpoints if (pin := one.shards.get(shard_id)) is not None}


def judge_pins(shard: Shard, pins: Mapping[str, PinnedShard], listing: WalListing) -> Iterator[Finding]:
    """Check that the SSTables and the WAL tail that checkpoints pin in one shard exist."""
    for name, pin in pins.items():
        for low, high in listing.gaps(pin.manifest.replay_after + 1, pin.end)[:1]:
            what = f"Checkpoint {name!r} needs entries {low} to {high}, which are missing."
            yield finding("checkpoint-broken", f"{shard.wal_key(low)} (position {low})", what)
        for sstable in pin.manifest.sstables:
            key = sstable_key(shard, sstable.path)
            if not shard.home.store.any_below(key + "/"):
                yield finding("checkpoint-broken", key, f"Checkpoint {name!r} needs this SSTable, which is missing.")


def _read(home: TableHome, info: ObjectInfo) -> tuple[ObjectInfo, StoredCheckpoint | HeadgateError]:
    try:
        data = home.records.get(info.key)
        return info, StoredCheckpoint(table_checkpoint.decode(data), info.modified, info.key)
    except (Corrupt, InvalidInput, NotFound) as error:
        return info, error


def _check_base(home: TableHome, one: TableCheckpoint, place: str) -> Iterator[Finding]:
    health = dataset_health.look_over(home.store, version=one.base_version)
    if health.fault is not None:
        what = f"Its base, version {one.base_version}, cannot be read: {health.fault}"
        yield finding("checkpoint-broken", place, what)
    try:
        home.store.head(f"_refs/tags/{one.tag}.json")
    except NotFound:
        yield finding("checkpoint-unpinned", place, f"The Lance tag {one.tag} that holds its base is missing.")
