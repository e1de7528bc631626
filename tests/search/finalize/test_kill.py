"""kill -9 of a real process that finalizes an index on local disk: the next one finishes, and nothing is left over."""

from __future__ import annotations

import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

from headgate.connectors.lance.files import end_of
from headgate.search.finalize.finalize import FINALIZE_STEPS, finalize
from headgate.search.finalize.marker import read_segment
from headgate.search.finalize.segment import MARKER, OURS, SUFFIXES, Segment, final_name
from tests.support.indexes import Staged, contents, files_in, folder, make_base, reference, stage
from tests.support.network import replayable, seed_of_run

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
    command = [sys.executable, "-m", "tests.support.finalizing", staged.uri, str(staged.index_id), str(built)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
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


# -- lance#7272: eight at once, killed at each step, over a torn marker and partial files --------------

COMPARED_FILES = ("docs", "invert", "tokens")
"""Per part, `part_<n>_<name>.lance`: every byte. Beside them the marker, `metadata.lance`, and no other file."""

COMPARED_FIELDS = (
    "index_id",
    "fragments",
    "files",
    "marker_size",
    "documents",
    "settings",
    "facts",
)
"""Of the segment that the marker describes: these, which are all it has. Of the marker's own keys: every one."""


def clean_run(staged: Staged) -> dict[str, bytes]:
    """What one finalizer leaves that nobody disturbs."""
    staged.finalized()
    return contents(staged.path)


def damage(staged: Staged, clean: dict[str, bytes]) -> None:
    """A marker that is torn, a final that is cut off, one that is another's."""
    cut, foreign = final_name(0, "invert"), final_name(1, "docs")
    for name, data in ((MARKER, clean[MARKER][:-7]), (cut, clean[cut][: len(clean[cut]) // 2]), (foreign, b"foreign")):
        (staged.path / name).write_bytes(data)


def is_as_clean(staged: Staged, clean: dict[str, bytes]) -> None:
    """Content against content, file by file and field by field; then the closing checks."""
    there = contents(staged.path)
    parts = range(len(staged.built.parts))
    assert set(SUFFIXES) == set(COMPARED_FILES)
    assert set(there) == set(clean) == {*(final_name(part, name) for part in parts for name in COMPARED_FILES), MARKER}
    assert [name for name in there if there[name] != clean[name] and name != MARKER] == []
    assert end_of(memoryview(there[MARKER])).metadata == end_of(memoryview(clean[MARKER])).metadata
    assert OURS in end_of(memoryview(there[MARKER])).metadata
    segment = read_segment(folder(staged.uri, staged.index_id))
    assert segment is not None
    assert tuple(Segment.__dataclass_fields__) == COMPARED_FIELDS
    staged.serves(segment)


@contextmanager
def finalizers(
    staged: Staged, built: Path, steps: Sequence[str]
) -> Iterator[list[tuple[str, subprocess.Popen[bytes]]]]:
    """Processes that are about to finalize, each with the step at which it will die."""
    arguments = ["-m", "tests.support.finalizing", staged.uri, str(staged.index_id), str(built)]
    started = [
        subprocess.Popen(
            [sys.executable, *arguments, step],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for step in steps
    ]
    try:
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == b"begin\n"
        yield list(zip(steps, started, strict=True))
    finally:
        for process in started:
            process.kill()
            process.communicate()


def go(*processes: subprocess.Popen[bytes]) -> list[int]:
    """Let them begin, all at once; how they ended."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
    return [process.wait() for process in processes]


def test_lance_7272_finalizers_killed_at_each_step_leave_what_one_clean_run_leaves(
    copy_staged: Callable[[], Staged], tmp_path: Path
) -> None:
    """The first four die before there is a marker, the other two are at it together."""
    clean = clean_run(copy_staged())
    staged, built = copy_staged(), tmp_path / "built"
    built.write_bytes(pickle.dumps(staged.built))
    damage(staged, clean)
    with finalizers(staged, built, FINALIZE_STEPS) as begun:
        for step, process in begun[:4]:
            assert go(process) == [-signal.SIGKILL], step
            assert set(staged.built.staged()) <= set(files_in(staged.path)), f"staging is whole after {step}"
        assert go(*(process for _, process in begun[4:])) == [-signal.SIGKILL, -signal.SIGKILL]
    staged.finalized()  # takes what those that died had staged beside
    is_as_clean(staged, clean)


def test_lance_7272_eight_finalizers_at_once_leave_what_one_clean_run_leaves(
    copy_staged: Callable[[], Staged],
) -> None:
    clean = clean_run(copy_staged())
    staged = copy_staged()
    damage(staged, clean)
    ready = threading.Barrier(8)
    ended: list[Segment | BaseException] = []

    def work() -> None:
        mine = folder(staged.uri, staged.index_id)
        ready.wait(60)
        try:
            ended.append(finalize(mine, staged.built))
        except BaseException as error:
            ended.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [one for one in ended if one != ended[0] or isinstance(one, BaseException)] == []
    staged.finalized()  # one may have staged its marker while another cleaned up
    is_as_clean(staged, clean)


@pytest.mark.deep
def test_lance_7272_eight_processes_at_once_killed_anywhere_leave_what_one_clean_run_leaves_20_rounds(
    copy_staged: Callable[[], Staged], tmp_path: Path
) -> None:
    clean = clean_run(copy_staged())
    built = tmp_path / "built"
    for number in range(20):
        staged = copy_staged()
        built.write_bytes(pickle.dumps(staged.built))
        damage(staged, clean)
        # One that meets a valid marker never comes to its step, and ends well.
        with finalizers(staged, built, [*FINALIZE_STEPS, "none", "none"]) as begun:
            codes = go(*(process for _, process in begun))
        assert codes[-2:] == [0, 0], f"round {number}"
        assert set(codes) <= {0, -signal.SIGKILL}, f"round {number}"
        staged.finalized()
        is_as_clean(staged, clean)
        shutil.rmtree(staged.uri)
