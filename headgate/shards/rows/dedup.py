"""Newest row per key: the one rule that decides among rows with the same key. Pure, on Arrow columns.

Rows are ordered as they were put: by position, within an entry by row.
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
"""For integer keys: flags of up to MIN_SPAN bytes are always allowed, of more than MAX_SPAN never."""

SPARSE = 64
"""Between these limits: flags may have this many bytes per key, which is about the size of a hash table."""

NEAR = 8
"""Integer keys that span at most this many numbers per row are compared by a place for each number of the span: that
takes a fifth of the time of hashing them.
"""

_ROW = "__row"


def newest_rows(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """The last row of each key, including tombstones, in the order they were put. Without a key: all rows."""
    if not key or rows.num_rows < 2:
        return rows
    places = newest_places(rows, key)
    return rows if len(places) == rows.num_rows else rows.take(pa.array(places))


def newest_places(rows: pa.Table, key: Sequence[str]) -> Numbers:
    """The row numbers, ascending, of the last row of each key."""
    if len(key) == 1 and rows.num_rows and (numbers := _numbers(rows, key[0])) is not None:
        low = numbers.min()
        span = int(numbers.max()) - int(low) + 1
        if span <= NEAR * rows.num_rows:
            at, every = (numbers - low).astype(np.intp), np.arange(rows.num_rows)
            last = np.zeros(span, np.intp)
            np.maximum.at(last, at, every)
            places: Numbers = np.flatnonzero(last[at] == every)
            return places
    last = _numbered(rows, key).group_by(list(key), use_threads=False).aggregate([(_ROW, "max")]).column(f"{_ROW}_max")
    found: Numbers = np.sort(last.to_numpy())
    return found


def living(rows: pa.Table) -> pa.Table:
    """The rows that are not tombstones, without the tombstone column."""
    dead = rows.column(TOMBSTONE)
    kept = rows.drop_columns([TOMBSTONE])
    return kept.filter(pc.invert(dead)) if pc.any(dead).as_py() else kept


class KeySet:
    """A set of keys, for example those of newer rows, which hide rows of older sources."""

    def __init__(self, key: Sequence[str]) -> None:
        self.key = list(key)
        self._parts: list[pa.Table] = []
        self._joined: pa.Table | None = None
        self._length = 0
        self._dense: DenseKeySet | None = DenseKeySet() if len(self.key) == 1 else None
        """Used instead of the parts while the keys are integers that are close to each other."""

    def __len__(self) -> int:
        """Approximate number of keys; a key that was added twice may count twice."""
        return self._length

    @property
    def nbytes(self) -> int:
        """Its size in memory."""
        return (self._dense.nbytes if self._dense is not None else 0) + sum(int(part.nbytes) for part in self._parts)

    @property
    def is_quick(self) -> bool:
        """True if a lookup costs the same however many keys there are."""
        return self._dense is not None

    def add(self, rows: pa.Table) -> None:
        """Add the keys of these rows."""
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
        """The row numbers, from 0, of the rows whose key was added; ascending."""
        if not self._length or not rows.num_rows:
            return np.zeros(0, np.intp)
        marked = self._in_dense(rows)
        return np.flatnonzero(self._mask(rows) if marked is None else marked)

    def _mask(self, rows: pa.Table) -> pa.Array:
        """For each row, True if its key was added."""
        marked = self._in_dense(rows)
        if marked is not None:
            return pa.array(marked)
        first, known = self.key[0], self._all()
        if known.num_rows == 1:
            # Comparing with one key is much cheaper than looking up every row.
            same = [pc.equal(rows.column(name), known.column(name)[0]) for name in self.key]
            return reduce(pc.and_, same)
        maybe = pc.is_in(rows.column(first), value_set=known.column(first).combine_chunks())
        if len(self.key) == 1 or not pc.any(maybe).as_py():
            return maybe
        # Among rows whose first key column is known, those whose whole key is known.
        hits = _numbered(rows, self.key).filter(maybe).join(known, self.key, join_type="left semi", use_threads=False)
        mask = np.zeros(rows.num_rows, dtype=bool)
        mask[hits.column(_ROW).to_numpy()] = True
        return pa.array(mask)

    def _in_dense(self, rows: pa.Table) -> np.ndarray[Any, np.dtype[np.bool_]] | None:
        """The same for flags; None if the keys are not flags."""
        if self._dense is None:
            return None
        numbers = _numbers(rows, self.key[0])
        assert numbers is not None, "keys have one type and are never null"
        return self._dense.has(numbers)

    def _all(self) -> pa.Table:
        if self._joined is None:
            joined = pa.concat_tables(self._parts)
            # For one column Arrow builds a lookup table each time, in which duplicates cost little.
            one = len(self.key) == 1 or joined.num_rows == 1
            self._joined = joined if one else joined.group_by(self.key, use_threads=False).aggregate([])
            self._parts = [self._joined]
            self._length = self._joined.num_rows
        return self._joined


class DenseKeySet:
    """Integers that are close to each other, one flag for each possible one: adding and looking up is one step."""

    def __init__(self) -> None:
        self._low = 0
        self._flags = np.zeros(0, dtype=bool)
        self._count = 0

    def __len__(self) -> int:
        """Number of added integers; one that was added twice counts twice."""
        return self._count

    @property
    def nbytes(self) -> int:
        """Bytes of the flags."""
        return int(self._flags.nbytes)

    def add(self, numbers: Numbers) -> bool:
        """Add the integers. False if they are too far apart for flags; then nothing was added."""
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
        """For each integer, True if it was added."""
        kind = numbers.dtype.type
        if len(self._flags) == 1:
            return np.equal(numbers, kind(self._low))
        found = (numbers >= kind(self._low)) & (numbers <= kind(self._low + len(self._flags) - 1))
        found[found] = self._flags[numbers[found] - kind(self._low)]
        return found

    def numbers(self) -> np.ndarray[Any, Any]:
        """The added integers, ascending."""
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
