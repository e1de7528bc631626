"""A power cut in a test: what a disk has afterwards of what was written before.

Two ways, the same question:

1. `Recorder` needs no root. Lance never syncs (a test traces it), so all that makes anything durable in this process is
   `os.fsync`. Between two of them it notes what each file held and what names each folder had when it was last synced.
   From a `Cut` the disk is made anew, under one of several `READINGS` of what a file system may do.
2. `Ext4` is the real thing: a loop-mounted image, copied while it is mounted, and the copy mounted in its place. It
   needs root, and `why_no_ext4` says what is missing.
"""

from __future__ import annotations

import os
import random
import resource
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

READINGS = ("names", "nothing", "deletes")
"""What of everything that was not synced is there after the cut:

- names: as ext4 does it by delayed allocation: every name, and files whose bytes were never synced are empty.
- nothing: neither names, nor bytes, nor deletes.
- deletes: the deletes alone.

Any number is a further one: by that seed each name, delete and file takes its own chance.
"""

Reading = str | int
Names = Mapping[str, int]
Left = Mapping[str, bytes | None]
"""Bytes by path; None for a folder."""


@dataclass(frozen=True)
class Cut:
    """The disk at one moment. Inodes stand for files and folders."""

    label: str
    root: int
    note: Any
    """What the test had noted by then: rows that were acknowledged."""
    synced: Mapping[int, bytes]
    """Per file, its bytes when it was last synced."""
    named: Mapping[int, Names]
    """Per folder, its names when it was last synced."""
    folders: Mapping[int, Names]
    """Per folder, its names now."""
    bytes_now: Mapping[int, bytes]
    """Of files with other bytes than those that were synced."""

    def left(self, reading: Reading) -> Left:
        """What the disk has after the cut."""
        return dict(self._left("", self.root, reading, random.Random(reading)))

    def write(self, path: Path, reading: Reading) -> None:
        """Make `path` what the disk has after the cut."""
        shutil.rmtree(path)
        path.mkdir()
        for name, held in self.left(reading).items():
            if held is None:
                (path / name).mkdir()
            else:
                (path / name).write_bytes(held)

    def _left(
        self, under: str, folder: int, reading: Reading, chance: random.Random
    ) -> Iterator[tuple[str, bytes | None]]:
        for name, inode in sorted(self._names(folder, reading, chance).items()):
            if inode in self.folders or inode in self.named:
                yield f"{under}{name}", None
                yield from self._left(f"{under}{name}/", inode, reading, chance)
            else:
                yield f"{under}{name}", self._bytes(inode, reading, chance)

    def _names(self, folder: int, reading: Reading, chance: random.Random) -> Names:
        then, now = self.named.get(folder, {}), self.folders.get(folder, {})
        if reading == "names":
            return now
        if reading == "nothing":
            return then
        if reading == "deletes":
            return {name: inode for name, inode in then.items() if name in now}
        luck = {name: chance.random() < 0.5 for name in sorted({*then, *now})}
        found = {name: (now if kept else then).get(name) for name, kept in luck.items()}
        return {name: inode for name, inode in found.items() if inode is not None}

    def _bytes(self, inode: int, reading: Reading, chance: random.Random) -> bytes:
        then = self.synced.get(inode, b"")
        lucky = isinstance(reading, int) and chance.random() < 0.5
        return self.bytes_now.get(inode, then) if lucky else then


