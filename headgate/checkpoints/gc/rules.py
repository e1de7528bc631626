"""What garbage collection may delete. Pure: no store, no clock.

Put-if-absent fences only while the refusing object exists, so whatever is deleted frees a slot. Hence these are never
garbage: a fence barrier, an open record, and the tip of a log (R5); a schema record and the last batch record (R22).
`checkpoints.log.decisions` decides about records of a log.

The latest manifest, read after the candidates were listed, decides (R20): an SSTable is deleted when no flush can
commit it any more, however long it sleeps. No clock is involved.

Files that could still be read are kept for `min_age` after they became unreferenced (R12), for readers without a pin:
`before` is the store's time minus that age. A manifest is live while a reader may use it: the latest one, and each that
was the latest at any time after `before`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from headgate.checkpoints.snapshots.checkpoint import PinnedShard
from headgate.shards.manifest.model import Manifest
from headgate.shards.names import sstable_name


@dataclass(frozen=True, slots=True)
class ListedManifest:
    """A manifest version as LIST shows it."""

    version: int
    modified: datetime


def live_versions(listed: Iterable[ListedManifest], before: datetime) -> list[int]:
    """Versions that a reader may use: the latest, and those that a later one replaced only after `before`."""
    rising = sorted(listed, key=lambda one: one.version)
    replaced = [later.modified for later in rising[1:]]
    return [one.version for one, at in zip(rising, replaced, strict=False) if at > before] + [
        one.version for one in rising[-1:]
    ]


def collectable_manifests(listed: Iterable[ListedManifest], before: datetime) -> list[int]:
    """An oldest-first prefix that no reader can use any more (R7); never the latest."""
    rising = sorted(listed, key=lambda one: one.version)
    prefix = []
    for one, later in pairwise(rising):
        if one.modified > before or later.modified > before:
            break
        prefix.append(one.version)
    return prefix


def without_claims(manifests: Iterable[Manifest]) -> list[int]:
    """The replaced manifests that may go, by version: the lowest of each epoch, which claims it, stays like a barrier.

    Native Lance trusts a manifest that it could put. The slot that a stalled native writer will try is the next
    writer's claim.
    """
    rising = sorted(manifests, key=lambda one: one.version)
    return [later.version for one, later in pairwise(rising) if later.epoch == one.epoch]


def collectable_wal(
    positions: Iterable[int],
    live: Sequence[Manifest],
    pins: Iterable[PinnedShard] = (),
    read_upto: int | None = None,
) -> list[int]:
    """Positions whose entries may go UNLESS they are barriers, which only their headers say.

    SSTables cover them for every possible reader: they are at or below the lowest replay_after of all live manifests
    and pins, and at or below `read_upto`, up to which all consumers of the log have read (R15). Never the tip. Entry 0
    is a barrier on every shard, and replay_after 0 covers nothing.
    """
    rising = sorted(positions)
    if not live:
        return []
    read = [] if read_upto is None else [read_upto]
    floor = min([manifest.replay_after for manifest in live] + [pin.manifest.replay_after for pin in pins] + read)
    return [position for position in rising[:-1] if 0 < position <= floor]


def collectable_sstables(
    folders: Mapping[str, datetime], live: Sequence[Manifest], pins: Iterable[PinnedShard], before: datetime
) -> list[str]:
    """SSTable folders that no live manifest and no pin names, and that no manifest can name later (R20). `folders` has
    the time of each folder's newest object; `live` is ascending and was read after the folders were listed; the last
    one is the latest.
    """
    if not live:
        return []
    kept = {sstable.path for manifest in (*live, *(pin.manifest for pin in pins)) for sstable in manifest.sstables}
    return sorted(
        path
        for path, newest in folders.items()
        if path not in kept and newest <= before and is_out_of_reach(path, live[-1])
    )


def is_out_of_reach(path: str, latest: Manifest) -> bool:
    """True if no flush can commit this SSTable any more: its generation was committed (R9), or its claim has ended.

    False for a folder whose name says neither.
    """
    name = sstable_name(path)
    if name is None:
        return False
    return name.generation < latest.generation or (name.epoch is not None and name.epoch < latest.epoch)
