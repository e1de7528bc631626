"""Kills of writing processes, few in CI and 500 in deep. What they find is told by `make kills` in the same way."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kills.kills import PER_SHARD, ShardUnderFire, kill
from tests.kills.kills import Report as Killed
from tests.support.network import seed_of_run

Record = Callable[[str, object], None]


def run(folder: Path, count: int, drivers: int, record_property: Record) -> None:
    seed = seed_of_run(os.environ.get("HEADGATE_SEED"))
    report = kill(folder, count, seed, drivers=drivers)
    record_property("found", ["Kills of writers", report.facts()])
    assert report.holds, f"replay with HEADGATE_SEED={seed}: {report}"
    assert report.kills == count
    assert report.rows > count, "hardly anything was written: the kills came too early"


def test_killed_writers_lose_no_acknowledged_row(tmp_path: Path, record_property: Record) -> None:
    run(tmp_path, PER_SHARD // 2, 0, record_property)


@pytest.mark.deep
@pytest.mark.spark
@pytest.mark.kafka
def test_500_kills_of_writers_and_drivers_lose_no_acknowledged_row(tmp_path: Path, record_property: Record) -> None:
    run(tmp_path, 500, 50, record_property)


def test_a_row_that_is_lost_is_told(tmp_path: Path) -> None:
    shard, report = ShardUnderFire(tmp_path), Killed(0)
    shard.acked.add(1)
    shard.check(report)
    assert (report.lost, report.holds) == (1, False)
