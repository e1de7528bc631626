"""Planning, writing and committing for `format("headgate")`, called as Spark's processes call them."""

from __future__ import annotations

import json
import pickle
import shutil
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
import pytest

from headgate.checkpoints.log.commit_log import CommitLog
from headgate.checkpoints.log.dead_letters import read_dead_letters
from headgate.checkpoints.log.records import BatchRecord
from headgate.errors import Fenced, InvalidInput, Poisoned, Transient
from headgate.shards.sharding import Sharding, bucket, by_partition, single
from headgate.streaming.datasource import plan as source_plan
from headgate.streaming.datasource.memory import forget_runs
from headgate.streaming.datasource.plan import BatchPlan, TaskResult, commit_batch, plan_batch
from headgate.streaming.datasource.settings import Settings
from headgate.streaming.datasource.task import write_batch
from headgate.table.create import create_table
from headgate.table.table import Table

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("note", pa.string())])
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
PARTITIONED = by_partition(key_is_partitioned=True)
META = '{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}'


class Application:
    """One Spark application with one query: its folder, its checkpoint, and the calls that Spark makes."""

    def __init__(self, place: Path, table: Table, checkpoint: Path | None = None, **options: str) -> None:
        self.root = place / f"application-{uuid.uuid4().hex}"
        self.root.mkdir()
        self.checkpoint = checkpoint or place / f"checkpoint-{uuid.uuid4().hex}"
        self.query_id = str(uuid.uuid4())
        if checkpoint is None:
            self.put("metadata", json.dumps({"id": self.query_id}))
        options = {"decode": "json", "streamName": "s", **options}
        self.settings = Settings.of({"path": table.uri, "checkpointLocation": str(self.checkpoint), **options}, {})

    def put(self, name: str, text: str) -> None:
        path = self.checkpoint / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def offsets(self, batch: int, start: Mapping[int, int], end: Mapping[int, int]) -> None:
        """Spark writes where a batch ends, before it plans it."""
        self.put("sources/0/0", f"\0v1\n{json.dumps({'t': {str(p): 0 for p in start}})}")
        for number, ends in ((batch - 1, start), (batch, end)):
            if number >= 0:
                self.put(f"offsets/{number}", f"v1\n{META}\n{json.dumps({'t': {str(p): o for p, o in ends.items()}})}")

    def plan(self, columns: tuple[str, ...] = COLUMNS) -> BatchPlan:
        source_plan._heads.clear()  # Another process may plan the next batch.
        return plan_batch(self.settings, columns, str(self.root))

    def run(self, batch: int, start: Mapping[int, int], end: Mapping[int, int]) -> BatchRecord | None:
        """A batch in which each partition's records come in a task of its own."""
        self.offsets(batch, start, end)
        plan = self.plan()
        return commit_batch([task(plan, records({p: (start[p], end[p])})) for p in start], batch)


def task(plan: BatchPlan, *batches: pa.RecordBatch) -> TaskResult:
    """What comes back to the driver, through a pickle there and back."""
    result: TaskResult = pickle.loads(pickle.dumps(write_batch(pickle.loads(pickle.dumps(plan)), batches)))
    return result


def records(ranges: Mapping[int, tuple[int, int]], note: str = "") -> pa.RecordBatch:
    places = [(partition, offset) for partition, (start, end) in ranges.items() for offset in range(start, end)]
    values = [json.dumps({"id": p * 100 + o, "note": f"{note}{p}/{o}"}).encode() for p, o in places]
    return pa.record_batch(
        {
            "key": pa.array([None] * len(places), pa.binary()),
            "value": pa.array(values, pa.binary()),
            "topic": pa.array(["t"] * len(places), pa.string()),
            "partition": pa.array([p for p, _ in places], pa.int32()),
            "offset": pa.array([o for _, o in places], pa.int64()),
        }
    )


def ids(table: Table) -> list[int]:
    return sorted(table.scan().read_all().column("id").to_pylist())


def made(place: Path, sharding: Sharding, key: str | None = None) -> Table:
    return create_table(str(place / f"table-{uuid.uuid4().hex}"), SCHEMA, primary_key=key, sharding=sharding)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return made(tmp_path, PARTITIONED, "id")


