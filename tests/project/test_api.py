"""What `import headgate` gives: completion, types, and nothing loaded before it is used."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import headgate

LIGHT = """
import sys, headgate
assert not {"pyspark", "lance", "pyarrow"} & set(sys.modules), "loaded before it was used"
assert headgate.errors.Fenced.__name__ == "Fenced"
"""


def test_completion_shows_every_name_and_each_can_be_had() -> None:
    assert {"create_table", "errors", "ShardSink", "CompactLimits", "SinkOptions"} <= set(dir(headgate))
    for name in headgate.__all__:
        assert getattr(headgate, name) is not None
    assert headgate.__version__ == version("headgate")


def test_an_import_loads_neither_spark_nor_lance() -> None:
    done = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_types_travel_with_the_package() -> None:
    assert (Path(headgate.__file__).parent / "py.typed").exists()
