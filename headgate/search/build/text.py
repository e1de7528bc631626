"""Builds full-text indexes of a column. Large segments are merged by copying their parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headgate.connectors.lance.dataset import ensure_full_text
from headgate.connectors.lance.datasets import TextIndex, open_dataset
from headgate.connectors.lance.fts.index import own_stop_words
from headgate.connectors.lance.index import IndexLook, SegmentLook, check_parameters, look_index
from headgate.connectors.objects import ObjectStore
from headgate.errors import DataLoss, InvalidInput
from headgate.search.build.jobs import BuildJob, GatherJob, Job, Runner
from headgate.search.build.plan import Limits, Merge, Round, plan, plan_rebuild
from headgate.search.finalize.finalize import Report
from headgate.search.finalize.marker import read_marker, read_segment
from headgate.search.finalize.segment import IndexFolder, Segment, differing


@dataclass(frozen=True)
class TextKind:
    """See Kind. `parameters` are native's (stem, language, with_position …)."""

    def look(self, store: ObjectStore, column: str, name: str) -> IndexLook:
        look = look_index(store, column, name)
        if look.parameters is None:
            return look
        dataset = open_dataset(store, version=look.version)
        return replace(look, parameters={**look.parameters, **own_stop_words(dataset, store, look.name)})

    def chosen(
        self, store: ObjectStore, column: str, look: IndexLook, given: Mapping[str, Any] | None, rebuild: bool
    ) -> Mapping[str, Any]:
        if look.parameters is not None and not rebuild:
            check_same(store, look, given or {})
            return look.parameters
        chosen = dict(given if given is not None else look.parameters or {})
        check_parameters(store, column, chosen)
        return chosen

    def begun(
        self, store: ObjectStore, column: str, look: IndexLook, chosen: Mapping[str, Any], rebuild: bool
    ) -> IndexLook:
        """On a base without rows, create an empty index: it keeps the parameters, and fresh rows can be searched."""
        if look.fragments or not (look.parameters is None or (rebuild and look.parameters != chosen)):
            return look
        uri, options = store.locate()
        ensure_full_text(uri, TextIndex(look.name, column, chosen), options, renew=look.parameters is not None)
        return self.look(store, column, look.name)

    def plan(
        self, store: ObjectStore, column: str, look: IndexLook, limits: Limits, renew: bool = False
    ) -> Round | Merge | None:
        return plan_rebuild(look, limits) if renew else plan(look, limits)

    def jobs(
        self, store: ObjectStore, column: str, look: IndexLook, todo: Round | Merge, parameters: Mapping[str, Any]
    ) -> tuple[list[Job], Round]:
        if isinstance(todo, Merge):
            sources, todo = _gatherable(store, todo), todo.as_round
            if sources is not None:
                return [GatherJob(store, sources)], replace(todo, groups=(GatherJob(store, sources).fragments,))
        jobs: list[Job] = []
        for group in todo.groups:
            rows = sum(look.fragments[fragment].rows for fragment in group)
            jobs.append(BuildJob(store, column, look.name, look.version, group, rows, dict(parameters)))
        return jobs, todo

    def run(self, jobs: Sequence[Job], runner: Runner, report: Report) -> Sequence[Segment]:
        return runner(jobs, report)

    def differ(self, one: Segment, other: Segment) -> str | None:
        what = differing(one.settings, other.settings)
        return what or ("details" if one.facts.details != other.facts.details else None)

    def differ_beside(self, store: ObjectStore, look: IndexLook, staying: SegmentLook, added: Segment) -> str | None:
        folder = IndexFolder(store, staying.index_id)
        marker = read_marker(folder)
        if marker is None:
            raise DataLoss(
                f"The marker of a segment of index {look.name!r} is invalid.",
                **folder.where(),
                advice="rebuild the index with rebuild=True (--rebuild); nothing was committed",
            )
        return differing(marker.settings, added.settings)

    def inside(self, store: ObjectStore, segment: SegmentLook) -> tuple[int | None, int | None]:
        found = None if segment.elsewhere else read_segment(IndexFolder(store, segment.index_id))
        return (None, None) if found is None else (found.documents, found.part_count)

    def waits(self, store: ObjectStore, column: str, look: IndexLook) -> str:
        return ""


TEXT = TextKind()


def check_same(store: ObjectStore, look: IndexLook, given: Mapping[str, Any]) -> None:
    """Raises InvalidInput if a given parameter differs from the index's."""
    if (difference := other_parameter(look, given)) is not None:
        raise InvalidInput(
            difference,
            table=store.uri,
            advice="leave the parameters out, or rebuild the index with rebuild=True (--rebuild); nothing was written",
        )


def other_parameter(look: IndexLook, given: Mapping[str, Any]) -> str | None:
    """The first given parameter that differs from the index's, as a sentence; None if all are equal."""
    there = look.parameters or {}
    for key, value in given.items():
        if there.get(key) != value:
            return f"Index {look.name!r} has {key}={there.get(key)!r}, but {value!r} was requested."
    return None


def _gatherable(store: ObjectStore, merge: Merge) -> tuple[Segment, ...] | None:
    """The sources if their parts can and should be copied, else None: their rows are then indexed again.

    Copying is correct only if each source covers exactly the fragments it was built over: it still contains the words
    of a fragment that it no longer covers.
    """
    if not merge.copied:
        return None
    found = []
    for one in merge.sources:
        segment = None if one.elsewhere else read_segment(IndexFolder(store, one.index_id))
        if segment is None or frozenset(segment.fragments) != one.fragments:
            return None
        found.append(segment)
    return tuple(found)
