from __future__ import annotations

import json
import pickle
import shutil
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from click.testing import CliRunner

import headgate.shards.home.stores as table_stores
from headgate.cli import main
from headgate.connectors.objects.local import LocalStore
from headgate.errors import Corrupt, HeadgateError, InvalidInput, NotFound, StoreError, Transient
from headgate.records import decode, encode, release
from headgate.shards.config import WriterConfig
from headgate.shards.home.base import index_name
from headgate.shards.home.record import TableRecord, record_key
from headgate.shards.shard import TABLE_ID, TableHome
from headgate.shards.sharding import ByPartition, Sharding, bucket, by_partition, single
from headgate.shards.writer import ShardWriter
from headgate.steps import watching
from headgate.table.create import CREATE_STEPS, create_table
from headgate.table.fsck import fsck
from headgate.table.table import Table, open_table
from tests.support.services import S3_SECRETS
from tests.support.streams import Stream
from tests.support.tables import claimed

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("note", pa.string())], metadata={"made by": "a test"})
WAL_ONLY = WriterConfig(enable_memtable=False)
SECRET = "the-secret-of-this-test"


def orders(uri: Path | str, **changed: Any) -> Table:
    arguments: dict[str, Any] = {"primary_key": "id", "sharding": bucket("id", 4), "full_text": "note"} | changed
    return create_table(str(uri), SCHEMA, **arguments)


def rows(table: Table, *ids: int) -> pa.Table:
    return pa.table({"id": list(ids), "note": [f"note {i}" for i in ids]}, schema=table.schema)


def write(table: Table, shard: str, *ids: int) -> None:
    with table.writer(shard, WAL_ONLY) as writer:
        writer.put(rows(table, *ids))


def replayed_by_native(table: Table, shard: str) -> list[int]:
    """The ids that a native writer finds in the shard; it fences ours."""
    dataset = lance.dataset(table.uri)
    with dataset.mem_wal_writer(str(table.shard(shard).id)) as writer:
        found: list[int] = sorted(writer.lsm_scanner().to_table()["id"].to_pylist())
    return found


def files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


class Crash(Exception):
    """The process is gone."""


def crash_at(step: str) -> Callable[[str], None]:
    def watch(reached: str) -> None:
        if reached == step:
            raise Crash(step)

    return watch


# -- what is created ---------------------------------------------------------------


@pytest.mark.parametrize("sharding", [single(), bucket("id", 4), by_partition(3, key_is_partitioned=True)], ids=str)
def test_an_opened_table_is_the_created_one(tmp_path: Path, sharding: Sharding) -> None:
    made = orders(tmp_path / "t", sharding=sharding)
    for table in (made, open_table(str(tmp_path / "t")), pickle.loads(pickle.dumps(made))):
        assert table.uri == str(tmp_path / "t")
        assert table.table_id == made.table_id == table.home.table_id
        assert table.sharding == sharding
        assert table.primary_key == ("id",)
        assert table.full_text == ("note",)
        assert table.schema.names == ["id", "note"]
        assert table.schema.metadata == SCHEMA.metadata
        assert not table.schema.field("id").nullable
        assert table.schema.field("note").nullable
        assert table.home.spec_id == (0 if isinstance(sharding, ByPartition) else 1)
        assert claimed(table) == []


def test_native_sees_the_sharding_the_key_and_the_maintained_index(tmp_path: Path) -> None:
    orders(tmp_path / "t")
    dataset = lance.dataset(str(tmp_path / "t"))
    details = dataset.mem_wal_index_details()
    assert details is not None
    assert (details["num_shards"], details["maintained_indexes"]) == (4, [index_name("note")])
    assert details["sharding_specs"][0]["fields"][0]["transform"] == "bucket"
    assert dataset.schema.field("id").metadata == {b"lance-schema:unenforced-primary-key": b"true"}


