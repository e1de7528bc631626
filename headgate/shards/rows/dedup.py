"""Newest row per key: the one rule by which rows with the same key are resolved. Pure, on Arrow columns.

Order is the order in which rows were put: by position, within an entry by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.shards.rows.schema import TOMBSTONE

Numbers: TypeAlias = np.ndarray[Any, np.dtype[np.integer[Any]]]

MIN_SPAN, MAX_SPAN = 1 << 24, 1 << 26
"""Bytes of flags that are always, and never more, spent on keys that are numbers."""

SPARSE = 64
"""In between, so many numbers may lie between two keys: then flags are as small as a hash table would be."""

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
        self.key = list(key)
        self._parts: list[pa.Table] = []
        self._joined: pa.Table | None = None
        self._length = 0
        self._dense: DenseKeySet | None = DenseKeySet() if len(self.key) == 1 else None
        """Instead of the parts, as long as they are numbers that lie close to each other."""

    def __len__(self) -> int:
        """About how many keys there are; one that was added twice may count twice."""
        return self._length

    @property
    def nbytes(self) -> int:
        """What it takes in memory."""
        return (self._dense.nbytes if self._dense is not None else 0) + sum(int(part.nbytes) for part in self._parts)

    @property
    def is_quick(self) -> bool:
        """True if asking costs the same however many keys there are."""
        return self._dense is not None

    def add(self, rows: pa.Table) -> None:
        """The keys of these rows belong to it from now on."""
        if not self.key or not rows.num_rows:
            return
        self._length += rows.num_rows
        if self._dense is not None:
            if (numbers := _numbers(rows, self.key[0])) is not None and self._dense.add(numbers):
                return
            if len(self._dense):
                field = rows.schema.field(self.key[0])
                known = pa.array(self._dense.numbers()).cast(field.type)
                self._parts.append(pa.table([known], schema=pa.schema([field])))
            self._dense = None
        self._parts.append(rows.select(self.key))
        self._joined = None

    def unseen(self, rows: pa.Table) -> pa.Table:
        """The rows whose key was not added, in their order."""
        if not self._length or not rows.num_rows:
            return rows
        mask = self._mask(rows)
        return rows.filter(pc.invert(mask)) if pc.any(mask).as_py() else rows

    def seen(self, rows: pa.Table) -> pa.Table:
        """The rows whose key was added, in their order."""
        if not self._length or not rows.num_rows:
            return rows.slice(0, 0)
        return rows.filter(self._mask(rows))

    def places(self, rows: pa.Table) -> np.ndarray[Any, np.dtype[np.intp]]:
        """The numbers, from 0, of the rows whose key was added; rising."""
        if not self._length or not rows.num_rows:
            return np.zeros(0, np.intp)
        marked = self._in_dense(rows)
        return np.flatnonzero(self._mask(rows) if marked is None else marked)

    def _mask(self, rows: pa.Table) -> pa.Array:
        """Which rows have a key that was added."""
        marked = self._in_dense(rows)
        if marked is not None:
            return pa.array(marked)
        first, known = self.key[0], self._all()
        if known.num_rows == 1:
            # To compare with one key is much cheaper than to look every row up.
            same = [pc.equal(rows.column(name), known.column(name)[0]) for name in self.key]
            return reduce(pc.and_, same)
        maybe = pc.is_in(rows.column(first), value_set=known.column(first).combine_chunks())
        if len(self.key) == 1 or not pc.any(maybe).as_py():
            return maybe
        # Of the rows whose first key column is known, those whose whole key is.
        hits = _numbered(rows, self.key).filter(maybe).join(known, self.key, join_type="left semi", use_threads=False)
        mask = np.zeros(rows.num_rows, dtype=bool)
        mask[hits.column(_ROW).to_numpy()] = True
        return pa.array(mask)

    def _in_dense(self, rows: pa.Table) -> np.ndarray[Any, np.dtype[np.bool_]] | None:
        """The same, where the keys are flags."""
        if self._dense is None:
            return None
        numbers = _numbers(rows, self.key[0])
        assert numbers is not None, "keys have one type and are never null"
        return self._dense.has(numbers)

    def _all(self) -> pa.Table:
        if self._joined is None:
            joined = pa.concat_tables(self._parts)
            # One column is looked up in a table that Arrow makes of it each time; there, doubles cost little.
            one = len(self.key) == 1 or joined.num_rows == 1
            self._joined = joined if one else joined.group_by(self.key, use_threads=False).aggregate([])
            self._parts = [self._joined]
            self._length = self._joined.num_rows
        return self._joined


class DenseKeySet:
    """Whole numbers that lie close to each other, one flag for each that could be: adding and asking is one step."""

    def __init__(self) -> None:
        self._low = 0
        self._flags = np.zeros(0, dtype=bool)
        self._count = 0

    def __len__(self) -> int:
        """How many were added; one that was added twice counts twice."""
        return self._count

    @property
    def nbytes(self) -> int:
        """Of the flags."""
        return int(self._flags.nbytes)

    def add(self, numbers: Numbers) -> bool:
        """False: they lie too far apart for flags, and nothing was added."""
        low, high = int(numbers.min()), int(numbers.max())
        if self._count:
            low, high = min(low, self._low), max(high, self._low + len(self._flags) - 1)
        span, count = high - low + 1, self._count + len(numbers)
        if span > min(max(MIN_SPAN, count * SPARSE), MAX_SPAN):
            return False
        if self._count == 0:
            self._flags = np.zeros(span, dtype=bool)
        elif span > len(self._flags):
            wider = np.zeros(span, dtype=bool)
            wider[self._low - low : self._low - low + len(self._flags)] = self._flags
            self._flags = wider
        self._low, self._count = low, count
        self._flags[numbers - numbers.dtype.type(low)] = True
        return True

    def has(self, numbers: Numbers) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which of them were added."""
        kind = numbers.dtype.type
        if len(self._flags) == 1:
            return np.equal(numbers, kind(self._low))
        found = (numbers >= kind(self._low)) & (numbers <= kind(self._low + len(self._flags) - 1))
        found[found] = self._flags[numbers[found] - kind(self._low)]
        return found

    def numbers(self) -> np.ndarray[Any, Any]:
        """Those that were added, rising."""
        found = np.flatnonzero(self._flags)
        return found + self._low if self._low < 2**62 else found.astype(np.uint64) + np.uint64(self._low)


def _numbers(rows: pa.Table, name: str) -> Numbers | None:
    column = rows.column(name)
    if not pa.types.is_integer(column.type) or column.null_count:
        return None
    numbers: Numbers = column.to_numpy()
    return numbers if numbers.itemsize == 8 else numbers.astype(np.int64)


def _numbered(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    return rows.select(list(key)).append_column(_ROW, pa.array(np.arange(rows.num_rows)))
