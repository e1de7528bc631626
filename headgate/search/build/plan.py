"""Decides what to build next for an index, and what may be committed. Pure.

Rounds follow each other until nothing is left to do. Each is small enough to be committed before garbage collection
could treat its folders as leftovers, and is planned from the base as it is then. So a compaction, an append or another
build in between can at most waste work.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from headgate.connectors.lance.index import Fragment, IndexLook, SegmentLook
from headgate.search.finalize.segment import Segment


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits for the segments of an index."""

    tasks: int = 1
    """Segments built at the same time."""
    max_segments: int = 8
    """If there are more, some are merged: each segment costs every query about 0.1 ms."""
    segment_rows: int = 4_000_000
    """About two minutes of one core for short texts; larger merges copy parts instead of indexing rows again."""
    task_rows: int = 50_000
    """Minimum rows of a task, if possible."""


@dataclass(frozen=True, slots=True)
class Round:
    """Segments to build, one per group of fragments, and segments to remove: replaced ones, and those without live
    fragments."""

    groups: tuple[tuple[int, ...], ...]
    removed: tuple[uuid.UUID, ...] = ()
    whole: bool = False
    """True if it must be committed completely or not at all."""


@dataclass(frozen=True, slots=True)
class Merge:
    """Segments to merge into one."""

    sources: tuple[SegmentLook, ...]
    fragments: tuple[int, ...]
    """Their live fragments."""
    copied: bool
    """True if they are too large to be indexed again: their parts are copied."""

    @property
    def as_round(self) -> Round:
        """A round that indexes their live fragments again."""
        return Round((self.fragments,), tuple(one.index_id for one in self.sources))


def plan(look: IndexLook, limits: Limits) -> Round | Merge | None:
    """The next round: first fragments without an index, then a merge if there are too many segments. None if done."""
    living = _living(look)
    covered = set[int]().union(*living.values())
    missing = sorted(set(look.fragments) - covered)
    dead = tuple(one.index_id for one, fragments in living.items() if not fragments)
    alive = {one: fragments for one, fragments in living.items() if fragments}
    if missing:
        groups = split(missing, look.fragments, limits)[: limits.tasks]
        if len(groups) > 1 or set(groups[0]) != set(missing):
            return Round(tuple(groups), dead)
        absorbed = _absorbed(_rows(missing, look.fragments), alive, look.fragments, limits)
        group = sorted({*missing, *(fragment for one in absorbed for fragment in alive[one])})
        return Round((tuple(group),), (*dead, *(one.index_id for one in absorbed)))
    if len(alive) > limits.max_segments:
        ascending = sorted(alive, key=lambda one: _rows(alive[one], look.fragments))
        sources = tuple(ascending[: len(alive) - limits.max_segments + 1])
        fragments = tuple(sorted(fragment for one in sources for fragment in alive[one]))
        return Merge(sources, fragments, _rows(fragments, look.fragments) > limits.segment_rows)
    return None


def plan_rebuild(look: IndexLook, limits: Limits) -> Round:
    """Index every fragment again and replace all segments, in one round: old and new parameters must not mix."""
    groups = split(sorted(look.fragments), look.fragments, limits)
    return Round(tuple(groups), tuple(one.index_id for one in look.segments), whole=True)


