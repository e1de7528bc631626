"""Thousands of kill -9 of writing processes, one after the other: no acknowledged row is lost, none is there twice.

Direct writers work on one shard until it has had its share of kills; then it is checked to the end and another one is
begun, so that the time of a round does not grow. Every so many kills it is a driver of a stream, its worker or its JVM;
in the end the stream's table must be the topic.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from headgate.connectors.objects import open_store
from headgate.dev.broker import LocalBroker
from tests.support.closing import closing_checks, home_of, visible

PER_SHARD = 40
"""Kills after which a shard is closed."""
ROUND = 1_000_000
"""Rows of one round start at a multiple of this."""


@dataclass
class Report:
    """What was done, and what is left to complain about."""

    seed: int
    kills: int = 0
    drivers: int = 0
    """Of the kills, those of a stream's processes."""
    rows: int = 0
    """That were acknowledged to direct writers."""
    lost: int = 0
    doubled: int = 0
    slowest: float = 0.0
    """Seconds from the start of a direct writer until it could write."""
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Whether every promise was kept."""
        return not (self.lost or self.doubled or self.failures)

    def facts(self) -> dict[str, Any]:
        """For people."""
        found = asdict(self)
        del found["failures"]
        found["seed"] = f"`HEADGATE_SEED={self.seed}`"
        found |= {"slowest": f"{self.slowest:.2f} s", "seconds": round(self.seconds)}
        return {**found, "kills a second": round(self.kills / max(self.seconds, 0.001), 1)}


class Zygote:
    """Starts writers."""

    def __init__(self, folder: Path) -> None:
        self._pipe = folder / "told"
        os.mkfifo(self._pipe)
        command = [sys.executable, "-m", "tests.kills.zygote"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    @contextmanager
    def writer(self, *arguments: str) -> Iterator[tuple[int, Any]]:
        """Its process id, and the lines that it tells."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps([str(self._pipe), *arguments]), file=self.process.stdin, flush=True)
        pid = int(self.process.stdout.readline())
        with self._pipe.open("rb") as told:
            yield pid, told

    def close(self) -> None:
        self.process.communicate()


class ShardUnderFire:
    """One shard, and what its writers were told."""

    def __init__(self, root: Path) -> None:
        self.root, self.id = root, uuid.uuid4()
        self.store = open_store(str(root))
        self.shard = home_of(self.store).shard(self.id)
        self.acked: set[int] = set()
        self.kills = 0

    def round(self, zygote: Zygote, chance: random.Random) -> float:
        """A writer is killed, soon or after some rows. Seconds until it could write; 0 where it died before."""
        self.kills += 1
        mode, lines = chance.choice(["durable", "grouped"]), chance.choice([0, 1, *[chance.randint(2, 40)] * 8])
        began, opened = time.monotonic(), 0.0
        with zygote.writer(str(self.root), str(self.id), str(ROUND * self.kills), mode) as (pid, told):
            found = []
            for _ in range(lines):
                found.append(told.readline())
                opened = opened or time.monotonic() - began
            time.sleep(chance.random() * 0.01)
            os.kill(pid, signal.SIGKILL)
            found += told.readlines()
        # The last line may be torn: what nobody got was not acknowledged.
        self.acked |= {int(line) for line in found if line.endswith(b"\n") and line != b"open\n"}
        return opened

    def check(self, report: Report) -> None:
        """What its readers see."""
        seen = Counter(visible(self.shard))
        report.lost += len(self.acked - seen.keys())
        report.doubled += sum(count > 1 for count in seen.values())

    def close(self, report: Report) -> None:
        """With nobody else there: a successor, its fence, a collection."""
        self.check(report)
        report.rows += len(self.acked)
        tried = {*visible(self.shard), *range(ROUND * self.kills, ROUND * self.kills + 10_000)}
        closing_checks(self.store, self.id, self.acked, tried)


def kill(folder: Path, count: int, seed: int, *, drivers: int = 50, tell: Callable[[str], object] = print) -> Report:
    """So many kills; every `drivers`-th of a stream's processes, 0: none of them."""
    chance, report, began = random.Random(seed), Report(seed), time.monotonic()
    shard: ShardUnderFire | None = None
    with ExitStack() as stack:
        zygote = Zygote(folder)
        stack.callback(zygote.close)
        stream = _stream(stack, folder, chance) if drivers and count >= drivers else None
        try:
            while report.kills < count:
                report.kills += 1
                if stream is not None and report.kills % drivers == 0:
                    report.drivers += 1
                    stream.round(chance.choice(("driver", "worker", "jvm")))
                    continue
                shard = shard or ShardUnderFire(folder / f"table {report.kills}")
                report.slowest = max(report.slowest, shard.round(zygote, chance))
                if shard.kills == PER_SHARD:
                    shard.close(report)
                    shard = None
                elif shard.kills % 5 == 0:
                    shard.check(report)
                if report.kills % 100 == 0:
                    tell(f"{report.kills} kills, {report.kills / (time.monotonic() - began):.1f} a second")
            if shard is not None:
                shard.close(report)
            if stream is not None:
                stream.finish()
        except (AssertionError, subprocess.TimeoutExpired) as error:
            report.failures.append(f"after {report.kills} kills: {error}")
    report.seconds = time.monotonic() - began
    return report


def _stream(stack: ExitStack, folder: Path, chance: random.Random) -> Any:
    """A stream whose processes are killed, as `tests.recovery` does."""
    from tests.recovery.test_random_kills import SHARDING, Run
    from tests.support.runs import make_table

    place = folder / "stream"
    place.mkdir()
    broker = stack.enter_context(LocalBroker(place / "kafka"))
    run = Run(place, broker, chance, make_table(place, SHARDING, "id"), None)
    stack.callback(run.end)
    return run
