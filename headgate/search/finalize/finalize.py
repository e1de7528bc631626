"""Finalizes an index segment: copies staged parts to the files that native Lance searches.

Promises:
1. Staging is kept until the marker `metadata.lance` is valid: readable, and every part that it lists exists with its
   size.
2. With a valid marker it does nothing but clean up. A torn marker, or a missing, partial or foreign final file, is
   repaired from staging.
3. Final files and marker are only replaced, each atomically; none is deleted first.
4. A part that is missing, truncated, stale, foreign or built with other parameters raises an error with its name, and
   staging stays untouched: the expected files are those that the builders returned, not those that happen to exist.
5. After a crash anywhere, and with any number of finalizers of the same segment at once, calling it again succeeds with
   the same result.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from headgate.connectors.lance.files import end_of, read_end
from headgate.connectors.objects.deletion import delete
from headgate.errors import AlreadyExists, Corrupt, DataLoss, HeadgateError, InvalidInput, NotFound, Transient
from headgate.parallel import Pool
from headgate.search.finalize.marker import Marker, marker_bytes, missing, read_marker
from headgate.search.finalize.segment import (
    MARKER,
    STAGING,
    SUFFIXES,
    Built,
    IndexFolder,
    Segment,
    differing,
    final_name,
    is_staged_part,
    is_stray,
    partition_ids,
    settings_of,
    staged_name,
)
from headgate.steps import step

Report: TypeAlias = Callable[[str, int, int], None]
"""Called for each stage with the amount done and the total; first with 0, at last with the total."""

FINALIZE_STAGES = ("discover", "copy_parts", "write_merged_metadata", "clean_staging")
FINALIZE_STEPS = ("listed", "checked", "copied", "staged_marker", "marked", "cleaned")
"""The named steps of `finalize`, in order."""

AT_ONCE = 8
"""Copies or deletes at the same time: hides a store's latency; more would only queue at a disk."""

_log = logging.getLogger(__name__)

T = TypeVar("T")


def no_report(stage: str, done: int, total: int) -> None:
    """Reports nothing."""


@dataclass
class Stages:
    """Reports stages so that each is completed exactly once, whichever path the work takes."""

    report: Report
    _told: dict[str, tuple[int, int]] = field(default_factory=dict)

    def at(self, stage: str, done: int, total: int) -> None:
        """Report that so much of a stage is done."""
        self._told[stage] = done, total
        self.report(stage, done, total)

    def complete(self, *stages: str) -> None:
        """Report these stages as complete: one that was not started had nothing to do."""
        for stage in stages:
            done, total = self._told.get(stage, (-1, 0))
            if done != total:
                self.at(stage, total, total)


def finalize(
    folder: IndexFolder,
    built: Built,
    *,
    report: Report = no_report,
) -> Segment:
    """Make the staged parts of a segment searchable. Nothing refers to the segment before it is committed.

    1. discover: list the folder, THEN read the marker. If it is valid, go to 6. Otherwise the list is complete, because
       staging is cleaned only after a valid marker.
    2. compare staging with what was built; a missing, truncated or foreign part, or one with other parameters, is an
       error.
    3. copy every staged file to its final name, replacing what is there.
    4. list again: every final file must have its size.
    5. write the marker under a temporary name, and copy it to its own: it appears atomically, also over a torn one.
    6. with the marker read back and valid, delete staging and strays; what cannot be deleted is left to the next call.

    If something is missing on the way, another finalizer may have finished: a valid marker then means success. Raises
    InvalidInput and DataLoss with staging untouched; Transient means call again.
    """
    return _Finalizer(folder, built, Stages(report)).run()