def test_the_index_name_made_on_an_empty_base_finds_rows_that_come_later(tmp_path: Path) -> None:
    table = orders(tmp_path / "t")
    lance.write_dataset(rows(table, 1, 2, 12), table.uri, mode="append")
    assert sorted(lance.dataset(table.uri).to_table(full_text_query="12")["id"].to_pylist()) == [12]
    lance.dataset(table.uri).optimize.optimize_indices()
    dataset = lance.dataset(table.uri)
    assert dataset.stats.index_stats(index_name("note"))["num_indexed_rows"] == 3
    assert sorted(dataset.to_table(full_text_query="12")["id"].to_pylist()) == [12]
    assert open_table(table.uri).table_id == table.table_id


@pytest.mark.parametrize(
    "kind",
    [
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        *(pa.bool_(), pa.string(), pa.large_string(), pa.binary(), pa.large_binary()),
    ],
    ids=str,
)
def test_every_key_type_of_native_can_be_a_key(tmp_path: Path, kind: pa.DataType) -> None:
    table = create_table(str(tmp_path / "t"), pa.schema([("k", kind), ("v", pa.int8())]), primary_key="k")
    assert table.primary_key == ("k",)
    lance.dataset(table.uri).mem_wal_writer(str(table.shard("single").id)).close()


def test_a_key_of_two_columns_and_one_that_the_schema_marks_itself(tmp_path: Path) -> None:
    two = create_table(str(tmp_path / "two"), SCHEMA, primary_key=["note", "id"], sharding=bucket("note", 2))
    assert two.primary_key == ("id", "note")
    assert create_table(str(tmp_path / "marked"), two.schema).primary_key == ("id", "note")
    with pytest.raises(InvalidInput, match="marks"):
        create_table(str(tmp_path / "other"), two.schema, primary_key="id")


