"""A crash after every store operation of a checkpoint: the table stays the same, and taking it again completes it."""

from __future__ import annotations

import contextlib
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import lance
import pytest

import headgate
from headgate.checkpoints.gc.base import tidy_base
from headgate.checkpoints.jobs.flush import run_here
from headgate.checkpoints.jobs.policy import BasePolicy
from headgate.checkpoints.snapshots.checkpoint import TAG_PREFIX
from headgate.checkpoints.snapshots.snapshot import visible_now
from headgate.checkpoints.snapshots.take import TAKE_STEPS, take
from headgate.checkpoints.stream.checkpoint import checkpoint_stream, stop_stream
from headgate.connectors.lance.base.tags import held_versions
from headgate.errors import DataLoss, HeadgateError, InvalidInput, Transient
from headgate.steps import watching
from headgate.table.fsck import fsck
from headgate.table.table import Table
from tests.support.datasets import LanceFaultyStore
from tests.support.stores import Crash, Fault
from tests.support.tables import (
    DIRECT,
    copied,
    faulty,
    ids,
    make,
    manifest_of,
    of_batches,
    open_stream,
    rows,
    run_batch,
    shard_of,
    through,
    tip_of,
)

MB = 1 << 20
MODEL = of_batches(range(2), [0]) + Counter([-1, -2])

Life = Callable[[Table, Callable[[], None]], None]
"""One process at work; it calls back when the part begins that is to be crashed."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """A stream of two batches, one flushed, one with a dead entry; a direct writer with a flushed row and one more."""
    table = make(tmp_path_factory.mktemp("model"))
    driver = open_stream(table, [0])
    run_batch(driver, 0, [0])
    driver.close_gaps(driver.settle(run_here, MB))
    run_batch(driver, 1, [0], attempts=2)
    with table.writer(DIRECT) as writer:
        writer.put(rows(-1))
        writer.flush_memtable()
        writer.put(rows(-2))
    assert ids(table) == MODEL
    return table


def durable(table: Table, begin: Callable[[], None] = lambda: None) -> None:
    begin()
    take(table.home, table.shard_ids(), name="now")


def stopped(table: Table, begin: Callable[[], None] = lambda: None) -> None:
    begin()
    table.checkpoint("all", name="now")


def running(table: Table, begin: Callable[[], None] = lambda: None) -> None:
    driver = open_stream(table, ())
    begin()
    checkpoint_stream(driver, table.shard_ids(), run_here, max_bytes=MB, keep=1)


def clean_stop(table: Table, begin: Callable[[], None] = lambda: None) -> None:
    driver = open_stream(table, ())
    begin()
    stop_stream(driver, table.shard_ids(), run_here, max_bytes=MB, keep=1)


def dying(model: Table, path: Path, life: Life, stride: int) -> Iterator[tuple[Table, LanceFaultyStore]]:
    """The table after a process died at each of its operations, the last time after it lived to its end."""
    for number in range(1, 10_000, stride):
        table = copied(model, path / f"run-{number}")
        store = faulty(table)

        def begin(store: LanceFaultyStore = store, number: int = number) -> None:
            store.crash_after = len(store.log) + number

        with contextlib.suppress(Crash, HeadgateError):
            life(through(table, store), begin)
        yield table, store
        shutil.rmtree(table.uri)
        if not store.crashed:
            return


def check(table: Table, *, closed: bool) -> None:
    """What every reader may rely on; `closed`: and the stream's shard has no gap."""
    assert ids(table) == MODEL
    for one in table.checkpoints():
        assert ids(headgate.open_table(table.uri, checkpoint=one.checkpoint.name)) == MODEL
    if closed:
        shard = shard_of(table, 0)
        replay_after = manifest_of(shard).replay_after
        assert replay_after == tip_of(shard) - 1
        assert visible_now(table.home).covers(shard.id, replay_after)


def check_tags(table: Table) -> None:
    """A tag for each record; a dead process left at most one without the other, and the base of its record is held."""
    tags = {tag for tag in held_versions(table.home.store) if tag.startswith(TAG_PREFIX)}
    records = {one.checkpoint.tag for one in table.checkpoints()}
    assert len(records ^ tags) <= 1
    tidy_base(table.home, BasePolicy(keep_versions=timedelta(0)))
    for one in table.checkpoints():
        assert ids(headgate.open_table(table.uri, checkpoint=one.checkpoint.name)) == MODEL


