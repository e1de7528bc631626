"""Full-text indexes are kept: what a compaction takes in is covered after it, whatever dies on the way."""

from __future__ import annotations

import contextlib
import itertools
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pytest

import headgate
from headgate.checkpoints.jobs.policy import BasePolicy
from headgate.connectors.lance.index import look_index
from headgate.connectors.objects import open_store
from headgate.errors import HeadgateError, InvalidInput, Transient
from headgate.search.build.build import BUILD_STAGES, build_index
from headgate.search.build.jobs import in_process
from headgate.search.build.plan import Limits
from headgate.search.build.upkeep import index_base, neglected
from headgate.shards.home.home import home_at
from headgate.steps import watching
from headgate.table.table import Table
from tests.support.datasets import LanceFaultyStore
from tests.support.indexes import (
    NAME,
    SCHEMA,
    WORDS,
    Answers,
    answers,
    append,
    coverage,
    files_in,
    fragments_of,
    makers_of_orphans,
    reference,
    texts,
)
from tests.support.stores import Crash

KINDS = ["id", None]
EAGER = BasePolicy(small_rows=10**6, max_small=3, target_rows=10**6)
"""Small fragments are merged as soon as there are three."""


def make(path: Path, key: str | None = None) -> Table:
    """Two fragments in the base, one of them indexed, two SSTables above it, and a tail."""
    table = headgate.create_table(str(path / "table"), SCHEMA, primary_key=key, full_text="note")
    append(table.uri, 40, 0)
    table.build_index("note")
    append(table.uri, 20, 40)
    with table.writer("single") as writer:
        for start in (50, 100):
            writer.put(texts(30, start).to_batches()[0])
            writer.flush_memtable()
        writer.put(texts(5, 500).to_batches()[0])
    return table


def rows(table: Table) -> Counter[tuple[int, str]]:
    found = table.scan().read_all()
    return Counter(zip(found.column("id").to_pylist(), found.column("note").to_pylist(), strict=True))


Hits = dict[str, list[int]]


def hits_of(found: Answers) -> Hits:
    """Scores aside: of rows that were replaced, segments keep the words until they are merged."""
    return {query: [row for row, _ in hits] for query, hits in found.items()}


def check(table: Table, expected: Counter[tuple[int, str]], hits: Hits) -> None:
    """The rows are the same, every fragment is covered once, and native finds what one index would."""
    assert rows(table) == expected
    assert coverage(table.uri) == fragments_of(table.uri)
    assert hits_of(answers(table.uri)) == hits
    assert neglected(table.home) == ()


@pytest.mark.parametrize("key", KINDS)
def test_what_a_compaction_takes_in_is_indexed_and_again_is_nothing(tmp_path: Path, key: str | None) -> None:
    table = make(tmp_path, key)
    before, told = rows(table), list[str]()
    done = table.compact(progress=lambda stage, count, total: told.append(stage))
    assert (done.sstables, done.indexed) == (2, 1)
    assert list(dict.fromkeys(told)) == ["compacting", *(f"index: {stage}" for stage in BUILD_STAGES)]
    check(table, before, hits_of(reference(table.uri, tmp_path)))
    files = {name for name in files_in(Path(table.uri)) if name.startswith(("_indices", "_versions"))}
    again = table.compact()
    assert (again.sstables, again.indexed) == (0, 0)
    assert {name for name in files_in(Path(table.uri)) if name.startswith(("_indices", "_versions"))} == files


@pytest.mark.parametrize("key", KINDS)
def test_a_crash_at_every_step_after_the_rows_are_in_then_again_gives_the_same_table(
    tmp_path: Path, key: str | None
) -> None:
    model = make(tmp_path / "model", key)
    expected = rows(model)
    reached: list[str] = []
    whole = copied(model, tmp_path / "whole")
    with watching(reached.append):
        whole.compact(policy=EAGER)
    hits = hits_of(reference(whole.uri, tmp_path))
    assert reached.index("tidy") < reached.index("index") < reached.index("decided") < reached.index("done")
    # The steps before are those of a compaction alone, whose crashes have tests of their own.
    places = [(step, reached[: at + 1].count(step)) for at, step in enumerate(reached) if at > reached.index("tidy")]
    for number, place in enumerate(places):
        table = copied(model, tmp_path / f"{number}")
        with pytest.raises(Crash):
            with watching(dying_at(*place)):
                table.compact(policy=EAGER)
        assert rows(table) == expected, f"after a crash at {place}"
        table.compact(policy=EAGER)
        check(table, expected, hits)
        shutil.rmtree(table.uri)


def test_a_crash_after_every_store_operation_of_indexing_then_again_gives_the_same_table(tmp_path: Path) -> None:
    model = make(tmp_path / "model")
    model.compact(policy=EAGER)
    append(model.uri, 30, 900)
    expected, hits = rows(model), hits_of(reference(model.uri, tmp_path))
    for number in itertools.count(1):
        table = copied(model, tmp_path / f"{number}")
        store = LanceFaultyStore(open_store(table.uri), crash_after=number)
        with contextlib.suppress(Crash):
            index_base(replace(table.home, store=store))
        if not store.crashed:
            break
        table.compact(policy=replace(EAGER, keep_versions=timedelta(0)))
        check(table, expected, hits)
        table.collect_garbage(min_age=timedelta(0), apply=True)
        segments = look_index(table.home.store, "note", NAME).segments
        makers = makers_of_orphans(table.uri, (one.index_id for one in segments))
        assert makers <= {"maker"}, "no orphan is left, but where its maker had won and may still commit it"
        check(table, expected, hits)
        shutil.rmtree(table.uri)
    assert number > 15, "the crashes did not reach the whole way"


