"""Rebuilding Spark's checkpoint: what is written, in which order, and what every crash on the way leaves."""

from __future__ import annotations

import contextlib
import json
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from headgate.checkpoints.log.commit_log import CommitLog
from headgate.checkpoints.log.decisions import Write, decide_batch
from headgate.checkpoints.log.records import Batch, BatchRecord, OpaqueRange, OpenRecord
from headgate.checkpoints.log.state import Head
from headgate.checkpoints.spark.compare import look_at_spark, standing
from headgate.checkpoints.spark.directory import SourceOffsets, SparkCheckpoint
from headgate.checkpoints.spark.rebuild import Layout, rebuilt_files, write_files
from headgate.checkpoints.spark.recover import rebuild
from headgate.connectors.objects import open_store
from headgate.connectors.objects.memory import MemoryStore
from headgate.connectors.objects.port import ObjectStore
from headgate.errors import Fenced, InvalidInput
from headgate.shards.shard import TableHome
from headgate.shards.wal.entry import SourceRange
from headgate.steps import watching
from tests.support.directories import equal_batches, put, spark_directory
from tests.support.life import QUERY, check_exactly_once, home_of, open_driver, ranges_of, run_batch
from tests.support.logs import batch_record, full_record
from tests.support.stores import Crash, FaultyStore

BATCHES = 3


def head_of(last: BatchRecord | None) -> Head:
    return Head("s", 5, None, last)


def record(*sources: SourceRange, batch: int = 7, opaque: tuple[OpaqueRange, ...] = ()) -> BatchRecord:
    return BatchRecord(
        record_id="r", sequence=5, stream="s", open_id="o", query_id="q", batch_id=batch, sources=sources, opaque=opaque
    )


A, B, C = SourceRange("a", 0, 5, 9), SourceRange("a", 1, 0, 0), SourceRange("b", 0, 2, 3)


# -- the files ----------------------------------------------------------------------------


def test_the_files_are_spark_s_own_and_commits_come_last() -> None:
    files = rebuilt_files(head_of(record(A, B, C)), "new-id", now_ms=99)
    assert [name for name, _ in files] == ["metadata", "sources/0/0", "offsets/6", "offsets/7", "commits/7"]
    told = dict(files)
    assert json.loads(told["metadata"]) == {"id": "new-id"}
    version, meta, line = told["offsets/7"].decode().split("\n")
    assert (version, json.loads(meta)) == ("v1", {"batchWatermarkMs": 0, "batchTimestampMs": 99, "conf": {}})
    assert line == '{"a":{"0":9,"1":0},"b":{"0":3}}'
    assert told["sources/0/0"] == b"\0v1\n" + line.encode()
    assert told["offsets/6"] == told["offsets/7"], "batch 7 of the new query reads nothing"
    assert told["commits/7"] == b'v1\n{"nextBatchWatermarkMs":0}'


def test_batch_0_has_none_before_it() -> None:
    names = [name for name, _ in rebuilt_files(head_of(record(A, batch=0)), "q")]
    assert names == ["metadata", "sources/0/0", "offsets/0", "commits/0"]


def test_other_sources_keep_their_place_and_their_text() -> None:
    last = record(A, opaque=(OpaqueRange("0", None, '{"logOffset":4}'), OpaqueRange("2", "1", "2")))
    told = dict(rebuilt_files(head_of(last), "q"))
    assert told["offsets/7"].decode().split("\n")[2:] == ['{"logOffset":4}', '{"a":{"0":9}}', "2"]
    assert "sources/1/0" in told
    assert "sources/0/0" not in told, "only Kafka's sources say where they began"


def test_a_source_that_has_read_nothing_yet_begins_as_spark_s_options_say() -> None:
    layout = Layout.given([["a"], ["nothing yet"]], ())
    told = dict(rebuilt_files(head_of(record(A)), "q", layout))
    assert told["offsets/7"].decode().split("\n")[2:] == ['{"a":{"0":9}}', "-"]
    assert "sources/1/0" not in told


