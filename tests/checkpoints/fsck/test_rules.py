"""What fsck says of one damage: what is lost by it, what is not, and what to do; and that it reads within bounds."""

from __future__ import annotations

import shutil
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from headgate import parallel
from headgate.checkpoints.fsck.check import MAX_FINDINGS, check_table
from headgate.checkpoints.fsck.expected import Listed, ListedPart, joined
from headgate.checkpoints.fsck.findings import KINDS, Finding, confirmed, finding
from headgate.checkpoints.fsck.wal import WalContext, judge_listing
from headgate.connectors.objects.port import ObjectStore
from headgate.errors import Corrupt, InvalidInput, NotFound
from headgate.shards.manifest.model import Manifest
from headgate.shards.wal.listing import WalListing
from headgate.table.fsck import fsck
from headgate.table.table import Table
from tests.checkpoints.fsck.damages import entry, latest, record_file, tip
from tests.support.histories import (
    DIRECT,
    WAL_ONLY,
    batches,
    collect,
    copied,
    dead_attempt,
    make,
    open_stream,
    rows,
    shard_of,
)
from tests.support.life import home_of, ranges_of

SHARD = uuid.UUID(int=1)
PART = ListedPart(9, 4, (7, 9), "attempt", 30)


def listing(*positions: int, strays: tuple[str, ...] = (), empty: tuple[int, ...] = ()) -> WalListing:
    there = sorted(positions)
    sizes = [0 if position in empty else 10 for position in there]
    return WalListing(np.array(there, np.uint64), np.array(sizes, np.uint64), strays)


def context(
    store: ObjectStore,
    replay_after: int = 0,
    last_seen: int = 0,
    *parts: ListedPart,
    fences: dict[int, int] | None = None,
    logs_whole: bool = True,
) -> WalContext:
    manifest = Manifest(
        version=3,
        epoch=2,
        replay_after=replay_after,
        last_seen=last_seen,
        shard_id=SHARD,
        fields=(("headgate.claim_id", b"c"),),
    )
    listed = Listed("s0", last=max((part.positions[-1] for part in parts), default=-1), parts=list(parts))
    return WalContext(home_of(store).shard(SHARD), manifest, listed=listed, fences=fences or {}, logs_whole=logs_whole)


def codes(found: Iterator[Finding]) -> list[tuple[str, int]]:
    """Codes and positions."""
    return [(one.code, int(one.place.rpartition(" ")[2].rstrip(")"))) for one in found]


# -- gaps ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("replay_after", "last_seen", "positions", "expected"),
    [
        (0, 0, (), []),
        (0, 0, (0,), []),
        (0, 0, (0, 1, 2), []),
        (0, 0, (1, 2), []),
        (0, 0, (0, 2), [("wal-hole", 1)]),
        (0, 4, (0, 1, 2), [("wal-hole", 3)]),
        (0, 0, (1, 5, 9), [("wal-hole", 2), ("wal-hole", 6)]),
        (5, 5, (5,), []),
        (5, 5, (3, 5, 6), []),
        (5, 5, (2, 7), [("wal-hole", 6)]),
        (5, 5, (2,), [("manifest-replay-after", 3)]),
        (2**64 - 1, 5, (2,), [("manifest-replay-after", 3)]),
        (5, 7, (), [("wal-tip-missing", 5), ("wal-hole", 6)]),
    ],
)
def test_every_position_below_the_tip_is_there_or_flushed_and_the_tip_stays(
    store: ObjectStore,
    replay_after: int,
    last_seen: int,
    positions: tuple[int, ...],
    expected: list[tuple[str, int]],
) -> None:
    assert codes(judge_listing(context(store, replay_after, last_seen), listing(*positions))) == expected


def test_a_gap_is_told_by_the_batches_that_lose_rows_by_it(store: ObjectStore) -> None:
    found = list(judge_listing(context(store, 5, 5, PART), listing(5, 6, 7, 8)))
    assert [(one.code, one.lost) for one in found] == [
        ("commit-entry-missing", "up to 30 rows of batch 4 in this shard; readers fail at this position")
    ]


def test_a_wal_that_lost_its_disk_is_told_in_bounds(store: ObjectStore) -> None:
    found = list(judge_listing(context(store), listing(*range(0, 4000, 2))))
    assert len(found) == 101
    assert found[-1].what == "1899 more ranges of entries are missing."


