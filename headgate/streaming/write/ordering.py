"""The order of rows within a batch: checked if rows stay in their task, restored after a shuffle. Pure.

Rows are ordered by offset within a topic partition, or by a column that the caller named. Rows of different partitions
have no order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

ORDER = ("_topic", "_partition", "_offset")
"""The columns of a typed frame that hold a row's topic, partition and offset."""

SEQUENCE = "_sequence"
"""Name under which the values of `sequence_by` travel with the rows."""

STAYS = "_stays"
"""Column beside SEQUENCE in frames that delete; false for deleted rows. Among rows with equal sequences, deleted rows
come first: the change feeds of Delta and Iceberg report a replaced row as a delete and an insert of one commit."""


class OrderWatch:
    """Checks that all rows given to one log come in order; `kept` is True while they do."""

    def __init__(self) -> None:
        self.kept = True
        self._ends: dict[tuple[str | None, int], int] = {}
        self._last: pa.RecordBatch | None = None

    def see(self, order: pa.RecordBatch | None) -> None:
        """Check the next rows by their ordering columns; None if their order is unknown."""
        if order is None or not order.num_rows or not self.kept:
            return
        if SEQUENCE in order.schema.names:
            self.kept = self._sequence_rises(order)
        else:
            self.kept = all([self._offsets_rise(place, offsets) for place, offsets in _by_partition(order)])

    def _sequence_rises(self, order: pa.RecordBatch) -> bool:
        before, self._last = self._last, order.slice(order.num_rows - 1)
        if order.column(SEQUENCE).null_count:
            return False
        whole = order if before is None else pa.concat_batches([before, order])
        column = whole.column(SEQUENCE)
        rises = pc.less_equal(column[:-1], column[1:])
        if STAYS in whole.schema.names:
            stays = whole.column(STAYS)
            comes_late = pc.and_(stays[:-1], pc.invert(stays[1:]))
            rises = pc.and_(rises, pc.invert(pc.and_(comes_late, pc.equal(column[:-1], column[1:]))))
        return bool(pc.all(rises).as_py() is not False)

    def _offsets_rise(self, place: tuple[str | None, int], offsets: np.ndarray) -> bool:
        before, self._ends[place] = self._ends.get(place, -1), int(offsets[-1])
        # One record may have become several rows: equal offsets are in order.
        return before <= offsets[0] and not bool((np.diff(offsets) < 0).any())


def in_order(parts: Sequence[tuple[pa.RecordBatch, pa.RecordBatch | None]]) -> list[pa.RecordBatch]:
    """Sort the rows of one shard that a shuffle delivered in any order.

    Parts that are sorted and do not overlap, as those of Kafka are, are not copied.
    """
    orders = [order for _, order in parts if order is not None]
    if len(orders) < len(parts):
        return [rows for rows, _ in parts]
    ends = [(_key(order, 0), _key(order, order.num_rows - 1)) for order in orders]
    if not any(order.column(name).null_count for order in orders for name in order.schema.names):
        by_start = sorted(range(len(parts)), key=lambda i: ends[i])
        apart = all(ends[a][1] <= ends[b][0] for a, b in pairwise(by_start))
        if apart and all(map(_is_sorted, orders)):
            return [parts[i][0] for i in by_start]
    keys = pa.Table.from_batches(orders)
    rows = pa.Table.from_batches([rows for rows, _ in parts])
    batches: list[pa.RecordBatch] = rows.take(_sorted_indices(keys)).to_batches()
    return batches


def _by_partition(order: pa.RecordBatch) -> Iterator[tuple[tuple[str | None, int], np.ndarray]]:
    """Yields each topic partition with its offsets, in the order they came."""
    offsets = order.column("_offset").to_numpy()
    partitions = order.column("_partition").to_numpy()
    topics: list[str | None] = [None]
    codes = partitions.astype(np.int64)
    if "_topic" in order.schema.names:
        encoded = order.column("_topic").dictionary_encode()
        topics = encoded.dictionary.to_pylist()
        codes = encoded.indices.to_numpy().astype(np.int64) << 32 | codes
    found = np.unique(codes)
    for code in found:
        place = (topics[int(code) >> 32], int(code) & 0xFFFFFFFF)
        yield place, offsets if len(found) == 1 else offsets[codes == code]


def _sorted_indices(keys: pa.RecordBatch | pa.Table) -> pa.Array:
    """A stable sort: rows with equal keys keep their order."""
    return pc.sort_indices(keys, [(name, "ascending") for name in keys.schema.names])


def _is_sorted(order: pa.RecordBatch) -> bool:
    return bool((np.diff(_sorted_indices(order).to_numpy().astype(np.int64)) == 1).all())


def _key(order: pa.RecordBatch, row: int) -> tuple[object, ...]:
    return tuple(column[row].as_py() for column in order.columns)
