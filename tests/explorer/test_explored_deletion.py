"""Every interleaving of flushes, compactions, a checkpoint and collections of one shard, whoever sleeps for how long.

In every state each row is read (invariant 1), and everything that the manifest or a checkpoint names is there (5).
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.explorer.deletion_model import DeletionBounds, deletion_model
from tests.explorer.exploring import Explored, explore
from tests.explorer.rules import Rules

SMALL = [
    DeletionBounds("two writers of ours", "oo", flushes=3, collections=1, compactions=1),
    DeletionBounds("ours before native", "on", flushes=3, collections=2),
    DeletionBounds("native before ours", "no", flushes=3, collections=2),
    DeletionBounds("two flushes of one claim", "o", flushes=3, jobs=2, collections=1),
    DeletionBounds("a checkpoint", "oo", flushes=2, collections=1, compactions=1, pins=True),
]
LARGE = [
    DeletionBounds("two writers of ours, two collections", "oo", flushes=3, collections=2, compactions=1),
    DeletionBounds("three writers", "ono", flushes=3, collections=2, compactions=1),
    DeletionBounds("a checkpoint and two collections", "oo", flushes=3, collections=2, compactions=1, pins=True),
]


@pytest.mark.parametrize(
    "bounds", [*SMALL, *(pytest.param(one, marks=pytest.mark.deep) for one in LARGE)], ids=lambda bounds: bounds.name
)
def test_no_sleep_lets_a_collection_take_what_is_needed(
    bounds: DeletionBounds, told: Callable[[Explored], None]
) -> None:
    model = deletion_model(bounds, Rules())
    explored = explore(model)
    told(explored)
    assert explored.fault is None, str(explored)
    assert explored.complete
    assert explored.witnessed == {one.name for one in model.witnesses}, "the bounds are too small to show anything"
