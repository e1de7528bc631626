"""The decisions of indexing: what to do next, and what of it may be committed."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.connectors.lance.index import Fragment, IndexLook, SegmentLook
from headgate.search.build.plan import Limits, Merge, Round, decide, plan, plan_rebuild, split, uncovered
from headgate.search.finalize.segment import Facts, Segment

FACTS = Facts((1,), 1, 2, ("details", b""))
SMALL = Limits(tasks=2, max_segments=3, segment_rows=1000, task_rows=100)


def named(number: int) -> uuid.UUID:
    return uuid.UUID(int=number)


def segment(number: int, *fragments: int) -> Segment:
    return Segment(named(number), fragments, {}, 1, 0, {}, FACTS)


def look(rows: Mapping[int, int], *segments: tuple[int, set[int]], changed: tuple[int, ...] = ()) -> IndexLook:
    """Fragments with so many rows, and segments over them; the files of `changed` ones are others."""
    fragments = {one: Fragment(count, (f"{one}{'x' * (one in changed)}",)) for one, count in rows.items()}
    known = tuple(SegmentLook(named(number), frozenset(over), False, 1, 1) for number, over in segments)
    return IndexLook(7, "note_idx", 1, fragments, known, {})


@pytest.mark.parametrize(
    ("seen", "wanted"),
    [
        (look({}), None),
        (look({}, (1, set())), None),
        (look({0: 50}, (1, {0})), None),
        (look({0: 50}), Round(((0,),))),
        # A segment over nothing, such as a new table has, goes with the first one over something.
        (look({0: 50}, (1, set())), Round(((0,),), (named(1),))),
        (look({5: 50}, (1, {0, 1})), Round(((5,),), (named(1),))),
        # Rows for two tasks; those for more wait for the next round.
        (look({0: 100, 1: 100}), Round(((0,), (1,)))),
        (look(dict.fromkeys(range(4), 900)), Round(((0,), (1,)))),
        # A small increment takes in what is not larger than it is by then.
        (look({0: 900, 1: 50, 2: 60}, (1, {0}), (2, {1})), Round(((1, 2),), (named(2),))),
        (look({0: 900, 1: 90, 2: 60}, (1, {0}), (2, {1})), Round(((2,),))),
        # Unless there are too many: then also larger ones, as long as one segment may hold them.
        (
            look({0: 900, 1: 90, 2: 80, 3: 60}, (1, {0}), (2, {1}), (3, {2})),
            Round(((1, 2, 3),), (named(3), named(2))),
        ),
        # Too many, and nothing new: the smallest become one.
        (
            look({0: 900, 1: 90, 2: 80, 3: 60}, (1, {0}), (2, {1}), (3, {2}), (4, {3})),
            Merge(
                (
                    SegmentLook(named(4), frozenset({3}), False, 1, 1),
                    SegmentLook(named(3), frozenset({2}), False, 1, 1),
                ),
                (2, 3),
                copied=False,
            ),
        ),
        (
            look(dict.fromkeys(range(4), 900), *((one + 1, {one}) for one in range(4))),
            Merge(
                (
                    SegmentLook(named(1), frozenset({0}), False, 1, 1),
                    SegmentLook(named(2), frozenset({1}), False, 1, 1),
                ),
                (0, 1),
                copied=True,
            ),
        ),
    ],
)
def test_the_next_round(seen: IndexLook, wanted: Round | Merge | None) -> None:
    assert plan(seen, SMALL) == wanted


def test_a_rebuild_indexes_everything_in_place_of_everything() -> None:
    seen = look(dict.fromkeys(range(5), 900), (1, {0, 1}), (2, set()))
    assert plan_rebuild(seen, SMALL) == Round(((0,), (1,), (2,), (3,), (4,)), (named(1), named(2)), whole=True)


@pytest.mark.parametrize(
    ("rows", "limits", "groups"),
    [
        ([10], Limits(tasks=8), [(0,)]),
        ([100] * 4, Limits(tasks=2, task_rows=100), [(0, 1), (2, 3)]),
        ([100] * 4, Limits(tasks=8, task_rows=200), [(0, 1), (2, 3)]),
        ([1000, 10, 10, 10], Limits(tasks=2, task_rows=10), [(0,), (1, 2, 3)]),
        ([5000, 10], Limits(tasks=1, segment_rows=1000), [(0,), (1,)]),
        ([600] * 3, Limits(tasks=1, segment_rows=1000), [(0,), (1,), (2,)]),
        ([0, 0], Limits(tasks=4), [(0, 1)]),
    ],
)
def test_fragments_are_split_evenly_within_the_limits(
    rows: list[int], limits: Limits, groups: list[tuple[int, ...]]
) -> None:
    known = {number: Fragment(count, ()) for number, count in enumerate(rows)}
    assert split(list(known), known, limits) == groups


PLANNED = look({0: 10, 1: 10, 2: 10, 3: 10}, (1, {0}), (2, {1}))


@pytest.mark.parametrize(
    ("now", "built", "removed", "added", "gone", "landed", "stale"),
    [
        # Nothing happened meanwhile, or something that does not matter: appended, other segments, deleted rows.
        (PLANNED, [segment(9, 2, 3)], [], [9], [], [], []),
        (look({0: 10, 1: 10, 2: 10, 3: 10, 4: 5}, (1, {0}), (2, {1})), [segment(9, 2, 3)], [], [9], [], [], []),
        (look({0: 10, 1: 10, 2: 1, 3: 10}, (1, {0}), (2, {1})), [segment(9, 2, 3)], [], [9], [], [], []),
        # Merged ones go with what replaces them.
        (PLANNED, [segment(9, 0, 1, 2, 3)], [1, 2], [9], [1, 2], [], []),
        # The same again is there already.
        (look({0: 10, 2: 10, 3: 10}, (1, {0}), (9, {2, 3})), [segment(9, 2, 3)], [], [], [], [9], []),
        (look({0: 10, 1: 10}, (9, {0, 1})), [segment(9, 0, 1)], [1, 2], [], [], [9], []),
        # Compacted: all gone, more than half gone, less than half gone, or other values.
        (look({7: 20, 0: 10, 1: 10}, (1, {0}), (2, {1})), [segment(9, 2, 3)], [], [], [], [], [9]),
        (look({0: 10, 1: 10, 2: 10, 7: 20}, (1, {0}), (2, {1})), [segment(9, 0, 2, 3)], [1], [9], [1], [], []),
        (look({0: 10, 7: 20}, (1, {0})), [segment(9, 0, 2, 3)], [1], [], [], [], [9]),
        (
            look({0: 10, 1: 10, 2: 10, 3: 10}, (1, {0}), (2, {1}), changed=(3,)),
            [segment(8, 2), segment(9, 3)],
            [],
            [8],
            [],
            [],
            [9],
        ),
        # A merge by copying has words of a fragment that was gone before.
        (PLANNED, [segment(9, 0, 1, 8)], [1, 2], [9], [1, 2], [], []),
        # Another builder was faster.
        (look({0: 10, 1: 10, 2: 10, 3: 10}, (1, {0}), (2, {1}), (5, {3})), [segment(9, 2, 3)], [], [], [], [], [9]),
        # Another merged what should have gone.
        (look({0: 10, 1: 10, 2: 10, 3: 10}, (5, {0, 1})), [segment(9, 0, 1, 2)], [1, 2], [], [], [], [9]),
        # One of two is stale: what it should have replaced stays, and what stands beside that is not added twice.
        (
            look({0: 10, 1: 10, 2: 10, 3: 10}, (1, {0}), (2, {1}), changed=(1,)),
            [segment(8, 0, 2), segment(9, 1, 3)],
            [1, 2],
            [8],
            [1],
            [],
            [9],
        ),
        (
            replace(look({0: 10, 1: 10, 2: 10, 3: 10}, (1, {0, 1}), changed=(1,))),
            [segment(8, 0, 2), segment(9, 1, 3)],
            [1],
            [],
            [],
            [],
            [8, 9],
        ),
        # Another column has the name now.
        (replace(PLANNED, field_id=4), [segment(9, 2, 3)], [], [], [], [], [9]),
    ],
)
def test_what_may_be_committed(
    now: IndexLook,
    built: list[Segment],
    removed: list[int],
    added: list[int],
    gone: list[int],
    landed: list[int],
    stale: list[int],
) -> None:
    decision = decide(PLANNED, now, built, map(named, removed))
    assert [one.index_id for one in decision.added] == list(map(named, added))
    assert decision.removed == tuple(map(named, gone))
    assert decision.landed == tuple(map(named, landed))
    assert decision.stale == tuple(map(named, stale))


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, int]]:
    """What happens to a base between rounds: appends, and fragments that are compacted away."""
    return draw(st.lists(st.tuples(st.sampled_from(["append", "compact", "index"]), st.integers(1, 400)), max_size=40))


@settings(max_examples=200, deadline=None)
@given(histories(), st.integers(1, 4), st.integers(1, 5))
def test_rounds_end_with_every_fragment_covered_once_and_few_segments(
    history: list[tuple[str, int]], tasks: int, max_segments: int
) -> None:
    limits = Limits(tasks=tasks, max_segments=max_segments, segment_rows=600, task_rows=50)
    rows: dict[int, int] = {}
    segments: list[tuple[int, set[int]]] = []
    ids = iter(range(1, 10**6))
    highest = -1
    for what, size in [*history, ("index", 1)]:
        if what == "append":
            highest += 1
            rows[highest] = size
        elif what == "compact" and len(rows) > 1:
            first, second = sorted(rows)[:2]
            highest += 1
            rows[highest] = rows.pop(first) + rows.pop(second)
        elif what == "index":
            rounds = 0
            while (todo := plan(look(rows, *segments), limits)) is not None:
                rounds += 1
                assert rounds < 500, "it never ends"
                seen = look(rows, *segments)
                groups = (todo.fragments,) if isinstance(todo, Merge) else todo.groups
                gone = [one.index_id for one in todo.sources] if isinstance(todo, Merge) else todo.removed
                built = [segment(next(ids), *group) for group in groups]
                decision = decide(seen, seen, built, gone)
                assert decision.stale == (), "what was planned fits"
                segments = [one for one in segments if named(one[0]) not in decision.removed]
                segments += [(one.index_id.int, set(one.fragments)) for one in decision.added]
            assert uncovered(look(rows, *segments)) == frozenset()
            living = [fragment for _, over in segments for fragment in over if fragment in rows]
            assert len(living) == len(set(living)), "a fragment is indexed twice"
            assert len([1 for _, over in segments if over & set(rows)]) <= max_segments