def test_a_fence_is_missed_wherever_it_stood(store: ObjectStore) -> None:
    found = judge_listing(context(store, 5, 5, fences={0: 1, 4: 2}), listing(0, 5))
    assert codes(found) == [("fence-missing", 4)]


def test_nothing_is_said_of_gaps_where_nobody_knows_what_was_flushed(store: ObjectStore) -> None:
    unknown = WalContext(home_of(store).shard(SHARD), None)
    assert list(judge_listing(unknown, listing(1, 5))) == []


# -- what it costs -----------------------------------------------------------------------------


def test_an_unreadable_entry_costs_what_stood_there(store: ObjectStore) -> None:
    one = context(store, 2, 9, PART, fences={3: 2})
    found = {
        codes(iter([each]))[0][1]: each
        for each in judge_listing(one, listing(*range(10), empty=(1, 3, 7, 8)))
        if each.code.startswith("entry")
    }
    assert (found[1].code, found[1].is_error) == ("entry-old-damaged", False)
    assert found[3].lost.startswith("no row: it is a fence barrier")
    assert found[7].lost == "some of 30 rows of batch 4 (commit record 9); readers fail at this position"
    assert found[8].lost.startswith("no row of a committed batch")
    assert "(position 3) over it" in found[8].do
    assert found[7].do == KINDS["entry-empty"].do, "only a restore helps"


@pytest.mark.parametrize(
    ("fences", "whole", "dead"),
    [
        ({3: 2}, True, True),
        ({3: 1, 9: 2}, True, True),
        ({}, True, False),
        ({3: 2}, False, False),
        ({9: 2}, True, False),
        ({3: 1}, True, False),
        ({3: 1, 9: 3}, True, False),
    ],
    ids=[
        "the stream has the shard",
        "the next claim was the stream's",
        "no stream",
        "a record is lost",
        "before the first fence",
        "another has claimed it since",
        "another had it in between",
    ],
)
def test_what_may_be_a_direct_writers_row_is_never_called_dead(
    store: ObjectStore, fences: dict[int, int], whole: bool, dead: bool
) -> None:
    one = context(store, 2, 9, fences=fences, logs_whole=whole)
    (empty,) = (each for each in judge_listing(one, listing(*range(10), empty=(8,))) if each.code == "entry-empty")
    told = "no row of a committed batch" if dead else "acknowledged rows of a writer"
    assert empty.lost.startswith(told)
    assert ("copy the fence barrier" in empty.do) == dead


def test_two_owners_of_a_shard_are_joined() -> None:
    one = Listed("s", ((1, 3),), 0, 8, [ListedPart(2, 0, (8,), "a", 1)])
    two = Listed("s", ((5, 6),), -1, 20, [ListedPart(7, 0, (11, 12), "b", 1)])
    both = joined([two, one])
    assert [position for position in range(25) if both.lists(position)] == [1, 2, 3, 5, 6, 8, 11, 12]
    assert (both.last, both.known_above) == (20, 0)
    assert list(both.positions()) == [1, 2, 3, 5, 6, 8, 11, 12]
    part = both.part_at(12)
    assert part is not None
    assert part.attempt_id == "b"


def test_only_what_two_looks_find_is_told() -> None:
    gone, stays = finding("wal-hole", "a", "once"), finding("wal-hole", "b", "once")
    again = finding("wal-hole", "b", "twice")
    new = finding("wal-hole", "c", "later")
    assert confirmed([gone, stays], [again, new]) == [again]


# -- following the advice --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Table:
    return make(tmp_path_factory.mktemp("fsck") / "table")


@pytest.fixture
def table(whole: Table, tmp_path: Path) -> Table:
    return copied(whole, tmp_path / "table")


def test_a_dead_entry_without_bytes_stops_readers_until_a_barrier_takes_its_place(table: Table) -> None:
    rows_before = table.scan().read_all().num_rows
    driver = open_stream(table)
    dead_attempt(driver, ranges_of(9))
    shard = shard_of(table, 0)
    entry(shard, tip(shard) - 1).write_bytes(b"")
    with pytest.raises(Corrupt):
        table.scan().read_all()
    (found,) = fsck(table.uri).findings
    assert found.code == "entry-empty"
    _, barrier, *_ = found.do.split("_mem_wal/")
    shutil.copy(Path(table.uri) / "_mem_wal" / barrier.split(" ")[0], entry(shard, tip(shard) - 1))
    assert fsck(table.uri).findings == ()
    assert table.scan().read_all().num_rows == rows_before
    batches(open_stream(table), [9])
    assert table.scan().read_all().num_rows > rows_before


