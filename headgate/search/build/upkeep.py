"""Keeping the full-text indexes that a base has: what came into it since is indexed, and segments stay few.

Promises:
1. Every full-text index of the base is looked after, whoever made it, with the parameters it has. None is made anew
   that somebody dropped.
2. What `build` promises: a crash anywhere, then again, ends in the same index; where nothing is to be done
   nothing is written.
3. One index that cannot be kept does not keep the others from it.
"""

from __future__ import annotations

from dataclasses import dataclass

from headgate.connectors.lance.datasets import TextIndex, open_dataset, text_indexes
from headgate.connectors.lance.index import look_index
from headgate.connectors.objects import ObjectStore
from headgate.errors import HeadgateError
from headgate.search.build.build import build_index
from headgate.search.build.jobs import Runner
from headgate.search.build.plan import Limits, plan
from headgate.search.finalize.finalize import Report, no_report


@dataclass(frozen=True, slots=True)
class Indexed:
    """What was done to the indexes of a base."""

    columns: tuple[str, ...] = ()
    """Whose index had something to do."""
    segments: int = 0
    """Committed."""


def neglected(store: ObjectStore, limits: Limits | None = None) -> tuple[str, ...]:
    """The columns whose full-text index misses fragments, or has too many segments. Reads the base; writes nothing."""
    cut = limits or Limits()
    return tuple(
        index.column for index in kept_indexes(store) if plan(look_index(store, index.column, index.name), cut)
    )


def index_base(
    store: ObjectStore,
    *,
    runner: Runner | None = None,
    limits: Limits | None = None,
    report: Report = no_report,
) -> Indexed:
    """Let every full-text index of the base cover all of its rows, one after the other. See `build_index`.

    Raises the first error of an index, once the others are done: DataLoss, InvalidInput, Transient.
    """
    columns, segments, failed = [], 0, None
    for index in kept_indexes(store):
        try:
            built = build_index(store, index.column, index.name, runner=runner, limits=limits, report=report)
        except HeadgateError as error:
            failed = failed or error.with_context(table=store.uri, column=index.column)
            continue
        segments += built.added
        columns += [index.column] if built.added else []
    if failed is not None:
        raise failed
    return Indexed(tuple(columns), segments)


def kept_indexes(store: ObjectStore) -> list[TextIndex]:
    """The full-text indexes of the base as it is now; of whole columns, which are what segments are built over."""
    dataset = open_dataset(store)
    whole = set(dataset.schema.names)
    return [index for index in text_indexes(dataset) if index.column in whole]
