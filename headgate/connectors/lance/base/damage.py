"""Finds versions and tags of a base that a power cut damaged, and sets them aside.

A power cut between Lance's commit and our sync leaves a newest manifest of 0 bytes, or one whose files are missing or
truncated. Lance then cannot open the dataset, although every acknowledged row is in an older version, an SSTable or
the WAL: nothing is deleted because the base has it before that version is marked as synced (`synced`). So nothing ever
relied on a damaged version above the highest mark. Without a power cut, names appear only for complete files (Lance
links what it has written), so damage is never another process's work in progress.

The same is true of a tag that was not synced yet. If one tag is unreadable, Lance reads no tag at all.

Promises:
1. Only versions above the highest mark are set aside, and only if the newest intact version is marked or above the
   mark. A base without any mark is left as it is: it is unknown what relied on it. A version that lacks only files of
   indexes is set aside only if no row is lost with it.
2. Nothing is deleted: a manifest (or tag) is renamed to `_headgate/<table id>/set_aside/`.
3. One process at a time: `_versions/` is locked from the check to the rename, so that a version that Lance has
   committed anew under the same number is never mistaken for the damaged one.

Only on local disk: on other stores this does nothing.
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
"""Seconds to wait for another process that sets versions aside, which takes milliseconds."""

_log = structlog.get_logger("headgate.connectors")


@dataclass(frozen=True, slots=True)
class Damaged:
    """A version, or a tag, that a power cut damaged."""

    kind: Literal["unreadable", "torn", "tag"]
    """"unreadable": the manifest cannot be read, and readers use an older version by themselves. "torn": other files
    are missing or truncated.
    """
    name: str
    path: str
    """Path of the manifest or the tag."""
    what: str


@dataclass(frozen=True, slots=True)
class _Judged:
    damaged: tuple[Damaged, ...]
    whole: int | None
    """The newest intact version."""
    table_id: str | None
    """The table's id in its configuration."""


def damage(store: ObjectStore) -> tuple[Damaged, ...]:
    """What `set_aside` would set aside: versions from the newest down, then tags. Writes nothing."""
    root = local_root(store)
    if root is None:
        return ()
    with os_errors("look", store.uri, "_versions/"):
        return _judge(root).damaged + _tags(root)


def newest_readable(store: ObjectStore) -> int | None:
    """The version that readers use if the newest manifests are unreadable. None if the newest is readable, or if an
    unreadable one was synced before: rows may then be lost, and no reader may silently get fewer rows.
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
    """Every writer calls this first: it sets damaged versions aside and makes the newest one durable.

    If the base has lost more than that, only reading it raises an error: rows can still be put.
    Raises Transient, StoreError.
    """
    gone = set_aside(store)
    try:
        sync_base(store)
    except (DataLoss, NotFound) as error:
        _log.warning("the base is incomplete", table=store.uri, why=error.what)
    return gone


def set_aside(store: ObjectStore) -> tuple[Damaged, ...]:
    """Set damaged versions and tags aside. Returns them.

    Raises Transient if another process holds the lock for too long, StoreError.
    """
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
    """Like `set_aside`, for a table that is being created: its base has no mark and may have no intact version.

    A base with a marked version is left as it is, and so is one without a record of headgate's: creating a table puts
    its record before the first byte of its base, so a base without one was not created by headgate.
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
    """Check versions from the newest down to the first marked one; all of them if none is marked."""
    while True:
        listed = manifests(root)
        judged = _judged(root, listed, unborn)
        # A version that looks damaged may have been replaced and cleaned up meanwhile.
        if not judged.damaged or next(iter(manifests(root)), None) == next(iter(listed)):
            return judged


def _judged(root: str, listed: Mapping[int, str], unborn: bool) -> _Judged:
    damaged: list[Damaged] = []
    whole: int | None = None
    table_id: str | None = None
    mark, known = 0, frozenset[str]()
    without_index: tuple[int, int, VersionFiles] | None = None
    """The newest version with all files of its rows but not of its indexes, and the number of damaged versions above
    it."""
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
    """Unreadable tags. With one of them Lance reads no tag at all. The tag of a valid checkpoint is synced."""
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
