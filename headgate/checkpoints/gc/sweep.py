"""Deletes what a collection has found, after everything that must come first: sync, archive, the race with makers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from uuid import UUID

from headgate.checkpoints.gc.candidates import Placed
from headgate.checkpoints.gc.report import Garbage
from headgate.checkpoints.jobs.durable import require_on_disk
from headgate.checkpoints.log.archive.archive import LogArchive
from headgate.checkpoints.log.names import by_number
from headgate.connectors.objects import ObjectInfo
from headgate.connectors.objects.deletion import delete
from headgate.errors import DataLoss, HeadgateError
from headgate.parallel import Pool
from headgate.shards import names
from headgate.shards.outcomes import wins
from headgate.shards.shard import Shard, TableHome


def relied_on(home: TableHome, found: list[Garbage], kept: list[str]) -> list[Garbage]:
    """All of it, once everything that makes it garbage is synced (R21); nothing if the base has lost a file of rows."""
    try:
        if found:
            require_on_disk(home, _shards_of(found))
        return found
    except DataLoss as error:
        kept.append(f"everything: {error}")
        return []


def archived(
    home: TableHome,
    logs: Sequence[tuple[str, Sequence[ObjectInfo]]],
    found: Sequence[Garbage],
    kept: list[str],
) -> list[Garbage]:
    """The garbage without the records that must be archived first but could not be; `kept` says why."""
    going = {one.key for one in found if one.kind == "commit record"}
    staying: set[str] = set()
    for stream, objects in logs:
        archive = LogArchive(home.records, stream, home.uri)
        records, _ = by_number(objects)
        batches = {sequence: one.modified for sequence, one in records.items() if one.key in going}
        try:
            # Asked now and not when the log was listed: the archive may have begun since.
            if not batches or not archive.has_begun():
                continue
            done = archive.keep(batches)
        except HeadgateError as error:
            done = set()
            kept.append(f"records of stream {stream!r}; archiving them failed: {error}")
        staying |= {records[sequence].key for sequence in batches.keys() - done}
    return [one for one in found if one.key not in staying]


def won(found: Sequence[Garbage]) -> list[Garbage]:
    """The garbage without what its maker won: the maker may commit that at any time."""
    slots = {one.slot: one.store for one in found if one.slot is not None}
    ours = {slot for slot, store in slots.items() if wins(store, slot, "collector")}
    return [one for one in found if one.slot is None or one.slot in ours]


def delete_found(home: TableHome, found: Sequence[Garbage], pool: Pool, progress: Callable[[int, int], None]) -> None:
    """Delete everything. Checkpoints go first: a record never names what is gone. Per shard, manifests go last and
    oldest first, after native's hint was written (R7); the rest in no order.
    """
    done = 0
    ordered = [one for one in found if one.kind == "manifest"]
    first = [one for one in found if one.kind == "checkpoint"]
    free = [one for one in found if one.kind not in ("checkpoint", "manifest")]
    for some in (first, free):
        for _ in pool.map(_delete_one, some):
            done += 1
            progress(done, len(found))
    hinted: dict[str, bool] = {}
    for one in ordered:
        folder = one.key.rpartition("/")[0]
        if folder not in hinted:
            shard_id = UUID(one.key.split("/")[1])
            hinted[folder] = Shard(home, shard_id).manifests.write_hint()
        if hinted[folder]:
            _delete_one(one)
        done += 1
        progress(done, len(found))


def heal_hints(shards: Iterable[tuple[Shard, Sequence[Placed]]]) -> None:
    """Rewrite native's hint in shards whose manifests have a gap. A writer that slept before writing its hint names a
    claim that still exists, but below the gap; native follows the hint, not the list, and would take that claim for the
    latest manifest. Nothing can fence the hint; this repairs it.
    """
    for shard, objects in shards:
        with suppress(HeadgateError):
            if _has_gap(objects):
                shard.manifests.write_hint()


def _has_gap(objects: Sequence[Placed]) -> bool:
    versions = {version for _, info in objects if (version := names.manifest_version(info.key)) is not None}
    return bool(versions) and len(versions) <= max(versions) - min(versions)


def _shards_of(found: Iterable[Garbage]) -> set[UUID]:
    """The shards that lose something."""
    return {UUID(one.key.split("/")[1]) for one in found if one.key.startswith("_mem_wal/")}


def _delete_one(one: Garbage) -> None:
    delete(one.store, one.key, one.kind)
