"""Memory and file descriptors of every part, sampled, and whether they grow."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
import psutil
from soak_world import World

EVERY = 2.0
WARM_UP = 45.0
"""Seconds of a life that do not count: caches, compilers and pools fill."""
SHORTEST = 90.0
"""Seconds that must be left of a life to say whether it grows."""


@dataclass(frozen=True)
class Sample:
    """One part at one time."""

    at: float
    part: str
    pid: int
    megabytes: float
    descriptors: int


@dataclass(frozen=True)
class Slope:
    """How the longest life of a part went."""

    part: str
    minutes: float
    megabytes_per_minute: float
    descriptors_per_minute: float


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
                pid = min(one.pid for one in processes)
                self.samples.append(Sample(at, part, pid, round(memory, 1), descriptors))

    def slopes(self) -> list[Slope]:
        """Of every part that lived long enough."""
        found = []
        for part in sorted({one.part for one in self.samples}):
            own = [one for one in self.samples if one.part == part]
            lives = [list(life) for _, life in groupby(own, lambda one: one.pid)]
            longest = max(lives, key=lambda life: life[-1].at - life[0].at)
            warm = [one for one in longest if one.at - longest[0].at > WARM_UP]
            if warm and warm[-1].at - warm[0].at >= SHORTEST:
                minutes = np.array([one.at for one in warm]) / 60
                memory = np.polyfit(minutes, [one.megabytes for one in warm], 1)[0]
                descriptors = np.polyfit(minutes, [one.descriptors for one in warm], 1)[0]
                found.append(Slope(part, round(minutes[-1] - minutes[0], 1), round(memory, 2), round(descriptors, 2)))
        return found