@pytest.mark.parametrize("topics", [[["a"]], [["b"], ["c"]]], ids=["too few", "others"])
def test_a_layout_that_leaves_a_topic_out_is_refused(topics: list[list[str]]) -> None:
    with pytest.raises(InvalidInput, match="must belong to exactly one"):
        rebuilt_files(head_of(record(A, C)), "q", Layout.given(topics, ()))


def test_sources_that_are_named_or_unknown_cannot_be_placed() -> None:
    with pytest.raises(InvalidInput, match="names its sources"):
        rebuilt_files(head_of(record(A, opaque=(OpaqueRange("clicks", None, "1"),))), "q")
    with pytest.raises(InvalidInput, match="not in the commit log"):
        rebuilt_files(head_of(record(A, opaque=(OpaqueRange("3", None, "1"),))), "q")


def test_a_stream_without_a_batch_has_nothing_to_rebuild() -> None:
    with pytest.raises(InvalidInput, match="never committed"):
        rebuilt_files(head_of(None), "q")


def test_the_layout_of_an_older_batch_serves_if_it_has_the_same_topics() -> None:
    older = [SourceOffsets("0", "…", {("b", 0): 1}), SourceOffsets("1", "…", {("a", 0): 1, ("a", 1): 0})]
    layout = Layout.as_was(older, record(A, B, C))
    told = dict(rebuilt_files(head_of(record(A, B, C)), "q", layout))
    assert told["offsets/7"].decode().split("\n")[2:] == ['{"b":{"0":3}}', '{"a":{"0":9,"1":0}}']
    assert Layout.as_was(older, record(A)) is None
    assert Layout.as_was([], record(A)) is None


def test_what_is_written_reads_back_as_the_table_s_end(tmp_path: Path) -> None:
    last = replace(full_record(), opaque=())
    write_files(open_store(str(tmp_path / "c")), rebuilt_files(head_of(last), "q"))
    checkpoint = SparkCheckpoint(str(tmp_path / "c"))
    assert checkpoint.query_id() == "q"
    assert (checkpoint.planned(), checkpoint.commits()) == ((2, 3), (3,))
    assert standing(head_of(last), look_at_spark(checkpoint)).state == "aligned"


def test_nothing_is_ever_overwritten(store: ObjectStore) -> None:
    files = rebuilt_files(head_of(batch_record(3, 1, 4)), "q", now_ms=1)
    write_files(store, files)
    write_files(store, files)  # a lost response is not an error
    with pytest.raises(InvalidInput, match="metadata exists already"):
        write_files(store, rebuilt_files(head_of(batch_record(3, 1, 4)), "other", now_ms=1))


# -- taking over ----------------------------------------------------------------------------


@pytest.fixture
def home(store: ObjectStore) -> TableHome:
    return home_of(store)


def streamed(home: TableHome) -> None:
    driver = open_driver(home)
    for number in range(BATCHES):
        run_batch(driver, number, ranges_of(number))


def rebuilt_at(home: TableHome, path: Path, target: ObjectStore | None = None) -> str:
    return rebuild(home, "s", SparkCheckpoint(str(path)), target or open_store(str(path))).query_id


def test_the_open_record_comes_before_the_files_and_fences_whoever_ran_the_stream(
    home: TableHome, tmp_path: Path
) -> None:
    streamed(home)
    old = open_driver(home)
    plan_before = old.head.sequence
    seen: list[str] = []
    path = tmp_path / "c"
    with watching(seen.append):
        done = rebuild(home, "s", SparkCheckpoint(str(path)), open_store(str(path)))
    steps = [
        step for step in seen if step in ("spark look", "take over", "open record", "aside", "rebuilt") or "/" in step
    ]
    assert steps == [
        "spark look",
        "take over",
        "open record",
        "sources/0/0",
        "offsets/1",
        "offsets/2",
        "commits/2",
        "rebuilt",
    ]
    opened = CommitLog(home.records, "s", home.uri).record(plan_before + 1)
    assert isinstance(opened, OpenRecord)
    assert opened.query_id == done.query_id == SparkCheckpoint(str(path)).query_id()
    with pytest.raises(Fenced):  # also for a batch without rows, which touches no shard
        old.commit(Batch(query_id=QUERY, batch_id=BATCHES))
    check_exactly_once(home, [part for number in range(BATCHES) for part in ranges_of(number)])