def test_without_a_key_the_table_takes_any_sharding(tmp_path: Path) -> None:
    shardings: dict[str, Sharding] = {"a": single(), "b": bucket("note", 2), "c": by_partition()}
    for name, sharding in shardings.items():
        table = create_table(str(tmp_path / name), SCHEMA, sharding=sharding)
        assert table.primary_key == ()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"primary_key": "idd"}, "did you mean 'id'"),
        ({"primary_key": "ID"}, "did you mean 'id'"),
        ({"primary_key": ["id", "id"]}, "named once"),
        ({"full_text": "nota"}, "did you mean 'note'"),
        ({"full_text": "id"}, "Lance rejects"),
        ({"sharding": bucket("note", 4)}, "not part of the primary key"),
        ({"sharding": by_partition()}, "key_is_partitioned"),
        ({"wal_uri": f"s3://user:{SECRET}@bucket/x"}, "storage_options"),
        ({"wal_uri": "gopher://x"}, "scheme"),
        ({"schema": pa.schema([])}, "at least one column"),
        ({"schema": pa.schema([("id", pa.float64())]), "full_text": ()}, "cannot be a primary key"),
        ({"schema": pa.schema([("id", pa.int64()), ("note", pa.string()), ("a.b", pa.int8())])}, "Lance rejects"),
        ({"schema": pa.schema([("id", pa.int64()), ("note", pa.string()), ("_rowid", pa.int8())])}, "Lance rejects"),
        ({"schema": pa.schema([("id", pa.int64()), ("_tombstone", pa.bool_())])}, "_tombstone"),
        ({"schema": pa.schema([("id", pa.int64()), ("id", pa.int64())])}, "unique"),
        ({"schema": SCHEMA.with_metadata({"writer_epoch": "1"})}, "reserved for WAL entries"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_definition_that_cannot_be_is_refused_before_anything_is_written(
    tmp_path: Path, changed: dict[str, Any], message: str
) -> None:
    arguments = {"schema": SCHEMA, "primary_key": "id", "sharding": bucket("id", 4), "full_text": "note"} | changed
    with pytest.raises(InvalidInput, match=message) as refused:
        create_table(str(tmp_path / "t"), **arguments)
    assert SECRET not in str(refused.value)
    assert files(tmp_path) == set()


@pytest.mark.parametrize("uri", ["memory://t", "gopher://t", ""])
def test_a_table_that_lance_and_we_cannot_share_is_refused(uri: str) -> None:
    with pytest.raises(InvalidInput):
        create_table(uri, SCHEMA)
    with pytest.raises(InvalidInput):
        open_table(uri)


# -- names from outside --------------------------------------------------------------


@pytest.mark.parametrize("name", ["we ird%20", "ta#b?le", "é漢🙂", "quo'te\"", "*", "-rf", " ", "a;b&c|d", "%2e%2e%2f"])
def test_a_folder_may_have_any_name(tmp_path: Path, name: str) -> None:
    table = orders(tmp_path / name / "t")
    write(table, "bucket-00001", 6)
    assert [shard.name for shard in claimed(open_table(table.uri))] == ["bucket-00001"]
    assert {path.name for path in tmp_path.iterdir()} == {name}


@pytest.mark.parametrize("topic", ["../../../etc", "a/b", "a\\b", "nul\x00", "\n", "x" * 10_000, ":", "漢", " "])
def test_a_topic_never_becomes_a_path(tmp_path: Path, topic: str) -> None:
    table = create_table(str(tmp_path / "t"), SCHEMA, sharding=by_partition())
    assert isinstance(table.sharding, ByPartition)
    name = table.sharding.shard_name(topic, 0)
    write(table, name, 1)
    assert {path.name for path in (tmp_path / "t" / "_mem_wal").iterdir()} == {str(table.shard(name).id)}
    assert {path.name for path in tmp_path.iterdir()} == {"t"}
    assert [shard.name for shard in table.shards(names=[name])] == [name]
    assert [shard.name for shard in claimed(table)] == [None]


def test_a_topic_that_is_no_text_is_refused(tmp_path: Path) -> None:
    table = create_table(str(tmp_path / "t"), SCHEMA, sharding=by_partition())
    with pytest.raises(InvalidInput, match="Unicode"):
        table.shard("partition:\udc80:0")


def test_a_shard_that_the_table_cannot_have_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    table = orders(tmp_path / "t")
    for name in ("bucket-1", "bucket-00004", "single", "", "../x"):
        with pytest.raises(InvalidInput, match="The table has no shard"):
            table.writer(name, WAL_ONLY)
    assert claimed(table) == []
    anything = uuid.uuid4()
    assert table.shard(anything).id == table.shard(str(anything)).id == anything


# -- shards ----------------------------------------------------------------------------


def test_every_shard_that_the_sharding_defines_is_listed_claimed_or_not(tmp_path: Path) -> None:
    table = orders(tmp_path / "t")
    write(table, "bucket-00002", 4)
    listed = [(shard.name, shard.claimed, shard.epoch, shard.native_safe) for shard in table.shards()]
    assert listed == [(f"bucket-{number:05d}", number == 2, int(number == 2), True) for number in range(4)]
    assert [shard.id for shard in table.shards()] == [table.shard(f"bucket-{number:05d}").id for number in range(4)]
    plain = create_table(tmp_path / "plain", SCHEMA)
    assert [(shard.name, shard.claimed) for shard in plain.shards()] == [("single", False)]
    parts = create_table(tmp_path / "parts", SCHEMA, sharding=by_partition(max_shards=2))
    assert parts.shards() == [], "nobody knows the topics of a table before they come"
    Stream(parts, "t", 2)
    assert [(shard.name, shard.claimed) for shard in parts.shards()] == [
        ("partition:t:0", True),
        ("partition:t:1", True),
    ]
    parts.checkpoint(name="then")
    assert [shard.name for shard in open_table(parts.uri, checkpoint="then").shards()][1:] == ["partition:t:1"]


def test_shards_show_what_their_manifests_say(tmp_path: Path) -> None:
    table = orders(tmp_path / "t")
    write(table, "bucket-00002", 4, 16)
    write(table, "bucket-00000", 1)
    write(table, "bucket-00000", 2)
    native = uuid.uuid4()
    with lance.dataset(table.uri).mem_wal_writer(str(native)) as writer:
        writer.put(rows(table, 9))
    (tmp_path / "t" / "_mem_wal" / "stray").mkdir()
    first, third, foreign = claimed(table)
    assert (first.name, first.epoch, first.id) == ("bucket-00000", 2, table.shard("bucket-00000").id)
    assert (third.name, third.epoch, third.last_seen, third.replay_after, third.generation) == (
        *("bucket-00002", 1, 1, 0, 1),
    )
    assert (foreign.name, foreign.id, foreign.sstables, foreign.generation) == (None, native, 1, 2)
    assert all(shard.native_safe and not shard.sealed and shard.owner is None for shard in claimed(table))


def test_a_shard_of_a_stream_is_sealed_and_not_for_native(tmp_path: Path) -> None:
    table = orders(tmp_path / "t")
    table.shard("bucket-00003").manifests.claim("a stream")
    (shard,) = claimed(table)
    assert (shard.owner, shard.sealed, shard.native_safe) == ("a stream", True, False)


def test_a_manifest_that_cannot_be_read_is_told_with_its_shard(tmp_path: Path) -> None:
    table = orders(tmp_path / "t")
    write(table, "bucket-00003", 3)
    shard_id = table.shard("bucket-00003").id
    for manifest in (tmp_path / "t" / "_mem_wal" / str(shard_id) / "manifest").glob("*.binpb"):
        manifest.write_bytes(b"junk")
    with pytest.raises(Corrupt) as told:
        claimed(table)
    assert told.value.shard == str(shard_id)


def test_native_replays_what_our_writer_wrote(tmp_path: Path) -> None:
    table = orders(tmp_path / "t")
    write(table, "bucket-00001", 6, 13)
    assert replayed_by_native(table, "bucket-00001") == [6, 13]
    (shard,) = claimed(table)
    assert (shard.name, shard.epoch, shard.sstables) == ("bucket-00001", 2, 1)


def test_our_writer_goes_on_where_a_native_one_stopped(tmp_path: Path) -> None:
    table = orders(tmp_path / "t")
    with lance.dataset(table.uri).mem_wal_writer(str(table.shard("bucket-00001").id)) as writer:
        writer.put(rows(table, 6))
    write(table, "bucket-00001", 13)
    assert replayed_by_native(table, "bucket-00001") == [6, 13]


# -- create: crashes, rivals, places that are taken --------------------------------------


@pytest.mark.parametrize("step", CREATE_STEPS)
def test_after_a_crash_at_any_step_the_same_call_completes(tmp_path: Path, step: str) -> None:
    uri = str(tmp_path / "t")
    with pytest.raises(Crash):
        with watching(crash_at(step)):
            orders(uri)
    if step == "created":
        with pytest.raises(InvalidInput, match="exists already at"):
            orders(uri)
    else:
        with pytest.raises((NotFound, InvalidInput)):
            open_table(uri)
        orders(uri)
    table = open_table(uri)
    assert table.sharding == bucket("id", 4)
    write(table, "bucket-00001", 6)
    assert replayed_by_native(table, "bucket-00001") == [6]
    assert [index.name for index in lance.dataset(uri).describe_indices()].count(index_name("note")) == 1


@pytest.mark.parametrize("step", CREATE_STEPS[:-1])
def test_after_a_crash_another_definition_is_completed_or_refused_clearly(tmp_path: Path, step: str) -> None:
    uri = str(tmp_path / "t")
    with pytest.raises(Crash):
        with watching(crash_at(step)):
            orders(uri)
    if step == "mem_wal":
        with pytest.raises(InvalidInput, match="was started with"):
            orders(uri, sharding=single())
        assert orders(uri).sharding == bucket("id", 4)
    else:
        assert orders(uri, sharding=single()).sharding == single()


def test_after_a_crash_other_columns_are_refused_with_those_that_are_there(tmp_path: Path) -> None:
    with pytest.raises(Crash):
        with watching(crash_at("base")):
            orders(tmp_path / "t")
    with pytest.raises(InvalidInput, match="id int64 not null, note string"):
        create_table(str(tmp_path / "t"), pa.schema([("id", pa.int64()), ("other", pa.string())]), primary_key="id")


def test_an_existing_table_is_refused_by_name_and_left_alone(tmp_path: Path) -> None:
    table = orders(tmp_path / "t")
    before = files(tmp_path)
    with pytest.raises(InvalidInput, match="exists already at") as refused:
        orders(tmp_path / "t", sharding=single())
    assert table.uri in str(refused.value)
    assert str(table.table_id) in str(refused.value)
    assert files(tmp_path) == before


@pytest.mark.parametrize("count", [0, 1])
@pytest.mark.parametrize("initialised", [False, True])
def test_a_dataset_that_is_not_ours_is_refused_and_left_alone(tmp_path: Path, count: int, initialised: bool) -> None:
    uri = str(tmp_path / "t")
    dataset = lance.write_dataset(pa.table({"id": [1], "note": ["x"]}, schema=SCHEMA)[:count], uri)
    if initialised:
        dataset.initialize_mem_wal(unsharded=True)
    before = files(tmp_path)
    with pytest.raises(InvalidInput, match="headgate did not create"):
        create_table(uri, SCHEMA)
    with pytest.raises(InvalidInput, match="not a headgate table"):
        open_table(uri)
    assert files(tmp_path) == before


def test_a_base_that_cannot_be_read_is_not_taken_for_none(tmp_path: Path) -> None:
    table = orders(tmp_path / "t")
    for manifest in (tmp_path / "t" / "_versions").iterdir():
        manifest.write_bytes(b"junk")
    before = files(tmp_path)
    for call in (orders, open_table):
        with pytest.raises(StoreError) as told:
            call(table.uri)
        assert not isinstance(told.value, NotFound)
    assert files(tmp_path) == before


@pytest.mark.parametrize("step", CREATE_STEPS)
def test_of_two_creations_that_meet_at_any_step_one_wins(tmp_path: Path, step: str) -> None:
    uri = str(tmp_path / "t")
    rival: list[Table | HeadgateError] = []

    def watch(reached: str) -> None:
        if reached == step:
            try:
                rival.append(orders(uri))
            except InvalidInput as error:
                rival.append(error)

    if step == "created":
        with watching(watch):
            mine = orders(uri)
        assert isinstance(rival[0], InvalidInput)
    else:
        with pytest.raises(InvalidInput, match="created a table at"):
            with watching(watch):
                orders(uri)
        assert isinstance(rival[0], Table)
        mine = rival[0]
    assert open_table(uri).table_id == mine.table_id


def test_of_many_creations_at_once_one_wins(tmp_path: Path) -> None:
    uri, start = str(tmp_path / "t"), threading.Barrier(4)
    made: list[Table] = []
    refused: list[HeadgateError] = []

    def run() -> None:
        start.wait()
        try:
            made.append(orders(uri))
        except HeadgateError as error:
            refused.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {table.table_id for table in made} == {open_table(uri).table_id}
    assert len(made) + len(refused) == 4
    assert all(isinstance(error, InvalidInput | StoreError) for error in refused), refused


def test_a_lost_response_to_the_record_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Losing(LocalStore):
        def put_if_absent(self, key: str, data: Any) -> None:
            super().put_if_absent(key, data)
            raise Transient("The response was lost.")

    monkeypatch.setattr(table_stores, "open_store", lambda uri, options=None: Losing(uri).retrying())
    assert orders(tmp_path / "t").table_id == open_table(str(tmp_path / "t")).table_id


def test_a_store_that_fails_leaves_no_table_and_the_same_call_completes_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing(LocalStore):
        def put_if_absent(self, key: str, data: Any) -> None:
            raise Transient("The store is away.")

    with monkeypatch.context() as patch:
        patch.setattr(table_stores, "open_store", lambda uri, options=None: Failing(uri).retrying())
        with pytest.raises(Transient):
            orders(tmp_path / "t")
    assert files(tmp_path) == set()
    assert claimed(orders(tmp_path / "t")) == []


# -- a re-created table never shows old rows --------------------------------------------


def assert_shows_nothing_old(table: Table, old: Table) -> None:
    assert table.table_id != old.table_id
    assert claimed(table) == []
    assert replayed_by_native(table, "bucket-00001") == []
    write(table, "bucket-00002", 42)
    assert {shard.name for shard in claimed(table)} == {"bucket-00001", "bucket-00002"}


@pytest.mark.parametrize("kept", [("_mem_wal",), ("_mem_wal", "_headgate")], ids=str)
def test_a_table_made_where_a_base_was_deleted_has_no_old_rows(tmp_path: Path, kept: tuple[str, ...]) -> None:
    old = orders(tmp_path / "t")
    write(old, "bucket-00001", 6)
    write(old, "bucket-00002", 4)
    for folder in (tmp_path / "t").iterdir():
        if folder.name not in kept:
            shutil.rmtree(folder)
    with pytest.raises(NotFound):
        open_table(old.uri)
    assert_shows_nothing_old(orders(tmp_path / "t"), old)


@pytest.mark.parametrize("config", [WAL_ONLY, WriterConfig()], ids=["WAL only", "MemTable"])
@pytest.mark.parametrize("shard", ["bucket-00001", "bucket-00002"], ids=["old shard", "new shard"])
def test_a_writer_that_claims_while_its_table_is_made_anew_puts_no_row_into_the_new_one(
    tmp_path: Path, config: WriterConfig, shard: str
) -> None:
    old = orders(tmp_path / "t")
    write(old, "bucket-00001", 6)

    def anew(step: str) -> None:
        if step == "claim" and not made:
            shutil.rmtree(tmp_path / "t")
            made.append(orders(tmp_path / "t"))

    made: list[Table] = []
    with watching(anew), pytest.raises(InvalidInput, match="another table"):
        ShardWriter.open(old, shard, config)
    assert not made[0].scan().read_all().num_rows
    assert_shows_nothing_old(made[0], old)
    assert fsck(made[0]).holds


def test_rows_of_a_table_that_was_made_anew_open_no_shard_in_the_new_one(tmp_path: Path) -> None:
    old = orders(tmp_path / "t")
    old.upsert(rows(old, 6))
    shutil.rmtree(tmp_path / "t")
    new = orders(tmp_path / "t")
    with pytest.raises(InvalidInput, match="another table"):
        old.upsert(rows(old, *range(20)))
    assert not new.scan().read_all().num_rows
    assert_shows_nothing_old(new, old)


@pytest.mark.parametrize("step", [None, *CREATE_STEPS[:-1]])
def test_a_table_made_where_lance_overwrote_the_base_has_no_old_rows(tmp_path: Path, step: str | None) -> None:
    old = orders(tmp_path / "t")
    write(old, "bucket-00001", 6)
    write(old, "bucket-00002", 4)
    lance.write_dataset(rows(old, 100), old.uri, mode="overwrite")
    with pytest.raises(InvalidInput, match="overwritten"):
        open_table(old.uri)
    if step is not None:
        with pytest.raises(Crash):
            with watching(crash_at(step)):
                orders(tmp_path / "t")
        with pytest.raises(InvalidInput, match="overwritten"):
            open_table(old.uri)
    table = orders(tmp_path / "t")
    assert table.table_id != old.table_id
    assert claimed(table) == []
    assert lance.dataset(table.uri).to_table()["id"].to_pylist() == [100]
    assert replayed_by_native(table, "bucket-00001") == [100]


def test_native_initialising_an_overwritten_base_does_not_bring_old_rows_back(tmp_path: Path) -> None:
    old = orders(tmp_path / "t")
    write(old, "bucket-00001", 6)
    lance.write_dataset(rows(old), old.uri, mode="overwrite").initialize_mem_wal(bucket_column="id", num_buckets=4)
    with pytest.raises(InvalidInput, match="re-initialised"):
        open_table(old.uri)
    lance.dataset(old.uri).drop_index("__lance_mem_wal")
    assert_shows_nothing_old(orders(tmp_path / "t"), old)


def test_a_native_clone_is_not_taken_for_the_table(tmp_path: Path) -> None:
    table = orders(tmp_path / "t")
    write(table, "bucket-00001", 6)
    dataset = lance.dataset(table.uri)
    dataset.deep_clone(str(tmp_path / "clone"), dataset.version)
    with pytest.raises(InvalidInput, match="copy made by native"):
        open_table(str(tmp_path / "clone"))


# -- the record ---------------------------------------------------------------------------


def test_the_record_says_what_the_table_is_and_people_can_read_it(tmp_path: Path) -> None:
    table = orders(tmp_path / "t")
    found = json.loads((tmp_path / "t" / record_key(table.table_id)).read_text())
    assert found.pop("checksum")
    assert found == {
        "format": 1,
        "release": release(),
        "table_id": str(table.table_id),
        "sharding": {"kind": "bucket", "column": "id", "n": 4},
        "primary_key": ["id"],
        "full_text": ["note"],
        "wal_uri": None,
        "leftover_shards": [],
    }
    assert lance.dataset(table.uri).config()[TABLE_ID] == str(table.table_id)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ('{"format": 4}', InvalidInput, "or a later one"),
        ("{}", Corrupt, "record"),
        ("[]", Corrupt, "record"),
        ('{"format": 1, "table_id": 7}', Corrupt, "record"),
        ("not json", Corrupt, "JSON"),
        ("", Corrupt, "JSON"),
    ],
)
def test_a_record_that_is_newer_or_damaged_is_refused(
    tmp_path: Path, text: str, error: type[HeadgateError], message: str
) -> None:
    table = orders(tmp_path / "t")
    (tmp_path / "t" / record_key(table.table_id)).write_text(text)
    with pytest.raises(error, match=message) as refused:
        open_table(table.uri)
    assert refused.value.table == table.uri


