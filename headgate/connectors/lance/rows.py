"""Rows of a Lance dataset by row id: which exist, which pass a filter, and their values.

Takes pylance datasets and imports nothing of pylance (fork safety).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headgate.connectors.lance.errors import reading
from headgate.errors import Corrupt

ROW_ID = "_rowid"

RowIds = npt.NDArray[np.uint64]

_IN_A_FRAGMENT = 32
"""If row ids are not stable, these low bits are the row's offset in its fragment; the fragment's id is above them."""


def numbered_batches(
    dataset: Any,
    columns: Sequence[str],
    filter: str | pc.Expression | None = None,
    fragments: Collection[int] | None = None,
    batch_rows: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """The live rows of these fragments, or of all, with `_rowid` as the last column."""
    chosen = None
    if fragments is not None:
        chosen = [fragment for fragment in dataset.get_fragments() if fragment.fragment_id in fragments]
    scanner = dataset.scanner(
        columns=list(columns), filter=filter, with_row_id=True, fragments=chosen, batch_size=batch_rows
    )
    with reading("Reading a Lance dataset failed.", uri=dataset.uri):
        yield from scanner.to_batches()


def row_ids(
    dataset: Any, filter: str | pc.Expression | None = None, fragments: Collection[int] | None = None
) -> RowIds:
    """The ids of the live rows, ascending."""
    found = [batch.column(ROW_ID).to_numpy() for batch in numbered_batches(dataset, [], filter, fragments)]
    return np.sort(np.concatenate([np.zeros(0, np.uint64), *found]))


def take_rows(dataset: Any, rows: RowIds, columns: Sequence[str]) -> pa.Table:
    """The rows with these ids, in this order. Raises Corrupt if one does not exist or is deleted."""
    with reading("Reading rows of a Lance dataset failed.", uri=dataset.uri):
        found = dataset._take_rows(pa.array(rows, pa.uint64()), columns=list(columns))
    if found.num_rows != len(rows):
        what = f"A Lance dataset has only {found.num_rows} of {len(rows)} expected rows."
        raise Corrupt(what, uri=dataset.uri, version=dataset.version)
    return found


def fragments_of(rows: RowIds) -> RowIds:
    """The fragment of each row, if row ids are not stable."""
    return rows >> np.uint64(_IN_A_FRAGMENT)


def deleted_rows(dataset: Any, fragment: Any) -> RowIds:
    """The ids of the rows that were deleted from a fragment, if row ids are not stable."""
    first = np.uint64(fragment.fragment_id << _IN_A_FRAGMENT)
    every = np.arange(fragment.physical_rows, dtype=np.uint64) + first
    return np.setdiff1d(every, row_ids(dataset, fragments=[fragment.fragment_id]), assume_unique=True)


def all_deleted_rows(dataset: Any) -> RowIds:
    """The deleted rows of all fragments, see `deleted_rows`."""
    touched = [fragment for fragment in dataset.get_fragments() if fragment.metadata.deletion_file is not None]
    return np.concatenate([np.zeros(0, np.uint64), *(deleted_rows(dataset, fragment) for fragment in touched)])
