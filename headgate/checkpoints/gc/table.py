"""The garbage of a table outside its shards: records of logs, checkpoints, pins, tags, index segments, temporary
objects.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import partial

from headgate.checkpoints.gc.candidates import Candidates, Holders
from headgate.checkpoints.gc.report import Garbage
from headgate.checkpoints.log.archive.archive import LogArchive
from headgate.checkpoints.log.commit_log import CommitLog
from headgate.checkpoints.log.decisions import collectable_records, last_batch
from headgate.checkpoints.log.names import by_number
from headgate.checkpoints.log.pins import needed_above
from headgate.checkpoints.log.records import BatchRecord
from headgate.checkpoints.snapshots.checkpoint import TAG_PREFIX
from headgate.connectors.lance import slots as index_slots
from headgate.connectors.lance.base import versions as lance_versions
from headgate.connectors.objects import ObjectInfo
from headgate.errors import HeadgateError, NotFound
from headgate.parallel import Pool
from headgate.shards.outcomes import taken_by
from headgate.shards.shard import TableHome


def log_garbage(
    home: TableHome,
    stream: str,
    objects: Sequence[ObjectInfo],
    held: Holders,
    before: datetime,
    pool: Pool,
) -> Iterator[Garbage]:
    log = CommitLog(home.records, stream, home.uri)
    records, folds = by_number(objects)
    taken = {sequence: info.modified for sequence, info in folds.items()}
    old, old_folds = collectable_records(records, taken, before, needed_above(held.readers, stream))
    archive = LogArchive(home.records, stream, home.uri)
    archived = any(info.key == archive.marker for info in objects)
    why = f"covered by a fold of stream {stream!r}" + (", and it will be archived first" if archived else "")
    last = last_batch(records, lambda sequence: not _is_kept(log, sequence)) if old else None
    for sequence, stays in zip(old, pool.map(partial(_is_kept, log), old), strict=True):
        if not stays and sequence != last:
            info = records[sequence]
            yield Garbage("commit record", home.records, info.key, info.size, why)
    for sequence in old_folds:
        info = folds[sequence]
        yield Garbage("fold", home.records, info.key, info.size, f"covered by a later fold of stream {stream!r}")


def _is_kept(log: CommitLog, sequence: int) -> bool:
    """Only batches go: an open record fences (R5), drivers must meet schema records (R22), people read rewinds."""
    try:
        return not isinstance(log.record(sequence), BatchRecord)
    except NotFound:
        return False
    except HeadgateError:
        return True


def checkpoint_garbage(
    home: TableHome, held: Holders, tags: Sequence[ObjectInfo], before: datetime
) -> Iterator[Garbage]:
    """Expired checkpoints, and tags that no checkpoint holds."""
    for one in held.checkpoints:
        if one.expired(held.now):
            why = f"checkpoint {one.checkpoint.name!r} expired at {one.expires_at:%Y-%m-%d %H:%M:%S}"
            yield Garbage("checkpoint", home.records, one.key, 0, why)
    kept = {one.checkpoint.tag for one in held.pins}
    for info in tags:
        tag = info.key.removeprefix("_refs/tags/").removesuffix(".json")
        if tag.startswith(TAG_PREFIX) and tag not in kept and info.modified <= before:
            yield Garbage("tag", home.store, info.key, info.size, "its checkpoint was dropped or never finished")


def consumer_garbage(home: TableHome, held: Holders) -> Iterator[Garbage]:
    """Only pins that a newer pin has replaced. The newest stays even after it expired: otherwise its number would be
    used again, and a collection that slept would take the new pin for the old one (R20).
    """
    for one in held.consumers:
        for key in one.older:
            yield Garbage("consumer", home.records, key, 0, f"consumer {one.pin.consumer!r} has a newer pin")


def index_garbage(home: TableHome, listed: Candidates, before: datetime) -> Iterator[Garbage]:
    """A segment that no version uses goes only if headgate built it: only then can its maker be stopped. Segments of
    others are for Lance's own clean-up.
    """
    folders: dict[str, list[ObjectInfo]] = defaultdict(list)
    for info in listed.indexes:
        folders[info.key.removeprefix("_indices/").partition("/")[0]].append(info)
    idle = {name for name, infos in folders.items() if max(info.modified for info in infos) <= before}
    staged = {
        name: [one for one in infos if _is_staged(one) and one.modified <= before] for name, infos in folders.items()
    }
    intended = {name for info in listed.slots if (name := index_slots.intended(info.key))}
    if not any(staged.values()) and not listed.slots:
        return
    used = lance_versions.indexes_in_use(home.store)
    for info in listed.slots:
        if index_slots.segment_of(info.key) in used and info.modified <= before:
            yield Garbage("index", home.store, info.key, info.size, "its index is committed")
    for name, infos in sorted(folders.items()):
        if name in used:
            for info in staged[name]:
                yield Garbage("index", home.store, info.key, info.size, f"index {name} was finished without it")
        elif name in idle & intended and taken_by(home.store, slot := index_slots.outcome(name)) != "maker":
            why = f"no version of the base uses index {name}"
            for info in infos:
                yield Garbage("index", home.store, info.key, info.size, why, slot)


def _is_staged(info: ObjectInfo) -> bool:
    """True if it is a build's staging file: once the index is committed, nobody reads it."""
    return info.key.count("/") > 2


def temporary_garbage(home: TableHome, before: datetime) -> Iterator[Garbage]:
    for store in home.places:
        for info in store.temporaries():
            if info.modified <= before:
                yield Garbage("temporary", store, info.key, info.size, "left by an interrupted put")
