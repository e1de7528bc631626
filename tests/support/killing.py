"""Rounds of kill -9 of a real writing process, on any store: every acknowledged row is there, none twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
import uuid

from headgate.connectors.objects import open_store
from headgate.connectors.objects.port import ObjectStore
from tests.support.closing import closing_checks, home_of, visible, wal_positions
from tests.support.network import replayable, seed_of_run

ROUND = 1_000_000
"""Rows of one round start at a multiple of this."""


def write_and_kill(root: str, shard_id: uuid.UUID, number: int, chance: random.Random, *, late: bool) -> set[int]:
    """The rows that were acknowledged before the process was killed, at a random moment; `late`: after a few."""
    mode = chance.choice(["durable", "grouped"])
    command = [sys.executable, "-m", "tests.support.writing", root, str(shard_id), str(ROUND * number), mode]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        # One round in five dies while it opens, the others after so many acknowledgements.
        lines = chance.randint(20, 60) if late else chance.choice([0, 1, *[chance.randint(2, 60)] * 8])
        told = [process.stdout.readline() for _ in range(lines)]
        time.sleep(chance.random() * 0.02)
        process.send_signal(signal.SIGKILL)
        told += process.stdout.readlines()
    # The last line may be torn: what the parent did not get was not acknowledged.
    return {int(line) for line in told if line.endswith(b"\n") and line != b"open\n"}


def kill_again_and_again(root: str, rounds: int) -> None:
    """`root` may be on S3, with credentials in the environment."""
    seed = seed_of_run(os.environ.get("HEADGATE_SEED"))
    with replayable(seed, f"{rounds} rounds"):
        _rounds(root, rounds, random.Random(seed))


def _rounds(root: str, rounds: int, chance: random.Random) -> None:
    store: ObjectStore = open_store(root)
    shard_id = uuid.uuid4()
    shard = home_of(store).shard(shard_id)
    acked: set[int] = set()
    for number in range(1, rounds + 1):
        acked |= write_and_kill(root, shard_id, number, chance, late=number == rounds)
        seen = visible(shard)
        assert len(seen) == len(set(seen)), f"rows are there twice in round {number}"
        assert acked <= set(seen), f"acknowledged rows are lost in round {number}: {acked - set(seen)}"
    assert len(acked) > rounds, "hardly anything was written: the kills came too early"
    positions = wal_positions(shard)
    assert positions == list(range(positions[-1] + 1))
    # A server may still store what the last writer had sent when it was killed.
    tried = {*seen, *range(ROUND * rounds, ROUND * rounds + 10_000)}
    closing_checks(store, shard_id, acked, tried)
