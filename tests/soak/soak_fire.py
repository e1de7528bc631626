"""What is done to the parts of a soak: kills, pauses, faults of the networks, and drivers that wake up too late.

Chosen by a seed: the same seed does the same things in the same order; the machine's timing is its own.
"""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from contextlib import suppress

import psutil
from network import FAULTS, varied
from soak_world import World

CALM = {("kill", "driver"), ("kill", "jvm"), ("pause", "driver"), ("zombie", "driver")}
"""What is left out when one life of the driver is to be long enough to measure."""

ACTIONS: tuple[tuple[str, str], ...] = (
    *(("kill", part) for part in ("driver", "jvm", "workers", "broker", "s3", "toxiproxy")),
    *(("pause", part) for part in ("driver", "workers", "broker", "s3", "toxiproxy")),
    *(("fault", network) for network in ("s3", "kafka")),
    *(("fault", network) for network in ("s3", "kafka")),
    *(("cut", network) for network in ("s3", "kafka")),
)


class Fire:
    """One thing after the other."""

    def __init__(self, world: World, chance: random.Random, *, zombies: bool) -> None:
        self._world, self._chance = world, chance
        self._all = [*ACTIONS, *([("zombie", "driver")] if zombies else [])]
        self._bag: list[tuple[str, str]] = []
        self.counts: Counter[str] = Counter()
        self.late: list[str] = []
        """Drivers that were taken over and did not stop."""

    def once(self, *, calm: bool = False) -> str:
        """The next of a shuffled bag, so that everything happens before anything happens twice. What was done."""
        if not self._bag:
            self._bag = list(self._all)
            self._chance.shuffle(self._bag)
        what, whom = self._bag.pop()
        if calm and (what, whom) in CALM:
            what, whom = "fault", "s3"
        told = getattr(self, f"_{what}")(whom)
        self.counts[f"{what} {whom}" if what != "fault" else told] += 1
        return str(told)

    def _kill(self, part: str) -> str:
        if part in ("s3", "broker", "toxiproxy"):
            server = getattr(self._world, part)
            server.kill()
            time.sleep(self._chance.uniform(0, 2))
            server.start()
        else:
            for one in self._some(part):
                one.kill()
        return f"kill {part}"

    def _pause(self, part: str) -> str:
        chosen = self._some(part)
        if part == "driver":
            chosen += self._some("jvm")
        seconds = self._chance.uniform(1, 6)
        _send(chosen, signal.SIGSTOP)
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

    def _zombie(self, part: str) -> str:
        """The driver and all it has stand still until a successor has committed; then they wake and must stop."""
        with self._world.lock:
            return self._taken_over(part)

    def _taken_over(self, part: str) -> str:
        world = self._world
        # One that has not begun holds no stream yet: woken, it would rightly take it over from its successor.
        if not world.wait_for_batch(120):
            return "zombie: there was none"
        old = world.ingest
        assert old is not None
        parts = world.processes()
        asleep = [one for name in (part, "jvm", "workers") for one in parts.get(name, [])]
        if old.process.poll() is not None or not asleep:
            return "zombie: there was none"
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


def _send(processes: list[psutil.Process], number: int) -> None:
    for one in processes:
        with suppress(psutil.Error):
            one.send_signal(number)
