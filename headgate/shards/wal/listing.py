"""Which entries a WAL has. Only this module lists entries or checks for one by its name.

An object whose name is not an entry's is a stray and no position, see `shards.names`. A LIST may leave out what is put
meanwhile.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headgate.connectors.objects import ObjectInfo
from headgate.errors import NotFound
from headgate.shards import names
from headgate.shards.shard import Shard


@dataclass(frozen=True)
class WalListing:
    """A WAL as LIST shows it: eight bytes a position."""

    positions: npt.NDArray[np.uint64]
    """Ascending."""
    sizes: npt.NDArray[np.uint64]
    strays: tuple[str, ...]

    def has(self, position: int) -> bool:
        """True if an object with that entry's name exists."""
        index = int(np.searchsorted(self.positions, position))
        return index < len(self.positions) and int(self.positions[index]) == position

    @property
    def highest(self) -> int:
        """Position of the last entry, -1 if there is none."""
        return int(self.positions[-1]) if len(self.positions) else -1

    def above(self, position: int) -> tuple[int, int]:
        """Number of entries at or above the position, and their bytes."""
        sizes = self.sizes[self.positions >= position]
        return len(sizes), int(sizes.sum())

    def gaps(self, first: int, stop: int) -> list[tuple[int, int]]:
        """The missing runs of [first, stop), both ends included."""
        there = self.positions[(self.positions >= first) & (self.positions < stop)]
        before = np.nonzero(np.diff(there) > 1)[0]
        low = [first - 1, *(int(there[at]) for at in before), *map(int, there[-1:])]
        high = [*map(int, there[:1]), *(int(there[at + 1]) for at in before), stop]
        return [(below + 1, above - 1) for below, above in zip(low, high, strict=True) if above - below > 1]


def list_wal(shard: Shard) -> WalListing:
    """Every entry, however many there are. One LIST."""
    positions, sizes, strays = array("Q"), array("Q"), []
    for info in shard.wal.list(names.wal_folder(shard.id) + "/"):
        position = names.wal_position(info.key)
        if position is None:
            strays.append(info.key)
        else:
            positions.append(position)
            sizes.append(info.size)
    order = np.argsort(np.frombuffer(positions, np.uint64)) if positions else np.array([], np.int64)
    return WalListing(np.array(positions, np.uint64)[order], np.array(sizes, np.uint64)[order], tuple(strays))


def entries(shard: Shard) -> dict[int, ObjectInfo]:
    """The existing entries, by position. One LIST."""
    infos = shard.wal.list(names.wal_folder(shard.id) + "/")
    return {position: info for info in infos if (position := names.wal_position(info.key)) is not None}


def positions(shard: Shard) -> set[int]:
    """Positions of the existing entries, without sizes: on a disk that is much cheaper."""
    keys = shard.wal.list_keys(names.wal_folder(shard.id) + "/")
    return {position for key in keys if (position := names.wal_position(key)) is not None}


def has_entry(shard: Shard, position: int) -> bool:
    """True if the entry exists, from one HEAD without retries."""
    try:
        shard.wal.head(shard.wal_key(position))
    except NotFound:
        return False
    return True
