"""The environments of the lines of Spark, which `make test` and `make test-spark` make beside .venv."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from headgate.spark import versions

ROOT = Path(__file__).resolve().parents[2]
MADE = ".headgate-packages"
"""Written into an environment when all its packages are there."""
LINES = "HEADGATE_LINES"
"""The lines that must be there: without their environment a test fails, and is not skipped."""


def python_of(line: str) -> Path:
    """The Python that has a line of Spark: this one, or that of the line's own environment."""
    if line == versions.spark_line():
        return Path(sys.executable)
    own = ROOT / ".venv" if line == list(versions.LINES)[-1] else ROOT / f".venv-spark-{line}"
    # A half-made environment of a line would take the Spark of .venv, which is behind it on the path.
    if not (own / MADE).exists():
        missing = f"{own.name} is not there, or not whole: `make test-spark SPARK={line}` makes it"
        if line in os.environ.get(LINES, "").split():
            pytest.fail(missing)
        pytest.skip(missing)
    return own / "bin" / "python"
