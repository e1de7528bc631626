"""A process that finalizes an index until it is killed: `python -m tests.support.finalizing URI INDEX_ID BUILT [STEP]`.

BUILT is a file of the test that started it. "begin" goes to standard output before, "done" after. With a STEP it waits
for a line on standard input before it begins, and kills itself with SIGKILL when it comes to that step of `finalize`;
"none" is no step.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import uuid
from pathlib import Path

from headgate.connectors.objects import open_store
from headgate.search.finalize.finalize import finalize
from headgate.search.finalize.segment import IndexFolder
from headgate.steps import watching


def main(uri: str, index_id: str, built: str, step: str | None = None) -> None:
    import lance.file  # noqa: F401 - loaded before the clock starts

    expected = pickle.loads(Path(built).read_bytes())
    folder = IndexFolder(open_store(uri), uuid.UUID(index_id))

    def watch(reached: str) -> None:
        if reached == step:
            os.kill(os.getpid(), signal.SIGKILL)

    os.write(1, b"begin\n")
    if step is not None:
        sys.stdin.readline()
    with watching(watch):
        finalize(folder, expected)
    os.write(1, b"done\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
