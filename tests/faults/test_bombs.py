"""Small bytes that ask for much end in an error of headgate's, and in no memory worth mentioning."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

MEGABYTES = 256


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak of memory is read from /proc")
def test_bombs_are_told_by_type_and_take_no_memory(record_property: Callable[[str, object], None]) -> None:
    command = [sys.executable, "-m", "tests.faults.bombs"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    found = [json.loads(line) for line in ended.stdout.splitlines()]
    assert len(found) > 25
    assert not [one for one in found if not one[1].startswith("HeadgateError")]
    assert not [one for one in found if one[2] > MEGABYTES]
    most = max(found, key=lambda one: one[2])
    record_property("found", ["Bombs", {"bombs": len(found), "most memory": f"{most[2]:.0f} MB, {most[0]}"}])
