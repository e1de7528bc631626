"""A process that finalizes an index until it is killed: `python finalizing_process.py URI INDEX_ID BUILT`.

BUILT is a file of the test that started it. "begin" goes to standard output before, "done" after.
"""

from __future__ import annotations

import os
import pickle
import sys
import uuid
from pathlib import Path

from headgate.connectors.objects import open_store
from headgate.search.finalize import finalize
from headgate.search.segment import IndexFolder


def main(uri: str, index_id: str, built: str) -> None:
    import lance.file  # noqa: F401 - loaded before the clock starts

    expected = pickle.loads(Path(built).read_bytes())
    folder = IndexFolder(open_store(uri), uuid.UUID(index_id))
    os.write(1, b"begin\n")
    finalize(folder, expected)
    os.write(1, b"done\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
