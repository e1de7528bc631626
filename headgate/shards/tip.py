"""Finding the tip of a WAL: the first position that is free.

`find_tip` asks for positions one by one. It costs the same however long the WAL is, and it takes more than WINDOW
missing entries in a row for the tip: right for a stream, whose commit log says how far the WAL goes. `listed_tip`
lists the WAL and proves that nothing lies above: for direct writers and readers, who have no log to go by.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from headgate.errors import DataLoss, NotFound
from headgate.shards import names
from headgate.shards.shard import Shard

WINDOW = 16
"""Positions asked for at once. A clean stop records the tip, so that most opens end in the first window."""

WINDOWS = 4
"""Windows before one LIST is cheaper: a page of it shows 1,000 names."""


def find_tip(shard: Shard, start: int) -> int:
    """The first free position at or above `start`.

    Everything the search sees above a free position is proof of a hole, and a hole is
    DataLoss: a barrier put there would hide the entries above it from every replay.
    """
    with ThreadPoolExecutor(WINDOW, thread_name_prefix="headgate-tip") as pool:
        for number in range(WINDOWS):
            first = start + number * WINDOW
            found = list(pool.map(lambda position: _exists(shard, position), range(first, first + WINDOW)))
            if not all(found):
                free = found.index(False)
                if True in found[free:]:
                    break
                return first + free
    return listed_tip(shard, start)


def listed_tip(shard: Shard, start: int) -> int:
    """The same by LIST, which also proves that nothing between is missing, however wide a hole is."""
    positions = {
        position
        for key in shard.wal.list_keys(names.wal_folder(shard.id) + "/")
        if (position := names.wal_position(key)) is not None and position >= start
    }
    tip = max(positions, default=start - 1) + 1
    # A writer that is still alive may have filled a slot after the LIST went past it.
    for position in range(start, tip):
        if position not in positions and not _exists(shard, position):
            raise DataLoss(
                f"The WAL has a hole: entry {position} is missing and later ones are there.",
                **shard.where(),
                position=position,
            )
    return tip


def _exists(shard: Shard, position: int) -> bool:
    try:
        shard.wal.head(shard.wal_key(position))
    except NotFound:
        return False
    return True
