"""The WAL store of a clone: never its parent's, open to a choice until its first writer, fixed from then on."""

from __future__ import annotations

import pickle
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from headgate.errors import Corrupt, InvalidInput, WalStoreMismatch
from headgate.shards.home.choice import choice_key
from headgate.shards.writer import ShardWriter
from headgate.steps import watching
from headgate.table.table import Table, open_table
from tests.support.clones import (
    CONFIG,
    DIRECT,
    STREAM,
    WAL_ONLY,
    content,
    files,
    flush,
    ids,
    open_stream,
    rows,
    run_batch,
    streamed,
)
from tests.support.life import TOPIC, expected_rows, ranges_of
from tests.support.tables import claimed

SECRET = "the-secret-of-this-test"


@pytest.fixture
def source(tmp_path: Path) -> Table:
    return streamed(tmp_path / "src", wal_uri=str(tmp_path / "src-wal"))[0]


@pytest.fixture
def clone(tmp_path: Path, source: Table) -> Table:
    return source.clone(str(tmp_path / "clone"), names=[DIRECT])


def wal_files(path: Path) -> set[str]:
    """Entries of shards; dead letters stay with the table's records."""
    return {name for name in files(path) if name.startswith("_mem_wal/") and "/wal/" in name}


def write(table: Table, *numbers: int) -> None:
    with table.writer(DIRECT, WAL_ONLY) as writer:
        writer.put(rows(*numbers))


def test_the_wal_store_of_the_parent_is_not_inherited(tmp_path: Path, source: Table, clone: Table) -> None:
    before = files(tmp_path / "src-wal")
    assert clone.record.wal_uri is None
    assert wal_files(tmp_path / "clone")
    write(clone, -4)
    assert files(tmp_path / "src-wal") == before
    assert content(clone)[0] == content(source)[0] + Counter([(-4, "direct")])


def test_a_clone_that_is_given_a_wal_store_has_its_entries_there_and_takes_no_other(
    tmp_path: Path, source: Table
) -> None:
    clone = source.clone(str(tmp_path / "clone"), wal_uri=str(tmp_path / "wal"), names=[DIRECT])
    assert wal_files(tmp_path / "clone") == set()
    assert wal_files(tmp_path / "wal")
    assert content(clone) == content(source)
    write(open_table(clone.uri), -4)
    for other in (clone.uri, str(tmp_path / "other"), f"s3://user:{SECRET}@bucket/wal?token={SECRET}"):
        with pytest.raises(WalStoreMismatch) as refused:
            open_table(clone.uri, wal_uri=other)
        assert str(tmp_path / "wal") in str(refused.value)
        assert ("s3://bucket/wal" if "s3" in other else other) in str(refused.value)
        assert SECRET not in str(refused.value)
    assert not (tmp_path / "other").exists()


def test_a_read_only_open_with_a_given_store_works_and_writes_nothing(
    tmp_path: Path, source: Table, clone: Table
) -> None:
    before = files(tmp_path / "clone")
    for wal_uri in (None, str(tmp_path / "wal"), str(tmp_path / "other"), clone.uri):
        table = open_table(clone.uri, wal_uri=wal_uri)
        assert content(table) == content(source)
        assert len(claimed(table)) == 3
        assert content(pickle.loads(pickle.dumps(table))) == content(source)
    assert files(tmp_path / "clone") == before
    assert not (tmp_path / "wal").exists()


def test_what_the_table_itself_kept_of_its_wal_is_collected_as_well(tmp_path: Path, clone: Table) -> None:
    write(open_table(clone.uri, wal_uri=str(tmp_path / "wal")), -4)
    table = open_table(clone.uri)
    table.flush()
    before, kept = content(table), len(wal_files(tmp_path / "clone"))
    assert table.collect_garbage(min_age=timedelta(0), apply=True).found
    assert len(wal_files(tmp_path / "clone")) < kept
    assert not [one for one in table.collect_garbage(min_age=timedelta(0)).found if one.kind == "wal entry"]
    assert content(open_table(clone.uri)) == content(clone) == before
    write(open_table(clone.uri), -5)


def test_the_first_writer_persists_the_store_it_was_given(tmp_path: Path, source: Table, clone: Table) -> None:
    table = open_table(clone.uri, wal_uri=str(tmp_path / "wal"))
    own = wal_files(tmp_path / "clone")
    write(table, -4)
    assert wal_files(tmp_path / "clone") == own
    assert wal_files(tmp_path / "wal") > own
    wanted = content(source)[0] + Counter([(-4, "direct")])
    for again in (table, clone, open_table(clone.uri), open_table(clone.uri, wal_uri=f"file://{tmp_path / 'wal'}")):
        assert content(again)[0] == wanted
    assert open_table(clone.uri).record.wal_uri == str(tmp_path / "wal")
    with pytest.raises(WalStoreMismatch):
        open_table(clone.uri, wal_uri=str(tmp_path / "other"))
    write(open_table(clone.uri), -5)
    write(clone, -6)
    assert wal_files(tmp_path / "clone") == own
    assert ids(open_table(clone.uri))[:3] == [-11, -10, -6]


def test_a_first_writer_without_one_keeps_the_wal_in_the_table_for_ever(tmp_path: Path, clone: Table) -> None:
    write(open_table(clone.uri), -4)
    again = open_table(clone.uri)
    assert again.home.wal_store is again.home.store
    with pytest.raises(WalStoreMismatch, match="WALs are in") as refused:
        open_table(clone.uri, wal_uri=str(tmp_path / "wal"))
    assert refused.value.table == clone.uri
    assert [shard.native_safe for shard in claimed(open_table(clone.uri)) if not shard.sealed] == [True]


