"""Merges finalized segments into one by copying: nothing is tokenized again, and on S3 nothing leaves the server.

Promises, besides those of `finalize`: a part's files are complete in staging BEFORE the staged metadata list it, and
the sources are never changed. So after a crash the sources work as before, and nothing names the new folder.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa

from headgate import parallel
from headgate.connectors.lance.files import read_end, small_file
from headgate.errors import AlreadyExists
from headgate.search.finalize.finalize import AT_ONCE, Report, finalize, no_report
from headgate.search.finalize.segment import (
    SUFFIXES,
    Built,
    IndexFolder,
    Part,
    Segment,
    final_name,
    staged_name,
    together,
)
from headgate.steps import step

GATHER_STEPS = ("copied_part", "listed_part", "staged")
"""The named steps of `gather` before it finalizes; the first two for each part."""


def gather(
    target: IndexFolder,
    sources: Sequence[Segment],
    *,
    report: Report = no_report,
) -> Segment:
    """Make one segment with all parts of the sources, which stay. The target's id must be new.

    1. check that parameters are equal and no fragment occurs twice; raises InvalidInput.
    2. for each part: copy its files to the target's staging, then put the metadata that list it.
    3. finalize.
    """
    built = stage(target, sources)
    step("staged")
    return finalize(target, built, report=report)


def stage(target: IndexFolder, sources: Sequence[Segment]) -> Built:
    """Steps 1 and 2 of `gather`. Returns what was staged."""
    kept = [
        (replace(target, index_id=one.index_id), one, number) for one in sources for number in range(one.part_count)
    ]
    parts: dict[uuid.UUID, list[Part]] = {one.index_id: [] for one in sources}
    for new_id, (folder, source, number) in enumerate(kept):
        parts[source.index_id].append(_part(folder, source, number, new_id))
    built = together(Built(one.fragments, tuple(parts[one.index_id]), one.settings, one.facts) for one in sources)
    oldest = min(one.facts.dataset_version for one in sources)
    built = replace(built, facts=replace(built.facts, dataset_version=oldest))
    for new_id, (folder, _, number) in enumerate(kept):
        _stage_part(target, folder, number, new_id, built)
    return built


def _stage_part(target: IndexFolder, source: IndexFolder, number: int, new_id: int, built: Built) -> None:
    def copy(suffix: str) -> None:
        names = final_name(number, suffix), staged_name(new_id, suffix)
        source.objects.copy(*names, target.objects)

    parallel.each("gather", copy, SUFFIXES, workers=AT_ONCE)
    step("copied_part")
    nothing = pa.record_batch([], schema=pa.schema([]))
    data = small_file(nothing, {**built.settings, "partitions": json.dumps([new_id])})
    with suppress(AlreadyExists):  # the target's id is new: the object is ours, and the response to its put was lost
        target.objects.put_if_absent(staged_name(new_id, "metadata"), data)
    step("listed_part")


def _part(folder: IndexFolder, source: Segment, number: int, new_id: int) -> Part:
    docs, invert, tokens = (source.files[final_name(number, suffix)] for suffix in SUFFIXES)
    end = read_end(folder.objects, final_name(number, "docs"), docs)
    return Part(new_id, (docs, invert, tokens), end.rows)
