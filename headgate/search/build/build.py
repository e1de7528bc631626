"""Building the full-text index of a column: fragments become segments on any number of tasks, then one commit.

Promises:
1. It ends with every fragment of the base covered, or an error; rows are searchable meanwhile, slower.
2. Running it again, after a crash or beside another, ends in one correct index; where all is covered it changes
   nothing, and the table gets no new version.
3. Every attempt of a task writes under an id of its own. What a dead or beaten one left is garbage.
4. Segments stay few: small ones are merged as they come, so that a query's time does not grow with their number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from headgate.connectors.lance.dataset import ensure_full_text
from headgate.connectors.lance.datasets import TextIndex, open_dataset
from headgate.connectors.lance.fts.index import own_stop_words
from headgate.connectors.lance.index import IndexLook, check_parameters, look_index
from headgate.connectors.objects import ObjectStore
from headgate.errors import InvalidInput, Transient
from headgate.search.build.commit import Committed, commit
from headgate.search.build.jobs import BuildJob, GatherJob, Job, Runner, in_process
from headgate.search.build.plan import Limits, Merge, Round, plan, plan_rebuild
from headgate.search.finalize.finalize import Report, Stages, no_report
from headgate.search.finalize.marker import read_segment
from headgate.search.finalize.segment import IndexFolder, Segment
from headgate.steps import step

BUILD_STAGES = ("discover", "build", "copy_parts", "write_merged_metadata", "clean_staging", "commit")
BUILD_STEPS = ("planned", "finished", "done")
"""Where `build_index` pauses, in each round, besides the steps of `commit`."""

IDLE_ROUNDS = 5
"""So often in a row the base may change under a round so that nothing of it can be used."""


@dataclass(frozen=True, slots=True)
class IndexBuild:
    """What building did, and how the index stands."""

    name: str
    column: str
    version: int
    rounds: int
    added: int
    """Segments committed."""
    segments: int
    fragments: int
    rows: int


def build_index(
    store: ObjectStore,
    column: str,
    name: str,
    *,
    parameters: Mapping[str, Any] | None = None,
    rebuild: bool = False,
    runner: Runner | None = None,
    limits: Limits | None = None,
    report: Report = no_report,
) -> IndexBuild:
    """Cover every fragment of the base by the column's full-text index; `name` is for one that is not there yet.

    1. discover: what the base has, what the index covers, what is to be done next.
    2. build and finalize segments, on the runner.
    3. check that they are what was asked for, and commit them.
    4. look again; from 1, until nothing is left to do.

    `parameters` are native's (stem, language, with_position …), for a new index or with `rebuild`, which makes all
    segments anew; an existing index keeps its own. On a base without rows the index is made empty, so that it keeps
    its parameters, and fresh rows can be searched. Raises InvalidInput, DataLoss, Transient.
    """
    limits, stages = limits or Limits(), Stages(report)
    run = runner or in_process
    stages.at("discover", 0, 1)
    look = index_of(store, column, name)
    chosen = _chosen(store, column, look, parameters, rebuild)
    if not look.fragments and (look.parameters is None or (rebuild and look.parameters != chosen)):
        uri, options = store.locate()
        ensure_full_text(uri, TextIndex(look.name, column, chosen), options, renew=look.parameters is not None)
        look = index_of(store, column, name)
    rounds = added = idle = 0
    renew = rebuild and bool(look.fragments)
    while True:
        todo = plan_rebuild(look, limits) if renew else plan(look, limits)
        stages.complete("discover")
        step("planned")
        if todo is None:
            stages.complete(*BUILD_STAGES)
            step("done")
            rows = sum(fragment.rows for fragment in look.fragments.values())
            return IndexBuild(
                look.name, column, look.version, rounds, added, len(look.segments), len(look.fragments), rows
            )
        jobs, done = _jobs(store, column, look, todo, chosen if renew or look.parameters is None else look.parameters)
        segments = _matching(jobs, run(jobs, partial(_progress, stages)), store)
        stages.complete(*BUILD_STAGES[:-1])
        step("finished")
        stages.at("commit", 0, 1)
        landed = commit(store, column, look, segments, done)
        stages.complete("commit")
        rounds, added = rounds + 1, added + len(landed.landed)
        idle = 0 if landed.landed else idle + 1
        if idle > IDLE_ROUNDS:
            raise _never_fits(store, look, landed)
        renew = renew and not landed.landed
        look = index_of(store, column, name)


def index_of(store: ObjectStore, column: str, name: str) -> IndexLook:
    """The column's full-text index as it is now, with all of its parameters."""
    look = look_index(store, column, name)
    if look.parameters is None:
        return look
    dataset = open_dataset(store, version=look.version)
    return replace(look, parameters={**look.parameters, **own_stop_words(dataset, store, look.name)})