@dataclass(frozen=True)
class _Finalizer:
    folder: IndexFolder
    built: Built
    stages: Stages

    def run(self) -> Segment:
        self.stages.at("discover", 0, 1)
        listed = self._sizes()
        step("listed")
        segment = self._finished()
        self.stages.complete("discover")
        if segment is None:
            try:
                self._check(listed)
                step("checked")
                self._copy()
                step("copied")
                segment = self._mark()
            except (NotFound, DataLoss, InvalidInput) as error:
                # Another finalizer may have finished and deleted staging.
                segment = self._finished()
                if segment is None:
                    error.with_context(**self.folder.where())
                    raise
        step("marked")
        self.stages.complete("copy_parts", "write_merged_metadata")
        self._clean(segment)
        step("cleaned")
        self.stages.complete("clean_staging")
        return segment

    # -- 1, and wherever something is missing -----------------------------------------

    def _finished(self) -> Segment | None:
        """The segment if its marker is valid and matches what was built, else None."""
        marker = read_marker(self.folder)
        if marker is None or differing(marker.settings, self.built.settings):
            return None
        sizes = self._sizes()
        if marker.segment is not None:
            same = marker.segment.files == self.built.final() and marker.segment.fragments == self.built.fragments
            return marker.segment if same and not missing(marker.segment.files, sizes) else None
        return self._finished_by_native(marker, sizes)

    def _finished_by_native(self, marker: Marker, sizes: Mapping[str, int]) -> Segment | None:
        """Native merges small parts, so sizes prove nothing; its files must be complete and have all documents."""
        files = {}
        documents = 0
        for part in marker.parts:
            for suffix in SUFFIXES:
                name = final_name(part, suffix)
                try:
                    end = read_end(self.folder.objects, name, sizes[name])
                except (KeyError, NotFound, Corrupt):
                    return None
                files[name] = sizes[name]
                documents += end.rows if suffix == "docs" else 0
        if documents != self.built.documents:
            return None
        facts, fragments = self.built.facts, self.built.fragments
        return Segment(self.folder.index_id, fragments, files, sizes[MARKER], documents, marker.settings, facts)

    # -- 2 ------------------------------------------------------------------------------

    def _check(self, listed: Mapping[str, int]) -> None:
        check_staging(self.built, listed)
        for part in self.built.parts:
            name = staged_name(part.id, "metadata")
            metadata = end_of(self._get(name)).metadata
            if partition_ids(metadata) != [part.id]:
                raise InvalidInput(f"{name} lists other parts: {metadata.get('partitions')}.", advice=_AGAIN)
            if what := differing(self.built.settings, settings_of(metadata)):
                raise InvalidInput(f"{name} was built with a different {what}.", advice=_AGAIN)

    # -- 3 ------------------------------------------------------------------------------

    def _copy(self) -> None:
        def copy(names: tuple[str, str]) -> None:
            self.folder.objects.copy(*names)

        self._each("copy_parts", copy, self.built.copies())

    # -- 4 and 5 --------------------------------------------------------------------------

    def _mark(self) -> Segment:
        self.stages.at("write_merged_metadata", 0, 1)
        if name := missing(self.built.final(), self._sizes()):
            raise Transient(f"{name} changed after it was copied.", **self.folder.where())
        staged = f"{STAGING}merged-{uuid.uuid4().hex}.lance"
        data = marker_bytes(self.built)
        with suppress(AlreadyExists):  # the name is random: the object is ours, and the response to its put was lost
            self.folder.objects.put_if_absent(staged, data)
        step("staged_marker")
        self.folder.objects.copy(staged, MARKER)
        segment = self._finished()
        if segment is None:
            raise Transient("The marker just written is invalid.", **self.folder.where())
        self.stages.complete("write_merged_metadata")
        return segment

    # -- 6 --------------------------------------------------------------------------------

    def _clean(self, segment: Segment) -> None:
        try:
            strays = sorted(name for name in self._sizes() if is_stray(name, segment.files))
            objects = self.folder.objects
            self._each("clean_staging", lambda name: delete(objects, name, "staging"), strays)
        except HeadgateError:  # the segment is complete; no commit lists leftovers, and garbage collection deletes them
            _log.debug("cleaning the staging folder of index %s failed", self.folder.index_id, exc_info=True)

    def _each(self, stage: str, do: Callable[[T], None], what: Sequence[T]) -> None:
        self.stages.at(stage, 0, len(what))
        with Pool("finalize", AT_ONCE) as pool:
            for done, _ in enumerate(pool.map(do, what), 1):
                self.stages.at(stage, done, len(what))

    def _sizes(self) -> dict[str, int]:
        return self.folder.sizes()

    def _get(self, name: str) -> memoryview:
        return self.folder.objects.get(name)


_AGAIN = "build the segment again under a new id; staging was not touched"


def check_staging(built: Built, listed: Mapping[str, int]) -> None:
    """Raises DataLoss for a missing or truncated staged file, InvalidInput for one of another build."""
    for name, size in built.staged().items():
        if name not in listed:
            raise DataLoss(f"{name} is missing.", advice=_AGAIN)
        if size is not None and listed[name] != size:
            what = f"{name} has {listed[name]} bytes, but {size} were written."
            raise DataLoss(what, advice=_AGAIN)
    if foreign := sorted(name for name in listed if is_staged_part(name) and name not in built.staged()):
        raise InvalidInput(
            f"{foreign[0]} was not written by this build, but by an earlier or another one.", advice=_AGAIN
        )
