"""A short soak: every kind of blow once or so; the long ones are `make soak`. Replay with HEADGATE_SEED=<seed>."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from network import seed_of_run, why_no_toxiproxy
from servers import SOURCES
from soak import soak
from soak_report import Report, picture
from soak_watch import Sample

SECONDS = float(os.environ.get("HEADGATE_SOAK_FIRE_SECONDS", "45"))


def run(folder: Path, seconds: float, record_property: Callable[[str, object], None], keyed: bool) -> Report:
    if reason := why_no_toxiproxy():
        pytest.skip(reason)
    if SOURCES["versitygw"].binary is None:
        pytest.skip("the soak's S3 server is a process that can be killed: versitygw, and it is not there")
    seed = seed_of_run(os.environ.get("HEADGATE_SEED"))
    print(f"HEADGATE_SEED={seed}")
    report = soak(folder, seconds, seed, keyed=keyed, tell=print)
    record_property("told", f"soak, seed {seed}: {sum(report.fire.values())} blows, {report.batches} batches")
    assert report.holds, f"replay with HEADGATE_SEED={seed}; logs are in {folder}\n{report.page()}"
    assert report.records > 0
    assert sum(report.fire.values()) > 3
    return report


@pytest.mark.spark
@pytest.mark.kafka
@pytest.mark.s3
def test_a_stream_under_fire_ends_with_the_table_being_the_topic(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    report = run(tmp_path, SECONDS, record_property, keyed=False)
    assert {"soak.md", "soak.json", "memory.svg"} <= {path.name for path in tmp_path.iterdir()}
    assert report.beside["read"] > 0


@pytest.mark.deep
@pytest.mark.spark
@pytest.mark.kafka
@pytest.mark.s3
@pytest.mark.parametrize("keyed", [True, False], ids=["key", "no key"])
def test_ten_minutes_of_fire_cost_no_row_and_no_memory(
    tmp_path: Path, record_property: Callable[[str, object], None], keyed: bool
) -> None:
    report = run(tmp_path, 600, record_property, keyed)
    assert {one.part for one in report.slopes} >= {"driver"}
    assert report.growing == []


def test_the_picture_breaks_its_line_where_a_process_was_replaced() -> None:
    samples = [Sample(at, "driver", pid, 100.0 + at, 10) for at, pid in ((0, 1), (1, 1), (2, 2), (3, 2))]
    assert picture(samples).count("<polyline") == 2
