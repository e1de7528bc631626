"""The first rows that differ, with key, column, expected and found value. Pure on Arrow batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.shards.rows.schema import TOMBSTONE, RowSchema
from headgate.streaming.verify.compare import Difference, Prints

EXAMPLES = 5
"""Maximum examples of each kind of fault: enough to see a pattern."""


@dataclass
class Differences:
    """Collects a few rows of each kind of fault. Pass it all found rows, then all expected changes."""

    schema: RowSchema
    difference: Difference
    _shown: list[dict[str, Any]] = field(default_factory=list)
    _left: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("duplicate", "lost", "wrong"), EXAMPLES))
    _wrong: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Wrong rows that were found, by the fingerprint of their key."""
    _newest: dict[int, tuple[int, dict[str, Any]]] = field(default_factory=dict)
    """The expected rows for these keys, with their sequences."""

    def found(self, rows: pa.RecordBatch) -> None:
        """Take rows of the table."""
        keys = Prints.of(self.schema, [rows]).keys
        for _, _, row in self._picked("duplicate", rows, keys, self.difference.duplicate_keys):
            self._shown.append(self._fault("duplicate", row, found=row))
        for _, key, row in self._picked("wrong", rows, keys, self.difference.wrong_keys):
            self._wrong[key] = row

    @property
    def wants_expected(self) -> bool:
        """True if the expected rows are needed."""
        return bool(self._wrong or len(self.difference.lost_keys))

    def expected(self, sequence: int, rows: pa.RecordBatch, offsets: pa.Array, place: Mapping[str, Any]) -> None:
        """Take expected changes; those with equal sequences must be in order."""
        keys = Prints.of(self.schema, [rows]).keys
        for at, _, row in self._picked("lost", rows, keys, self.difference.lost_keys):
            if not row.pop(TOMBSTONE):
                self._shown.append(self._fault("lost", row, expected=row, **place, offset=offsets[at].as_py()))
        chosen = np.isin(keys, np.array(list(self._wrong), np.uint64))
        for key, row in zip(keys[chosen].tolist(), rows.filter(pa.array(chosen)).to_pylist(), strict=True):
            if key not in self._newest or self._newest[key][0] <= sequence:
                self._newest[key] = sequence, row

    def examples(self) -> Iterator[dict[str, Any]]:
        """The examples, one difference each."""
        yield from self._shown
        for key, found in self._wrong.items():
            _, expected = self._newest.get(key, (0, {TOMBSTONE: True}))
            if expected[TOMBSTONE] or not self.schema.primary_key:
                yield self._fault("wrong", found, found=found)
                continue
            for name in self.schema.logical.names:
                # Not compared by value: NaN is not equal to itself.
                if repr(expected[name]) != repr(found[name]):
                    yield self._fault("wrong", found, column=name, expected=expected[name], found=found[name])

    def _picked(
        self, kind: str, rows: pa.RecordBatch, keys: np.ndarray[Any, Any], concerned: np.ndarray[Any, Any]
    ) -> list[tuple[int, int, dict[str, Any]]]:
        """The positions, key fingerprints and values of the rows concerned, up to the limit."""
        chosen = np.flatnonzero(np.isin(keys, concerned))[: self._left[kind]]
        self._left[kind] -= len(chosen)
        values = rows.take(pa.array(chosen, pa.int64())).to_pylist()
        return list(zip(chosen.tolist(), keys[chosen].tolist(), values, strict=True))

    def _fault(self, kind: str, row: Mapping[str, Any], **more: Any) -> dict[str, Any]:
        key = {name: row[name] for name in self.schema.primary_key} or None
        return {"fault": kind, "key": key, "column": None, "expected": None, "found": None, **more}
