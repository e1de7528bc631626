"""The base stays in few fragments and versions; what a tag, a checkpoint or a reader needs stays."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import lance
import pytest

from headgate.checkpoints.gc.base import Tidied, tidy_base
from headgate.checkpoints.jobs.policy import BasePolicy
from headgate.errors import Transient
from headgate.steps import watching
from headgate.table.table import Table, open_table
from tests.support.compactions import (
    KINDS,
    append_native,
    claimed,
    layered,
    make_table,
    one_round,
    open_writer,
    rows,
    scanned,
)
from tests.support.datasets import pairs
from tests.support.stores import Crash

MERGE = BasePolicy(small_rows=100, max_small=3, target_rows=1000)
NO_VERSIONS = BasePolicy(max_small=1000, keep_versions=timedelta(0))


def versions(table: Table) -> list[int]:
    return [one["version"] for one in lance.dataset(table.uri).versions()]


def fragments(table: Table) -> int:
    return len(lance.dataset(table.uri).get_fragments())


def grown(table: Table, times: int = 4) -> None:
    for number in range(times):
        append_native(table, (number, "base"))


def test_small_fragments_are_merged_once_there_are_enough(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", "key")
    grown(table, 2)
    assert tidy_base(table.home, MERGE) == Tidied(2, 2)
    grown(table, 2)
    before = scanned(table)
    assert tidy_base(table.home, MERGE) == Tidied(4, 1)
    assert fragments(table) == 1
    assert scanned(table) == before


def test_a_large_fragment_is_left_alone_until_it_is_hollow(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", "key")
    append_native(table, *((number, "large") for number in range(200)))
    large = lance.dataset(table.uri).get_fragments()[0].metadata.files[0].path
    grown(table, 3)
    tidy_base(table.home, MERGE)
    assert fragments(table) == 2
    assert large in {one.metadata.files[0].path for one in lance.dataset(table.uri).get_fragments()}
    lance.dataset(table.uri).delete("id >= 100")
    tidy_base(table.home, MERGE)
    assert sum(one.num_deletions for one in lance.dataset(table.uri).get_fragments()) == 0


@pytest.mark.parametrize("step", ["fragments", "merge fragments", "commit fragments", "versions", "remove versions"])
def test_a_crash_at_any_step_changes_nothing_that_is_read(tmp_path: Path, step: str) -> None:
    table = make_table(tmp_path / "t", "key")
    grown(table)
    before = scanned(table)

    def pause(reached: str) -> None:
        if reached == step:
            raise Crash(step)

    policy = BasePolicy(small_rows=100, max_small=3, target_rows=1000, keep_versions=timedelta(0))
    with pytest.raises(Crash):
        with watching(pause):
            tidy_base(table.home, policy)
    assert scanned(table) == before
    tidy_base(table.home, policy)
    assert scanned(table) == before
    assert (fragments(table), len(versions(table))) == (1, 1)


def test_a_merge_that_others_overtook_is_given_up_and_done_the_next_time(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", "key")
    grown(table)

    def pause(reached: str) -> None:
        if reached == "commit fragments":
            lance.dataset(table.uri).delete("id = 1")

    with pytest.raises(Transient):
        with watching(pause):
            tidy_base(table.home, MERGE)
    expected = [(number, "base") for number in (0, 2, 3)]
    assert scanned(table) == expected
    tidy_base(table.home, MERGE)
    assert (scanned(table), fragments(table)) == (expected, 1)


def test_a_version_that_was_just_replaced_stays_whatever_its_own_age(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", "key")
    grown(table, 2)
    newest = versions(table)
    kept = BasePolicy(keep_versions=timedelta(hours=1))
    assert tidy_base(table.home, kept).versions_removed == 0
    assert versions(table) == newest
    assert tidy_base(table.home, NO_VERSIONS).versions_removed == len(newest) - 1
    assert versions(table) == newest[-1:]


def test_a_version_that_a_tag_or_a_checkpoint_holds_stays(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", "key")
    grown(table, 2)
    held = scanned(table)
    taken = table.checkpoint()
    append_native(table, (50, "base"))
    lance.dataset(table.uri).tags.create("mine", lance.dataset(table.uri).version)
    lance.dataset(table.uri).delete("id < 2")
    layered(table, "key")
    table.compact(policy=NO_VERSIONS)
    assert len(versions(table)) == 3
    assert pairs(open_table(table.uri, checkpoint=taken.name).scan()) == held
    assert lance.dataset(table.uri, version="mine").count_rows() == 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_reads_the_same_after_compaction_removal_of_versions_and_collection(
    tmp_path: Path, kind: str
) -> None:
    table = make_table(tmp_path / "t", kind)
    append_native(table, (70, "base"), (2, "base"))
    layered(table, kind)
    expected = scanned(table)
    taken = table.checkpoint()
    table.flush()
    table.compact(policy=NO_VERSIONS)
    with open_writer(table) as writer:
        writer.put(rows((1, "later"), (80, "later")))
        writer.flush_memtable()
    table.compact(policy=NO_VERSIONS)
    table.collect_garbage(min_age=timedelta(0), apply=True)
    assert pairs(open_table(table.uri, checkpoint=taken.name).scan()) == expected
    table.drop_checkpoint(taken.name)
    table.compact(policy=NO_VERSIONS)
    table.collect_garbage(min_age=timedelta(0), apply=True)
    assert len(versions(table)) == 1
    assert (1, "later") in scanned(table)


def test_no_version_goes_while_an_append_is_unfinished(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", "no key")
    layered(table, "no key")

    def pause(reached: str) -> None:
        if reached == "append":
            raise Crash(reached)

    with pytest.raises(Crash):
        with watching(pause):
            one_round(claimed(table))
    before = versions(table)
    assert tidy_base(table.home, NO_VERSIONS).versions_removed == 0
    assert versions(table) == before
    table.compact(policy=NO_VERSIONS)
    assert len(versions(table)) == 1
