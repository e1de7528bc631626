"""What a Table keeps from one read to the next: the same rows as without it, fewer reads, bounded memory.

A random history prints its seed; there are HISTORIES of them.
"""

from __future__ import annotations

import pickle
import random
import shutil
import threading
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from headgate.caches import set_cache_bytes
from headgate.checkpoints.gc.base import tidy_base
from headgate.checkpoints.jobs.flush import run_here
from headgate.checkpoints.jobs.policy import BasePolicy, CompactLimits
from headgate.checkpoints.snapshots import cache
from headgate.checkpoints.snapshots.snapshot import read_snapshot
from headgate.errors import DataLoss, InvalidInput, Transient
from headgate.shards.config import WriterConfig
from headgate.shards.rows.view import TableView
from headgate.table.create import create_table
from headgate.table.table import Table, open_table
from tests.support.life import SCHEMA
from tests.support.tables import DIRECT, commit_changes, make, of_batches, open_stream, run_batch

HISTORIES = 6
KEYS = 40
WAL_ONLY = WriterConfig(enable_memtable=False)

Pairs = list[tuple[int, str]]


def rows(*pairs: tuple[int, str]) -> pa.RecordBatch:
    return pa.record_batch([[i for i, _ in pairs], [note for _, note in pairs]], schema=SCHEMA)


def keys(*ids: int) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(ids, pa.int64())})


def pairs(found: pa.Table | pa.RecordBatchReader) -> Pairs:
    table = found.read_all() if isinstance(found, pa.RecordBatchReader) else found
    return sorted(zip(table.column("id").to_pylist(), table.column("note").to_pylist(), strict=True))


def nothing_kept(table: Table) -> TableView:
    return read_snapshot(table.home, table.shard_ids())


# -- the same rows ----------------------------------------------------------------------------


class History:
    """One table, a stream and a direct writer on it, and one Table that reads between all their steps."""

    def __init__(self, path: Path, seed: int, keyed: bool) -> None:
        self.chance, self.keyed = random.Random(f"{seed} {keyed}"), keyed
        self.table = make(path, key="id" if keyed else None)
        self.reader = open_table(self.table.uri)
        self.driver = open_stream(self.table)
        self.writer = self.table.writer(DIRECT)
        self.model: dict[int, str] = {}
        self.count = 0

    def step(self) -> str:
        step = self.chance.choice([self.commit, self.commit, self.put, self.put, *self.rare])
        step()
        return step.__name__

    @property
    def rare(self) -> list[Callable[[], None]]:
        return [self.flush, self.flush_direct, self.fold, self.compact, self.collect, self.squeeze, self.copy]

    def check(self) -> None:
        view, expected = nothing_kept(self.table), sorted(self.model.items())
        assert pairs(view.scan()) == expected
        assert pairs(self.reader.scan()) == expected
        if self.keyed:
            asked = self.chance.sample(range(KEYS), self.chance.choice([1, 2, KEYS]))
            asked += [1_000 + one for one in asked]
            expected = [pair for pair in expected if pair[0] in asked]
            assert pairs(self.reader.get(keys(*asked))) == pairs(view.get(keys(*asked))) == expected

    # -- the steps --------------------------------------------------------------------------

    def changes(self, first: int) -> list[tuple[int, str | None]]:
        found: list[tuple[int, str | None]] = []
        for _ in range(self.chance.randint(1, 8)):
            self.count += 1
            key = first + (self.chance.randrange(KEYS) if self.keyed else 10_000 * first + self.count)
            found.append((key, None if self.keyed and self.chance.random() < 0.3 else str(self.count)))
        return found

    def apply(self, changes: list[tuple[int, str | None]]) -> None:
        for key, note in changes:
            if note is None:
                self.model.pop(key, None)
            else:
                self.model[key] = note

    def commit(self) -> None:
        changes = self.changes(0)
        # What is written and not committed is read, and must not be seen.
        commit_changes(self.table, self.driver, changes, attempts=self.chance.choice([1, 1, 2]), on_written=self.check)
        self.apply(changes)

    def put(self) -> None:
        for key, note in self.changes(1_000):
            if note is None:
                self.writer.delete(keys(key))
            else:
                self.writer.put(rows((key, note)))
            self.apply([(key, note)])

    def flush(self) -> None:
        self.driver.close_gaps(self.driver.settle(run_here, 1 << 20))

    def flush_direct(self) -> None:
        self.writer.flush_memtable()

    def fold(self) -> None:
        self.driver.fold()

    def compact(self) -> None:
        self.driver.compact(CompactLimits())
        with suppress(Transient):
            tidy_base(self.table.home, BasePolicy(keep_versions=timedelta(0), max_small=2))

    def collect(self) -> None:
        self.table.collect_garbage(min_age=timedelta(0), apply=True)

    def squeeze(self) -> None:
        set_cache_bytes(self.chance.choice([0, 10_000, 100_000, 1 << 20]))

    def copy(self) -> None:
        self.reader = pickle.loads(pickle.dumps(self.reader))