def test_batches_that_different_processes_plan_continue_under_one_open_record(tmp_path: Path, table: Table) -> None:
    app = Application(tmp_path, table)
    app.run(0, {0: 0, 1: 0}, {0: 3, 1: 2})
    app.run(1, {0: 3, 1: 2}, {0: 3, 1: 4})
    assert ids(table) == [0, 1, 2, 100, 101, 102, 103]
    head = CommitLog(table.home.records, "s", table.uri).read().head
    assert head.sequence == 3
    assert head.opened is not None
    assert head.opened.sequence == 1


def test_a_table_that_was_made_anew_ends_the_run_and_a_restart_is_refused(tmp_path: Path, table: Table) -> None:
    app = Application(tmp_path, table)
    app.run(0, {0: 0}, {0: 3})
    shutil.rmtree(table.uri)
    anew = create_table(table.uri, SCHEMA, primary_key="id", sharding=PARTITIONED)
    with pytest.raises(Fenced, match="dropped and re-created"):
        app.run(1, {0: 3}, {0: 5})
    with pytest.raises(InvalidInput, match="batches before 1 went to another table"):
        app.run(1, {0: 3}, {0: 5})
    assert ids(anew) == []
    assert not list(anew.home.records.list("streams/")), "nothing was written"
    fresh = Application(tmp_path, anew)
    fresh.run(0, {0: 0}, {0: 5})
    assert ids(anew) == [0, 1, 2, 3, 4]


def test_no_value_of_a_column_that_was_added_before_the_commit_is_lost(tmp_path: Path, table: Table) -> None:
    def with_more(start: int, end: int) -> pa.RecordBatch:
        plain = records({0: (start, end)})
        values = [json.dumps({"id": n, "note": "n", "more": n, "other": n}).encode() for n in range(start, end)]
        return plain.set_column(plain.schema.get_field_index("value"), "value", pa.array(values, pa.binary()))

    def batch(number: int, start: int, end: int, meanwhile: Callable[[], object] = lambda: None) -> BatchRecord | None:
        app.offsets(number, {0: start}, {0: end})
        result = task(app.plan(), with_more(start, end))
        meanwhile()
        return commit_batch([result], number)

    app = Application(tmp_path, table)
    batch(0, 0, 2)
    table.add_column(pa.field("more", pa.int64()))
    batch(1, 2, 4)
    with pytest.raises(Transient, match="Columns were added"):
        batch(2, 4, 6, lambda: table.add_column(pa.field("other", pa.int64())))
    batch(2, 4, 6)
    record = batch(3, 6, 8, lambda: table.drop_column("note"))
    assert record is not None, "nothing is missing in what was written: it counts"
    batch(4, 8, 9)
    rows = table.refreshed().scan().read_all().sort_by("id").to_pylist()
    assert [one["more"] for one in rows] == [None, None, *range(2, 9)]
    assert [one["other"] for one in rows] == [None] * 4 + [*range(4, 9)]
    head = CommitLog(table.home.records, "s", table.uri).read().head
    assert head.opened is not None
    assert {claim.epoch for claim in head.opened.shards.values()} == {1}, "nobody was fenced"


def test_a_commit_is_one_put(tmp_path: Path, table: Table) -> None:
    app = Application(tmp_path, table)
    app.run(0, {0: 0}, {0: 3})
    app.offsets(1, {0: 3}, {0: 5})
    plan = app.plan()
    result = task(plan, records({0: (3, 5)}))
    commit_batch([result], 1)
    assert dict(result.commitment.home.records.operations()) == {"put": 1}


def test_a_batch_without_rows_has_its_record(tmp_path: Path, table: Table) -> None:
    app = Application(tmp_path, table)
    record = app.run(0, {0: 0}, {0: 0})
    assert record is not None
    assert (record.rows, record.shards) == (0, {})


def test_a_batch_that_the_log_has_is_skipped(tmp_path: Path, table: Table) -> None:
    app = Application(tmp_path, table)
    app.run(0, {0: 0}, {0: 3})
    assert app.run(0, {0: 0}, {0: 3}) is None
    assert ids(table) == [0, 1, 2]


def test_offsets_that_do_not_continue_are_refused_before_anyone_is_fenced(tmp_path: Path, table: Table) -> None:
    first, other = Application(tmp_path, table), Application(tmp_path, table)
    first.run(0, {0: 0}, {0: 3})
    with pytest.raises(InvalidInput, match="does not continue"):
        other.run(0, {0: 0}, {0: 5})
    first.run(1, {0: 3}, {0: 4})
    assert ids(table) == [0, 1, 2, 3]


