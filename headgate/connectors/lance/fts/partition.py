"""One part of a native full-text index: its documents, and the posting lists of its words, read lazily.

pylance is imported when a function is called, never before (fork safety).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from headgate.caches import Cache
from headgate.connectors.lance.errors import native_error
from headgate.connectors.lance.fts.fst import TokenMap
from headgate.connectors.lance.fts.postings import (
    BLOCK,
    NONE,
    Numbers,
    Offsets,
    Postings,
    decode_positions,
    decode_postings,
)
from headgate.connectors.lance.rows import RowIds
from headgate.connectors.objects import without_secrets
from headgate.errors import Corrupt, DataLoss

POSTINGS = ("_posting", "_length")
POSITIONS = ("_compressed_position", "_position_block_offset")
"""Columns of a posting file, which has one row per word."""

_postings: Cache[Postings] = Cache("postings", lambda found: found.nbytes + 64)
"""Decoded posting lists. Queries repeat words, and decoding the list of a frequent word takes milliseconds."""


class PostingRows(Protocol):
    """A posting file."""

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        ...

    def rows(self, numbers: Sequence[int], columns: tuple[str, ...]) -> pa.Table:
        """The rows of the words with these numbers."""
        ...


@dataclass(frozen=True, eq=False)
class Partition:
    """Documents that were indexed together. A document's number is its index in `rows` and `lengths`."""

    rows: RowIds
    """The row id of each document."""
    lengths: Numbers
    """The number of words of each document."""
    words: TokenMap
    posting_rows: PostingRows
    has_positions: bool
    serial: int = field(default_factory=itertools.count().__next__)
    """The cache's key for its posting lists; never reused."""

    @cached_property
    def tokens(self) -> int:
        """Number of words of all documents."""
        return int(self.lengths.sum(dtype=np.int64))

    @property
    def memory(self) -> tuple[tuple[object, int], ...]:
        """Bytes in memory, by object; `with_rows` shares all but the rows."""
        words = int(self.lengths.nbytes) + self.words.nbytes + self.posting_rows.nbytes
        return (self.rows, int(self.rows.nbytes)), (self.words, words)

    def with_rows(self, rows: RowIds) -> Partition:
        """The same documents with other row ids, one for each document."""
        return replace(self, rows=rows)

    def documents(self, rows: RowIds) -> Numbers:
        """The numbers of the documents of these rows; rows without a document are skipped."""
        if not len(self.rows):
            return NONE.docs
        at = np.minimum(np.searchsorted(self.rows, rows, sorter=self._order), len(self.rows) - 1)
        found = at if self._order is None else self._order[at]
        return np.unique(found[self.rows[found] == rows]).astype(np.uint32)

    def in_memory(self) -> Partition:
        """The same part with its postings in memory; it no longer needs its files."""
        assert isinstance(self.posting_rows, StoredPostings)
        columns = POSTINGS + (POSITIONS if self.has_positions else ())
        return replace(self, posting_rows=self.posting_rows.in_memory(columns))

    def postings(self, words: Sequence[str]) -> list[Postings]:
        """The documents of each word. Raises Corrupt, DataLoss."""
        numbers = [self.words.get(word) for word in words]
        found: dict[int | None, Postings] = {None: NONE}
        missing = []
        for number in dict.fromkeys(numbers):
            if number is not None:
                held = _postings.get((self.serial, number))
                missing.append(number) if held is None else found.update({number: held})
        if missing:
            missing.sort()
            rows = self.posting_rows.rows(missing, POSTINGS)
            blocks, lengths = rows.column(0).combine_chunks(), rows.column(1).to_pylist()
            for place, number in enumerate(missing):
                found[number] = decode_postings(blocks[place].values, lengths[place])
                _postings.put((self.serial, number), found[number])
        return [found[number] for number in numbers]

    def positions(self, word: str, docs: Numbers) -> tuple[Numbers, Numbers]:
        """The positions of a word in these documents: document numbers, and the position of each occurrence."""
        number = self.words.get(word)
        if number is None:
            return NONE.docs, NONE.docs
        (postings,) = self.postings([word])
        rows = self.posting_rows.rows([number], POSITIONS)
        stream = np.frombuffer(rows.column(0)[0].as_py(), np.uint8)
        starts: Offsets = np.asarray(rows.column(1)[0].as_py(), np.int64)
        wanted = np.flatnonzero(np.isin(postings.docs, docs, assume_unique=True))
        blocks: Offsets = np.unique(wanted // BLOCK).astype(np.int64)
        places, positions = decode_positions(stream, starts, postings.counts, blocks)
        these = np.isin(places, wanted)
        return postings.docs[places[these]], positions[these]

    @cached_property
    def _order(self) -> Offsets | None:
        """None if the rows ascend, as they nearly always do."""
        return None if bool((self.rows[1:] > self.rows[:-1]).all()) else np.argsort(self.rows)


@dataclass(frozen=True, eq=False)
class StoredPostings:
    """A stored posting file, whose rows are read lazily."""

    uri: str
    options: Mapping[str, str] = field(repr=False)

    @property
    def nbytes(self) -> int:
        """0: rows that were read are cached elsewhere."""
        return 0

    def rows(self, numbers: Sequence[int], columns: tuple[str, ...]) -> pa.Table:
        """The rows of the words with these numbers. Raises DataLoss."""
        with _reading(self.uri):
            return self._open(columns).take_rows(list(numbers)).to_table()

    def in_memory(self, columns: tuple[str, ...]) -> PostingsInMemory:
        """These columns of the whole file. Raises DataLoss."""
        return PostingsInMemory(read_file(self.uri, self.options, list(columns)).combine_chunks())

    def _open(self, columns: tuple[str, ...]) -> Any:
        readers: dict[tuple[str, ...], Any] = self._readers
        if columns not in readers:
            readers[columns] = open_file(self.uri, self.options, list(columns))
        return readers[columns]

    @cached_property
    def _readers(self) -> dict[tuple[str, ...], Any]:
        return {}


@dataclass(frozen=True, eq=False)
class PostingsInMemory:
    """A posting file in memory."""

    table: pa.Table

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return int(self.table.nbytes)

    def rows(self, numbers: Sequence[int], columns: tuple[str, ...]) -> pa.Table:
        """The rows of the words with these numbers."""
        return self.table.select(columns).take(pa.array(numbers, pa.int64()))


def read_file(uri: str, options: Mapping[str, str], columns: list[str] | None = None) -> pa.Table:
    """The rows of an index file. Raises DataLoss if it is missing or damaged."""
    with _reading(uri):
        return open_file(uri, options, columns).read_all().to_table()


def open_file(uri: str, options: Mapping[str, str], columns: list[str] | None) -> Any:
    """A reader of an index file. Raises DataLoss."""
    from lance.file import LanceFileReader

    with _reading(uri):
        return LanceFileReader(uri, storage_options=dict(options) or None, columns=columns)


@contextmanager
def _reading(uri: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        what = "A file of an index is missing or damaged."
        raise native_error(what, error, DataLoss, file=uri) from without_secrets(error)
    except BaseException as error:
        # Native panics on bytes that are not a Lance file, and the class of its panics cannot be imported.
        if type(error).__name__ != "PanicException":
            raise
        raise Corrupt("A file of an index is not a valid Lance file.", file=uri) from without_secrets(error)
