"""A process whose daemon threads are in native calls when it ends: it ends with its own exit code, and soon."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headgate.streaming.spark.exit import LIMIT

CALLS = {
    "open a dataset": "look(uri)",
    "scan it": "dataset.to_table()",
    "write to it": "write_fragments(pa.RecordBatchReader.from_batches(rows.schema, made()), uri, mode='append')",
    "read Arrow's bytes": "ipc.open_stream(written).read_all()",
}
PROGRAM = """
import sys, threading, time
import lance, pyarrow as pa, pyarrow.ipc as ipc
from lance.fragment import write_fragments
import headgate
from headgate.connectors.lance.dataset import look
from headgate.streaming.spark import exit as process_exit

uri, call, limit = sys.argv[1:]
process_exit.LIMIT = float(limit)
rows = pa.table({"a": range(10_000)})
dataset = lance.write_dataset(rows, uri)
sink = pa.BufferOutputStream()
with ipc.new_stream(sink, rows.schema) as stream:
    stream.write_table(rows)
written = sink.getvalue()

def made():
    for _ in range(20):
        yield from rows.to_batches()

def rest():
    time.sleep(0.002)

def work():
    called.set()
    # As a line of the package: pyarrow's own functions leave no frame.
    exec(compile(f"while True:\\n    for _ in range(10): {call}\\n    rest()", headgate.__file__, "exec"))

process_exit.exit_after_native_calls()
called = threading.Event()
threading.Thread(target=work, daemon=True).start()
called.wait()
time.sleep(0.2)
sys.exit(5)
"""


def ends(tmp_path: Path, call: str, limit: float = LIMIT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "table"), call, str(limit)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_threads_in_native_calls_do_not_take_the_exit_code(tmp_path: Path, call: str) -> None:
    ended = ends(tmp_path, call)
    assert (ended.returncode, ended.stderr) == (5, "")


def test_a_thread_that_waits_is_not_waited_for(tmp_path: Path) -> None:
    """The limit of its wait is longer here than the test has time."""
    ended = ends(tmp_path, "threading.Event().wait()", limit=600)
    assert (ended.returncode, ended.stderr) == (5, "")
