"""Compaction on real tables: what it takes in, crashes at every operation, rivals, and others who change the base."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from headgate import parallel
from headgate.checkpoints.jobs.compact import COMPACT_STEPS
from headgate.checkpoints.jobs.policy import BasePolicy, CompactLimits
from headgate.checkpoints.offline.compact import compact_stopped
from headgate.checkpoints.snapshots.snapshot import read_snapshot
from headgate.errors import Fenced, HeadgateError, InvalidInput
from headgate.shards.sharding import bucket
from headgate.steps import watching
from headgate.table.table import Table, open_table
from tests.support.closing import Background, Steps
from tests.support.compactions import (
    KINDS,
    Models,
    append_native,
    claimed,
    faulty,
    in_base,
    keys,
    layered,
    make_table,
    manifest_of,
    one_round,
    open_writer,
    rows,
    scanned,
    shard_of,
    through,
)
from tests.support.datasets import native_pairs, native_writer, pairs
from tests.support.stores import Crash, Fault

STEPS = {
    "key": ["plan", "base", "begin", "deletes", "merge", "sync", "drop"],
    "no key": ["plan", "base", "rows", "intend", "append", "finish", "sync", "drop"],
}
EVERY_STEP = [(kind, step) for kind in KINDS for step in STEPS[kind]]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("models"))


# -- what it does ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_sstables_go_into_the_base_and_the_table_stays_the_same(tmp_path: Path, kind: str) -> None:
    table = make_table(tmp_path / "t", kind)
    expected = layered(table, kind)
    told: list[tuple[str, int, int]] = []
    done = table.compact(progress=lambda *counts: told.append(counts))
    assert (done.sstables, done.rounds) == (3, 1)
    assert [counts for counts in told if counts[0] == "compacting"] == [("compacting", 0, 3), ("compacting", 3, 3)]
    assert manifest_of(table).sstables == ()
    assert scanned(table) == expected
    assert in_base(table) == [pair for pair in expected if pair[1] != "tail"], "all but the tail of the WAL"


@pytest.mark.parametrize("kind", KINDS)
def test_compacting_twice_equals_once(tmp_path: Path, kind: str) -> None:
    table = make_table(tmp_path / "t", kind)
    expected = layered(table, kind)
    table.compact()
    version = lance.dataset(table.uri).version
    assert table.compact().sstables == 0
    assert lance.dataset(table.uri).version == version, "nothing was left to do"
    assert scanned(table) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_flush_and_compact_leave_nothing_fresh_and_native_opens_the_shard(tmp_path: Path, kind: str) -> None:
    table = make_table(tmp_path / "t", kind)
    expected = layered(table, kind)
    assert table.flush() == ""
    assert table.checkpoints() == []
    table.compact()
    assert in_base(table) == expected
    with native_writer(table.uri, shard_of(table).id) as native:
        if kind == "key":
            assert native_pairs(native) == expected
    with open_writer(table) as writer:
        writer.put(rows((8, "after")))
    assert scanned(table) == [*expected, (8, "after")]


def test_a_row_deleted_from_the_base_afterwards_does_not_come_back(tmp_path: Path) -> None:
    """Native's hole 10: an SSTable that is compacted and not dropped shadows the base."""
    table = make_table(tmp_path / "t", "key")
    layered(table, "key")
    table.compact()
    lance.dataset(table.uri).delete("id IN (1, 4)")
    assert scanned(table) == [(2, "c"), (5, "c"), (6, "tail")]


@pytest.mark.parametrize("kind", KINDS)
def test_rounds_are_bounded_by_bytes_and_take_older_sstables_first(tmp_path: Path, kind: str) -> None:
    table = make_table(tmp_path / "t", kind)
    expected = layered(table, kind)
    claims = claimed(table)
    left = []
    while one_round(claims, CompactLimits(max_bytes=1)) is not None:
        left.append([sstable.generation for sstable in manifest_of(table).sstables])
        assert scanned(table) == expected
    assert left == [[2, 3], [3], []]


