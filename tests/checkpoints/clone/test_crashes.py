"""A clone whose process dies after any store operation: the same call completes it; and stores that fail or lie."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import lance
import pytest

from headgate.connectors.objects import open_store
from headgate.errors import DataLoss, InvalidInput, NotFound
from headgate.shards.home.choice import UndecidedWal, choice_key
from headgate.steps import watching
from headgate.table.table import Table, open_table
from tests.support.clones import (
    CONFIG,
    DIRECT,
    clone_into,
    content,
    faulty,
    files,
    ids,
    objects,
    rows,
    small,
    streamed,
    through,
)
from tests.support.stores import Crash, Fault, FaultyStore, Operation


def _complete(source: Table, uri: str, label: str) -> None:
    """What every crash must end in."""
    with contextlib.suppress(InvalidInput, NotFound):
        # Either there is no table yet, or it is whole.
        assert content(open_table(uri)) == content(source), label
    table_id = clone_into(source, open_store(uri))
    clone = open_table(uri)
    assert clone.table_id == table_id, label
    assert content(clone) == content(source), label
    assert source.checkpoints() == [], label
    held = [tag for tag in lance.dataset(source.uri).tags.list() if tag.endswith(str(table_id))]
    assert held == [f"headgate-clone-{table_id}"], label


def _crash_everywhere(source: Table, tmp_path: Path) -> int:
    # The first clone syncs the base, and the later ones find its mark.
    clone_into(source, open_store(str(tmp_path / "first")))
    at_source, at_target = faulty(source.home.store), faulty(open_store(str(tmp_path / "counted")))
    clone_into(through(source, at_source), at_target)
    before = objects(source.home.store)
    runs = 0
    for side, count in (("source", len(at_source.log)), ("target", len(at_target.log))):
        for number in range(1, count + 1):
            uri = str(tmp_path / f"{side}{number}")
            one = faulty(source.home.store, number if side == "source" else None)
            other = faulty(open_store(uri), number if side == "target" else None)
            with pytest.raises(Crash):
                clone_into(through(source, one), other)
            label = f"a crash after operation {number} of {count} at the {side}"
            _complete(source, uri, label)
            shutil.rmtree(uri)
            runs += 1
    after = {key: size for key, size in objects(source.home.store).items() if "/_refs/tags/" not in key}
    assert after == {key: size for key, size in before.items() if "/_refs/tags/" not in key}
    return runs


def test_a_crash_after_every_store_operation_is_completed_by_the_same_call(tmp_path: Path) -> None:
    assert _crash_everywhere(small(tmp_path / "src"), tmp_path) > 60


@pytest.mark.deep
def test_a_crash_after_every_store_operation_of_a_large_clone(tmp_path: Path) -> None:
    assert _crash_everywhere(streamed(tmp_path / "src")[0], tmp_path) > 100


def test_crash_upon_crash_still_ends_in_one_clone(tmp_path: Path) -> None:
    source, uri = small(tmp_path / "src"), str(tmp_path / "clone")
    crashes = 0
    for number in range(2, 200, 4):
        try:
            clone_into(source, faulty(open_store(uri), number))
            break
        except Crash:
            crashes += 1
    assert crashes > 3
    _complete(source, uri, "after many crashes")


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.LOST_EXISTS])
def test_a_lost_response_to_any_put_is_no_error(tmp_path: Path, fault: Fault) -> None:
    source = small(tmp_path / "src")
    counted = faulty(open_store(str(tmp_path / "counted")))
    clone_into(source, counted)
    puts = counted.verbs().count("put_if_absent")
    assert puts > 5
    for number in range(puts):
        uri = str(tmp_path / f"clone{number}")
        store = faulty(open_store(uri))
        store.script("put_if_absent", *[None] * number, fault)
        clone_into(source, store)
        assert store.injected == 1
        assert content(open_table(uri)) == content(source), number


def test_a_store_that_is_away_for_a_moment_is_asked_again(tmp_path: Path) -> None:
    source, uri = small(tmp_path / "src"), str(tmp_path / "clone")
    store = faulty(open_store(uri))
    asked: set[str] = set()

    def once_each(one: Operation) -> Fault | None:
        if one.verb != "put_overwrite" or one.key in asked:
            return None
        asked.add(one.key)
        return Fault.FAIL

    store.plan = once_each
    clone_into(source, store)
    assert store.injected == len(asked) > 2
    assert content(open_table(uri)) == content(source)


def test_a_crash_at_every_operation_of_choosing_a_wal_store_loses_nothing(tmp_path: Path) -> None:
    source = small(tmp_path / "src")
    clone_into(source, open_store(str(tmp_path / "clone")))

    def chosen(copy: Path, wal: Path, number: int | None) -> FaultyStore:
        """By the open of a writer that was given a new WAL store, through a store that dies."""
        undecided = open_table(str(copy), wal_uri=str(wal)).home.wal_store
        assert isinstance(undecided, UndecidedWal)
        undecided.own = store = faulty(open_store(str(copy)), number)
        undecided.settle()
        return store

    shutil.copytree(tmp_path / "clone", tmp_path / "counted")
    count = len(chosen(tmp_path / "counted", tmp_path / "counted-wal", None).log)
    assert count > 6
    for number in range(1, count + 1):
        copy, wal = tmp_path / f"clone{number}", tmp_path / f"wal{number}"
        shutil.copytree(tmp_path / "clone", copy)
        with pytest.raises(Crash):
            chosen(copy, wal, number)
        assert ids(open_table(str(copy))) == ids(source), number
        decided = (copy / choice_key(open_table(str(copy)).table_id)).exists()
        with open_table(str(copy), wal_uri=str(wal) if decided else None).writer(DIRECT, CONFIG) as writer:
            writer.put(rows(-4))
        assert ids(open_table(str(copy))) == sorted([*ids(source), -4]), number
        shutil.rmtree(copy)


def test_a_crash_while_a_lost_clone_is_removed_leaves_no_table(tmp_path: Path) -> None:
    source = small(tmp_path / "src")
    shard = source.shard(DIRECT)
    manifest = shard.manifests.latest()
    assert manifest is not None
    source.checkpoint(name="then")
    shard.wal.delete(shard.wal_key(manifest.replay_after + 1))
    with pytest.raises(DataLoss):
        source.checkpoint(name="lost")
    counted = faulty(open_store(str(tmp_path / "counted")))
    with pytest.raises(DataLoss):
        clone_into(source, counted, checkpoint="then")
    assert files(tmp_path / "counted") == set()
    for number in range(1, len(counted.log) + 1):
        uri = str(tmp_path / f"clone{number}")
        with pytest.raises((Crash, DataLoss)):
            clone_into(source, faulty(open_store(uri), number), checkpoint="then")
        with pytest.raises(NotFound):
            open_table(uri)


def test_files_that_a_deep_copy_of_lance_left_half_way_do_no_harm(tmp_path: Path) -> None:
    source, _ = streamed(tmp_path / "src")
    uri = str(tmp_path / "clone")

    class Stop(Exception):
        pass

    def pause(step: str) -> None:
        if step == "tagged":
            for found in (Path(source.uri) / "data").iterdir():
                half = Path(uri) / "data" / found.name
                half.parent.mkdir(exist_ok=True)
                half.write_bytes(found.read_bytes()[: found.stat().st_size // 2])
            raise Stop

    with pytest.raises(Stop):
        with watching(pause):
            source.clone(uri, deep=True, names=[DIRECT])
    assert content(source.clone(uri, deep=True, names=[DIRECT])) == content(source)
    shutil.rmtree(source.uri)
    assert ids(open_table(uri))[:2] == [-11, -10]


def test_an_unfinished_clone_whose_pin_was_dropped_is_refused_rather_than_mixed(tmp_path: Path) -> None:
    source, uri = small(tmp_path / "src"), str(tmp_path / "clone")

    class Stop(Exception):
        pass

    def pause(step: str) -> None:
        if step == "shard manifests":
            raise Stop

    with pytest.raises(Stop):
        with watching(pause):
            source.clone(uri, names=[DIRECT])
    (pin,) = source.checkpoints()
    source.drop_checkpoint(pin.checkpoint.name)
    with source.writer(DIRECT, CONFIG) as writer:
        writer.put(rows(-3))
        writer.flush_memtable()
    with pytest.raises(InvalidInput, match="an older state") as refused:
        source.clone(uri, names=[DIRECT])
    assert refused.value.detail["checkpoint"] == pin.checkpoint.name
    with pytest.raises(NotFound):
        open_table(uri)
