"""Finds the tip of a WAL: the first free position.

`find_tip` asks for positions one by one. It costs the same however long the WAL is, and takes FIRST missing entries in
a row for the tip: right for a stream, whose commit log says how far the WAL goes. `listed_tip` lists the WAL and proves
that nothing lies above: for direct writers and readers, which have no log. `listed_end` does that once, beside a writer
that may continue: for an opener's look, which a busy predecessor must not prolong.
"""

from __future__ import annotations

from collections.abc import Callable

from headgate import parallel
from headgate.errors import Corrupt, DataLoss
from headgate.shards.manifest.decisions import replay_start, search_start
from headgate.shards.manifest.model import Manifest
from headgate.shards.shard import Shard
from headgate.shards.wal.listing import has_entry, positions

FIRST = 2
"""Positions asked for first. A clean stop records the tip, so most opens need no more."""

WINDOW = 16
"""Positions asked for together after that."""

WINDOWS = 4
"""Windows before one LIST is cheaper: one page of it shows 1,000 names."""


def find_tip(shard: Shard, start: int) -> int:
    """The first free position at or above `start`. Raises as `_tip` does."""
    return _tip(shard, start, below=False)


def checked_tip(shard: Shard, start: int) -> int:
    """The same, after checking that the WAL does not end below `start`; see `listed_tip`. Raises Corrupt."""
    return _tip(shard, start, below=start > 1)


def _tip(shard: Shard, start: int, *, below: bool) -> int:
    """The first free position at or above `start`; with `below`, unless the entry before it is missing, which is asked
    for at the same time.

    Anything the search sees above a free position proves a hole, and a hole is DataLoss: a barrier put there would hide
    the entries above it from every replay.
    """
    workers = 1 if shard.wal.is_near else WINDOW
    first, size = start, FIRST
    for _ in range(1 + WINDOWS):
        window = range(first - below, first + size)
        found = parallel.each("tip", lambda position: has_entry(shard, position), window, workers=workers)
        if below and not found.pop(0):
            break
        if not all(found):
            free = found.index(False)
            if True in found[free:]:
                break
            return first + free
        first, size, below = first + size, WINDOW, False
    return listed_tip(shard, start)


def listed_tip(shard: Shard, start: int) -> int:
    """The first free position by LIST, which also proves that nothing between is missing, however wide a hole is.

    `start` follows an entry that exists or existed, and the last entry is never deleted (R5): if the WAL ends below it,
    the source of `start` (above all a manifest's replay_after) is wrong. Raises Corrupt.
    """
    there = _listed_from(shard, start)
    tip = max(there, default=start - 1) + 1
    for position in range(start, tip):
        _check_there(shard, position, there)
    return tip


def listed_end(shard: Shard, manifest: Manifest | None, latest: Callable[[], Manifest | None]) -> int:
    """Where the WAL ends now, from one LIST: every entry from replay_after up to there exists. A hole is DataLoss, also
    one below last_seen, and a missing end. Raises Corrupt as `listed_tip` does.

    A living writer may have flushed the missing entries, and they may have been collected: if `latest` has a
    replay_after at or above them, the check continues from there. So its work is bounded by the WAL's length.
    """
    position = replay_start(manifest)
    there = _listed_from(shard, position)
    end = max(max(there, default=-1) + 1, search_start(manifest, None))
    while position < end:
        try:
            _check_there(shard, position, there)
            position += 1
        except DataLoss:
            if (moved := replay_start(latest())) <= position:
                raise
            position = moved
    return end


def _listed_from(shard: Shard, start: int) -> set[int]:
    listed = positions(shard)
    if listed and max(listed) < start - 1:
        # LIST may miss both an entry put meanwhile and one collected meanwhile.
        listed = positions(shard)
    if listed and max(listed) < start - 1:
        raise Corrupt(
            f"Entries up to {start - 1} once existed, but the WAL ends at {max(listed)}: replay_after in the "
            "shard's manifest is wrong, or the end of the WAL was deleted.",
            **shard.where(),
            position=start - 1,
            advice="run `headgate fsck`, and restore the manifest or the entries from a backup",
        )
    return {position for position in listed if position >= start}


def _check_there(shard: Shard, position: int, there: set[int]) -> None:
    """A living writer may have filled the slot after the LIST went past it."""
    if position not in there and not has_entry(shard, position):
        raise DataLoss(
            f"The WAL has a hole: entry {position} is missing but later ones exist.",
            **shard.where(),
            position=position,
        )
