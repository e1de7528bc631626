"""Copying the shards of a checkpoint into a clone: SSTables, WAL tails and dead letters, byte for byte.

Promises:
1. Nothing is written at the source.
2. A complete object is not copied again: a copy appears completely or not at all, so its size tells.
3. Missing entries without rows at the start of a tail (barriers, dead attempts) are skipped, and the clone's
   replay_after is adjusted. Any other missing entry was flushed since (MovedOn), or it is DataLoss.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from uuid import UUID

import structlog

from headgate import parallel
from headgate.checkpoints.clone.mapping import (
    ShardPlan,
    dead_letter_id,
    lost_entry,
    lost_position,
    rowless,
)
from headgate.checkpoints.log.dead_letters import PREFIX, dead_letter_home
from headgate.checkpoints.log.records import Fold
from headgate.checkpoints.log.visibility import Visible
from headgate.connectors.objects import ObjectInfo, ObjectStore
from headgate.errors import AlreadyExists, DataLoss, NotFound
from headgate.shards import names
from headgate.shards.manifest.model import Manifest
from headgate.shards.shard import Shard, TableHome
from headgate.shards.wal.appender import read_header
from headgate.shards.wal.encoder import encode_barrier
from headgate.shards.wal.listing import entries

_log = structlog.get_logger("headgate.checkpoints")


LARGE = 16 << 20
"""Objects above this many bytes are large. A copy between stores or buckets holds one object in memory."""

LARGE_COPIERS = 2
"""Concurrent copies of large objects: an SSTable may be as large as a MemTable."""

Progress = Callable[[str, int, int], None]
"""Called with the current step, the number of finished items, and the total."""


def no_progress(what: str, done: int, total: int) -> None:
    """Report no progress."""


class MovedOn(Exception):
    """The source was flushed and collected since its checkpoint was taken: start again from a newer instant."""


@dataclass(frozen=True)
class _Copy:
    """One object to copy."""

    source: ObjectStore
    key: str
    target: ObjectStore
    new_key: str
    nbytes: int
    lost: Callable[[], Exception]
    """Returns the error to raise if the object is gone."""

    def run(self) -> None:
        try:
            self.source.copy(self.key, self.new_key, self.target)
        except NotFound as error:
            raise self.lost() from error


def copy_all(
    source: TableHome,
    target: TableHome,
    plans: Iterable[ShardPlan],
    streams: Mapping[str, Fold],
    progress: Progress = no_progress,
) -> list[ShardPlan]:
    """Copy the files of the shards and dead letters. Returns the plans without skipped entries.

    1. list both sides of every shard. If neither side has an entry, it is skipped at the start of a tail if it held no
       rows; otherwise MovedOn or DataLoss is raised before anything is copied.
    2. copy what the target lacks, in parallel, small objects first.

    Raises MovedOn, DataLoss, StoreError.
    """
    kept = parallel.each("clone", partial(_without_skipped, source, target, streams), plans)
    parts = parallel.each("clone", lambda plan: _shard_copies(source, target, plan), kept)
    dead = parallel.each("clone", lambda fold: _dead_letter_copies(source, target, fold), streams.values())
    copies = sorted((copy for part in (*parts, *dead) for copy in part), key=lambda copy: copy.nbytes)
    large = [copy for copy in copies if copy.nbytes > LARGE]
    done = 0
    for some, copiers in ((copies[: len(copies) - len(large)], parallel.WORKERS), (large, LARGE_COPIERS)):
        with parallel.Pool("clone", copiers) as pool:
            for _ in pool.map(_Copy.run, some):
                done += 1
                progress("objects copied", done, len(copies))
    return kept


def clone_start(shard: Shard, manifest: Manifest, visible: Visible) -> int:
    """First position that a clone needs: missing entries without rows at the start of the tail are skipped."""
    there = _entries(shard)
    start = manifest.replay_after + 1
    tail = range(start, max(start, manifest.last_seen + 1, *(position + 1 for position in there)))
    return _first_needed(shard, manifest, tail, there, visible.runs(shard.id, start)) if tail else start


def tail_epoch(target: TableHome, plan: ShardPlan) -> int:
    """Highest epoch of the copied entries, which is the epoch of the last one; 0 if there are none.

    A lower epoch never gets past a higher one's entry.
    """
    if not plan.tail:
        return 0
    return read_header(Shard(target, plan.shard_id), plan.tail[-1]).epoch


def put_barrier(target: TableHome, plan: ShardPlan, epoch: int) -> None:
    """Put the clone's fence barrier above the tail. Without it a WAL could be empty, and native Lance would start an
    empty WAL anew.
    """
    shard, barrier = Shard(target, plan.shard_id), encode_barrier(epoch=epoch, entry_id=plan.entry_id)
    with suppress(AlreadyExists):  # ours, from an earlier try: its bytes follow from the plan
        shard.wal.put_if_absent(shard.wal_key(plan.barrier), barrier.buffers)


# -- what to copy ------------------------------------------------------------------


def _without_skipped(source: TableHome, target: TableHome, streams: Mapping[str, Fold], plan: ShardPlan) -> ShardPlan:
    if not plan.tail:
        return plan
    old = Shard(source, plan.pinned.shard_id)
    there = _entries(old).keys() | _entries(Shard(target, plan.shard_id)).keys()
    listed = [run for fold in streams.values() if old.id in fold.shards for run in fold.shards[old.id].visible]
    start = _first_needed(old, plan.pinned.manifest, plan.tail, there, listed)
    return replace(plan, skipped=start - plan.tail.start)


def _first_needed(
    shard: Shard, manifest: Manifest, tail: range, there: Container[int], listed: Iterable[tuple[int, int]]
) -> int:
    """First position after missing entries without rows at the start of a tail."""
    if tail.start in there:
        return tail.start
    positions = {position for first, last in listed for position in range(first, last + 1)}
    harmless = rowless(tail, positions, _history(shard, manifest.version))
    start = next((position for position in tail if position in there or position not in harmless), tail.stop)
    if start > tail.start:
        what = "entries without rows are missing at the start of a WAL; the clone leaves them out"
        _log.warning(what, entries=start - tail.start, replay_after=start - 1, **shard.where())
    return start


def _history(shard: Shard, version: int) -> list[Manifest]:
    """Manifests up to the version. If one was collected meanwhile, it and those before it are left out."""
    found: list[Manifest] = []
    for number in shard.manifests.versions():
        if number <= version:
            try:
                found.append(shard.manifests.read(number))
            except NotFound:
                found.clear()
    return found


def _shard_copies(source: TableHome, target: TableHome, plan: ShardPlan) -> list[_Copy]:
    old, new = Shard(source, plan.pinned.shard_id), Shard(target, plan.shard_id)
    return [*_tail_copies(old, new, plan), *(copy for one in plan.sstables for copy in _sstable(old, new, one.path))]


def _tail_copies(old: Shard, new: Shard, plan: ShardPlan) -> list[_Copy]:
    if not plan.tail:
        return []
    there, here = _entries(old), _entries(new)
    missing = [position for position in plan.tail if position not in there and position not in here]
    if missing:
        raise _missing(old, plan, missing)
    return [
        _entry_copy(old, new, position, there[position], partial(_missing, old, plan, (position,)))
        for position in plan.tail
        if position in there and there[position] != here.get(position)
    ]


def _sstable(old: Shard, new: Shard, path: str) -> list[_Copy]:
    """The files of an SSTable. Raises if Lance's manifest file is missing: then it is not an SSTable."""
    there = _listed(old.home.store, f"{names.shard_folder(old.id)}/{path}/")
    here = _listed(new.home.store, f"{names.shard_folder(new.id)}/{path}/")
    lost = partial(_lost_sstable, old, path)
    if not any(key.startswith("_versions/") for key in (*there, *here)):
        raise lost()
    return [
        _Copy(
            old.home.store,
            f"{names.shard_folder(old.id)}/{path}/{key}",
            new.home.store,
            f"{names.shard_folder(new.id)}/{path}/{key}",
            info.size,
            lost,
        )
        for key, info in there.items()
        if key not in here or here[key].size != info.size
    ]


