"""Hostile names, rows, records, manifests: nothing leaves the table's directory, nothing runs, no other row is lost."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

from headgate.checkpoints.log.commit_log import CommitLog
from headgate.checkpoints.log.names import list_streams
from headgate.checkpoints.snapshots.checkpoint import CheckpointStore
from headgate.checkpoints.stream.driver import StreamDriver
from headgate.cli import main
from headgate.connectors.kafka.rows import row_schema
from headgate.errors import Corrupt, DataLoss, HeadgateError, InvalidInput
from headgate.records import plain, text_of
from headgate.shards import names
from headgate.shards.home.record import record_key
from headgate.shards.shard import Shard
from headgate.shards.sharding import ByPartition, by_partition
from headgate.shards.wal.entry import SourceRange
from headgate.streaming.decode.api import debezium as debezium_decoder
from headgate.streaming.decode.api import json as json_decoder
from headgate.streaming.write.rows import RowMaker
from headgate.table.create import create_table
from headgate.table.fsck import fsck
from headgate.table.table import Table, open_table
from tests.support.clones import CONFIG, DIRECT, STREAM, content, open_stream, rows, run_batch, streamed
from tests.support.life import QUERY, SCHEMA, batch_of, expected_rows, ranges_of, run_task, write_plan, written

HOSTILE = {
    "parents": "../../../escaped",
    "absolute": "/etc/passwd",
    "dots": "..",
    "dot": ".",
    "slashes": "a//b/./c/",
    "backslash": "..\\..\\escaped",
    "quotes": 'it\'s "quoted" `and` $(touch escaped); --',
    "sql": "x'; DROP TABLE t; --",
    "percent": "%2e%2e%2fescaped%00",
    "escape": "a%20b",
    "hash": "a#b",
    "format": "{0.__class__} %s %n",
    "unicode": "näme 日本語 🦀 \u202e\u0301",
    "spaces": "  two  words  ",
    "newline": "a\nb\r\tc",
    "nul": "a\0b",
    "colon": "partition:other:0",
    "long": "n" * 10_000,
    "long unicode": "🦀" * 2_500,
}
NAMES = pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
READ_OTHERWISE = {"slashes", "percent", "escape", "hash", "unicode", "nul", "long unicode"}
"""What a URL or a key of S3 reads otherwise than a path of a disk does."""
NAMES_ON_S3 = pytest.mark.parametrize(
    "name",
    [pytest.param(HOSTILE[one], id=one, marks=[] if one in READ_OTHERWISE else pytest.mark.deep) for one in HOSTILE],
)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory for tables; nothing may appear beside it, nor where the process stands."""
    outside = tmp_path / "outside" / "deep"
    inside = outside / "tables"
    inside.mkdir(parents=True)
    (tmp_path / "witness").write_text("here")
    monkeypatch.chdir(outside)

    def beside() -> set[Path]:
        return {path for path in tmp_path.rglob("*") if inside not in path.parents}

    before = beside()
    yield inside
    assert beside() == before
    assert not any(path.name == "escaped" for path in inside.rglob("*") if path.parent == inside)


def clean(table: Table) -> None:
    assert [str(one) for one in fsck(table.uri).findings] == []


# -- names -------------------------------------------------------------------------


@NAMES
def test_streams_and_topics_of_any_name(place: Path, name: str) -> None:
    table = create_table(str(place / "t"), SCHEMA, sharding=by_partition())
    ranges = [SourceRange(name, 0, 0, 40)]
    driver = StreamDriver.open(table.home, name, QUERY, [ByPartition().shard_name(name, 0)])
    plan = write_plan(driver, ranges)
    maker = RowMaker(table.home.schema, ByPartition(), json_decoder(SCHEMA), topic=name)
    plan = replace(plan, maker=maker)
    driver.commit(batch_of(plan, written(run_task(plan, ranges)), 0, ranges))
    again = open_table(table.uri)
    assert list_streams(again.home.records) == (name,)
    assert sorted(again.scan(columns=["id"]).read_all()["id"].to_pylist()) == sorted(expected_rows(ranges))
    last = CommitLog(again.home.records, name, again.uri).read().head.last
    assert last is not None
    assert last.sources == tuple(ranges)
    clean(again)