def test_a_record_survives_json() -> None:
    record = TableRecord(uuid.uuid4(), by_partition(4), ("a", "b"), ("c",), "s3://x/y", frozenset({uuid.uuid4()}))
    assert decode(TableRecord, encode(record), "it") == record


# -- a separate WAL store, and credentials --------------------------------------------------


def test_a_separate_wal_store_is_remembered_and_no_other_is_taken(tmp_path: Path) -> None:
    table = orders(tmp_path / "t", wal_uri=str(tmp_path / "wal"))
    write(table, "bucket-00001", 6)
    for opened in (open_table(table.uri), open_table(table.uri, wal_uri=f"file://{tmp_path / 'wal'}")):
        assert opened.home.wal_store.uri == str(tmp_path / "wal")
        assert [shard.native_safe for shard in claimed(opened)] == [False]
    assert not any("/wal/" in name for name in files(tmp_path / "t"))
    assert any("/wal/" in name for name in files(tmp_path / "wal"))
    for other in (str(tmp_path / "other"), f"s3://user:{SECRET}@bucket/wal?token={SECRET}"):
        with pytest.raises(InvalidInput, match="WALs are in") as refused:
            open_table(table.uri, wal_uri=other)
        assert str(tmp_path / "wal") in str(refused.value)
        assert ("s3://bucket/wal" if "s3" in other else other) in str(refused.value)
        assert SECRET not in str(refused.value)


