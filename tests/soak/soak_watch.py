"""Memory and file descriptors of every part, sampled, and whether they grow."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from statistics import median

import psutil
from soak_world import World

EVERY = 2.0
WARM_UP = 45.0
"""Seconds of a life that do not count: caches, compilers and pools fill."""
SHORTEST = 90.0
"""Seconds that must be left of a life to say whether it grows."""
SHARE = 4
"""The first and the last of so many parts of it are compared, by their medians."""


@dataclass(frozen=True)
class Sample:
    """One part at one time."""

    at: float
    part: str
    pids: tuple[int, ...]
    megabytes: float
    descriptors: int


@dataclass(frozen=True)
class Growth:
    """How the longest life of a part went, once it was warm: in the beginning and in the end."""

    part: str
    minutes: float
    megabytes: tuple[float, float]
    descriptors: tuple[float, float]


@dataclass
class Watch:
    """All samples."""

    world: World
    began: float = field(default_factory=time.monotonic)
    samples: list[Sample] = field(default_factory=list)

    def run(self, stop: threading.Event) -> None:
        while not stop.wait(EVERY):
            at = time.monotonic() - self.began
            for part, processes in self.world.processes().items():
                self._sample(at, part, processes)

    def _sample(self, at: float, part: str, processes: list[psutil.Process]) -> None:
        with suppress(psutil.Error):
            if processes:
                memory = sum(one.memory_info().rss for one in processes) / 2**20
                descriptors = sum(one.num_fds() for one in processes)
                pids = tuple(sorted(one.pid for one in processes))
                self.samples.append(Sample(at, part, pids, round(memory, 1), descriptors))

    def growths(self) -> list[Growth]:
        """Of every part that lived long enough."""
        return growths(list(self.samples))

    def is_measured(self, part: str) -> bool:
        """Whether it has lived long enough by now."""
        return part in {one.part for one in self.growths()}


def growths(samples: Sequence[Sample]) -> list[Growth]:
    """Of every part one life of which was long enough. A life ends where a process of it is replaced."""
    found = []
    for part in sorted({one.part for one in samples}):
        own = [one for one in samples if one.part == part]
        lives = [list(life) for _, life in groupby(own, lambda one: one.pids)]
        longest = max(lives, key=lambda life: life[-1].at - life[0].at)
        warm = [one for one in longest if one.at - longest[0].at > WARM_UP]
        if warm and warm[-1].at - warm[0].at >= SHORTEST:
            size = max(1, len(warm) // SHARE)
            memory = (median(one.megabytes for one in some) for some in (warm[:size], warm[-size:]))
            descriptors = (median(one.descriptors for one in some) for some in (warm[:size], warm[-size:]))
            minutes = round((warm[-1].at - warm[0].at) / 60, 1)
            found.append(Growth(part, minutes, tuple(memory), tuple(descriptors)))
    return found
