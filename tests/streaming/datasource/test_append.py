"""Batch writes without Spark: planned, written and committed as Spark's processes call it."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import lance
import pyarrow as pa
import pytest

import headgate
from headgate.checkpoints.log.commit_log import CommitLog, read_head
from headgate.checkpoints.log.decisions import has_batch
from headgate.checkpoints.log.names import BATCH_STREAM
from headgate.checkpoints.log.records import BatchRecord
from headgate.checkpoints.stream.batches import held_by_batches
from headgate.errors import Fenced, InvalidInput
from headgate.shards.sharding import Sharding, bucket, by_partition, single
from headgate.steps import watching
from headgate.streaming.datasource import append as appending
from headgate.streaming.datasource.append import Append, commit_append, end_append, plan_append
from headgate.streaming.datasource.plan import TaskResult
from headgate.streaming.datasource.settings import BatchSettings
from headgate.streaming.datasource.task import write_batch
from headgate.streaming.options import sink_options
from headgate.table.table import Table
from tests.streaming.datasource.test_plan import Application
from tests.support.stores import Crash
from tests.support.tables import copied, faulty, through

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("note", pa.string())])


def made(place: Path, sharding: Sharding | None = None, key: str | None = "id") -> Table:
    uri = str(place / f"table-{uuid.uuid4().hex}")
    return headgate.create_table(uri, SCHEMA, primary_key=key, sharding=sharding or bucket("id", 2))


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return made(tmp_path)


def rows(*ids: int, note: str = "n", **columns: Any) -> pa.RecordBatch:
    return pa.record_batch(
        {"id": pa.array(ids, pa.int64()), "note": [note] * len(ids), "v": pa.array(range(len(ids))), **columns}
    )


T = TypeVar("T")


def sent(value: T) -> T:
    """What another process gets."""
    found: T = pickle.loads(pickle.dumps(value))
    return found


def planned(table: Table, *columns: str, **options: str) -> Append:
    given = {"path": table.uri, **({"sequenceBy": "v"} if table.primary_key else {}), **options}
    names = columns or (("id", "note", "v") if table.primary_key else ("id", "note"))
    return sent(plan_append(table, BatchSettings.of(given, {}), names))


def task(job: Append, *batches: pa.RecordBatch) -> TaskResult:
    return sent(write_batch(job.plan, batches))


def write(table: Table, *batches: pa.RecordBatch, **options: str) -> BatchRecord | None:
    """A job whose frame has one partition per batch."""
    job = planned(table, *(batches[0].schema.names if batches else ()), **options)
    return commit_append(job, [task(job, batch) for batch in batches])


def ids(table: Table) -> list[int]:
    return sorted(table.scan().read_all().column("id").to_pylist())


def is_free(table: Table) -> bool:
    """Nobody owns a shard, and native may open them all."""
    return all(one.owner is None and one.native_safe for one in table.shards())


def check(table: Table, where: object) -> None:
    """Nothing is damaged; a crash between a checkpoint and its tag shows."""
    assert {one.code for one in headgate.fsck(table).findings} <= {"checkpoint-unpinned"}, where


class Stop(BaseException):
    """A process dies."""


def stopping_at(number: int) -> Callable[[str], None]:
    left = iter(range(number))

    def pause(_: str) -> None:
        if next(left, None) is None:
            raise Stop

    return pause


def steps_of(run: Callable[[], object]) -> list[str]:
    steps: list[str] = []
    with watching(steps.append):
        run()
    return steps


# -- once, and whole -----------------------------------------------------------------


def test_a_frame_is_one_commit_and_its_shards_are_free_afterwards(table: Table) -> None:
    record = write(table, rows(*range(10)))
    assert record is not None
    assert (record.rows, len(record.shards)) == (10, 2)
    assert ids(table) == list(range(10))
    assert is_free(table)
    assert lance.dataset(table.uri).count_rows() == 10, "plain Lance readers see the rows"
    assert headgate.fsck(table).holds


def test_an_id_that_the_table_has_writes_nothing_however_long_ago_it_was(table: Table) -> None:
    for number in range(4):
        write(table, rows(number), batchId=f"day {number}")
    before = {info.key for info in table.home.store.list("")}
    assert write(table, rows(100), batchId="day 0") is None
    assert {info.key for info in table.home.store.list("")} == before
    assert ids(table) == [0, 1, 2, 3]
    assert len(read_head(table.home, BATCH_STREAM).recent) < 4, "folds have forgotten the batches themselves"
    write(table, rows(4))
    write(table, rows(5))
    assert ids(table) == [0, 1, 2, 3, 4, 5]


def test_a_frame_without_rows_has_its_record(table: Table) -> None:
    job = planned(table, batchId="none")
    assert commit_append(job, []) is not None
    assert has_batch(read_head(table.home, BATCH_STREAM), "none")
    assert is_free(table)


def test_a_crash_at_any_step_leaves_all_or_nothing_and_a_retry_completes_it(tmp_path: Path, table: Table) -> None:
    write(table, rows(1, 2))
    steps = steps_of(lambda: write(copied(table, tmp_path / "dry"), rows(3, 4), batchId="b"))
    assert {"look for the id", "take over", "ask again", "record", "let go", "renew", "unseal"} <= set(steps)
    for number, name in enumerate(steps):
        copy = copied(table, tmp_path / f"step-{number}")
        with pytest.raises(Stop), watching(stopping_at(number)):
            write(copy, rows(3, 4), batchId="b")
        assert ids(copy) in ([1, 2], [1, 2, 3, 4]), name
        write(copy, rows(3, 4), batchId="b")
        assert ids(copy) == [1, 2, 3, 4], name
        write(copy, rows(5), batchId="c")
        assert ids(copy) == [1, 2, 3, 4, 5], name
        assert is_free(copy), name
        check(copy, name)


@pytest.mark.deep
def test_a_crash_after_any_store_operation_leaves_all_or_nothing(
    tmp_path: Path, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A store with faults cannot be sent to another process.
    monkeypatch.setitem(globals(), "sent", lambda value: value)
    write(table, rows(1, 2))
    for number in range(10_000):
        copy = copied(table, tmp_path / f"operation-{number}")
        store = faulty(copy, crash_after=number)
        with suppress(Crash):
            write(through(copy, store), rows(3, 4), batchId="b")
        assert ids(copy) in ([1, 2], [1, 2, 3, 4]), number
        write(copy, rows(3, 4), batchId="b")
        assert ids(copy) == [1, 2, 3, 4], number
        write(copy, rows(5))
        assert is_free(copy), number
        check(copy, number)
        if not store.crashed:
            break
    assert number > 40


def test_only_the_attempts_that_spark_chose_count(table: Table) -> None:
    job = planned(table)
    lost = task(job, rows(1, 2, note="lost"))
    chosen = task(job, rows(1, 2, note="chosen"))
    commit_append(job, [chosen])
    assert lost.written
    assert set(table.scan().read_all().column("note").to_pylist()) == {"chosen"}
    late = task(job, rows(3))
    assert late.error is not None, "a task that stalled meets a fence: native would take its rows for good"
    assert ids(table) == [1, 2]
    assert is_free(table)


def test_a_job_that_failed_lets_go(table: Table) -> None:
    job = planned(table)
    task(job, rows(1))
    end_append(job)
    assert ids(table) == []
    assert is_free(table)
    with pytest.raises(Fenced):
        commit_append(job, [])


def test_what_waits_for_a_flush_too_large_for_one_process_stays_until_a_stream_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = made(tmp_path, by_partition(), None)
    monkeypatch.setattr(appending, "FLUSHED_AT_ONCE", 1)
    write(table, rows(1, 2).select(["id", "note"]))
    assert ids(table) == [1, 2]
    assert held_by_batches(table.home) == ["single"]
    Application(tmp_path, table).run(0, {0: 0}, {0: 2})
    assert ids(table) == [0, 1, 1, 2]
    assert not held_by_batches(table.home)


# -- two at once --------------------------------------------------------------------------


@pytest.mark.parametrize("other", ["same", "another"])
def test_two_jobs_at_once_count_once_each(tmp_path: Path, table: Table, other: str) -> None:
    """At each step of one job, another one runs from its start to its end."""
    ids_of = {"same": [1, 2], "another": [1, 2, 3]}
    steps = steps_of(lambda: write(copied(table, tmp_path / "dry"), rows(1, 2), batchId="same"))
    for number, name in enumerate(steps):
        copy = copied(table, tmp_path / f"{other}-{number}")
        jobs = iter([1])
        left = iter(range(number))

        def meanwhile(_: str, left: Iterator[int] = left, jobs: Iterator[int] = jobs, copy: Table = copy) -> None:
            if next(left, None) is None and next(jobs, None):
                write(copy, rows(*((1, 2) if other == "same" else (3,))), batchId=other)

        fenced = []
        with watching(meanwhile):
            try:
                write(copy, rows(1, 2), batchId="same")
            except Fenced as error:
                fenced.append(error)
        # Where both met while they claimed, both are fenced, and the next job lets go.
        assert ids(copy) in ([1, 2], [3], [1, 2, 3], *([[]] if fenced else [])), name
        write(copy, rows(1, 2), batchId="same")
        write(copy, rows(*((1, 2) if other == "same" else (3,))), batchId=other)
        assert ids(copy) == ids_of[other], name
        write(copy, rows(9))
        assert ids(copy) == [*ids_of[other], 9], name
        check(copy, name)
        assert is_free(copy), name


# -- streams ----------------------------------------------------------------------------------


def test_it_is_refused_while_a_stream_owns_the_shards_and_goes_on_once_that_let_go(tmp_path: Path) -> None:
    table = made(tmp_path, single(), None)
    stream = Application(tmp_path, table)
    stream.run(0, {0: 0}, {0: 3})
    with pytest.raises(InvalidInput, match=r"belongs to stream 's'.*shard release TABLE --stream s"):
        write(table, rows(100).select(["id", "note"]))
    stream.run(1, {0: 3}, {0: 5})  # It was not fenced.
    from headgate.checkpoints.offline.checkpoint import release

    release(table.home, table.shard_ids(), "s", forget_owner=True)
    write(table, rows(100).select(["id", "note"]))
    heir = Application(tmp_path, table, stream.checkpoint)
    heir.run(2, {0: 5}, {0: 6})
    assert ids(table) == [0, 1, 2, 3, 4, 5, 100]
    assert headgate.fsck(table).holds
    with pytest.raises(InvalidInput, match="belongs to stream 's'"):
        write(table, rows(101).select(["id", "note"]))


@pytest.mark.parametrize("step", ["ask again", "record", "let go", "renew", "gaps", "unseal"])
def test_a_stream_starts_whatever_a_job_that_died_left(tmp_path: Path, step: str) -> None:
    table = made(tmp_path, single(), None)

    def die(at: str) -> None:
        if at == step:
            raise Stop

    with pytest.raises(Stop), watching(die):
        write(table, rows(100, 101).select(["id", "note"]), batchId="b")
    committed = ids(table)
    assert committed == ([] if step in ("ask again", "record") else [100, 101])
    stream = Application(tmp_path, table)
    stream.run(0, {0: 0}, {0: 2})
    stream.run(1, {0: 2}, {0: 3})
    assert ids(table) == [0, 1, 2, *committed]
    assert headgate.fsck(table).holds


def test_a_table_without_a_key_takes_frames_beside_a_stream_of_partitions(tmp_path: Path) -> None:
    table = made(tmp_path, by_partition(), None)
    stream = Application(tmp_path, table)
    stream.run(0, {0: 0, 1: 0}, {0: 1, 1: 1})
    write(table, *(rows(number).select(["id", "note"]) for number in (7, 8, 9)))
    stream.run(1, {0: 1, 1: 1}, {0: 2, 1: 1})
    assert ids(table) == [0, 1, 7, 8, 9, 100]
    assert table.shard("single").id in {one.id for one in table.shards()}


def test_streams_may_not_have_the_name_of_batch_writes(tmp_path: Path, table: Table) -> None:
    with pytest.raises(InvalidInput, match="that of a table's batch writes"):
        Application(tmp_path, table, streamName=BATCH_STREAM)
    with pytest.raises(InvalidInput, match="that of a table's batch writes"):
        headgate.ShardSink(table, stream=BATCH_STREAM).check(tmp_path)
    assert sink_options({}).stream is None


def test_recover_and_rewind_know_that_there_is_nothing_to_do_for_batch_writes(tmp_path: Path, table: Table) -> None:
    write(table, rows(1))
    with pytest.raises(InvalidInput, match="no Spark checkpoint"):
        headgate.recover(table, spark_checkpoint=tmp_path / "c", stream=BATCH_STREAM)
    with pytest.raises(InvalidInput, match="no offsets"):
        headgate.rewind(table, stream=BATCH_STREAM, spark_checkpoint=tmp_path / "c", to_offsets={"t": {0: 0}})


# -- keys ----------------------------------------------------------------------------------------


def test_rows_of_a_key_are_ordered_and_deleted_within_the_frame(table: Table) -> None:
    mixed = pa.record_batch(
        {
            "id": pa.array([1, 1, 2, 2, 3], pa.int64()),
            "note": ["second", "first", "gone", "x", "stays"],
            "v": pa.array([2, 1, 5, 4, 1]),
            "_deleted": [False, False, True, False, False],
        }
    )
    write(table, rows(1, 2, 3, note="old"))
    write(table, mixed)
    assert sorted(table.scan().read_all().to_pylist(), key=lambda row: row["id"]) == [
        {"id": 1, "note": "second"},
        {"id": 3, "note": "stays"},
    ]


def test_with_a_key_several_tasks_for_one_shard_are_refused_and_nothing_is_visible(tmp_path: Path) -> None:
    table = made(tmp_path, single())
    with pytest.raises(InvalidInput, match=r"came from 2 tasks.*headgate.by_shard"):
        write(table, rows(1), rows(2))
    assert ids(table) == []


@pytest.mark.parametrize(
    ("sharding", "columns", "options", "message"),
    [
        (None, ("id", "note"), {}, "order of rows.*sequenceBy"),
        (None, ("id", "other", "v"), {"sequenceBy": "v"}, "Column 'other' not found"),
        (by_partition(key_is_partitioned=True), ("id", "v"), {"sequenceBy": "v"}, "sharded by topic partitions"),
        (None, ("id",), {"streamName": "x"}, "Unknown option"),
        (None, ("id",), {"path": "here"}, "absolute path"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(
    tmp_path: Path, sharding: Sharding | None, columns: tuple[str, ...], options: dict[str, str], message: str
) -> None:
    table = made(tmp_path, sharding)
    with pytest.raises(InvalidInput, match=f"(?s){message}"):
        plan_append(table, BatchSettings.of({"path": table.uri, **options}, {}), columns)
    assert CommitLog(table.home.records, BATCH_STREAM, table.uri).read().sequence == 0


def test_the_columns_of_now_are_written_where_somebody_changed_them(table: Table) -> None:
    def add(step: str) -> None:
        if step == "take over":
            table.add_column("more string")

    with watching(add):
        job = planned(table)
    commit_append(job, [task(job, rows(1))])
    assert table.refreshed().scan().read_all().to_pylist() == [{"id": 1, "note": "n", "more": None}]
