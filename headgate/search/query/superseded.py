"""Finds rows of the base that are hidden because a shard has a newer row or a delete of their key.

Without a scalar index on the key, finding the rows of new keys reads the base's key column once; with an index they are
looked up. The result for a version of the base is cached, so the next search looks up only new keys.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.caches import Cache
from headgate.connectors.lance import rows as row_ids
from headgate.connectors.lance.rows import ROW_ID, RowIds
from headgate.shards.rows.dedup import KeySet

LOOKED_UP = 1_000
"""Keys per lookup in a scalar index: with more, planning the filter takes longer than the lookup saves."""

WORTH_LOOKING_UP = 200
"""Rows that are read in the time of one lookup. With fewer rows per key, reading all is faster."""

READ_TOGETHER = 131_072
"""Rows of the base that are compared at once, each time with all the keys."""


@dataclass(frozen=True)
class _Known:
    """Keys looked up in one version of the base so far."""

    asked: pa.Table
    found: pa.Table
    """Rows of the base with one of these keys: key columns and `_rowid`."""

    @property
    def nbytes(self) -> int:
        return int(self.asked.nbytes + self.found.nbytes)


_known: Cache[_Known] = Cache("superseded_rows", lambda known: known.nbytes)


def superseded_rows(table: Hashable, dataset: Any, key: tuple[str, ...], fresh: pa.Table) -> RowIds:
    """The ids of the base's rows with one of these keys. `table` identifies the table."""
    identity = (table, dataset.version, key)
    wanted = _keys(key, fresh)
    known = _known.get(identity)
    if known is None:
        nothing = pa.schema([*(fresh.schema.field(name) for name in key), pa.field(ROW_ID, pa.uint64())])
        known = _Known(fresh.slice(0, 0), nothing.empty_table())
    new = _keys(key, known.asked).unseen(fresh)
    if new.num_rows:
        batches = [known.found, *(_as(known.found.schema, part) for part in _find(dataset, key, new))]
        known = _Known(pa.concat_tables([known.asked, new]), pa.concat_tables(batches))
        _known.put(identity, known)
    # A key of an earlier search may have left the shards since: its row is visible again.
    rows: RowIds = wanted.seen(known.found).column(ROW_ID).to_numpy()
    return np.unique(rows)


def looks_up(keys: int, rows: int, indexed: bool) -> bool:
    """True if keys are looked up in the index; otherwise all rows are read and compared."""
    return indexed and keys * WORTH_LOOKING_UP < rows


def _find(dataset: Any, key: tuple[str, ...], new: pa.Table) -> Iterator[pa.Table]:
    if looks_up(new.num_rows, dataset.count_rows(), len(key) == 1 and _is_indexed(dataset, key[0])):
        values = new.column(0).unique()
        for start in range(0, len(values), LOOKED_UP):
            filter = pc.field(key[0]).isin(values.slice(start, LOOKED_UP))
            for batch in row_ids.numbered_batches(dataset, key, filter):
                yield pa.Table.from_batches([batch])
        return
    keys = _keys(key, new)
    for batch in row_ids.numbered_batches(dataset, key, batch_rows=READ_TOGETHER):
        yield keys.seen(pa.Table.from_batches([batch]))


def _is_indexed(dataset: Any, column: str) -> bool:
    kinds = {"BTREE", "BITMAP"}
    return any(
        index.field_names == [column] and index.index_type.upper() in kinds for index in dataset.describe_indices()
    )


def _keys(key: tuple[str, ...], rows: pa.Table) -> KeySet:
    keys = KeySet(key)
    keys.add(rows)
    return keys


def _as(schema: pa.Schema, rows: pa.Table) -> pa.Table:
    return rows.select(schema.names).cast(schema)