@NAMES
def test_columns_of_any_name_work_or_are_refused(place: Path, name: str) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field(name, pa.string())])
    for full_text in ((), (name,)):
        uri = str(place / f"t{len(full_text)}")
        try:
            table = create_table(uri, schema, primary_key="id", full_text=full_text)
        except InvalidInput:
            continue
        with table.writer("single", CONFIG) as writer:
            writer.put(pa.record_batch([pa.array([1, 2]), pa.array(["one", "two"])], schema=table.schema))
            writer.flush_memtable()
            writer.put(pa.record_batch([pa.array([2]), pa.array(["new"])], schema=table.schema))
        table.flush()
        table.compact()
        found = open_table(uri).scan().read_all()
        assert dict(zip(found["id"].to_pylist(), found[name].to_pylist(), strict=True)) == {1: "one", 2: "new"}
        clean(table)


@NAMES
def test_columns_that_are_added_or_renamed_to_any_name_work_or_are_refused(place: Path, name: str) -> None:
    table = create_table(str(place / "t"), pa.schema([pa.field("id", pa.int64()), pa.field("note", pa.string())]))
    with table.writer("single", CONFIG) as writer:
        writer.put(pa.record_batch({"id": [1], "note": ["one"]}))
    changes: list[Callable[[Table], Table]] = [
        lambda table: table.add_column(pa.field(name, pa.string())),
        lambda table: table.drop_column(name) if name in table.schema.names else table,
        lambda table: table.rename_column("note", name),
    ]
    for change in changes:
        before = table.schema
        try:
            table = change(table)
        except InvalidInput:
            assert table.refreshed().schema == before, "nothing was written"
            continue
        with table.writer("single", CONFIG) as writer:
            batch = [[len(before)] if one == "id" else ["new"] for one in table.schema.names]
            writer.put(pa.record_batch(batch, names=table.schema.names))
        table.flush()
        table.compact()
        found = open_table(table.uri).scan(columns=table.schema.names).read_all()
        assert found.schema.names == table.schema.names
        assert "new" in found[table.schema.names[-1]].to_pylist()
    clean(table)


@NAMES
def test_checkpoints_of_any_name_work_or_are_refused(place: Path, name: str) -> None:
    table = create_table(str(place / "t"), SCHEMA)
    with table.writer("single", CONFIG) as writer:
        writer.put(rows(1))
    try:
        table.checkpoint(name=name)
    except InvalidInput:
        assert table.checkpoints() == []
        return
    with table.writer("single", CONFIG) as writer:
        writer.put(rows(2))
    assert open_table(table.uri, checkpoint=name).scan().read_all()["id"].to_pylist() == [1]
    table.drop_checkpoint(name)
    assert table.checkpoints() == []


@NAMES
def test_tables_and_shards_of_any_name_work_or_are_refused(place: Path, name: str) -> None:
    if ".." in name.split("/") or name.startswith("/"):
        # A path is the caller's own word for a place; only what lies in the table must stay there.
        table = create_table(str(place / "t"), SCHEMA, sharding=by_partition())
    else:
        try:
            table = create_table(str(place / "in" / name), SCHEMA, sharding=by_partition())
        except HeadgateError:
            return
    acknowledged = []
    for number, shard in enumerate((name, f"partition:{name}:0")):
        try:
            writer = table.writer(shard, CONFIG)
        except InvalidInput:
            continue
        with writer:
            writer.put(rows(number))
        acknowledged.append(number)
    assert sorted(open_table(table.uri).scan(columns=["id"]).read_all()["id"].to_pylist()) == acknowledged
    assert acknowledged, "a partition of any topic can be written"


# -- rows ----------------------------------------------------------------------------


def test_a_hundred_thousand_empty_strings_a_batch(place: Path) -> None:
    table = create_table(str(place / "t"), SCHEMA, primary_key="id", full_text="note")
    empty = pa.record_batch({"id": range(100_000), "note": [""] * 100_000}, schema=table.schema)
    with table.writer("single", CONFIG) as writer:
        for _ in range(3):
            writer.put(empty)
        writer.flush_memtable()
        writer.put(empty)
    found = open_table(table.uri).scan().read_all()
    assert found.num_rows == 100_000
    assert found["note"].unique().to_pylist() == [""]
    assert table.search("anything").num_rows == 0


