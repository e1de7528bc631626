"""Many schedules, over several processes: which seeds are run, what they covered, and the first one that breaks a
promise, shrunk.

A pair is where one party stood when another one went on. Of every two seeds the one is run whose cast has brought more
new pairs lately. A seed replays alone, whatever was run before it.
"""

from __future__ import annotations

import logging
import multiprocessing
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

import structlog

from tests.simulation.patches import simulated
from tests.simulation.shrink import shrunk, table
from tests.simulation.world import World, cast_of

APART = 1_000_000_000
"""Between the first seeds of two processes."""
_FADING = 0.8


@dataclass
class Share:
    """What one process did."""

    done: int = 0
    seconds: float = 0.0
    """Of CPU."""
    pairs: set[tuple[str, str]] = field(default_factory=set)
    broken: str | None = None
    """The first violation, and how to replay it."""


class Steering:
    """Which seed comes next."""

    def __init__(self, first: int) -> None:
        self._next = first
        self._worth: dict[tuple[str, ...], float] = defaultdict(lambda: 100.0)

    def seeds(self) -> Iterator[int]:
        while True:
            yield max((self._next, self._next + 1), key=lambda seed: self._worth[cast_of(seed)])
            self._next += 2

    def learn(self, cast: tuple[str, ...], fresh: int) -> None:
        self._worth[cast] = self._worth[cast] * _FADING + fresh * (1 - _FADING)


def share(first: int, schedules: int, seconds: float) -> Share:
    """So many schedules, or as many as fit into these seconds of CPU."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    mine, start, steering = Share(), time.process_time(), Steering(first)
    with simulated():
        for seed in steering.seeds() if schedules > 1 else [first]:
            outcome = World(seed).run()
            mine.done += 1
            steering.learn(tuple(outcome.cast), len(outcome.pairs - mine.pairs))
            mine.pairs |= outcome.pairs
            mine.seconds = time.process_time() - start
            if outcome.violation is not None:
                mine.broken = f"replay with HEADGATE_SEED={seed} SCHEDULES=1\n{table(shrunk(outcome))}"
            if mine.broken or mine.done >= schedules or mine.seconds > seconds:
                break
    return mine


def search(first: int, schedules: int, seconds: float, processes: int) -> list[Share]:
    """The same over several processes, of which each has its share."""
    if schedules == 1:
        processes = 1
    # Spawned: a child of a process that has used Lance must not use it.
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        count = -(-schedules // processes)
        shares = [pool.submit(share, first + at * APART, count, seconds / processes) for at in range(processes)]
        return [one.result() for one in shares]
