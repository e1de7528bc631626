"""fsck of one shard's manifests and SSTables. Reads only."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import pyarrow as pa

from headgate.checkpoints.fsck.findings import Finding, finding
from headgate.checkpoints.gc.rules import without_claims
from headgate.connectors.lance import health as dataset_health
from headgate.errors import Corrupt, HeadgateError, NotFound
from headgate.parallel import Pool, in_order
from headgate.shards import names
from headgate.shards.manifest.model import Manifest, SsTable, decode_manifest
from headgate.shards.placement import OneBucket, bucket_of
from headgate.shards.rows.sstable import open_sstable, sstable_key
from headgate.shards.shard import Shard


@dataclass(frozen=True)
class ManifestLook:
    latest: Manifest | None
    """None if there is none, or it is unreadable."""
    versions: int
    findings: tuple[Finding, ...]


def check_manifests(shard: Shard, pool: Pool) -> ManifestLook:
    """Every version:

    1. native's hint, before the LIST: the version it names must exist.
    2. LIST: strays.
    3. the bytes of each; values that only grow must not go back from one version to the next.
    4. the only gaps are those of a collection, which deletes an oldest-first prefix, keeps the claims, and writes the
       hint first.
    """
    hint = _hint(shard)
    versions, strays = _listed(shard)
    found = [
        finding("manifest-stray", key, "This is not the name of a manifest: a temporary file, or a copy.")
        for key in strays
    ]
    before: Manifest | None = None
    latest: Manifest | None = None
    readable: list[Manifest] = []
    for version, read in in_order(pool, partial(_read, shard), versions):
        place = f"{names.manifest_key(shard.id, version)} (version {version})"
        if isinstance(read, Manifest):
            found += [] if before is None else _goes_back(before, read, place)
            before = read
            readable.append(read)
            latest = read if version == versions[-1] else None
        elif not isinstance(read, NotFound):
            code = "manifest-damaged" if version == versions[-1] else "manifest-old-damaged"
            found.append(finding(code, place, read.what))
    # A collection would have deleted this one before those in a gap above it.
    oldest = min([*without_claims(readable), *([hint] if hint in versions else [])], default=None)
    for low, high in pairwise(versions):
        if high != low + 1 and oldest is not None and oldest <= low:
            gone = f"version {low + 1} is" if high == low + 2 else f"versions {low + 1} to {high - 1} are"
            place = names.manifest_key(shard.id, low + 1)
            found.append(finding("manifest-gap", place, f"Manifest {gone} missing between {low} and {high}."))
    if hint is not None and versions and hint > versions[-1]:
        what = f"The version hint is {hint}, but the highest version is {versions[-1]}."
        found.append(finding("manifest-latest-lost", names.manifest_key(shard.id, hint), what))
    return ManifestLook(latest, len(versions), tuple(found))


def check_sstable(shard: Shard, sstable: SsTable) -> Iterator[Finding]:
    """Check one SSTable: it exists, Lance can read every row, the number of rows is that of the flush, and all keys
    belong here.
    """
    place = sstable_key(shard, sstable.path)
    told = f"SSTable {sstable.path} (generation {sstable.generation})"
    rows = "the rows of that flush" if sstable.physical_rows is None else f"{sstable.physical_rows:,} rows"
    store = shard.home.store
    inside = [info.key.removeprefix(place + "/") for info in store.list(place + "/")]
    if not inside:
        yield finding("sstable-missing", place, f"{told}, which the manifest names, is missing.", lost=rows)
        return
    health = dataset_health.read_through(store, place)
    if health.fault is not None:
        yield finding("sstable-damaged", place, f"{told}: {health.fault}", lost=f"{rows}, some or all of them")
        return
    if sstable.physical_rows is not None and health.physical_rows != sstable.physical_rows:
        what = f"{told} holds {health.physical_rows} rows, but the manifest says {sstable.physical_rows}."
        yield finding("sstable-rows-differ", place, what)
    if shard.home.schema.primary_key and not any(key.startswith("_pk_index/") for key in inside):
        yield finding("sstable-key-index", place, f"{told} has no key index.")
    for index in health.missing_indexes:
        yield finding("sstable-index-missing", place, f"{told} names index {index}, whose files are missing.")
    own = bucket_of(shard)
    if own is not None and (wrong := told_misplaced(own, open_sstable(shard, sstable).batches([own.column], None))):
        yield finding("key-in-wrong-shard", place, wrong)


def told_misplaced(own: OneBucket | None, rows: Iterable[pa.RecordBatch]) -> str | None:
    """Describes rows whose keys belong to another shard. None if there are none, or any row may be here. Always reads
    all rows.
    """
    found = [strangers for batch in rows if own is not None and len(strangers := own.strangers(batch))]
    if own is None or not found:
        return None
    return (
        f"By key column {own.column!r}, {sum(map(len, found)):,} rows belong to other buckets, the first to "
        f"bucket {found[0][0]}; this shard is for bucket {own.bucket}."
    )


def _hint(shard: Shard) -> int | None:
    """Native's hint; None if it is missing or invalid, which native tolerates too."""
    try:
        data = shard.home.store.get(names.version_hint_key(shard.id))
        version = json.loads(bytes(data))["version"]
        return version if isinstance(version, int) else None
    except (NotFound, ValueError, KeyError, TypeError, RecursionError):
        return None


def _listed(shard: Shard) -> tuple[list[int], list[str]]:
    folder = names.manifest_folder(shard.id) + "/"
    versions, strays = [], []
    for info in shard.home.store.list(folder):
        version = names.manifest_version(info.key)
        if version:
            versions.append(version)
        elif info.key != names.version_hint_key(shard.id):
            strays.append(info.key)
    return sorted(versions), sorted(strays)


def _read(shard: Shard, version: int) -> tuple[int, Manifest | HeadgateError]:
    key = names.manifest_key(shard.id, version)
    try:
        data = shard.home.store.get(key)
        return version, decode_manifest(data, shard_id=shard.id, version=version)
    except (Corrupt, NotFound) as error:
        return version, error


def _goes_back(old: Manifest, new: Manifest, place: str) -> list[Finding]:
    back = [
        f"{name.replace('_', ' ')} went from {getattr(old, name)} to {getattr(new, name)}"
        for name in ("epoch", "replay_after", "generation")
        if getattr(new, name) < getattr(old, name)
    ]
    return [finding("manifest-goes-back", place, f"It goes backwards: {', '.join(back)}.")] if back else []
