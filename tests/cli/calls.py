"""A small table with one written shard, and `headgate` as a call or as a process."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
from click.testing import Result

from headgate.shards.config import WriterConfig
from headgate.shards.shard import TableHome
from headgate.shards.wal.entry import SourceRange, Tags
from headgate.shards.writer import ShardWriter

SHARD = uuid.UUID("6f1c2a7e-0d4b-4a53-9a53-0c8f7f1f2b11")
TAGS = Tags("attempt-1", (SourceRange("orders", 3, 10, 12),))
ROWS = pa.table({"id": pa.array([1, 2], pa.int64()), "text": ["a", "b"]})

Headgate = Callable[..., Result]

# A run in the background of a shell ignores Ctrl-C, and a child would inherit that.
_LISTEN = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
_COMMAND = (sys.executable, "-c", f"{_LISTEN}; from headgate.cli import main; main(prog_name='headgate')")


def started(*arguments: str, under: Sequence[str] = ()) -> subprocess.Popen[str]:
    """Start the command line as a process of its own, or of the command that is named."""
    return subprocess.Popen(
        [*under, *_COMMAND, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
    )


class OnTerminal:
    """The command line as a process whose screen is a terminal of this test's."""

    def __init__(self, *arguments: str, lines: int = 60, columns: int = 200) -> None:
        self._screen, side = pty.openpty()
        fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        unset = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
        environment = {name: value for name, value in os.environ.items() if name not in unset}
        self.process = subprocess.Popen(
            [*_COMMAND, *arguments], stdin=side, stdout=side, stderr=side, env={**environment, "TERM": "xterm"}
        )
        os.close(side)
        self.shown = ""

    def until(self, said: str) -> None:
        """Read the screen until it has shown a text; to its end where the text never comes."""
        while said not in self.shown and select.select([self._screen], [], [], 60)[0]:
            try:
                self.shown += os.read(self._screen, 65536).decode(errors="replace")
            except OSError:  # the other side is closed
                break
        assert said in self.shown, self.shown

    def end(self) -> int:
        """Ctrl-C; its exit code. What it shows on its way is read."""
        self.process.send_signal(signal.SIGINT)
        with suppress(AssertionError):
            self.until("\0")  # never shown: so to the end
        os.close(self._screen)
        return self.process.wait(60)


def opened(table: TableHome) -> ShardWriter:
    """A WAL-only writer; it fences an earlier one."""
    return ShardWriter.open(table, SHARD, WriterConfig(enable_memtable=False))


def wal_file(table: TableHome, position: int) -> Path:
    """The file of an entry."""
    return Path(table.uri) / table.shard(SHARD).wal_key(position)


def files_of(table: TableHome) -> dict[str, int]:
    """Every file of the table and its size."""
    root = Path(table.uri)
    return {str(path.relative_to(root)): path.stat().st_size for path in root.rglob("*") if path.is_file()}
