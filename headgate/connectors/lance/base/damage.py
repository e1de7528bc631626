"""Versions and tags of a base that a power cut left damaged: found, and set aside.

A cut between Lance's commit and our sync leaves a newest manifest of 0 bytes, or one whose files are missing or cut.
Lance then opens nothing, though every row that was acknowledged is in an older version, an SSTable or the WAL: nothing
goes because the base has it before that version is marked as synced (`synced`). So what is damaged above the
highest mark was never relied on. Names appear whole on a disk that did not lose power (Lance links what it has
written), so damage is never somebody's work in progress.

The same is true of a tag that was not synced yet; Lance reads none at all where one cannot be read.

Promises:
1. Only versions above the highest mark are set aside, and only where the newest whole one is marked or above it. A base
   without any mark is left as it is: nobody knows what was relied on. A version that lacks nothing but files of indexes
   is set aside only where no row goes with it.
2. Nothing is deleted: a manifest (or tag) is renamed out of `_versions/` to `_headgate/<table id>/set_aside/`.
3. One at a time: `_versions/` is locked from the judgement to the rename, so that a version that Lance has committed
   anew under the same number is never taken for the damaged one.

Only on local disk: elsewhere nothing is looked at.
"""

from __future__ import annotations

import fcntl
import json
import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Literal

import structlog

from headgate import clock
from headgate.connectors.lance.base.files import local_root, manifests
from headgate.connectors.lance.base.manifest import VersionFiles, faults, version_files
from headgate.connectors.lance.base.synced import TABLE_ID, marked_files, sync_base, synced_versions
from headgate.connectors.objects import ObjectStore
from headgate.connectors.objects.errors import os_errors
from headgate.connectors.objects.files import make_synced, open_folder, sync_path
from headgate.errors import Corrupt, DataLoss, NotFound, Transient

LOCK_PATIENCE = 30.0
"""Seconds that one waits for another who sets aside, which takes milliseconds."""

_log = structlog.get_logger("headgate.connectors")


@dataclass(frozen=True, slots=True)
class Damaged:
    """A version, or a tag, that a power cut damaged."""

    kind: Literal["unreadable", "torn", "tag"]
    """Of an unreadable version the manifest cannot be read: readers then use an older one by themselves. Of a torn one
    other files are missing or cut.
    """
    name: str
    path: str
    """Of the manifest, or the tag."""
    what: str


@dataclass(frozen=True, slots=True)
class _Judged:
    damaged: tuple[Damaged, ...]
    whole: int | None
    """The newest version that is."""
    table_id: str | None
    """Which it names."""


def damage(store: ObjectStore) -> tuple[Damaged, ...]:
    """What `set_aside` would take, the newest first. Writes nothing."""
    root = local_root(store)
    if root is None:
        return ()
    with os_errors("look", store.uri, "_versions/"):
        return _judge(root).damaged + _tags(root)


def newest_readable(store: ObjectStore) -> int | None:
    """The version for readers where the newest manifests cannot be read; None where the newest one can be, or where
    what cannot be read was on disk before: then rows may be lost, and nobody is shown less than there was.
    """
    root = local_root(store)
    if root is None:
        return None
    with os_errors("look", store.uri, "_versions/"):
        return _readable(root)


def _readable(root: str) -> int | None:
    listed = manifests(root)
    for version, path in listed.items():
        try:
            found = version_files(root, path)
        except (Corrupt, FileNotFoundError):
            continue
        marks = synced_versions(root, found.config.get(TABLE_ID))
        return version if marks and max(marks) <= version < next(iter(listed)) else None
    return None


def settle_base(store: ObjectStore) -> tuple[Damaged, ...]:
    """What every writer does first: set damaged versions aside, and let the newest one survive a power cut.

    A base that has lost more than that is an error of whoever reads it: rows can still be put.
    Raises Transient, StoreError.
    """
    gone = set_aside(store)
    try:
        sync_base(store)
    except (DataLoss, NotFound) as error:
        _log.warning("the base is incomplete", table=store.uri, why=error.what)
    return gone


def set_aside(store: ObjectStore) -> tuple[Damaged, ...]:
    """Set damaged versions aside, and say which. Raises Transient if another holds the lock for long, StoreError."""
    root = local_root(store)
    if root is None or not damage(store):
        return ()
    with os_errors("set aside", store.uri, "_versions/"), _alone(root, store.uri):
        judged = _judge(root)
        going = judged.damaged + _tags(root)
        _move(root, judged.table_id, going)
    for one in going:
        _log.warning(
            f"set aside {one.name} of the base, which a power cut damaged",
            table=store.uri,
            what=one.what,
            base_version=judged.whole,
        )
    return going


