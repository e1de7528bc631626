"""Every interleaving of drivers, tasks, flushes, checkpoints, folds and garbage collection, at small bounds.

In every state: what is committed is read exactly once and nothing else is (invariant 1), no predecessor writes or
commits behind its successor (3), no position is missing (4), and nothing is collected that a reader, a fence or the
next driver needs (5). A failure prints the shortest way to it; the bounds are its replay.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.explorer.exploring import Explored, explore
from tests.explorer.schema_model import SchemaBounds, schema_model
from tests.explorer.stream_bounds import Bounds
from tests.explorer.stream_model import stream_model
from tests.explorer.stream_parts import Planned, batches
from tests.explorer.table_model import TableBounds, table_model

ROWS = batches((0,), (0,))
ROWS_THEN_NONE = batches((0,), ())
BOTH = batches((0, 1), (0, 1))
BOTH_THEN_NONE = batches((0, 1), ())
NONE_THEN_BOTH = batches((), (0, 1))
ONE_EACH = batches((0,), (1,))
ONE_LARGE = (Planned(0, 2, (0,)),)
"""Both batches of `ROWS` in one, as a rebuilt checkpoint may plan them."""

COMMITTED = ("everything is committed", "two drivers commit", "a predecessor's task is late")
FLUSHED = ("rows are flushed", "an entry is collected")
CHECKPOINTED = ("rows are flushed", "a checkpoint passes a barrier", "an entry is collected")
FOLDED = ("the log is folded", "a record is collected")
STOPPED = ("a stream stops cleanly",)

SMALL = [
    (
        Bounds("two shards", (BOTH,) * 2, shards=2, flushes=1, checkpoints=1, folds=1, collects=True),
        COMMITTED + FLUSHED + CHECKPOINTED + FOLDED,
    ),
    (
        Bounds("rows, then none", (BOTH_THEN_NONE,) * 2, shards=2, flushes=1, checkpoints=1, folds=1, collects=True),
        COMMITTED + FLUSHED + CHECKPOINTED + FOLDED,
    ),
    (
        Bounds("no rows, then some", (NONE_THEN_BOTH,) * 2, shards=2, flushes=1, checkpoints=1, folds=1, collects=True),
        COMMITTED + FLUSHED + CHECKPOINTED + FOLDED,
    ),
    (
        Bounds("a shard each", (ONE_EACH,) * 2, shards=2, flushes=1, checkpoints=1, folds=1, collects=True),
        COMMITTED + FLUSHED + CHECKPOINTED + FOLDED,
    ),
    (
        Bounds("claims in any order", (BOTH,) * 2, shards=2, checkpoints=1, folds=1, collects=True, parallel=True),
        COMMITTED + CHECKPOINTED + FOLDED,
    ),
    (
        Bounds("second attempts, one shard", (ROWS,) * 2, retries=1, checkpoints=1, folds=1, collects=True),
        COMMITTED + CHECKPOINTED + FOLDED,
    ),
    (
        Bounds("a clean stop", (ROWS,) * 2, checkpoints=2, folds=1, stops=1, collects=True),
        COMMITTED + CHECKPOINTED + FOLDED + STOPPED,
    ),
    (
        Bounds("a clean stop after second attempts", (ROWS,), retries=1, checkpoints=2, stops=1, collects=True),
        ("everything is committed", *CHECKPOINTED, *STOPPED),
    ),
    (
        Bounds("a checkpoint that plans otherwise", (ROWS, ONE_LARGE), checkpoints=1, folds=1, collects=True),
        ("everything is committed", *CHECKPOINTED, *FOLDED),
    ),
    (
        Bounds("three drivers", (ROWS_THEN_NONE,) * 3, checkpoints=1, collects=True),
        COMMITTED + CHECKPOINTED,
    ),
]

LARGE = [
    Bounds("second attempts, two shards", (BOTH,) * 2, shards=2, retries=1, checkpoints=1, collects=True),
    Bounds("one shard, everything", (ROWS,) * 2, retries=1, flushes=1, checkpoints=1, folds=1, collects=True),
    Bounds("rows, then none", (BOTH_THEN_NONE,) * 2, 2, retries=1, flushes=1, checkpoints=1, folds=1, collects=True),
    Bounds("a shard each", (ONE_EACH,) * 2, 2, retries=1, flushes=1, checkpoints=1, folds=1, collects=True),
    Bounds("claims in any order", (BOTH,) * 2, 2, flushes=1, checkpoints=1, folds=1, collects=True, parallel=True),
    Bounds("stops in any order", (BOTH,) * 2, 2, checkpoints=2, stops=1, collects=True, parallel=True),
    Bounds("stops after second attempts", (ROWS,) * 2, retries=1, checkpoints=2, stops=1, collects=True),
    Bounds("three drivers", (ROWS,) * 3, flushes=1, checkpoints=1, folds=1, collects=True),
    Bounds("everything, two shards", (BOTH,) * 2, 2, retries=1, flushes=1, checkpoints=1, folds=1, collects=True),
    Bounds("three batches", (batches((0,), (0,), (0,)),) * 2, flushes=2, checkpoints=1, folds=2, collects=True),
]

CHANGED = ("everything is committed", "a batch is written again", "a change has returned")
COLUMNS = [
    (SchemaBounds("columns: two drivers, a fold", folds=1), (*CHANGED, "a record is collected")),
    (SchemaBounds("columns: further claims, a lost response", drivers=1, extends=1, lost=1), CHANGED),
    (SchemaBounds("columns: two changers, second tasks", drivers=1, changers=2, retries=1), CHANGED),
    (SchemaBounds("columns: two folds", drivers=1, batches=3, folds=2, lost=1), (*CHANGED, "a record is collected")),
]
LARGE_COLUMNS = [
    SchemaBounds("columns: two drivers, everything", folds=1, lost=1, retries=1),
    SchemaBounds("columns: two drivers, further claims", extends=1, folds=1, lost=1),
    SchemaBounds("columns: two drivers, two changers", changers=2, batches=1, folds=1),
    SchemaBounds("columns: one driver, two changers, two folds", drivers=1, batches=3, changers=2, folds=2, lost=1),
]


@pytest.mark.parametrize(("bounds", "sees"), SMALL, ids=[bounds.name for bounds, _ in SMALL])
def test_no_interleaving_breaks_a_promise(
    bounds: Bounds, sees: tuple[str, ...], told: Callable[[Explored], None]
) -> None:
    explored = explore(stream_model(bounds))
    told(explored)
    assert explored.fault is None, str(explored)
    assert explored.complete
    assert explored.witnessed.issuperset(sees), "the bounds are too small to show anything"


def test_a_table_that_is_made_anew_gets_every_batch_and_the_old_one_none_after_a_look(
    told: Callable[[Explored], None],
) -> None:
    explored = explore(table_model(TableBounds("a table made anew")))
    told(explored)
    assert explored.fault is None, str(explored)
    assert explored.complete
    assert explored.witnessed == {"the new table has all", "the old one was written to meanwhile"}


@pytest.mark.parametrize(("bounds", "sees"), COLUMNS, ids=[bounds.name for bounds, _ in COLUMNS])
def test_no_batch_that_commits_after_a_change_of_columns_has_returned_lacks_them(
    bounds: SchemaBounds, sees: tuple[str, ...], told: Callable[[Explored], None]
) -> None:
    explored = explore(schema_model(bounds))
    told(explored)
    assert explored.fault is None, str(explored)
    assert explored.complete
    assert explored.witnessed.issuperset(sees), "the bounds are too small to show anything"


@pytest.mark.deep
@pytest.mark.parametrize("bounds", LARGE_COLUMNS, ids=[bounds.name for bounds in LARGE_COLUMNS])
def test_no_batch_lacks_columns_at_larger_bounds(bounds: SchemaBounds, told: Callable[[Explored], None]) -> None:
    explored = explore(schema_model(bounds), limit=5_000_000)
    told(explored)
    assert explored.fault is None, str(explored)


@pytest.mark.deep
@pytest.mark.parametrize("bounds", LARGE, ids=[bounds.name for bounds in LARGE])
def test_no_interleaving_at_larger_bounds_breaks_a_promise(bounds: Bounds, told: Callable[[Explored], None]) -> None:
    explored = explore(stream_model(bounds), limit=5_000_000)
    told(explored)
    assert explored.fault is None, str(explored)
