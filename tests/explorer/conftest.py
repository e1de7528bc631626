from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.explorer.exploring import Explored


@pytest.fixture
def told(record_property: Callable[[str, object], None], request: pytest.FixtureRequest) -> Callable[[Explored], None]:
    """A line of what a search saw, for the summary of the run; the trace is printed, `pytest -rP` shows it."""

    def tell(explored: Explored) -> None:
        record_property("told", explored.summary)
        ended = explored.fault or ("every reachable state holds" if explored.complete else "stopped; held so far")
        model = f"{request.path.stem.removeprefix('test_explored_')}: {explored.name}"
        row = {"model": model, "states": explored.states, "transitions": explored.transitions, "ended": ended}
        record_property("found", ["States that were visited", row])
        print(explored)

    return tell
