"""System calls of the local store: complete writes, complete reads, synced directories."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from contextlib import suppress

_MOST_PARTS = min(os.sysconf("SC_IOV_MAX"), 1024) if "SC_IOV_MAX" in os.sysconf_names else 16
"""Maximum buffers of one writev; POSIX guarantees 16."""
_COPY_STEP = 8 << 20
"""Bytes that a copy holds in memory at a time."""
_KERNEL_STEP = 1 << 30
"""Bytes that one call asks the kernel to copy; it may copy fewer."""
_NO_KERNEL_COPY = frozenset((errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EBADF, errno.EPERM))
"""Errors if the kernel cannot copy between two files: different file systems, or one without support."""


def open_folder(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY)


def sync_path(path: str) -> bool:
    """Sync a file or directory. False if it does not exist."""
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
        # The parent of an existing root may permit traversal but not reading.
        with suppress(PermissionError):
            sync_path(parent)
        return
    sync_path(parent)


def write(file: int, buffers: Sequence[memoryview]) -> None:
    """Write all bytes, even if single writes are partial."""
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
    """Copy every byte, inside the kernel if it can copy between the two files."""
    position = _copied_by_kernel(source, target) if hasattr(os, "copy_file_range") else 0
    while part := os.pread(source, _COPY_STEP, position):
        write(target, [memoryview(part)])
        position += len(part)


def _copied_by_kernel(source: int, target: int) -> int:
    """The number of bytes copied: all, or those before the kernel failed."""
    position = 0
    try:
        while copied := os.copy_file_range(source, target, _KERNEL_STEP, position):
            position += copied
    except OSError as error:
        if error.errno not in _NO_KERNEL_COPY:
            raise
    return position


def regular(status: os.stat_result) -> os.stat_result:
    if not stat.S_ISREG(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    return status
