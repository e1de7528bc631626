"""Keeps the base's indexes up to date: indexes new rows, and keeps the number of segments small.

Promises:
1. It maintains every full-text index of the base, no matter who created it, with its own parameters. A dropped index is
   not created again. A vector column gets the index that the table's record names, once it can be trained.
2. As in `build`: after a crash anywhere, the next run ends in the same index; if there is nothing to do it writes
   nothing.
3. If one index fails, the others are still maintained.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headgate.connectors.lance.datasets import open_dataset, text_indexes
from headgate.errors import HeadgateError
from headgate.search.build.build import build_index
from headgate.search.build.jobs import Runner
from headgate.search.build.kind import Kind
from headgate.search.build.plan import Limits
from headgate.search.build.text import TEXT
from headgate.search.build.vectors import VectorKind
from headgate.search.finalize.finalize import Report, no_report
from headgate.shards.home.base import index_name
from headgate.shards.shard import TableHome


@dataclass(frozen=True, slots=True)
class Indexed:
    """What was done to the indexes of a base."""

    columns: tuple[str, ...] = ()
    """Columns whose index got new segments."""
    segments: int = 0
    """Number of committed segments."""


def neglected(home: TableHome, limits: Limits | None = None) -> tuple[str, ...]:
    """The columns whose index lacks fragments or has too many segments. Reads the base; writes nothing."""
    cut, store = limits or Limits(), home.store
    return tuple(
        column
        for column, name, kind in kept_indexes(home)
        if kind.plan(store, column, kind.look(store, column, name), cut)
    )


def index_base(
    home: TableHome,
    *,
    runner: Runner | None = None,
    limits: Limits | None = None,
    report: Report = no_report,
) -> Indexed:
    """Make every index of the base cover all of its rows, one index after the other. See `build_index`.

    Raises the first error of an index, after the others are done: DataLoss, InvalidInput, Transient.
    """
    columns, segments, failed = [], 0, None
    for column, name, kind in kept_indexes(home):
        try:
            built = build_index(home.store, column, name, kind=kind, runner=runner, limits=limits, report=report)
        except HeadgateError as error:
            failed = failed or error.with_context(table=home.uri, column=column)
            continue
        segments += built.added
        columns += [column] if built.added else []
    if failed is not None:
        raise failed
    return Indexed(tuple(columns), segments)


def kept_indexes(home: TableHome) -> Iterator[tuple[str, str, Kind]]:
    """Column, name and kind of the base's full-text indexes and of the table's vector columns. Skips indexes of nested
    fields: segments are built over top-level columns only.
    """
    dataset = open_dataset(home.store)
    whole = set(dataset.schema.names)
    for index in text_indexes(dataset):
        if index.column in whole:
            yield index.column, index.name, TEXT
    for vector in home.vectors:
        if vector.column in whole:
            yield vector.column, index_name(vector.column), VectorKind(vector)


def kind_of(home: TableHome, column: str) -> Kind:
    """The kind of index of a column: VectorKind for a vector column, else TEXT."""
    return next((VectorKind(vector) for vector in home.vectors if vector.column == column), TEXT)