@pytest.mark.parametrize("mode", [WAL_ONLY, WriterConfig()], ids=["wal-only", "memtable"])
def test_a_writer_that_is_opened_by_the_tables_uri_writes_where_the_table_says(
    tmp_path: Path, mode: WriterConfig
) -> None:
    table = orders(tmp_path / "t", wal_uri=str(tmp_path / "wal"))
    write(table, "bucket-00001", 6)
    ids = [6, 13, 14, 21]
    places: list[str | Table | TableHome] = [table.uri, table, table.home]
    for number, place in enumerate(places, 1):
        with ShardWriter.open(place, "bucket-00001", mode) as writer:
            writer.put(rows(table, ids[number]))
        assert sorted(table.scan().read_all()["id"].to_pylist()) == ids[: number + 1]
    assert not any("/wal/" in name for name in files(tmp_path / "t"))


def test_a_writer_that_is_opened_by_the_tables_uri_takes_no_name_that_the_table_cannot_have(tmp_path: Path) -> None:
    table = orders(tmp_path / "t")
    for place in (table.uri, table):
        with pytest.raises(InvalidInput, match="bucket"):
            ShardWriter.open(place, "bucket-00004")
    assert not claimed(table)


def test_the_table_s_own_place_is_no_wal_store(tmp_path: Path) -> None:
    table = orders(tmp_path / "t", wal_uri=str(tmp_path / "t"))
    assert table.record.wal_uri is None
    opened = open_table(table.uri, wal_uri=table.uri)
    assert opened.home.wal_store is opened.home.store


