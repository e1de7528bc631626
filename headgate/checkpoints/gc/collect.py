"""Garbage collection: delete what no reader, no checkpoint, no fence and no recovery can need any more.

Promises:
1. What a live or pinned reader, the fence of a stalled writer, committer or claimer, or recovery needs stays; and what
   somebody who sleeps may still come to name (R20). However long anybody sleeps, this collection included.
2. A crash after any delete leaves a table that works, and the next collection goes on.
3. Without `apply` nothing is deleted or written.
4. Records of a stream that has an archive are archived before they are deleted (see `checkpoints.log.archive`). An
   archive itself
   is never garbage.

5. Where an SSTable that a manifest names, or a file of the base, is missing, no WAL entry and no SSTable that it may
   stand for goes, and `kept` says so.

Rules of what may go are in `garbage`. `min_age` is for readers without a pin (R12); nothing else depends on it. Ages
are the store's.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property, partial
from typing import Any
from uuid import UUID

from headgate import clock
from headgate.checkpoints.gc import rules as garbage
from headgate.checkpoints.gc.rules import ListedManifest
from headgate.checkpoints.jobs.durable import require_on_disk
from headgate.checkpoints.log.archive import LogArchive
from headgate.checkpoints.log.commit_log import CommitLog
from headgate.checkpoints.log.names import NUMBERED, list_streams
from headgate.checkpoints.log.pins import ConsumerPin, PinStore, StoredPin, needed_above, read_upto
from headgate.checkpoints.log.records import BatchRecord
from headgate.checkpoints.snapshots.checkpoint import TAG_PREFIX, CheckpointStore, StoredCheckpoint
from headgate.connectors.lance import slots as index_slots
from headgate.connectors.lance.base import versions as lance_versions
from headgate.connectors.lance.base.files import missing_files
from headgate.connectors.lance.base.marks import compacted_marks
from headgate.connectors.lance.datasets import open_dataset
from headgate.connectors.objects import ObjectInfo, ObjectStore
from headgate.connectors.objects.deletion import Kind, delete
from headgate.errors import AlreadyExists, DataLoss, HeadgateError, NotFound, StoreFull
from headgate.parallel import Pool
from headgate.retry import Retry
from headgate.shards import names
from headgate.shards.manifest.model import Manifest
from headgate.shards.outcomes import taken_by, wins
from headgate.shards.rows.sstable import sstable_key
from headgate.shards.shard import Shard, TableHome
from headgate.shards.wal.appender import read_header
from headgate.steps import step

MIN_AGE = timedelta(hours=1)
"""So long may a reader without a pin read what it has begun with."""

COLLECT_STEPS = ("now", "list", "manifests", "pins", "choose", "sync", "archive", "delete")
"""Where `collect` pauses, in order; without `apply` not at the last three."""


@dataclass(frozen=True)
class Garbage:
    """One object that may go."""

    kind: Kind
    store: ObjectStore = field(repr=False)
    key: str
    nbytes: int
    why: str
    slot: str | None = None
    """The outcome that must be won from its maker before it goes, in the same store (R20)."""


@dataclass(frozen=True)
class Collection:
    """What a collection found, and whether it is gone."""

    found: tuple[Garbage, ...]
    applied: bool
    kept: tuple[str, ...] = ()
    """What could not be judged, and why; it stays."""

    @property
    def nbytes(self) -> int:
        """Bytes of all of it."""
        return sum(one.nbytes for one in self.found)


def collect(
    home: TableHome,
    shard_ids: Iterable[UUID],
    *,
    min_age: timedelta = MIN_AGE,
    apply: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Collection:
    """Find garbage, and with `apply` delete it:

    1. now: what the store's clock says (without `apply` this machine's).
    2. list the candidates: WAL entries, SSTables, manifests, records of the logs, tags, index folders, strays.
    3. after that, read the manifests: what they do not name, and can no longer come to name, may go (R20).
    4. after that, read who holds it: checkpoints, consumers of the logs (R15). A checkpoint that is put later reads
       the manifests again, and does not count if they are not those of 3 in what it names. A tag is put after its
       record: one that was listed in 2 and has no record now was given up or dropped.
    5. choose by the rules of `garbage`. Of WAL entries and commit records the header is read: barriers and open
       records stay (R5).
    6. sync what makes it garbage: the base, manifests and SSTables (R21).
    7. archive the commit records that go, where their stream has an archive.
    8. delete; index segments after a race with their maker, manifests oldest first, after native's hint was written
       (R7). Expired checkpoints go before what they held, which the next collection finds.

    A shard or log that cannot be read is kept whole and named in `kept`, and so are records that cannot be archived; an
    unreadable checkpoint or pin of a consumer raises Corrupt, because it may hold anything.
    """
    step("now")
    now = store_time(home) if apply else clock.now()
    before = now - min_age
    step("list")
    shards = [_listed(Shard(home, shard_id)) for shard_id in sorted(shard_ids)]
    streams = list_streams(home.records)
    logs = [(stream, _listed_log(home, stream)) for stream in streams]
    indexes, tags = list(home.store.list("_indices/")), list(home.store.list("_refs/tags/"))
    slots = list(home.store.list(index_slots.ROOT))
    step("manifests")
    base = _Base(home)
    live: dict[UUID, list[Manifest] | HeadgateError] = {shard.id: _live(shard, before) for shard, _ in shards}
    step("pins")
    checkpoints = CheckpointStore(home.records, home.uri).list()
    pins = [one for one in checkpoints if not one.expired(now)]
    stored = PinStore(home.records, home.uri).list()
    consumers = [one.pin for one in stored if not one.expired(now)]
    found: list[Garbage] = []
    kept: list[str] = []
    step("choose")
    with Pool("gc") as pool:
        parts = [
            (
                f"shard {shard.id}",
                _shard(shard, objects, live[shard.id], pins, consumers, before, pool, base, kept),
            )
            for shard, objects in shards
        ]
        parts += [
            (f"stream {stream!r}", _log(home, stream, listed, needed_above(consumers, stream), before, pool))
            for stream, listed in logs
        ]
        parts += [("indexes of the base", _indexes(home, indexes, slots, before))]
        for what, part in parts:
            try:
                found += list(part)
            except HeadgateError as error:
                kept.append(f"{what}: {error}")
        found += [*_checkpoints(home, checkpoints, tags, now, before), *_consumers(home, stored)]
        found += _temporaries(home, before)
        if apply:
            step("sync")
            found = _relied_on(home, found, kept)
            step("archive")
            found = _archived(home, logs, found, kept)
            step("delete")
            found = _won(found)
            _delete(home, found, pool, progress)
            _heal_hints(shard for shard, objects in shards if _has_gap(objects))
    return Collection(tuple(found), apply, tuple(kept))


# -- candidates ----------------------------------------------------------------


def store_time(home: TableHome) -> datetime:
    """A small object tells the store's time. Where the store is full, so that there is no room for one, the newest
    object of the table does: what the store has stamped is not later than its now, and an earlier now keeps more.
    (Files that were copied with their times may be later than any clock; then this machine's counts.)
    """
    try:
        return _time_of_a_new_object(home)
    except StoreFull:
        stamped = [info.modified for info in Retry().run(partial(_list, home.store, ""))]
        if not stamped:
            raise
        return min(max(stamped), clock.now())


def _time_of_a_new_object(home: TableHome) -> datetime:
    key, text = f"clock/{uuid.uuid4().hex}", b"The store's clock is read from this; garbage otherwise.\n"
    # Nobody else knows the name, so an object there is ours, and the response to its put was lost.
    with suppress(AlreadyExists):
        Retry().run(lambda: home.records.put_if_absent(key, text))
    try:
        return Retry().run(lambda: home.records.head(key)).modified
    finally:
        delete(home.records, key, "probe")


def _listed(shard: Shard) -> tuple[Shard, list[tuple[ObjectStore, ObjectInfo]]]:
    folder = names.shard_folder(shard.id) + "/"
    return shard, [(store, info) for store in shard.home.places for info in Retry().run(partial(_list, store, folder))]


def _list(store: ObjectStore, folder: str) -> list[ObjectInfo]:
    return list(store.list(folder))


def _listed_log(home: TableHome, stream: str) -> list[ObjectInfo]:
    return Retry().run(partial(_list, home.records, CommitLog(home.records, stream, home.uri).folder + "/"))


# -- one shard -----------------------------------------------------------------


class _Base:
    """The base as this collection finds it: looked at once, and only if something would go because the base has it."""

    def __init__(self, home: TableHome) -> None:
        self.home = home

    @cached_property
    def fault(self) -> str | None:
        """Why nothing may go because the base has it; None: the base is whole. Raises Transient."""
        try:
            missing = missing_files(self.home.store, "", self._dataset)
        except HeadgateError as error:
            return f"the base cannot be read ({error.what})"
        return f"{missing[0]} of the base is missing" if missing else None

    @cached_property
    def marks(self) -> Mapping[UUID, int]:
        """Per shard the generation up to which the base has its SSTables."""
        return compacted_marks(self.home.store, self._dataset)

    @cached_property
    def _dataset(self) -> Any:
        return open_dataset(self.home.store)


def _shard(
    shard: Shard,
    objects: Sequence[tuple[ObjectStore, ObjectInfo]],
    live: Sequence[Manifest] | HeadgateError,
    pins: Sequence[StoredCheckpoint],
    consumers: Sequence[ConsumerPin],
    before: datetime,
    pool: Pool,
    base: _Base,
    kept: list[str],
) -> Iterator[Garbage]:
    if isinstance(live, HeadgateError):
        raise live
    folder = names.shard_folder(shard.id) + "/"
    wal: dict[int, list[tuple[ObjectStore, ObjectInfo]]] = defaultdict(list)
    """An entry may lie in two places: where the WAL is, and where it was before its table had that WAL store."""
    manifests: dict[int, ObjectInfo] = {}
    sstables: dict[str, list[ObjectInfo]] = defaultdict(list)
    for store, info in objects:
        part, _, rest = info.key.removeprefix(folder).partition("/")
        position, version = names.wal_position(info.key), names.manifest_version(info.key)
        if part == "wal":
            if position is not None:
                wal[position].append((store, info))
            elif info.modified <= before:
                yield Garbage("stray", store, info.key, info.size, "no entry has such a name")
        elif part == "manifest":
            if version is not None:
                manifests[version] = info
            elif info.key != names.version_hint_key(shard.id) and info.modified <= before:
                yield Garbage("stray", store, info.key, info.size, "no manifest has such a name")
        elif rest:
            sstables[part].append(info)
    pinned = [pin for one in pins if (pin := one.checkpoint.shards.get(shard.id)) is not None]
    upto, unknown = read_upto(consumers, shard.id)
    covered = garbage.collectable_wal(wal, live, pinned, upto)
    newest = {path: max(info.modified for info in infos) for path, infos in sstables.items()}
    unnamed = garbage.collectable_sstables(newest, live, pinned, before)
    if (covered or unnamed) and (fault := base.fault or _missing(shard, live[-1], base)) is not None:
        kept.append(f"WAL and SSTables of shard {shard.id}: {fault}; run `headgate fsck`")
        covered, unnamed = [], []
    for position, stays in zip(covered, pool.map(partial(_stays, shard, unknown), covered), strict=True):
        if not stays:
            why = f"position {position} is in SSTables, up to {live[-1].replay_after}"
            for store, info in wal[position]:
                yield Garbage("wal entry", store, info.key, info.size, why)
    for path in unnamed:
        for info in sstables[path]:
            yield Garbage("sstable", shard.home.store, info.key, info.size, "no manifest and no checkpoint names it")
    kept += [
        f"{shard.home.uri}/{folder}{path}: nobody names an SSTable like this"
        for path in sstables
        if names.sstable_name(path) is None and not any(path == one.path for held in live for one in held.sstables)
    ]
    listed = [ListedManifest(version, info.modified) for version, info in manifests.items()]
    replaced = pool.map(partial(_replaced, shard), garbage.collectable_manifests(listed, before))
    for version in garbage.without_claims(one for one in replaced if one is not None):
        info, why = manifests[version], f"version {version} was replaced, the latest is {live[-1].version}"
        yield Garbage("manifest", shard.home.store, info.key, info.size, why)


def _live(shard: Shard, before: datetime) -> list[Manifest] | HeadgateError:
    """Listed anew, after the candidates; rising. Empty on a shard that nobody ever claimed. An error is returned."""
    folder = names.manifest_folder(shard.id) + "/"
    try:
        infos = Retry().run(partial(_list, shard.home.store, folder))
        listed = [
            ListedManifest(version, info.modified)
            for info in infos
            if (version := names.manifest_version(info.key)) is not None
        ]
        return [shard.manifests.read(version) for version in garbage.live_versions(listed, before)]
    except HeadgateError as error:
        return error


def _missing(shard: Shard, latest: Manifest, base: _Base) -> str | None:
    """What of the SSTables that stand for this shard's WAL is not there; None: all is."""
    mark = base.marks.get(shard.id, 0)
    for sstable in latest.sstables:
        if sstable.generation <= mark:
            continue  # readers take these rows from the base
        key = sstable_key(shard, sstable.path)
        try:
            missing = missing_files(shard.home.store, key, open_dataset(shard.home.store, key))
        except HeadgateError as error:
            return f"SSTable {sstable.path}, which the manifest names, cannot be read ({error.what})"
        if missing:
            return f"{missing[0]} of SSTable {sstable.path}, which the manifest names, is missing"
    return None


def _replaced(shard: Shard, version: int) -> Manifest | None:
    """An old manifest; None where it cannot be read: it stays, or is gone already."""
    with suppress(HeadgateError):
        return shard.manifests.read(version)
    return None


def _stays(shard: Shard, unread: bool, position: int) -> bool:
    """A barrier does, and in a shard that a consumer has never read, what a stream wrote. True also where it cannot be
    told: a damaged entry is left for people to look at.
    """
    try:
        header = Retry().run(lambda: read_header(shard, position))
        return header.barrier or (unread and header.tags.attempt_id is not None)
    except NotFound:
        return False  # another collection was quicker
    except HeadgateError:
        return True


# -- logs, checkpoints, the base -------------------------------------------------


def _log(
    home: TableHome,
    stream: str,
    objects: Sequence[ObjectInfo],
    needed: int | None,
    before: datetime,
    pool: Pool,
) -> Iterator[Garbage]:
    log = CommitLog(home.records, stream, home.uri)
    listed: dict[str, dict[int, ObjectInfo]] = {"log": {}, "folds": {}}
    for info in objects:
        if match := NUMBERED.fullmatch(info.key.removeprefix(log.folder + "/")):
            listed[match[1]][int(match[2])] = info
    folds = {sequence: info.modified for sequence, info in listed["folds"].items()}
    records, old_folds = garbage.collectable_records(listed["log"], folds, before, needed)
    archive = LogArchive(home.records, stream, home.uri)
    archived = any(info.key == archive.marker for info in objects)
    why = f"a fold of stream {stream!r} has it" + (", and it is archived before" if archived else "")
    last = garbage.last_batch(listed["log"], lambda sequence: not _is_kept(log, sequence)) if records else None
    for sequence, stays in zip(records, pool.map(partial(_is_kept, log), records), strict=True):
        if not stays and sequence != last:
            info = listed["log"][sequence]
            yield Garbage("commit record", home.records, info.key, info.size, why)
    for sequence in old_folds:
        info = listed["folds"][sequence]
        yield Garbage("fold", home.records, info.key, info.size, f"a later fold of stream {stream!r} has it")


def _is_kept(log: CommitLog, sequence: int) -> bool:
    """Only batches go: an open record fences (R5), drivers come to a schema record (R22), people read a rewind."""
    try:
        return not isinstance(log.record(sequence), BatchRecord)
    except NotFound:
        return False
    except HeadgateError:
        return True


def _relied_on(home: TableHome, found: list[Garbage], kept: list[str]) -> list[Garbage]:
    """All of it, once what makes it garbage is on disk (R21); nothing where a file of rows of the base is lost."""
    try:
        if found:
            require_on_disk(home, _shards_of(found))
        return found
    except DataLoss as error:
        kept.append(f"everything: {error}")
        return []


def _archived(
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
        numbered = ((NUMBERED.fullmatch(one.key.removeprefix(archive.log.folder + "/")), one) for one in objects)
        records = {int(match[2]): one for match, one in numbered if match and match[1] == "log"}
        batches = {sequence: one.modified for sequence, one in records.items() if one.key in going}
        try:
            # Asked for now and not when the log was listed: the archive may have begun since.
            if not batches or not archive.has_begun():
                continue
            done = archive.keep(batches)
        except HeadgateError as error:
            done = set()
            kept.append(f"records of stream {stream!r}, which could not be archived: {error}")
        staying |= {records[sequence].key for sequence in batches.keys() - done}
    return [one for one in found if one.key not in staying]


def _checkpoints(
    home: TableHome, stored: Sequence[StoredCheckpoint], tags: Sequence[ObjectInfo], now: datetime, before: datetime
) -> Iterator[Garbage]:
    for one in stored:
        if one.expired(now):
            why = f"checkpoint {one.checkpoint.name!r} expired at {one.expires_at:%Y-%m-%d %H:%M:%S}"
            yield Garbage("checkpoint", home.records, one.key, 0, why)
    kept = {one.checkpoint.tag for one in stored if not one.expired(now)}
    for info in tags:
        tag = info.key.removeprefix("_refs/tags/").removesuffix(".json")
        if tag.startswith(TAG_PREFIX) and tag not in kept and info.modified <= before:
            yield Garbage("tag", home.store, info.key, info.size, "its checkpoint was dropped or never finished")


def _consumers(home: TableHome, stored: Sequence[StoredPin]) -> Iterator[Garbage]:
    """Only what a newer pin has replaced. The newest stays, also expired, when it holds nothing: its number would be
    used again, and a collection that slept would take the new pin for the old one (R20).
    """
    for one in stored:
        for key in one.older:
            yield Garbage("consumer", home.records, key, 0, f"consumer {one.pin.consumer!r} has a newer pin")


def _indexes(
    home: TableHome, objects: Sequence[ObjectInfo], slots: Sequence[ObjectInfo], before: datetime
) -> Iterator[Garbage]:
    """A segment that no version uses goes only if it was built by us: then its maker can be stopped. What others left
    is for Lance's own clean-up.
    """
    folders: dict[str, list[ObjectInfo]] = defaultdict(list)
    for info in objects:
        folders[info.key.removeprefix("_indices/").partition("/")[0]].append(info)
    idle = {name for name, infos in folders.items() if max(info.modified for info in infos) <= before}
    staged = {
        name: [one for one in infos if _is_staged(one) and one.modified <= before] for name, infos in folders.items()
    }
    intended = {name for info in slots if (name := index_slots.intended(info.key))}
    if not any(staged.values()) and not slots:
        return
    used = lance_versions.indexes_in_use(home.store)
    for info in slots:
        if index_slots.segment_of(info.key) in used and info.modified <= before:
            yield Garbage("index", home.store, info.key, info.size, "the index it was for is committed")
    for name, infos in sorted(folders.items()):
        if name in used:
            for info in staged[name]:
                yield Garbage("index", home.store, info.key, info.size, f"index {name} is finished without it")
        elif name in idle & intended and taken_by(home.store, slot := index_slots.outcome(name)) != "maker":
            why = f"no version of the base uses index {name}"
            for info in infos:
                yield Garbage("index", home.store, info.key, info.size, why, slot)


def _won(found: Sequence[Garbage]) -> list[Garbage]:
    """The garbage without that whose maker was quicker: it may commit it at any time."""
    slots = {one.slot: one.store for one in found if one.slot is not None}
    won = {slot for slot, store in slots.items() if wins(store, slot, "collector")}
    return [one for one in found if one.slot is None or one.slot in won]


def _is_staged(info: ObjectInfo) -> bool:
    """Whether it is where a build puts what an index is made of: once that is committed, nobody looks there."""
    return info.key.count("/") > 2


def _temporaries(home: TableHome, before: datetime) -> Iterator[Garbage]:
    for store in home.places:
        for info in store.temporaries():
            if info.modified <= before:
                yield Garbage("temporary", store, info.key, info.size, "a put died half-way")


# -- deleting --------------------------------------------------------------------


def _shards_of(found: Iterable[Garbage]) -> set[UUID]:
    """The shards that lose something."""
    return {UUID(one.key.split("/")[1]) for one in found if one.key.startswith("_mem_wal/")}


def _delete(home: TableHome, found: Sequence[Garbage], pool: Pool, progress: Callable[[int, int], None]) -> None:
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


def _has_gap(objects: Sequence[tuple[ObjectStore, ObjectInfo]]) -> bool:
    versions = {version for _, info in objects if (version := names.manifest_version(info.key)) is not None}
    return bool(versions) and len(versions) <= max(versions) - min(versions)


def _heal_hints(shards: Iterable[Shard]) -> None:
    """A writer that slept before its hint names a claim that is still there, and below a gap: native, which follows the
    hint and not the list, would take that for the latest manifest. The hint can be fenced by nobody; this ends it.
    """
    for shard in shards:
        with suppress(HeadgateError):
            shard.manifests.write_hint()


def _delete_one(one: Garbage) -> None:
    delete(one.store, one.key, one.kind)
