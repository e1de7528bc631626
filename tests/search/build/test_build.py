"""Building an index round by round: complete, again nothing, incremental, merged, and as native finds it."""

from __future__ import annotations

import json
import threading
import uuid
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import headgate
from headgate.connectors.lance.index import look_index
from headgate.connectors.objects import open_store
from headgate.errors import InvalidInput
from headgate.search.build.build import BUILD_STAGES, build_index
from headgate.search.build.jobs import in_process
from headgate.search.build.plan import Limits
from headgate.search.finalize.marker import read_segment
from headgate.search.finalize.segment import IndexFolder
from tests.support.indexes import (
    NAME,
    SCHEMA,
    answers,
    append,
    coverage,
    files_in,
    fragments_of,
    make_base,
    path_of,
    reference,
    texts,
)

TINY = Limits(tasks=2, max_segments=3, segment_rows=300, task_rows=20)


def segments_of(uri: str) -> list[uuid.UUID]:
    return [one.index_id for one in look_index(open_store(uri), "note", NAME).segments]


def test_stages_are_told_in_order_and_to_their_end_also_on_a_no_op(tmp_path: Path) -> None:
    uri = make_base(tmp_path)
    store = open_store(uri)
    for limits in (Limits(), Limits(tasks=4, task_rows=1), Limits()):  # one segment, nothing, nothing
        told: list[tuple[str, int, int]] = []
        build_index(store, "note", NAME, limits=limits, report=lambda *one, told=told: told.append(one))
        assert list(dict.fromkeys(stage for stage, _, _ in told)) == list(BUILD_STAGES)
        last = {stage: (done, total) for stage, done, total in told}
        assert all(done == total for done, total in last.values())
    assert last["build"] == (0, 0), "a no-op builds nothing, and says so"


def test_several_segments_are_counted_in_each_stage(tmp_path: Path) -> None:
    uri = make_base(tmp_path)
    told: list[tuple[str, int, int]] = []
    build_index(
        open_store(uri), "note", NAME, limits=Limits(tasks=4, task_rows=1), report=lambda *one: told.append(one)
    )
    for stage in BUILD_STAGES[1:-1]:
        steps = [done for name, done, total in told if name == stage and total == 4]
        assert steps == sorted(steps)
        assert (steps[0], steps[-1]) == (0, 4)


def test_a_second_build_changes_nothing(tmp_path: Path) -> None:
    uri = make_base(tmp_path)
    first = build_index(open_store(uri), "note", NAME)
    before = files_in(Path(uri))
    second = build_index(open_store(uri), "note", NAME)
    assert (second.version, second.rounds, second.added) == (first.version, 0, 0)
    assert files_in(Path(uri)) == before


def test_increments_are_merged_and_answer_as_one_index(tmp_path: Path) -> None:
    uri = make_base(tmp_path, fragments=2)
    store = open_store(uri)
    for number in range(10):
        append(uri, (20, 90, 250)[number % 3], 1000 * (number + 1), rows=60)
        built = build_index(store, "note", NAME, limits=TINY)
        assert coverage(uri) == fragments_of(uri)
        assert built.segments <= TINY.max_segments
    folders = [IndexFolder(store, one) for one in segments_of(uri)]
    found = [read_segment(folder) for folder in folders]
    assert max(one.part_count for one in found if one) > 1, "large ones were merged by copying"
    assert answers(uri) == reference(uri, tmp_path)


def test_deleted_and_updated_rows_are_not_found_in_merged_segments(tmp_path: Path) -> None:
    uri = make_base(tmp_path)
    store = open_store(uri)
    build_index(store, "note", NAME, limits=Limits(tasks=4, task_rows=1))
    dataset = lance.dataset(uri)
    dataset.delete("id < 60")
    dataset.update({"note": "'w1 w2 w40'"}, where="id % 5 = 0")
    build_index(store, "note", NAME, limits=Limits(max_segments=1))
    assert len(segments_of(uri)) == 1
    assert coverage(uri) == fragments_of(uri)
    assert answers(uri) == reference(uri, tmp_path), "indexed again from the rows: scores, too, are as of one index"


