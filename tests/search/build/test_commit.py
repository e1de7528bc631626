"""Committing segments: again is nothing new, what no longer fits is left out, and it is healed."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pytest

from headgate import clock
from headgate.connectors.lance import index as lance_index
from headgate.connectors.lance import slots as index_slots
from headgate.connectors.lance.index import IndexLook, look_index
from headgate.connectors.objects import open_store
from headgate.errors import DataLoss, InvalidInput, StoreError, Transient
from headgate.search.build import commit as index_commit
from headgate.search.build.build import build_index
from headgate.search.build.commit import COMMIT_STEPS, Committed, commit
from headgate.search.build.jobs import in_process
from headgate.search.build.plan import Limits, Round
from headgate.search.finalize.segment import MARKER, Segment
from headgate.shards.outcomes import taken_by, wins
from headgate.steps import watching
from tests.support.indexes import (
    NAME,
    QUERIES,
    answers,
    append,
    committed_files,
    coverage,
    fragments_of,
    job,
    make_base,
    path_of,
    reference,
)
from tests.support.stores import Crash

FOUR = Limits(tasks=4, task_rows=1)


def seen(uri: str) -> IndexLook:
    return look_index(open_store(uri), "note", NAME)


def versions(uri: str) -> int:
    return int(lance.dataset(uri).version)


def committed(uri: str, planned: IndexLook, segments: list[Segment], removed: tuple[uuid.UUID, ...] = ()) -> Committed:
    done = Round(tuple(one.fragments for one in segments), removed)
    return commit(open_store(uri), "note", planned, segments, done)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return make_base(tmp_path)


def test_native_hole_8_the_same_segments_again_make_no_new_version(uri: str, tmp_path: Path) -> None:
    planned = seen(uri)
    segments = [job(uri, fragments).run() for fragments in ([0, 1], [2, 3])]
    first = committed(uri, planned, segments)
    assert (first.landed, first.stale) == (tuple(one.index_id for one in segments), ())
    assert first.uncovered == frozenset()
    stood = versions(uri)
    for look in (planned, seen(uri)):  # a handle that is stale, and a new one
        assert committed(uri, look, segments) == first
    assert versions(uri) == stood == first.version
    assert answers(uri) == reference(uri, tmp_path)
    assert committed_files(uri) == {str(one.index_id): sorted([*one.files, MARKER]) for one in segments}


@pytest.mark.parametrize("step", COMMIT_STEPS)
def test_after_a_crash_at_each_step_the_same_commit_ends_in_one_index(uri: str, step: str) -> None:
    planned, before = seen(uri), versions(uri)
    segments = [job(uri, [0, 1, 2, 3]).run()]
    done = Round(((0, 1, 2, 3),))

    def die(reached: str) -> None:
        if reached == step:
            raise Crash(step)

    with pytest.raises(Crash):
        with watching(die):
            commit(open_store(uri), "note", planned, segments, done)
    committed(uri, planned, segments)
    assert versions(uri) == before + 1
    assert coverage(uri) == [0, 1, 2, 3]


def test_a_lost_response_of_the_commit_is_no_error(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    planned, before = seen(uri), versions(uri)
    segments = [job(uri, [0, 1, 2, 3]).run()]
    real = lance_index.commit_segments

    def lost(*arguments: Any) -> bool:
        real(*arguments)
        raise StoreError("no answer")

    monkeypatch.setattr(index_commit, "commit_segments", lost)
    assert committed(uri, planned, segments).landed == (segments[0].index_id,)
    assert versions(uri) == before + 1


def test_a_commit_that_fails_again_and_again_says_so(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = seen(uri)
    segments = [job(uri, [0, 1]).run()]
    monkeypatch.setattr(clock, "sleep", lambda seconds: None)

    def failing(*arguments: Any) -> bool:
        raise StoreError("the store is away")

    monkeypatch.setattr(index_commit, "commit_segments", failing)
    with pytest.raises(StoreError, match="the store is away"):
        committed(uri, planned, segments)
    monkeypatch.setattr(index_commit, "commit_segments", lambda *arguments: False)
    with pytest.raises(Transient, match="Other processes changed index"):
        committed(uri, planned, segments)


@pytest.mark.parametrize("meanwhile", ["append", "delete", "another index", "the same index", "update"])
def test_changes_that_do_not_touch_the_fragments_do_not_matter(uri: str, tmp_path: Path, meanwhile: str) -> None:
    planned = seen(uri)
    segments = [job(uri, [0, 1]).run()]

    def change(step: str) -> None:
        """After the look, so that native itself finds the conflict."""
        if step != "decided" or versions(uri) != planned.version:
            return
        if meanwhile == "append":
            append(uri, 20, 1000)
        elif meanwhile == "delete":
            lance.dataset(uri).delete("id % 7 = 0")
        elif meanwhile == "another index":
            lance.dataset(uri).create_scalar_index("id", "BTREE")
        elif meanwhile == "the same index":
            assert committed(uri, planned, [job(uri, [2]).run()]).landed
        else:
            lance.dataset(uri).update({"note": "'w1 w2'"}, where="id = 3")

    done = Round(((0, 1),))
    with watching(change):
        result = commit(open_store(uri), "note", planned, segments, done)
    assert result.landed == (segments[0].index_id,)
    build_index(open_store(uri), "note", NAME)
    assert coverage(uri) == fragments_of(uri)
    hits = {query: [row for row, _ in found] for query, found in answers(uri).items()}
    assert hits == {query: [row for row, _ in found] for query, found in reference(uri, tmp_path).items()}


@pytest.mark.parametrize("when", ["before the look", "after the look"])
def test_native_hole_9_compaction_between_build_and_commit_is_noticed(uri: str, when: str) -> None:
    planned = seen(uri)
    segments = [job(uri, [0, 1, 2, 3]).run()]

    def compact(step: str) -> None:
        if step == "decided" and versions(uri) == planned.version:
            lance.dataset(uri).optimize.compact_files()

    if when == "before the look":
        lance.dataset(uri).optimize.compact_files()
    done = Round(((0, 1, 2, 3),))
    with watching(compact):
        result = commit(open_store(uri), "note", planned, segments, done)
    assert (result.landed, result.stale) == ((), (segments[0].index_id,))
    assert result.uncovered == frozenset(fragments_of(uri)) != frozenset({0, 1, 2, 3})
    assert coverage(uri) == []


def test_native_hole_9_and_it_is_healed(uri: str, tmp_path: Path) -> None:
    compacted: list[object] = []

    def runner(jobs: Any, report: Any) -> Any:
        made = in_process(jobs, report)
        if not compacted:
            compacted.append(lance.dataset(uri).optimize.compact_files(target_rows_per_fragment=80))
        return made

    built = build_index(open_store(uri), "note", NAME, runner=runner, limits=FOUR)
    assert built.rounds > 1
    assert coverage(uri) == fragments_of(uri) != [0, 1, 2, 3]
    assert answers(uri) == reference(uri, tmp_path)


def test_a_base_that_is_compacted_under_every_round_ends_in_an_error(uri: str) -> None:
    def runner(jobs: Any, report: Any) -> Any:
        made = in_process(jobs, report)
        append(uri, 5, 10_000 + versions(uri))
        lance.dataset(uri).optimize.compact_files()
        return made

    with pytest.raises(Transient, match="The base changed during each try"):
        build_index(open_store(uri), "note", NAME, runner=runner)


def test_a_changed_column_is_not_committed(uri: str) -> None:
    planned = seen(uri)
    segments = [job(uri, [0, 1, 2, 3]).run()]
    dataset = lance.dataset(uri)
    dataset.drop_columns(["note"])
    with pytest.raises(InvalidInput, match="Column 'note' not found"):
        committed(uri, planned, segments)
    dataset.add_columns({"note": "cast(id as string)"})
    assert committed(uri, planned, segments).landed == ()


def test_native_hole_5_segments_with_other_parameters_never_stand_beside_each_other(uri: str) -> None:
    planned = seen(uri)
    plain, other = job(uri, [0, 1]).run(), job(uri, [2, 3], stem=False).run()
    before = versions(uri)
    with pytest.raises(InvalidInput, match="different stem"):
        committed(uri, planned, [plain, other])
    assert versions(uri) == before
    committed(uri, planned, [plain])
    with pytest.raises(InvalidInput, match="has a different stem"):
        committed(uri, planned, [other])
    assert coverage(uri) == [0, 1]
    assert answers(uri, QUERIES[:2])


def test_a_segment_that_lost_a_file_is_not_committed(uri: str) -> None:
    planned = seen(uri)
    segment = job(uri, [0, 1, 2, 3]).run()
    (path_of(uri, segment.index_id) / "part_0_docs.lance").unlink()
    with pytest.raises(DataLoss, match="missing or changed since it was finalized"):
        committed(uri, planned, [segment])
    assert coverage(uri) == []


def test_of_maker_and_collection_one_goes_on(uri: str) -> None:
    """Whoever takes a segment's outcome first, however long the other slept (R20)."""
    store, planned, halves = open_store(uri), seen(uri), Round(((0, 1), (2, 3)))
    lost, won = job(uri, [0, 1]).run(), job(uri, [2, 3]).run()
    assert wins(store, index_slots.outcome(lost.index_id), "collector")
    with pytest.raises(Transient, match="Garbage collection deleted a segment"):
        commit(store, "note", planned, [lost, won], halves)
    assert coverage(uri) == []
    assert taken_by(store, index_slots.outcome(won.index_id)) is None, "what it will never commit is given back"
    assert commit(store, "note", planned, [won], halves).landed == (won.index_id,)
    assert not wins(store, index_slots.outcome(won.index_id), "collector")


