"""Clones: the rows of one instant, streams that go on, and a source that nobody disturbed."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import threading
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from lance.mem_wal import CompactedSsTable

from headgate.checkpoints.clone.clone import CLONE_STEPS
from headgate.checkpoints.clone.intent import KEY, read_intent
from headgate.checkpoints.jobs.compact import COMPACT_STEPS
from headgate.checkpoints.log.commit_log import CommitLog
from headgate.checkpoints.log.records import OpenRecord
from headgate.checkpoints.offline.compact import compact_stopped
from headgate.checkpoints.snapshots.checkpoint import ROOT as CHECKPOINTS
from headgate.connectors.lance.base.synced import sync_base
from headgate.connectors.objects import open_store
from headgate.connectors.objects.local import LocalStore
from headgate.errors import AlreadyExists, DataLoss, InvalidInput, NotFound, PermissionDenied
from headgate.shards import names
from headgate.shards.manifest.model import CLAIM_ID
from headgate.shards.sharding import bucket, by_partition
from headgate.shards.wal.tailer import WalTailer
from headgate.steps import watching
from headgate.table.create import create_table
from headgate.table.fsck import fsck
from headgate.table.table import Table, open_table
from tests.support.clones import (
    CONFIG,
    DIRECT,
    STREAM,
    WAL_ONLY,
    clone_into,
    content,
    faulty,
    files,
    flush,
    ids,
    objects,
    open_stream,
    rows,
    run_batch,
    small,
    streamed,
    through,
)
from tests.support.life import (
    KEYED,
    SCHEMA,
    TOPIC,
    batch_of,
    expected_dead,
    expected_rows,
    ranges_of,
    run_task,
    write_plan,
    written,
)
from tests.support.stores import Crash
from tests.support.tables import claimed


@pytest.fixture
def source(tmp_path: Path) -> Table:
    return streamed(tmp_path / "src")[0]


def committed(*numbers: int) -> Counter[int]:
    return expected_rows(part for number in numbers for part in ranges_of(number))


# -- what a clone holds ------------------------------------------------------------------


@pytest.mark.parametrize("deep", [False, True], ids=["shallow", "deep"])
def test_a_clone_of_a_streamed_table_has_exactly_the_visible_rows_and_dead_letters(
    tmp_path: Path, source: Table, deep: bool
) -> None:
    clone = source.clone(str(tmp_path / "clone"), deep=deep, names=[DIRECT])
    assert content(clone) == content(source)
    assert Counter(i for i in ids(clone) if i >= 0) == committed(0, 1, 2)
    assert [i for i in ids(clone) if i < 0] == [-11, -10, -3, -2, -1]
    assert content(clone)[1] == expected_dead(part for number in range(3) for part in ranges_of(number))
    assert clone.table_id != source.table_id
    assert {shard.id for shard in claimed(clone)}.isdisjoint(shard.id for shard in claimed(source))
    assert clone.shard(DIRECT).manifests.latest() is not None


def test_nothing_but_the_pin_and_a_tag_is_written_at_the_source(tmp_path: Path, source: Table) -> None:
    sync_base(source.home.store)
    before = objects(source.home.store)
    store = faulty(source.home.store)
    clone_into(through(source, store), open_store(str(tmp_path / "clone")))
    after = objects(source.home.store)
    intent = read_intent(open_store(str(tmp_path / "clone")))
    assert intent is not None
    assert {key: size for key, size in after.items() if key in before} == before
    assert [key.removeprefix(source.uri) for key in after if key not in before] == [f"/_refs/tags/{intent.tag}.json"]
    written = [one for one in store.log if one.verb in ("put_if_absent", "put_overwrite", "delete")]
    pinned = f"_headgate/{source.table_id}/{CHECKPOINTS}"
    assert [one.verb for one in written] == ["put_if_absent", "delete"]
    assert all(one.key.startswith(pinned) for one in written)


def test_writers_and_streams_of_the_source_are_not_fenced(tmp_path: Path) -> None:
    source, driver = streamed(tmp_path / "src")
    with source.writer(DIRECT, CONFIG) as writer:
        source.clone(str(tmp_path / "clone"), names=[DIRECT])
        writer.put(rows(-4))
    run_batch(driver, 3, ranges_of(3))
    assert -4 in ids(source)
    assert Counter(i for i in ids(source) if i >= 0) == committed(0, 1, 2, 3)


def test_source_and_clone_evolve_apart(tmp_path: Path, source: Table) -> None:
    clone = source.clone(str(tmp_path / "clone"), names=[DIRECT])
    before = content(source)
    driver = open_stream(clone, "another query")
    run_batch(driver, 0, ranges_of(3), "another query")
    with clone.writer(DIRECT, CONFIG) as writer:
        writer.put(rows(-100))
        writer.flush_memtable()
    assert content(source) == before
    with source.writer(DIRECT, CONFIG) as writer:
        writer.put(rows(-200))
    run_batch(open_stream(source), 3, ranges_of(3))
    assert (-100 in ids(clone), -200 in ids(clone)) == (True, False)
    assert (-100 in ids(source), -200 in ids(source)) == (False, True)
    for table in (source, clone):
        assert Counter(i for i in ids(table) if i >= 0) == committed(0, 1, 2, 3)
    lance.dataset(clone.uri).delete("note = 'base'")
    assert (-10 in ids(clone), -10 in ids(source)) == (False, True)


def test_a_stream_goes_on_in_the_clone_from_the_same_offsets_and_skips_what_was_committed(
    tmp_path: Path, source: Table
) -> None:
    clone = source.clone(str(tmp_path / "clone"), names=[DIRECT])
    was = CommitLog(source.home.records, STREAM, source.uri).read().head
    head = CommitLog(clone.home.records, STREAM, clone.uri).read().head
    assert (head.sequence, head.ends) == (was.sequence + 1, was.ends)
    assert isinstance(CommitLog(clone.home.records, STREAM, clone.uri).record(head.sequence), OpenRecord)
    driver = open_stream(clone)
    assert run_batch(driver, 2, ranges_of(2)).sequence == was.last.sequence  # type: ignore[union-attr]
    with pytest.raises(InvalidInput, match="does not continue"):
        run_batch(driver, 3, ranges_of(4))
    run_batch(driver, 3, ranges_of(3))
    assert Counter(i for i in ids(clone) if i >= 0) == committed(0, 1, 2, 3)
    assert content(clone)[1] == expected_dead(part for number in range(4) for part in ranges_of(number))


def test_the_attempt_of_a_batch_in_flight_is_dead_in_the_clone(tmp_path: Path) -> None:
    source, driver = streamed(tmp_path / "src")
    plan = write_plan(driver, ranges_of(3))
    told = [run_task(plan, parts) for parts in plan.sources.values()]
    clone = source.clone(str(tmp_path / "clone"), names=[DIRECT])
    driver.commit(batch_of(plan, written(*told), 3, ranges_of(3)))
    assert Counter(i for i in ids(source) if i >= 0) == committed(0, 1, 2, 3)
    assert Counter(i for i in ids(clone) if i >= 0) == committed(0, 1, 2)
    flush(open_stream(clone))
    assert Counter(i for i in ids(clone) if i >= 0) == committed(0, 1, 2)


def test_rows_that_were_compacted_into_the_base_are_not_doubled_and_deletes_stay(tmp_path: Path) -> None:
    source = create_table(str(tmp_path / "src"), KEYED, sharding=bucket("id", 2))
    shard = source.shard("bucket-00000")
    with source.writer("bucket-00000", CONFIG) as writer:
        writer.put(rows(1, 2, 10))
        writer.flush_memtable()
        merge = lance.dataset(source.uri).merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
        merge.mark_sstables_as_compacted([CompactedSsTable(str(shard.id), 1)]).execute(
            pa.Table.from_batches([rows(1, 2, 10)]).cast(source.schema)
        )
        writer.put(rows(4))
        writer.delete(pa.record_batch({"id": [2]}))
        writer.flush_memtable()
        writer.put(rows(10, note="newer"))
    lance.dataset(source.uri).delete("id = 1")
    clone = source.clone(str(tmp_path / "clone"))
    assert ids(clone) == ids(source) == [4, 10]
    manifest = clone.shard("bucket-00000").manifests.latest()
    assert manifest is not None
    assert [sstable.generation for sstable in manifest.sstables] == [2]
    with clone.writer("bucket-00000", CONFIG) as writer:
        writer.put(rows(4, note="newest"))
        writer.flush_memtable()
    assert sorted(clone.scan().read_all()["note"].to_pylist()) == ["newer", "newest"]


@pytest.mark.parametrize("schema", [SCHEMA, KEYED], ids=["append", "key"])
def test_a_clone_that_is_made_amid_a_compaction_has_the_same_rows_and_compacts_on_its_own(
    tmp_path: Path, schema: pa.Schema
) -> None:
    class Stop(Exception):
        pass

    reached: set[str] = set()
    for step in COMPACT_STEPS:
        source = create_table(str(tmp_path / f"src {step}"), schema)
        with source.writer("single", CONFIG) as writer:
            writer.put(rows(1, 2, 3))
            writer.flush_memtable()
            if schema is KEYED:
                writer.delete(pa.record_batch({"id": [2]}))
                writer.flush_memtable()
            writer.put(rows(4))

        def pause(at: str, step: str = step) -> None:
            if at == step:
                reached.add(at)
                raise Stop

        with contextlib.suppress(Stop):
            with watching(pause):
                compact_stopped(source.home, source.shard_ids())
        clone = source.clone(str(tmp_path / f"clone {step}"))
        wanted = [1, 3, 4] if schema is KEYED else [1, 2, 3, 4]
        for table in (clone, source):
            assert ids(table) == wanted, step
            table.compact()
            assert ids(open_table(table.uri)) == wanted, step
        notes = [key for key in lance.dataset(clone.uri).config() if str(source.shard("single").id) in key]
        assert notes == [], step
    assert len(reached) > 6


def test_the_index_name_of_base_and_sstables_comes_along(tmp_path: Path) -> None:
    source = create_table(str(tmp_path / "src"), SCHEMA, full_text="note")
    lance.write_dataset(pa.Table.from_batches([rows(1, note="brown fox")]), source.uri, mode="append")
    lance.dataset(source.uri).optimize.optimize_indices()
    with source.writer("single", CONFIG) as writer:
        writer.put(rows(2, note="red fox"))
        writer.flush_memtable()
    clone = source.clone(str(tmp_path / "clone"))
    assert clone.full_text == ("note",)
    assert lance.dataset(clone.uri).to_table(full_text_query="brown")["id"].to_pylist() == [1]
    assert sorted(clone.search("fox")["id"].to_pylist()) == [1, 2]


@pytest.mark.parametrize("deep", [True, False], ids=["deep", "shallow"])
def test_what_a_build_has_left_inside_an_index_does_not_hinder_a_clone(tmp_path: Path, deep: bool) -> None:
    source = create_table(str(tmp_path / "src"), SCHEMA, full_text="note")
    lance.write_dataset(pa.Table.from_batches([rows(1, note="brown fox")]), source.uri, mode="append")
    lance.dataset(source.uri).optimize.optimize_indices()
    store = source.home.store
    for index in store.list_folders("_indices/"):
        store.put_if_absent(f"_indices/{index}/staging/merged-0123.lance", b"a finalizer that died")
    clone = source.clone(str(tmp_path / "clone"), deep=deep)
    assert not [info.key for info in clone.home.store.list("_indices/") if "staging" in info.key]
    for table in (source, clone):
        assert lance.dataset(table.uri).to_table(full_text_query="brown")["id"].to_pylist() == [1]


def test_a_deep_clone_that_may_not_delete_leftovers_of_its_source_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = create_table(str(tmp_path / "src"), SCHEMA, full_text="note")
    (index,) = source.home.store.list_folders("_indices/")
    left = f"_indices/{index}/staging/merged-0123.lance"
    source.home.store.put_if_absent(left, b"a finalizer that died")
    delete = LocalStore.delete

    def refuse(store: LocalStore, key: str) -> None:
        if key == left:
            raise PermissionDenied("The store refused.")
        delete(store, key)

    monkeypatch.setattr(LocalStore, "delete", refuse)
    with pytest.raises(PermissionDenied, match=r"may not delete them.*headgate gc --apply") as caught:
        source.clone(str(tmp_path / "clone"), deep=True)
    assert caught.value.detail["key"] == left
    monkeypatch.undo()
    assert ids(source.clone(str(tmp_path / "clone"), deep=True)) == []


def test_a_table_without_a_shard_is_cloned(tmp_path: Path) -> None:
    source = create_table(str(tmp_path / "src"), SCHEMA)
    clone = source.clone(str(tmp_path / "clone"))
    assert ids(clone) == []
    with clone.writer("single", CONFIG) as writer:
        writer.put(rows(1))
    assert (ids(source), ids(clone)) == ([], [1])


def test_clones_of_clones_keep_rows_and_dead_letters_also_when_the_first_source_is_gone(
    tmp_path: Path, source: Table
) -> None:
    wanted = content(source)
    first = source.clone(str(tmp_path / "first"), names=[DIRECT])
    second = first.clone(str(tmp_path / "second"), names=[DIRECT])
    assert content(second) == wanted
    third = second.clone(str(tmp_path / "third"), deep=True, names=[DIRECT])
    for gone in (source, first, second):
        shutil.rmtree(gone.uri)
    assert content(open_table(third.uri)) == wanted
    run_batch(open_stream(third), 3, ranges_of(3))
    assert Counter(i for i in ids(third) if i >= 0) == committed(0, 1, 2, 3)


def test_native_opens_the_clone_once_a_writer_has_chosen_its_wal(tmp_path: Path) -> None:
    source = create_table(str(tmp_path / "src"), KEYED, sharding=bucket("id", 2))
    with source.writer("bucket-00000", CONFIG) as writer:
        writer.put(rows(1, 2))
        writer.flush_memtable()
        writer.put(rows(4))
    with source.writer("bucket-00001", CONFIG) as writer:
        for _ in range(5):
            writer.put(rows(5))
        writer.flush_memtable()
    clone = source.clone(str(tmp_path / "clone"))
    assert [shard.native_safe for shard in claimed(clone)] == [False, False]
    clone.writer("bucket-00000", WAL_ONLY).close()
    clone = open_table(clone.uri)
    assert [shard.native_safe for shard in claimed(clone)] == [True, True]
    for name, before in (("bucket-00000", [1, 2, 4]), ("bucket-00001", [5])):
        with lance.dataset(clone.uri).mem_wal_writer(str(clone.shard(name).id)) as native:
            assert sorted(native.lsm_scanner().to_table()["id"].to_pylist()) == before
            native.put(pa.Table.from_batches([rows(before[0] + 100)]).cast(clone.schema))
    assert ids(clone) == [1, 2, 4, 5, 101, 105]
    assert ids(source) == [1, 2, 4, 5]


def test_a_native_writer_of_a_clone_whose_wal_is_all_flushed_is_fenced_by_its_successor(tmp_path: Path) -> None:
    source = create_table(str(tmp_path / "src"), KEYED)
    with source.writer("single", CONFIG) as writer:
        for number in range(5):
            writer.put(rows(number))
        writer.flush_memtable()
    clone = source.clone(str(tmp_path / "clone"))
    shard = str(clone.shard("single").id)
    stalled = lance.dataset(clone.uri).mem_wal_writer(shard)
    with lance.dataset(clone.uri).mem_wal_writer(shard) as successor:
        with pytest.raises(OSError, match="fenced"):
            stalled.put(pa.Table.from_batches([rows(100)]).cast(clone.schema))
        successor.put(pa.Table.from_batches([rows(200)]).cast(clone.schema))
    assert ids(clone) == [0, 1, 2, 3, 4, 200]


def test_native_keeps_out_of_a_streamed_clone_until_its_stream_releases_it(tmp_path: Path, source: Table) -> None:
    clone = source.clone(str(tmp_path / "clone"), names=[DIRECT])
    shard = clone.shard(f"partition:{TOPIC}:0")
    with pytest.raises(OSError, match="sealed"):
        lance.dataset(clone.uri).mem_wal_writer(str(shard.id))
    clone.checkpoint("all")
    clone = open_table(clone.uri)
    assert all(info.native_safe for info in claimed(clone))
    lance.dataset(clone.uri).mem_wal_writer(str(shard.id)).close()
    assert Counter(i for i in ids(clone) if i >= 0) == committed(0, 1, 2)


def test_fsck_finds_nothing_in_a_clone(tmp_path: Path, source: Table) -> None:
    wal = str(tmp_path / "wal")
    shallow = source.clone(str(tmp_path / "shallow"), names=[DIRECT])
    chosen = source.clone(str(tmp_path / "chosen"), names=[DIRECT])
    with open_table(chosen.uri, wal_uri=str(tmp_path / "chosen-wal")).writer(DIRECT, CONFIG) as writer:
        writer.put(rows(-4))
    for clone in (shallow, chosen, source.clone(str(tmp_path / "deep"), deep=True, wal_uri=wal, names=[DIRECT])):
        assert fsck(clone.uri).checked.findings == ()
        driver = open_stream(open_table(clone.uri))
        run_batch(driver, 3, ranges_of(3))
        flush(driver)
        assert fsck(clone.uri).checked.findings == ()
    assert fsck(source.uri).checked.findings == ()


# -- what it is made of --------------------------------------------------------------------


def test_entries_are_copied_byte_for_byte_at_their_positions_and_a_barrier_stands_above(
    tmp_path: Path, source: Table
) -> None:
    clone = source.clone(str(tmp_path / "clone"), names=[DIRECT])
    for name in (f"partition:{TOPIC}:0", f"partition:{TOPIC}:1", DIRECT):
        old, new = source.shard(name), clone.shard(name)
        was, now = old.manifests.latest(), new.manifests.latest()
        assert was is not None
        assert now is not None
        entries = list(WalTailer(new).read(now.replay_after + 1))
        copied, barrier = entries[:-1], entries[-1]
        assert barrier.entry.header.barrier
        assert [one.position for one in copied] == [one.position for one in WalTailer(old).read(was.replay_after + 1)]
        for one in copied:
            key, new_key = old.wal_key(one.position), new.wal_key(one.position)
            assert bytes(old.wal.get(key)) == bytes(new.wal.get(new_key))
        assert (now.replay_after, now.generation, now.sstables) == (was.replay_after, was.generation, was.sstables)
        assert (now.owner, now.sealed) == (was.owner, was.sealed)
        assert now.version == 1
        assert now.epoch > max(one.entry.header.epoch for one in copied)
        assert now.field(CLAIM_ID) not in (None, was.field(CLAIM_ID))
        assert now.last_seen == barrier.position


def test_what_was_flushed_is_not_copied_as_wal(tmp_path: Path) -> None:
    source = create_table(str(tmp_path / "src"), SCHEMA)
    with source.writer("single", CONFIG) as writer:
        for number in range(20):
            writer.put(rows(number))
        writer.flush_memtable()
    clone = source.clone(str(tmp_path / "clone"))
    folder = names.wal_folder(clone.shard("single").id) + "/"
    assert len(list(clone.home.store.list(folder))) == 1
    assert ids(clone) == list(range(20))


# -- checkpoints ----------------------------------------------------------------------------


@pytest.mark.parametrize("deep", [False, True], ids=["shallow", "deep"])
def test_a_clone_of_a_checkpoint_has_its_rows_while_the_source_goes_on(tmp_path: Path, deep: bool) -> None:
    source, driver = streamed(tmp_path / "src")
    wanted = content(source)
    source.checkpoint(name="then")
    run_batch(driver, 3, ranges_of(3))
    driver = open_stream(source)
    flush(driver)
    with source.writer(DIRECT, CONFIG) as writer:
        writer.put(rows(-50))
        writer.flush_memtable()
    lance.dataset(source.uri).delete("note = 'base'")
    source.collect_garbage(min_age=timedelta(0), apply=True)
    clone = source.clone(str(tmp_path / "clone"), checkpoint="then", deep=deep, names=[DIRECT])
    assert content(clone) == wanted
    at = open_table(source.uri, checkpoint="then")
    assert content(at.clone(str(tmp_path / "again"), deep=deep, names=[DIRECT])) == wanted
    assert [one.checkpoint.name for one in source.checkpoints()] == ["then"]


def test_a_shallow_clone_outlives_its_checkpoint_and_every_collection_of_the_source(tmp_path: Path) -> None:
    source, driver = streamed(tmp_path / "src")
    source.checkpoint(name="then")
    clone = source.clone(str(tmp_path / "clone"), checkpoint="then", names=[DIRECT])
    wanted = content(clone)
    source.drop_checkpoint("then")
    run_batch(driver, 3, ranges_of(3))
    flush(open_stream(source))
    lance.write_dataset(pa.Table.from_batches([rows(-99)]), source.uri, mode="overwrite")
    base = lance.dataset(source.uri)
    base.cleanup_old_versions(older_than=timedelta(0), error_if_tagged_old_versions=False)
    assert content(clone) == wanted


def test_a_checkpoint_that_is_not_there_or_expired_is_refused_and_nothing_is_written(
    tmp_path: Path, source: Table
) -> None:
    source.checkpoint(name="old", expires=0.000001)
    with pytest.raises(NotFound, match="Checkpoint 'none' not found"):
        source.clone(str(tmp_path / "clone"), checkpoint="none")
    with pytest.raises(InvalidInput, match="expired"):
        source.clone(str(tmp_path / "clone"), checkpoint="old")
    assert not (tmp_path / "clone").exists()


# -- the source moves, or has lost something -----------------------------------------------------


def test_peers_bug_16_entries_that_were_flushed_and_collected_under_the_copy_are_no_loss(tmp_path: Path) -> None:
    """slatedb#1473: missing at the START of the range."""
    source, _ = streamed(tmp_path / "src")
    moves = iter([-60, -61])

    def pause(step: str) -> None:
        if step == "pinned" and (number := next(moves, None)):
            shard = source.shard(DIRECT)
            with source.writer(DIRECT, CONFIG) as writer:
                writer.flush_memtable()
                manifest = shard.manifests.latest()
                assert manifest is not None
                for position in range(1, manifest.replay_after + 1):
                    shard.wal.delete(shard.wal_key(position))
                writer.put(rows(number))

    with watching(pause):
        clone = source.clone(str(tmp_path / "clone"), names=[DIRECT])
    assert next(moves, None) is None
    assert content(clone) == content(source)
    assert {-60, -61} < set(ids(clone))
    assert source.checkpoints() == []