def other_parameter(look: IndexLook, given: Mapping[str, Any]) -> str | None:
    """What an index has otherwise than the parameters say, as a sentence; what they leave out may be anything."""
    there = look.parameters or {}
    for key, value in given.items():
        if there.get(key) != value:
            return f"Index {look.name!r} has {key}={there.get(key)!r}, and {value!r} was asked for."
    return None


def _progress(stages: Stages, stage: str, done: int, total: int) -> None:
    """Only stages of a job: the finalizer's discovery is not the build's."""
    if stage in BUILD_STAGES and stage != "discover":
        stages.at(stage, done, total)


def _chosen(
    store: ObjectStore, column: str, look: IndexLook, parameters: Mapping[str, Any] | None, rebuild: bool
) -> Mapping[str, Any]:
    if look.parameters is not None and not rebuild:
        if (difference := other_parameter(look, parameters or {})) is not None:
            raise InvalidInput(
                difference,
                table=store.uri,
                advice="leave the parameters out, or build the index anew with rebuild=True; nothing was written",
            )
        return look.parameters
    chosen = dict(parameters if parameters is not None else look.parameters or {})
    check_parameters(store, column, chosen)
    return chosen


def _jobs(
    store: ObjectStore, column: str, look: IndexLook, todo: Round | Merge, parameters: Mapping[str, Any]
) -> tuple[list[Job], Round]:
    if isinstance(todo, Merge):
        sources = _gatherable(store, todo)
        removed = tuple(one.index_id for one in todo.sources)
        if sources is not None:
            job = GatherJob(store, sources)
            return [job], Round((job.fragments,), removed)
        todo = Round((todo.fragments,), removed)
    jobs: list[Job] = []
    for group in todo.groups:
        rows = sum(look.fragments[fragment].rows for fragment in group)
        jobs.append(BuildJob(store, column, look.name, look.version, group, rows, dict(parameters)))
    return jobs, todo


def _gatherable(store: ObjectStore, merge: Merge) -> tuple[Segment, ...] | None:
    """The sources where copying their parts is right and worth it, else None: they are indexed again from the rows.

    Right only if each covers exactly what it was built over: of a fragment that it lost, it still has the words.
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


def _matching(jobs: Sequence[Job], segments: Sequence[Segment], store: ObjectStore) -> Sequence[Segment]:
    """The segments, if there is exactly one for each job. Raises Transient."""
    asked = sorted(tuple(sorted(job.fragments)) for job in jobs)
    if sorted(one.fragments for one in segments) != asked:
        raise Transient(
            f"{len(jobs)} jobs gave {len(segments)} segments, or such as cover other fragments than they should.",
            table=store.uri,
        )
    return segments


def _never_fits(store: ObjectStore, look: IndexLook, landed: Committed) -> Transient:
    return Transient(
        f"The base changed so often that nothing built for index {look.name!r} could be used.",
        table=store.uri,
        uncovered=len(landed.uncovered),
        advice="index while no compaction runs",
    )
