"""kill -9 of a real process that finalizes an index on local disk: the next one finishes, and nothing is left over."""

from __future__ import annotations

import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import time
from itertools import count
from pathlib import Path

import finalizing_process
import pytest
from index_tables import Staged, files_in, make_base, reference, stage
from network import replayable, seed_of_run

import headgate
from headgate.search.segment import MARKER

PACKAGE = Path(headgate.__file__).parent.parent
PARTS = 12


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Staged:
    """Many parts, so that a kill finds the process somewhere in between."""
    path = tmp_path_factory.mktemp("wide")
    uri = make_base(path, fragments=PARTS, rows=60)
    index_id, built = stage(uri, [[fragment] for fragment in range(PARTS)])
    return Staged(uri, index_id, built, reference(uri, path))


def finalize_and_kill(staged: Staged, built: Path, after: float | None) -> tuple[bool, float]:
    """Whether it was done when it was killed, and how long it took."""
    command = [sys.executable, finalizing_process.__file__, staged.uri, str(staged.index_id), str(built)]
    path = os.pathsep.join([str(PACKAGE), os.environ.get("PYTHONPATH", "")])
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begin\n"
        start = time.monotonic()
        if after is not None:
            time.sleep(after)
            process.send_signal(signal.SIGKILL)
        done = process.stdout.readline() == b"done\n"
        return done, time.monotonic() - start


def kill_again_and_again(wide: Staged, tmp_path: Path, rounds: int) -> None:
    seed = seed_of_run(os.environ.get("HEADGATE_SEED"))
    with replayable(seed, f"{rounds} rounds"):
        _rounds(wide, tmp_path, rounds, random.Random(seed))


def _rounds(wide: Staged, tmp_path: Path, rounds: int, chance: random.Random) -> None:
    built = tmp_path / "built"
    built.write_bytes(pickle.dumps(wide.built))
    span = None
    unfinished = 0
    for number in count():
        if number >= rounds and (unfinished > rounds // 4 or number == 4 * rounds):
            break
        uri = str(tmp_path / f"round-{number}")
        shutil.copytree(wide.uri, uri)
        staged = Staged(uri, wide.index_id, wide.built, wide.answers)
        if span is None:
            done, span = finalize_and_kill(staged, built, None)
            assert done, "without a kill it finishes"
            continue
        after = chance.random() * span
        done, _ = finalize_and_kill(staged, built, after)
        unfinished += not done
        if done:
            # The one that was measured may have been a slow one.
            span = after
        there = files_in(staged.path)
        assert MARKER in there or set(wide.built.staged()) <= set(there), f"staging went first in round {number}"
        try:
            staged.serves(staged.finalized())
        except Exception as error:
            raise AssertionError(f"round {number}") from error
        shutil.rmtree(uri)
    assert unfinished > rounds // 4, "the kills came too late"


def test_native_hole_10_ten_kills_of_a_finalize_lose_nothing_and_leave_nothing(wide: Staged, tmp_path: Path) -> None:
    kill_again_and_again(wide, tmp_path, 11)


@pytest.mark.deep
def test_fifty_kills_of_a_finalize_lose_nothing_and_leave_nothing(wide: Staged, tmp_path: Path) -> None:
    kill_again_and_again(wide, tmp_path, 51)
