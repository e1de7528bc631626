"""A table that was made without a WAL store takes one later: shard by shard, and no row is missed meanwhile."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from headgate.errors import Fenced, InvalidInput, WalStoreMismatch
from headgate.shards import names
from headgate.shards.home.choice import choice_key
from headgate.shards.wal.appender import WalAppender
from headgate.steps import watching
from headgate.table.create import create_table
from headgate.table.fsck import fsck
from headgate.table.table import Table, open_table
from tests.support.clones import (
    CONFIG,
    DIRECT,
    WAL_ONLY,
    content,
    files,
    flush,
    ids,
    open_stream,
    rows,
    run_batch,
    small,
    streamed,
)
from tests.support.life import TOPIC, expected_rows, ranges_of
from tests.support.stores import Crash
from tests.support.tables import claimed

STEPS = ("look", "claim", "tip", "barrier", "re-read", "noted", "copied")


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """With tails in the WALs of a stream and of a direct writer."""
    return small(tmp_path / "t")


def entries(root: Path, table: Table, shard: str) -> set[str]:
    return {name for name in files(root) if name.startswith(names.wal_folder(table.shard(shard).id) + "/")}


def sound(table: Table) -> None:
    report = fsck(table.uri)
    assert not report.findings, report.findings


def test_reading_with_a_wal_store_writes_nothing(tmp_path: Path, table: Table) -> None:
    wanted, before = content(table), files(tmp_path)
    given = open_table(table.uri, wal_uri=str(tmp_path / "wal"))
    assert content(given) == wanted
    assert (given.record.wal_uri, files(tmp_path)) == (None, before)
    assert content(open_table(table.uri, wal_uri=str(tmp_path / "other"))) == wanted, "nobody has chosen yet"


@pytest.mark.parametrize("flushed", [False, True], ids=["tail copied", "gap closed"])
def test_the_first_writer_persists_the_store_and_readers_find_both_places(tmp_path: Path, flushed: bool) -> None:
    table, _ = streamed(tmp_path / "t")
    if flushed:
        table.flush()
    wanted, _ = content(table)
    given = open_table(table.uri, wal_uri=str(tmp_path / "wal"))
    before = table.writer(DIRECT, WAL_ONLY)
    with given.writer(DIRECT, CONFIG) as writer:
        writer.put(rows(-4))
        with pytest.raises(Fenced):
            before.put(rows(-99))
        assert content(given)[0] == wanted + Counter([(-4, "direct")])
    found = open_table(table.uri)
    assert found.record.wal_uri == str(tmp_path / "wal")
    assert not [shard for shard in claimed(found) if shard.native_safe]
    assert content(found)[0] == wanted + Counter([(-4, "direct")])
    assert entries(tmp_path / "wal", table, DIRECT)
    assert not entries(tmp_path / "wal", table, f"partition:{TOPIC}:0"), "that shard moves when its stream opens it"
    sound(table)
    taken = found.checkpoint(name="then")
    run_batch(open_stream(found), 3, ranges_of(3))
    assert entries(tmp_path / "wal", table, f"partition:{TOPIC}:0")
    flush(open_stream(found))
    for shown in (found, open_table(table.uri)):
        assert Counter(i for i in ids(shown) if i >= 0) == expected_rows(p for n in range(4) for p in ranges_of(n))
    assert content(open_table(table.uri, checkpoint=taken.name))[0] == wanted + Counter([(-4, "direct")])
    clone = found.clone(str(tmp_path / "clone"), names=[DIRECT])
    assert content(clone) == content(found)
    with clone.writer(DIRECT, CONFIG) as writer:
        writer.put(rows(-5))
    found.flush()
    found.collect_garbage(min_age=timedelta(0), apply=True)
    assert content(open_table(table.uri))[0] == content(found)[0]
    sound(found)
    sound(clone)


def test_another_store_than_the_chosen_one_is_refused_with_both_named(tmp_path: Path, table: Table) -> None:
    rival = open_table(table.uri, wal_uri=str(tmp_path / "other"))
    open_table(table.uri, wal_uri=str(tmp_path / "wal")).writer(DIRECT, WAL_ONLY).close()
    wanted = content(open_table(table.uri))
    for other in (str(tmp_path / "other"), table.uri):
        with pytest.raises(WalStoreMismatch, match=f"WALs are in {tmp_path / 'wal'}, but it was opened with {other}"):
            open_table(table.uri, wal_uri=other)
    with pytest.raises(InvalidInput, match=f"moved to {tmp_path / 'wal'}"):
        rival.writer(DIRECT, WAL_ONLY)
    with pytest.raises(WalStoreMismatch, match=str(tmp_path / "wal")):
        rival.writer(f"partition:{TOPIC}:5", WAL_ONLY)
    assert not files(tmp_path / "other")
    assert content(open_table(table.uri)) == wanted


def test_who_opened_the_table_before_is_told_to_open_it_again(tmp_path: Path, table: Table) -> None:
    with open_table(table.uri, wal_uri=str(tmp_path / "wal")).writer(DIRECT, WAL_ONLY) as writer:
        writer.put(rows(-4))
    epochs = [shard.epoch for shard in claimed(table)]
    stale_calls: list[Callable[[], object]] = [
        lambda: table.writer(DIRECT, WAL_ONLY),
        lambda: table.writer(DIRECT, CONFIG),
        table.scan,
        table.checkpoint,
    ]
    for stale in stale_calls:
        with pytest.raises(InvalidInput, match="open the table again"):
            stale()
    assert [shard.epoch for shard in claimed(table)] == epochs, "nobody was fenced"
    assert -4 in ids(open_table(table.uri))


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_step_of_a_move_loses_nothing(tmp_path: Path, table: Table, step: str) -> None:
    wanted = content(table)
    given = open_table(table.uri, wal_uri=str(tmp_path / "wal"))

    def die(at: str) -> None:
        if at == step:
            raise Crash(step)

    with pytest.raises(Crash):
        with watching(die):
            WalAppender.open(given.shard(DIRECT))
    noted = (tmp_path / "t" / choice_key(table.table_id)).exists()
    assert noted == (step in ("noted", "copied"))
    assert content(table) == content(given) == content(open_table(table.uri)) == wanted, "the shard is where it was"
    sound(table)
    # Who does not know of the new store may go on; then the move is made.
    with table.writer(DIRECT, WAL_ONLY) as writer:
        writer.put(rows(-50))
    with given.writer(DIRECT, CONFIG) as writer:
        writer.put(rows(-51))
    found = open_table(table.uri)
    assert content(found)[0] == wanted[0] + Counter([(-50, "direct"), (-51, "direct")])
    sound(found)


def test_a_move_that_another_writer_overtakes_is_fenced_and_nothing_moves(tmp_path: Path, table: Table) -> None:
    given = open_table(table.uri, wal_uri=str(tmp_path / "wal"))

    def overtake(at: str) -> None:
        if at == "copied":
            with table.writer(DIRECT, WAL_ONLY) as writer:
                writer.put(rows(-50))

    wanted = content(table)[0] + Counter([(-50, "direct")])
    with pytest.raises(Fenced):
        with watching(overtake):
            WalAppender.open(given.shard(DIRECT))
    assert content(table)[0] == content(given)[0] == content(open_table(table.uri))[0] == wanted


def test_checkpoint_all_moves_every_shard_and_the_old_place_may_go(tmp_path: Path, table: Table) -> None:
    open_table(table.uri, wal_uri=str(tmp_path / "wal")).flush()
    found = open_table(table.uri)
    wanted = content(found)
    shutil.rmtree(tmp_path / "t" / names.wal_folder(table.shard(DIRECT).id))
    with found.writer(DIRECT, CONFIG) as writer:
        writer.put(rows(-60))
    assert content(found)[0] == wanted[0] + Counter([(-60, "direct")])


def test_a_collection_of_a_moved_wal_counts_each_object_once(tmp_path: Path, table: Table) -> None:
    given = open_table(table.uri, wal_uri=str(tmp_path / "wal"))
    with given.writer(DIRECT, CONFIG) as writer:
        writer.put(rows(-4))
        writer.flush_memtable()
        writer.put(rows(-5))
    (tmp_path / "t" / names.wal_folder(table.shard(DIRECT).id) / "stray").write_bytes(b"12345")
    wanted, found = content(given), given.collect_garbage(min_age=timedelta(0))
    named = Counter(f"{one.store.uri}/{one.key}" for one in found.found)
    assert set(named.values()) == {1}
    sizes = {path: Path(path).stat().st_size for path in named}
    assert found.nbytes == sum(sizes.values())
    entries_gone = [path for path in named if "/wal/" in path and path.endswith(".arrow")]
    assert {str(tmp_path / "t"), str(tmp_path / "wal")} == {path.partition("/_mem_wal/")[0] for path in entries_gone}
    given.collect_garbage(min_age=timedelta(0), apply=True)
    assert not [path for path in named if Path(path).exists()]
    assert content(open_table(table.uri)) == wanted
    sound(open_table(table.uri))


def test_a_new_shard_of_a_table_with_a_given_store_is_there(tmp_path: Path) -> None:
    table = create_table(str(tmp_path / "t"), rows(1).schema)
    with open_table(table.uri, wal_uri=str(tmp_path / "wal")).writer("single", CONFIG) as writer:
        writer.put(rows(1))
    found = open_table(table.uri)
    assert (ids(found), found.record.wal_uri) == ([1], str(tmp_path / "wal"))
    assert len(entries(tmp_path / "t", table, "single")) == 1, "the barrier that fences writers of before"
    assert len(entries(tmp_path / "wal", table, "single")) == 2, "an append creates no folder: the barrier came along"
    sound(found)