def test_a_writer_that_comes_second_with_another_store_is_refused_before_it_claims(
    tmp_path: Path, clone: Table
) -> None:
    late = open_table(clone.uri, wal_uri=str(tmp_path / "late"))
    live = open_table(clone.uri, wal_uri=str(tmp_path / "wal")).writer(DIRECT, WAL_ONLY)
    manifest = clone.shard(DIRECT).manifests.latest()
    with pytest.raises(WalStoreMismatch) as refused:
        late.writer(DIRECT, WAL_ONLY)
    assert str(tmp_path / "wal") in str(refused.value)
    assert str(tmp_path / "late") in str(refused.value)
    with pytest.raises(WalStoreMismatch):
        late.scan()
    assert clone.shard(DIRECT).manifests.latest() == manifest
    live.put(rows(-4))
    live.close()
    assert not (tmp_path / "late").exists()


def test_a_store_that_no_writer_has_chosen_takes_no_entry(tmp_path: Path, clone: Table) -> None:
    table, before = open_table(clone.uri, wal_uri=str(tmp_path / "wal")), files(tmp_path / "clone")
    with pytest.raises(InvalidInput, match="no writer has opened the clone"):
        table.home.wal_store.put_if_absent(table.shard(DIRECT).wal_key(1000), b"")
    assert (files(tmp_path / "clone"), (tmp_path / "wal").exists()) == (before, False)


def test_of_two_writers_that_choose_at_once_one_wins(tmp_path: Path, clone: Table) -> None:
    first = open_table(clone.uri, wal_uri=str(tmp_path / "first"))
    second = open_table(clone.uri, wal_uri=str(tmp_path / "second"))

    def pause(step: str) -> None:
        if step == "barrier":
            write(first, -4)

    with pytest.raises(InvalidInput, match="WALs are in"):
        with watching(pause):
            ShardWriter.open(second.home, second.shard(DIRECT).id, WAL_ONLY)
    assert open_table(clone.uri).record.wal_uri == str(tmp_path / "first")
    write(open_table(clone.uri), -5)
    assert {-4, -5} < set(ids(open_table(clone.uri)))


def test_a_stream_chooses_as_well_and_flushes_from_there(tmp_path: Path, clone: Table) -> None:
    table = open_table(clone.uri, wal_uri=str(tmp_path / "wal"))
    driver = open_stream(table)
    run_batch(driver, 3, ranges_of(3))
    flush(driver)
    run_batch(driver, 4, ranges_of(4))
    wanted = expected_rows(part for number in range(5) for part in ranges_of(number))
    for again in (table, clone, open_table(clone.uri)):
        assert Counter(i for i in ids(again) if i >= 0) == wanted
    assert driver.stream == STREAM
    again = open_table(clone.uri)
    assert again.collect_garbage(min_age=timedelta(0), apply=True).found
    assert Counter(i for i in ids(open_table(clone.uri)) if i >= 0) == wanted


def test_a_checkpoint_of_a_stopped_clone_works_with_a_given_store(tmp_path: Path, source: Table, clone: Table) -> None:
    table = open_table(clone.uri, wal_uri=str(tmp_path / "wal"))
    table.checkpoint(name="durable")
    assert not (tmp_path / "wal").exists()
    assert content(open_table(clone.uri, checkpoint="durable")) == content(source)
    table.checkpoint("all", name="all")
    assert open_table(clone.uri).record.wal_uri == str(tmp_path / "wal")
    for name in ("durable", "all"):
        assert content(open_table(clone.uri, checkpoint=name)) == content(source)
    manifest = clone.shard(f"partition:{TOPIC}:0").manifests.latest()
    assert manifest is not None
    assert manifest.replay_after == manifest.last_seen


def test_a_clone_of_a_clone_that_has_not_chosen_yet(tmp_path: Path, source: Table, clone: Table) -> None:
    table = open_table(clone.uri, wal_uri=str(tmp_path / "wal"))
    before = files(tmp_path / "clone")
    second = table.clone(str(tmp_path / "second"), names=[DIRECT])
    assert content(second) == content(source)
    left = {name for name in files(tmp_path / "clone") - before if "latest_version_hint" not in name}
    assert left == {f"_refs/tags/headgate-clone-{second.table_id}.json"}


def test_a_choice_that_is_damaged_is_said_to_be(tmp_path: Path, clone: Table) -> None:
    write(clone, -4)
    key = tmp_path / "clone" / choice_key(clone.table_id)
    key.write_bytes(key.read_bytes().replace(b"null", b"7"))
    with pytest.raises(Corrupt, match="choice of a WAL store"):
        open_table(clone.uri)


def test_operations_are_counted_once(tmp_path: Path, clone: Table) -> None:
    table = open_table(clone.uri, wal_uri=str(tmp_path / "wal"))
    with table.writer(DIRECT, replace(WAL_ONLY, durable_write=True)) as writer:
        for store in (table.home.store, table.home.wal_store):
            store.reset_operations()
        writer.put(rows(-4))
        assert table.home.store.operations() == {}
        assert table.home.wal_store.operations() == {"put": 1}


def test_a_writer_with_memtables_replays_what_the_clone_copied(tmp_path: Path, source: Table, clone: Table) -> None:
    table = open_table(clone.uri, wal_uri=str(tmp_path / "wal"))
    with table.writer(DIRECT, CONFIG) as writer:
        assert sorted(writer.active_memtable()["id"].to_pylist()) == [-3]
        writer.put(rows(-4))
        writer.flush_memtable()
    assert content(open_table(clone.uri))[0] == content(source)[0] + Counter([(-4, "direct")])
