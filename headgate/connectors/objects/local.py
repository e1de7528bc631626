"""Objects as files below one directory, safe against power loss.

A put writes the bytes to a nameless file in the target directory, syncs it, links it under its name and syncs the
directory. So a name never refers to a torn object, and a put that returned is on disk. If the file system supports
nameless files (O_TMPFILE), a crash leaves nothing behind; otherwise it may leave a file below `_headgate/tmp/`, which
no read or LIST returns and garbage collection removes.

Deletes are not synced: a power loss may bring back a deleted file.
"""

from __future__ import annotations

import errno
import os
import stat
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import ClassVar
from urllib.parse import unquote

from headgate.connectors.objects.errors import ABSENT, PUTS, READS, os_errors
from headgate.connectors.objects.files import copy_all, make_synced, open_folder, read, regular, write
from headgate.connectors.objects.port import (
    Bytes,
    ObjectInfo,
    ObjectStore,
    as_buffers,
    checked_folder,
    checked_key,
    checked_range,
)
from headgate.errors import AlreadyExists, InvalidInput

TEMPORARY = "_headgate/tmp"
_NO_NAMELESS_FILES = {errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT}


class LocalStore(ObjectStore):
    """A directory given as a path or a file:// URI. Created at the first put, with its parents."""

    nameless_files: ClassVar[bool] = hasattr(os, "O_TMPFILE") and os.path.isdir("/proc/self/fd")
    """True if puts may use O_TMPFILE; an instance stops using it if its file system does not support it."""

    def __init__(self, uri: str) -> None:
        self._root = _path_of(uri)
        self._synced_folders: set[str] = set()
        self._refused_nameless = False
        super().__init__(self._root)

    def locate(self, key: str = "") -> tuple[str, dict[str, str]]:
        """The path."""
        return (os.path.join(self._root, checked_key(key)) if key else self._root), {}

    # -- puts ----------------------------------------------------------------

    def put_if_absent(self, key: str, data: Bytes | Sequence[Bytes]) -> None:
        """Store the object if the name is free.

        1. Write the parts into a file without a name (or one below `_headgate/tmp/`).
        2. Sync that file.
        3. Link it under its name; this is where exactly one of several callers wins.
        4. Sync the directory.
        """
        self._count("put")
        with os_errors("put_if_absent", self.uri, key, PUTS), self._folder_of(key) as (folder, name):
            self._link(key, data, folder, name)

    def put_next(self, key: str, data: Bytes | Sequence[Bytes]) -> None:
        """The same, but a folder that is gone is not created: NotFound."""
        self._count("put")
        path, name = os.path.split(self._path(key))
        with os_errors("put_next", self.uri, key, READS):
            folder = open_folder(path)
        try:
            with os_errors("put_next", self.uri, key, PUTS):
                self._link(key, data, folder, name)
        finally:
            os.close(folder)

    def put_overwrite(self, key: str, data: Bytes | Sequence[Bytes]) -> None:
        """Store or replace the object: temporary file, sync, rename, sync of the directory."""
        buffers = as_buffers(data)
        self._count("put")
        with os_errors("put_overwrite", self.uri, key, PUTS):
            self._replace(key, lambda file: write(file, buffers))

    def copy(self, src: str, dst: str, dst_store: ObjectStore | None = None) -> None:
        """Copy an object, replacing `dst`; durable like a put. If both stores are local, the kernel copies."""
        target = dst_store or self
        if not isinstance(target, LocalStore):
            target.put_overwrite(dst, self.get(src))
            return
        self._count("copy")
        with self._opened("copy", src) as (source, _), os_errors("copy", target.uri, dst, PUTS):
            target._replace(dst, lambda file: copy_all(source, file))

    # -- reads ---------------------------------------------------------------

    def get(self, key: str) -> memoryview:
        """The whole object. Raises NotFound."""
        self._count("get")
        with self._opened("get", key) as (file, size):
            return read(file, 0, size)

    def get_range(self, key: str, start: int, length: int) -> memoryview:
        """Up to `length` bytes from `start`; shorter at the end, empty past it. Raises NotFound."""
        checked_range(start, length)
        self._count("get")
        with self._opened("get_range", key) as (file, size):
            return read(file, start, min(length, size - start))

    def head(self, key: str) -> ObjectInfo:
        """Size and time. Raises NotFound."""
        self._count("head")
        with os_errors("head", self.uri, key, READS):
            return _info(key, regular(os.stat(self._path(key))))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Every object below the folder, deep, in no order. Files below `_headgate/tmp/` are not objects."""
        checked_folder(prefix)
        self._count("list")
        return self._seen(prefix)

    def list_keys(self, prefix: str) -> Iterator[str]:
        """The keys of `list`, without a stat of each file."""
        checked_folder(prefix)
        self._count("list")
        return (key for key, _ in self._walk(prefix))

    @property
    def is_near(self) -> bool:
        return True

    def list_folders(self, prefix: str) -> Iterator[str]:
        """Names of the folders directly below that hold an object; an empty directory does not count."""
        checked_folder(prefix)
        self._count("list")
        for entry in self._entries(prefix):
            if entry.is_dir() and next(self._walk(f"{prefix}{entry.name}/"), None) is not None:
                yield entry.name

    def delete(self, key: str) -> None:
        """Remove the object. A missing object is not an error."""
        path = self._path(key)
        self._count("delete")
        with os_errors("delete", self.uri, key):
            try:
                os.unlink(path)
            except OSError as error:
                if error.errno not in ABSENT and not os.path.isdir(path):
                    raise

    def temporaries(self) -> Iterator[ObjectInfo]:
        """Files below `_headgate/tmp/`: only if the file system does not support nameless files."""
        self._count("list")
        folder = os.path.join(self._root, TEMPORARY)
        with suppress(FileNotFoundError), os.scandir(folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    yield _info(entry.name, entry.stat())

    def delete_temporary(self, key: str) -> None:
        """Remove a temporary file. A missing file is not an error."""
        self._count("delete")
        if "/" in checked_key(key):
            raise InvalidInput(f"{key[:200]!r} is not a temporary file.", store=self.uri)
        with os_errors("delete", self.uri, key), suppress(FileNotFoundError):
            os.unlink(os.path.join(self._root, TEMPORARY, key))

    # -- names and directories -------------------------------------------------

    def _path(self, key: str) -> str:
        if checked_key(key) == TEMPORARY or key.startswith(TEMPORARY + "/"):
            raise InvalidInput(f"Names below {TEMPORARY}/ are reserved for temporary files.", store=self.uri, key=key)
        return os.path.join(self._root, key)

    @contextmanager
    def _opened(self, verb: str, key: str) -> Iterator[tuple[int, int]]:
        """The open file, and its size."""
        path = self._path(key)
        with os_errors(verb, self.uri, key, READS):
            file = os.open(path, os.O_RDONLY)
            try:
                yield file, regular(os.fstat(file)).st_size
            finally:
                os.close(file)

    @contextmanager
    def _folder_of(self, key: str) -> Iterator[tuple[int, str]]:
        """The open directory of the object, created and synced with its parents, and the name in it."""
        path, name = os.path.split(self._path(key))
        if path not in self._synced_folders:
            self._make_folder(path)
        try:
            folder = open_folder(path)
        except FileNotFoundError:  # removed since it was remembered
            self._synced_folders.clear()
            self._make_folder(path)
            folder = open_folder(path)
        try:
            yield folder, name
        finally:
            os.close(folder)

    def _make_folder(self, path: str) -> None:
        """Create the directory and sync its name, and those of its parents up to the root.

        Existing ones are synced too: another process may have created them without a sync yet.
        """
        if path in self._synced_folders:
            return
        if path != self._root:
            self._make_folder(os.path.dirname(path))
        make_synced(path)
        self._synced_folders.add(path)

    # -- temporary files -------------------------------------------------------

    def _link(self, key: str, data: Bytes | Sequence[Bytes], folder: int, name: str) -> None:
        buffers = as_buffers(data)
        try:
            if not self._link_nameless(buffers, folder, name):
                with self._staged(lambda file: write(file, buffers)) as path:
                    os.link(path, name, dst_dir_fd=folder)
        except FileExistsError as error:
            # The existing object may be our own, from a try whose directory sync failed. The caller may
            # recognise it as its own, so it must be as durable as after a successful put.
            os.fsync(folder)
            if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                raise InvalidInput("A folder has the object's name.", store=self.uri, key=key) from error
            raise AlreadyExists("An object with that name exists already.", store=self.uri, key=key) from error
        os.fsync(folder)

    def _link_nameless(self, buffers: Sequence[memoryview], folder: int, name: str) -> bool:
        """Write, sync and link a nameless file. False, with nothing done, if these are not supported."""
        if not self.nameless_files or self._refused_nameless:
            return False
        try:
            file = os.open(".", os.O_TMPFILE | os.O_WRONLY, 0o666, dir_fd=folder)
        except OSError as error:
            if error.errno not in _NO_NAMELESS_FILES:
                raise
            # A directory that was just removed also gives ENOENT, which says nothing about the file system.
            self._refused_nameless = error.errno != errno.ENOENT
            return False
        try:
            write(file, buffers)
            os.fsync(file)
            os.link(f"/proc/self/fd/{file}", name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=True)
        finally:
            os.close(file)
        return True

    @contextmanager
    def _staged(self, fill: Callable[[int], None]) -> Iterator[str]:
        """The path of a filled and synced temporary file, which is deleted afterwards."""
        folder = os.path.join(self._root, TEMPORARY)
        path = os.path.join(folder, uuid.uuid4().hex)
        try:
            file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        except FileNotFoundError:
            os.makedirs(folder, exist_ok=True)
            file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        try:
            try:
                fill(file)
                os.fsync(file)
            finally:
                os.close(file)
            yield path
        finally:
            with suppress(FileNotFoundError):
                os.unlink(path)

    def _replace(self, key: str, fill: Callable[[int], None]) -> None:
        with self._folder_of(key) as (folder, name), self._staged(fill) as path:
            os.rename(path, name, dst_dir_fd=folder)
            os.fsync(folder)

    # -- walking ---------------------------------------------------------------

    def _entries(self, prefix: str) -> Iterator[os.DirEntry[str]]:
        with os_errors("list", self.uri, prefix):
            try:
                with os.scandir(os.path.join(self._root, prefix)) as entries:
                    found = list(entries)
            except OSError as error:
                if error.errno not in ABSENT:
                    raise
                return
        for entry in found:
            if f"{prefix}{entry.name}" != TEMPORARY:
                yield entry

    def _walk(self, prefix: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
        folders = [] if prefix.startswith(TEMPORARY + "/") else [prefix]
        while folders:
            folder = folders.pop()
            for entry in self._entries(folder):
                if entry.is_dir():
                    folders.append(f"{folder}{entry.name}/")
                elif entry.is_file():
                    yield f"{folder}{entry.name}", entry

    def _seen(self, prefix: str) -> Iterator[ObjectInfo]:
        for key, entry in self._walk(prefix):
            with suppress(FileNotFoundError):  # deleted since the directory was read
                yield _info(key, entry.stat())


def _path_of(uri: str) -> str:
    if "\0" in uri:
        raise InvalidInput("A path must not contain a NUL character.", uri=uri[:200])
    if not uri.startswith("file://"):
        return os.path.abspath(uri)
    host, slash, path = uri.removeprefix("file://").partition("/")
    if host not in ("", "localhost") or not slash:
        raise InvalidInput("A file:// URI must have three slashes and an absolute path: file:///data/table.", uri=uri)
    return os.path.abspath("/" + unquote(path))


def _info(key: str, status: os.stat_result) -> ObjectInfo:
    return ObjectInfo(key, status.st_size, datetime.fromtimestamp(status.st_mtime, UTC))
