"""Lists and syncs the files of a base on local disk: Lance never syncs.

On other stores an object is durable when its put returns, Lance's too; for these `local_root` is None.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from headgate.connectors.objects import ObjectStore
from headgate.connectors.objects.errors import os_errors
from headgate.connectors.objects.files import sync_path
from headgate.errors import InvalidInput

FOLDERS = ("data", "_deletions", "_indices", "_transactions", "_versions")
"""Folders of a Lance dataset."""

_MANIFEST = re.compile(r"(\d+)\.manifest")
_LONG_NAME = 20
"""Digits of current file names, which count down from 2**64 - 1; older names are the version itself."""


def local_root(store: ObjectStore) -> str | None:
    """The directory of a store on local disk; None for other stores, or if the directory does not exist."""
    try:
        root, options = store.locate()
    except InvalidInput:
        return None  # Lance cannot use this store, so it has no base
    return root if not options and os.path.isdir(root) else None


def version_of(name: str) -> int | None:
    """The version whose manifest has this file name."""
    if (match := _MANIFEST.fullmatch(name)) is None:
        return None
    number = int(match[1])
    return 2**64 - 1 - number if len(match[1]) == _LONG_NAME else number


def has_versions(store: ObjectStore) -> bool:
    """True if the store has a manifest, valid or not. Lance's version hint alone is not a dataset."""
    return any(version_of(key.removeprefix("_versions/")) is not None for key in store.list_keys("_versions/"))


def manifests(root: str) -> Mapping[int, str]:
    """The path of the manifest of every version, the newest first."""
    folder = os.path.join(root, "_versions")
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return {}
    found = {version: os.path.join(folder, name) for name in names if (version := version_of(name)) is not None}
    return dict(sorted(found.items(), reverse=True))


def sync_files(paths: Iterable[str]) -> None:
    """Sync files, then the three folders above each: from an index file up to the dataset, and from any other file up
    to the folder that contains the dataset. Skips files that no longer exist.
    """
    folders: set[str] = set()
    for path in paths:
        if sync_path(path):
            for _ in range(3):
                path = os.path.dirname(path)
                folders.add(path)
    for folder in sorted(folders, key=len, reverse=True):
        # The dataset's parent directory may permit traversal but not reading.
        with suppress(PermissionError):
            sync_path(folder)


def missing_files(store: ObjectStore, key: str, dataset: Any) -> list[str]:
    """The data and deletion files that a dataset at `key` names but that are missing. Does not check files in a shallow
    clone's source. Two LISTs, or one if no row was deleted.
    """
    under = f"{key}/" if key else ""
    named = set()
    for fragment in dataset.get_fragments():
        metadata = fragment.metadata
        named |= {f"data/{file.path}" for file in metadata.files if file.base_id is None}
        if metadata.deletion_file is not None and metadata.deletion_file.base_id is None:
            named.add(fragment.deletion_file())
    folders = {name.partition("/")[0] for name in named}
    there = {info.removeprefix(under) for folder in folders for info in store.list_keys(f"{under}{folder}/")}
    return sorted(named - there)


def sync_data_files(store: ObjectStore, names: Iterable[str]) -> None:
    """Sync data files by name. Call it before a version names them."""
    root = local_root(store)
    if root is not None:
        with os_errors("sync", store.uri, "data/"):
            sync_files(os.path.join(root, "data", name) for name in names)


def sync_tree(store: ObjectStore, folder: str) -> None:
    """On local disk, sync every file below a folder, no matter which process wrote it, and the folders."""
    root = local_root(store)
    if root is not None:
        with os_errors("sync", store.uri, folder):
            sync_files(walked(os.path.join(root, folder)))


def walked(folder: str) -> list[str]:
    """Every file below a folder."""
    return [os.path.join(place, name) for place, _, names in os.walk(folder) for name in names]
