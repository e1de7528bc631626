"""An opener stops at each named step of `WalAppender.open` while something else happens to the shard.

The model in the design says which outcomes are safe; here each one is pinned down.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest

from headgate.connectors.objects.port import ObjectStore
from headgate.errors import DataLoss, Fenced
from headgate.shards.wal.appender import WalAppender
from headgate.shards.writer import ShardWriter
from headgate.steps import watching
from tests.support.closing import (
    WAL_ONLY,
    Background,
    Steps,
    closing_checks,
    collect,
    collect_manifests,
    fenced,
    flush,
    home_of,
    open_writer,
    rows,
    visible,
    wal_positions,
)
from tests.support.stores import FaultyStore

STEPS = ["look", "claim", "tip", "barrier", "re-read"]
BEFORE_THE_CLAIM = STEPS[:2]


class Meanwhile:
    """What a rival does while the opener stands still, and the rows it was promised."""

    def __init__(self, store: ObjectStore, shard_id: uuid.UUID) -> None:
        self.store = store
        self.shard_id = shard_id
        self.rows: set[int] = set()
        self.writers: list[ShardWriter] = []

    def opens(self) -> None:
        self.writers.append(open_writer(self.store, self.shard_id))

    def writes(self, count: int = 3) -> None:
        self.opens()
        for _ in range(count):
            self.put()

    def writes_and_closes(self) -> None:
        self.writes()
        self.writers[-1].close()

    def flushes_and_collects(self) -> None:
        self.writes()
        flush(self.writers[-1])
        collect(self.writers[-1].shard)
        collect_manifests(self.writers[-1].shard)

    def flushes_and_collects_much(self) -> None:
        """More than the search for the tip asks for at once."""
        self.writes(40)
        flush(self.writers[-1])
        self.put()
        collect(self.writers[-1].shard)

    def two_rivals(self) -> None:
        self.writes()
        self.flushes_and_collects()

    def put(self) -> None:
        row = 1000 + len(self.rows)
        self.writers[-1].put(rows(row))
        self.rows.add(row)


RIVALS: list[Callable[[Meanwhile], None]] = [
    Meanwhile.opens,
    Meanwhile.writes,
    Meanwhile.writes_and_closes,
    Meanwhile.flushes_and_collects,
    Meanwhile.flushes_and_collects_much,
    Meanwhile.two_rivals,
]


def history(store: ObjectStore, shard_id: uuid.UUID, kind: str) -> tuple[set[int], list[ShardWriter]]:
    if kind == "fresh":
        return set(), []
    before = open_writer(store, shard_id)
    before.put(rows(1))
    before.put(rows(2))
    return {1, 2}, [before]


@pytest.mark.parametrize("rival", RIVALS, ids=lambda r: r.__name__)
@pytest.mark.parametrize("before", ["fresh", "alive"])
@pytest.mark.parametrize("step", STEPS)
def test_of_two_openers_the_later_claim_wins_wherever_the_other_stood(
    store: ObjectStore, shard_id: uuid.UUID, step: str, before: str, rival: Callable[[Meanwhile], None]
) -> None:
    known, alive = history(store, shard_id, before)
    steps = Steps(step)
    with watching(steps):
        opener = Background(lambda: ShardWriter.open(home_of(store), shard_id, WAL_ONLY))
    steps.wait()
    meanwhile = Meanwhile(store, shard_id)
    rival(meanwhile)
    steps.release()
    stopped = list(alive)
    if step in BEFORE_THE_CLAIM:
        mine = opener.result()
        mine.put(rows(500))
        known.add(500)
        stopped += meanwhile.writers
    else:
        error = fenced(opener.result)
        assert error.shard == str(shard_id)
        stopped += meanwhile.writers[:-1]
        if rival is not Meanwhile.writes_and_closes:
            meanwhile.put()  # the winner does not even notice
    for writer in stopped:
        with pytest.raises(Exception, match=r"took over|closed"):
            writer.put(rows(502))
    assert sorted(visible(home_of(store).shard(shard_id))) == sorted(known | meanwhile.rows)
    closing_checks(store, shard_id, known | meanwhile.rows, known | meanwhile.rows, [*alive, *meanwhile.writers])


@pytest.mark.parametrize("step", STEPS)
def test_the_predecessor_writes_until_the_barrier_stands_and_every_such_row_stays(
    store: ObjectStore, shard_id: uuid.UUID, step: str
) -> None:
    known, (before,) = history(store, shard_id, "alive")
    steps = Steps(step)
    with watching(steps):
        opener = Background(lambda: ShardWriter.open(home_of(store), shard_id, WAL_ONLY))
    steps.wait()
    if step == "re-read":
        error = fenced(lambda: before.put(rows(3)))
        assert (error.epoch, error.stored_epoch, error.position) == (1, 2, 3)
    else:
        for row in range(3, 25):
            before.put(rows(row))
            known.add(row)
    steps.release()
    mine = opener.result()
    assert mine.stats().next_position == len(known) + 2
    fenced(lambda: before.put(rows(99)))
    assert visible(mine.shard) == sorted(known)
    closing_checks(store, shard_id, known, known, [before, mine])


@pytest.mark.parametrize("step", STEPS)
def test_a_predecessor_that_flushes_and_collects_meanwhile_hurts_no_opener(
    store: ObjectStore, shard_id: uuid.UUID, step: str
) -> None:
    known, (before,) = history(store, shard_id, "alive")
    steps = Steps(step)
    with watching(steps):
        opener = Background(lambda: ShardWriter.open(home_of(store), shard_id, WAL_ONLY))
    steps.wait()
    if step in BEFORE_THE_CLAIM:
        before.put(rows(3))
        flush(before)
        before.put(rows(4))
        collect(before.shard)
        collect_manifests(before.shard)
        known |= {3, 4}
    else:
        fenced(lambda: flush(before))  # commit_update is refused from the claim on
        collect(before.shard)
    steps.release()
    mine = opener.result()
    mine.put(rows(5))
    closing_checks(store, shard_id, known | {5}, known | {5}, [before, mine])


@pytest.mark.parametrize("step", STEPS)
def test_an_opener_that_dies_at_a_step_leaves_a_shard_that_opens(
    store: ObjectStore, shard_id: uuid.UUID, step: str
) -> None:
    known, alive = history(store, shard_id, "alive")

    class Died(BaseException):
        pass

    def die(at: str) -> None:
        if at == step:
            raise Died

    with pytest.raises(Died):
        with watching(die):
            WalAppender.open(home_of(store).shard(shard_id))
    if step != "re-read":
        alive[0].put(rows(3))  # a claim alone fences nobody out of the WAL
        known.add(3)
    closing_checks(store, shard_id, known, known, alive)


def test_the_steps_are_taken_in_the_order_of_the_docstring(store: ObjectStore, shard_id: uuid.UUID) -> None:
    steps = Steps()
    with watching(steps):
        WalAppender.open(home_of(store).shard(shard_id))
    assert steps.seen == STEPS


def test_a_hole_that_is_a_living_writers_collection_is_looked_at_again(store: ObjectStore, shard_id: uuid.UUID) -> None:
    """Between the manifest and the search for the tip the entries move to an SSTable."""
    known, (before,) = history(store, shard_id, "alive")
    faulty = FaultyStore(store)
    stall = faulty.stall("list", "/wal/")
    opener = Background(lambda: open_writer(faulty, shard_id))
    stall.wait()
    before.put(rows(3))
    before.put(rows(4))
    flush(before)
    before.put(rows(5))
    assert collect(before.shard) == [1, 2, 3, 4]
    stall.release()
    mine = opener.result()
    closing_checks(store, shard_id, known | {3, 4, 5}, known | {3, 4, 5}, [before, mine])


def test_a_hole_that_stays_one_is_data_loss_also_after_the_claim(store: ObjectStore, shard_id: uuid.UUID) -> None:
    _, (before,) = history(store, shard_id, "alive")
    before.put(rows(3))
    shard = before.shard

    def remove(step: str) -> None:
        if step == "tip":
            store.put_if_absent(shard.wal_key(5), bytes(store.get(shard.wal_key(3))))

    with pytest.raises(DataLoss) as caught:
        with watching(remove):
            WalAppender.open(shard)
    assert not isinstance(caught.value, Fenced)
    assert caught.value.position == 4
    assert wal_positions(shard) == [0, 1, 2, 3, 5]
