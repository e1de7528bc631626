"""The finalizer keeps the promise of lance#7272, test by test."""

from __future__ import annotations

import uuid
from pathlib import Path

import lance
import pytest

from headgate.connectors.lance.files import end_of
from headgate.connectors.objects import open_store
from headgate.errors import InvalidInput, Transient
from headgate.search.build.jobs import build
from headgate.search.finalize.finalize import FINALIZE_STAGES, finalize
from headgate.search.finalize.gather import gather
from headgate.search.finalize.gather import stage as stage_existing
from headgate.search.finalize.segment import MARKER, SUFFIXES, final_name, staged_name
from headgate.steps import watching
from tests.support.datasets import LanceFaultyStore
from tests.support.indexes import (
    NAME,
    NO_RETRY,
    Staged,
    answers,
    committed_files,
    contents,
    files_in,
    folder,
    job,
    make_base,
    path_of,
    reference,
    stage,
)
from tests.support.stores import Fault


def test_lance_7272_distributed_build_writes_partition_data_to_staging(tmp_path: Path) -> None:
    uri = make_base(tmp_path)
    index_id, built = stage(uri, [[1], [3]])
    assert [part.id for part in built.parts] == [1 << 32, 3 << 32]
    assert set(files_in(path_of(uri, index_id))) == set(built.staged())
    assert all(name.startswith("staging/part_") for name in built.staged())


def test_lance_7272_remaps_staged_partitions_without_rename(staged: Staged) -> None:
    before = contents(staged.path)
    store = LanceFaultyStore(open_store(staged.uri))
    segment = finalize(folder(staged.uri, staged.index_id, store), staged.built)
    after = contents(staged.path)
    for new, part in enumerate(sorted(staged.built.parts, key=lambda part: part.id)):
        for suffix in SUFFIXES:
            assert after[final_name(new, suffix)] == before[staged_name(part.id, suffix)]
    assert end_of(after[MARKER]).metadata["partitions"] == "[0, 1, 2, 3]"
    deleted = [operation.key for operation in store.log if operation.verb == "delete"]
    assert all("/staging/" in key for key in deleted)
    assert max(one.number for one in store.log if one.verb == "copy") < min(
        one.number for one in store.log if one.verb == "delete"
    )
    staged.serves(segment)


def test_lance_7272_rewrites_partial_final_files_from_staging_and_deletes_no_root_part(staged: Staged) -> None:
    for suffix in SUFFIXES:
        (staged.path / final_name(1, suffix)).write_bytes(b"of an attempt that died")
    whole = (staged.path / staged_name(staged.built.parts[2].id, "docs")).read_bytes()
    (staged.path / final_name(2, "docs")).write_bytes(whole[:-7])
    store = LanceFaultyStore(open_store(staged.uri))
    segment = finalize(folder(staged.uri, staged.index_id, store), staged.built)
    assert [one.key for one in store.log if one.verb == "delete" and "/staging/" not in one.key] == []
    staged.serves(segment)


def test_lance_7272_distributed_from_existing_copies_existing_partitions_to_staging_and_finalizes(
    staged: Staged,
) -> None:
    first, second = (job(staged.uri, fragments).run() for fragments in ([0, 1], [2, 3]))
    kept = {one.index_id: contents(path_of(staged.uri, one.index_id)) for one in (first, second)}
    target = folder(staged.uri, uuid.uuid4())
    path = path_of(staged.uri, target.index_id)
    listed_too_early: list[str] = []

    def look(step: str) -> None:
        there = files_in(path)
        for part in range(2):
            listed = staged_name(part, "metadata") in there
            if listed and any(staged_name(part, suffix) not in there for suffix in SUFFIXES):
                listed_too_early.append(step)

    with watching(look):
        built = stage_existing(target, [first, second])
    assert listed_too_early == []
    assert set(files_in(path)) == set(built.staged()), "staged, and nothing copied to the root"
    segment = finalize(target, built)
    assert {one.index_id: contents(path_of(staged.uri, one.index_id)) for one in (first, second)} == kept
    assert set(files_in(path)) == {*segment.files, MARKER}
    assert segment.fragments == (0, 1, 2, 3)
    assert segment.documents == first.documents + second.documents
    staged.commit(segment)
    assert answers(staged.uri) == staged.answers


def test_lance_7272_native_finalizes_what_was_staged_from_existing(staged: Staged) -> None:
    sources = [job(staged.uri, fragments).run() for fragments in ([0, 1], [2, 3])]
    target = folder(staged.uri, uuid.uuid4())
    built = stage_existing(target, sources)
    lance.dataset(staged.uri).merge_index_metadata(str(target.index_id), "INVERTED")
    segment = finalize(target, built)
    staged.commit(segment)
    assert answers(staged.uri) == staged.answers


def test_lance_7272_keeps_staging_when_the_final_metadata_cannot_be_written(staged: Staged) -> None:
    before = contents(staged.path)
    store = LanceFaultyStore(open_store(staged.uri))
    store.plan = lambda one: Fault.FAIL if one.verb == "copy" and "merged-" in one.key else None
    with pytest.raises(Transient):
        finalize(folder(staged.uri, staged.index_id, store, NO_RETRY), staged.built)
    after = contents(staged.path)
    assert MARKER not in after
    assert {name: after[name] for name in before} == before
    staged.serves(staged.finalized())