def test_a_damaged_fold_whose_records_are_there_is_deleted_and_nothing_is_lost(table: Table) -> None:
    rows_before = table.scan().read_all().num_rows
    newest = max(Path(table.uri).glob("_headgate/*/streams/*/folds/*.json"))
    newest.write_bytes(b"")
    (found,) = fsck(table.uri).findings
    assert found.lost == "nothing: every record that it sums up still exists"
    newest.unlink()
    assert fsck(table.uri).findings == ()
    assert table.scan().read_all().num_rows == rows_before


def test_a_damaged_fold_whose_records_were_collected_is_a_loss(table: Table) -> None:
    collect(table)
    newest = max(Path(table.uri).glob("_headgate/*/streams/*/folds/*.json"))
    newest.write_bytes(b"")
    found = {one.code: one for one in fsck(table.uri).findings}
    assert set(found) == {"fold-damaged"}
    assert found["fold-damaged"].lost == KINDS["fold-damaged"].lost


def test_a_damaged_record_hides_no_other_damage(table: Table) -> None:
    record_file(table, 11).write_bytes(b"")
    shard = table.home.shard(DIRECT)
    entry(shard, tip(shard) - 1).write_bytes(b"")
    shutil.rmtree(Path(table.uri) / "_mem_wal" / str(shard.id) / latest(shard).sstables[0].path)
    assert {one.code for one in fsck(table.uri).findings} == {"log-record-damaged", "entry-empty", "sstable-missing"}


def test_a_place_without_a_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        fsck(str(tmp_path / "nothing"))
    import lance

    lance.write_dataset(rows(1), str(tmp_path / "plain"))
    with pytest.raises(InvalidInput, match="not a headgate table"):
        fsck(str(tmp_path / "plain"))


# -- bounds -----------------------------------------------------------------------------------------


def test_more_findings_than_anybody_reads_are_counted(table: Table) -> None:
    shard = table.home.shard(DIRECT)
    for number in range(MAX_FINDINGS + 20):
        (entry(shard, 0).parent / f"stray-{number}").write_bytes(b"")
    checked = check_table(table.home, table.shard_ids())
    assert (len(checked.findings), checked.untold) == (MAX_FINDINGS, 20)


@pytest.mark.parametrize(("sizes", "most"), [([30, 40, 30, 10, 20, 60, 1], 100), ([500, 60, 30, 500], 500)])
def test_no_more_is_read_at_once_than_the_budget(monkeypatch: pytest.MonkeyPatch, sizes: list[int], most: int) -> None:
    """One that is larger than the budget goes alone."""
    monkeypatch.setattr(parallel, "BUDGET", 100)
    lock = threading.Lock()
    held: list[int] = [0]
    now = 0

    def read(size: int) -> int:
        nonlocal now
        with lock:
            now += size
            held.append(now)
        time.sleep(0.001)
        with lock:
            now -= size
        return size

    with parallel.Pool("test", 8) as pool:
        assert list(parallel.in_order(pool, read, sizes * 20, lambda size: size)) == sizes * 20
    assert max(sizes) <= max(held) <= most


def test_no_more_results_wait_than_is_allowed() -> None:
    taken = 0

    def items() -> Iterator[int]:
        nonlocal taken
        for number in range(1000):
            taken = number
            yield number

    with parallel.Pool("test", 2) as pool:
        results = parallel.in_order(pool, lambda number: number, items())
        assert next(results) == 0
        assert taken <= parallel.AHEAD
        assert list(results) == list(range(1, 1000))


@pytest.mark.deep
def test_a_wal_of_many_entries_is_checked_in_little_memory(tmp_path: Path) -> None:
    import tracemalloc

    from headgate.table.create import create_table
    from tests.support.life import SCHEMA

    table = create_table(str(tmp_path / "table"), SCHEMA)
    with table.writer("single", WAL_ONLY) as writer:
        for number in range(20_000):
            writer.put(rows(number))
    tracemalloc.start()
    checked = check_table(table.home, table.shard_ids())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert checked.findings == ()
    assert checked.objects["entries"] == 20_001
    assert peak < 32 << 20, f"{peak >> 20} MiB"