@dataclass
class Recorder:
    """Notes, at every `os.fsync` below a folder, what a cut would leave. What is there before counts as synced."""

    root: Path
    every: bool = True
    """A cut before each sync; otherwise only where the test asks for one."""
    note: Callable[[], Any] = lambda: None
    cuts: list[Cut] = field(default_factory=list)
    syncs: int = 0
    _synced: dict[int, bytes] = field(default_factory=dict)
    _named: dict[int, Names] = field(default_factory=dict)
    _held: list[int] = field(default_factory=list)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def __enter__(self) -> Recorder:
        _raise_limit()
        self._named, files = self._look()
        self._synced = {inode: path.read_bytes() for inode, path in files.items()}
        self._real = os.fsync
        os.fsync = self._fsync  # type: ignore[assignment]
        return self

    def __exit__(self, *_: object) -> None:
        os.fsync = self._real
        while self._held:
            os.close(self._held.pop())

    def cut(self, label: str = "") -> Cut:
        """The disk now."""
        with self._lock:
            folders, files = self._look()
            changed = {}
            for inode, path in files.items():
                held = path.read_bytes()
                if held != self._synced.get(inode):
                    changed[inode] = held
            made = Cut(
                label or f"before sync {self.syncs + 1}",
                os.stat(self.root).st_ino,
                self.note(),
                dict(self._synced),
                dict(self._named),
                folders,
                changed,
            )
            self.cuts.append(made)
            return made

    def _fsync(self, handle: int) -> None:
        # An inode that may be named again must not become another file's: it is held open.
        with self._lock:
            place = os.readlink(f"/proc/self/fd/{handle}")
            if place.startswith(str(self.root.resolve())):
                if self.every:
                    self.cut(f"before sync {self.syncs + 1}, of {place.removeprefix(str(self.root))}")
                self.syncs += 1
                self._held.append(os.dup(handle))
                inode = os.fstat(handle).st_ino
                if os.path.isdir(f"/proc/self/fd/{handle}"):
                    self._named[inode] = _names(Path(f"/proc/self/fd/{handle}"))
                else:
                    self._synced[inode] = _whole(handle)
        # The disk of a test need not be as slow as it would have to be.

    def _look(self) -> tuple[dict[int, Names], dict[int, Path]]:
        folders: dict[int, Names] = {}
        files: dict[int, Path] = {}
        waiting = [self.root]
        while waiting:
            folder = waiting.pop()
            try:
                found = _names(folder)
                folders[os.stat(folder).st_ino] = found
            except FileNotFoundError:
                continue
            for name, inode in found.items():
                path = folder / name
                if path.is_dir():
                    waiting.append(path)
                else:
                    files[inode] = path
        return folders, files


def _names(folder: Path) -> Names:
    with os.scandir(folder) as entries:
        return {entry.name: entry.inode() for entry in entries}


def _whole(handle: int) -> bytes:
    with open(f"/proc/self/fd/{handle}", "rb") as file:
        return file.read()


def _raise_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


# -- a real file system ------------------------------------------------------------------


class Ext4:
    """An ext4 of its own on a loop device, which loses power when it is told."""

    SIZE = 48 << 20

    def __init__(self, folder: Path) -> None:
        self.image, self.mount = folder / "disk.img", folder / "disk"
        self.mount.mkdir()
        with self.image.open("wb") as file:
            file.truncate(self.SIZE)
        _run("mkfs.ext4", "-q", "-F", str(self.image))
        _run("mount", "-o", "loop", str(self.image), str(self.mount))

    def lose_power(self) -> None:
        """What the device has by now is all that is left: the journal is replayed, and nothing else is known."""
        copy = self.image.with_suffix(".copy")
        shutil.copyfile(self.image, copy)
        self.close()
        os.replace(copy, self.image)
        _run("mount", "-o", "loop", str(self.image), str(self.mount))

    def close(self) -> None:
        """Unmount."""
        _run("umount", str(self.mount))


@contextmanager
def ext4(folder: Path) -> Iterator[Ext4]:
    disk = Ext4(folder)
    try:
        yield disk
    finally:
        disk.close()


def why_no_ext4() -> str | None:
    """Why this machine cannot mount one; None: it can."""
    if os.geteuid() != 0:
        return "a loop mount needs root"
    if missing := [name for name in ("mkfs.ext4", "mount", "umount") if shutil.which(name) is None]:
        return f"not on PATH: {', '.join(missing)}"
    with tempfile.TemporaryDirectory() as folder:
        try:
            with ext4(Path(folder)):
                return None
        except subprocess.CalledProcessError as error:
            return f"no loop mount: {error.stderr.decode().strip()[:200]}"


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
