"""The model of `headgate cost` against batches and folds that a store has counted."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.checkpoints.log.fold import FOLD_EVERY
from headgate.cli.text.cost import FOLD, MONTH, Prices, Requests, Workload, monthly, stored_gb
from headgate.connectors.objects.memory import MemoryStore
from headgate.errors import InvalidInput
from tests.support.life import home_of, open_driver, ranges_of, run_batch


def of(lines: Any, what: str) -> Requests:
    (found,) = (line.requests for line in lines if line.what == what)
    return Requests(found.put, found.get, found.list)


@pytest.mark.parametrize("shards", [1, 4])
def test_the_model_s_batches_are_what_a_store_counts(shards: int) -> None:
    store = MemoryStore(f"memory://cost-{shards}")
    driver = open_driver(home_of(store), range(shards))
    store.reset_operations()
    dead = sum(
        len(run_batch(driver, number, ranges_of(number, size=5, partitions=range(shards))).dead_letters)
        for number in range(FOLD_EVERY)
    )
    asked = dict(store.operations())
    model = Workload(partitions=shards, trigger=MONTH / FOLD_EVERY, shards=shards, memtable=False)
    lines = monthly(model)
    assert model.batches == FOLD_EVERY
    counted = of(lines, "entries of batches") + of(lines, "commit records")
    assert asked == {"put": counted.put + dead}, "and no GET, no LIST"
    assert (counted.get, counted.list) == (0, 0)
    store.reset_operations()
    driver.fold()
    asked = dict(store.operations())
    assert (asked.pop("put"), asked.pop("list")) == (FOLD.put, FOLD.list)
    assert of(lines, "folds of the log") == FOLD
    MemoryStore.drop(f"cost-{shards}")


def test_few_rows_reach_few_shards_and_many_bytes_make_more_entries() -> None:
    day = 86400
    assert Workload(1, 1, 8).entries_per_batch() == 8
    assert Workload(1, 1, 8, rows_per_day=day * 10_000).entries_per_batch() == pytest.approx(8)
    assert 1 <= Workload(1, 1, 8, rows_per_day=day).entries_per_batch() <= 1.01
    rare = Workload(1, 1, 8, rows_per_day=day / 100)
    assert rare.batches == pytest.approx(MONTH / 100), "Spark runs no batch without rows"
    large = Workload(1, 1, 2, rows_per_day=day * 1_000_000, row_bytes=1000)
    assert large.entries_per_batch() == pytest.approx(4), "500 MB a shard, entries of 256 MB"
    assert stored_gb(large) == pytest.approx(day * 30)
    for wrong in ({"trigger": 0}, {"shards": 0}, {"row_bytes": -1}):
        with pytest.raises(InvalidInput, match="above zero"):
            Workload(**{"partitions": 1, "trigger": 1, "shards": 1, **wrong})  # type: ignore[arg-type]


def test_more_shards_shorter_triggers_and_flushes_cost_more() -> None:
    def dollars(**changes: Any) -> float:
        work = Workload(**{"partitions": 8, "trigger": 10, "shards": 8, **changes})
        return Prices().of(sum((line.requests for line in monthly(work)), Requests()))

    assert dollars() < dollars(shards=32)
    assert dollars() < dollars(trigger=1)
    assert dollars(memtable=False) < dollars()
    assert dollars(gc_per_day=0) < dollars()
