"""What a console asks of the store, as the port's own counters tell it, on a clock that the test moves."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from headgate import clock
from headgate.console.watch.budget import ADVANCE, RATE, START
from headgate.console.watch.places import TablePlace
from headgate.console.watch.watcher import Watcher
from headgate.errors import HeadgateError
from tests.support.consoles import fill, orders
from tests.support.streams import Stream


class Moved:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.at = 1_000.0

    def monotonic(self) -> float:
        return self.at

    def wall(self) -> float:
        return 1.8e9 + self.at

    def sleep(self, seconds: float) -> None:
        self.at += seconds


def test_watching_asks_at_most_two_objects_a_second_however_fast_the_stream_is(tmp_path: Path) -> None:
    table = orders(tmp_path / "orders", batches=1, rows=2, partitions=2)
    stream = Stream(table, "orders", 2)
    with clock.using(moved := Moved()):
        watcher = Watcher([TablePlace(str(tmp_path))])
        began, seen = moved.at, []
        batch = 1
        while moved.at - began < 90:
            if round(moved.at * 2) % 2 == 0 and batch < 40:
                fill(stream, 1, 2, 2, first=batch)
                batch += 1
            watcher.asked()
            while watcher.step():
                pass
            seen.append(watcher.budget.spent)
            moved.at += 0.5
    seconds = moved.at - began
    assert seen[-1] <= RATE * seconds + START + 10, "the last look may be paid afterwards"
    assert seen[-1] > RATE * seconds / 4, "it looks"
    (now,) = watcher.now()
    assert now.streams["orders"].log.ends[("orders", 0)] == batch * 2, "and it sees the last batch"


def test_looks_are_rare_while_nobody_looks(tmp_path: Path) -> None:
    orders(tmp_path / "orders", batches=1, rows=2, partitions=2)
    with clock.using(moved := Moved()):
        watcher = Watcher([TablePlace(str(tmp_path))])
        while watcher.step():
            pass
        moved.at += 120
        before = watcher.budget.spent
        for _ in range(300):
            moved.at += 1
            while watcher.step():
                pass
        assert 0 < watcher.budget.spent - before <= 90


def test_pages_that_a_person_opens_are_paid_in_advance_and_not_for_ever(tmp_path: Path) -> None:
    orders(tmp_path / "orders", batches=1, rows=2, partitions=4)
    draw = random.Random(7)
    with clock.using(moved := Moved()):
        watcher = Watcher([TablePlace(str(tmp_path))])
        began = moved.at
        while watcher.step():
            pass
        table = watcher.table("orders")
        assert table is not None
        opened = 0
        for _ in range(600):
            moved.at += draw.random() / 5
            if watcher.budget.seconds_to_wait() == 0:
                table.see_shards(table.now.shard_ids, 0.0)
                opened += 1
        most = RATE * (moved.at - began) + START + ADVANCE + 3 * 4
        assert watcher.budget.spent <= most
        assert opened > 10
        assert not watcher.step(), "what it owes is paid before it looks by itself"


def test_a_table_that_cannot_be_opened_is_shown_and_tried_again(tmp_path: Path) -> None:
    table = orders(tmp_path / "orders", batches=1, rows=2, partitions=2)
    record = next((tmp_path / "orders" / "_headgate").glob("*/table.json"))
    kept = record.read_bytes()
    record.write_bytes(kept[:-20])
    with clock.using(moved := Moved()):
        watcher = Watcher([TablePlace(table.uri)])
        while watcher.step():
            pass
        (now,) = watcher.now()
        assert now.error is not None
        assert now.error.startswith("Corrupt")
        known = watcher.table(now.key)
        assert known is not None
        with pytest.raises(HeadgateError):
            known.opened()
        record.write_bytes(kept)
        moved.at += 20
        while watcher.step():
            pass
        (now,) = watcher.now()
        assert (now.error, list(now.streams)) == (None, ["orders"])
