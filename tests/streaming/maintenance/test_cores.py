"""Turns of maintenance jobs on Spark's cores: real threads, no Spark."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from headgate.streaming.maintenance.cores import CalledOff, CoreTurns
from tests.support.closing import Background

PATIENCE = 60.0


class Job:
    """A thread that has its turn until it is told to end."""

    def __init__(self, turns: CoreTurns, tasks: int, cores: int) -> None:
        self.has_turn = threading.Event()
        self.end = threading.Event()
        self._turns, self._tasks, self._cores = turns, tasks, cores
        self.thread = Background(self._run)

    def _run(self) -> None:
        with self._turns.turn(self._tasks, self._cores):
            self.has_turn.set()
            assert self.end.wait(PATIENCE), "nobody ended it"


@contextmanager
def waiting(turns: CoreTurns, tasks: int, cores: int) -> Iterator[Job]:
    """A job that is known to stand in the line."""
    before = turns.waiting
    job = Job(turns, tasks, cores)
    while turns.waiting == before and not job.has_turn.is_set():
        time.sleep(0.001)
    assert not job.has_turn.is_set()
    yield job
    job.end.set()
    job.thread.result()


def test_on_two_cores_one_job_at_a_time_and_a_flush_comes_before_the_next_compaction() -> None:
    turns = CoreTurns()
    compaction = Job(turns, 1, 1)
    assert compaction.has_turn.wait(PATIENCE)
    with waiting(turns, 1, 1) as flush, waiting(turns, 1, 1) as next_compaction:
        compaction.end.set()
        assert flush.has_turn.wait(PATIENCE)
        assert not next_compaction.has_turn.is_set()
        flush.end.set()
        assert next_compaction.has_turn.wait(PATIENCE)


def test_a_job_with_more_tasks_than_there_are_cores_has_its_turn_alone() -> None:
    turns = CoreTurns()
    small = Job(turns, 1, 2)
    assert small.has_turn.wait(PATIENCE)
    with waiting(turns, 9, 2) as large:
        small.end.set()
        assert large.has_turn.wait(PATIENCE)


def test_a_job_that_is_called_off_leaves_the_line_and_takes_no_turn() -> None:
    turns, over = CoreTurns(), threading.Event()
    first = Job(turns, 1, 1)
    assert first.has_turn.wait(PATIENCE)

    def stopped() -> None:
        with turns.turn(1, 1, over.is_set):
            raise AssertionError("it has its turn")

    dead = Background(stopped)
    while not turns.waiting:
        time.sleep(0.001)
    with waiting(turns, 1, 1) as behind:
        over.set()
        with pytest.raises(CalledOff):
            dead.result()
        assert turns.waiting == 1
        first.end.set()
        assert behind.has_turn.wait(PATIENCE)
    with pytest.raises(CalledOff), turns.turn(1, 1, over.is_set):
        raise AssertionError("it has its turn")


def test_a_job_that_fails_gives_its_place_back() -> None:
    turns = CoreTurns()
    for _ in range(3):
        with pytest.raises(ValueError, match="failed"), turns.turn(1, 1):
            raise ValueError("failed")


def test_jobs_of_many_streams_never_have_more_tasks_together_than_they_may() -> None:
    turns, guard, chance = CoreTurns(), threading.Lock(), random.Random(7)
    running: list[int] = []
    most: list[int] = []

    def stream(own: list[int]) -> None:
        for tasks in own:
            with turns.turn(tasks, 4):
                with guard:
                    running.append(tasks)
                    most.append(sum(running))
                with guard:
                    running.remove(tasks)

    sizes = [[chance.randint(1, 4) for _ in range(200)] for _ in range(6)]
    threads = [Background(partial(stream, one)) for one in sizes]
    for thread in threads:
        thread.result()
    assert len(most) == 6 * 200
    assert 1 < max(most) <= 4
    assert turns.waiting == 0