@pytest.mark.parametrize("kind", KINDS)
def test_the_sstables_of_several_shards_go_in_by_one_commit(tmp_path: Path, kind: str) -> None:
    table = make_table(tmp_path / "t", kind, bucket("id", 3))
    of_buckets = [(2, 3, 4), (0, 12, 14), (1, 5, 6)]
    for (first, second, third), name in zip(of_buckets, table.sharding.known_names(), strict=True):
        with open_writer(table, name) as writer:
            writer.put(rows((first, name), (second, name)))
            writer.flush_memtable()
            if kind == "key":
                writer.delete(keys(first))
            writer.put(rows((third, name)))
            writer.flush_memtable()
    expected = scanned(table)
    done = table.compact()
    assert (done.sstables, done.rounds) == (6, 1)
    assert scanned(table) == in_base(table) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_without_sstables_has_nothing_to_compact_and_nobody_is_fenced(tmp_path: Path, kind: str) -> None:
    table = make_table(tmp_path / "t", kind)
    with open_writer(table) as writer:
        writer.put(rows((1, "a")))
        assert table.backlog() == []
        assert table.compact().rounds == 0
        writer.put(rows((2, "b")))
    assert scanned(table) == [(1, "a"), (2, "b")]


def test_only_deletes_are_taken_in_as_well(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", "key")
    append_native(table, (1, "base"), (2, "base"))
    with open_writer(table) as writer:
        writer.delete(keys(1, 5))
        writer.flush_memtable()
    done = table.compact()
    assert (done.sstables, done.rows, done.deleted) == (1, 0, 1)
    assert scanned(table) == in_base(table) == [(2, "base")]


def test_a_writer_that_a_compaction_fenced_is_told_so(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", "key")
    writer = open_writer(table)
    writer.put(rows((1, "a")))
    writer.flush_memtable()
    writer.put(rows((2, "tail")))
    table.compact()
    with pytest.raises(Fenced):
        writer.put(rows((3, "late")))
    assert scanned(table) == [(1, "a"), (2, "tail")]


def test_a_fenced_writer_whose_rows_are_in_the_base_does_not_look_for_ever(tmp_path: Path) -> None:
    """Its MemTable of generation 1 was flushed and compacted by successors: it cannot show a consistent view."""
    table = make_table(tmp_path / "t", "key")
    writer = open_writer(table)
    writer.put(rows((1, "a")))
    assert pairs(writer.scan()) == [(1, "a")]
    table.flush()
    table.compact()
    with pytest.raises(Fenced):
        writer.scan()


def test_a_table_at_a_checkpoint_cannot_be_compacted(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", "key")
    layered(table, "key")
    table.checkpoint(name="then")
    with pytest.raises(InvalidInput, match="is read-only"):
        open_table(table.uri, checkpoint="then").compact()


# -- crashes -----------------------------------------------------------------------------


def _die_at(step: str, times: int = 1) -> Callable[[str], None]:
    """A pause that is a crash when the step is reached for that time."""
    seen = []

    def pause(reached: str) -> None:
        seen.append(reached)
        if seen.count(step) == times:
            raise Crash(step)

    return pause


def test_the_named_steps_are_all_there_are() -> None:
    assert set(STEPS["key"]) | set(STEPS["no key"]) == set(COMPACT_STEPS)


@pytest.mark.parametrize(("kind", "step"), EVERY_STEP)
def test_a_crash_at_any_step_then_again_gives_the_same_table(
    tmp_path: Path, models: Models, kind: str, step: str
) -> None:
    table, expected = models.copy(tmp_path / "t", kind)
    with pytest.raises(Crash):
        with watching(_die_at(step)):
            one_round(claimed(table))
    assert scanned(table) == expected, "a reader sees the same in between"
    with open_writer(table) as writer:
        writer.put(rows((9, "between")))
        writer.flush_memtable()
    expected = sorted([*expected, (9, "between")])
    assert scanned(table) == expected
    table.compact()
    assert scanned(table) == expected
    assert in_base(table) == expected, "the writer has flushed the tail as well"
    assert manifest_of(table).sstables == ()


def _crash_after_every_operation(tmp_path: Path, models: Models, kind: str, life: Callable[[Table], object]) -> int:
    """The life dies after each store operation of its own, and is lived again. How often it died."""
    number, dying = 0, None
    while dying is None or dying.crashed:
        number += 1
        table, expected = models.copy(tmp_path / f"t{number}", kind)
        dying = faulty(table, crash_after=number)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                parallel, "each", lambda name, call, *items, **_: list(map(call, *items))
            )  # one order every time
            try:
                life(through(table, dying))
            except (Crash, HeadgateError):
                assert dying.crashed, "only the crash may stop it"
        assert scanned(table) == expected, f"after operation {number}"
        life(table)
        assert scanned(table) == expected, f"after operation {number}"
        assert manifest_of(table).sstables == ()
        assert set(in_base(table)) >= {pair for pair in expected if pair[1] != "tail"}
        shutil.rmtree(table.uri)
    return number


@pytest.mark.parametrize("kind", KINDS)
def test_a_crash_after_every_store_operation_of_a_compaction_then_again_gives_the_same_table(
    tmp_path: Path, models: Models, kind: str
) -> None:
    assert _crash_after_every_operation(tmp_path, models, kind, Table.compact) > 30, "the walk went through all of it"


@pytest.mark.deep
@pytest.mark.parametrize("kind", KINDS)
def test_a_crash_after_every_store_operation_of_a_flush_and_a_compaction_then_again_gives_the_same_table(
    tmp_path: Path, models: Models, kind: str
) -> None:
    def life(table: Table) -> None:
        table.flush()
        table.compact()

    assert _crash_after_every_operation(tmp_path, models, kind, life) > 100, "the walk went through all of it"


@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.LOST, Fault.LOST_EXISTS])
@pytest.mark.parametrize("kind", KINDS)
def test_one_fault_at_any_put_of_a_compaction_is_not_felt(
    tmp_path: Path, models: Models, kind: str, fault: Fault
) -> None:
    hit = 0
    for number in range(1, 100):
        table, expected = models.copy(tmp_path / f"t{number}", kind)
        store = faulty(table)
        puts = iter(range(1, 1000))
        store.plan = lambda op, puts=puts, at=number: fault if op.verb == "put_if_absent" and next(puts) == at else None
        slow = through(table, store)
        compact_stopped(slow.home, slow.shard_ids())
        assert scanned(table) == expected
        if not store.injected:
            break
        hit += 1
    assert hit >= 3, "claim, barrier and drop were hit"


