"""Builds vector indexes of a column: one model is trained with a sample, and all segments are built with it.

Promises, besides those of `build`:
1. The model is trained once: by the first job of a new index, or when the index is rebuilt. Later jobs read it from an
   existing segment, also from one that native rewrote.
2. With fewer rows than training needs there is no index, and searches measure every row.
3. If an index has about four times the vectors of its training, it is rebuilt with more partitions.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from headgate.caches import Cache
from headgate.connectors.lance.base.files import sync_tree
from headgate.connectors.lance.files import read_end
from headgate.connectors.lance.index import IndexLook, SegmentLook, build_segment, look_index, vector_parameters
from headgate.connectors.lance.vectors import (
    build_arguments,
    count_vectors,
    partition_count,
    partitions_for,
    read_model,
    train,
)
from headgate.connectors.objects import ObjectStore
from headgate.errors import InvalidInput
from headgate.search.build.jobs import Job, Runner, intended
from headgate.search.build.plan import Limits, Merge, Round, plan, plan_rebuild
from headgate.search.build.text import check_same
from headgate.search.finalize.finalize import Report, no_report
from headgate.search.finalize.segment import Facts, IndexFolder, Segment, differing
from headgate.shards.vectors import VectorColumn
from headgate.steps import step

GROWN = 2
"""An index is rebuilt if it should have this many times its partitions: at about four times the vectors."""

VALUES = "auxiliary.idx"
"""The file of a segment with one row per vector."""

_counts: Cache[int] = Cache("vector_counts", lambda count: 200)


@dataclass(frozen=True)
class VectorKind:
    """See Kind. Index type and metric are those of the column."""

    of: VectorColumn

    def look(self, store: ObjectStore, column: str, name: str) -> IndexLook:
        return look_index(store, column, name, vector_parameters)

    def chosen(
        self, store: ObjectStore, column: str, look: IndexLook, given: Mapping[str, Any] | None, rebuild: bool
    ) -> Mapping[str, Any]:
        if given:
            raise InvalidInput(
                f"The index of vectors {column!r} takes no parameters: it has those that the column was made with.",
                table=store.uri,
            )
        chosen = {"index_type": self.of.index, "metric": self.of.metric}
        if look.parameters is not None and not rebuild:
            check_same(store, look, chosen)
        return chosen

    def begun(
        self, store: ObjectStore, column: str, look: IndexLook, chosen: Mapping[str, Any], rebuild: bool
    ) -> IndexLook:
        return look

    def plan(
        self, store: ObjectStore, column: str, look: IndexLook, limits: Limits, renew: bool = False
    ) -> Round | Merge | None:
        begins = look.parameters is None or renew
        if begins and self._vectors(store, column, look) < self.of.train_rows:
            return None
        if renew or self._outgrown(store, look):
            return plan_rebuild(look, limits)
        return plan(look, limits)

    def jobs(
        self, store: ObjectStore, column: str, look: IndexLook, todo: Round | Merge, parameters: Mapping[str, Any]
    ) -> tuple[list[Job], Round]:
        done = todo.as_round if isinstance(todo, Merge) else todo
        own = () if done.whole else tuple(one.index_id for one in look.segments if not one.elsewhere)
        made = partial(VectorJob, store, column, look.name, look.version, settings=_settings(parameters))
        return [made(fragments=group, model=own[0] if own else None) for group in done.groups], done

    def run(self, jobs: Sequence[Job], runner: Runner, report: Report) -> Sequence[Segment]:
        """If there is no model yet, the first job trains it, and the others read it from the first one's segment."""
        leader, *others = jobs
        if not isinstance(leader, VectorJob) or leader.model is not None:
            return runner(jobs, report)
        (first,) = runner([leader], report)
        followers = [replace(job, model=first.index_id) for job in others if isinstance(job, VectorJob)]
        return [first, *(runner(followers, report) if followers else ())]

    def differ(self, one: Segment, other: Segment) -> str | None:
        return differing(one.settings, other.settings)

    def differ_beside(self, store: ObjectStore, look: IndexLook, staying: SegmentLook, added: Segment) -> str | None:
        return differing(_settings(look.parameters or {}), added.settings)

    def inside(self, store: ObjectStore, segment: SegmentLook) -> tuple[int | None, int | None]:
        """The number of vectors, and of partitions."""
        if segment.elsewhere:
            return None, None
        objects = IndexFolder(store, segment.index_id).objects
        vectors = read_end(objects, VALUES, objects.head(VALUES).size).rows
        return vectors, partition_count(*store.locate(f"_indices/{segment.index_id}"))

    def waits(self, store: ObjectStore, column: str, look: IndexLook) -> str:
        if look.parameters is not None:
            return ""
        found, needed = self._vectors(store, column, look), self.of.train_rows
        if found >= needed:
            return "not built yet: until then every row is measured"
        return f"no index yet: it needs {needed:,} rows with a vector, and the base has {found:,}"

    def _vectors(self, store: ObjectStore, column: str, look: IndexLook) -> int:
        """The number of the base's rows with a vector; if there are too few rows for an index, the number of rows."""
        rows = sum(fragment.rows for fragment in look.fragments.values())
        if rows < self.of.train_rows:
            return rows
        identity = (store.uri, column, look.version)
        return _counts.get_or_make(identity, lambda: count_vectors(store, look.version, column))

    def _outgrown(self, store: ObjectStore, look: IndexLook) -> bool:
        if not look.segments or any(one.elsewhere for one in look.segments):
            return False
        inside = [self.inside(store, one) for one in look.segments]
        vectors, fewest = sum(found or 0 for found, _ in inside), min(parts or 1 for _, parts in inside)
        return partitions_for(str((look.parameters or {})["index_type"]), vectors) >= GROWN * fewest


@dataclass(frozen=True)
class VectorJob:
    """Index fragments of one version of the base with a model; train the model if there is none."""

    store: ObjectStore
    column: str
    name: str
    version: int
    fragments: tuple[int, ...]
    settings: Mapping[str, str]
    """Type and metric of the index."""
    model: uuid.UUID | None
    """A segment that contains the model; None if this job must train it."""

    def run(self, *, report: Report = no_report) -> Segment:
        """See Job."""
        index_type, metric = self.settings["index_type"], self.settings["metric"]
        folder = intended(self.store)
        step("build")
        report("build", 0, 1)
        if self.model is None:
            model = train(self.store, self.version, self.column, metric, index_type)
        else:
            model = read_model(*self.store.locate(f"_indices/{self.model}"))
        step("modelled")
        native = build_segment(
            self.store,
            self.version,
            self.column,
            self.name,
            self.fragments,
            build_arguments(index_type, metric, model),
            folder.index_id,
            index_type,
        )
        # Lance never syncs, and the files must be on disk before a commit names them.
        sync_tree(self.store, f"_indices/{folder.index_id}")
        rows = read_end(folder.objects, VALUES, native.files[VALUES]).rows
        facts = Facts(native.fields, native.dataset_version, native.index_version, native.details)
        report("build", 1, 1)
        step("built")
        return Segment(folder.index_id, tuple(sorted(self.fragments)), native.files, 0, rows, self.settings, facts)


def _settings(parameters: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in parameters.items()}