@pytest.mark.parametrize("keyed", [True, False], ids=["keyed", "plain"])
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(one, marks=pytest.mark.deep) for one in range(2, HISTORIES))])
def test_every_read_shows_what_one_that_keeps_nothing_shows(
    tmp_path: Path, cache_budget: object, seed: int, keyed: bool
) -> None:
    history, steps = History(tmp_path, seed, keyed), []
    for _ in range(30):
        steps.append(history.step())
        try:
            history.check()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, keyed {keyed}, after {steps}") from error


def test_threads_that_share_a_table_see_every_commit_that_returned_before(tmp_path: Path) -> None:
    table = make(tmp_path, key="id")
    driver, stop = open_stream(table), threading.Event()
    done, failures = 0, []

    def read() -> None:
        while not stop.is_set():
            before = done
            found = dict(pairs(table.get(keys(0, 1))))
            # Each batch sets both keys, which are in two shards, to its own number.
            if found.get(0) != found.get(1) or int(found.get(0, "0")) < before:
                failures.append(f"batch {before} was committed, and a lookup found {found}")

    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
    for number in range(1, 60):
        commit_changes(table, driver, [(0, str(number)), (1, str(number))])
        done = number
        if number % 20 == 0:
            driver.close_gaps(driver.settle(run_here, 1 << 20))
            driver.fold()
    stop.set()
    for reader in readers:
        reader.join()
    assert not failures, failures[0]
    assert dict(pairs(table.get(keys(0, 1)))) == {0: "59", 1: "59"}


def test_a_table_that_is_made_again_in_the_same_place_is_not_read_as_the_one_before(tmp_path: Path) -> None:
    shard = uuid.UUID(int=7)

    def made(note: str) -> Table:
        table = create_table(str(tmp_path / "t"), SCHEMA, primary_key="id")
        with table.writer(shard) as writer:
            writer.put(rows((1, note)))
            writer.flush_memtable()
            writer.put(rows((2, note)))
        return table

    old = made("old")
    assert pairs(old.scan()) == pairs(old.get(keys(1, 2))) == [(1, "old"), (2, "old")]
    shutil.rmtree(old.uri)
    new = made("new")
    for _ in range(2):
        for read in (old.scan, lambda: nothing_kept(old), lambda: old.get(keys(1, 2))):
            with pytest.raises(InvalidInput, match="overwritten by native Lance"):
                read()
        assert old.cache.nbytes == 0
    assert pairs(new.scan()) == pairs(open_table(new.uri).scan()) == [(1, "new"), (2, "new")]


def test_a_base_that_native_overwrote_is_not_read_by_the_columns_of_the_one_before(tmp_path: Path) -> None:
    table = create_table(str(tmp_path / "t"), SCHEMA, primary_key="id")
    with table.writer("single") as writer:
        writer.put(rows((1, "mine")))
    assert pairs(table.scan()) == [(1, "mine")]
    version = lance.dataset(table.uri).version
    other = pa.table({"number": pa.array([1, 7], pa.int64()), "secret": ["x", "y"]})
    lance.write_dataset(other, table.uri, mode="overwrite")
    for read in (table.scan, lambda: table.get(keys(7)), lambda: nothing_kept(table), table.checkpoint):
        with pytest.raises(InvalidInput, match="overwritten"):
            read()
    lance.dataset(table.uri, version=version).restore()
    assert pairs(table.scan()) == pairs(open_table(table.uri).scan()) == [(1, "mine")]


def test_the_state_of_a_log_is_kept_while_it_lists_few_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = make(tmp_path)
    driver = open_stream(table)
    monkeypatch.setattr(cache, "LOG_ENTRIES", 8)
    listed = []
    for number in range(4):
        run_batch(driver, number)
        assert Counter(table.scan(columns=["id"]).read_all()["id"].to_pylist()) == of_batches(range(number + 1))
        listed.append(sum(log.entries_above_fold for log in table.cache._logs.values()))
    assert listed == [4, 8, 0, 0]


