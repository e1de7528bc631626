"""What is done to the parts of a soak: kills, pauses, faults of the networks, and drivers that wake up too late.

Chosen by a seed: the same seed does the same things in the same order, each with the same lots, whatever the blows
before it met; the machine's timing is its own, and with it when a driver is spared.
"""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from contextlib import suppress

import psutil

from tests.soak.soak_world import World
from tests.support.network import FAULTS, varied

CALM = {
    *(("kill", part) for part in ("driver", "jvm", "workers")),
    *(("pause", part) for part in ("driver", "jvm")),
    ("zombie", "driver"),
}
"""What is left out when one life of each process of ours is to be long enough to measure."""

ACTIONS: tuple[tuple[str, str], ...] = (
    *(("kill", part) for part in ("driver", "jvm", "workers", "broker", "s3", "toxiproxy")),
    *(("pause", part) for part in ("driver", "jvm", "workers", "broker", "s3", "toxiproxy")),
    *(("fault", network) for network in ("s3", "kafka")),
    *(("fault", network) for network in ("s3", "kafka")),
    *(("cut", network) for network in ("s3", "kafka")),
)


class Fire:
    """One thing after the other."""

    def __init__(self, world: World, seed: int, *, zombies: bool) -> None:
        self._world, self._seed, self._number = world, seed, 0
        self._all = [*ACTIONS, *([("zombie", "driver")] if zombies else [])]
        self._bag: list[tuple[str, str]] = []
        self.counts: Counter[str] = Counter()
        self.late: list[str] = []
        """Drivers that were taken over and did not stop."""

    def once(self, *, calm: bool = False) -> str:
        """The next of a shuffled bag, so that everything happens before anything happens twice. What was done."""
        self._number += 1
        self._chance = random.Random(f"{self._seed} blow {self._number}")
        if not self._bag:
            self._bag = list(self._all)
            self._chance.shuffle(self._bag)
        what, whom = self._bag.pop()
        if calm and (what, whom) in CALM:
            what, whom = "fault", "s3"
        told = getattr(self, f"_{what}")(whom)
        if told is None:
            return f"{what} {whom}: there was none"
        self.counts[f"{what} {whom}" if what != "fault" else told] += 1
        return str(told)

    # -- each returns what was done, None where there was nobody to do it to ---------------

    def _kill(self, part: str) -> str | None:
        if part in ("s3", "broker", "toxiproxy"):
            server = getattr(self._world, part)
            server.kill()
            time.sleep(self._chance.uniform(0, 2))
            server.start()
        elif not _send(self._some(part), signal.SIGKILL):
            return None
        return f"kill {part}"

    def _pause(self, part: str) -> str | None:
        chosen = self._some(part)
        if part == "driver":
            chosen += self._some("jvm")
        seconds = self._chance.uniform(1, 6)
        if not _send(chosen, signal.SIGSTOP):
            return None
        time.sleep(seconds)
        _send(chosen, signal.SIGCONT)
        return f"pause {part} {seconds:.1f} s"

    def _fault(self, network: str) -> str:
        fault = varied(self._chance.choice(FAULTS), self._chance)
        seconds = self._chance.uniform(2, 8)
        with self._world.networks[network].under(fault):
            time.sleep(seconds)
        return f"{fault.name} on {network}"

    def _cut(self, network: str) -> str:
        self._world.networks[network].cut()
        time.sleep(self._chance.uniform(0.5, 6))
        self._world.networks[network].mend()
        return f"cut {network}"

    def _zombie(self, part: str) -> str | None:
        """The driver and all it has stand still until a successor has committed; then they wake and must stop."""
        with self._world.lock:
            return self._taken_over(part)

    def _taken_over(self, part: str) -> str | None:
        world = self._world
        # One that has not begun holds no stream yet: woken, it would rightly take it over from its successor.
        if not world.wait_for_batch(120):
            return None
        old = world.ingest
        assert old is not None
        parts = world.processes()
        asleep = [one for name in (part, "jvm", "workers") for one in parts.get(name, [])]
        if old.process.poll() is not None or not asleep:
            return None
        _send(asleep, signal.SIGSTOP)
        world.ingest = world.start_ingest()
        committed = world.wait_for_batch(120)
        _send(asleep, signal.SIGCONT)
        end = time.monotonic() + 90
        while old.process.poll() is None and time.monotonic() < end:
            world.supervise()
            time.sleep(0.1)
        if old.process.poll() is None:
            self.late.append(f"{old.log}: it was taken over (committed: {committed}) and goes on")
            old.end_family()
        else:
            world.ends[old.error()] += 1
        return "zombie"

    def _some(self, part: str) -> list[psutil.Process]:
        """One worker by chance; of other parts all there is."""
        found = self._world.processes().get(part, [])
        return [self._chance.choice(found)] if part == "workers" and found else list(found)


def _send(processes: list[psutil.Process], number: int) -> int:
    """To how many, of those that are still there."""
    sent = 0
    for one in processes:
        with suppress(psutil.Error):
            one.send_signal(number)
            sent += 1
    return sent