@pytest.mark.parametrize("rows", [2, 0])
def test_a_driver_that_slept_is_fenced_wherever_it_wakes_and_does_not_take_the_stream_back(
    tmp_path: Path, table: Table, rows: int
) -> None:
    zombie = Application(tmp_path, table)
    zombie.run(0, {0: 0}, {0: 3})
    zombie.offsets(1, {0: 3}, {0: 3 + rows})
    before_tasks, before_commit = zombie.plan(), zombie.plan()
    written = task(before_commit, records({0: (3, 3 + rows)}))

    heir = Application(tmp_path, table, zombie.checkpoint)
    for batch in range(1, 6):
        heir.run(batch, {0: 3 + (batch > 1) * rows}, {0: 3 + rows})
    seen = ids(table)

    with pytest.raises(Fenced, match="took over"):
        commit_batch([written], 1)
    with pytest.raises(Fenced, match="took over"):
        commit_batch([task(before_tasks, records({0: (3, 3 + rows)}))], 1)
    heir.run(6, {0: 3 + rows}, {0: 9})
    assert ids(table) == [*seen, *range(3 + rows, 9)]


def test_a_paused_run_is_fenced_when_it_plans_and_a_restart_takes_over(tmp_path: Path, table: Table) -> None:
    paused = Application(tmp_path, table)
    paused.run(0, {0: 0}, {0: 1})
    heir = Application(tmp_path, table, paused.checkpoint)
    heir.run(1, {0: 1}, {0: 2})
    paused.offsets(2, {0: 2}, {0: 3})
    with pytest.raises(Fenced):
        paused.plan()
    # The error ended that run. The next call is a start on purpose.
    paused.run(2, {0: 2}, {0: 3})
    heir.offsets(3, {0: 3}, {0: 4})
    with pytest.raises(Fenced):
        heir.plan()


def test_a_restart_that_spark_announces_takes_over_at_once(tmp_path: Path, table: Table) -> None:
    app = Application(tmp_path, table)
    app.run(0, {0: 0}, {0: 1})
    Application(tmp_path, table, app.checkpoint).run(1, {0: 1}, {0: 2})
    forget_runs(str(app.root), app.query_id)
    app.run(2, {0: 2}, {0: 3})
    assert ids(table) == [0, 1, 2]


def test_only_the_attempt_that_spark_chose_counts(tmp_path: Path, table: Table) -> None:
    app = Application(tmp_path, table)
    app.offsets(0, {0: 0}, {0: 2})
    plan = app.plan()
    lost = task(plan, records({0: (0, 2)}, "lost "))
    commit_batch([task(plan, records({0: (0, 2)}, "chosen "))], 0)
    assert lost.written[0]["rows"] == 2
    assert table.scan().read_all().column("note").to_pylist() == ["chosen 0/0", "chosen 0/1"]


@pytest.mark.parametrize("sharding", [single(), bucket("id", 2)], ids=["single", "bucket"])
def test_without_a_key_several_tasks_write_to_one_shard(tmp_path: Path, sharding: Sharding) -> None:
    table = made(tmp_path, sharding)
    app = Application(tmp_path, table)
    record = app.run(0, {0: 0, 1: 0, 2: 0}, {0: 2, 1: 2, 2: 2})
    app.run(1, {0: 2, 1: 2, 2: 2}, {0: 3, 1: 2, 2: 3})
    assert record is not None
    assert len(record.shards) == len(sharding.known_names())
    assert ids(table) == [0, 1, 2, 100, 101, 200, 201, 202]


def test_with_a_key_several_tasks_for_one_shard_are_refused_and_nothing_is_visible(tmp_path: Path) -> None:
    table = made(tmp_path, single(), "id")
    app = Application(tmp_path, table)
    with pytest.raises(InvalidInput, match=r"came from 2 tasks.*ShardSink"):
        app.run(0, {0: 0, 1: 0}, {0: 2, 1: 2})
    assert ids(table) == []


