"""Ten minutes of coverage-guided fuzzing, shared by the four codecs."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SECONDS = 150
CODECS = ("entry", "manifest", "record", "table")


@pytest.mark.deep
@pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None,
    reason="atheris is not installed: it has no wheel for every Python and machine; .venv/bin/pip install atheris",
)
@pytest.mark.parametrize("name", CODECS)
def test_whatever_the_bytes_a_codec_ends_in_an_error_of_ours(
    tmp_path: Path, name: str, record_property: Callable[[str, object], None]
) -> None:
    options = [f"-max_total_time={SECONDS}", f"-artifact_prefix={tmp_path}/"]
    command = [sys.executable, "-m", "tests.faults.fuzz", name, *options]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-4000:]
    tried = re.search(r"number_of_executed_units: (\d+)", ended.stderr)
    assert tried is not None
    record_property("found", ["Fuzzed codecs", {"codec": name, "inputs": int(tried[1]), "seconds": SECONDS}])
