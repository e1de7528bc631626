from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from exploring import Explored

HERE = Path(__file__).parent

# A stream without Spark serves these tests as well.
sys.path[:0] = [str(HERE), str(HERE.parent / "streaming"), str(HERE.parent / "faults")]


@pytest.fixture
def told(record_property: Callable[[str, object], None]) -> Callable[[Explored], None]:
    """A line of what a search saw, for the summary of the run; the trace is printed, `pytest -rP` shows it."""

    def tell(explored: Explored) -> None:
        record_property("told", explored.summary)
        print(explored)

    return tell