def split(fragments: Sequence[int], known: Mapping[int, Fragment], limits: Limits) -> list[tuple[int, ...]]:
    """Groups of consecutive fragments of about equal rows: at most segment_rows, at least task_rows if possible."""
    if not fragments:
        return []
    rows = _rows(fragments, known)
    count = max(min(limits.tasks, rows // limits.task_rows), -(-rows // limits.segment_rows), 1)
    groups: list[list[int]] = [[]]
    filled = 0
    for number, fragment in enumerate(fragments):
        size = known[fragment].rows
        # A new group begins if this one has its share, or would exceed the limit.
        full = filled * count >= rows * len(groups) and len(groups) < count
        over = groups[-1] and _rows(groups[-1], known) + size > limits.segment_rows
        if number and (full or over):
            groups.append([])
        groups[-1].append(fragment)
        filled += size
    return [tuple(group) for group in groups]


@dataclass(frozen=True, slots=True)
class Decision:
    """Which segments of a round still fit the base."""

    added: tuple[Segment, ...]
    removed: tuple[uuid.UUID, ...]
    landed: tuple[uuid.UUID, ...]
    """In the index already: the response of an earlier try was lost, or the segment is committed again."""
    stale: tuple[uuid.UUID, ...]
    """Unusable: their fragments are mostly gone, changed, or covered by another segment."""


def decide(planned: IndexLook, now: IndexLook, built: Sequence[Segment], removed: Iterable[uuid.UUID]) -> Decision:
    """Which segments that were built from `planned` may be committed to `now`.

    A segment is removed only if added ones cover all its live fragments. A segment is not added if a remaining one
    covers one of its fragments. So no fragment loses its index, and none is indexed twice.
    """
    present = {one.index_id: one for one in now.segments}
    landed = tuple(one.index_id for one in built if one.index_id in present)
    fresh = [one for one in built if one.index_id not in present and _usable(one, planned, now)]
    going = {one for one in removed if one in present}
    while True:
        indexed = {fragment for one in fresh for fragment in one.fragments}
        staying = {one for one in going if (present[one].fragments & set(now.fragments)) - indexed}
        kept = [one.fragments for index_id, one in present.items() if index_id not in going - staying]
        fitting = [one for one in fresh if not any(fragments.intersection(one.fragments) for fragments in kept)]
        if fitting == fresh:
            break
        fresh = fitting
    added = {one.index_id for one in fresh}
    stale = tuple(one.index_id for one in built if one.index_id not in added and one.index_id not in landed)
    gone = tuple(sorted(going - staying)) if fresh else ()
    return Decision(tuple(fresh), gone, landed, stale)


def uncovered(look: IndexLook) -> frozenset[int]:
    """Live fragments that no segment covers."""
    return frozenset(look.fragments) - frozenset().union(*(one.fragments for one in look.segments))


def _usable(segment: Segment, planned: IndexLook, now: IndexLook) -> bool:
    """True if the indexed values are still the column's, and at least half of the rows still exist.

    Readers skip deleted rows and removed fragments, but their words still count in every score: if more than half of
    the rows are gone, the segment is built again.
    """
    if planned.field_id != now.field_id or planned.name != now.name:
        return False
    rows = alive = 0
    for fragment in segment.fragments:
        before, after = planned.fragments.get(fragment), now.fragments.get(fragment)
        if before is None and after is None:
            continue  # it was gone before: a source of a merge covered it
        if before is None or (after is not None and before.files != after.files):
            return False
        rows += before.rows
        alive += before.rows if after is not None else 0
    return alive > 0 and 2 * alive >= rows


def _absorbed(
    rows: int, alive: Mapping[SegmentLook, frozenset[int]], known: Mapping[int, Fragment], limits: Limits
) -> list[SegmentLook]:
    """Small segments to merge into a new one: those not larger than the new one has become, so that each row is indexed
    only a logarithmic number of times; and more while there are too many segments."""
    taken: list[SegmentLook] = []
    for one in sorted(alive, key=lambda one: _rows(alive[one], known)):
        size = _rows(alive[one], known)
        crowded = len(alive) - len(taken) + 1 > limits.max_segments
        if rows + size > limits.segment_rows or not (size <= rows or crowded):
            break
        taken.append(one)
        rows += size
    return taken


def _living(look: IndexLook) -> dict[SegmentLook, frozenset[int]]:
    fragments = frozenset(look.fragments)
    return {one: one.fragments & fragments for one in look.segments}


def _rows(fragments: Iterable[int], known: Mapping[int, Fragment]) -> int:
    return sum(known[fragment].rows for fragment in fragments)