def test_the_new_query_goes_on_where_the_table_stands(home: TableHome, tmp_path: Path) -> None:
    streamed(home)
    query = rebuilt_at(home, tmp_path / "c")
    run_batch(open_driver(home, query=query), BATCHES, ranges_of(BATCHES), query)
    check_exactly_once(home, [part for number in range(BATCHES + 1) for part in ranges_of(number)])


def test_a_damaged_directory_is_moved_aside_whole(home: TableHome, tmp_path: Path) -> None:
    streamed(home)
    path = tmp_path / "c"
    checkpoint = spark_directory(path, equal_batches(4), done=3)
    (path / "metadata").unlink()
    put(path, "notes.txt", "mine")
    before = {str(one.relative_to(path)): one.read_bytes() for one in path.rglob("*") if one.is_file()}
    done = rebuild(home, "s", checkpoint, open_store(str(path)))
    assert done.moved_to is not None
    aside = Path(done.moved_to)
    assert {str(one.relative_to(aside)): one.read_bytes() for one in aside.rglob("*") if one.is_file()} == before
    assert checkpoint.planned() == (1, 2), "the batch that was only logged is dropped"
    (path / "metadata").unlink()
    assert rebuild(home, "s", checkpoint, open_store(str(path))).moved_to not in (None, done.moved_to)


def test_what_needs_no_rebuild_is_refused_and_nothing_is_fenced(home: TableHome, tmp_path: Path) -> None:
    streamed(home)
    driver = open_driver(home)
    for name, batches, done in (("aligned", 3, 3), ("log ahead", 3, 2), ("spark ahead", 4, 3)):
        checkpoint = spark_directory(tmp_path / name, equal_batches(batches), done=done)
        with pytest.raises(InvalidInput, match="needs no rebuild"):
            rebuild(home, "s", checkpoint, open_store(str(tmp_path / name)))
    run_batch(driver, BATCHES, ranges_of(BATCHES))


def test_a_stateful_query_s_checkpoint_is_refused(home: TableHome, tmp_path: Path) -> None:
    streamed(home)
    driver = open_driver(home)
    checkpoint = spark_directory(tmp_path / "c", equal_batches(3), done=3)
    put(tmp_path / "c", "state/0/0/1.delta", "remembered")
    (tmp_path / "c/metadata").unlink()
    with pytest.raises(InvalidInput, match="cannot be rebuilt"):
        rebuild(home, "s", checkpoint, open_store(str(tmp_path / "c")))
    assert (tmp_path / "c/state/0/0/1.delta").exists()
    run_batch(driver, BATCHES, ranges_of(BATCHES))


def test_a_damaged_directory_in_an_object_store_is_refused_before_anything_is_fenced(home: TableHome) -> None:
    """fsspec's own memory stands for a store without directories."""
    import fsspec

    streamed(home)
    driver = open_driver(home)
    place = f"/{uuid.uuid4().hex}"
    files = fsspec.filesystem("memory")
    files.pipe_file(f"{place}/offsets/0", b"")
    with pytest.raises(InvalidInput, match="object store"):
        rebuild(home, "s", SparkCheckpoint(f"memory:/{place}"), MemoryStore(f"memory://{uuid.uuid4().hex}"))
    assert files.cat_file(f"{place}/offsets/0") == b""
    run_batch(driver, BATCHES, ranges_of(BATCHES))


