"""Making a base on local disk survive a power loss: Lance never syncs what it writes.

Before SSTables that the base has taken in may go, the base's own files must be on disk. On other stores a put that
returned is durable, and nothing is done here.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from headgate.connectors.objects import ObjectStore

FOLDERS = ("data", "_deletions", "_indices", "_transactions", "_versions")
"""Of a Lance dataset, the newest references last."""


def base_files(store: ObjectStore) -> frozenset[str]:
    """The files that a base on local disk has now; empty on other stores."""
    root = _root(store)
    return frozenset() if root is None else frozenset(_walked(root))


def sync_base(store: ObjectStore, known: Iterable[str] = ()) -> None:
    """Sync every file of a base on local disk but those `known` to be on disk already, then the folders."""
    root = _root(store)
    if root is None:
        return
    before = frozenset(known)
    folders: set[str] = set()
    for path in _walked(root):
        if path not in before and _sync(path):
            while (path := os.path.dirname(path)) != root:
                folders.add(path)
    for folder in sorted(folders, reverse=True):
        _sync(folder)
    _sync(root)


def sync_data_files(store: ObjectStore, names: Iterable[str]) -> None:
    """Sync data files by name, before a version names them."""
    root = _root(store)
    if root is not None:
        folder = os.path.join(root, "data")
        for name in names:
            _sync(os.path.join(folder, name))
        _sync(folder)
        _sync(root)


def _root(store: ObjectStore) -> str | None:
    root, options = store.locate()
    return root if not options and os.path.isdir(root) else None


def _walked(root: str) -> list[str]:
    return [
        os.path.join(folder, name)
        for part in FOLDERS
        for folder, _, names in os.walk(os.path.join(root, part))
        for name in names
    ]


def _sync(path: str) -> bool:
    """False: somebody has removed it since it was listed."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    return True
