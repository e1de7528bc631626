"""A small file system of its own, which a test can fill."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def small_disk(path: Path, megabytes: int) -> Iterator[bool]:
    """Made at the path, where this process may mount one; else a plain directory is there. Whether it was made."""
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(path)]
    try:
        mounted = os.geteuid() == 0 and subprocess.run(mount, capture_output=True).returncode == 0
    except OSError:
        mounted = False
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(path)], check=True)


@contextlib.contextmanager
def filled(disk: Path) -> Iterator[None]:
    """While it lasts, no byte finds room."""
    file = os.open(disk / "ballast", os.O_CREAT | os.O_WRONLY)
    with contextlib.suppress(OSError):
        while os.write(file, bytes(4096)):
            pass
    os.close(file)
    try:
        yield
    finally:
        (disk / "ballast").unlink()
