"""The base's part of a search: the segments of its index, and the fragments that no segment covers yet.

Promises:
1. A live row is in exactly one part. Deleted, rewritten or moved rows of a segment are hidden from hits and statistics.
2. Fragments that no segment covers are indexed in memory, once each.
3. `exact` is true if native's own search over the base returns the same result: everything covered, nothing hidden.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.caches import Cache
from headgate.connectors.lance import datasets
from headgate.connectors.lance import rows as row_ids
from headgate.connectors.lance.fts import index as full_text
from headgate.connectors.lance.fts.index import Segment
from headgate.connectors.lance.fts.partition import Partition
from headgate.connectors.lance.rows import ROW_ID, RowIds
from headgate.errors import InvalidInput
from headgate.search.query.parts import StoredSource, TextColumn, TextPart, opened, part_of, tail_parts
from headgate.search.query.tail_index import TextBlock
from headgate.shards.rows.view import TableView

_deleted: Cache[RowIds] = Cache("deleted_rows", lambda rows: int(rows.nbytes))

GONE = 0xFFFF_FFFF << 32
"""Row ids from here on stand for rows that no longer exist: no fragment has such an id."""


@dataclass(frozen=True, eq=False)
class BaseIndex:
    """The full-text index of a column of the base, at one version."""

    uri: str
    dataset: Any
    column: TextColumn
    segments: tuple[Segment, ...]

    @classmethod
    def of(cls, view: TableView, column: str) -> BaseIndex:
        """The index of a column. Raises InvalidInput if it has none."""
        dataset, store = view.base.dataset, view.home.store
        names = {index.column: index.name for index in datasets.text_indexes(dataset)}
        if column not in names:
            raise InvalidInput(
                f"Column {column!r} has no full-text index.",
                table=view.home.uri,
                known=sorted(names) or None,
                advice=f"build one first: headgate index build {view.home.uri} --column {column}",
            )
        segments = full_text.segments(dataset, store, "", names[column])
        indexes = [opened(segment) for segment in segments]
        text_column = TextColumn(column, indexes[0].parameters)
        if not all(text_column.fits(index.parameters) for index in indexes):
            raise InvalidInput(
                f"The segments of index {names[column]!r} were built with different parameters.",
                table=view.home.uri,
                advice="build the index again: headgate index build",
            )
        return cls(view.home.uri, dataset, text_column, segments)

    @cached_property
    def fragments(self) -> dict[int, Any]:
        """The fragments of this version."""
        return {fragment.fragment_id: fragment for fragment in self.dataset.get_fragments()}

    @cached_property
    def covered(self) -> frozenset[int]:
        """The fragments that a segment covers. A fragment with overlays counts as not covered."""
        return frozenset(
            number
            for segment in self.segments
            for number in segment.fragments
            if number in self.fragments and not self.fragments[number].metadata.overlays
        )

    def parts(self, superseded: RowIds) -> list[TextPart]:
        """All parts of the base, without the superseded rows."""
        source = StoredSource(self.dataset)
        covered = [
            part_of(partition, source, np.union1d(superseded, gone)) for partition, gone in self._partitions_and_gone
        ]
        return [*covered, *self._uncovered_parts(source, superseded)]

    @cached_property
    def exact(self) -> bool:
        """True if native's own search over this version returns the right hits and scores."""
        return self.covered == set(self.fragments) and not any(
            len(partition.documents(gone)) for partition, gone in self._partitions_and_gone
        )

    @cached_property
    def _partitions_and_gone(self) -> list[tuple[Partition, RowIds]]:
        """Every partition, with those of its rows that the base no longer has."""
        remaps = any(index.index_type == "FragmentReuse" for index in self.dataset.describe_indices())
        stable = self.dataset.has_stable_row_ids
        found = []
        for segment in self.segments:
            here = segment.fragments & self.covered
            for partition in opened(segment).partitions:
                if remaps:
                    partition = partition.with_rows(_moved(self.dataset, partition.rows))
                gone = self._gone_of_stable(partition, here) if stable else self._gone(partition, here)
                found.append((partition, gone))
        return found

    def _gone(self, partition: Partition, here: frozenset[int]) -> RowIds:
        fragments = row_ids.fragments_of(partition.rows)
        elsewhere = partition.rows[~np.isin(fragments, np.array(sorted(here), np.uint64))]
        deleted = [self._deleted(number) for number in np.unique(fragments).tolist() if number in here]
        return np.concatenate([elsewhere, *deleted])

    def _gone_of_stable(self, partition: Partition, here: frozenset[int]) -> RowIds:
        living = row_ids.row_ids(self.dataset, fragments=here)
        return partition.rows[~np.isin(partition.rows, living)]

    def _deleted(self, number: int) -> RowIds:
        fragment = self.fragments[number]
        file = fragment.metadata.deletion_file
        if file is None:
            return np.zeros(0, np.uint64)
        identity = (self.uri, number, file.read_version, file.id)
        return _deleted.get_or_make(identity, lambda: row_ids.deleted_rows(self.dataset, fragment))

    def _uncovered_parts(self, source: StoredSource, superseded: RowIds) -> Iterator[TextPart]:
        blocks, rows = [], [np.zeros(0, np.uint64)]
        for number in sorted(set(self.fragments) - self.covered):
            found = [batch.column(ROW_ID).to_numpy() for batch in self._batches(number)]
            identity = f"{self.uri}:{self.column.name}:{self.fragments[number].metadata.to_json()}".encode()
            blocks.append(TextBlock(identity, sum(map(len, found)), partial(self._texts, number)))
            rows += found
        yield from tail_parts(source, blocks, np.concatenate(rows), self.column, superseded)

    def _texts(self, number: int) -> list[pa.Array]:
        return [batch.column(0) for batch in self._batches(number, self.column.name)]

    def _batches(self, number: int, *columns: str) -> Iterator[pa.RecordBatch]:
        return row_ids.numbered_batches(self.dataset, columns, fragments=[number])


def _moved(dataset: Any, rows: RowIds) -> RowIds:
    """The current ids of rows that a compaction moved without rewriting the index; a dropped row gets an unused id."""
    moved = dataset.remap_row_addrs(pa.array(rows))
    dropped = pa.array(GONE + np.arange(len(rows), dtype=np.uint64))
    found: RowIds = pc.if_else(moved.is_null(), dropped, moved).to_numpy()
    return found