def test_lance_7272_an_empty_build_does_not_finalize_the_shared_directory(tmp_path: Path) -> None:
    uri = make_base(tmp_path, fragments=2)
    lance.dataset(uri).update({"note": "''"}, where="id < 40")
    empty, full = 1, 2  # the updated rows are a fragment of their own
    fragments = [fragment.fragment_id for fragment in lance.dataset(uri).get_fragments()]
    assert fragments == [empty, full]
    expected = reference(uri, tmp_path)
    index_id, built = stage(uri, [[full], [empty]])
    assert MARKER not in files_in(path_of(uri, index_id))
    assert (len(built.parts), len(built.empty)) == (1, 1)
    segment = finalize(folder(uri, index_id), built)
    assert segment.part_count == 1
    Staged(uri, index_id, built, expected).commit(segment)
    assert answers(uri) == expected


def test_lance_7272_is_a_no_op_when_the_marker_is_valid(staged: Staged) -> None:
    segment = staged.finalized()
    times = {path: path.stat().st_mtime_ns for path in staged.path.rglob("*")}
    store = LanceFaultyStore(open_store(staged.uri))
    assert finalize(folder(staged.uri, staged.index_id, store), staged.built) == segment
    assert {path: path.stat().st_mtime_ns for path in staged.path.rglob("*")} == times
    assert set(store.verbs()) == {"list", "get"}


def test_lance_7272_a_single_process_build_has_its_finals_already_and_they_stay_as_they_are(tmp_path: Path) -> None:
    uri = make_base(tmp_path)
    dataset = lance.dataset(uri)
    dataset.create_scalar_index("note", "INVERTED", name=NAME)
    (described,) = dataset.describe_indices()
    index_id = uuid.UUID(str(described.segments[0].uuid))
    before = contents(path_of(uri, index_id))
    assert not any(name.startswith("staging/") for name in before)
    # What a build of the same rows says is what must be there: all documents.
    built = build(folder(uri, uuid.uuid4()), job(uri, [0, 1, 2, 3]))
    segment = finalize(folder(uri, index_id), built)
    assert contents(path_of(uri, index_id)) == before
    assert {*segment.files, MARKER} == set(before)


def test_lance_7272_reports_progress_stages_in_order_and_to_their_end_also_on_a_no_op(staged: Staged) -> None:
    copies = 4 * len(SUFFIXES)
    for totals in ({"copy_parts": copies, "write_merged_metadata": 1}, {"copy_parts": 0, "write_merged_metadata": 0}):
        told: list[tuple[str, int, int]] = []
        finalize(
            folder(staged.uri, staged.index_id),
            staged.built,
            report=lambda *one, told=told: told.append(one),
        )
        assert list(dict.fromkeys(stage for stage, _, _ in told)) == list(FINALIZE_STAGES)
        last = {stage: (done, total) for stage, done, total in told}
        assert all(done == total for done, total in last.values())
        assert {stage: last[stage][1] for stage in totals} == totals
        for one in FINALIZE_STAGES:
            steps = [done for name, done, _ in told if name == one]
            assert steps == sorted(set(steps)), f"{one} goes forward, and is told once"


def test_lance_7272_stale_staging_is_excluded_from_the_committed_files(staged: Staged) -> None:
    store = LanceFaultyStore(open_store(staged.uri))
    store.plan = lambda one: Fault.FAIL if one.verb == "delete" else None
    segment = finalize(folder(staged.uri, staged.index_id, store), staged.built)
    assert any(name.startswith("staging/") for name in files_in(staged.path)), "the clean-up failed"
    staged.commit(segment)
    assert committed_files(staged.uri) == {str(staged.index_id): sorted([*segment.files, MARKER])}
    assert answers(staged.uri) == staged.answers
    staged.finalized()
    assert set(files_in(staged.path)) == {*segment.files, MARKER}, "the next one cleans up"


def test_what_native_finalized_is_recognised_by_its_documents(staged: Staged) -> None:
    lance.dataset(staged.uri).merge_index_metadata(str(staged.index_id), "INVERTED")
    segment = staged.finalized()
    assert segment.documents == staged.built.documents
    staged.commit(segment)
    assert answers(staged.uri) == staged.answers


def test_parts_of_one_builder_with_little_memory_are_all_finalized(tmp_path: Path) -> None:
    uri = make_base(tmp_path, fragments=3, rows=4000)
    expected = reference(uri, tmp_path)
    index_id, built = stage(uri, [[0, 1, 2]], memory_limit=1, num_workers=1)
    segment = finalize(folder(uri, index_id), built)
    assert segment.documents == 12_000
    Staged(uri, index_id, built, expected).commit(segment)
    assert answers(uri) == expected


def test_gathering_takes_nothing_twice(staged: Staged) -> None:
    first, second = (job(staged.uri, fragments).run() for fragments in ([0, 1], [1, 2]))
    target = folder(staged.uri, uuid.uuid4())
    with pytest.raises(InvalidInput, match="fragment 1"):
        gather(target, [first, second])
    assert not path_of(staged.uri, target.index_id).exists()