def test_a_named_checkpoint_whose_entries_are_gone_is_said_to_be_lost(tmp_path: Path) -> None:
    source, _ = streamed(tmp_path / "src")
    source.checkpoint(name="then")
    with source.writer(DIRECT, CONFIG) as writer:
        writer.flush_memtable()
    shard = source.shard(DIRECT)
    manifest = shard.manifests.latest()
    assert manifest is not None
    for position in range(1, manifest.replay_after + 1):
        shard.wal.delete(shard.wal_key(position))
    with pytest.raises(DataLoss, match="though it pins them"):
        source.clone(str(tmp_path / "clone"), checkpoint="then", names=[DIRECT])
    assert files(tmp_path / "clone") == set()
    assert content(source.clone(str(tmp_path / "clone"), names=[DIRECT])) == content(source)


@pytest.mark.parametrize("named", [False, True], ids=["now", "named"])
@pytest.mark.parametrize("kind", ["direct", "stream"])
def test_peers_bug_16_a_barrier_that_is_missing_at_the_start_is_skipped(tmp_path: Path, kind: str, named: bool) -> None:
    """slatedb#1473: the WAL store was wiped, and only a barrier stood above replay_after."""
    if kind == "stream":
        source, _ = streamed(tmp_path / "src", wal_uri=str(tmp_path / "wal"))
        names_of = {source.shard(name).id: name for name in (f"partition:{TOPIC}:0", f"partition:{TOPIC}:1")}
    else:
        source = create_table(str(tmp_path / "src"), SCHEMA, wal_uri=str(tmp_path / "wal"))
        with source.writer("single", CONFIG) as writer:
            writer.put(rows(1, 2))
        names_of = {source.shard("single").id: "single"}
    shards = [source.shard(shard_id) for shard_id in names_of]
    source.flush()
    wanted = content(source)
    if kind == "stream":
        open_stream(source)
    else:
        source.writer("single", CONFIG).close()
    if named:
        source.checkpoint(name="then")
    tips = {}
    for shard in shards:
        manifest = shard.manifests.latest()
        assert manifest is not None
        (barrier,) = WalTailer(shard).read(manifest.replay_after + 1)
        assert barrier.entry.header.barrier
        tips[shard.id] = barrier.position
    shutil.rmtree(tmp_path / "wal")
    (tmp_path / "wal").mkdir()
    clone = source.clone(str(tmp_path / "clone"), checkpoint="then" if named else None, names=[DIRECT])
    assert content(clone) == wanted
    for shard in shards:
        manifest = clone.shard(names_of[shard.id]).manifests.latest()
        assert manifest is not None
        # Nothing but the entry itself told of a stream's barrier: from now on it never was.
        assert manifest.replay_after == tips[shard.id] - (kind == "stream" and not named)
    assert not fsck(clone.uri).findings
    if kind == "stream":
        run_batch(open_stream(clone), 3, ranges_of(3))
    else:
        with clone.writer("single", CONFIG) as writer:
            writer.put(rows(3))
        assert ids(clone) == [1, 2, 3]
    assert not fsck(clone.uri).findings


