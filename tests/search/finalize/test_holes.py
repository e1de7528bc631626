"""What native's finalize leaves unguarded, row by row of the list, and what it does today."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pytest

from headgate.connectors.objects import open_store
from headgate.errors import DataLoss, InvalidInput
from headgate.search.build.jobs import build
from headgate.search.finalize.finalize import finalize
from headgate.search.finalize.segment import MARKER, SUFFIXES, Segment, final_name, staged_name, together
from tests.support.datasets import LanceFaultyStore
from tests.support.indexes import (
    NAME,
    NO_RETRY,
    Staged,
    answers,
    committed_files,
    contents,
    coverage,
    files_in,
    folder,
    job,
    make_base,
    stage,
)


@pytest.mark.parametrize("torn", [b"", b"LANC", "half"])
def test_native_hole_1_a_torn_marker_is_repaired_from_staging(staged: Staged, torn: bytes | str) -> None:
    before = contents(staged.path)
    staged.finalized()
    for name, data in before.items():
        (staged.path / name).write_bytes(data)
    whole = (staged.path / MARKER).read_bytes()
    (staged.path / MARKER).write_bytes(whole[: len(whole) // 2] if isinstance(torn, str) else torn)
    staged.serves(staged.finalized())


@pytest.mark.parametrize("how", ["missing", "cut off", "empty"])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_native_hole_2_a_missing_or_partial_final_behind_a_marker_is_repaired(
    staged: Staged, suffix: str, how: str
) -> None:
    before = contents(staged.path)
    staged.finalized()
    for name, data in before.items():
        (staged.path / name).write_bytes(data)
    victim = staged.path / final_name(2, suffix)
    if how == "missing":
        victim.unlink()
    else:
        victim.write_bytes(victim.read_bytes()[:-1] if how == "cut off" else b"")
    staged.serves(staged.finalized())


@pytest.mark.parametrize("suffix", [*SUFFIXES, "metadata"])
def test_native_hole_3_a_missing_part_is_refused_by_name(staged: Staged, suffix: str) -> None:
    name = staged_name(staged.built.parts[1].id, suffix)
    (staged.path / name).unlink()
    refused(staged, DataLoss, name)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_part_that_is_cut_off_is_refused_by_name(staged: Staged, suffix: str) -> None:
    path = staged.path / staged_name(staged.built.parts[3].id, suffix)
    path.write_bytes(path.read_bytes()[:-1])
    refused(staged, DataLoss, staged_name(staged.built.parts[3].id, suffix))


def test_a_parts_torn_metadata_are_refused(staged: Staged) -> None:
    (staged.path / staged_name(staged.built.parts[0].id, "metadata")).write_bytes(b"")
    refused(staged, DataLoss, "Lance file")


@pytest.mark.parametrize("attempt", [[1, 0], [0, 1, 2]], ids=["another part", "the same part"])
def test_native_hole_4_a_stale_part_of_another_attempt_is_refused_by_name(tmp_path: Path, attempt: list[int]) -> None:
    uri = make_base(tmp_path)
    index_id, built = stage(uri, [[0, 1], [2, 3]])
    build(folder(uri, index_id), job(uri, attempt))
    kind: type[Exception] = InvalidInput if attempt[0] else DataLoss
    refused(Staged(uri, index_id, built, {}), kind, staged_name(attempt[0] << 32, "docs"))


def test_a_foreign_part_is_refused_by_name(staged: Staged) -> None:
    for suffix in (*SUFFIXES, "metadata"):
        (staged.path / staged_name(77, suffix)).write_bytes(b"whose?")
    refused(staged, InvalidInput, staged_name(77, "docs"))


def test_native_hole_5_a_part_with_other_parameters_is_refused_by_name(tmp_path: Path) -> None:
    uri = make_base(tmp_path)
    index_id, first = stage(uri, [[0, 1]])
    second = build(folder(uri, index_id), job(uri, [2, 3], stem=False))
    with pytest.raises(InvalidInput, match="different stem"):
        together([first, second])
    # Whoever puts the manifest together without looking is told by the parts themselves.
    blind = together([first, replace(second, settings=first.settings, facts=first.facts)])
    staged = Staged(uri, index_id, blind, {})
    refused(staged, InvalidInput, staged_name(2 << 32, "metadata"), "different stem")


def refused(staged: Staged, kind: type[Exception], *said: str) -> None:
    before = contents(staged.path)
    with pytest.raises(kind) as raised:
        staged.finalized()
    for text in (*said, str(staged.index_id)):
        assert text in str(raised.value)
    assert contents(staged.path) == before, "nothing was touched"


def test_native_hole_6_leftover_finals_and_temporary_files_are_removed_and_never_listed(staged: Staged) -> None:
    (staged.path / final_name(9, "docs")).write_bytes(b"of another layout")
    (staged.path / ".tmpAbC123").write_bytes(b"of a killed process")
    (staged.path / "staging" / ".tmpXyZ").write_bytes(b"of a killed process")
    segment = staged.finalized()
    staged.serves(segment)
    assert committed_files(staged.uri) == {str(staged.index_id): sorted([*segment.files, MARKER])}


def test_native_hole_7_three_finalizers_at_once_all_succeed_with_one_result_20_rounds(
    copy_staged: Callable[[], Staged],
) -> None:
    for number in range(20):
        staged = copy_staged()
        results: list[Segment] = []
        failures: list[BaseException] = []
        ready = threading.Barrier(3)

        def work(
            staged: Staged = staged, results: list[Segment] = results, failures: list[BaseException] = failures
        ) -> None:
            mine = folder(staged.uri, staged.index_id)
            ready.wait(30)  # noqa: B023 - threads end with the round
            try:
                results.append(finalize(mine, staged.built))
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == [], f"round {number}"
        assert results[0] == results[1] == results[2], f"round {number}"
        staged.finalized()  # one may have staged its marker while another cleaned up
        staged.serves(results[0])


def test_a_finalizer_that_stalls_before_each_operation_while_another_finishes_ends_in_success(
    copy_staged: Callable[[], Staged],
) -> None:
    number = 0
    while True:
        number += 1
        staged = copy_staged()
        store = LanceFaultyStore(open_store(staged.uri))
        rival_done = False

        def plan(operation: object, staged: Staged = staged, at: int = number) -> None:
            nonlocal rival_done
            if operation.number == at:  # type: ignore[attr-defined]
                rival_done = True
                staged.finalized()

        store.plan = plan
        segment = finalize(folder(staged.uri, staged.index_id, store, NO_RETRY), staged.built)
        staged.finalized()
        staged.is_whole(segment)
        if not rival_done:
            break
    assert number > 20, "the stalls did not reach the whole way"


def test_a_rival_with_a_marker_of_another_build_does_not_count_as_done(staged: Staged) -> None:
    staged.finalized()
    fewer = replace(staged.built, parts=staged.built.parts[:2], fragments=staged.built.fragments[:2])
    with pytest.raises(DataLoss, match="is missing"):
        finalize(folder(staged.uri, staged.index_id), fewer)


# -- canaries: each fails when native is mended, and its guard may go ----------------------


def native_finalize(staged: Staged) -> dict[str, int]:
    lance.dataset(staged.uri).merge_index_metadata(str(staged.index_id), "INVERTED")
    return files_in(staged.path)


def test_canary_native_takes_a_torn_marker_for_done_and_deletes_staging(staged: Staged) -> None:
    (staged.path / MARKER).write_bytes(b"")
    assert native_finalize(staged) == {MARKER: 0}


def test_canary_native_succeeds_without_the_documents_of_a_missing_part(staged: Staged) -> None:
    (staged.path / staged_name(staged.built.parts[0].id, "metadata")).unlink()
    assert MARKER in native_finalize(staged)
    with pytest.raises(DataLoss, match="is missing"):
        staged.finalized()


def test_canary_native_takes_in_the_documents_of_a_stale_part(tmp_path: Path) -> None:
    uri = make_base(tmp_path)
    index_id, built = stage(uri, [[0, 1], [2, 3]])
    build(folder(uri, index_id), job(uri, [1, 0]))
    staged = Staged(uri, index_id, built, {})
    assert MARKER in native_finalize(staged)
    with pytest.raises(DataLoss, match="is missing"):
        staged.finalized()


def test_canary_native_takes_a_missing_final_for_done_and_deletes_staging(staged: Staged) -> None:
    before = contents(staged.path)
    staged.finalized()
    for name, data in before.items():
        (staged.path / name).write_bytes(data)
    (staged.path / final_name(2, "docs")).unlink()
    left = native_finalize(staged)
    assert final_name(2, "docs") not in left
    assert not any(name.startswith("staging/") for name in left)


def test_canary_native_commits_leftover_finals(staged: Staged) -> None:
    native_finalize(staged)
    (staged.path / final_name(9, "docs")).write_bytes(b"of another layout")
    commit_natively(staged.uri, [staged_natively(staged)])
    assert final_name(9, "docs") in committed_files(staged.uri)[str(staged.index_id)]


def test_canary_native_commits_segments_of_other_parameters_and_then_fails_every_query(tmp_path: Path) -> None:
    uri = make_base(tmp_path)
    dataset = lance.dataset(uri)
    made = [
        dataset.create_index_uncommitted("note", "INVERTED", name=NAME, fragment_ids=fragments, stem=stem)
        for fragments, stem in (([0, 1], True), ([2, 3], False))
    ]
    commit_natively(uri, made)
    with pytest.raises(Exception, match="inconsistent"):
        answers(uri)


def test_canary_native_makes_a_version_of_the_same_segments_each_time(tmp_path: Path) -> None:
    uri = make_base(tmp_path)
    made = [lance.dataset(uri).create_index_uncommitted("note", "INVERTED", name=NAME, fragment_ids=[0, 1, 2, 3])]
    for _ in range(2):
        before = lance.dataset(uri).version
        commit_natively(uri, made)
        assert lance.dataset(uri).version == before + 1


def test_canary_native_commits_segments_of_fragments_that_a_compaction_rewrote(tmp_path: Path) -> None:
    uri = make_base(tmp_path)
    made = [lance.dataset(uri).create_index_uncommitted("note", "INVERTED", name=NAME, fragment_ids=[0, 1, 2, 3])]
    lance.dataset(uri).optimize.compact_files()
    commit_natively(uri, made)
    assert coverage(uri) == []


def commit_natively(uri: str, segments: list[Any]) -> None:
    lance.dataset(uri).commit_existing_index_segments(NAME, "note", segments)


def staged_natively(staged: Staged) -> Any:
    """A segment as native describes it, over all that was staged."""
    dataset = lance.dataset(staged.uri)
    made = dataset.create_index_uncommitted("note", "INVERTED", name=NAME, fragment_ids=[0, 1, 2, 3])
    return replace(made, uuid=str(staged.index_id), files=None)
