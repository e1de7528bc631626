"""Ways to damage a table, each under the codes of what fsck must find then, and nothing else."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import lance
import pyarrow as pa
import pyarrow.compute as pc

from headgate.checkpoints.feed.feed import LogFeed
from headgate.checkpoints.jobs.flush import run_here
from headgate.checkpoints.log import codec
from headgate.checkpoints.log.archive.archive import LogArchive
from headgate.checkpoints.log.names import stream_folder
from headgate.checkpoints.log.pins import pin_key
from headgate.checkpoints.log.records import Batch, BatchRecord, Fold
from headgate.checkpoints.snapshots.checkpoint import CheckpointStore
from headgate.checkpoints.stream.driver import StreamDriver
from headgate.connectors.lance.base.synced import sync_base
from headgate.records import encode
from headgate.shards import names
from headgate.shards.bucket import bucket_ids
from headgate.shards.manifest.model import Manifest, encode_manifest
from headgate.shards.rows.schema import RowSchema
from headgate.shards.shard import Shard
from headgate.shards.sharding import bucket
from headgate.shards.wal.appender import WalAppender, read_header
from headgate.shards.wal.encoder import encode_barrier, encode_entry, encode_rows
from headgate.shards.wal.entry import EncodedRows
from headgate.table.table import Table
from tests.support.histories import (
    DIRECT,
    KEEP,
    STREAM,
    batches,
    collect,
    dead_attempt,
    open_stream,
    pin,
    rows,
    shard_of,
)
from tests.support.life import ranges_of

Damage = Callable[[Table], None]


@dataclass(frozen=True)
class Case:
    """A damage, and the codes that it brings about."""

    codes: frozenset[str]
    damage: Damage


CASES: dict[str, Case] = {}


def brings(*codes: str) -> Callable[[Damage], Damage]:
    """Register a damage under its name."""

    def register(damage: Damage) -> Damage:
        CASES[damage.__name__] = Case(frozenset(codes), damage)
        return damage

    return register


# -- where things are -------------------------------------------------------------------


def records(table: Table) -> Path:
    return Path(table.uri) / "_headgate" / str(table.table_id)


def log(table: Table) -> Path:
    return records(table) / stream_folder(STREAM)


def record_file(table: Table, sequence: int) -> Path:
    return log(table) / f"log/{sequence:020d}.json"


def fold_file(table: Table) -> Path:
    """The newest."""
    return max((log(table) / "folds").iterdir())


def batch(table: Table, sequence: int) -> BatchRecord:
    record = codec.decode_record(record_file(table, sequence).read_bytes())
    assert isinstance(record, BatchRecord)
    return record


def put_record(table: Table, record: BatchRecord) -> None:
    record_file(table, record.sequence).write_bytes(codec.encode(record))


def shard_folder(shard: Shard) -> Path:
    return Path(shard.home.uri) / names.shard_folder(shard.id)


def entry(shard: Shard, position: int) -> Path:
    return Path(shard.home.uri) / shard.wal_key(position)


def manifest_file(shard: Shard, version: int) -> Path:
    return Path(shard.home.uri) / names.manifest_key(shard.id, version)


def latest(shard: Shard) -> Manifest:
    found = shard.manifests.latest()
    assert found is not None
    return found


def put_manifest(shard: Shard, manifest: Manifest) -> None:
    manifest_file(shard, manifest.version).write_bytes(encode_manifest(manifest))


def hint_file(shard: Shard) -> Path:
    return Path(shard.home.uri) / names.version_hint_key(shard.id)


def sstable(shard: Shard) -> Path:
    return shard_folder(shard) / latest(shard).sstables[0].path


def tip(shard: Shard) -> int:
    """The first free position."""
    return (
        max(position for path in (shard_folder(shard) / "wal").iterdir() if (position := _position(path)) is not None)
        + 1
    )


def _position(path: Path) -> int | None:
    return names.wal_position(path.name)


def flip(path: Path, at: int) -> None:
    """Damage one byte, told from the end."""
    data = bytearray(path.read_bytes())
    data[-at] ^= 0xFF
    path.write_bytes(data)


def junk(path: Path) -> None:
    path.write_bytes(b"{ this was no crash")


def newer(path: Path) -> None:
    text = path.read_text()
    assert '"format": 1' in text
    path.write_text(text.replace('"format": 1', '"format": 99'))


def put_entry(shard: Shard, position: int, *ids: int, epoch: int, schema: RowSchema | None = None) -> None:
    """An entry that no writer of ours would put."""
    made = encode_entry(schema or shard.home.schema, [_chunk(shard, ids, schema)], epoch=epoch)
    entry(shard, position).write_bytes(b"".join(bytes(part) for part in made.buffers))


def _chunk(shard: Shard, ids: tuple[int, ...], schema: RowSchema | None) -> EncodedRows:
    if schema is None:
        return encode_rows(shard.home.schema.stored_rows(rows(*ids)))
    return encode_rows(schema.stored_rows(pa.record_batch({"id": ["x"] * len(ids), "note": ["n"] * len(ids)})))


# -- the table ----------------------------------------------------------------------------


@brings("table-record-missing")
def the_tables_record_is_deleted(table: Table) -> None:
    (records(table) / "table.json").unlink()


@brings("table-record-damaged")
def the_tables_record_is_junk(table: Table) -> None:
    junk(records(table) / "table.json")


@brings("record-newer")
def the_tables_record_is_of_a_newer_release(table: Table) -> None:
    newer(records(table) / "table.json")


@brings("wal-choice-damaged")
def the_choice_of_a_clones_wal_store_is_junk(table: Table) -> None:
    junk(records(table) / "wal_store.json")


@brings("record-damaged")
def the_record_of_where_a_clone_came_from_is_junk(table: Table) -> None:
    junk(records(table).parent / "clone.json")


@brings("record-damaged")
def a_record_of_what_was_let_go_is_junk(table: Table) -> None:
    folder = records(table) / "expired" / str(shard_of(table, 0).id)
    folder.mkdir(parents=True)
    junk(folder / f"{7:020d}.json")


@brings("base-missing")
def the_bases_versions_are_deleted(table: Table) -> None:
    shutil.rmtree(Path(table.uri) / "_versions")


@brings("base-damaged")
def the_bases_latest_version_is_cut(table: Table) -> None:
    sync_base(table.home.store)
    newest = min((Path(table.uri) / "_versions").glob("*.manifest"))
    newest.write_bytes(newest.read_bytes()[:100])


@brings("base-damaged")
def a_data_file_of_the_base_is_deleted(table: Table) -> None:
    sync_base(table.home.store)
    next((Path(table.uri) / "data").iterdir()).unlink()


@brings("base-damaged")
def a_data_file_of_the_base_is_cut(table: Table) -> None:
    sync_base(table.home.store)
    path = next((Path(table.uri) / "data").iterdir())
    path.write_bytes(path.read_bytes()[:50])


@brings("base-version-unreadable")
def power_fails_before_the_manifest_of_the_bases_latest_version_is_synced(table: Table) -> None:
    min((Path(table.uri) / "_versions").glob("*.manifest")).write_bytes(b"")


@brings("base-version-torn")
def power_fails_before_a_data_file_of_the_bases_latest_version_is_synced(table: Table) -> None:
    next((Path(table.uri) / "data").iterdir()).write_bytes(b"")


@brings("base-tag-unreadable")
def power_fails_before_a_tag_of_the_base_is_synced(table: Table) -> None:
    lance.dataset(table.uri).tags.create("mine", 1)
    (Path(table.uri) / "_refs/tags/mine.json").write_bytes(b"")


@brings("base-not-a-table")
def native_overwrites_the_base(table: Table) -> None:
    lance.write_dataset(pa.Table.from_batches([rows(1)]), table.uri, mode="overwrite")


@brings("base-index-missing")
def an_index_of_the_base_is_deleted(table: Table) -> None:
    shutil.rmtree(Path(table.uri) / "_indices")


# -- commit logs ----------------------------------------------------------------------------


@brings("log-hole")
def a_commit_record_is_deleted(table: Table) -> None:
    record_file(table, 11).unlink()


@brings("log-hole")
def the_last_commit_record_that_a_checkpoint_names_is_deleted(table: Table) -> None:
    pin(table)
    max((log(table) / "log").iterdir()).unlink()


@brings("log-hole")
def the_last_commit_record_that_a_consumer_has_read_is_deleted(table: Table) -> None:
    LogFeed(table.home, table.shard_ids, KEEP).start("latest")
    max((log(table) / "log").iterdir()).unlink()


@brings("log-hole")
def a_log_that_a_checkpoint_names_is_deleted(table: Table) -> None:
    pin(table)
    shutil.rmtree(log(table))


@brings("log-record-damaged")
def a_commit_record_is_junk(table: Table) -> None:
    junk(record_file(table, 11))


@brings("log-record-damaged")
def a_byte_of_a_commit_record_flips(table: Table) -> None:
    text = record_file(table, 11).read_text()
    record_file(table, 11).write_text(text.replace('"batch_id": 7', '"batch_id": 8'))


@brings("record-newer")
def a_commit_record_is_of_a_newer_release(table: Table) -> None:
    newer(record_file(table, 12))


@brings("log-record-misplaced")
def a_commit_record_is_copied_over_the_next(table: Table) -> None:
    shutil.copy(record_file(table, 10), record_file(table, 11))


@brings("log-fenced-batch")
def a_batch_is_of_a_driver_that_did_not_hold_the_log(table: Table) -> None:
    put_record(table, replace(batch(table, 12), open_id="another"))


@brings("log-position-twice")
def a_batch_lists_positions_of_the_one_before(table: Table) -> None:
    before = batch(table, 11)
    put_record(table, replace(batch(table, 12), shards=before.shards, dead_letters=before.dead_letters))


@brings("log-position-fenced")
def a_batch_lists_an_entry_from_below_its_drivers_fence(table: Table) -> None:
    before = open_stream(table)
    dead_attempt(before, ranges_of(9))
    fence = open_stream(table)
    batches(fence, [9])
    last = max(int(path.stem) for path in (log(table) / "log").iterdir())
    record = batch(table, last)
    name, part = next(iter(record.shards.items()))
    barrier = fence.claims[name].next_position - 1
    dead = barrier - 1
    attempt = _attempt_at(fence, name, dead)
    moved = replace(part, positions=(dead,), attempt_id=attempt)
    put_record(table, replace(record, shards={**record.shards, name: moved}))


def _attempt_at(driver: StreamDriver, name: str, position: int) -> str:
    found = read_header(driver.claims[name].shard, position).tags.attempt_id
    assert found is not None
    return found


@brings("log-offsets-jump")
def a_batch_leaves_offsets_out(table: Table) -> None:
    record = batch(table, 12)
    later = tuple(replace(part, start=part.start + 5) for part in record.sources)
    put_record(table, replace(record, sources=later))


@brings("log-begins-late")
def the_first_batches_went_elsewhere(table: Table) -> None:
    """As a release left it that took any batch into an empty log."""
    driver = StreamDriver.open(table.home, "late", "query", ())
    driver.commit(Batch(query_id="query", batch_id=3, sources=ranges_of(3)))


@brings("log-fence-missing")
def the_open_record_in_force_is_deleted(table: Table) -> None:
    record_file(table, 5).unlink()


@brings("log-fence-missing")
def the_tip_of_a_folded_log_is_deleted(table: Table) -> None:
    open_stream(table).fold()
    for path in (log(table) / "log").iterdir():
        if int(path.stem) >= 6:
            path.unlink()


@brings("log-unreadable", "log-record-damaged", "fold-damaged")
def every_record_of_a_log_is_junk(table: Table) -> None:
    for path in log(table).rglob("*.json"):
        junk(path)


@brings("log-old-damaged")
def a_record_below_the_fold_is_junk(table: Table) -> None:
    junk(record_file(table, 8))


@brings("log-stray")
def a_copy_lies_in_the_log(table: Table) -> None:
    shutil.copy(record_file(table, 12), log(table) / "log/backup.json")


@brings("fold-damaged")
def the_newest_fold_is_junk(table: Table) -> None:
    junk(fold_file(table))


@brings("fold-differs")
def the_newest_fold_says_other_offsets(table: Table) -> None:
    fold = codec.decode_fold(fold_file(table).read_bytes())
    ends = tuple((topic, partition, end + 1) for topic, partition, end in fold.ends)
    changed: Fold = replace(fold, ends=ends)
    fold_file(table).write_bytes(codec.encode(changed))
    for sequence in (10, 11, 12):  # so that nothing follows which would contradict it
        record_file(table, sequence).unlink()


# -- manifests --------------------------------------------------------------------------------


@brings("manifest-gap")
def a_manifest_version_is_deleted(table: Table) -> None:
    shard = shard_of(table, 0)
    manifest_file(shard, latest(shard).version - 1).unlink()


@brings("manifest-damaged")
def the_latest_manifest_is_junk(table: Table) -> None:
    shard = shard_of(table, 0)
    junk(manifest_file(shard, latest(shard).version))


@brings("manifest-damaged")
def the_latest_manifest_is_another_shards(table: Table) -> None:
    shard, other = shard_of(table, 0), shard_of(table, 1)
    shutil.copy(manifest_file(other, latest(shard).version), manifest_file(shard, latest(shard).version))


@brings("manifest-old-damaged")
def an_old_manifest_is_empty(table: Table) -> None:
    manifest_file(shard_of(table, 0), 1).write_bytes(b"")


@brings("manifest-latest-lost")
def the_latest_manifest_is_deleted(table: Table) -> None:
    shard = table.home.shard(DIRECT)
    manifest_file(shard, latest(shard).version).unlink()


@brings("manifest-latest-lost")
def the_manifest_of_the_last_claim_is_lost_with_the_hint(table: Table) -> None:
    shard = shard_of(table, 1)
    manifest_file(shard, latest(shard).version).unlink()
    hint_file(shard).unlink()


@brings("manifest-goes-back")
def a_manifest_takes_the_generation_back(table: Table) -> None:
    shard = table.home.shard(DIRECT)
    old = latest(shard)
    put_manifest(shard, replace(old, version=old.version + 1, generation=old.generation - 1, sstables=()))


@brings("manifest-replay-after")
def a_manifest_says_that_everything_was_flushed(table: Table) -> None:
    shard = shard_of(table, 0)
    old = latest(shard)
    put_manifest(shard, replace(old, version=old.version + 1, replay_after=2**63))


@brings("manifest-missing")
def every_manifest_of_a_shard_is_deleted(table: Table) -> None:
    shutil.rmtree(shard_folder(shard_of(table, 1)) / "manifest")


@brings("manifest-missing", "fence-missing")
def a_whole_shard_is_deleted(table: Table) -> None:
    shutil.rmtree(shard_folder(shard_of(table, 1)))


@brings("manifest-stray")
def a_temporary_is_left_beside_the_manifests(table: Table) -> None:
    shard = shard_of(table, 0)
    (shard_folder(shard) / "manifest" / f"{names.rev64(9)}.binpb.tmp.1f").write_bytes(b"half")


@brings("owner-without-log")
def the_log_of_a_stream_is_deleted(table: Table) -> None:
    shutil.rmtree(log(table))


# -- WALs -----------------------------------------------------------------------------------------


@brings("wal-hole")
def an_entry_of_a_direct_writer_is_deleted(table: Table) -> None:
    shard = table.home.shard(DIRECT)
    entry(shard, tip(shard) - 2).unlink()


@brings("wal-hole")
def the_last_entry_is_deleted_whose_position_the_manifest_knows(table: Table) -> None:
    shard = table.home.shard(DIRECT)
    entry(shard, tip(shard) - 1).unlink()


@brings("commit-entry-missing")
def an_entry_of_a_committed_batch_is_deleted(table: Table) -> None:
    part = next(iter(batch(table, 11).shards.values()))
    entry(Shard(table.home, part.shard_id), part.positions[0]).unlink()


@brings("commit-entry-missing")
def an_entry_of_a_folded_batch_is_deleted(table: Table) -> None:
    fold = codec.decode_fold(fold_file(table).read_bytes())
    shard = shard_of(table, 0)
    entry(shard, fold.shards[shard.id].visible[0][0]).unlink()


@brings("wal-tip-missing")
def the_whole_wal_of_a_flushed_shard_is_deleted(table: Table) -> None:
    with table.writer(DIRECT) as writer:
        writer.put(rows(10**9 + 9))
        writer.flush_memtable()
    shutil.rmtree(shard_folder(table.home.shard(DIRECT)) / "wal")


@brings("wal-stray")
def a_temporary_is_left_in_a_wal(table: Table) -> None:
    shard = shard_of(table, 0)
    (shard_folder(shard) / "wal" / f"{names.rev64(99)}.arrow.tmp.1f").write_bytes(b"half")


@brings("entry-empty")
def an_entry_has_no_bytes(table: Table) -> None:
    shard = table.home.shard(DIRECT)
    entry(shard, tip(shard) - 1).write_bytes(b"")


@brings("entry-damaged")
def a_byte_of_an_entrys_rows_flips(table: Table) -> None:
    part = next(iter(batch(table, 11).shards.values()))
    flip(entry(Shard(table.home, part.shard_id), part.positions[0]), 20)


@brings("entry-damaged")
def an_entry_is_cut_short(table: Table) -> None:
    shard = table.home.shard(DIRECT)
    path = entry(shard, tip(shard) - 1)
    path.write_bytes(path.read_bytes()[:-30])


@brings("entry-old-damaged")
def an_entry_that_was_flushed_is_junk(table: Table) -> None:
    junk(entry(table.home.shard(DIRECT), 1))


@brings("entry-schema")
def an_entry_has_columns_that_cannot_be_the_tables(table: Table) -> None:
    shard = table.home.shard(DIRECT)
    other = RowSchema.of(pa.schema([pa.field("id", pa.string(), nullable=False), pa.field("note", pa.string())]))
    put_entry(shard, tip(shard), 1, epoch=latest(shard).epoch, schema=other)


@brings("entry-twice")
def an_entry_is_copied_to_the_next_position(table: Table) -> None:
    shard = table.home.shard(DIRECT)
    shutil.copy(entry(shard, tip(shard) - 1), entry(shard, tip(shard)))


@brings("entry-after-fence")
def a_fenced_writer_wrote_above_its_successor(table: Table) -> None:
    shard = table.home.shard(DIRECT)
    put_entry(shard, tip(shard), 77, epoch=1)


@brings("fence-missing")
def a_barrier_of_a_stream_is_deleted(table: Table) -> None:
    entry(shard_of(table, 0), 0).unlink()


@brings("fence-replaced")
def a_barrier_of_a_stream_is_written_over(table: Table) -> None:
    shard = shard_of(table, 0)
    shutil.copy(entry(shard, 1), entry(shard, 0))


@brings("fence-replaced")
def a_barrier_of_another_epoch_stands_there(table: Table) -> None:
    shard = shard_of(table, 0)
    made = encode_barrier(epoch=0)
    entry(shard, 0).write_bytes(b"".join(bytes(part) for part in made.buffers))


# -- what was committed ------------------------------------------------------------------------------


@brings("commit-entry-other")
def an_entry_of_another_attempt_stands_where_one_was_committed(table: Table) -> None:
    part = next(iter(batch(table, 12).shards.values()))
    before = batch(table, 11).shards
    other = next(one for one in before.values() if one.shard_id == part.shard_id)
    shard = Shard(table.home, part.shard_id)
    shutil.copy(entry(shard, other.positions[0]), entry(shard, part.positions[0]))


@brings("commit-entry-other")
def a_direct_writers_entry_stands_where_a_folded_one_was_committed(table: Table) -> None:
    fold = codec.decode_fold(fold_file(table).read_bytes())
    shard = shard_of(table, 0)
    put_entry(shard, fold.shards[shard.id].visible[0][1], 5, epoch=latest(shard).epoch)


@brings("commit-rows-differ")
def a_record_commits_more_rows_than_its_entries_hold(table: Table) -> None:
    record = batch(table, 12)
    name, part = next(iter(record.shards.items()))
    put_record(table, replace(record, shards={**record.shards, name: replace(part, rows=part.rows + 1)}))


@brings("dead-letters-missing")
def a_dead_letter_is_deleted(table: Table) -> None:
    _dead_letter(table).unlink()


@brings("dead-letters-damaged")
def a_dead_letter_is_damaged(table: Table) -> None:
    flip(_dead_letter(table), 20)


@brings("dead-letters-damaged")
def a_dead_letter_has_no_bytes(table: Table) -> None:
    _dead_letter(table).write_bytes(b"")


@brings("dead-letters-stray")
def a_copy_lies_among_the_dead_letters(table: Table) -> None:
    shutil.copy(_dead_letter(table), _dead_letter(table).with_suffix(".bak"))


def _dead_letter(table: Table) -> Path:
    return min((records(table) / "dead_letters").rglob("*.arrow"))


# -- SSTables --------------------------------------------------------------------------------------------


@brings("sstable-missing")
def an_sstable_is_deleted(table: Table) -> None:
    shutil.rmtree(sstable(shard_of(table, 0)))


@brings("sstable-damaged")
def a_data_file_of_an_sstable_is_cut(table: Table) -> None:
    path = next((sstable(shard_of(table, 0)) / "data").iterdir())
    path.write_bytes(path.read_bytes()[:40])


@brings("sstable-damaged")
def an_sstables_own_versions_are_deleted(table: Table) -> None:
    shutil.rmtree(sstable(shard_of(table, 0)) / "_versions")


@brings("sstable-rows-differ")
def an_sstable_holds_fewer_rows_than_were_flushed(table: Table) -> None:
    shard = table.home.shard(DIRECT)
    old = latest(shard)
    (one,) = old.sstables
    more = replace(one, physical_rows=(one.physical_rows or 0) + 1)
    put_manifest(shard, replace(old, version=old.version + 1, sstables=(more,)))


@brings("sstable-key-index")
def the_key_index_of_an_sstable_is_deleted(table: Table) -> None:
    shutil.rmtree(sstable(shard_of(table, 0)) / "_pk_index")


@brings("sstable-index-missing")
def the_index_name_of_an_sstable_is_deleted(table: Table) -> None:
    shutil.rmtree(sstable(shard_of(table, 0)) / "_indices")


# -- table checkpoints --------------------------------------------------------------------------------------


def _pinned_at(table: Table) -> Path:
    return records(table) / CheckpointStore(table.home.records, table.uri).get(KEEP).key


@brings("checkpoint-damaged")
def a_table_checkpoint_is_junk(table: Table) -> None:
    pin(table)
    junk(_pinned_at(table))


@brings("checkpoint-damaged")
def a_table_checkpoint_has_another_name(table: Table) -> None:
    pin(table)
    path = _pinned_at(table)
    path.rename(path.with_name("other.json"))


@brings("checkpoint-broken")
def an_entry_that_only_a_checkpoint_needs_is_deleted(table: Table) -> None:
    pin(table)
    with table.writer(DIRECT) as writer:
        writer.flush_memtable()
    shard = table.home.shard(DIRECT)
    entry(shard, tip(shard) - 2).unlink()


@brings("checkpoint-broken", "sstable-missing")
def an_sstable_that_a_checkpoint_needs_is_deleted(table: Table) -> None:
    pin(table)
    shutil.rmtree(sstable(shard_of(table, 0)))


@brings("checkpoint-unpinned")
def the_tag_of_a_checkpoint_is_deleted(table: Table) -> None:
    pin(table)
    shutil.rmtree(Path(table.uri) / "_refs/tags")


# -- archives of the commit logs ---------------------------------------------------------------------------------


def archive(table: Table) -> list[Path]:
    """A ledger began, and what was folded since is collected. The objects, which there are two of."""
    kept = LogArchive(table.home.records, STREAM, table.uri)
    kept.begin()
    collect(table)
    batches(driver := open_stream(table), [9, 10])
    driver.fold()
    collect(table)
    found = [records(table) / kept.key(name) for name in kept.names()]
    assert len(found) == 2
    return found


@brings("archive-damaged")
def an_object_of_an_archive_is_junk(table: Table) -> None:
    flip(archive(table)[0], 20)


@brings("archive-damaged")
def the_beginning_of_an_archive_is_junk(table: Table) -> None:
    archive(table)
    junk(log(table) / "archive.json")


@brings("archive-hole")
def an_object_of_an_archive_is_deleted(table: Table) -> None:
    archive(table)[0].unlink()


@brings("log-stray")
def a_copy_lies_in_an_archive(table: Table) -> None:
    first = archive(table)[0]
    shutil.copy(first, first.with_suffix(".tmp"))


@brings("key-in-wrong-shard")
def a_key_lies_in_the_shard_of_another_bucket(table: Table) -> None:
    """As earlier releases let a direct writer do. The table has partitions, so that its record is changed first."""
    changed = replace(table.record, sharding=bucket("id", 2))
    (records(table) / "table.json").write_bytes(encode(changed))
    ids = pa.array(range(900, 950), pa.int64())
    stranger = ids.filter(pc.equal(bucket_ids(ids, 2), 1))[0].as_py()
    stored = table.home.schema.stored_rows(rows(stranger))
    WalAppender.open(table.home.shard("bucket-00000")).append([encode_rows(stored)])


# -- consumers of the commit logs -----------------------------------------------------------------------------


def consume(table: Table) -> None:
    """A consumer comes and has read nothing yet."""
    LogFeed(table.home, table.shard_ids, KEEP).start("earliest")


@brings("consumer-damaged")
def the_pin_of_a_consumer_is_junk(table: Table) -> None:
    consume(table)
    junk(records(table) / pin_key(KEEP, 1))


@brings("consumer-broken")
def a_folded_record_that_only_a_consumer_needs_is_deleted(table: Table) -> None:
    consume(table)
    (log(table) / "log" / f"{8:020d}.json").unlink()


@brings("consumer-broken")
def an_entry_that_only_a_consumer_needs_is_deleted(table: Table) -> None:
    consume(table)
    batches(driver := open_stream(table), [9])
    last = driver.head.last
    assert last is not None
    driver.close_gaps(driver.settle(run_here, 1 << 30))
    batches(driver, [10])
    shard = shard_of(table, 0)
    (position,) = next(part.positions for part in last.shards.values() if part.shard_id == shard.id)
    entry(shard, position).unlink()