def test_with_a_key_rows_that_a_shuffle_mixed_are_put_in_order(tmp_path: Path) -> None:
    table = made(tmp_path, single(), "id")
    app = Application(tmp_path, table)
    app.offsets(0, {0: 0}, {0: 4})
    values = [json.dumps({"id": 7, "note": f"{offset}"}).encode() for offset in range(4)]
    mixed = records({0: (0, 4)}).set_column(1, "value", pa.array(values)).take(pa.array([2, 3, 0, 1]))
    commit_batch([task(app.plan(), mixed.slice(0, 1), mixed.slice(1))], 0)
    assert table.scan().read_all().to_pylist() == [{"id": 7, "note": "3"}]


def test_bad_records_of_several_tasks_are_dead_letters_once(tmp_path: Path) -> None:
    table = made(tmp_path, single())
    app = Application(tmp_path, table)
    app.offsets(0, {0: 0, 1: 0}, {0: 1, 1: 1})
    plan = app.plan()
    bad = pa.array([b"not json"], pa.binary())
    parts = [records({p: (0, 1)}).set_column(1, "value", bad) for p in (0, 1, 1)]
    commit_batch([task(plan, part) for part in parts][:2], 0)
    letters = pa.concat_tables(read_dead_letters(table.home)).select(["partition", "value"]).to_pylist()
    assert sorted(letter["partition"] for letter in letters) == [0, 1]


def test_a_bad_record_stops_the_stream_where_it_is_told_to(tmp_path: Path, table: Table) -> None:
    app = Application(tmp_path, table, onBadRecord="fail")
    app.offsets(0, {0: 0}, {0: 1})
    bad = records({0: (0, 1)}).set_column(1, "value", pa.array([b"{"]))
    with pytest.raises(InvalidInput, match="could not be decoded"):
        commit_batch([task(app.plan(), bad)], 0)


def test_a_commit_of_another_batch_than_the_planned_one_is_refused(tmp_path: Path, table: Table) -> None:
    app = Application(tmp_path, table)
    app.offsets(0, {0: 0}, {0: 1})
    with pytest.raises(Poisoned, match="Spark commits batch 1"):
        commit_batch([task(app.plan())], 1)
    with pytest.raises(Poisoned, match="2 plans"):
        commit_batch([task(app.plan()), task(app.plan())], 0)


def test_a_partition_that_comes_later_is_claimed_and_a_fence_still_holds(tmp_path: Path) -> None:
    table = made(tmp_path, by_partition())
    app = Application(tmp_path, table)
    app.run(0, {0: 0}, {0: 1})
    app.offsets(1, {0: 1, 1: 0}, {0: 1, 1: 2})
    commit_batch([task(app.plan(), records({1: (0, 2)}))], 1)
    app.run(2, {0: 1, 1: 2}, {0: 2, 1: 2})
    assert ids(table) == [0, 1, 100, 101]


@pytest.mark.parametrize(
    ("options", "columns", "message"),
    [
        ({"decode": "json"}, ("id", "note"), "lacks.*the option decode"),
        ({}, ("id", "note"), "order of rows.*the option sequenceBy"),
        ({}, ("id", "value", "_topic", "_partition", "_offset"), "the option decode"),
        ({"sequenceBy": "at"}, ("id", "note"), "no column 'at' for the option sequenceBy"),
    ],
)
def test_a_frame_that_does_not_fit_is_refused_before_anything_is_written(
    tmp_path: Path, table: Table, options: dict[str, str], columns: tuple[str, ...], message: str
) -> None:
    settings = Settings.of({"path": table.uri, "checkpointLocation": str(tmp_path), "streamName": "s", **options}, {})
    with pytest.raises(InvalidInput, match=f"(?s){message}"):
        plan_batch(settings, columns, str(tmp_path))
    assert CommitLog(table.home.records, "s", table.uri).read().sequence == 0


def test_on_a_table_with_a_key_a_grown_topic_is_refused_before_anyone_is_fenced(tmp_path: Path, table: Table) -> None:
    app = Application(tmp_path, table)
    app.run(0, {0: 0}, {0: 3})
    heir = Application(tmp_path, table, app.checkpoint)
    heir.offsets(1, {0: 3, 1: 0}, {0: 4, 1: 2})
    with pytest.raises(InvalidInput, match=r"new partitions \(t/1\)"):
        heir.plan()
    app.run(1, {0: 3}, {0: 4})
    assert ids(table) == [0, 1, 2, 3], "the driver that has the stream goes on"