@pytest.mark.s3
def test_a_lost_directory_on_s3_is_rebuilt_there(home: TableHome, s3_options: dict[str, str], bucket: str) -> None:
    streamed(home)
    checkpoint = SparkCheckpoint(f"s3a://{bucket}/a/checkpoint", s3_options)
    folder = open_store(checkpoint.location, s3_options)
    done = rebuild(home, "s", checkpoint, folder)
    assert (done.moved_to, checkpoint.query_id()) == (None, done.query_id)
    assert standing(head(home), look_at_spark(checkpoint)).state == "aligned"
    folder.delete("commits/2")
    folder.put_if_absent("commits/2", b"")
    with pytest.raises(InvalidInput, match="object store"):
        rebuild(home, "s", checkpoint, open_store(checkpoint.location, s3_options))


# -- crashes -----------------------------------------------------------------------------------


def test_a_crash_after_any_operation_on_the_table_is_mended_by_the_same_call(
    store: ObjectStore, tmp_path: Path
) -> None:
    driver = open_driver(home_of(store), [0])
    ranges = [ranges_of(number, partitions=(0,)) for number in range(BATCHES + 1)]
    for number in range(BATCHES):
        run_batch(driver, number, ranges[number])
    objects = {info.key: bytes(store.get(info.key)) for info in store.list("")}
    for number in range(1, 500):
        name = uuid.uuid4().hex
        fresh = MemoryStore(f"memory://{name}")
        for key, data in objects.items():
            fresh.put_if_absent(key, data)
        home, path = home_of(fresh), tmp_path / f"c{number}"
        checkpoint = spark_directory(path, ranges, done=BATCHES)
        (path / "metadata").unlink()
        dying = FaultyStore(fresh, crash_after=number)
        try:
            rebuilt_at(home_of(dying), path)
        except Crash:
            assert (path / "offsets/0").exists(), f"after operation {number} the old directory still stands"
            assert standing(head(home), look_at_spark(checkpoint)).needs_rebuild
        if dying.crashed:
            rebuilt_at(home, path)
        assert standing(head(home), look_at_spark(checkpoint)).state == "aligned"
        query = checkpoint.query_id()
        run_batch(open_driver(home, [0], query=query), BATCHES, ranges[BATCHES], query)
        check_exactly_once(home, [part for batch in ranges for part in batch])
        MemoryStore.drop(name)
        if not dying.crashed:
            return
    raise AssertionError("the call never ran through")


def test_a_crash_after_any_file_leaves_a_directory_from_which_spark_cannot_go_wrong(
    home: TableHome, tmp_path: Path
) -> None:
    streamed(home)
    for number in range(20):
        path = tmp_path / f"c{number}"
        dying = FaultyStore(open_store(str(path)), crash_after=number)
        if number == 0:
            dying.die()
        with contextlib.suppress(Crash):
            rebuilt_at(home, path, dying)
        spark = look_at_spark(SparkCheckpoint(str(path)))
        if spark.upcoming is not None:
            # Spark would run this batch: it continues the table, and reads nothing.
            assert spark.planned is not None
            decision = decide_batch(head(home), str(spark.query_id), spark.planned, spark.upcoming, lambda t, p: 0)
            assert isinstance(decision, Write)
            assert all(part.start == part.until for part in decision.ranges)
        elif spark.done is None:
            assert standing(head(home), spark).needs_rebuild, "what Spark would read is refused by the sink"
        if standing(head(home), spark).needs_rebuild:
            rebuilt_at(home, path)
        assert standing(head(home), look_at_spark(SparkCheckpoint(str(path)))).needs_rebuild is False
        if not dying.crashed:
            return
    raise AssertionError("the call never ran through")


def head(home: TableHome) -> Head:
    return CommitLog(home.records, "s", home.uri).read().head


def test_the_query_id_is_a_new_one_each_time(home: TableHome, tmp_path: Path) -> None:
    streamed(home)
    ids = {rebuilt_at(home, tmp_path / str(number)) for number in range(3)}
    assert len(ids | {QUERY}) == 4
