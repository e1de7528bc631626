"""A crash after every store operation of finalize, gather, build and commit, and a fault at every one of them."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import uuid
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import lance
import pytest

import headgate
from headgate.connectors.objects import open_store
from headgate.errors import HeadgateError
from headgate.search.build.build import BUILD_STEPS, build_index
from headgate.search.build.commit import COMMIT_STEPS
from headgate.search.build.plan import Limits
from headgate.search.finalize.finalize import FINALIZE_STEPS, finalize
from headgate.search.finalize.gather import GATHER_STEPS, gather
from headgate.search.finalize.segment import MARKER, Segment
from headgate.steps import watching
from tests.support.datasets import LanceFaultyStore
from tests.support.indexes import (
    NAME,
    SCHEMA,
    Staged,
    answers,
    coverage,
    files_in,
    folder,
    fragments_of,
    job,
    make_base,
    makers_of_orphans,
    path_of,
    reference,
    texts,
)
from tests.support.stores import Crash, Fault

TWO = Limits(tasks=2, task_rows=1)


def test_a_crash_after_every_operation_of_finalize_is_repaired_by_the_next(copy_staged: Callable[[], Staged]) -> None:
    for number in itertools.count(1):
        staged = copy_staged()
        store = LanceFaultyStore(open_store(staged.uri), crash_after=number)
        with contextlib.suppress(Crash):
            finalize(folder(staged.uri, staged.index_id, store), staged.built)
        if not store.crashed:
            break
        kept = {name for name in staged.built.staged() if (staged.path / name).exists()}
        marked = (staged.path / MARKER).exists()
        assert marked or kept == set(staged.built.staged()), f"staging was touched before the marker: {store.log[-3:]}"
        staged.serves(staged.finalized())
    assert number > 30, "the crashes did not reach the whole way"


@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.LOST], ids=lambda fault: fault.name)
def test_a_fault_at_every_operation_of_finalize_is_no_error(copy_staged: Callable[[], Staged], fault: Fault) -> None:
    for number in itertools.count(1):
        staged = copy_staged()
        store = LanceFaultyStore(open_store(staged.uri))
        store.plan = lambda one, at=number: fault if one.number == at else None
        segment = finalize(folder(staged.uri, staged.index_id, store), staged.built)
        staged.finalized()  # a delete that failed is left to the next
        staged.is_whole(segment)
        if not store.injected:
            break
    assert number > 30


@pytest.mark.parametrize("step", FINALIZE_STEPS)
def test_a_crash_at_every_step_of_finalize_is_repaired_by_the_next(staged: Staged, step: str) -> None:
    with pytest.raises(Crash):
        with watching(dying_at(step)):
            finalize(folder(staged.uri, staged.index_id), staged.built)
    staged.serves(staged.finalized())


def test_a_crash_after_every_operation_of_gathering_leaves_the_sources_and_a_folder_that_nothing_names(
    tmp_path: Path,
) -> None:
    uri = make_base(tmp_path)
    expected = reference(uri, tmp_path)
    sources = [job(uri, fragments).run() for fragments in ([0, 1], [2, 3])]
    kept = [files_in(path_of(uri, one.index_id)) for one in sources]
    for number in itertools.count(1):
        store = LanceFaultyStore(open_store(uri), crash_after=number)
        with contextlib.suppress(Crash):
            gather(folder(uri, uuid.uuid4(), store), sources)
        assert [files_in(path_of(uri, one.index_id)) for one in sources] == kept
        if not store.crashed:
            break
    assert number > 20
    segment = gather(folder(uri, uuid.uuid4()), sources)
    Staged(uri, segment.index_id, None, expected).commit(segment)  # type: ignore[arg-type]
    assert answers(uri) == expected


@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.LOST], ids=lambda fault: fault.name)
def test_a_fault_at_every_operation_of_gathering_is_no_error(tmp_path: Path, fault: Fault) -> None:
    uri = make_base(tmp_path)
    sources = [job(uri, fragments).run() for fragments in ([0, 1], [2, 3])]
    files = None
    for number in itertools.count(1):
        store = LanceFaultyStore(open_store(uri))
        store.plan = lambda one, at=number: fault if one.number == at else None
        segment = gather(folder(uri, uuid.uuid4(), store), sources)
        files = files or segment.files
        assert (segment.files, segment.fragments, segment.documents) == (files, (0, 1, 2, 3), 160)
        if not store.injected:
            break
    assert number > 20


@pytest.mark.parametrize("step", GATHER_STEPS)
def test_a_crash_at_every_step_of_gathering_leaves_the_sources(tmp_path: Path, step: str) -> None:
    uri = make_base(tmp_path)
    sources = [job(uri, fragments).run() for fragments in ([0, 1], [2, 3])]
    with pytest.raises(Crash):
        with watching(dying_at(step)):
            gather(folder(uri, uuid.uuid4()), sources)
    assert isinstance(gather(folder(uri, uuid.uuid4()), sources), Segment)


def test_a_crash_after_every_operation_of_build_and_commit_ends_in_one_index_without_orphans(tmp_path: Path) -> None:
    template = str(tmp_path / "template")
    headgate.create_table(template, SCHEMA, full_text="note")
    lance.write_dataset(texts(120), template, mode="append", max_rows_per_file=40)
    expected = reference(template, tmp_path)
    for number in itertools.count(1):
        uri = str(tmp_path / f"table-{number}")
        shutil.copytree(template, uri)
        store = LanceFaultyStore(open_store(uri), crash_after=number)
        with contextlib.suppress(Crash):
            build_index(store, "note", NAME, limits=TWO)
        if not store.crashed:
            break
        version = lance.dataset(uri).version
        built = build_index(open_store(uri), "note", NAME, limits=TWO)
        assert built.version <= version + 1
        assert coverage(uri) == fragments_of(uri)
        assert answers(uri) == expected, f"crash after {store.log[-3:]}"
        # Versions of before are held by nothing; their empty index and what the crash left go.
        lance.dataset(uri).cleanup_old_versions(older_than=timedelta(0), delete_unverified=False)
        headgate.open_table(uri).collect_garbage(min_age=timedelta(0), apply=True)
        orphans = makers_of_orphans(uri, used(uri))
        assert orphans <= {"maker"}, "and no orphan, but where its maker had won and may still commit it"
        assert answers(uri) == expected
    assert number > 35, "the crashes did not reach the whole way"


@pytest.mark.parametrize("step", [*BUILD_STEPS, *COMMIT_STEPS])
def test_a_crash_at_every_step_of_a_build_ends_in_one_index(tmp_path: Path, step: str) -> None:
    uri = make_base(tmp_path)
    with pytest.raises(Crash):
        with watching(dying_at(step)):
            build_index(open_store(uri), "note", NAME, limits=TWO)
    build_index(open_store(uri), "note", NAME, limits=TWO)
    assert coverage(uri) == fragments_of(uri)
    assert answers(uri) == reference(uri, tmp_path)


def test_a_store_that_fails_for_long_ends_in_an_error_and_leaves_the_old_index(tmp_path: Path) -> None:
    uri = make_base(tmp_path)
    store = LanceFaultyStore(open_store(uri), lambda one: Fault.FAIL if one.verb == "copy" else None)
    with pytest.raises(HeadgateError):
        build_index(store, "note", NAME)
    assert coverage(uri) == []
    build_index(open_store(uri), "note", NAME)
    assert coverage(uri) == fragments_of(uri)


def dying_at(step: str) -> Callable[[str], None]:
    def die(reached: str) -> None:
        if reached == step:
            raise Crash(step)

    return die


def used(uri: str) -> set[str]:
    """The folders of the index's segments."""
    (index,) = (index for index in lance.dataset(uri).describe_indices() if index.name == NAME)
    return {str(segment.uuid) for segment in index.segments}