def test_memory_stays_bounded_by_deep_json_and_by_many_empty_strings(place: Path) -> None:
    """A process of its own: what Arrow, Lance and the parsers allocate is in its resident memory and nowhere else."""
    command = [sys.executable, "-c", MEASURED, str(place / "t")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    grown = json.loads(done.stdout)
    assert grown["json"] < 100, "MB for twelve records of 100 KB to 1 MB, by two decoders"
    assert grown["empty"] < 120, "MB for four batches of 100,000 rows, their index and their SSTable"


MEASURED = """
import json, sys
import pyarrow as pa, headgate
from tests.faults.test_hostile import BAD, SCHEMA, envelope

# ru_maxrss is no less than what the process held that started this one.
def most(): return int(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0]) >> 10

def fill(name, rows):
    table = headgate.create_table(f"{sys.argv[1]}-{name}", SCHEMA, primary_key="id", full_text="note")
    batch = pa.record_batch({"id": range(rows), "note": [""] * rows}, schema=table.schema)
    with table.writer("single") as writer:
        for _ in range(3):
            writer.put(batch)
        writer.flush_memtable()
        writer.put(batch)
    assert headgate.open_table(table.uri).scan().read_all().num_rows == rows

decoders = headgate.decode.json(SCHEMA), headgate.decode.debezium(SCHEMA, primary_key="id")
fill("warm", 10)
for one in decoders:
    one.decode(pa.array([b'{"id": 1}'], pa.binary()))
begin = most()
for value in BAD.values():
    for one in decoders:
        one.decode(pa.array([b'{"id": 1}', value, envelope(value)], pa.binary()))
parsed = most()
fill("large", 100_000)
print(json.dumps({"json": parsed - begin, "empty": most() - parsed}))
"""

DEEP = 100_000
BAD = {
    "deep list": b"[" * DEEP,
    "deep list closed": b"[" * DEEP + b"]" * DEEP,
    "deep object": b'{"note":' * DEEP + b"1" + b"}" * DEEP,
    "deep in an unknown column": b'{"id": 1, "x": ' + b"[" * DEEP + b"]" * DEEP + b"}",
    "long number": b'{"id": ' + b"9" * DEEP + b"}",
    "huge exponent": b'{"id": 1e999999999}',
    "nul": b'{"id": \0}',
    "half a character": b'{"id": 1, "note": "\xf0\x9f"}',
    "surrogate": b'{"id": 1, "note": "\\ud800"}',
    "long key": b'{"' + b"k" * DEEP + b'": 1}',
    "ten thousand keys": b"{" + b",".join(b'"k%d":%d' % (n, n) for n in range(10_000)) + b"}",
    "same key": b'{"id": 1,' + b",".join([b'"id": 2'] * 1000) + b"}",
}


def envelope(row: bytes) -> bytes:
    """The change event that inserts it."""
    return b'{"op": "c", "after": ' + row + b"}"


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("of", ["json", "debezium", "debezium after"])
def test_a_hostile_record_costs_no_other_row(place: Path, kind: str, of: str) -> None:
    key = None if of == "json" else "id"
    table = create_table(
        str(place / "t"), SCHEMA, primary_key=key, sharding=by_partition(key_is_partitioned=key is not None)
    )
    driver = StreamDriver.open(table.home, "s", QUERY, [ByPartition().shard_name("orders", 0)])
    ranges = [SourceRange("orders", 0, 0, 3)]
    values = [b'{"id": 10, "note": "before"}', BAD[kind], b'{"id": 12, "note": "after"}']
    if of != "json":
        values[::2] = map(envelope, values[::2])
    if of == "debezium after":
        values[1] = envelope(values[1])
    kafka = row_schema(("value", "partition", "offset", "key", "topic"))
    columns = [values, [0] * 3, [0, 1, 2], [b"k"] * 3, ["orders"] * 3]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, kafka, strict=True)]
    decoder = json_decoder(SCHEMA) if of == "json" else debezium_decoder(SCHEMA, primary_key="id")
    maker = RowMaker(table.home.schema, ByPartition(), decoder, topic="orders")
    plan = replace(write_plan(driver, ranges), maker=maker)
    from headgate.streaming.write import task

    output = task.write_kafka(plan, iter([pa.record_batch(arrays, schema=kafka)]))
    lines = [json.loads(line) for batch in output for line in batch.column(0).to_pylist()]
    driver.commit(batch_of(plan, written(lines), 0, ranges))
    found = open_table(table.uri).scan(columns=["id"]).read_all()["id"].to_pylist()
    assert {10, 12} <= set(found)
    assert len(found) <= 3
    clean(table)


# -- records and manifests that somebody else wrote ------------------------------------

