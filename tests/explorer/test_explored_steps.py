"""The explored models are the product's: its own decisions, its own steps in its own order."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import pytest

from headgate.checkpoints.gc.collect import COLLECT_STEPS, collect
from headgate.checkpoints.jobs.compact import COMPACT_STEPS
from headgate.checkpoints.jobs.flush import run_here
from headgate.checkpoints.stream.driver import StreamDriver
from headgate.connectors.objects.memory import MemoryStore
from headgate.connectors.objects.port import ObjectStore
from headgate.errors import Fenced
from headgate.shards.wal.appender import WalAppender
from headgate.steps import watching
from tests.explorer.exploring import Check, Model, explore
from tests.explorer.rules import Rules
from tests.explorer.shard_model import Bounds as ShardBounds
from tests.explorer.shard_model import shard_model
from tests.explorer.stream_bounds import Bounds
from tests.explorer.stream_model import stream_model
from tests.explorer.stream_parts import batches
from tests.support.life import home_of

ADAPTED = {
    "latest_version": "the last of ManifestStore.versions",
    "plan_floor": "StreamDriver plans above what it has written itself",
    "flush_end": "Unflushed.last",
    "flushed_to": "MemTable.last_position",
    "collectable_records": "decisions.collectable_records",
    "collectable_manifests": "garbage.collectable_manifests",
    "collectable_sstables": "garbage.collectable_sstables",
    "keeps_fence": "garbage collection reads the header, or the record, first",
    "puts_open_record": "always",
}
"""Decisions that are a value, or need more arguments, in the product."""


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    name = uuid.uuid4().hex
    yield MemoryStore(f"memory://{name}")
    MemoryStore.drop(name)


def way_to(model: Model, part: str, there: Callable[[Any], bool]) -> tuple[str, ...]:
    """The shortest way to a state."""
    goal = Check((part,), lambda value: "there" if there(value) else None)
    return explore(dataclasses.replace(model, checks=[goal], witnesses=[])).trace


def test_every_decision_is_the_products_own() -> None:
    rules = Rules()
    for one in dataclasses.fields(Rules):
        value = getattr(rules, one.name)
        if isinstance(value, FunctionType | type) and one.name not in ADAPTED:
            assert value.__module__.startswith("headgate."), one.name


def test_a_collection_goes_in_the_same_order(store: ObjectStore) -> None:
    taken: list[str] = []
    with watching(taken.append):
        collect(home_of(store), [], apply=True)
    assert taken.pop(1) == "delete probe", "by which it learns the store's time"
    assert tuple(taken) == COLLECT_STEPS
    assert [step for step in taken if step in ("list", *Rules().collection_order, "delete")] == [
        "list",
        *Rules().collection_order,
        "delete",
    ]


def test_what_is_relied_on_is_synced_before_anything_goes() -> None:
    assert COLLECT_STEPS.index("sync") < COLLECT_STEPS.index("delete")
    assert COMPACT_STEPS.index("sync") < COMPACT_STEPS.index("drop")


def test_a_shard_is_opened_in_the_same_order(store: ObjectStore) -> None:
    taken: list[str] = []
    with watching(taken.append):
        WalAppender.open(home_of(store).shard("s0"))
    assert taken == ["look", "claim", "tip", "barrier", "re-read"]
    explored = way_to(shard_model(ShardBounds("", writers=1)), "writer0", lambda writer: writer.step == "open")
    assert explored == (
        "writer 0 looks: the WAL ends at 0",
        "writer 0 reads manifest 0",
        "writer 0 puts manifest 1: epoch 1 is claimed",
        "writer 0 lists the manifests",
        "writer 0 finds the tip 0",
        "writer 0 puts its barrier at 0",
        "writer 0 has the shard, in memory are rows []",
    )


def test_a_stream_is_opened_in_the_same_order(store: ObjectStore) -> None:
    taken: list[str] = []
    with watching(taken.append):
        StreamDriver.open(home_of(store), "stream", "query", ["s0"])
    assert taken == ["look", "claim", "tip", "barrier", "re-read", "read", "open record", "prove", "re-read"]
    model = stream_model(Bounds("", (batches((0,)),)))
    assert way_to(model, "driver0", lambda driver: driver.step == "open") == (
        "driver 0 claims shard 0 with epoch 1",
        "driver 0, shard 0: the tip is 0",
        "driver 0, shard 0: barrier at 0",
        "driver 0 reads the log up to 0",
        "driver 0 puts an open record at 1",
        "driver 0 has the stream",
    )


def test_a_checkpoint_takes_the_same_steps(store: ObjectStore) -> None:
    taken: list[str] = []
    driver = StreamDriver.open(home_of(store), "stream", "query", ["s0"])
    with watching(taken.append):
        driver.close_gaps(driver.settle(run_here, 1))
    assert taken == ["limits", "plan", "flush", "gaps"]
    model = stream_model(Bounds("", (batches((0,)),) * 2, checkpoints=1))
    passed = way_to(model, "manifest0", lambda manifest: manifest is not None and manifest.replay_after == 1)
    assert passed[-3:] == (
        "driver 1, shard 0: a checkpoint begins, the tip is 2 and the limit 1",
        "driver 1, shard 0: the checkpoint's SSTable has rows ()",
        "driver 1, shard 0: replay_after passes the gap to 1",
    )


def test_a_driver_that_lost_its_shards_never_plans_above_its_successors_barrier(store: ObjectStore) -> None:
    home = home_of(store)
    lost = StreamDriver.open(home, "stream", "query", ["s0"])
    successor = StreamDriver.open(home, "stream", "query", ["s0"])
    with pytest.raises(Fenced):
        lost.settle(run_here, 1)
    barrier = successor.claims["s0"].next_position - 1
    assert lost.plan(["s0"]).claims["s0"].next_position == barrier, "the slot that its tasks want fences them"
