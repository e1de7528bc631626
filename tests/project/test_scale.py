"""The benchmark of growth runs, small, and says which exponents it saw."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from benchmarks import scale


def test_every_step_is_measured_against_every_size() -> None:
    command = ["--preset", "quick", "--rounds", "1", "--results", "", "--output", "json"]
    done = CliRunner().invoke(scale.main, command, catch_exceptions=False)
    growth, times = json.loads(done.stdout)
    sizes = [(axis, size) for axis, sizes in scale.PRESETS["quick"].items() for size in sizes]
    assert [(row["what grows"], row["size"]) for row in times["rows"]] == sizes
    steps = ["open", "batch", "scan", "checkpoint", "gc"]
    assert [(row["what grows"], row["step"]) for row in growth["rows"]] == [
        (axis, step) for axis in scale.PRESETS["quick"] for step in steps
    ]


def test_exponents_are_the_power_that_time_grows_with() -> None:
    assert scale.exponent([10, 100], [2.0, 2.0]) == 0
    assert scale.exponent([10, 100], [2.0, 20.0]) == pytest.approx(1)
    assert scale.exponent([1, 4, 16], [1.0, 5.0, 256.0]) == pytest.approx(2)
