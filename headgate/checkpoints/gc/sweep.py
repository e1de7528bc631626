"""Deleting what a collection has found, after all that must come first: sync, archive, the race with makers."""

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
    """All of it, once what makes it garbage is on disk (R21); nothing where a file of rows of the base is lost."""
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
    """The garbage without the records that should be archived first and could not be; why is told in `kept`."""
    going = {one.key for one in found if one.kind == "commit record"}
    staying: set[str] = set()
    for stream, objects in logs:
        archive = LogArchive(home.records, stream, home.uri)
        records, _ = by_number(objects)
        batches = {sequence: one.modified for sequence, one in records.items() if one.key in going}
        try:
            # Asked for now and not when the log was listed: the archive may have begun since.
            if not batches or not archive.has_begun():
                continue
            done = archive.keep(batches)
        except HeadgateError as error:
            done = set()
            kept.append(f"records of stream {stream!r}; archiving them failed: {error}")
        staying |= {records[sequence].key for sequence in batches.keys() - done}
    return [one for one in found if one.key not in staying]


def won(found: Sequence[Garbage]) -> list[Garbage]:
    """The garbage without that whose maker was quicker: it may commit it at any time."""
    slots = {one.slot: one.store for one in found if one.slot is not None}
    ours = {slot for slot, store in slots.items() if wins(store, slot, "collector")}
    return [one for one in found if one.slot is None or one.slot in ours]


def delete_found(home: TableHome, found: Sequence[Garbage], pool: Pool, progress: Callable[[int, int], None]) -> None:
    """Manifests last, oldest first, of each shard after native's hint was written (R7); the rest in no order."""
    done = 0
    ordered = [one for one in found if one.kind == "manifest"]
    free = [one for one in found if one.kind != "manifest"]
    for _ in pool.map(_delete_one, free):
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
    """A writer that slept before its hint names a claim that is still there, and below a gap: native, which follows the
    hint and not the list, would take that for the latest manifest. The hint can be fenced by nobody; this ends it.
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
