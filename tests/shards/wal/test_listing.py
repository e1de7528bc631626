from __future__ import annotations

import numpy as np
import pytest

from headgate.shards.wal.listing import WalListing


def listing(*positions: int) -> WalListing:
    return WalListing(np.array(positions, np.uint64), np.full(len(positions), 3, np.uint64), ())


@pytest.mark.parametrize(
    ("present", "first", "stop", "missing"),
    [
        ([], 1, 1, []),
        ([], 1, 4, [(1, 3)]),
        ([1, 2, 3], 1, 4, []),
        ([0, 1, 2, 3, 9], 1, 4, []),
        ([2, 5], 1, 7, [(1, 1), (3, 4), (6, 6)]),
        ([2**64 - 1], 1, 2**64, [(1, 2**64 - 2)]),
        ([0, 2**63], 0, 2**64, [(1, 2**63 - 1), (2**63 + 1, 2**64 - 1)]),
    ],
)
def test_gaps_are_the_runs_that_are_not_there(
    present: list[int], first: int, stop: int, missing: list[tuple[int, int]]
) -> None:
    assert listing(*present).gaps(first, stop) == missing


def test_what_stands_above_a_position_is_counted() -> None:
    assert listing(1, 4, 5).above(4) == (2, 6)
    assert listing().above(0) == (0, 0)
