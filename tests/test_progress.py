"""Progress of long calls: seen on a terminal and in a notebook, not in a pipe, and gone when the call is over."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import headgate
from headgate import progress

CALL = """
import sys, time
from headgate import progress
with progress.shown(None, "orders") as report:
    for done in range(1, 4):
        report("reading_rows", done, 3)
        time.sleep(0.2)
print("over")
"""


def seen_on_a_terminal(code: str) -> str:
    """What a program writes to stderr where that is a terminal."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=theirs, env=environment
    ) as running:
        os.close(theirs)
        parts = []
        while True:
            try:
                part = os.read(ours, 1 << 16)
            except OSError:  # Linux says so that nobody has the other end any more
                break
            if not part:
                break
            parts.append(part)
        assert running.wait(60) == 0
    os.close(ours)
    return b"".join(parts).decode()


def test_a_terminal_shows_a_bar_and_a_pipe_nothing() -> None:
    shown = seen_on_a_terminal(CALL)
    assert "orders: reading rows" in shown
    assert "3/3" in shown
    piped = subprocess.run([sys.executable, "-c", CALL], capture_output=True, text=True, timeout=60)
    assert (piped.stdout, piped.stderr) == ("over\n", "")


class OutStream(io.StringIO):
    """What the kernel of a notebook puts in the place of stderr."""


OutStream.__module__ = "ipykernel.iostream"


def test_a_notebook_shows_one_line_that_is_empty_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", cell := OutStream())
    monkeypatch.setattr(progress, "NOTEBOOK_SECONDS", 0.0)
    with progress.shown(None) as report:
        report("entries_of_shard", 1_000, 2_000)
        report("rows", 2_000, 0)
    written = cell.getvalue()
    assert "\n" not in written
    assert [one.strip() for one in written.split("\r")] == ["", "entries of shard 1,000/2,000", "rows 2,000", "", ""]


def test_a_notebook_gets_few_lines_and_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", cell := OutStream())
    monkeypatch.setattr(progress, "NOTEBOOK_SECONDS", 3600.0)
    with progress.shown(None) as report:
        for done in range(1, 1_001):
            report("rows", done, 1_000)
    assert [one.strip() for one in cell.getvalue().split("\r")][1:3] == ["rows 1/1,000", "rows 1,000/1,000"]


def test_what_a_caller_gives_gets_it_all(tmp_path: Path) -> None:
    table = headgate.create_table(tmp_path / "t", "id bigint not null", primary_key="id")
    with table:
        table.upsert(pa.table({"id": [1, 2]}, schema=table.schema))
    told: list[tuple[str, int, int]] = []
    headgate.fsck(table, progress=lambda *one: told.append(one))
    assert ("manifests of shards", 1, 1) in told
    told.clear()
    table.clone(tmp_path / "clone", progress=lambda *one: told.append(one))
    assert told[-1][0] == "objects copied"
