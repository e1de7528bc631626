"""Every interleaving of flushes, compactions and collections of one shard with power cuts, whatever a cut takes back.

In every state each row is somewhere that a reader looks, and what a checkpoint holds is there.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.explorer.exploring import Explored, explore
from tests.explorer.power_model import PowerBounds, power_model
from tests.explorer.rules import Rules

SMALL = [
    PowerBounds("our flushes"),
    PowerBounds("native's flushes", native=True, compactions=1, collections=1),
    PowerBounds("a checkpoint", compactions=1, collections=1, pins=True),
]
LARGE = [
    PowerBounds("our flushes, two cuts", cuts=2),
    PowerBounds("native's flushes, two collections", native=True),
    PowerBounds("a checkpoint and two cuts", cuts=2, pins=True),
]


@pytest.mark.parametrize(
    "bounds", [*SMALL, *(pytest.param(one, marks=pytest.mark.deep) for one in LARGE)], ids=lambda bounds: bounds.name
)
def test_no_cut_takes_back_what_something_was_deleted_for(
    bounds: PowerBounds, told: Callable[[Explored], None]
) -> None:
    model = power_model(bounds, Rules())
    explored = explore(model)
    told(explored)
    assert explored.fault is None, str(explored)
    assert explored.complete
    assert explored.witnessed == {one.name for one in model.witnesses}, "the bounds are too small to show anything"
