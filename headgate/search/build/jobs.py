"""Jobs that make one index segment each, on any machine: built from rows, or gathered from segments by copying.

Promises: every attempt uses its own id, so that two attempts of one job never collide. The segment that it returns is
finalized but not committed.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeAlias

from headgate.connectors.lance import slots as index_slots
from headgate.connectors.lance.files import end_of, read_end
from headgate.connectors.lance.index import build_segment
from headgate.connectors.objects import ObjectStore
from headgate.errors import AlreadyExists, DataLoss, Transient
from headgate.retry import Retry
from headgate.search.finalize.finalize import Report, finalize, no_report
from headgate.search.finalize.gather import gather
from headgate.search.finalize.segment import (
    STAGING,
    SUFFIXES,
    Built,
    Facts,
    IndexFolder,
    Part,
    Segment,
    is_empty_metadata,
    partition_ids,
    settings_of,
    staged_name,
)
from headgate.steps import step


class Job(Protocol):
    """Makes one segment on any machine; picklable. A job may run twice, also at the same time."""

    @property
    def fragments(self) -> tuple[int, ...]:
        """The fragments that the segment will cover."""

    def run(self, *, report: Report = no_report) -> Segment:
        """Make the segment, under a new id. If it raises Transient, try again."""


Runner: TypeAlias = Callable[[Sequence[Job], Report], Sequence[Segment]]
"""Runs jobs, and returns their segments in any order. Reports the progress of a job's stages in segments."""


@dataclass(frozen=True)
class BuildJob:
    """Index fragments of one version of the base, and finalize the segment."""

    store: ObjectStore
    column: str
    name: str
    version: int
    fragments: tuple[int, ...]
    rows: int
    """Rows of these fragments at that version."""
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def run(self, *, report: Report = no_report) -> Segment:
        """See Job."""
        folder = intended(self.store)
        step("build")
        report("build", 0, 1)
        built = build(folder, self)
        if built.documents > self.rows:
            what = f"Lance indexed {built.documents} documents, but the fragments have {self.rows} rows."
            raise DataLoss(what, **folder.where(), advice="report this as a bug; nothing was committed")
        report("build", 1, 1)
        step("built")
        return finalize(folder, built, report=report)


@dataclass(frozen=True)
class GatherJob:
    """Copy the parts of finalized segments into one."""

    store: ObjectStore
    sources: tuple[Segment, ...]

    @property
    def fragments(self) -> tuple[int, ...]:
        """The fragments of all sources."""
        return tuple(sorted(fragment for source in self.sources for fragment in source.fragments))

    def run(self, *, report: Report = no_report) -> Segment:
        """See Job."""
        step("build")
        report("build", 0, 1)
        report("build", 1, 1)
        return gather(intended(self.store), self.sources, report=report)


def intended(store: ObjectStore) -> IndexFolder:
    """A folder with a new id. Its intent tells garbage collection, before the first byte, that it is in use (R20)."""
    folder = IndexFolder(store, uuid.uuid4())
    with suppress(AlreadyExists):
        store.put_if_absent(index_slots.intent(folder.index_id), b"")
    return folder


def in_process(jobs: Sequence[Job], report: Report) -> Sequence[Segment]:
    """Run the jobs one after the other in this process; Lance itself uses every core."""
    made = []
    for number, job in enumerate(jobs):

        def told(stage: str, done: int, total: int, before: int = number) -> None:
            report(stage, before + (done == total), len(jobs))

        made.append(Retry().run(partial(job.run, report=told)))
    return made


def build(folder: IndexFolder, job: BuildJob) -> Built:
    """Let native index the job's fragments into staging. Returns what it wrote: the expected manifest."""
    native = build_segment(
        folder.store, job.version, job.column, job.name, job.fragments, job.parameters, folder.index_id
    )
    facts = Facts(native.fields, native.dataset_version, native.index_version, native.details)
    parts, empty, settings = [], [], dict[str, str]()
    for name in sorted(native.files):
        if not name.startswith(STAGING) or not name.endswith("_metadata.lance"):
            continue
        metadata = end_of(folder.objects.get(name)).metadata
        settings = settings_of(metadata)
        if is_empty_metadata(name):
            empty.append(name)
        parts += [_part(folder, part, native.files) for part in partition_ids(metadata)]
    if not settings:
        raise Transient("Lance built a segment without metadata.", **folder.where())
    ordered = tuple(sorted(parts, key=lambda part: part.id))
    return Built(tuple(sorted(job.fragments)), ordered, settings, facts, tuple(empty))


def _part(folder: IndexFolder, part: int, files: Mapping[str, int]) -> Part:
    try:
        docs, invert, tokens = (files[staged_name(part, suffix)] for suffix in SUFFIXES)
    except KeyError as error:
        raise Transient(f"Lance listed part {part}, but did not write it.", **folder.where()) from error
    end = read_end(folder.objects, staged_name(part, "docs"), docs)
    return Part(part, (docs, invert, tokens), end.rows)