def test_segments_over_fragments_that_are_gone_are_merged_by_copying(tmp_path: Path) -> None:
    uri = make_base(tmp_path)
    store = open_store(uri)
    build_index(store, "note", NAME, limits=Limits(tasks=2, task_rows=1))
    lance.dataset(uri).delete("id < 40")
    assert fragments_of(uri) == [1, 2, 3]
    build_index(store, "note", NAME, limits=Limits(max_segments=1, segment_rows=10))
    (index_id,) = segments_of(uri)
    merged = read_segment(IndexFolder(store, index_id))
    assert merged is not None
    assert (merged.part_count, merged.fragments) == (2, (0, 1, 2, 3))
    hits = {query: [row for row, _ in found] for query, found in answers(uri).items()}
    assert hits == {query: [row for row, _ in found] for query, found in reference(uri, tmp_path).items()}
    assert build_index(store, "note", NAME, limits=Limits(max_segments=1)).rounds == 0


def test_two_builders_at_once_end_in_one_correct_index(tmp_path: Path) -> None:
    uri = make_base(tmp_path)
    failures: list[BaseException] = []
    both = threading.Barrier(2)

    def work() -> None:
        rounds: list[Any] = []

        def runner(jobs: Any, report: Any) -> Any:
            rounds.append(in_process(jobs, report))
            if len(rounds) == 1:
                both.wait(60)  # both have built, and both commit
            return rounds[-1]

        try:
            build_index(open_store(uri), "note", NAME, runner=runner)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(segments_of(uri)) == 1
    assert coverage(uri) == fragments_of(uri)
    assert answers(uri) == reference(uri, tmp_path)


def test_positions_and_parameters_are_those_of_the_index_in_later_rounds(tmp_path: Path) -> None:
    uri = make_base(tmp_path)
    store = open_store(uri)
    chosen = {"with_position": True, "stem": False, "remove_stop_words": False}
    build_index(store, "note", NAME, parameters=chosen)
    append(uri, 100, 5000)
    build_index(store, "note", NAME, limits=Limits(max_segments=8))
    append(uri, 20, 7000)
    build_index(store, "note", NAME, parameters={"stem": False})
    (described,) = lance.dataset(uri).describe_indices()
    assert described.details.items() >= chosen.items()
    assert answers(uri, ["w7", '"w1 w2"']) == {
        query: hits for query, hits in answers_with_positions(uri, tmp_path).items() if query in ("w7", '"w1 w2"')
    }


def answers_with_positions(uri: str, path: Path) -> dict[str, list[tuple[int, float]]]:
    rows = lance.dataset(uri).to_table(columns=["id", "note"])
    other = str(path / "positions")
    lance.write_dataset(rows, other).create_scalar_index(
        "note", "INVERTED", with_position=True, stem=False, remove_stop_words=False
    )
    return answers(other, ["w7", '"w1 w2"'])


def test_other_parameters_need_a_rebuild(tmp_path: Path) -> None:
    uri = make_base(tmp_path)
    store = open_store(uri)
    build_index(store, "note", NAME)
    old = segments_of(uri)
    with pytest.raises(InvalidInput, match="rebuild=True"):
        build_index(store, "note", NAME, parameters={"stem": False})
    build_index(store, "note", NAME, parameters={"stem": False}, rebuild=True, limits=Limits(tasks=3, task_rows=1))
    assert not set(old) & set(segments_of(uri))
    (described,) = lance.dataset(uri).describe_indices()
    assert described.details["stem"] is False
    assert answers(uri) == reference(uri, tmp_path, stem=False)


@pytest.mark.parametrize(
    ("column", "parameters", "said"),
    [
        ("id", None, "Lance rejects a full-text index of column 'id'"),
        ("nobody", None, "Column 'nobody' not found"),
        ("note", {"language": "Klingon"}, "Lance rejects"),
    ],
)
def test_what_cannot_be_indexed_is_refused_before_anything_is_written(
    tmp_path: Path, column: str, parameters: dict[str, Any] | None, said: str
) -> None:
    uri = make_base(tmp_path)
    before = files_in(Path(uri))
    with pytest.raises(InvalidInput, match=said):
        build_index(open_store(uri), column, f"{column}_idx", parameters=parameters)
    assert files_in(Path(uri)) == before