@pytest.mark.parametrize("kind", KINDS)
def test_the_base_is_on_disk_before_a_manifest_drops_an_sstable(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(tmp_path / "t", kind)
    layered(table, kind)
    parts = ("data", "_deletions", "_versions", "_transactions")
    before = {str(path) for part in parts for path in (Path(table.uri) / part).glob("*")}
    synced: set[str] = set()
    real = os.fsync

    def noted(handle: int) -> None:
        synced.add(os.readlink(f"/proc/self/fd/{handle}"))
        real(handle)

    monkeypatch.setattr(os, "fsync", noted)
    dropped: list[set[str]] = []

    def pause(step: str) -> None:
        if step == "drop":
            dropped.append(set(synced))

    with watching(pause):
        one_round(claimed(table))
    new = {str(path) for part in parts for path in (Path(table.uri) / part).glob("*")} - before
    assert {Path(path).parent.name for path in new} >= {"data", "_versions", "_transactions"}
    assert new <= dropped[0], "files"
    assert {str(Path(path).parent) for path in new} <= dropped[0], "folders"


# -- readers -----------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "step"), EVERY_STEP)
def test_a_reader_at_any_step_sees_every_row_once(tmp_path: Path, models: Models, kind: str, step: str) -> None:
    table, expected = models.copy(tmp_path / "t", kind)
    seen: list[Any] = []

    def pause(reached: str) -> None:
        if reached == step:
            seen.append(scanned(table))

    with watching(pause):
        one_round(claimed(table))
    assert seen
    assert all(found == expected for found in seen)


@pytest.mark.parametrize("reader_step", ["logs", "base"])
@pytest.mark.parametrize(
    ("kind", "step"),
    [("key", "deletes"), ("key", "merge"), ("key", "sync"), ("no key", "append"), ("no key", "finish")],
)
def test_a_reader_that_began_before_a_flush_and_a_compaction_sees_one_instant(
    tmp_path: Path, kind: str, step: str, reader_step: str
) -> None:
    """It has old manifests, and a base in which deletes, rows or both of later batches are: never a mixture."""
    table = make_table(tmp_path / "t", kind)
    append_native(table, *((number, "base") for number in range(10)))
    with open_writer(table) as writer:
        writer.put(rows((1, "old"), (20, "old")))
    before = scanned(table)
    steps = Steps(reader_step)
    reader = Background(lambda: pairs(watching(steps)(read_snapshot)(table.home, table.shard_ids()).scan()))
    steps.wait()
    with open_writer(table) as writer:
        stored = table.home.schema.stored_rows(rows((1, "new"), (30, "new")))
        if kind == "key":
            stored += table.home.schema.stored_deletes(keys(2, 3, 20))
        writer.append(stored)  # one entry, hence all or nothing
        writer.flush_memtable()
    after = scanned(table)
    assert after != before
    with pytest.raises(Crash):
        with watching(_die_at(step)):
            one_round(claimed(table))
    steps.release()
    assert reader.result() in (before, after)


# -- rivals ------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "step"), EVERY_STEP)
def test_a_compactor_that_stalls_at_any_step_takes_nothing_from_its_successor(
    tmp_path: Path, models: Models, kind: str, step: str
) -> None:
    """The successor compacts, puts keys again that the stalled one would delete, and compacts once more."""
    table, _ = models.copy(tmp_path / "t", kind)
    steps = Steps(step)
    claims = claimed(table)
    with watching(steps):
        stalled = Background(lambda: one_round(claims))
    steps.wait()
    table.compact()
    with open_writer(table) as writer:
        writer.put(rows((3, "again"), (77, "again"), (1, "again")))
        writer.flush_memtable()
    table.compact()
    expected = scanned(table)
    assert (3, "again") in expected
    steps.release()
    with suppress(HeadgateError):
        stalled.result()
    assert scanned(table) == expected
    table.flush()
    table.compact()
    assert scanned(table) == in_base(table) == expected


@pytest.mark.parametrize(("kind", "step"), EVERY_STEP)
def test_a_compactor_that_lands_late_is_seen_by_its_successor(
    tmp_path: Path, models: Models, kind: str, step: str
) -> None:
    """Two compactors of the same SSTables: the second one stands at each of its steps while the first one goes on."""
    table, expected = models.copy(tmp_path / "t", kind)
    first_claims, first_steps = claimed(table), Steps({"key": "merge", "no key": "append"}[kind])
    with watching(first_steps):
        first = Background(lambda: one_round(first_claims))
    first_steps.wait()
    second_claims, second_steps = claimed(table), Steps(step)
    with watching(second_steps):
        second = Background(lambda: one_round(second_claims))
    second_steps.wait()
    first_steps.release()
    with pytest.raises(HeadgateError):
        first.result()
    assert scanned(table) == expected
    second_steps.release()
    second.result()
    assert scanned(table) == expected
    assert manifest_of(table).sstables == ()
    assert in_base(table) == [pair for pair in expected if pair[1] != "tail"]


# -- others change the base ----------------------------------------------------------------


def _compact_natively(table: Table) -> None:
    lance.dataset(table.uri).optimize.compact_files(target_rows_per_fragment=1000)


CHANGES: dict[str, Callable[[Table], object]] = {
    "append": lambda table: append_native(table, (200, "other")),
    "delete": lambda table: lance.dataset(table.uri).delete("id = 70"),
    "update": lambda table: lance.dataset(table.uri).update({"note": "'updated'"}, where="id = 71"),
    "index": lambda table: lance.dataset(table.uri).create_scalar_index("id", "BTREE", replace=True),
    "full-text index": lambda table: lance.dataset(table.uri).create_scalar_index("note", "INVERTED", replace=True),
    "compaction": _compact_natively,
    "configuration": lambda table: lance.dataset(table.uri).update_config({"their": "key"}),
    "added column": lambda table: lance.dataset(table.uri).add_columns(pa.field("more", pa.int32())),
    "renamed column": lambda table: lance.dataset(table.uri).alter_columns({"path": "note", "name": "text"}),
}


def _expected_after(change: str, expected: list[tuple[int, str]]) -> list[tuple[int, str]]:
    if change == "append":
        return sorted([*expected, (200, "other")])
    if change == "delete":
        return [pair for pair in expected if pair[0] != 70]
    return [(i, "updated") if change == "update" and i == 71 else (i, note) for i, note in expected]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", KINDS)
def test_what_others_do_to_the_base_at_any_step_stands_and_nothing_is_lost(
    tmp_path: Path, models: Models, kind: str, change: str
) -> None:
    for step in STEPS[kind][2:6]:
        table, expected = models.copy(tmp_path / step, kind)
        done: list[str] = []

        def pause(reached: str, step: str = step, table: Table = table, done: list[str] = done) -> None:
            if reached == step and not done:
                done.append(step)
                CHANGES[change](table)

        with watching(pause):
            one_round(claimed(table))
        assert done
        now = open_table(table.uri)
        text = "text" if change == "renamed column" else "note"
        found = now.scan().read_all().rename_columns({text: "note"})
        assert pairs(found) == _expected_after(change, expected), step
        assert manifest_of(now).sstables == ()
        now.compact(policy=BasePolicy(small_rows=1000, max_small=2))
        found = now.scan().read_all().rename_columns({text: "note"})
        assert pairs(found) == _expected_after(change, expected), step