def test_of_a_rebuild_all_lands_or_nothing(uri: str) -> None:
    build_index(open_store(uri), "note", NAME)
    planned = seen(uri)
    segments = [job(uri, fragments, stem=False).run() for fragments in ([0, 1], [2, 3])]
    lance.dataset(uri).delete("id >= 80")  # the second one's rows are gone
    done = Round(((0, 1), (2, 3)), tuple(one.index_id for one in planned.segments), whole=True)
    result = commit(open_store(uri), "note", planned, segments, done)
    assert result.landed == ()
    assert set(result.stale) == {one.index_id for one in segments}
    assert [one.index_id for one in seen(uri).segments] == [one.index_id for one in planned.segments]


def test_the_planned_names_are_those_of_the_index_that_the_column_has(uri: str) -> None:
    lance.dataset(uri).create_scalar_index("note", "INVERTED", name="by_hand")
    append(uri, 30, 500)
    built = build_index(open_store(uri), "note", NAME)
    assert built.name == "by_hand"
    assert [index.name for index in lance.dataset(uri).describe_indices()] == ["by_hand"]


def test_a_name_that_another_index_has_is_refused(uri: str) -> None:
    lance.dataset(uri).create_scalar_index("id", "BTREE", name=NAME)
    with pytest.raises(InvalidInput, match="BTree"):
        seen(uri)


def test_the_facts_of_a_segment_survive_the_way_to_the_driver(uri: str) -> None:
    segment = job(uri, [0, 1]).run()
    assert Segment.from_json(segment.to_json()) == segment
    assert replace(segment, documents=0) != segment
