"""Parts of a search: documents that are indexed together, and where their rows are.

A part is a segment of the base's index, an SSTable's own index, or texts that no index covers, indexed in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate import parallel
from headgate.caches import Cache
from headgate.connectors.lance import rows as row_ids
from headgate.connectors.lance.filters import Filter, applying, filtered
from headgate.connectors.lance.fts import index as full_text
from headgate.connectors.lance.fts.index import OpenIndex, Segment
from headgate.connectors.lance.fts.partition import Partition
from headgate.connectors.lance.rows import RowIds
from headgate.errors import InvalidInput
from headgate.search.query.ranking import Documents, Hits
from headgate.search.query.tail_index import TextBlock, tail_segments
from headgate.shards.rows.chunks import ChunkedRows
from headgate.shards.rows.keys import plain
from headgate.shards.shard import Shard

SCORE = "_score"
PLACE = "__headgate_place"
"""Column that numbers rows while a filter is applied to them; Lance rejects the name `_rowid`."""

_indexes: Cache[OpenIndex] = Cache("indexes", lambda index: 0, lambda index: index.memory)
"""Opened indexes: 12 bytes per document, and the words."""


class Source(Protocol):
    """Where the rows of a part are."""

    @property
    def place(self) -> str:
        """Identifies its rows: sources of one instant with the same rows have the same place and the same row ids."""
        ...

    def take(self, rows: RowIds, columns: Sequence[str]) -> pa.Table:
        """These rows, in this order."""
        ...

    def passing(self, filter: Filter) -> RowIds:
        """The ids of the rows that pass a filter."""
        ...


@dataclass(frozen=True, eq=False)
class StoredSource:
    """A dataset with the table's current columns."""

    dataset: Any

    @property
    def place(self) -> str:
        """The URI of the dataset."""
        return str(self.dataset.uri)

    def take(self, rows: RowIds, columns: Sequence[str]) -> pa.Table:
        """These rows, in this order."""
        return row_ids.take_rows(self.dataset, rows, columns)

    def passing(self, filter: Filter) -> RowIds:
        """The ids of the rows that pass a filter."""
        with applying(filter):
            return row_ids.row_ids(self.dataset, filter)


@dataclass(frozen=True, eq=False)
class FreshSource:
    """Rows in memory; a row's id is its index."""

    rows: pa.Table
    place: str

    def take(self, rows: RowIds, columns: Sequence[str]) -> pa.Table:
        """These rows, in this order."""
        return self._chunks.take(rows, columns)

    def passing(self, filter: Filter) -> RowIds:
        """The ids of the rows that pass a filter."""
        places = pa.array(np.arange(self.rows.num_rows, dtype=np.uint64))
        found: RowIds = filtered(self.rows.append_column(PLACE, places), filter).column(PLACE).to_numpy()
        return found

    @cached_property
    def _chunks(self) -> ChunkedRows:
        return ChunkedRows(self.rows)


def tail_place(shard: Shard) -> str:
    """The place of a shard's fresh rows."""
    return f"{shard.id}:tail"


@dataclass(frozen=True, eq=False)
class TextPart:
    """Documents of one source that are searched together."""

    documents: Documents
    source: Source


@dataclass(frozen=True)
class TextColumn:
    """The searched column, and the parameters by which its index splits texts into words."""

    name: str
    parameters: Mapping[str, Any]

    def fits(self, parameters: Mapping[str, Any]) -> bool:
        """True if an index with these parameters has the same words; how it stores them does not matter."""
        return {**parameters, "block_size": 0} == {**self.parameters, "block_size": 0}


def opened(segment: Segment) -> OpenIndex:
    """An opened index folder, from the cache if it was read before."""
    return _indexes.get_or_make(segment.uri, lambda: full_text.open_index(segment.uri, segment.options))


def tail_parts(
    source: Source, blocks: Sequence[TextBlock], rows: RowIds, column: TextColumn, hidden: RowIds
) -> Iterator[TextPart]:
    """Parts for texts that no index covers; `rows` are their row ids in the order of the blocks."""
    for segment in tail_segments(blocks, column.parameters):
        for partition in segment.index.partitions:
            places = partition.rows.astype(np.int64) + segment.first
            yield part_of(partition.with_rows(rows[places]), source, hidden)


def part_of(partition: Partition, source: Source, hidden: RowIds) -> TextPart:
    """A part without the hidden rows."""
    return TextPart(Documents(partition, partition.documents(hidden)), source)


def rows_of(parts: Sequence[TextPart], hits: Hits, columns: Sequence[str]) -> pa.Table:
    """The values of the hits, in their order."""
    sources = {id(part.source): part.source for part in parts}
    numbers = {source: number for number, source in enumerate(sources)}
    of_parts = np.array([numbers[id(part.source)] for part in parts], np.int64)
    return rows_from(list(sources.values()), of_parts[hits.parts], hits.rows, columns)


def rows_from(
    sources: Sequence[Source], numbers: npt.NDArray[np.int64], rows: RowIds, columns: Sequence[str]
) -> pa.Table:
    """The values of rows, in their order; `numbers` has the index of each row's source. Sources are asked side by
    side.
    """
    places = [np.flatnonzero(numbers == number) for number in range(len(sources))]
    asked = [number for number, here in enumerate(places) if len(here)]

    def take(number: int) -> pa.Table:
        return plain(sources[number].take(rows[places[number]], columns))

    found = parallel.each("rows", take, asked)
    order = np.argsort(np.concatenate([places[number] for number in asked]))
    return pa.concat_tables(found).take(pa.array(order))


def check_match(column: TextColumn, match: str, k: int) -> None:
    """Raises InvalidInput for invalid arguments."""
    if k < 1:
        raise InvalidInput(f"k must be at least 1, got {k}.")
    if match not in ("any", "all", "phrase"):
        raise InvalidInput(f"match must be any, all or phrase, got {match!r}.", known="any, all, phrase")
    if match == "phrase" and not column.parameters["with_position"]:
        raise InvalidInput(
            f"The full-text index of column {column.name!r} does not store word positions, which a phrase needs.",
            advice='search with match="all", or rebuild the index with with_position=true',
        )
