"""The garbage of one shard: WAL entries, SSTables, manifests, strays."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import cached_property, partial
from typing import Any
from uuid import UUID

from headgate.checkpoints.gc import rules
from headgate.checkpoints.gc.candidates import Holders, Live, Placed
from headgate.checkpoints.gc.report import Garbage
from headgate.checkpoints.gc.rules import ListedManifest
from headgate.checkpoints.log.pins import read_upto
from headgate.connectors.lance.base.files import missing_files
from headgate.connectors.lance.base.marks import compacted_marks
from headgate.connectors.lance.datasets import open_dataset
from headgate.connectors.objects import ObjectInfo
from headgate.errors import HeadgateError, NotFound
from headgate.parallel import Pool
from headgate.shards import names
from headgate.shards.manifest.model import Manifest
from headgate.shards.rows.sstable import sstable_key
from headgate.shards.shard import Shard, TableHome
from headgate.shards.wal.appender import read_header


class Base:
    """The base at this collection: read once, and only if something would be deleted because the base has it."""

    def __init__(self, home: TableHome) -> None:
        self.home = home

    @cached_property
    def fault(self) -> str | None:
        """Why nothing may be deleted that the base has taken in; None if the base is complete. Raises Transient."""
        try:
            missing = missing_files(self.home.store, "", self._dataset)
        except HeadgateError as error:
            return f"the base is unreadable ({error.what})"
        return f"{missing[0]} of the base is missing" if missing else None

    @cached_property
    def marks(self) -> Mapping[UUID, int]:
        """Generation up to which the base has taken in each shard's SSTables."""
        return compacted_marks(self.home.store, self._dataset)

    @cached_property
    def _dataset(self) -> Any:
        return open_dataset(self.home.store)


def shard_garbage(
    shard: Shard,
    objects: Sequence[Placed],
    live: Live,
    held: Holders,
    before: datetime,
    pool: Pool,
    base: Base,
    kept: list[str],
) -> Iterator[Garbage]:
    """What may be deleted of the shard. Raises if the shard cannot be judged; damage is reported in `kept`."""
    if isinstance(live, HeadgateError):
        raise live
    folder = names.shard_folder(shard.id) + "/"
    wal: dict[int, list[Placed]] = defaultdict(list)
    """An entry may exist in two places: in the WAL store, and where it was before its table had that WAL store."""
    manifests: dict[int, ObjectInfo] = {}
    sstables: dict[str, list[ObjectInfo]] = defaultdict(list)
    for store, info in objects:
        part, _, rest = info.key.removeprefix(folder).partition("/")
        position, version = names.wal_position(info.key), names.manifest_version(info.key)
        if part == "wal":
            if position is not None:
                wal[position].append((store, info))
            elif info.modified <= before:
                yield Garbage("stray", store, info.key, info.size, "not the name of an entry")
        elif part == "manifest":
            if version is not None:
                manifests[version] = info
            elif info.key != names.version_hint_key(shard.id) and info.modified <= before:
                yield Garbage("stray", store, info.key, info.size, "not the name of a manifest")
        elif rest:
            sstables[part].append(info)
    pinned = [pin for one in held.pins if (pin := one.checkpoint.shards.get(shard.id)) is not None]
    upto, unknown = read_upto(held.readers, shard.id)
    covered = rules.collectable_wal(wal, live, pinned, upto)
    newest = {path: max(info.modified for info in infos) for path, infos in sstables.items()}
    unnamed = rules.collectable_sstables(newest, live, pinned, before)
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
    named = {one.path for manifest in live for one in manifest.sstables}
    kept += [
        f"{shard.home.uri}/{folder}{path}: not the name of an SSTable"
        for path in sstables
        if names.sstable_name(path) is None and path not in named
    ]
    listed = [ListedManifest(version, info.modified) for version, info in manifests.items()]
    replaced = pool.map(partial(_replaced, shard), rules.collectable_manifests(listed, before))
    for version in rules.without_claims(one for one in replaced if one is not None):
        info, why = manifests[version], f"version {version} was replaced, the latest is {live[-1].version}"
        yield Garbage("manifest", shard.home.store, info.key, info.size, why)


def _missing(shard: Shard, latest: Manifest, base: Base) -> str | None:
    """Describes what is missing of the SSTables that cover this shard's WAL; None if they are complete."""
    mark = base.marks.get(shard.id, 0)
    for sstable in latest.sstables:
        if sstable.generation <= mark:
            continue  # readers take these rows from the base
        key = sstable_key(shard, sstable.path)
        try:
            missing = missing_files(shard.home.store, key, open_dataset(shard.home.store, key))
        except HeadgateError as error:
            return f"SSTable {sstable.path}, which the manifest names, is unreadable ({error.what})"
        if missing:
            return f"{missing[0]} of SSTable {sstable.path}, which the manifest names, is missing"
    return None


def _replaced(shard: Shard, version: int) -> Manifest | None:
    """An old manifest; None if it is unreadable (it stays), or gone already."""
    with suppress(HeadgateError):
        return shard.manifests.read(version)
    return None


def _stays(shard: Shard, unread: bool, position: int) -> bool:
    """True for a barrier, and for a stream's entry in a shard that a consumer has never read. True also if the entry is
    unreadable: damaged entries stay for inspection.
    """
    try:
        header = read_header(shard, position)
        return header.barrier or (unread and header.tags.attempt_id is not None)
    except NotFound:
        return False  # another collection deleted it
    except HeadgateError:
        return True
