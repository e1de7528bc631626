"""Garbage collection on real tables: zombies of all three logs, crashes at every delete, pins, native as well."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from headgate.checkpoints.gc.collect import collect
from headgate.checkpoints.gc.report import Collection
from headgate.checkpoints.log.commit_log import CommitLog
from headgate.checkpoints.log.state import fold
from headgate.checkpoints.snapshots.checkpoint import CheckpointStore, PinnedShard, TableCheckpoint
from headgate.connectors.lance import slots as index_slots
from headgate.connectors.objects import open_store
from headgate.connectors.objects.local import TEMPORARY, LocalStore
from headgate.connectors.objects.port import ObjectStore
from headgate.errors import Corrupt, Fenced, HeadgateError
from headgate.retry import Retry
from headgate.shards import names
from headgate.shards.config import WriterConfig
from headgate.shards.outcomes import wins
from headgate.shards.shard import Shard
from headgate.shards.wal.appender import read_header
from headgate.shards.writer import ShardWriter
from headgate.table.create import create_table
from headgate.table.table import Table, open_table
from tests.support.closing import Background
from tests.support.datasets import LanceFaultyStore, pairs
from tests.support.life import check_exactly_once, open_driver, ranges_of, run_batch
from tests.support.life import home_of as stream_home
from tests.support.stores import Crash, FaultyStore

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("note", pa.string())])
CONFIG = WriterConfig(retry=Retry(attempts=3, base=0))
AT_ONCE = timedelta(0)


def rows(*ids: int) -> pa.RecordBatch:
    return pa.record_batch({"id": list(ids), "note": [f"note {i}" for i in ids]}, schema=SCHEMA)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return create_table(str(tmp_path / "table"), SCHEMA, primary_key="id")


@pytest.fixture
def shard(table: Table) -> Shard:
    return table.home.shard(table.sharding.known_names()[0])


def through(table: Table, store: FaultyStore) -> Table:
    """The same table, reached through a store with faults."""
    return replace(table, home=replace(table.home, store=store, wal_store=store).retrying(CONFIG.retry))


def faulty(table: Table, **arguments: Any) -> LanceFaultyStore:
    return LanceFaultyStore(open_store(table.uri), **arguments)


def collected(table: Table) -> Collection:
    """Everything that may go is gone."""
    return table.collect_garbage(min_age=AT_ONCE, apply=True)


def objects(store: ObjectStore) -> set[str]:
    return {info.key for info in store.list("")}


def positions(shard: Shard) -> list[int]:
    found = (names.wal_position(info.key) for info in shard.wal.list(names.wal_folder(shard.id) + "/"))
    return sorted(position for position in found if position is not None)


def ids(table: Table) -> list[int]:
    return [i for i, _ in pairs(table.scan())]


def life(table: Table, *numbers: int, flushed: bool = True) -> None:
    """A writer that puts rows one by one, and is gone."""
    with table.writer(table.sharding.known_names()[0], CONFIG) as writer:
        for number in numbers:
            writer.put(rows(number))
        if flushed:
            writer.flush_memtable()


# -- what goes, what stays -------------------------------------------------------------


def test_a_dry_run_says_what_why_and_how_many_bytes_and_changes_nothing(table: Table, shard: Shard) -> None:
    life(table, 1, 2, 3)
    before = objects(table.home.store)
    found = table.collect_garbage(min_age=AT_ONCE)
    assert objects(table.home.store) == before
    assert not found.applied
    assert not found.kept
    kinds = [one.kind for one in found.found]
    assert kinds.count("wal entry") == 2, "of positions 1 to 3, the last is the tip"
    assert kinds.count("manifest") == len(shard.manifests.versions()) - 2, "the claim stays, and the latest"
    sizes = {info.key: info.size for info in table.home.store.list("")}
    assert found.nbytes == sum(sizes[one.key] for one in found.found) > 0
    assert all(one.why for one in found.found)


def test_lance_hole_7_after_a_full_flush_and_collection_it_opens_goes_on_and_native_opens_it_too(
    table: Table, shard: Shard
) -> None:
    """Native deletes no entry, SSTable or manifest from Python."""
    life(table, 1, 2, 3)
    life(table, 4, 5)
    collected(table)
    assert all(read_header(shard, position).barrier for position in positions(shard)[:-1]), "only barriers are left"
    assert [shard.manifests.read(version).epoch for version in shard.manifests.versions()] == [1, 2, 2], "claims stay"
    assert ids(table) == [1, 2, 3, 4, 5]
    life(table, 6, flushed=False)
    assert ids(table) == [1, 2, 3, 4, 5, 6]
    native = lance.dataset(table.uri).mem_wal_writer(str(shard.id))
    assert [i for i, _ in pairs(native.lsm_scanner().to_table())] == [1, 2, 3, 4, 5, 6]
    native.put(pa.Table.from_batches([rows(7)]))
    native.close()
    assert ids(table) == [1, 2, 3, 4, 5, 6, 7]
    life(table, 8)
    collected(table)
    assert ids(table) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert collected(table).found == (), "twice equals once"


def test_what_is_not_flushed_stays(table: Table, shard: Shard) -> None:
    life(table, 1, 2, flushed=False)
    before = positions(shard)
    collected(table)
    assert positions(shard) == before
    assert ids(table) == [1, 2]


def test_everything_is_kept_that_was_of_use_within_min_age(table: Table, shard: Shard) -> None:
    life(table, 1, 2, flushed=False)
    aged(table)
    hour = timedelta(hours=1)
    life(table, 3)
    before = objects(table.home.store)
    found = table.collect_garbage(min_age=hour, apply=True)
    gone = {one.key for one in found.found}
    assert objects(table.home.store) == before - gone
    assert {one.kind for one in found.found} <= {"manifest"}, "a reader of the older manifests replays these entries"
    aged(table)
    assert {one.kind for one in table.collect_garbage(min_age=hour, apply=True).found} == {"wal entry", "manifest"}
    assert ids(table) == [1, 2, 3]


def aged(table: Table) -> None:
    """As if every object had been there for two days."""
    then = time.time() - 2 * 86400
    for info in table.home.store.list(""):
        os.utime(Path(table.uri) / info.key, (then, then))


@pytest.mark.parametrize("path", ["abcd1234_gen_2", "abcd1234_epoch_1_gen_2"], ids=["native's", "ours"])
def test_an_sstable_that_no_manifest_names_goes_once_none_can_come_to_name_it(
    table: Table, shard: Shard, path: str
) -> None:
    life(table, 1)
    orphan = f"{names.shard_folder(shard.id)}/{path}/data/rows.lance"
    table.home.store.put_if_absent(orphan, b"half a flush")
    collected(table)
    assert orphan in objects(table.home.store), "whoever flushes generation 2 may sleep, and commit it"
    life(table, 2)
    table.collect_garbage(min_age=timedelta(hours=1), apply=True)
    assert orphan in objects(table.home.store), "a reader without a pin may need what is young"
    collected(table)
    assert orphan not in objects(table.home.store)
    assert ids(table) == [1, 2]


def test_what_nobody_names_an_sstable_stays_and_is_told(table: Table, shard: Shard) -> None:
    life(table, 1)
    stray = f"{names.shard_folder(shard.id)}/notes/x.txt"
    table.home.store.put_if_absent(stray, b"somebody's")
    assert [one for one in collected(table).kept if one.endswith("notes: not the name of an SSTable")]
    assert stray in objects(table.home.store)


@pytest.mark.parametrize("part", ["data", "_versions"])
@pytest.mark.parametrize("place", ["an SSTable", "the base"])
def test_while_an_sstable_or_a_file_of_the_base_is_missing_no_wal_goes_and_it_says_so(
    table: Table, shard: Shard, place: str, part: str
) -> None:
    life(table, 1, 2)
    if place == "the base":
        table.compact()
        life(table, 3)
    live = shard.manifests.latest()
    assert live is not None
    root = Path(table.uri) / ("" if place == "the base" else f"{names.shard_folder(shard.id)}/{live.sstables[0].path}")
    away = Path(table.uri).parent / "away"
    (root / part).rename(away)
    before = positions(shard)
    alarm = [one for one in collected(table).kept if one.startswith(f"WAL and SSTables of shard {shard.id}")]
    assert [place.split()[1] in one for one in alarm] == [True]
    assert positions(shard) == before
    away.rename(root / part)
    assert collected(table).kept == ()
    assert positions(shard) != before
    assert ids(table) == ([1, 2] if place == "an SSTable" else [1, 2, 3])


def test_strays_and_temporaries_go_when_they_are_old(
    table: Table, shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    life(table, 1)
    strays = {f"{names.wal_folder(shard.id)}/x.arrow.tmp", f"{names.manifest_folder(shard.id)}/y.tmp"}
    for key in strays:
        table.home.store.put_if_absent(key, b"half")
    temporary = Path(table.uri) / TEMPORARY / "0123"
    temporary.parent.mkdir(parents=True, exist_ok=True)
    temporary.write_bytes(b"half")
    table.collect_garbage(min_age=timedelta(hours=1), apply=True)
    assert strays <= objects(table.home.store)
    assert temporary.exists()
    found = {one.key for one in collected(table).found if one.kind in ("stray", "temporary")}
    assert found == strays | {"0123"}
    assert not strays & objects(table.home.store)
    assert not temporary.exists()


def test_an_index_folder_that_no_version_of_the_base_uses_goes(tmp_path: Path) -> None:
    table = create_table(str(tmp_path / "t"), SCHEMA, primary_key="id", full_text="note")
    lance.dataset(table.uri).create_scalar_index("note", "INVERTED", name="note_idx", replace=True)
    used = set(table.home.store.list_folders("_indices/"))
    assert len(used) == 2, "the older one belongs to an older version"
    ours, committing, native = (str(uuid.uuid4()) for _ in range(3))
    for segment in (ours, committing, native):
        table.home.store.put_if_absent(f"_indices/{segment}/part_0_docs.lance", b"a build that died")
    for segment in (ours, committing):
        table.home.store.put_if_absent(index_slots.intent(segment), b"")
    assert wins(table.home.store, index_slots.outcome(committing), "maker")
    table.collect_garbage(min_age=timedelta(hours=1), apply=True)
    assert set(table.home.store.list_folders("_indices/")) == {*used, ours, committing, native}
    collected(table)
    assert set(table.home.store.list_folders("_indices/")) == {*used, committing, native}, "others may still be named"
    assert not wins(table.home.store, index_slots.outcome(ours), "maker"), "its maker may come as late as it likes"


def test_what_a_build_has_left_inside_an_index_that_is_used_goes(tmp_path: Path) -> None:
    table = create_table(str(tmp_path / "t"), SCHEMA, primary_key="id", full_text="note")
    (used,) = table.home.store.list_folders("_indices/")
    before = objects(table.home.store)
    table.home.store.put_if_absent(f"_indices/{used}/staging/part_0_docs.lance", b"a finalizer that died")
    table.collect_garbage(min_age=timedelta(hours=1), apply=True)
    assert objects(table.home.store) > before
    (gone,) = collected(table).found
    assert (gone.kind, gone.why) == ("index", f"index {used} was finished without it")
    assert objects(table.home.store) == before


def test_a_damaged_entry_stays_for_people_to_look_at(table: Table, shard: Shard) -> None:
    life(table, 1, 2, 3)
    damaged = positions(shard)[1]
    (Path(table.uri) / shard.wal_key(damaged)).write_bytes(b"")
    collected(table)
    assert damaged in positions(shard)
    assert ids(table) == [1, 2, 3]


def test_a_shard_whose_manifest_cannot_be_read_is_kept_whole_and_named(table: Table, shard: Shard) -> None:
    life(table, 1, 2, 3)
    latest = shard.manifests.latest()
    assert latest is not None
    (Path(table.uri) / names.manifest_key(shard.id, latest.version)).write_bytes(b"junk")
    before = objects(table.home.store)
    found = collected(table)
    assert len(found.kept) == 1
    assert str(shard.id) in found.kept[0]
    assert objects(table.home.store) == before


# -- checkpoints -----------------------------------------------------------------------


def pin(table: Table, shard: Shard, name: str, expires_after: float | None = None) -> None:
    """A checkpoint of now, by hand."""
    manifest = shard.manifests.latest()
    assert manifest is not None
    CheckpointStore(table.home.records, table.uri).put(
        TableCheckpoint(
            checkpoint_id=uuid.uuid4().hex,
            name=name,
            table_id=table.table_id,
            scope="durable",
            base_version=lance.dataset(table.uri).version,
            shards={shard.id: PinnedShard(manifest, positions(shard)[-1] + 1)},
            expires_after=expires_after,
        )
    )


def test_what_a_checkpoint_names_stays_until_it_is_dropped(table: Table, shard: Shard) -> None:
    life(table, 1, 2, flushed=False)
    pin(table, shard, "yesterday")
    before = positions(shard)
    life(table, 3)
    collected(table)
    assert set(before) <= set(positions(shard))
    CheckpointStore(table.home.records, table.uri).drop("yesterday")
    collected(table)
    assert not {1, 2} & set(positions(shard))
    assert ids(table) == [1, 2, 3]


def test_an_expired_checkpoint_goes_and_pins_nothing(table: Table, shard: Shard) -> None:
    life(table, 1, 2, flushed=False)
    pin(table, shard, "brief", expires_after=0)
    life(table, 3)
    found = collected(table)
    assert [one.why.split()[1] for one in found.found if one.kind == "checkpoint"] == ["'brief'"]
    assert CheckpointStore(table.home.records, table.uri).list() == []
    assert "wal entry" in {one.kind for one in found.found}


def test_an_expired_checkpoint_goes_before_what_it_held(table: Table, shard: Shard) -> None:
    """So nobody ever finds a record whose rows are gone, whatever the clocks say."""
    life(table, 1, 2, flushed=False)
    pin(table, shard, "brief", expires_after=0)
    life(table, 3)
    before, store = positions(shard), faulty(table)
    stall = store.stall("delete", "/checkpoints/")
    collection = Background(lambda: collected(through(table, store)))
    stall.wait()
    assert positions(shard) == before
    stall.release()
    collection.result()
    assert len(positions(shard)) < len(before)


def test_a_checkpoint_that_cannot_be_read_may_pin_anything(table: Table, shard: Shard) -> None:
    life(table, 1, 2)
    table.home.records.put_if_absent("checkpoints/x.json", b"junk")
    before = objects(table.home.store)
    with pytest.raises(Corrupt, match="table checkpoint"):
        collected(table)
    assert {key for key in objects(table.home.store) if "/clock/" not in key} == before


# -- zombies ---------------------------------------------------------------------------


def test_a_stalled_writer_woken_after_a_full_collection_is_fenced(table: Table, shard: Shard) -> None:
    store = faulty(table)
    old = through(table, store).writer(shard.id, CONFIG)
    old.put(rows(1))
    stall = store.stall("put_if_absent", "/wal/")
    zombie = Background(lambda: old.put(rows(666)))
    stall.wait()
    life(table, *range(2, 22))
    collected(table)
    stall.release()
    with pytest.raises(Fenced):
        zombie.result()
    assert ids(table) == list(range(1, 22))
    collected(table)
    life(table, 22)
    assert ids(table) == list(range(1, 23))


@pytest.mark.parametrize("rivals", [1, 2, 3])
@pytest.mark.parametrize("verb", ["put_if_absent", "list"])
def test_a_stalled_claimer_woken_after_a_full_collection_opens_as_the_newest(
    table: Table, shard: Shard, rivals: int, verb: str
) -> None:
    life(table, 1)
    store = faulty(table)
    stall = store.stall(verb, "/manifest")
    zombie = Background(lambda: ShardWriter.open(through(table, store).home, shard.id, CONFIG))
    stall.wait()
    for number in range(rivals - 1):
        life(table, 100 + number)
    holder = table.writer(shard.id, CONFIG)
    holder.put(rows(200))
    holder.flush_memtable()
    collected(table)
    stall.release()
    # Whoever claimed meanwhile is still in its way, or it had not read anything yet: it is simply the newest opener.
    zombie.result().put(rows(201))
    with pytest.raises(Fenced):
        holder.put(rows(666))
    expected = [1, *range(100, 99 + rivals), 200, 201]
    assert ids(table) == expected
    collected(table)
    life(table, 300)
    assert ids(table) == [*expected, 300]


@pytest.mark.parametrize("batches", [1, 3])
@pytest.mark.parametrize("empty", [False, True], ids=["with rows", "without rows"])
def test_a_stalled_committer_woken_after_a_full_collection_is_fenced(batches: int, empty: bool) -> None:
    inner = open_memory()
    home = stream_home(inner)
    slow = FaultyStore(inner)
    first = open_driver(stream_home(slow))
    run_batch(first, 0, ranges_of(0))
    stall = slow.stall("put_if_absent", "/log/")
    zombie = Background(lambda: run_batch(first, 1, () if empty else ranges_of(1)))
    stall.wait()
    second = open_driver(home)
    for number in range(1, batches + 1):
        run_batch(second, number, ranges_of(number))
    log = CommitLog(home.records, "s", home.uri)
    log.put_fold(fold(log.read(), {}))
    found = collect(home, [home.shard(name).id for name in second.claims], min_age=AT_ONCE, apply=True)
    assert sum(one.kind == "commit record" for one in found.found) == batches, "all but the open records and the tip"
    stall.release()
    with pytest.raises(Fenced):
        zombie.result()
    done = [part for number in range(batches + 1) for part in ranges_of(number)]
    check_exactly_once(home, done)
    third = open_driver(home)
    run_batch(third, batches + 1, ranges_of(batches + 1))
    check_exactly_once(home, [*done, *ranges_of(batches + 1)])


def open_memory() -> ObjectStore:
    return open_store(f"memory://{uuid.uuid4().hex}")


# -- crashes ---------------------------------------------------------------------------


def test_a_crash_after_every_operation_leaves_a_table_that_works_and_is_collected_on(tmp_path: Path) -> None:
    reference = None
    for number, table in enumerate(tables(tmp_path), 1):
        dying = faulty(table, crash_after=number)
        try:
            collected(through(table, dying))
        except (Crash, HeadgateError):
            assert dying.crashed, "only the crash may stop it"
        assert ids(table) == [1, 2, 3, 4]
        life(table, 5, flushed=False)
        assert ids(table) == [1, 2, 3, 4, 5]
        collected(table)
        assert ids(table) == [1, 2, 3, 4, 5]
        left = sorted(key.rpartition("/")[0].split("/")[-1] for key in objects(table.home.store) if "_mem_wal" in key)
        reference = reference or left
        if not dying.crashed:
            break
    assert number > 15, "the walk went through a whole collection"


def tables(folder: Path) -> Iterator[Table]:
    for number in range(1, 1000):
        table = create_table(str(folder / str(number)), SCHEMA, primary_key="id")
        life(table, 1, 2)
        life(table, 3, 4)
        yield open_table(table.uri)


def test_a_local_store_leaves_no_temporaries_where_files_need_no_name(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    store.put_if_absent("x", b"1")
    assert list(store.temporaries()) == []
