"""Compares expected rows with found rows: duplicates, lost rows, wrong rows. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from headgate.shards.rows.schema import RowSchema
from headgate.streaming.verify.fingerprints import Words, row_fingerprints

Flags: TypeAlias = "np.ndarray[Any, np.dtype[np.bool_]]"


@dataclass(frozen=True)
class Prints:
    """Fingerprints of rows: of their key columns (all columns if the table has no key), and of all columns."""

    keys: Words
    rows: Words

    @classmethod
    def of(cls, schema: RowSchema, batches: Iterable[pa.RecordBatch]) -> Prints:
        """The fingerprints of rows that have the table's columns, in any order, and maybe others."""
        return cls.joined([cls._of(schema, batch) for batch in batches])

    @classmethod
    def joined(cls, parts: Iterable[Prints]) -> Prints:
        """Concatenate fingerprints."""
        found = list(parts)
        nothing = np.zeros(0, np.uint64)
        return cls(
            np.concatenate([nothing, *(part.keys for part in found)]),
            np.concatenate([nothing, *(part.rows for part in found)]),
        )

    @classmethod
    def _of(cls, schema: RowSchema, batch: pa.RecordBatch) -> Prints:
        rows = row_fingerprints(batch, schema.logical.names)
        return cls(row_fingerprints(batch, list(schema.primary_key)) if schema.primary_key else rows, rows)

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, which: Any) -> Prints:
        """The selected rows."""
        return Prints(self.keys[which], self.rows[which])


@dataclass(frozen=True)
class Difference:
    """How found rows differ from expected ones; the arrays hold the fingerprints of the keys concerned."""

    duplicates: int
    """Surplus copies of rows."""
    lost: int
    """Expected rows that are missing."""
    wrong: int
    """Rows with other values, or not expected at all."""
    duplicate_keys: Words
    lost_keys: Words
    wrong_keys: Words

    def __bool__(self) -> bool:
        return bool(self.duplicates or self.lost or self.wrong)


def newest(prints: Prints, deleted: Flags) -> Prints:
    """The last change of each key, unless it is a delete. `prints` must be in order."""
    _, back = np.unique(prints.keys[::-1], return_index=True)
    last = len(prints) - 1 - back
    return prints.take(last[~deleted[last]])


def compare(expected: Prints, found: Prints, *, keyed: bool) -> Difference:
    """Compare by key if the table has one, otherwise as multisets of rows."""
    return _by_key(expected, found) if keyed else _as_multisets(expected, found)


def beside(difference: Difference, expected: int, found: int, others: int | None, *, keyed: bool) -> Difference:
    """The difference if some of the found rows have unknown values: `others` of them were written, or None if unknown.
    With a key, each of them may have replaced or deleted another row.
    """
    nothing = np.zeros(0, np.uint64)
    if keyed:
        over = 0 if others is None else max(0, found - expected - others)
        return replace(difference, lost=0, wrong=over, lost_keys=nothing, wrong_keys=nothing)
    more = difference.duplicates + difference.wrong
    short, over = (0, 0) if others is None else (max(0, others - more), max(0, more - others))
    return Difference(0, difference.lost + short, over, nothing, difference.lost_keys, nothing)


def _by_key(expected: Prints, found: Prints) -> Difference:
    keys, first, times = np.unique(found.keys, return_index=True, return_counts=True)
    lost = np.setdiff1d(expected.keys, keys)
    strange = np.setdiff1d(keys, expected.keys)
    both, ours, theirs = np.intersect1d(expected.keys, keys, return_indices=True)
    other = both[expected.rows[ours] != found.rows[first[theirs]]]
    return Difference(
        duplicates=int((times - 1).sum()),
        lost=len(lost),
        wrong=len(strange) + len(other),
        duplicate_keys=keys[times > 1],
        lost_keys=lost,
        wrong_keys=np.concatenate([strange, other]),
    )


def _as_multisets(expected: Prints, found: Prints) -> Difference:
    keys, index = np.unique(np.concatenate([expected.rows, found.rows]), return_inverse=True)
    wanted = np.bincount(index[: len(expected)], minlength=len(keys))
    there = np.bincount(index[len(expected) :], minlength=len(keys))
    more = (there > wanted) & (wanted > 0)
    return Difference(
        duplicates=int((there - wanted)[more].sum()),
        lost=int(np.maximum(wanted - there, 0).sum()),
        wrong=int(there[wanted == 0].sum()),
        duplicate_keys=keys[more],
        lost_keys=keys[wanted > there],
        wrong_keys=keys[wanted == 0],
    )