def test_every_index_of_the_base_is_kept_and_none_is_made_that_nobody_has(tmp_path: Path) -> None:
    uri = str(tmp_path / "table")
    lance.write_dataset(texts(30).append_column("title", texts(30, 7).column("note")), uri)
    home = home_at(uri)
    assert (neglected(home), index_base(home).segments) == ((), 0)
    assert list(lance.dataset(uri).describe_indices()) == []
    for column in ("note", "title"):
        lance.dataset(uri).create_scalar_index(column, "INVERTED", name=f"{column}_by_hand", with_position=True)
    lance.write_dataset(texts(20, 50).append_column("title", texts(20, 70).column("note")), uri, mode="append")
    assert set(neglected(home)) == {"note", "title"}
    done = index_base(home)
    assert (set(done.columns), done.segments) == ({"note", "title"}, 2)
    assert neglected(home) == ()
    described = {index.name: index for index in lance.dataset(uri).describe_indices()}
    assert set(described) == {"note_by_hand", "title_by_hand"}
    assert all(index.details["with_position"] for index in described.values())
    covered = {name: {one for part in index.segments for one in part.fragment_ids} for name, index in described.items()}
    assert covered == {"note_by_hand": {0, 1}, "title_by_hand": {0, 1}}


def test_one_index_that_fails_does_not_keep_the_others_from_being_kept(tmp_path: Path) -> None:
    uri = str(tmp_path / "table")
    lance.write_dataset(texts(30).append_column("title", texts(30, 7).column("note")), uri)
    for column in ("note", "title"):
        lance.dataset(uri).create_scalar_index(column, "INVERTED")
    lance.write_dataset(texts(20, 50).append_column("title", texts(20, 70).column("note")), uri, mode="append")

    def runner(jobs: object, report: object) -> object:
        if jobs[0].column == "note":  # type: ignore[index]
            raise Transient("Away.")
        return in_process(jobs, report)  # type: ignore[arg-type]

    with pytest.raises(Transient, match=r"Away.*note"):
        index_base(home_at(uri), runner=runner)  # type: ignore[arg-type]
    assert neglected(home_at(uri)) == ("note",)


def test_a_compaction_whose_indexing_fails_says_that_the_rows_are_in(tmp_path: Path) -> None:
    table = make(tmp_path)
    before = rows(table)

    def fail(step: str) -> None:
        if step == "decided":
            raise Transient("The store is away.")

    with pytest.raises(HeadgateError, match="the SSTables were merged") as raised:
        with watching(fail):
            table.compact()
    assert raised.value.advice is not None
    assert "headgate index build" in raised.value.advice
    assert table.backlog() == []
    assert table.compact().indexed == 1
    check(table, before, hits_of(reference(table.uri, tmp_path)))


def test_increments_stay_few_segments_over_64_compactions(tmp_path: Path) -> None:
    """So that a query's time stays flat; `benchmarks/search` has the times."""
    uri = str(tmp_path / "table")
    lance.write_dataset(texts(20), uri)
    build_index(open_store(uri), "note", NAME)
    limits = Limits(max_segments=4, segment_rows=400, task_rows=20)
    seen = []
    for number in range(1, 65):
        append(uri, 20, 100 * number)
        index_base(home_at(uri), limits=limits)
        seen.append(len(look_index(open_store(uri), "note", NAME).segments))
    assert coverage(uri) == fragments_of(uri)
    assert max(seen) <= 4
    assert answers(uri) == reference(uri, tmp_path)


def test_stop_words_of_ones_own_are_kept(tmp_path: Path) -> None:
    """A dataset's description leaves them out, and segments without them would fail every query."""
    own: dict[str, Any] = {"custom_stop_words": WORDS[:20]}
    uri = str(tmp_path / "table")
    lance.write_dataset(texts(30), uri)
    lance.dataset(uri).create_scalar_index("note", "INVERTED", name=NAME, **own)
    append(uri, 20, 100)
    index_base(home_at(uri))
    assert coverage(uri) == fragments_of(uri)
    assert answers(uri, WORDS[:1]) == {WORDS[0]: []}
    build_index(open_store(uri), "note", NAME, parameters=own, limits=Limits(max_segments=1))
    with pytest.raises(InvalidInput, match="custom_stop_words"):
        build_index(open_store(uri), "note", NAME, parameters={"custom_stop_words": ["w1"]})
    build_index(open_store(uri), "note", NAME, rebuild=True)
    assert answers(uri) == reference(uri, tmp_path, **own)


def copied(table: Table, path: Path) -> Table:
    shutil.copytree(table.uri, path)
    return headgate.open_table(str(path))


def dying_at(step: str, time: int) -> Callable[[str], None]:
    """Dies when the step is reached for the so-manieth time."""
    seen: Counter[str] = Counter()

    def die(reached: str) -> None:
        seen[reached] += 1
        if reached == step and seen[step] == time:
            raise Crash(step)

    return die