@pytest.mark.parametrize(
    ("life", "stride", "least"),
    [
        (durable, 1, 10),
        (running, 1, 25),
        # Their own parts: claims, barriers and open records are crashed at every operation by the tests of the driver.
        (stopped, 4, 60),
        (clean_stop, 3, 35),
        pytest.param(stopped, 1, 60, marks=pytest.mark.deep),
        pytest.param(clean_stop, 1, 35, marks=pytest.mark.deep),
    ],
)
def test_a_crash_after_every_operation_changes_nothing_for_readers_and_it_is_taken_again(
    model: Table, tmp_path: Path, life: Life, stride: int, least: int
) -> None:
    crashes = 0
    for table, store in dying(model, tmp_path, life, stride):
        check(table, closed=not store.crashed and life is not durable)
        check_tags(table)
        if life is running or crashes % 5 == 0 or not store.crashed:
            with contextlib.suppress(InvalidInput):  # the name is taken where the record had landed
                life(table, lambda: None)
            check(table, closed=life is not durable)
            assert len(table.checkpoints()) == 1
        crashes += store.crashed
    assert crashes >= least // stride, "the walk went through the whole of it"


@pytest.mark.parametrize("step", TAKE_STEPS)
def test_durable_dies_at_every_step_of_its_own(model: Table, tmp_path: Path, step: str) -> None:
    table = copied(model, tmp_path / "table")

    def die(at: str) -> None:
        if at == step:
            raise Crash(step)

    with pytest.raises(Crash):
        with watching(die):
            take(table.home, table.shard_ids())
    check(table, closed=False)
    check_tags(table)
    assert len(table.checkpoints()) == (step in ("tag", "check", "taken"))


@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.LOST, Fault.LOST_EXISTS])
def test_one_fault_at_any_put_of_a_running_stream_is_not_felt(model: Table, tmp_path: Path, fault: Fault) -> None:
    for number in range(1, 1000):
        table = copied(model, tmp_path / f"run-{number}")
        puts = iter(range(1, 10_000))
        store = faulty(
            table,
            plan=lambda op, puts=puts, at=number: fault if op.verb == "put_if_absent" and next(puts) == at else None,
        )
        running(through(table, store))
        check(table, closed=True)
        shutil.rmtree(table.uri)
        if not store.injected:
            break
    assert number > 5


def died_before_its_tag(table: Table) -> None:
    """And native Lance, which knows nothing of records, has cleaned up since."""

    def die(at: str) -> None:
        if at == "tag":
            raise Crash(at)

    with pytest.raises(Crash):
        with watching(die):
            take(table.home, table.shard_ids(), name="now")
    dataset = lance.write_dataset(rows(-3), table.uri, mode="append")
    assert [one.code for one in fsck(table.uri).findings] == ["checkpoint-unpinned"]
    dataset.cleanup_old_versions(older_than=timedelta(0))


def test_of_a_take_that_died_before_its_tag_everybody_is_told_what_native_lance_has_removed(
    model: Table, tmp_path: Path
) -> None:
    table = copied(model, tmp_path / "table")
    died_before_its_tag(table)
    assert {one.code for one in fsck(table.uri).findings} == {"checkpoint-unpinned", "checkpoint-broken"}
    for read in (
        lambda: headgate.open_table(table.uri, checkpoint="now"),
        lambda: table.clone(str(tmp_path / "shallow"), checkpoint="now"),
        lambda: table.clone(str(tmp_path / "deep"), checkpoint="now", deep=True),
    ):
        with pytest.raises(DataLoss, match=r"Version \d+ of the base, which checkpoint 'now' names, failed to open"):
            read()
    table.drop_checkpoint("now")
    assert fsck(table.uri).findings == ()
    assert ids(table) == MODEL + Counter([-3])


@pytest.mark.parametrize("step", ["tag", "check"])
def test_a_take_that_fails_after_its_record_leaves_nothing(model: Table, tmp_path: Path, step: str) -> None:
    table = copied(model, tmp_path / "table")

    def fail(at: str) -> None:
        if at == step:
            raise Transient("The store is away.")

    with pytest.raises(Transient):
        with watching(fail):
            take(table.home, table.shard_ids(), name="now")
    assert table.checkpoints() == []
    assert held_versions(table.home.store) == {}
