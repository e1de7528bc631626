"""Building the index of a column: fragments become segments on any number of tasks, then one commit.

Promises:
1. It ends with every fragment of the base covered, or an error; rows are searchable meanwhile, slower.
2. Running it again, after a crash or beside another, ends in one correct index; where all is covered it changes
   nothing, and the table gets no new version.
3. Every attempt of a task writes under an id of its own. What a dead or beaten one left is garbage.
4. Segments stay few: small ones are merged as they come, so that a query's time does not grow with their number.
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
    note: str = ""
    """Why there is no index yet."""


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
    """Cover every fragment of the base by the column's index; `name` is for one that is not there yet.

    1. discover: what the base has, what the index covers, what is to be done next.
    2. build and finalize segments, on the runner.
    3. check that they are what was asked for, and commit them.
    4. look again; from 1, until nothing is left to do.

    `parameters` are for a new index or with `rebuild`, which makes all segments anew; an existing index keeps its own.
    Raises InvalidInput, DataLoss, Transient.
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
    """Only stages of a job: the finalizer's discovery is not the build's."""
    if stage in BUILD_STAGES and stage != "discover":
        stages.at(stage, done, total)


def _matching(jobs: Sequence[Job], segments: Sequence[Segment], store: ObjectStore) -> Sequence[Segment]:
    """The segments, if there is exactly one for each job. Raises Transient."""
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
