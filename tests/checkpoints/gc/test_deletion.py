"""A machine sleeps for hours between two steps, and another one collects meanwhile: nothing is lost (R20).

A sleep is simulated by ageing every object of the table, so that no age protects anything.
"""

from __future__ import annotations

import os
from collections import Counter
from datetime import timedelta
from pathlib import Path

import lance
import pytest

from headgate.checkpoints.clone.intent import read_intent
from headgate.checkpoints.gc.base import tidy_base
from headgate.checkpoints.gc.collect import COLLECT_STEPS, collect
from headgate.checkpoints.gc.report import Collection
from headgate.checkpoints.jobs.policy import BasePolicy
from headgate.checkpoints.log.pins import ConsumerPin, PinStore
from headgate.checkpoints.snapshots.take import TAKE_STEPS, drop, take
from headgate.connectors.lance.base.tags import held_versions
from headgate.connectors.objects import open_store
from headgate.errors import HeadgateError, InvalidInput
from headgate.shards.outcomes import wins
from headgate.shards.shard import Shard
from headgate.steps import watching
from headgate.table.table import Table, open_table
from tests.support.closing import Background, Steps
from tests.support.tables import CONFIG, DIRECT, faulty, ids, make, manifest_of, rows, through

HOUR = timedelta(hours=1)
ALL = Counter(range(100))


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return make(tmp_path)


@pytest.fixture
def shard(table: Table) -> Shard:
    return table.home.shard(DIRECT)


def hours_pass(table: Table) -> None:
    """As if every object had been there for two hours more."""
    for path in Path(table.uri).rglob("*"):
        if path.is_file():
            then = path.stat().st_mtime - 2 * 3600
            os.utime(path, (then, then))


def collected(table: Table) -> None:
    """Hours later, by another machine, with the default age."""
    hours_pass(table)
    table.collect_garbage(min_age=HOUR, apply=True)


def fresh(table: Table) -> Counter[int]:
    """What another process reads."""
    return ids(open_table(table.uri))


# -- a flush sleeps ----------------------------------------------------------------------


FLUSH_STEPS = [("list", "/manifest"), ("get", "/manifest"), ("put_if_absent", "/manifest")]


@pytest.mark.parametrize(("verb", "key"), FLUSH_STEPS, ids=["before its look", "before it reads", "before its commit"])
@pytest.mark.parametrize("rival", [False, True], ids=["alone", "with a successor"])
def test_a_flush_that_slept_commits_nothing_that_was_collected(
    table: Table, shard: Shard, verb: str, key: str, rival: bool
) -> None:
    store = faulty(table)
    writer = through(table, store).writer(DIRECT, CONFIG)
    for start in range(0, 100, 20):
        writer.put(rows(*range(start, start + 20)))
    stall = store.stall(verb, key)
    sleeper = Background(writer.flush_memtable)
    stall.wait()
    assert list(Path(table.uri).glob("_mem_wal/*/*_gen_1")), "the SSTable is there, and no manifest names it"
    collected(table)
    if rival:
        with table.writer(DIRECT, CONFIG) as successor:
            successor.flush_memtable()
        collected(table)
    stall.release()
    if rival:
        with pytest.raises(HeadgateError):
            sleeper.result()
    else:
        sleeper.result()
        writer.close()
    assert fresh(table) == ALL
    collected(table)
    collected(table)
    assert fresh(table) == ALL
    named = {sstable.path for sstable in manifest_of(shard).sstables}
    assert set(table.home.store.list_folders(f"_mem_wal/{shard.id}/")) == {"manifest", "wal", *named}


@pytest.mark.parametrize("step", COLLECT_STEPS)
def test_a_collection_that_slept_takes_nothing_that_a_flush_has_named_since(
    table: Table, shard: Shard, step: str
) -> None:
    """It had listed the SSTable, or not; read the manifest, or not."""
    store = faulty(table)
    writer = through(table, store).writer(DIRECT, CONFIG)
    writer.put(rows(*range(100)))
    stall = store.stall("put_if_absent", "/manifest/")
    flush = Background(writer.flush_memtable)
    stall.wait()
    hours_pass(table)
    slept: list[str] = []

    def sleep(at: str) -> None:
        if at == step:
            slept.append(at)
            stall.release()
            flush.result()
            writer.close()
            hours_pass(table)

    with watching(sleep):
        collect(table.home, table.shard_ids(), min_age=HOUR, apply=True)
    assert slept == [step]
    collected(table)
    collected(table)
    assert fresh(table) == ALL


# -- a checkpoint being taken sleeps --------------------------------------------------------


def flushed(table: Table) -> None:
    with table.writer(DIRECT, CONFIG) as writer:
        writer.put(rows(*range(100)))
        writer.flush_memtable()


@pytest.mark.parametrize("step", TAKE_STEPS)
def test_a_checkpoint_that_slept_holds_what_it_names_or_is_taken_anew(table: Table, step: str) -> None:
    flushed(table)
    slept: list[str] = []

    def sleep(at: str) -> None:
        if at == step and not slept:
            slept.append(at)
            table.compact()
            collected(table)
            collected(table)

    with watching(sleep):
        take(table.home, table.shard_ids(), name="now")
    assert slept
    assert ids(open_table(table.uri, checkpoint="now")) == ALL
    collected(table)
    assert ids(open_table(table.uri, checkpoint="now")) == ALL


