"""What to do next about an index, and what of it may be committed: pure decisions.

Rounds follow each other until nothing is left to do. Each is small enough to land before garbage collection could
take its folders for leftovers, and is planned from what the base says then. So a compaction, an append or a rival in
between costs work at most.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from headgate.connectors.lance.index import Fragment, IndexLook, SegmentLook
from headgate.search.finalize.segment import Segment


@dataclass(frozen=True, slots=True)
class Limits:
    """How an index is cut."""

    tasks: int = 1
    """Segments built at the same time."""
    max_segments: int = 8
    """More are merged: each segment costs every query about a tenth of a millisecond."""
    segment_rows: int = 4_000_000
    """About two minutes of one core for short texts; merging past it copies parts instead of indexing rows again."""
    task_rows: int = 50_000
    """Fewer are not worth a task of their own."""


@dataclass(frozen=True, slots=True)
class Round:
    """Segments to build, each over its group of fragments, and those that they replace or that cover nothing."""

    groups: tuple[tuple[int, ...], ...]
    removed: tuple[uuid.UUID, ...] = ()
    whole: bool = False
    """Whether it lands as a whole or not at all."""


@dataclass(frozen=True, slots=True)
class Merge:
    """Segments that become one."""

    sources: tuple[SegmentLook, ...]
    fragments: tuple[int, ...]
    """Their living fragments."""
    copied: bool
    """Too large to be indexed again: their parts are copied."""

    @property
    def as_round(self) -> Round:
        """Their living rows indexed again."""
        return Round((self.fragments,), tuple(one.index_id for one in self.sources))


def plan(look: IndexLook, limits: Limits) -> Round | Merge | None:
    """The next round: fragments without index first, then too many segments. None: all is done."""
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
    """Every fragment anew, in place of all segments. One round: other parameters cannot stand beside the old ones."""
    groups = split(sorted(look.fragments), look.fragments, limits)
    return Round(tuple(groups), tuple(one.index_id for one in look.segments), whole=True)


def split(fragments: Sequence[int], known: Mapping[int, Fragment], limits: Limits) -> list[tuple[int, ...]]:
    """Runs of fragments with about the same number of rows: at most segment_rows, at least task_rows if possible."""
    if not fragments:
        return []
    rows = _rows(fragments, known)
    count = max(min(limits.tasks, rows // limits.task_rows), -(-rows // limits.segment_rows), 1)
    groups: list[list[int]] = [[]]
    filled = 0
    for number, fragment in enumerate(fragments):
        size = known[fragment].rows
        # The next group begins where this one has its share, or would pass the limit.
        full = filled * count >= rows * len(groups) and len(groups) < count
        over = groups[-1] and _rows(groups[-1], known) + size > limits.segment_rows
        if number and (full or over):
            groups.append([])
        groups[-1].append(fragment)
        filled += size
    return [tuple(group) for group in groups]


@dataclass(frozen=True, slots=True)
class Decision:
    """What of a round still fits the base."""

    added: tuple[Segment, ...]
    removed: tuple[uuid.UUID, ...]
    landed: tuple[uuid.UUID, ...]
    """In the index already: an earlier try's response was lost, or it is committed again."""
    stale: tuple[uuid.UUID, ...]
    """Built over fragments that are mostly gone, changed, or covered by another: of no use any more."""


def decide(planned: IndexLook, now: IndexLook, built: Sequence[Segment], removed: Iterable[uuid.UUID]) -> Decision:
    """What may be committed onto `now` of what was built over `planned`.

    A segment goes only if what is added covers all that it still covers, and nothing is added beside one that stays
    and covers a fragment of it: no fragment is lost, none is indexed twice.
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
    """Living fragments that no segment covers."""
    return frozenset(look.fragments) - frozenset().union(*(one.fragments for one in look.segments))


def _usable(segment: Segment, planned: IndexLook, now: IndexLook) -> bool:
    """True if the values that were indexed are still those of the column, and most of them still there.

    Readers skip deleted rows and fragments that are gone, yet their words weigh in every score: where more than half
    of the rows are gone, it is built again.
    """
    if planned.field_id != now.field_id or planned.name != now.name:
        return False
    rows = alive = 0
    for fragment in segment.fragments:
        before, after = planned.fragments.get(fragment), now.fragments.get(fragment)
        if before is None and after is None:
            continue  # gone before: a source of a merge covered it
        if before is None or (after is not None and before.files != after.files):
            return False
        rows += before.rows
        alive += before.rows if after is not None else 0
    return alive > 0 and 2 * alive >= rows


def _absorbed(
    rows: int, alive: Mapping[SegmentLook, frozenset[int]], known: Mapping[int, Fragment], limits: Limits
) -> list[SegmentLook]:
    """Small segments that a new one takes in: those not larger than it is by then, so that each row is indexed again
    only some logarithmic number of times; and further ones while there are too many."""
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
