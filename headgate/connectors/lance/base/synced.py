"""Syncs the base to disk (R21), and records which of its versions survives a power cut.

Lance never syncs, and other processes write to the base too: native Lance, a compaction that was killed. So a process
must not sync only what it wrote itself. `sync_base` syncs every file of a version (for a shallow clone also those in
its source), the manifests up to it and the folders, and then puts a mark, `_headgate/<table id>/synced/<version>`.
Files of a marked version need no second sync: Lance never changes a file.

Promises:
1. What is deleted because the base has it, is deleted after a `sync_base` of a version that has it.
2. A mark is put last, so it is always true. The highest mark counts; lower ones are removed. If the disk is full no
   mark is put, and the next call syncs again.
3. Idempotent; any number of processes may call it at the same time.

Stores other than a local disk are durable by themselves: there nothing is read, synced or put.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress

from headgate.connectors.lance.base.files import local_root, manifests, sync_files
from headgate.connectors.lance.base.manifest import VersionFiles, faults, version_files
from headgate.connectors.objects import ObjectStore
from headgate.connectors.objects.deletion import delete_all
from headgate.connectors.objects.errors import os_errors
from headgate.errors import AlreadyExists, Corrupt, DataLoss, NotFound, StoreFull, Transient
from headgate.records import text_of

TABLE_ID = "headgate.table_id"
"""The base's configuration key for the table's id."""


def sync_base(store: ObjectStore, version: int | None = None) -> None:
    """Make a version of the base, by default the newest, survive a power cut. Does nothing if it is marked.

    1. read the list of its files. A missing or truncated file of rows raises DataLoss: the base has lost these rows.
    2. sync the files that are not part of the highest marked version, then all manifests since it; folders too.
    3. put the mark unless there is a higher one; remove lower ones.

    Raises NotFound if there is no such version, Corrupt if its manifest is invalid, DataLoss, StoreError.
    """
    root = local_root(store)
    if root is not None:
        with os_errors("sync", store.uri, "_versions/"):
            _sync(store, root, version)


def _sync(store: ObjectStore, root: str, version: int | None) -> None:
    listed = manifests(root)
    version = next(iter(listed), None) if version is None else version
    if version is None:
        return
    found = _files(store, root, listed, version)
    marks = synced_versions(root, found.config.get(TABLE_ID))
    if version in marks:
        return
    highest = max(marks, default=0)
    known = marked_files(root, listed, highest)
    if (lost := next(faults(found.rows, known), None)) is not None:
        raise DataLoss(
            f"A file of version {version} of the base is missing: {lost}.",
            table=store.uri,
            base_version=version,
            advice="nothing was deleted; `headgate fsck` checks the whole table",
        )
    sync_files(path for path in found.files if path not in known)
    between = {one: path for one, path in listed.items() if highest < one <= version}
    sync_files([*between.values(), *_transactions(root, between)])
    if (table_id := found.config.get(TABLE_ID)) and version > highest and _marked(store, table_id, version):
        with suppress(Transient):
            delete_all(store, [_key(table_id, lower) for lower in marks], "synced mark")


def synced_versions(root: str, table_id: str | None) -> frozenset[int]:
    """The marked versions."""
    if not table_id:
        return frozenset()
    try:
        names = os.listdir(os.path.join(root, _folder(table_id)))
    except (FileNotFoundError, NotADirectoryError):
        return frozenset()
    return frozenset(int(name) for name in names if name.isdecimal())


def marked_files(root: str, listed: Mapping[int, str], mark: int) -> frozenset[str]:
    """The files of a marked version; empty if the version was cleaned up since."""
    if (path := listed.get(mark)) is not None:
        with suppress(FileNotFoundError, Corrupt):
            return frozenset(version_files(root, path).files)
    return frozenset()


def _files(store: ObjectStore, root: str, listed: Mapping[int, str], version: int) -> VersionFiles:
    try:
        return version_files(root, listed[version])
    except (KeyError, FileNotFoundError) as error:
        raise NotFound(f"Version {version} of the base is missing.", table=store.uri) from error


def _transactions(root: str, listed: Mapping[int, str]) -> list[str]:
    """The transaction files of all readable versions: an append reads them (R14)."""
    found = []
    for path in listed.values():
        with suppress(FileNotFoundError, Corrupt):
            found.append(version_files(root, path).transaction)
    return [path for path in found if path is not None]


def _marked(store: ObjectStore, table_id: str, version: int) -> bool:
    """Put the mark. False if the disk is full: the caller may be about to free space and must go on. The next call
    puts the mark."""
    data = text_of({"kind": "synced", "base_version": version})
    try:
        with suppress(AlreadyExists):
            store.put_if_absent(_key(table_id, version), data)
    except StoreFull:
        return False
    return True


def _key(table_id: str, version: int) -> str:
    return f"{_folder(table_id)}/{version}"


def _folder(table_id: str) -> str:
    return f"_headgate/{table_id}/synced"