def test_a_column_that_is_added_is_in_the_table_that_knows_it_and_not_in_the_one_before(tmp_path: Path) -> None:
    table = create_table(str(tmp_path / "t"), SCHEMA, primary_key="id")
    with table.writer("single") as writer:
        writer.put(rows((1, "sstable")))
        writer.flush_memtable()
        writer.put(rows((2, "tail")))
    assert table.get(keys(1, 2)).num_rows == 2
    wider = table.add_column(pa.field("x", pa.int32()))
    for _ in range(2):
        assert wider.get(keys(1, 2)).sort_by("id").to_pylist() == [
            {"id": 1, "note": "sstable", "x": None},
            {"id": 2, "note": "tail", "x": None},
        ]
        assert table.get(keys(1, 2)).schema.names == ["id", "note"]


def test_an_entry_that_is_lost_is_told_also_where_it_was_kept(tmp_path: Path) -> None:
    table = create_table(str(tmp_path / "t"), SCHEMA, primary_key="id")
    with table.writer("single", WAL_ONLY) as writer:
        for number in range(4):
            writer.put(rows((number, "n")))
    assert table.get(keys(2)).num_rows == 1
    writer.shard.wal.delete(writer.shard.wal_key(2))
    with pytest.raises(DataLoss) as caught:
        table.get(keys(3))
    assert caught.value.position == 2


# -- what is read -----------------------------------------------------------------------------


def operations(table: Table) -> dict[str, int]:
    found = dict(table.home.store.operations())
    table.home.store.reset_operations()
    return found


def test_a_second_read_of_a_table_where_nothing_changed_reads_no_object(tmp_path: Path) -> None:
    table = make(tmp_path, key="id")
    driver = open_stream(table)
    commit_changes(table, driver, [(1, "a"), (2, "b")])
    driver.close_gaps(driver.settle(run_here, 1 << 20))
    for number in range(5):
        commit_changes(table, driver, [(1, f"a{number}"), (2, "b")])
    reader = open_table(table.uri)
    assert pairs(reader.get(keys(1))) == [(1, "a4")]
    operations(reader)
    for key in (1, 2, 3):
        reader.get(keys(key))
        # Shards and streams; of the one stream its log; of two shards the manifests, the WAL, the manifests again.
        assert operations(reader) == {"list": 2 + 1 + 2 * 3}
    reader.scan().read_all()
    assert operations(reader) == {"list": 9}
    commit_changes(table, driver, [(1, "new")])
    assert pairs(reader.get(keys(1))) == [(1, "new")]
    # One record and one entry.
    assert operations(reader) == {"list": 9, "get": 2}


def test_the_tails_that_are_kept_stay_within_the_limit_and_the_rest_is_read_each_time(
    tmp_path: Path, cache_budget: Callable[[int], None]
) -> None:
    table = make(tmp_path, key="id")
    for partition, first in ((0, 0), (1, 100)):
        with table.writer(DIRECT[:-1] + str(partition), WAL_ONLY) as writer:
            for number in range(10):
                writer.put(rows((first + number, "n" * 1_000)))
    expected = pairs(table.scan())
    whole = table.cache.nbytes
    assert 20_000 < whole < 60_000
    # Two tails of ten entries each; one takes a quarter of the budget at most.
    for limit, read in ((1 << 20, 0), (whole * 7 // 4, 5), (whole, 10), (0, 20)):
        cache_budget(limit)
        table.cache.clear()
        for _ in range(2):
            assert pairs(table.scan()) == expected
            assert table.cache.nbytes <= limit // 2
        operations(table)
        assert pairs(table.get(keys(3, 103))) == [(3, "n" * 1_000), (103, "n" * 1_000)]
        # Barriers are kept too, so that a boundary lies an entry lower or higher.
        assert abs(operations(table).get("get", 0) - read) <= 2, limit
    assert table.cache.nbytes == 0


def test_what_was_flushed_is_no_longer_kept_after_the_next_read(tmp_path: Path) -> None:
    table = create_table(str(tmp_path / "t"), SCHEMA, primary_key="id")
    with table.writer("single") as writer:
        for number in range(10):
            writer.put(rows((number, "n" * 1_000)))
        table.scan().read_all()
        before = table.cache.nbytes
        writer.flush_memtable()
        assert pairs(table.get(keys(3))) == [(3, "n" * 1_000)]
        assert table.cache.nbytes < before / 10
        assert pickle.loads(pickle.dumps(table)).cache.nbytes == 0