def set_aside_unborn(store: ObjectStore) -> None:
    """The same for a table that is being made, whose base has no mark yet; it may have no whole version at all.

    A base of which any version was ever marked is left as it is, and so is one without any record of ours: making a
    table puts its record before the first byte of its base, so that such a base is somebody else's.
    """
    root = local_root(store)
    if root is None:
        return
    with os_errors("set aside", store.uri, "_versions/"):
        ids = _ids(root)
        if ids and manifests(root) and not any(synced_versions(root, name) for name in ids):
            with _alone(root, store.uri):
                _move(root, None, _judge(root, unborn=True).damaged)


def _ids(root: str) -> list[str]:
    try:
        return os.listdir(os.path.join(root, "_headgate"))
    except FileNotFoundError:
        return []


def _judge(root: str, *, unborn: bool = False) -> _Judged:
    """Newest first, down to the first version that is marked, or to the last where none is."""
    while True:
        listed = manifests(root)
        judged = _judged(root, listed, unborn)
        # A version that looks damaged may just have been replaced and cleaned up.
        if not judged.damaged or next(iter(manifests(root)), None) == next(iter(listed)):
            return judged


def _judged(root: str, listed: Mapping[int, str], unborn: bool) -> _Judged:
    damaged: list[Damaged] = []
    whole: int | None = None
    table_id: str | None = None
    mark, known = 0, frozenset[str]()
    without_index: tuple[int, int, VersionFiles] | None = None
    """The newest version that has all of its rows, though not of its indexes; and how many damaged ones are above."""
    for version, path in listed.items():
        try:
            found = version_files(root, path)
        except FileNotFoundError:
            continue  # cleaned up since the LIST
        except Corrupt as error:
            damaged.append(Damaged("unreadable", f"version {version}", path, error.what))
            continue
        if whole is None:
            mark, known = _vouched(root, listed, found)
        if version > mark and whole is None and (fault := next(faults(found.files, known), None)) is not None:
            if without_index is None and next(faults(found.rows, known), None) is None:
                without_index = version, len(damaged), found
            damaged.append(Damaged("torn", f"version {version}", path, f"{fault}."))
            continue
        if whole is None:
            whole, table_id = version, found.config.get(TABLE_ID)
            if without_index is not None and without_index[2].rows.keys() != found.rows.keys():
                whole, above, found = without_index
                damaged, table_id = damaged[:above], found.config.get(TABLE_ID)
        if version <= mark:
            break
    if not unborn and (whole is None or not 0 < mark <= whole):
        damaged = []
    return _Judged(tuple(damaged), whole, table_id)


def _tags(root: str) -> tuple[Damaged, ...]:
    """Tags that cannot be read: Lance then reads none at all. That of a checkpoint that counts is synced."""
    folder = os.path.join(root, "_refs", "tags")
    found = []
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        path = os.path.join(folder, name)
        try:
            with open(path, "rb") as file:
                json.loads(file.read())
        except FileNotFoundError:
            continue
        except ValueError:
            if name.endswith(".json"):
                found.append(Damaged("tag", f"tag {name.removesuffix('.json')}", path, "The tag is unreadable."))
    return tuple(found)


def _vouched(root: str, listed: Mapping[int, str], found: VersionFiles) -> tuple[int, frozenset[str]]:
    mark = max(synced_versions(root, found.config.get(TABLE_ID)), default=0)
    return mark, marked_files(root, listed, mark)


def _move(root: str, table_id: str | None, damaged: tuple[Damaged, ...]) -> None:
    if not damaged:
        return
    folder = os.path.join(root, "_headgate", table_id or "", "set_aside")
    make_synced(folder)
    for one in damaged:
        with suppress(FileNotFoundError):
            os.rename(one.path, os.path.join(folder, f"{uuid.uuid4().hex[:8]}-{os.path.basename(one.path)}"))
    for place in {folder, *(os.path.dirname(one.path) for one in damaged)}:
        sync_path(place)


@contextmanager
def _alone(root: str, table: str) -> Iterator[None]:
    lock = open_folder(os.path.join(root, "_versions"))
    try:
        deadline = clock.monotonic() + LOCK_PATIENCE
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if clock.monotonic() > deadline:
                    what = "Another process that sets damaged base versions aside does not finish."
                    raise Transient(what, table=table, advice="look for a hanging process") from error
                clock.sleep(0.01)
        yield
    finally:
        os.close(lock)
