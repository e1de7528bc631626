"""Every interleaving of direct writers of one shard: opens, puts, flushes, garbage collection of entries and manifests.

In every state each acknowledged row is read exactly once (invariant 1), no predecessor's put succeeds after its
successor's open has returned (3), no position is missing (4), the next writer can open (5), nothing that was named not
durable is visible (R24), and nobody is fenced by a claim that never held the shard.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.explorer.exploring import Explored, explore
from tests.explorer.shard_model import Bounds, shard_model

SMALL = [
    Bounds("two writers", writers=2, rows=2, flushes=3, collects=True),
    Bounds("three writers", writers=3, rows=1, flushes=2, collects=True),
    Bounds("an append in flight", writers=2, rows=2, flushes=2, collects=True, in_flight=True),
]
LARGE = [
    Bounds("three writers, two rows each", writers=3, rows=2, flushes=3, collects=True, looks=False),
    Bounds("four writers", writers=4, rows=1, flushes=2, collects=True, looks=False),
    Bounds("appends in flight of three writers", writers=3, rows=1, flushes=1, collects=True, in_flight=True),
]


@pytest.mark.parametrize(
    "bounds", [*SMALL, *(pytest.param(one, marks=pytest.mark.deep) for one in LARGE)], ids=lambda bounds: bounds.name
)
def test_no_interleaving_breaks_a_promise(bounds: Bounds, told: Callable[[Explored], None]) -> None:
    model = shard_model(bounds)
    explored = explore(model)
    told(explored)
    assert explored.fault is None, str(explored)
    assert explored.complete
    assert explored.witnessed == {one.name for one in model.witnesses}, "the bounds are too small to show anything"