@pytest.mark.s3
def test_on_s3_a_table_works_and_credentials_stay_out_of_records_and_texts(
    s3_options: dict[str, str], bucket: str
) -> None:
    uri = f"s3://{bucket}/t"
    table = orders(uri, wal_uri=f"s3://{bucket}/wal", storage_options=s3_options)
    table = pickle.loads(pickle.dumps(table))
    write(table, "bucket-00001", 6)
    assert [shard.name for shard in claimed(open_table(uri, storage_options=s3_options))] == ["bucket-00001"]
    with pytest.raises(InvalidInput, match="exists already at") as refused:
        orders(uri, storage_options=s3_options)
    with pytest.raises(NotFound) as missing:
        open_table(f"s3://{bucket}/none", storage_options=s3_options)
    texts = [repr(table), repr(table.home), str(refused.value), str(missing.value)]
    stored = [bytes(table.home.store.get(info.key)) for info in table.home.store.list("")]
    for secret in S3_SECRETS:
        assert all(secret not in text for text in texts)
        assert all(secret.encode() not in data for data in stored)


# -- the command line -----------------------------------------------------------------------


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, ["table", *arguments])
    return result.exit_code, result.stdout, result.stderr


CREATE = ("--schema", "id bigint, note string", "--primary-key", "id", "--full-text", "note")


