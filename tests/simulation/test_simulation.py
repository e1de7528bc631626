"""The product's own code under seeded schedules: no order of steps and no fault breaks a promise.

HEADGATE_SEED replays a run from its first schedule, SCHEDULES says how many.
"""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pytest
import structlog

from tests.simulation.ablations import ABLATIONS, Ablation
from tests.simulation.patches import simulated
from tests.simulation.scheduler import Deviation, Scheduler, SimLock
from tests.simulation.search import search
from tests.simulation.shrink import LONGEST, shrunk, table, turns
from tests.simulation.world import Outcome, World
from tests.support.network import seed_of_run

IN_CI, SECONDS_IN_CI = 2_000, 36.0
"""Schedules, and seconds of CPU that they may take."""
IN_DEEP = 100_000
SOON, AT_LAST = 400, 20_000
"""Schedules within which a missing rule is felt: by a cast that feels it soon, and by any cast."""


@pytest.fixture
def product() -> Iterator[None]:
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    with simulated():
        yield
    structlog.configure(**before)


def run_schedules(schedules: int, seconds: float, record_property: Callable[[str, object], None]) -> None:
    """From the seed of the run on: so many, or as many as fit. Tells what was covered. Fails with the history."""
    first, start = seed_of_run(os.environ.get("HEADGATE_SEED")), time.monotonic()
    print(f"HEADGATE_SEED={first}")
    shares = search(first, schedules, seconds, processes=min(2, os.cpu_count() or 1))
    for one in shares:
        if one.broken is not None:
            pytest.fail(one.broken)
    done, cpu = sum(one.done for one in shares), sum(one.seconds for one in shares)
    pairs = set().union(*(one.pairs for one in shares))
    points = {point for pair in pairs for point in pair}
    row = {"first seed": str(first), "schedules": done, "pause points": len(points), "pairs of them": len(pairs)}
    record_property("found", ["Schedules without a broken promise", row])
    print(
        f"{done} schedules from seed {first}, {done / (time.monotonic() - start):.0f} a second, "
        f"{done / cpu:.0f} a second of CPU; {len(pairs)} pairs of {len(points)} pause points were seen"
    )


def first_broken(ablation: Ablation, schedules: int, cast: Sequence[str] | None) -> Outcome:
    """Shrunk."""
    with ablation.applied():
        for seed in range(ablation.first if cast else 0, schedules + (ablation.first if cast else 0)):
            outcome = World(seed, cast=cast).run()
            if outcome.violation is not None:
                return shrunk(outcome)
    pytest.fail(f"{ablation.rule}: no promise breaks within {schedules} schedules")


def test_no_schedule_breaks_a_promise(record_property: Callable[[str, object], None]) -> None:
    asked = os.environ.get("SCHEDULES")
    run_schedules(int(asked or IN_CI), SECONDS_IN_CI if asked is None else float("inf"), record_property)


@pytest.mark.deep
def test_no_schedule_of_many_breaks_a_promise(record_property: Callable[[str, object], None]) -> None:
    run_schedules(IN_DEEP, float("inf"), record_property)


@pytest.mark.usefixtures("product")
@pytest.mark.parametrize("ablation", ABLATIONS, ids=lambda one: one.rule)
def test_without_the_rule_a_promise_breaks_soon(ablation: Ablation) -> None:
    """From a seed that is known to find it: where the product asks its store in another order, a later one does."""
    outcome = first_broken(ablation, SOON, ablation.cast)
    print(table(outcome))
    with ablation.applied():
        again = World(outcome.seed, list(outcome.deviations), outcome.without, outcome.cast).run()
    assert (again.violation, again.history) == (outcome.violation, outcome.history), "the history does not replay"
    assert turns(outcome) <= LONGEST


@pytest.mark.deep
@pytest.mark.usefixtures("product")
@pytest.mark.parametrize("ablation", ABLATIONS, ids=lambda one: one.rule)
def test_without_the_rule_a_promise_breaks(ablation: Ablation) -> None:
    outcome = first_broken(ablation, AT_LAST, None)
    print(table(outcome))
    assert turns(outcome) <= LONGEST


def digest(seeds: range) -> str:
    """Of the histories of these schedules."""
    told = hashlib.sha256()
    for seed in seeds:
        outcome = World(seed).run()
        told.update(repr((outcome.violation, outcome.history)).encode())
    return told.hexdigest()


@pytest.mark.usefixtures("product")
def test_a_seed_is_a_history() -> None:
    """Also in another process, whose strings have other hashes."""
    seeds = range(6)
    for seed in seeds:
        drawn = World(seed).run()
        again = World(seed, list(drawn.deviations)).run()
        assert [*again.history] == [*drawn.history], f"seed {seed} does not replay by its deviations"
    code = (
        "from tests.simulation.test_simulation import digest, simulated\n"
        f"with simulated(): print(digest(range({seeds.stop})))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(sys.path)}
    other = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert other.stdout.split()[-1] == digest(seeds)


@pytest.mark.usefixtures("product")
def test_blocked_threads_are_not_let_go() -> None:
    """A thread that waits for a lock whose holder stands at a pause goes on once the holder has let it go."""
    plan = [Deviation("a", 1, "switch", "b"), Deviation("b", 1, "switch", "a")]
    scheduler, held, order = Scheduler(0, plan), SimLock(), []

    def take(name: str) -> None:
        if name == "b":
            scheduler.pause("before")
        with held:
            order.append(f"{name} has it")
            scheduler.pause("inside")
            order.append(f"{name} gives it back")

    for name in ("a", "b"):
        scheduler.thread(name, scheduler.process(name), partial(take, name)).start()
    scheduler.run()
    assert order == ["a has it", "a gives it back", "b has it", "b gives it back"]
