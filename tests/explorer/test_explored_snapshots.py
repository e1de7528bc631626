"""Every interleaving of a reader with a stream that runs, is flushed, folded, compacted and collected under its hands.

What it returns is exactly what the log listed that it read, over all shards; a checkpoint made of it shows the same
rows for ever. See `test_explored_streams` for what else holds in every state.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.explorer.exploring import Explored, explore
from tests.explorer.snapshot_model import ReadBounds, snapshot_model
from tests.explorer.stream_parts import batches

ROWS = batches((0,), (0,))
BOTH = batches((0, 1), (0, 1))
READ = ("the reader is done", "the table has moved on from what was read", "an entry is collected")
BASE = ("the base has rows",)
PINNED = ("a checkpoint is taken",)

SMALL = [
    (
        ReadBounds(
            "a reader, one shard", (ROWS,), flushes=1, checkpoints=1, folds=1, compactions=1, collects=True, pins=True
        ),
        READ + BASE + PINNED,
    ),
    (ReadBounds("a reader, two shards", (BOTH,), shards=2, flushes=1, folds=1, collects=True), READ),
    (
        ReadBounds("a checkpoint, two shards", (BOTH,), shards=2, flushes=1, compactions=1, collects=True, pins=True),
        READ + PINNED,
    ),
    (ReadBounds("a reader, two drivers", (ROWS,) * 2, checkpoints=1, collects=True), READ),
]
LARGE = [
    ReadBounds("a reader, two drivers", (ROWS,) * 2, checkpoints=1, folds=1, compactions=1, collects=True),
    ReadBounds("a checkpoint, two shards", (BOTH,), shards=2, flushes=2, compactions=1, collects=True, pins=True),
]


@pytest.mark.parametrize(("bounds", "sees"), SMALL, ids=[bounds.name for bounds, _ in SMALL])
def test_a_reader_sees_every_committed_batch_whole_and_nothing_else(
    bounds: ReadBounds, sees: tuple[str, ...], told: Callable[[Explored], None]
) -> None:
    explored = explore(snapshot_model(bounds))
    told(explored)
    assert explored.fault is None, str(explored)
    assert explored.complete
    assert explored.witnessed.issuperset(sees), "the bounds are too small to show anything"


@pytest.mark.deep
@pytest.mark.parametrize("bounds", LARGE, ids=[bounds.name for bounds in LARGE])
def test_a_reader_at_larger_bounds_sees_the_same(bounds: ReadBounds, told: Callable[[Explored], None]) -> None:
    explored = explore(snapshot_model(bounds), limit=5_000_000)
    told(explored)
    assert explored.fault is None, str(explored)
