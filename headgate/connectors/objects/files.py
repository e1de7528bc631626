"""What the local store asks of the operating system: whole writes, whole reads, synced directories."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from contextlib import suppress

_MOST_PARTS = min(os.sysconf("SC_IOV_MAX"), 1024) if "SC_IOV_MAX" in os.sysconf_names else 16
"""How many buffers one writev takes; POSIX promises 16."""
_COPY_STEP = 8 << 20
"""Bytes a copy holds in memory at a time: large enough to stream, small beside an entry."""


def open_folder(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY)


def sync_path(path: str) -> bool:
    """Sync a file or directory. False: it is not there (any more)."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    return True


def make_synced(path: str) -> None:
    parent = os.path.dirname(path)
    try:
        os.mkdir(path)
    except FileNotFoundError:
        make_synced(parent)
        with suppress(FileExistsError):
            os.mkdir(path)
    except FileExistsError:
        # A root that was there before us may lie in a directory that we may pass but not read.
        with suppress(PermissionError):
            sync_path(parent)
        return
    sync_path(parent)


def write(file: int, buffers: Sequence[memoryview]) -> None:
    """Write every byte, however little the kernel takes at a time."""
    pending = [part for part in buffers if part.nbytes]
    pending.reverse()
    while pending:
        batch = pending[: -_MOST_PARTS - 1 : -1]
        written = os.writev(file, batch)
        while pending and written >= pending[-1].nbytes:
            written -= pending.pop().nbytes
        if written:
            pending[-1] = pending[-1][written:]


def read(file: int, start: int, length: int) -> memoryview:
    parts = []
    while length > 0 and (part := os.pread(file, length, start)):
        parts.append(part)
        start += len(part)
        length -= len(part)
    return memoryview(parts[0] if len(parts) == 1 else b"".join(parts))


def copy_all(source: int, target: int) -> None:
    position = 0
    while part := os.pread(source, _COPY_STEP, position):
        write(target, [memoryview(part)])
        position += len(part)


def regular(status: os.stat_result) -> os.stat_result:
    if not stat.S_ISREG(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    return status