@pytest.mark.parametrize("named", [False, True], ids=["now", "named"])
def test_a_row_of_a_direct_writer_that_is_missing_at_the_start_is_data_loss(tmp_path: Path, named: bool) -> None:
    """No commit record lists it, and yet it counts."""
    source = create_table(str(tmp_path / "src"), SCHEMA)
    with source.writer("single", CONFIG) as writer:
        writer.put(rows(1))
    source.flush()
    with source.writer("single", CONFIG) as writer:
        writer.put(rows(2))
    if named:
        source.checkpoint(name="then")
    shard = source.shard("single")
    manifest = shard.manifests.latest()
    assert manifest is not None
    for position in range(manifest.replay_after + 1, manifest.last_seen + 1):
        shard.wal.delete(shard.wal_key(position))
    with pytest.raises(DataLoss) as lost:
        source.clone(str(tmp_path / "clone"), checkpoint="then" if named else None)
    assert lost.value.position == manifest.replay_after + 1
    assert files(tmp_path / "clone") == set()


@pytest.mark.parametrize("which", ["first", "middle", "last"])
def test_an_entry_that_is_lost_is_data_loss_and_nothing_of_the_clone_is_left(tmp_path: Path, which: str) -> None:
    source, _ = streamed(tmp_path / "src", wal_uri=str(tmp_path / "wal"))
    pinned = source.checkpoint(name="then")
    shard = source.shard(f"partition:{TOPIC}:1")
    manifest = shard.manifests.latest()
    assert manifest is not None
    tail = [one.position for one in WalTailer(shard).read(manifest.replay_after + 1)]
    listed = pinned.streams[STREAM].shards[shard.id].visible[0][0]
    for position in range(tail[0], listed):  # barriers and dead attempts: no loss
        shard.wal.delete(shard.wal_key(position))
    tail = [position for position in tail if position >= listed]
    lost = tail[{"first": 0, "middle": len(tail) // 2, "last": -1}[which]]
    shard.wal.delete(shard.wal_key(lost))
    before = files(tmp_path / "src")
    with pytest.raises(DataLoss, match=f"entry {lost} of") as raised:
        source.clone(str(tmp_path / "clone"), checkpoint="then", wal_uri=str(tmp_path / "clone-wal"), names=[DIRECT])
    assert (raised.value.shard, raised.value.position) == (str(shard.id), lost)
    assert files(tmp_path / "clone") | files(tmp_path / "clone-wal") == set()
    assert files(tmp_path / "src") == before


def test_a_failed_clone_whose_removal_dies_is_removed_by_the_next_call(tmp_path: Path) -> None:
    """At each step of it; and once the entry is back, the next call makes the clone."""
    source, _ = streamed(tmp_path / "src")
    source.checkpoint(name="then")
    shard = source.shard(f"partition:{TOPIC}:1")
    manifest = shard.manifests.latest()
    assert manifest is not None
    lost = [one.position for one in WalTailer(shard).read(manifest.replay_after + 1)][-2]
    content_lost = bytes(shard.wal.get(shard.wal_key(lost)))
    before = content(source)
    steps = ["given up", "removed", "let go", "forgotten"]
    for step in steps:
        shard.wal.delete(shard.wal_key(lost))
        uri, wal_uri = str(tmp_path / f"clone {step}"), str(tmp_path / f"wal {step}")

        def die(reached: str, at: str = step) -> None:
            if reached == at:
                raise Crash

        with pytest.raises(Crash):
            with watching(die):
                source.clone(uri, checkpoint="then", wal_uri=wal_uri, names=[DIRECT])
        with pytest.raises(DataLoss, match=f"entry {lost} of"):
            source.clone(uri, checkpoint="then", wal_uri=wal_uri, names=[DIRECT])
        assert files(Path(uri)) | files(Path(wal_uri)) == set()
        with pytest.raises(Crash):
            with watching(die):
                source.clone(uri, checkpoint="then", wal_uri=wal_uri, names=[DIRECT])
        shard.wal.put_if_absent(shard.wal_key(lost), content_lost)
        assert content(source.clone(uri, checkpoint="then", wal_uri=wal_uri, names=[DIRECT])) == before


@pytest.mark.parametrize("step", ["given up", "removed", "let go"])
def test_a_removal_that_slept_leaves_the_clone_that_was_made_there_since(tmp_path: Path, step: str) -> None:
    source, _ = streamed(tmp_path / "src")
    source.checkpoint(name="then")
    shard = source.shard(f"partition:{TOPIC}:1")
    manifest = shard.manifests.latest()
    assert manifest is not None
    lost = shard.wal_key([one.position for one in WalTailer(shard).read(manifest.replay_after + 1)][-2])
    entry, uri = bytes(shard.wal.get(lost)), str(tmp_path / "clone")
    shard.wal.delete(lost)

    def sleep(reached: str) -> None:
        if reached == step:
            shard.wal.put_if_absent(lost, entry)
            source.clone(uri, checkpoint="then", names=[DIRECT])

    with pytest.raises(DataLoss):
        with watching(sleep):
            source.clone(uri, checkpoint="then", names=[DIRECT])
    assert content(open_table(uri)) == content(source)


def test_peers_bug_16_an_entry_that_vanishes_after_others_were_copied_leaves_nothing(tmp_path: Path) -> None:
    """slatedb#1473: missing after a copied one."""
    source, _ = streamed(tmp_path / "src")
    store = faulty(source.home.store)
    real, third = store.copy, itertools.count(1)

    def vanishing(src: str, dst: str, dst_store: object = None) -> None:
        if src.startswith("_mem_wal/") and "/wal/" in src and next(third) == 3:
            source.home.store.delete(src)
        real(src, dst, dst_store)  # type: ignore[arg-type]

    store.copy = vanishing  # type: ignore[method-assign]
    with pytest.raises(DataLoss, match="missing"):
        clone_into(through(source, store), open_store(str(tmp_path / "clone")))
    assert files(tmp_path / "clone") == set()
    assert source.checkpoints() == []
    assert lance.dataset(source.uri).tags.list() == {}


def test_a_lost_sstable_and_a_lost_dead_letter_are_data_loss(tmp_path: Path) -> None:
    source, _ = streamed(tmp_path / "src")
    letters = (Path(source.uri) / "_headgate" / str(source.table_id) / "dead_letters").rglob("*.arrow")
    # The first one is committed; of later ones some are not.
    dead = min(letters, key=lambda path: path.name)
    kept = dead.read_bytes()
    dead.unlink()
    with pytest.raises(DataLoss, match="dead letter"):
        source.clone(str(tmp_path / "clone"), names=[DIRECT])
    dead.write_bytes(kept)
    manifest = source.shard(DIRECT).manifests.latest()
    assert manifest is not None
    path = manifest.sstables[0].path
    folder = Path(source.uri) / names.shard_folder(source.shard(DIRECT).id) / path

    def pause(step: str) -> None:
        if step == "pinned":
            shutil.rmtree(folder)

    with pytest.raises(DataLoss, match=path):
        with watching(pause):
            source.clone(str(tmp_path / "clone"), names=[DIRECT])
    assert files(tmp_path / "clone") == set()


def test_clones_of_a_table_that_is_being_written_are_each_of_one_instant(tmp_path: Path) -> None:
    source = create_table(str(tmp_path / "src"), SCHEMA)
    acked, attempted, stop = [0], [0], threading.Event()

    def write() -> None:
        with source.writer("single", CONFIG) as writer:
            while not stop.is_set():
                attempted[0] += 1
                writer.put(rows(attempted[0]))
                acked[0] = attempted[0]
                if acked[0] % 7 == 0:
                    writer.flush_memtable()

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        try:
            for number in range(3):
                before = acked[0]
                clone = source.clone(str(tmp_path / f"clone{number}"))
                found = ids(clone)
                assert found == list(range(1, len(found) + 1))
                assert before <= len(found) <= attempted[0]
        finally:
            stop.set()
        writing.result()
    assert ids(source) == list(range(1, acked[0] + 1))
    assert ids(source.clone(str(tmp_path / "last"))) == ids(source)


# -- the shard split ------------------------------------------------------------------------


def test_shard_split_two_clones_go_on_after_the_parents_wal_disk_is_gone(tmp_path: Path) -> None:
    source, _ = streamed(tmp_path / "src", wal_uri=str(tmp_path / "wal"))
    source.checkpoint("all", name="everything")
    wanted = content(source)
    shutil.rmtree(tmp_path / "wal")
    clones = [
        source.clone(
            str(tmp_path / name), checkpoint="everything", wal_uri=str(tmp_path / f"{name}-wal"), names=[DIRECT]
        )
        for name in ("left", "right")
    ]
    for number, clone in enumerate(clones):
        assert content(clone)[0] == wanted[0]
        query = f"query of {number}"
        run_batch(open_stream(clone, query), 0, ranges_of(3), query)
        with clone.writer(DIRECT, CONFIG) as writer:
            writer.put(rows(-1000 - number))
        assert not any(name.startswith("_mem_wal") and "/wal/" in name for name in files(Path(clone.uri)))
    for number, clone in enumerate(clones):
        rows_now = content(open_table(clone.uri))[0]
        assert Counter(i for i, _ in rows_now.elements() if i >= 0) == committed(0, 1, 2, 3)
        assert rows_now[(-1000 - number, "direct")] == 1
        assert rows_now.total() == wanted[0].total() + committed(3).total() + 1


# -- destinations ---------------------------------------------------------------------------


def test_a_destination_that_holds_anything_else_is_refused_and_left_alone(tmp_path: Path, source: Table) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("mine")
    other = create_table(str(tmp_path / "other"), SCHEMA)
    lance.write_dataset(pa.table({"x": [1]}), str(tmp_path / "native"))
    for name in ("notes", "other", "native"):
        before = files(tmp_path / name)
        with pytest.raises(InvalidInput, match="not empty"):
            source.clone(str(tmp_path / name), names=[DIRECT])
        assert files(tmp_path / name) == before
    assert open_table(other.uri).table_id == other.table_id
    for inside in (source.uri, f"{source.uri}/clone"):
        with pytest.raises(InvalidInput, match="itself"):
            source.clone(inside)
    assert source.checkpoints() == []


def test_the_same_call_again_gives_the_same_clone_and_another_one_is_refused(tmp_path: Path, source: Table) -> None:
    uri = str(tmp_path / "clone")
    clone = source.clone(uri, names=[DIRECT])
    with clone.writer(DIRECT, CONFIG) as writer:
        writer.put(rows(-100))
        writer.flush_memtable()
    before, held = content(clone), files(tmp_path / "clone")
    again = source.clone(uri, names=[DIRECT])
    assert (again.table_id, content(again)) == (clone.table_id, before)
    assert files(tmp_path / "clone") == held
    source.checkpoint(name="then")
    for changed in ({"deep": True}, {"checkpoint": "then"}, {"wal_uri": str(tmp_path / "wal")}):
        with pytest.raises(InvalidInput, match="Another clone was started"):
            source.clone(uri, names=[DIRECT], **changed)
    with pytest.raises(InvalidInput, match="Another clone was started"):
        clone.clone(str(tmp_path / "second"), names=[DIRECT]).clone(uri, names=[DIRECT])
    assert content(open_table(uri)) == before


def test_of_two_calls_at_every_step_both_end_with_the_one_clone(tmp_path: Path) -> None:
    source = small(tmp_path / "src")
    for step in CLONE_STEPS:
        uri = str(tmp_path / f"clone {step}")
        met: list[uuid.UUID] = []

        def meet(reached: str, step: str = step, uri: str = uri, met: list[uuid.UUID] = met) -> None:
            if reached == step and not met:
                met.append(source.clone(uri, names=[DIRECT]).table_id)

        with watching(meet):
            clone = source.clone(uri, names=[DIRECT])
        assert met == [clone.table_id], step
        assert content(clone) == content(source), step
    assert source.checkpoints() == []


def test_a_call_that_slept_adds_nothing_to_the_clone_that_another_one_made_and_that_went_on(tmp_path: Path) -> None:
    source = small(tmp_path / "src")
    for number, step in enumerate(CLONE_STEPS):
        uri = str(tmp_path / f"clone {step}")
        met: list[Counter[int]] = []

        def meet(reached: str, step: str = step, uri: str = uri, met: list[Counter[int]] = met) -> None:
            if reached == step and not met:
                met.append(Counter())
                clone = source.clone(uri, names=[DIRECT])
                for table, row in ((clone, -800), (source, -700 - number)):  # noqa: B023
                    with table.writer(DIRECT, CONFIG) as writer:
                        writer.put(rows(row))
                met[0] = Counter(ids(clone))

        with watching(meet):
            clone = source.clone(uri, names=[DIRECT])
        assert Counter(ids(clone)) == met[0], step
        assert -800 in met[0], step
        assert fsck(clone).holds, step
    assert source.checkpoints() == []


def test_a_table_that_was_made_at_the_destination_meanwhile_wins(tmp_path: Path, source: Table) -> None:
    uri = str(tmp_path / "clone")

    def pause(step: str) -> None:
        if step == "intended":
            create_table(uri, SCHEMA)

    with pytest.raises(InvalidInput, match="Another table"):
        with watching(pause):
            source.clone(uri, names=[DIRECT])
    assert ids(open_table(uri)) == []


def test_a_half_made_clone_is_no_table(tmp_path: Path) -> None:
    source = small(tmp_path / "src")

    class Stop(Exception):
        pass

    for step in CLONE_STEPS[: CLONE_STEPS.index("cloned")]:
        uri = str(tmp_path / f"half {step}")

        def pause(reached: str, step: str = step) -> None:
            if reached == step:
                raise Stop

        with pytest.raises(Stop):
            with watching(pause):
                source.clone(uri, names=[DIRECT])
        with pytest.raises((NotFound, InvalidInput)):
            open_table(uri)
        assert content(source.clone(uri, names=[DIRECT])) == content(source), step


def test_a_key_table_whose_shard_has_no_known_name_is_refused_until_it_is_named(tmp_path: Path) -> None:
    source = create_table(str(tmp_path / "src"), KEYED, sharding=by_partition(key_is_partitioned=True))
    with source.writer(DIRECT, CONFIG) as writer:
        writer.put(rows(1, 2))
    with pytest.raises(InvalidInput, match="name is unknown"):
        source.clone(str(tmp_path / "clone"))
    assert files(tmp_path / "clone") == set()
    assert source.checkpoints() == []
    clone = source.clone(str(tmp_path / "clone"), names=[DIRECT])
    with clone.writer(DIRECT, CONFIG) as writer:
        writer.put(rows(2, 3, note="newer"))
    assert ids(clone) == [1, 2, 3]


def test_a_shard_without_a_name_gets_an_id_of_its_own(tmp_path: Path) -> None:
    source = create_table(str(tmp_path / "src"), SCHEMA)
    by_hand = uuid.uuid4()
    with source.writer(by_hand, CONFIG) as writer:
        writer.put(rows(1))
    clone = source.clone(str(tmp_path / "clone"))
    assert ids(clone) == [1]
    assert [shard.id for shard in claimed(clone)] == [uuid.uuid5(clone.table_id, str(by_hand))]


def test_the_intent_says_where_the_clone_came_from_and_holds_no_credentials(tmp_path: Path, source: Table) -> None:
    clone = source.clone(str(tmp_path / "clone"), names=[DIRECT])
    intent = read_intent(clone.home.store)
    assert intent is not None
    assert (intent.table_id, intent.source_id, intent.source_uri) == (clone.table_id, source.table_id, source.uri)
    with pytest.raises(AlreadyExists):
        clone.home.store.put_if_absent(KEY, b"")
    damaged = bytes(clone.home.store.get(KEY)).replace(b'"deep": false', b'"deep": true')
    (tmp_path / "clone" / KEY).write_bytes(damaged)
    with pytest.raises(DataLoss, match="checksum"):
        source.clone(clone.uri, names=[DIRECT])


def test_a_source_whose_owner_moved_a_column_is_cloned_with_its_columns_of_that_instant(tmp_path: Path) -> None:
    source = create_table(str(tmp_path / "src"), SCHEMA)
    with source.writer("single", CONFIG) as writer:
        writer.put(rows(1))
        writer.flush_memtable()
        writer.put(rows(2))
    source.checkpoint(name="then")
    lance.dataset(source.uri).alter_columns({"path": "note", "name": "remark"})
    then = source.clone(str(tmp_path / "then"), checkpoint="then")
    now = open_table(source.uri).clone(str(tmp_path / "now"))
    assert (then.schema.names, now.schema.names) == (["id", "note"], ["id", "remark"])
    assert then.scan().read_all()["note"].to_pylist() == ["direct", "direct"]
    assert now.scan().read_all()["remark"].to_pylist() == ["direct", "direct"]
