"""A small table with one written shard, and `headgate` as a call or as a process."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
from click.testing import Result

from headgate.shards.config import WriterConfig
from headgate.shards.entry import SourceRange, Tags
from headgate.shards.shard import TableHome
from headgate.shards.writer import ShardWriter

SHARD = uuid.UUID("6f1c2a7e-0d4b-4a53-9a53-0c8f7f1f2b11")
TAGS = Tags("attempt-1", (SourceRange("orders", 3, 10, 12),))
ROWS = pa.table({"id": pa.array([1, 2], pa.int64()), "text": ["a", "b"]})

Headgate = Callable[..., Result]


def started(*arguments: str) -> subprocess.Popen[str]:
    """Start the command line as a process of its own."""
    # A run in the background of a shell ignores Ctrl-C, and a child would inherit that.
    listen = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    code = f"{listen}; from headgate.cli import main; main(prog_name='headgate')"
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
    )


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