def test_the_command_line_makes_and_shows_a_table(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    code, text, errors = run("create", uri, *CREATE, "--sharding", "bucket(id, 4)", "--wal-uri", str(tmp_path / "wal"))
    assert (code, errors) == (0, "")
    assert "bucket" in text
    write(open_table(uri), "bucket-00003", 3)
    code, text, _ = run("show", uri, "--output", "json")
    shown = json.loads(text)
    assert code == 0
    assert shown["sharding"] == "bucket('id', 4)"
    assert shown["wal_uri"] == str(tmp_path / "wal")
    assert shown["columns"][0] == {"name": "id", "type": "int64", "nullable": False, "key": True, "full_text": False}
    assert [shard["name"] for shard in shown["shards"] if shard["claimed"]] == ["bucket-00003"]
    code, text, _ = run("show", uri)
    assert code == 0
    assert "bucket-00003" in text


@pytest.mark.parametrize(
    ("text", "sharding"),
    [
        ("single()", single()),
        ("bucket(id, 16)", bucket("id", 16)),
        (" bucket('id', n=16)", bucket("id", 16)),
        ("by_partition(key_is_partitioned=True)", by_partition(key_is_partitioned=True)),
        ("by_partition(max_shards=3, key_is_partitioned=True)", by_partition(3, key_is_partitioned=True)),
    ],
)
def test_the_command_line_takes_every_sharding(tmp_path: Path, text: str, sharding: Sharding) -> None:
    assert run("create", str(tmp_path / "t"), *CREATE, "--sharding", text)[0] == 0
    assert open_table(str(tmp_path / "t")).sharding == sharding


@pytest.mark.parametrize(
    "arguments",
    [
        ("create", "{}/t", "--schema", "id bigint", "--sharding", "bucket:id:4"),
        ("create", "{}/t", "--schema", "id bigint", "--sharding", "bucket(id)"),
        ("create", "{}/t", "--schema", "id bigint", "--sharding", "bucket(id, 0)"),
        ("create", "{}/t", "--schema", "id bigint", "--sharding", "by_partition"),
        ("create", "{}/t", "--schema", "id bigint", "--sharding", "by_partition(x)"),
        ("create", "{}/t", "--schema", "id bigint", "--sharding", "single(**x)"),
        ("create", "{}/t", "--schema", "id bigint", "--sharding", "open('x')"),
        ("create", "{}/t", "--schema", "id bigin"),
        ("create", "{}/t", "--schema", "id bigint", "--primary-key", "di"),
        ("create", "{}/t"),
        ("show", "{}/t"),
    ],
    ids=" ".join,
)
def test_the_command_line_tells_a_mistake_in_a_sentence_and_a_next_step(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    code, text, errors = run(*(part.format(tmp_path) for part in arguments))
    assert code in (2, 3)
    assert text == ""
    assert errors.startswith("Error: ")
    assert "Next: " in errors
    assert "Traceback" not in errors
    assert files(tmp_path) == set()


@pytest.mark.parametrize("command", ["create", "show"])
def test_help_has_an_example(command: str) -> None:
    code, text, _ = run(command, "--help")
    assert code == 0
    assert f"headgate table {command}" in text.partition("Example:")[2]
