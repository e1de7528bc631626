"""Newest row per key: the one rule by which rows with the same key are resolved. Pure, on Arrow columns.

Order is the order in which rows were put: by position, within an entry by row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.shards.schema import TOMBSTONE

_ROW = "__row"


def newest_rows(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """The last row of each key, tombstones included, in the order they were put. Without a key: all rows."""
    if not key or rows.num_rows < 2:
        return rows
    last = _numbered(rows, key).group_by(list(key), use_threads=False).aggregate([(_ROW, "max")]).column(f"{_ROW}_max")
    if len(last) == rows.num_rows:
        return rows
    return rows.take(pa.array(np.sort(last.to_numpy())))


def living(rows: pa.Table) -> pa.Table:
    """The rows that are no tombstones, without the tombstone column."""
    dead = rows.column(TOMBSTONE)
    kept = rows.drop_columns([TOMBSTONE])
    return kept.filter(pc.invert(dead)) if pc.any(dead).as_py() else kept


class KeySet:
    """Keys, for instance those that newer rows have: rows of older sources with one of them are hidden."""

    def __init__(self, key: Sequence[str]) -> None:
        self._key = list(key)
        self._parts: list[pa.Table] = []
        self._joined: pa.Table | None = None
        self._length = 0

    def __len__(self) -> int:
        """About how many keys there are; one that was added twice may count twice."""
        return self._length

    def add(self, rows: pa.Table) -> None:
        """The keys of these rows belong to it from now on."""
        if self._key and rows.num_rows:
            self._parts.append(rows.select(self._key))
            self._joined = None
            self._length += rows.num_rows

    def unseen(self, rows: pa.Table) -> pa.Table:
        """The rows whose key was not added, in their order."""
        if not self._parts or not rows.num_rows:
            return rows
        mask = self._mask(rows)
        return rows.filter(pc.invert(mask)) if pc.any(mask).as_py() else rows

    def seen(self, rows: pa.Table) -> pa.Table:
        """The rows whose key was added, in their order."""
        if not self._parts or not rows.num_rows:
            return rows.slice(0, 0)
        return rows.filter(self._mask(rows))

    def _mask(self, rows: pa.Table) -> pa.Array:
        """Which rows have a key that was added."""
        known = self._all()
        first = self._key[0]
        maybe = pc.is_in(rows.column(first), value_set=known.column(first).combine_chunks())
        if len(self._key) == 1 or not pc.any(maybe).as_py():
            return maybe
        # Of the rows whose first key column is known, those whose whole key is.
        hits = _numbered(rows, self._key).filter(maybe).join(known, self._key, join_type="left semi", use_threads=False)
        mask = np.zeros(rows.num_rows, dtype=bool)
        mask[hits.column(_ROW).to_numpy()] = True
        return pa.array(mask)

    def _all(self) -> pa.Table:
        if self._joined is None:
            joined = pa.concat_tables(self._parts)
            self._joined = joined.group_by(self._key, use_threads=False).aggregate([])
            self._parts = [self._joined]
            self._length = self._joined.num_rows
        return self._joined


def _numbered(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    return rows.select(list(key)).append_column(_ROW, pa.array(np.arange(rows.num_rows)))
