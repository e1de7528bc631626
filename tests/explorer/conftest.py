from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.explorer.exploring import Explored


@pytest.fixture
def told(record_property: Callable[[str, object], None]) -> Callable[[Explored], None]:
    """A line of what a search saw, for the summary of the run; the trace is printed, `pytest -rP` shows it."""

    def tell(explored: Explored) -> None:
        record_property("told", explored.summary)
        print(explored)

    return tell