def _dead_letter_copies(source: TableHome, target: TableHome, fold: Fold) -> list[_Copy]:
    """Copies only what records list: nothing else of such a log is ever read."""
    copies = []
    for shard_id, folded in fold.shards.items():
        if not folded.shard.startswith(PREFIX):
            continue
        old = Shard(dead_letter_home(source, fold.stream), shard_id)
        new = Shard(dead_letter_home(target, fold.stream), _dead_letter_id(source, target, fold, shard_id))
        there, here = _entries(old), _entries(new)
        for position in (number for first, last in folded.visible for number in range(first, last + 1)):
            lost = partial(_lost_dead_letter, old, position)
            if position not in there and position not in here:
                raise lost()
            if position in there and there[position] != here.get(position):
                copies.append(_entry_copy(old, new, position, there[position], lost))
    return copies


def _entry_copy(old: Shard, new: Shard, position: int, nbytes: int, lost: Callable[[], Exception]) -> _Copy:
    return _Copy(old.wal, old.wal_key(position), new.wal, new.wal_key(position), nbytes, lost)


def _dead_letter_id(source: TableHome, target: TableHome, fold: Fold, shard_id: UUID) -> UUID:
    assert source.table_id is not None
    assert target.table_id is not None
    return dead_letter_id(source.table_id, target.table_id, fold.stream, shard_id, fold.shards[shard_id].shard)


def _entries(shard: Shard) -> dict[int, int]:
    """Size of each entry by position."""
    return {position: info.size for position, info in entries(shard).items()}


def _listed(store: ObjectStore, folder: str) -> dict[str, ObjectInfo]:
    found = list(store.list(folder))
    return {info.key.removeprefix(folder): info for info in found}


# -- missing files -----------------------------------------------------------------


def _missing(old: Shard, plan: ShardPlan, missing: Iterable[int]) -> Exception:
    """The error for missing entries. The source's manifest tells a flushed entry from a lost one (R13)."""
    latest = old.manifests.latest()
    lost = lost_position(missing, latest.replay_after if latest else 0)
    return MovedOn() if lost is None else lost_entry(plan, lost, old.home.uri)


def _lost_sstable(old: Shard, path: str) -> Exception:
    """The error for a missing SSTable. If the source's manifest no longer names it, it was compacted and collected."""
    latest = old.manifests.latest()
    if latest is not None and all(sstable.path != path for sstable in latest.sstables):
        return MovedOn()
    return DataLoss(
        f"SSTable {path} of the shard is missing.",
        **old.where(),
        advice="restore its folder from a backup, or clone an earlier checkpoint; nothing of the clone was kept",
    )


def _lost_dead_letter(old: Shard, position: int) -> DataLoss:
    return DataLoss(
        f"The dead letters at position {position}, which a commit record lists, are missing.",
        table=old.home.uri,
        shard=str(old.id),
        position=position,
        advice="restore the entry from a backup, or clone an earlier checkpoint; nothing of the clone was kept",
    )
