"""kill -9 of a real process that puts and flushes: every acknowledged row is there, none twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import uuid
from collections import Counter
from pathlib import Path

import pytest

from tests.support.datasets import PLAIN, make_table, seen
from tests.support.network import replayable, seed_of_run

SHARD = uuid.UUID(int=31)

CHILD = """
import sys, uuid
import pyarrow as pa
from headgate.shards.config import WriterConfig
from headgate.shards.writer import ShardWriter
uri, start = sys.argv[1], int(sys.argv[2])
schema = pa.schema([pa.field("id", pa.int64(), False), pa.field("note", pa.string())])
writer = ShardWriter.open(uri, uuid.UUID(int=31), WriterConfig(max_memtable_rows=7))
for i in range(start, start + 100_000):
    print("try", i, flush=True)
    writer.put(pa.record_batch([pa.array([i], pa.int64()), pa.array(["n"])], schema=schema))
    print("ack", i, flush=True)
"""


def _kill(tmp_path: Path, rounds: int) -> None:
    seed = seed_of_run(os.environ.get("HEADGATE_SEED"))
    with replayable(seed, f"{rounds} rounds"):
        _rounds(tmp_path, rounds, random.Random(seed))


def _rounds(tmp_path: Path, rounds: int, chance: random.Random) -> None:
    uri = make_table(tmp_path, PLAIN)
    acked: set[int] = set()
    tried: set[int] = set()
    for number in range(rounds):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, uri, str(number * 100_000)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        # Killed after some output, anywhere between two lines of it.
        for line in [child.stdout.readline() for _ in range(chance.randint(1, 80))]:
            _note(line, acked, tried)
        os.kill(child.pid, signal.SIGKILL)
        for line in child.stdout:
            _note(line, acked, tried)
        child.wait()
        counts = Counter(i for i, _ in seen(uri, SHARD))
        where = f"round {number}"
        assert sorted(acked - set(counts)) == [], f"acknowledged rows are lost: {where}"
        assert [i for i, count in counts.items() if count > 1] == [], f"rows are there twice: {where}"
        assert set(counts) <= tried, f"rows that nobody put: {where}"
    assert len(acked) > rounds


def _note(line: str, acked: set[int], tried: set[int]) -> None:
    word, _, number = line.strip().partition(" ")
    if number.isdigit():
        (acked if word == "ack" else tried).add(int(number))


def test_killed_3_times_every_acknowledged_row_is_there_and_none_twice(tmp_path: Path) -> None:
    _kill(tmp_path, 3)


@pytest.mark.deep
def test_killed_100_times_every_acknowledged_row_is_there_and_none_twice(tmp_path: Path) -> None:
    _kill(tmp_path, 100)
