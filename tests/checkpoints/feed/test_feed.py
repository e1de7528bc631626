"""A consumer of the commit logs: every batch once, in order, whatever is flushed, folded or collected meanwhile."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pytest

from headgate.checkpoints.feed.feed import LogFeed
from headgate.checkpoints.feed.offsets import Limit, Offsets
from headgate.checkpoints.feed.rows import log_batches
from headgate.checkpoints.jobs.flush import run_here
from headgate.checkpoints.jobs.policy import CompactLimits
from headgate.checkpoints.log.pins import ConsumerPin, PinStore, needed_above, read_upto
from headgate.checkpoints.offline.retention import OlderThan, expire
from headgate.checkpoints.stream.driver import StreamDriver
from headgate.errors import Expired, Fenced
from headgate.table.table import Table, open_table
from tests.support.tables import (
    CONFIG,
    DIRECT,
    commit_changes,
    make,
    of_batches,
    open_stream,
    rows,
    run_batch,
    shard_of,
)

NOW = timedelta(0)


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def feed_of(table: Table, consumer: str = "mirror", hold: float = 3600, clock: Clock | None = None) -> LogFeed:
    return LogFeed(table.home, table.shard_ids, consumer, hold, poll=0, clock=clock or Clock())


def read(feed: LogFeed, start: Offsets, end: Offsets) -> pa.Table:
    parts = [batch for part in feed.plan(start, end) for batch in log_batches(feed.home, part)]
    return pa.Table.from_batches(parts)


def ids(found: pa.Table) -> Counter[int]:
    return Counter(found.column("id").to_pylist())


def settle(driver: StreamDriver) -> None:
    """Flush everything, close the gaps, fold twice: what a checkpoint of scope all does."""
    driver.close_gaps(driver.settle(run_here, 1 << 30))
    driver.fold()


def grown(driver: StreamDriver, numbers: range) -> None:
    for number in numbers:
        run_batch(driver, number)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return make(tmp_path)


def test_each_batch_comes_once_in_order_with_its_place(table: Table) -> None:
    driver, feed = open_stream(table), feed_of(table)
    grown(driver, range(3))
    start = feed.start("earliest")
    end = feed.latest(start)
    found = read(feed, start, end)
    assert ids(found) == of_batches(range(3))
    assert found.column_names[-6:] == ["_stream", "_sequence", "_shard", "_position", "_row", "_deleted"]
    for shard in set(found.column("_shard").to_pylist()):
        own = [row for row in found.to_pylist() if row["_shard"] == shard]
        assert own == sorted(own, key=lambda row: (row["_sequence"], row["_position"], row["_row"]))
    feed.done(end)
    assert feed.latest(end) == end
    grown(driver, range(3, 4))
    assert ids(read(feed, end, feed.latest(end))) == of_batches([3])


def test_dead_attempts_direct_writers_and_opens_are_not_in_it(table: Table) -> None:
    driver, feed = open_stream(table), feed_of(table)
    run_batch(driver, 0, attempts=2)
    with table.writer(DIRECT, CONFIG) as writer:
        writer.put(rows(1, 2))
    open_stream(table)
    start = feed.start("earliest")
    assert ids(read(feed, start, feed.latest(start))) == of_batches([0])


def test_what_is_not_read_outlives_flush_fold_compaction_and_collection(table: Table) -> None:
    driver, feed = open_stream(table), feed_of(table)
    grown(driver, range(2))
    start = feed.start("earliest")
    middle = feed.latest(start)
    grown(driver, range(2, 5))
    for _ in range(3):
        settle(driver)
        run_batch(driver, 5 + _)
    driver.compact(CompactLimits())
    assert table.collect_garbage(min_age=NOW, apply=True).found
    assert ids(read(feed, start, middle)) == of_batches(range(2))
    end = feed.latest(middle)
    assert ids(read(feed, middle, end)) == of_batches(range(2, 8))
    feed.done(end)
    feed.renew(now=True)
    settle(driver)
    settle(driver)
    gone = table.collect_garbage(min_age=NOW, apply=True)
    assert any(one.kind == "wal entry" for one in gone.found)


def test_a_restart_goes_on_where_the_last_run_was(table: Table) -> None:
    driver, feed = open_stream(table), feed_of(table)
    grown(driver, range(2))
    start = feed.start("earliest")
    middle = feed.latest(start)
    grown(driver, range(2, 4))
    settle(driver)
    table.collect_garbage(min_age=NOW, apply=True)
    again = feed_of(table)
    assert ids(read(again, start, middle)) == of_batches(range(2))
    assert ids(read(again, middle, again.latest(middle))) == of_batches(range(2, 4))
    with pytest.raises(Fenced):
        feed.renew(now=True)


def test_past_expiry_a_consumer_is_told_a_checkpoint_from_which_nothing_is_missing(table: Table) -> None:
    clock = Clock()
    driver, feed = open_stream(table), feed_of(table, hold=0.05, clock=clock)
    grown(driver, range(2))
    start = feed.start("earliest")
    middle = feed.latest(start)
    time.sleep(0.1)
    clock.now += 1
    grown(driver, range(2, 4))
    settle(driver)
    grown(driver, range(4, 5))
    settle(driver)
    table.collect_garbage(min_age=NOW, apply=True)
    late = feed_of(table)
    with pytest.raises(Expired) as told:
        late.plan(start, middle)
    name = told.value.detail["checkpoint"]
    assert name in str(told.value)
    with pytest.raises(Expired) as again:
        late.plan(start, middle)
    assert again.value.detail["checkpoint"] == name
    grown(driver, range(5, 6))
    settle(driver)
    settle(driver)
    table.collect_garbage(min_age=NOW, apply=True)
    then = open_table(table.uri, checkpoint=name)
    fresh = feed_of(table)
    assert then.at is not None
    begin = fresh.start(then.at)
    whole = Counter(then.scan(columns=["id"]).read_all().column("id").to_pylist())
    assert whole + ids(read(fresh, begin, fresh.latest(begin))) == of_batches(range(6))


def test_earliest_is_what_is_still_there_and_latest_is_nothing(table: Table) -> None:
    driver = open_stream(table)
    grown(driver, range(3))
    settle(driver)
    settle(driver)
    grown(driver, range(3, 4))
    table.collect_garbage(min_age=NOW, apply=True)
    feed = feed_of(table)
    start = feed.start("earliest")
    assert ids(read(feed, start, feed.latest(start))) == of_batches([3])
    latest = feed_of(table, "other").start("latest")
    assert latest == feed.latest(start)


def test_a_wal_only_stream_and_a_second_one_are_read_beside_each_other(table: Table) -> None:
    one, two = open_stream(table), open_stream(table, (2,), stream="t")
    feed = feed_of(table)
    run_batch(one, 0, mode="wal")
    run_batch(two, 0, (2,), mode="wal")
    start = feed.start("earliest")
    end = feed.latest(start)
    assert set(end) == {"s", "t"}
    assert ids(read(feed, start, end)) == of_batches([0]) + of_batches([0], (2,))
    run_batch(two, 1, (2,), mode="wal")
    three = open_stream(table, (3,), stream="u")
    run_batch(three, 0, (3,), mode="wal")
    more = feed.latest(end)
    assert ids(read(feed, end, more)) == of_batches([1], (2,)) + of_batches([0], (3,))


def test_entries_that_a_stream_wrote_to_a_shard_unknown_to_the_consumer_are_held(table: Table) -> None:
    feed = feed_of(table)
    driver = open_stream(table)
    start = feed.start("latest")
    more = open_stream(table, (2,), stream="t")
    run_batch(more, 0, (2,))
    settle(more)
    with table.writer(DIRECT, CONFIG) as writer:
        writer.put(rows(1, 2))
        writer.flush_memtable()
        writer.put(rows(3))
    gone = table.collect_garbage(min_age=NOW, apply=True)
    assert {one.kind for one in gone.found} == {"wal entry"} | {one.kind for one in gone.found} - {"wal entry"}
    assert not [one for one in gone.found if str(shard_of(table, 2).id) in one.key and one.kind == "wal entry"]
    assert ids(read(feed, start, feed.latest(start))) == of_batches([0], (2,))
    assert driver.head.sequence == 1


def test_a_limit_takes_whole_batches_and_at_least_one(table: Table) -> None:
    driver, feed = open_stream(table), feed_of(table)
    grown(driver, range(3))
    start = feed.start("earliest")
    first = feed.latest(start, Limit(rows=1))
    assert ids(read(feed, start, first)) == of_batches([0])
    second = feed.latest(first, Limit(batches=2))
    assert ids(read(feed, first, second)) == of_batches(range(1, 3))


def test_deletes_are_shown_as_such_in_the_order_of_the_entry(tmp_path: Path) -> None:
    table = make(tmp_path, key="id")
    driver, feed = open_stream(table), feed_of(table)
    commit_changes(table, driver, [(2, "a"), (4, "a"), (2, None), (2, "b"), (4, None)])
    start = feed.start("earliest")
    found = read(feed, start, feed.latest(start)).select(["id", "note", "_deleted", "_row"]).to_pylist()
    assert [tuple(row.values()) for row in found] == [
        (2, "a", False, 0),
        (4, "a", False, 1),
        (2, None, True, 2),
        (2, "b", False, 3),
        (4, None, True, 4),
    ]


def test_what_wal_expire_lets_go_is_held_for_a_consumer(table: Table) -> None:
    driver, feed = open_stream(table), feed_of(table)
    for number in range(3):
        run_batch(driver, number, mode="wal")
    start = feed.start("earliest")
    expire(table.home, table.shard_ids(), OlderThan(NOW))
    table.collect_garbage(min_age=NOW, apply=True)
    assert table.scan().read_all().num_rows == 0
    assert ids(read(feed, start, feed.latest(start))) == of_batches(range(3))


def test_columns_that_change_meanwhile_are_told_by_id(table: Table) -> None:
    driver, feed = open_stream(table), feed_of(table)
    run_batch(driver, 0)
    start = feed.start("earliest")
    changed = table.rename_column("note", "text").add_column(pa.field("more", pa.int64()))
    run_batch(open_stream(table), 1)
    assert ids(read(feed, start, feed.latest(start))) == of_batches(range(2))
    again = read(feed_of(changed), start, feed.latest(start))
    assert again.column_names[:3] == ["id", "text", "more"]
    assert set(again.column("text").to_pylist()) == {"n"}


def pins(*done: tuple[dict[str, int], dict[int, int]]) -> Iterator[ConsumerPin]:
    for number, (streams, shards) in enumerate(done):
        yield ConsumerPin(
            consumer=str(number),
            number=1,
            run_id="r",
            done=streams,
            positions={UUID(int=shard): position for shard, position in shards.items()},
            expires_after=1,
        )


def test_the_slowest_consumer_decides_and_one_that_knows_nothing_holds_all() -> None:
    assert needed_above([], "s") is None
    assert needed_above(pins(({"s": 5}, {}), ({"s": 3}, {})), "s") == 3
    assert needed_above(pins(({"s": 5}, {}), ({}, {})), "s") == 0
    shard = UUID(int=1)
    assert read_upto([], shard) == (None, False)
    assert read_upto(pins(({}, {1: 7}), ({}, {1: 4})), shard) == (4, False)
    assert read_upto(pins(({}, {1: 7}), ({}, {})), shard) == (7, True)


def test_a_pin_is_read_back_and_the_newest_counts(table: Table) -> None:
    store = PinStore(table.home.records, table.uri)
    (pin,) = pins(({"s": 5}, {1: 7}))
    key = store.put(pin)
    store.put(replace(pin, number=2, done={"s": 6}))
    found = store.newest(pin.consumer)
    assert found is not None
    assert (found.pin.done, found.older) == ({"s": 6}, (key,))
    with pytest.raises(Fenced):
        store.put(replace(pin, number=2, run_id="other"))