@pytest.mark.parametrize("gc_sleeps_at", COLLECT_STEPS)
@pytest.mark.parametrize("dropped_at", ["tag", "check", "taken"])
def test_a_collection_that_slept_takes_nothing_that_a_checkpoint_holds_since(
    table: Table, gc_sleeps_at: str, dropped_at: str
) -> None:
    """The checkpoint is taken while a collection sleeps, and compaction drops its SSTable at the worst moment."""
    flushed(table)
    hours_pass(table)

    def compact(at: str) -> None:
        if at == dropped_at and manifest_of(table.home.shard(DIRECT)).sstables:
            table.compact()
            hours_pass(table)

    def sleep(at: str) -> None:
        if at == gc_sleeps_at:
            with watching(compact):
                take(table.home, table.shard_ids(), name="now")

    with watching(sleep):
        collect(table.home, table.shard_ids(), min_age=HOUR, apply=True)
    assert ids(open_table(table.uri, checkpoint="now")) == ALL


@pytest.mark.parametrize("gc_sleeps_at", COLLECT_STEPS)
@pytest.mark.parametrize("step", TAKE_STEPS)
def test_a_collection_that_slept_leaves_the_tag_of_a_checkpoint_that_was_being_taken(
    table: Table, step: str, gc_sleeps_at: str
) -> None:
    """It begins in the middle of the take, without any age, and wakes when the checkpoint is reported as taken."""
    flushed(table)
    table.compact()
    sleep = Steps(gc_sleeps_at)
    sleepers: list[Background[Collection]] = []

    def begin(at: str) -> None:
        if at == step and not sleepers:
            gc = Background(
                lambda: watching(sleep)(collect)(table.home, table.shard_ids(), min_age=timedelta(0), apply=True)
            )
            sleepers.append(gc)
            sleep.wait()

    with watching(begin):
        taken = take(table.home, table.shard_ids(), name="now")
    sleep.release()
    sleepers[0].result()
    lance.write_dataset(rows(100), table.uri, mode="append")
    tidy_base(table.home, BasePolicy(keep_versions=timedelta(0)))
    assert held_versions(table.home.store) == {taken.tag: taken.base_version}
    assert ids(open_table(table.uri, checkpoint="now")) == ALL


# -- a name that is used again ----------------------------------------------------------------


@pytest.mark.parametrize("step", COLLECT_STEPS)
def test_a_collection_that_slept_drops_no_checkpoint_that_was_retaken_under_the_name(table: Table, step: str) -> None:
    flushed(table)
    take(table.home, table.shard_ids(), name="nightly", expires_after=60)
    hours_pass(table)

    def sleep(at: str) -> None:
        if at == step:
            drop(table.home, "nightly")
            take(table.home, table.shard_ids(), name="nightly")

    with watching(sleep):
        collect(table.home, table.shard_ids(), min_age=HOUR, apply=True)
    (left,) = table.checkpoints()
    assert left.checkpoint.expires_after is None
    assert ids(open_table(table.uri, checkpoint="nightly")) == ALL


def test_a_checkpoint_of_an_earlier_release_is_listed_dropped_and_collected(table: Table) -> None:
    flushed(table)

    def put_as_before(name: str, expires_after: float | None = None) -> None:
        taken = take(table.home, table.shard_ids(), name=name, expires_after=expires_after)
        (stored,) = [one for one in table.checkpoints() if one.checkpoint == taken]
        data = bytes(table.home.records.get(stored.key))
        table.home.records.delete(stored.key)
        table.home.records.put_if_absent(f"checkpoints/{name}.json", data)

    put_as_before("old")
    assert ids(open_table(table.uri, checkpoint="old")) == ALL
    with pytest.raises(InvalidInput, match="Checkpoint 'old' exists already"):
        take(table.home, table.shard_ids(), name="old")
    table.compact()
    collected(table)
    assert ids(open_table(table.uri, checkpoint="old")) == ALL
    drop(table.home, "old")
    put_as_before("brief", expires_after=60)
    collected(table)
    assert table.checkpoints() == []
    assert fresh(table) == ALL


@pytest.mark.parametrize("step", COLLECT_STEPS)
def test_a_collection_that_slept_drops_no_pin_of_a_consumer_that_came_back(table: Table, step: str) -> None:
    flushed(table)
    pins = PinStore(table.home.records, table.uri)
    pins.put(ConsumerPin(consumer="mirror", number=1, run_id="a", expires_after=60))
    hours_pass(table)

    def sleep(at: str) -> None:
        if at == step:
            table.collect_garbage(min_age=HOUR, apply=True)
            before = pins.newest("mirror")
            number = 1 if before is None else before.pin.number + 1
            pins.put(ConsumerPin(consumer="mirror", number=number, run_id="b", expires_after=1e6))

    with watching(sleep):
        collect(table.home, table.shard_ids(), min_age=HOUR, apply=True)
    left = pins.newest("mirror")
    assert left is not None
    assert left.pin.run_id == "b"


# -- a clone that was given up -------------------------------------------------------------------


def test_a_clone_that_slept_is_not_completed_once_another_caller_has_given_it_up(table: Table, tmp_path: Path) -> None:
    flushed(table)
    target = open_store(str(tmp_path / "clone"))

    def give_up(at: str) -> None:
        if at == "recorded":
            intent = read_intent(target)
            assert intent is not None
            assert wins(target, intent.outcome, "collector")

    with pytest.raises(InvalidInput, match="meanwhile"):
        with watching(give_up):
            table.clone(target.uri, names=[DIRECT])
    with pytest.raises(HeadgateError):
        open_table(target.uri)
