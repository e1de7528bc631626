"""Memory and file descriptors of every process of a soak, sampled, and whether they grow."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import median

import psutil

from tests.soak.soak_world import World

EVERY = 2.0
WARM_UP = 45.0
"""Seconds of a life that do not count: caches, compilers and pools fill."""
SHORTEST = 90.0
"""Seconds that must be left of a life to say whether it grows."""
SHARE = 4
"""The first and the last of so many parts of it are compared, by their medians."""
FLAT = {"driver", "jvm", "workers"}
"""Parts that run our code and must not grow; the servers are others'."""


@dataclass(frozen=True)
class Sample:
    """One process at one time."""

    at: float
    part: str
    pid: int
    megabytes: float
    descriptors: int


@dataclass(frozen=True)
class Growth:
    """How the longest life of a part's processes went, once it was warm: in the beginning and in the end."""

    part: str
    minutes: float
    megabytes: tuple[float, float]
    descriptors: tuple[float, float]
    most: float
    """Megabytes, at any time of that life."""
    siblings: float = 0.0
    """Megabytes that the largest other process of the part held in its own beginning: what one of its kind needs. One
    that comes to that later has not grown; where all of them grow, none has begun there.
    """


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
                for one in processes:
                    self._sample(at, part, one)

    def _sample(self, at: float, part: str, process: psutil.Process) -> None:
        with suppress(psutil.Error):
            # One that has ended and was not waited for has nothing any more.
            if memory := process.memory_info().rss:
                self.samples.append(Sample(at, part, process.pid, round(memory / 2**20, 1), process.num_fds()))

    def growths(self) -> list[Growth]:
        """Of every part that lived long enough."""
        return growths(list(self.samples))

    def unmeasured(self) -> set[str]:
        """Parts that must be flat, and none of whose processes lived long enough by now."""
        return FLAT - {one.part for one in self.growths()}


def growths(samples: Sequence[Sample]) -> list[Growth]:
    """Of every part one process of which lived long enough."""
    found = []
    for part in sorted({one.part for one in samples}):
        own = lives([one for one in samples if one.part == part])
        longest = max(own, key=lambda life: life[-1].at - life[0].at)
        warm = _warm(longest)
        if warm:
            first, last = _ends(warm)
            memory = median(one.megabytes for one in first), median(one.megabytes for one in last)
            descriptors = median(one.descriptors for one in first), median(one.descriptors for one in last)
            minutes = round((warm[-1].at - warm[0].at) / 60, 1)
            most = max(one.megabytes for one in longest)
            others = [_ends(other)[0] for life in own if life is not longest and (other := _warm(life))]
            siblings = max((median(one.megabytes for one in other) for other in others), default=0.0)
            found.append(Growth(part, minutes, memory, descriptors, most, siblings))
    return found


def _warm(life: Sequence[Sample]) -> list[Sample]:
    """What counts of a life; nothing of one that is too short to tell."""
    warm = [one for one in life if one.at - life[0].at > WARM_UP]
    return warm if warm and warm[-1].at - warm[0].at >= SHORTEST else []


def _ends(warm: list[Sample]) -> tuple[list[Sample], list[Sample]]:
    """Its first and its last part."""
    size = max(1, len(warm) // SHARE)
    return warm[:size], warm[-size:]


def lives(samples: Sequence[Sample]) -> list[list[Sample]]:
    """The samples of each process."""
    found: dict[int, list[Sample]] = {}
    for one in samples:
        found.setdefault(one.pid, []).append(one)
    return list(found.values())