POISON = {
    "empty": b"",
    "garbage": b"\x00\xff\xfe garbage",
    "other json": b'{"format": 1, "kind": "other", "a": [1, 2, {"b": null}]}',
    "list": b"[]",
    "deep": b"[" * DEEP,
    "deep object": b'{"format":' * DEEP,
    "numbers": b'{"format": ' + b"9" * DEEP + b"}",
    "infinite": b'{"format": 1e999, "table_id": NaN}',
    "pickle": b"cos\nsystem\n(S'touch escaped'\ntR.",
    "xml": b'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a "aaaa">]><x>&a;</x>',
    "unicode": b'{"format": "\\ud800"}',
}
POISONED = pytest.mark.parametrize("poison", POISON.values(), ids=POISON)


def failure(ask: Callable[[], object]) -> HeadgateError | None:
    """What it raises; anything but an error of ours fails the test."""
    try:
        ask()
    except HeadgateError as error:
        return error
    return None


def overwrite(table: Table, key: str, data: bytes) -> None:
    table.home.store.put_overwrite(key, data)


@POISONED
def test_a_poisoned_record_is_told_and_nothing_is_done(place: Path, poison: bytes) -> None:
    table, _ = streamed(place / "t")
    table.checkpoint(name="one")
    under = f"_headgate/{table.table_id}/"
    keys = [info.key for info in table.home.store.list(under)]
    chosen = {key.removeprefix(under).split("/")[0]: key for key in sorted(keys)}
    assert {"table.json", "streams", "checkpoints"} <= set(chosen)
    # That a mark of a synced version is there says it all: nobody reads what is in it.
    wanted = content(table)
    overwrite(table, chosen.pop("synced"), poison)
    assert content(open_table(table.uri)) == wanted
    asks: list[Callable[[], object]] = [
        lambda: content(open_table(table.uri)),
        lambda: open_table(table.uri).checkpoints(),
        lambda: open_table(table.uri, checkpoint="one"),
    ]
    for key in chosen.values():
        good = bytes(table.home.store.get(key))
        overwrite(table, key, poison)
        errors = [error for ask in asks if (error := failure(ask)) is not None]
        assert errors, key
        assert all(len(str(error)) < 2000 for error in errors)
        assert fsck(table.uri).findings, key
        overwrite(table, key, good)


@POISONED
def test_a_poisoned_manifest_or_entry_is_told(place: Path, poison: bytes) -> None:
    table, _ = streamed(place / "t")
    wanted = content(table)
    shard = table.shard(DIRECT)
    folder = names.shard_folder(shard.id)
    versions = shard.manifests.versions()
    manifest = names.manifest_key(shard.id, versions[-1])
    entries = sorted(
        position
        for info in table.home.store.list(f"{folder}/wal/")
        if (position := names.wal_position(info.key)) is not None
    )
    for key in (manifest, shard.wal_key(entries[-1])):
        good = bytes(table.home.store.get(key))
        overwrite(table, key, poison)
        with pytest.raises(DataLoss):
            content(open_table(table.uri))
        assert fsck(table.uri).findings
        overwrite(table, key, good)
    assert content(open_table(table.uri)) == wanted


def recover(uri: str, checkpoint: Path, *apply: str) -> int:
    """The exit code of the command; any error that is not ours comes out of it."""
    arguments = ["recover", uri, "--spark-checkpoint", str(checkpoint), *apply]
    done = CliRunner().invoke(main, arguments, prog_name="headgate", catch_exceptions=False)
    assert "Traceback" not in done.output + done.stderr
    return done.exit_code


@POISONED
def test_a_poisoned_commit_record_or_manifest_stops_the_next_driver_and_a_recovery(place: Path, poison: bytes) -> None:
    table, _ = streamed(place / "t")
    wanted = content(table)
    log = CommitLog(table.home.records, STREAM, table.uri)
    head = log.read().head
    assert head.opened is not None
    assert head.last is not None
    shards = [table.home.shard(claim.shard_id) for claim in head.opened.shards.values()]
    checkpoint = place / "checkpoint"
    poisoned: list[int | Shard] = [head.last.sequence, head.opened.sequence, *shards]
    for one in poisoned:
        if isinstance(one, int):
            store, key = table.home.records, f"{log.folder}/log/{one:020}.json"
        else:
            store, key = table.home.store, names.manifest_key(one.id, one.manifests.versions()[-1])
        good = bytes(store.get(key))
        store.put_overwrite(key, poison)
        error = failure(lambda: open_stream(open_table(table.uri)))
        assert error is not None, key
        assert len(str(error)) < 2000
        assert recover(table.uri, checkpoint) != 0
        assert recover(table.uri, checkpoint, "--apply") != 0
        assert not checkpoint.exists(), "nothing was rebuilt from it"
        store.put_overwrite(key, good)
    assert content(open_table(table.uri)) == wanted
    run_batch(open_stream(open_table(table.uri)), 3, ranges_of(3))
    assert sum(content(table)[0].values()) == sum(wanted[0].values()) + 36
    clean(table)


