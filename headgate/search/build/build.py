"""Builds the index of a column: any number of tasks make segments from fragments, then one commit adds them.

Promises:
1. It ends with every fragment of the base covered, or with an error. Rows stay searchable meanwhile, but more slowly.
2. Running it again, after a crash or at the same time, ends in one correct index. If everything is covered it changes
   nothing, and the table gets no new version.
3. Every attempt of a task writes under its own id. Files of a failed attempt, or of one that lost a race, are garbage.
4. The number of segments stays small: small ones are merged, so that queries do not become slower.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from headgate.connectors.lance.index import IndexLook
from headgate.connectors.objects import ObjectStore
from headgate.errors import Transient
from headgate.search.build.commit import Committed, commit
from headgate.search.build.jobs import Job, Runner, in_process
from headgate.search.build.kind import Kind
from headgate.search.build.plan import Limits
from headgate.search.build.text import TEXT
from headgate.search.finalize.finalize import Report, Stages, no_report
from headgate.search.finalize.segment import Segment
from headgate.steps import step

BUILD_STAGES = ("discover", "build", "copy_parts", "write_merged_metadata", "clean_staging", "commit")
BUILD_STEPS = ("planned", "finished", "done")
"""The named steps of `build_index`, in each round, besides those of `commit`."""

IDLE_ROUNDS = 5
"""Maximum consecutive rounds without a usable segment because the base changed meanwhile."""


@dataclass(frozen=True, slots=True)
class IndexBuild:
    """What a build did, and the state of the index."""

    name: str
    column: str
    version: int
    rounds: int
    added: int
    """Committed segments."""
    segments: int
    fragments: int
    rows: int
    note: str = ""
    """Why there is no index yet; empty if there is one."""


def build_index(
    store: ObjectStore,
    column: str,
    name: str,
    *,
    kind: Kind = TEXT,
    parameters: Mapping[str, Any] | None = None,
    rebuild: bool = False,
    runner: Runner | None = None,
    limits: Limits | None = None,
    report: Report = no_report,
) -> IndexBuild:
    """Cover every fragment of the base by the column's index; `name` is used if it has none yet.

    1. discover: read what the base has and what the index covers, and plan what to do next.
    2. build and finalize segments, on the runner.
    3. check that they cover the planned fragments, and commit them.
    4. repeat from 1 until nothing is left to do.

    `parameters` are for a new index or for `rebuild`, which builds all segments again; otherwise an existing index
    keeps its own. Raises InvalidInput, DataLoss, Transient.
    """
    limits, stages = limits or Limits(), Stages(report)
    run = runner or in_process
    stages.at("discover", 0, 1)
    look = kind.look(store, column, name)
    chosen = kind.chosen(store, column, look, parameters, rebuild)
    look = kind.begun(store, column, look, chosen, rebuild)
    rounds = added = idle = 0
    renew = rebuild and bool(look.fragments)
    while True:
        todo = kind.plan(store, column, look, limits, renew)
        stages.complete("discover")
        step("planned")
        if todo is None:
            stages.complete(*BUILD_STAGES)
            step("done")
            rows = sum(fragment.rows for fragment in look.fragments.values())
            counts = rounds, added, len(look.segments), len(look.fragments), rows
            return IndexBuild(look.name, column, look.version, *counts, kind.waits(store, column, look))
        renewed = renew or look.parameters is None
        jobs, done = kind.jobs(store, column, look, todo, chosen if renewed else look.parameters or {})
        segments = _matching(jobs, kind.run(jobs, run, partial(_progress, stages)), store)
        stages.complete(*BUILD_STAGES[:-1])
        step("finished")
        stages.at("commit", 0, 1)
        landed = commit(store, column, look, segments, done, kind)
        stages.complete("commit")
        rounds, added = rounds + 1, added + len(landed.landed)
        idle = 0 if landed.landed else idle + 1
        if idle > IDLE_ROUNDS:
            raise _never_fits(store, look, landed)
        renew = renew and not landed.landed
        look = kind.look(store, column, name)


def _progress(stages: Stages, stage: str, done: int, total: int) -> None:
    """Report only the stages of a job: the finalizer's "discover" is not that of the build."""
    if stage in BUILD_STAGES and stage != "discover":
        stages.at(stage, done, total)


def _matching(jobs: Sequence[Job], segments: Sequence[Segment], store: ObjectStore) -> Sequence[Segment]:
    """Returns the segments if there is exactly one for each job. Raises Transient."""
    asked = sorted(tuple(sorted(job.fragments)) for job in jobs)
    if sorted(one.fragments for one in segments) != asked:
        raise Transient(
            f"{len(jobs)} jobs returned {len(segments)} segments, or segments that cover the wrong fragments.",
            table=store.uri,
        )
    return segments


def _never_fits(store: ObjectStore, look: IndexLook, landed: Committed) -> Transient:
    return Transient(
        f"The base changed during each try to build index {look.name!r}, so nothing was committed.",
        table=store.uri,
        uncovered=len(landed.uncovered),
        advice="build the index while no compaction runs",
    )