def test_rows_without_any_word_are_covered_and_found_by_nothing(tmp_path: Path) -> None:
    uri = str(tmp_path / "empty")
    lance.write_dataset(pa.table({"id": [1, 2, 3], "note": [None, "", "  "]}, schema=SCHEMA), uri)
    build_index(open_store(uri), "note", NAME)
    assert coverage(uri) == [0]
    assert answers(uri, ["w1"]) == {"w1": []}
    append(uri, 50, 10)
    build_index(open_store(uri), "note", NAME)
    assert coverage(uri) == [0, 1]
    assert answers(uri) == reference(uri, tmp_path)


def test_a_table_gets_its_index_with_its_first_fragments(tmp_path: Path) -> None:
    uri = str(tmp_path / "table")
    table = headgate.create_table(uri, SCHEMA, full_text="note")
    assert table.build_index("note").fragments == 0
    lance.write_dataset(texts(200), uri, mode="append", max_rows_per_file=50)
    built = table.build_index("note")
    assert (built.name, built.fragments, built.rows, built.segments) == ("note_idx", 4, 200, 1)
    assert answers(uri) == reference(uri, tmp_path)
    assert headgate.open_table(uri).full_text == ("note",), "the table is still ours to open"


def test_native_goes_on_with_an_index_that_was_built_here(tmp_path: Path) -> None:
    uri = make_base(tmp_path)
    build_index(open_store(uri), "note", NAME, limits=Limits(tasks=2, task_rows=1))
    append(uri, 60, 900)
    dataset = lance.dataset(uri)
    dataset.optimize.optimize_indices()
    assert coverage(uri) == fragments_of(uri)
    assert answers(uri) == reference(uri, tmp_path)
    dataset.optimize.compact_files()
    assert coverage(uri) == fragments_of(uri)
    # And we go on with what native made of it, whose markers say nothing to us.
    append(uri, 400, 2000, rows=100)
    build_index(open_store(uri), "note", NAME, limits=TINY)
    assert coverage(uri) == fragments_of(uri)
    assert answers(uri) == reference(uri, tmp_path)


def test_a_shallow_clone_keeps_the_segments_of_its_parent_and_adds_its_own(tmp_path: Path) -> None:
    parent = make_base(tmp_path)
    build_index(open_store(parent), "note", NAME)
    before = files_in(Path(parent))
    uri = str(tmp_path / "clone")
    lance.dataset(parent).shallow_clone(uri, lance.dataset(parent).version)
    append(uri, 30, 3000)
    build_index(open_store(uri), "note", NAME)
    look = look_index(open_store(uri), "note", NAME)
    assert sorted(one.elsewhere for one in look.segments) == [False, True]
    assert coverage(uri) == fragments_of(uri)
    assert answers(uri) == reference(uri, tmp_path)
    # Merged, they are its own.
    build_index(open_store(uri), "note", NAME, limits=Limits(max_segments=1, segment_rows=10))
    assert [one.elsewhere for one in look_index(open_store(uri), "note", NAME).segments] == [False]
    assert answers(uri) == reference(uri, tmp_path)
    assert files_in(Path(parent)) == before


def test_a_marker_describes_its_segment_and_names_no_credentials(tmp_path: Path) -> None:
    from headgate.connectors.lance.files import end_of

    uri = make_base(tmp_path)
    build_index(open_store(uri), "note", NAME)
    (index_id,) = segments_of(uri)
    metadata = end_of((path_of(uri, index_id) / "metadata.lance").read_bytes()).metadata
    told = json.loads(metadata["headgate.segment"])
    assert (told["fragments"], told["documents"]) == ([0, 1, 2, 3], 160)
    assert set(told) == {
        "fragments",
        "files",
        "documents",
        "fields",
        "dataset_version",
        "index_version",
        "details",
        "release",
        "format",
        "checksum",
    }
