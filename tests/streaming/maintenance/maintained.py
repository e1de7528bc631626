"""Maintenance threads for tests: thresholds that anything passes, batches as a sink runs them, and patience."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from headgate.checkpoints.jobs.policy import BasePolicy
from headgate.checkpoints.stream.driver import StreamDriver
from headgate.streaming.maintenance.rules import MaintenanceLimits
from headgate.streaming.maintenance.schedule import Schedule
from headgate.streaming.maintenance.threads import Maintenance
from tests.support.tables import run_batch


class HandClock:
    """A clock that a test sets. Waiting takes its time all the same."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


PATIENCE = 180.0
NEVER = 1e9
EAGER = MaintenanceLimits(flush_bytes=1, flush_seconds=NEVER, compact_sstables=2)
KINDS = ["id", None]


def schedule(limits: MaintenanceLimits = EAGER, checkpoint_seconds: float = NEVER, **more: Any) -> Schedule:
    policy = BasePolicy(small_rows=10**6, max_small=3, target_rows=10**6, keep_versions=timedelta(days=1))
    return Schedule(limits, base=policy, checkpoint_seconds=checkpoint_seconds, **{"tidy_seconds": 0.0, **more})


def until(true: Callable[[], object], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(0.01)


def batch(driver: StreamDriver, maintenance: Maintenance, number: int) -> None:
    """As the sink does it."""
    maintenance.wait_for_room()
    run_batch(driver, number)
    maintenance.batch_done()