@pytest.mark.parametrize("path", ["../../../etc", "/etc", "..", "a/../../b", "", "\0"])
def test_a_manifest_that_names_an_sstable_elsewhere_is_refused(place: Path, path: str) -> None:
    table, _ = streamed(place / "t")
    shard = table.shard(DIRECT)
    latest = shard.manifests.latest()
    assert latest is not None
    old = latest.sstables[0].path.encode()
    key = names.manifest_key(shard.id, latest.version)
    good = bytes(table.home.store.get(key))
    evil = (path.encode() + b"/" * len(old))[: len(old)]
    assert good.count(old) == 1
    overwrite(table, key, good.replace(old, evil))
    with pytest.raises(HeadgateError):
        content(open_table(table.uri))
    with pytest.raises(HeadgateError):
        open_table(table.uri).clone(str(place / "clone"), deep=True, names=[DIRECT])
    assert fsck(table.uri).findings


@pytest.mark.parametrize("wal_uri", ["", "\0", "ftp://elsewhere/x", 7, ["a"], {"a": 1}, "s3://user:secret@host/b?x=y"])
def test_a_table_record_with_a_wal_store_that_cannot_be_is_refused(place: Path, wal_uri: object) -> None:
    table = create_table(str(place / "t"), SCHEMA)
    overwrite(table, record_key(table.table_id), text_of({**plain(table.record), "wal_uri": wal_uri}))
    if wal_uri == "":
        assert open_table(table.uri).home.wal_store.uri == table.uri
        return
    told = failure(lambda: open_table(table.uri))
    assert told is not None
    assert "secret" not in str(told)


def test_strays_in_every_folder_change_nothing(place: Path) -> None:
    table, _ = streamed(place / "t")
    wanted = content(table)
    folders = {key.rpartition("/")[0] for info in table.home.store.list("") if "/" in (key := info.key)}
    for folder in folders:
        if not folder.startswith(("data", "_versions", "_indices", "_transactions", "_refs")) and "_gen_" not in folder:
            for name in ("stray", f"{uuid.uuid4()}.json", "0" * 63 + ".arrow", "x" * 200):
                table.home.store.put_overwrite(f"{folder}/{name}", b"\0 stray")
    assert content(open_table(table.uri)) == wanted
    with open_table(table.uri).writer(DIRECT, CONFIG) as writer:
        writer.put(rows(-4))
    assert content(open_table(table.uri))[0][-4, "direct"] == 1


def test_a_checkpoint_store_tells_which_record_is_poisoned(place: Path) -> None:
    table = create_table(str(place / "t"), SCHEMA)
    table.checkpoint(name="one")
    (key,) = [info.key for info in table.home.store.list("") if "/checkpoints/" in info.key]
    overwrite(table, key, b"[" * DEEP)
    with pytest.raises(Corrupt):
        CheckpointStore(table.home.records, table.uri).list()


# -- size ------------------------------------------------------------------------------

LARGE = """
import resource, sys, numpy, pyarrow as pa, headgate
from headgate.shards.config import WriterConfig
schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("blob", pa.large_binary())])
table = headgate.create_table(sys.argv[1], schema)
body = numpy.random.default_rng(1).bytes(1 << 20)
batch = pa.record_batch([pa.array(range(1024)), pa.array([body] * 1024, pa.large_binary())], schema=schema)
config = WriterConfig(enable_memtable=False)
with table.writer("single", config) as writer:
    writer.put(batch)
del batch
rows = headgate.open_table(sys.argv[1]).scan(columns=["id"]).read_all()
assert sorted(rows["id"].to_pylist()) == list(range(1024))
assert headgate.open_table(sys.argv[1]).flush() == ""
blobs = headgate.open_table(sys.argv[1]).scan().read_all()
assert blobs.num_rows == 1024 and blobs["blob"][1023].as_py() == body
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10)
"""


@pytest.mark.deep
def test_an_entry_of_a_gigabyte_is_written_read_and_flushed_in_bounded_memory(place: Path) -> None:
    command = [sys.executable, "-c", LARGE, str(place / "t")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) < 6 * 1024, f"{done.stdout} MB: more than six times the entry"
