"""A process that writes to a shard until it is killed: `python -m tests.support.writing ROOT SHARD FIRST MODE`.

Each row's id goes to standard output once it is acknowledged, and not before. MODE is "durable"
(each of three threads waits for its own rows) or "grouped" (rows are put, then flushed together). ROOT may be on S3,
with credentials in the environment.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
import uuid

from headgate.connectors.objects import open_store
from headgate.shards.writer import ShardWriter
from tests.support.closing import ASYNC, WAL_ONLY, home_of, rows

THREADS = 3


def acknowledge(ids: list[int]) -> None:
    """One write each: lines of several threads never mix."""
    os.write(1, "".join(f"{one}\n" for one in ids).encode())


def durable(writer: ShardWriter, first: int) -> None:
    def work(thread: int) -> None:
        for number in itertools.count():
            row = first + THREADS * number + thread
            writer.put(rows(row))
            acknowledge([row])

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def grouped(writer: ShardWriter, first: int) -> None:
    for number in itertools.count():
        group = list(range(first + 5 * number, first + 5 * number + 5))
        for row in group:
            writer.put(rows(row))
        writer.flush()
        acknowledge(group)


def main(root: str, shard: str, first: str, mode: str) -> None:
    config = WAL_ONLY if mode == "durable" else ASYNC
    writer = ShardWriter.open(home_of(open_store(root)), uuid.UUID(shard), config)
    os.write(1, b"open\n")
    (durable if mode == "durable" else grouped)(writer, int(first))


if __name__ == "__main__":
    main(*sys.argv[1:])
