"""A short soak: every kind of blow once or so; the long ones are `make soak`. Replay with HEADGATE_SEED=<seed>."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.soak.soak import soak
from tests.soak.soak_report import Report, picture
from tests.soak.soak_watch import Sample, growths
from tests.support.network import seed_of_run, why_no_toxiproxy
from tests.support.servers import SOURCES

SECONDS = float(os.environ.get("HEADGATE_SOAK_FIRE_SECONDS", "60"))


def run(folder: Path, seconds: float, record_property: Callable[[str, object], None], keyed: bool) -> Report:
    if reason := why_no_toxiproxy():
        pytest.skip(reason)
    if SOURCES["versitygw"].binary is None:
        pytest.skip("the soak's S3 server is a process that can be killed: versitygw, and it is not there")
    seed = seed_of_run(os.environ.get("HEADGATE_SEED"))
    print(f"HEADGATE_SEED={seed}")
    report = soak(folder, seconds, seed, keyed=keyed, tell=print)
    for row in report.facts():
        record_property("found", [report.title, row])
    record_property("told", f"soak, seed {seed}: {sum(report.fire.values())} blows, {report.batches} batches")
    assert report.holds, f"replay with HEADGATE_SEED={seed}; logs are in {folder}\n{report.page()}"
    assert report.records > 0
    assert sum(report.fire.values()) > 3
    return report


@pytest.mark.deep
@pytest.mark.spark
@pytest.mark.kafka
@pytest.mark.s3
def test_a_stream_under_fire_ends_with_the_table_being_the_topic(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    report = run(tmp_path, SECONDS, record_property, keyed=False)
    assert {"soak.md", "soak.json", "memory.svg"} <= {path.name for path in tmp_path.iterdir()}
    assert report.beside["read"] > 0
    assert report.beside["objects collected in the end"] > 0


@pytest.mark.deep
@pytest.mark.spark
@pytest.mark.kafka
@pytest.mark.s3
@pytest.mark.parametrize("keyed", [True, False], ids=["key", "no key"])
def test_ten_minutes_of_fire_cost_no_row_and_no_memory(
    tmp_path: Path, record_property: Callable[[str, object], None], keyed: bool
) -> None:
    report = run(tmp_path, 600, record_property, keyed)
    assert report.growing == []


def test_the_picture_breaks_its_line_where_a_process_was_replaced() -> None:
    samples = [Sample(at, "driver", pid, 100.0 + at, 10) for at, pid in ((0, 1), (1, 1), (2, 2), (3, 2))]
    assert picture(samples).count("<polyline") == 2


def lived(
    part: str, minutes: float, per_minute: float, descriptors: int = 0, *, pid: int = 1, megabytes: float = 200.0
) -> list[Sample]:
    """One process, of which a sample was taken every two seconds."""
    return [
        Sample(at, part, pid, megabytes + per_minute * at / 60, 20 + int(descriptors * at / 60))
        for at in (2.0 * number for number in range(int(minutes * 30)))
    ]


@pytest.mark.parametrize(
    ("samples", "told"),
    [
        (lived("driver", 12, 0.5), 0),
        (lived("driver", 12, 8), 1),
        (lived("driver", 12, 0, descriptors=2), 1),
        (lived("workers", 5, 8), 1),
        (lived("workers", 12, 8) + lived("workers", 11, 0, pid=2, megabytes=300), 0),
        (lived("workers", 12, 8) + lived("workers", 11, 8, pid=2), 1),
        (lived("workers", 12, 12) + lived("workers", 11, 0, pid=2, megabytes=250), 1),
        (lived("jvm", 12, 50), 0),
        (lived("jvm", 25, 50), 1),
        (lived("jvm", 12, 0, descriptors=2), 1),
        (lived("broker", 12, 50), 0),
    ],
    ids=[
        *("flat", "a leak of memory", "a leak of descriptors", "a worker's"),
        *("a worker that comes to what its sibling holds", "siblings that both leak", "one that passes its sibling"),
        *("a heap that breathes", "a JVM's leak"),
        *("a JVM's leak of descriptors", "a part that is not ours"),
    ],
)
def test_what_grows_over_a_long_life_is_told(samples: list[Sample], told: int) -> None:
    report = Report(0, "", 0, {}, {}, 0, {}, 0, {}, 0, 0, 0, 0, 0, 0, [], growths=growths(samples))
    assert len(report.growing) == told


def test_a_life_that_was_broken_off_too_early_says_nothing() -> None:
    assert growths(lived("driver", 2, 100)) == []
