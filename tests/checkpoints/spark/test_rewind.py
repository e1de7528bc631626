"""A rewind: what it plans, what it leaves in the log, who knows of it, and what every crash on the way leaves."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from headgate.checkpoints.fsck.check import check_table
from headgate.checkpoints.log import codec
from headgate.checkpoints.log.commit_log import CommitLog
from headgate.checkpoints.log.decisions import BatchSources, Refusal, Write, decide_batch, late_beginning
from headgate.checkpoints.log.records import Batch, OffsetMove, OpaqueRange, PartitionPass, RewindRecord
from headgate.checkpoints.log.state import Head, empty, fold, replayed, unfolded
from headgate.checkpoints.snapshots import checkpoint as table_checkpoint
from headgate.checkpoints.snapshots.take import take
from headgate.checkpoints.spark.compare import look_at_spark, standing
from headgate.checkpoints.spark.directory import SparkCheckpoint
from headgate.checkpoints.spark.recover import check_rebuildable, rebuild
from headgate.checkpoints.spark.rewind import adopt, rewind
from headgate.checkpoints.spark.rewind_plan import check_held, head_after, moving, parse_offsets, plan_rewind
from headgate.connectors.objects import open_store
from headgate.connectors.objects.memory import MemoryStore
from headgate.connectors.objects.port import ObjectStore
from headgate.errors import Corrupt, Fenced, InvalidInput, NotFound
from headgate.shards.shard import TableHome
from headgate.shards.wal.entry import SourceRange
from tests.support.directories import META, equal_batches, put, spark_directory
from tests.support.histories import make, open_stream
from tests.support.life import (
    QUERY,
    TOPIC,
    check_exactly_once,
    expected_dead,
    expected_rows,
    home_of,
    open_driver,
    ranges_of,
    run_batch,
    run_task,
    visible_dead,
    visible_rows,
    write_plan,
)
from tests.support.logs import batch_record, open_record
from tests.support.stores import Crash, FaultyStore

BATCHES = 3


def head_at() -> Head:
    """Stream orders has read topic t, partition 0, from 0 to 10."""
    return replayed(empty("orders"), [open_record(), batch_record(2, 0)]).head


def record_of(*moves: OffsetMove, sequence: int = 3) -> RewindRecord:
    return RewindRecord(
        record_id=f"w{sequence}",
        sequence=sequence,
        stream="orders",
        open_id="o1",
        query_id="q",
        offsets=moves,
        rewound_at="2026-11-16T00:00:00+00:00",
        by="ann@host",
        reason="the decoder was wrong",
    )


# -- pure: the plan --------------------------------------------------------------------------


def test_offsets_are_written_as_spark_writes_them() -> None:
    assert parse_offsets('{"a":{"0":5,"1":-2},"b":{"0":0}}') == {("a", 0): 5, ("a", 1): -2, ("b", 0): 0}
    for text in (
        "",
        "5",
        "[]",
        "{}",
        '{"a":5}',
        '{"a":{"x":5}}',
        '{"a":{"0":"5"}}',
        '{"a":{"0":-3}}',
        '{"a":{"-1":1}}',
    ):
        with pytest.raises(InvalidInput, match=r"offset"):
            parse_offsets(text)


def test_the_plan_has_every_partition_and_says_what_comes_again_and_what_is_left_out() -> None:
    driver = open_driver(home_of(MemoryStore(f"memory://{uuid.uuid4().hex}")))
    run_batch(driver, 0, ranges_of(0))
    back = plan_rewind(driver.head, {(TOPIC, 0): 5})
    assert back == (OffsetMove(TOPIC, 0, 20, 5), OffsetMove(TOPIC, 1, 20, 20))
    assert [(one.again, one.skipped) for one in back] == [(15, 0), (0, 0)]
    assert moving(back) == back[:1]
    on = plan_rewind(driver.head, {(TOPIC, 1): 32, (TOPIC, 2): 7})
    assert on == (OffsetMove(TOPIC, 0, 20, 20), OffsetMove(TOPIC, 1, 20, 32), OffsetMove(TOPIC, 2, None, 7))
    assert [(one.again, one.skipped) for one in on] == [(0, 0), (0, 12), (0, 0)]


def test_what_cannot_be_is_refused_with_what_to_do() -> None:
    with pytest.raises(InvalidInput, match="nothing to rewind"):
        plan_rewind(Head("orders", 1, open_record()), {("t", 0): 0})
    with pytest.raises(InvalidInput, match="does not read the topic 'x'"):
        plan_rewind(head_at(), {("x", 0): 0})
    with pytest.raises(InvalidInput, match="unknown without Kafka"):
        plan_rewind(head_at(), {("t", 0): -2})
    moves = plan_rewind(head_at(), {("t", 0): 4})
    check_held(moves, {("t", 0): (4, 10)})
    for there in ((5, 10), (0, 3), (11, 20)):
        with pytest.raises(InvalidInput, match="would continue at 4"):
            check_held(moves, {("t", 0): there})


# -- pure: the log ---------------------------------------------------------------------------


def test_a_rewind_resets_where_the_next_batch_starts_and_keeps_what_was_read() -> None:
    state = replayed(empty("orders"), [open_record(), batch_record(2, 0, 1), batch_record(3, 1, 2)])
    state = replayed(state, [record_of(OffsetMove("t", 0, 20, 5), sequence=4)])
    head = state.head
    assert (head.ends, head.starts, head.passes) == ({("t", 0): 5}, {("t", 0): 5}, (PartitionPass("t", 0, 0, 20, 4),))
    assert (head.is_rewound, head.next_starts()) == (True, {("t", 0): 5})
    assert codec.decode_fold(codec.encode(fold(state, {}))) == fold(state, {})
    assert unfolded(fold(state, {})).head == replace(head, recent={("q", 1): head.last}), "a fold says the same"
    later = replace(batch_record(5, 2, 3), sources=(SourceRange("t", 0, 5, 12),))
    on = replayed(state, [later]).head
    assert (on.ends, on.starts, on.is_rewound, on.next_starts()) == ({("t", 0): 12}, {("t", 0): 5}, False, on.ends)
    again = head_after(on, (OffsetMove("t", 0, 12, 5),))
    assert again.passes == (PartitionPass("t", 0, 0, 20, 4), PartitionPass("t", 0, 5, 12, 6))
    idle = head_after(head, (OffsetMove("t", 0, 5, 30),))
    assert idle.passes == head.passes, "nothing was read between the two"


@pytest.mark.parametrize(
    "record",
    [record_of(OffsetMove("t", 0, 9, 5)), replace(record_of(OffsetMove("t", 0, 10, 5)), open_id="o0")],
    ids=["from where it never stood", "of a driver that was fenced"],
)
def test_a_rewind_that_no_driver_could_have_written_is_corrupt(record: RewindRecord) -> None:
    with pytest.raises(Corrupt):
        head_at().after(record)


def test_records_with_rewinds_have_the_new_format_and_others_the_old_one() -> None:
    record = record_of(OffsetMove("t", 0, 10, 5), OffsetMove("u", 1, None, 0))
    assert codec.decode_record(codec.encode(record)) == record
    plain = json.loads(codec.encode(record))
    assert (plain["format"], plain["kind"], plain["by"], plain["reason"]) == (
        2,
        "rewind",
        "ann@host",
        "the decoder was wrong",
    )
    assert json.loads(codec.encode(batch_record(2, 0)))["format"] == 1
    state = replayed(empty("orders"), [open_record(), batch_record(2, 0)])
    before = json.loads(codec.encode(fold(state, {})))
    after = json.loads(codec.encode(fold(replayed(state, [record_of(OffsetMove("t", 0, 10, 5))]), {})))
    assert (before["format"], "rewound" in before, after["format"]) == (1, False, 2)
    newer = codec.encode(record).replace(b'"format": 2', b'"format": 4')
    with pytest.raises(InvalidInput, match=r"has format 4, written by headgate.*reads up to format 3"):
        codec.decode_record(newer)


# -- pure: batches ----------------------------------------------------------------------------


def test_after_a_rewind_only_a_batch_from_the_new_offsets_is_written() -> None:
    head = head_after(head_at(), (OffsetMove("t", 0, 10, 4),))

    def decided(query: str, number: int, start: int, until: int) -> object:
        sources = BatchSources((SourceRange("t", 0, start, until),))
        return decide_batch(head, query, number, sources, lambda topic, partition: 0)

    assert isinstance(decided("new", 0, 4, 12), Write)
    onward = decided("q", 1, 10, 12)
    assert isinstance(onward, Refusal)
    assert "was rewound by record 3" in str(onward.error)
    assert '{"t":{"0":4}}' in str(onward.error), "it says where to start"
    skipped = decided("q", 0, 0, 10)
    assert isinstance(skipped, Refusal), "to skip it would leave out what was to be read again"


# -- the protocol -----------------------------------------------------------------------------


@pytest.fixture
def home(store: ObjectStore) -> TableHome:
    return home_of(store)


def streamed(home: TableHome, partitions: tuple[int, ...] = (0, 1)) -> None:
    driver = open_driver(home, partitions)
    for number in range(BATCHES):
        run_batch(driver, number, ranges_of(number, partitions=partitions))


def head(home: TableHome) -> Head:
    return CommitLog(home.records, "s", home.uri).read().head


def test_rows_are_there_twice_exactly_in_the_range_that_was_read_again(home: TableHome) -> None:
    streamed(home)
    done = rewind(home, "s", {(TOPIC, 0): 30}, by="ann", reason="again")
    assert done.record is not None
    assert (done.record.by, done.record.reason, done.record.rewound_at[:2]) == ("ann", "again", "20")
    assert done.head == head(home)
    driver = open_driver(home, query="second")
    more = (SourceRange(TOPIC, 0, 30, 70), SourceRange(TOPIC, 1, 60, 70))
    run_batch(driver, 0, more, "second")
    first = [part for number in range(BATCHES) for part in ranges_of(number)]
    assert visible_rows(home) == expected_rows(first) + expected_rows(more)
    assert visible_dead(home) == expected_dead(first) + expected_dead(more)
    assert max(Counter(visible_rows(home)).values()) == 2
    driver.fold()
    assert head(home).passes == (PartitionPass(TOPIC, 0, 0, 60, done.record.sequence),)
    record = CommitLog(home.records, "s", home.uri).record(done.record.sequence)
    assert isinstance(record, RewindRecord), "a fold leaves it for people to read"


def test_what_is_skipped_is_never_read_and_standing_there_already_writes_nothing(home: TableHome) -> None:
    streamed(home)
    rewind(home, "s", {(TOPIC, 0): 100, (TOPIC, 1): 60})
    before = head(home).sequence
    assert rewind(home, "s", {(TOPIC, 0): 100}).record is None
    assert head(home).sequence == before
    driver = open_driver(home, query="second")
    on = (SourceRange(TOPIC, 0, 100, 110), SourceRange(TOPIC, 1, 60, 70))
    run_batch(driver, 0, on, "second")
    check_exactly_once(home, [*(part for number in range(BATCHES) for part in ranges_of(number)), *on])
    with pytest.raises(NotFound, match="Stream 'x' not found"):
        rewind(home, "x", {(TOPIC, 0): 0})


def test_a_partition_that_is_new_to_the_stream_may_begin_in_the_middle_only_on_record(home: TableHome) -> None:
    streamed(home)
    jump = (*ranges_of(BATCHES), SourceRange(TOPIC, 2, 7, 20))
    with pytest.raises(InvalidInput, match="its earliest offset is 0"):
        run_batch(open_driver(home), BATCHES, jump)
    done = rewind(home, "s", {(TOPIC, 2): 7})
    assert done.record is not None
    assert done.record.offsets[-1] == OffsetMove(TOPIC, 2, None, 7)
    run_batch(open_driver(home), BATCHES, jump)
    check_exactly_once(home, [*(part for number in range(BATCHES) for part in ranges_of(number)), *jump])


def test_a_driver_that_slept_through_a_rewind_is_fenced_and_nothing_of_it_is_visible(home: TableHome) -> None:
    streamed(home)
    zombie = open_driver(home)
    plan = write_plan(zombie, ranges_of(BATCHES))
    rewind(home, "s", {(TOPIC, 0): 0, (TOPIC, 1): 0})
    (line,) = run_task(plan, ranges_of(BATCHES))
    assert line["error"]["class"] == "Fenced"
    with pytest.raises(Fenced):  # also for a batch without rows, which touches no shard
        zombie.commit(Batch(query_id=QUERY, batch_id=BATCHES))
    with pytest.raises(Fenced):
        zombie.rewind(plan_rewind(zombie.head, {(TOPIC, 0): 5}))
    check_exactly_once(home, [part for number in range(BATCHES) for part in ranges_of(number)])


def test_a_crash_after_any_operation_leaves_the_stream_where_it_was_or_rewound(store: ObjectStore) -> None:
    streamed(home_of(store), (0,))
    objects = {info.key: bytes(store.get(info.key)) for info in store.list("")}
    first = [part for number in range(BATCHES) for part in ranges_of(number, partitions=(0,))]
    moved: set[bool] = set()
    for number in range(1, 200):
        name = uuid.uuid4().hex
        fresh = MemoryStore(f"memory://{name}")
        for key, data in objects.items():
            fresh.put_if_absent(key, data)
        home = home_of(fresh)
        dying = FaultyStore(fresh, crash_after=number)
        try:
            rewind(home_of(dying), "s", {(TOPIC, 0): 25})
        except Crash:
            end = head(home).ends[TOPIC, 0]
            assert end in (25, 60), f"after operation {number}"
            moved.add(end == 25)
            check_exactly_once(home, first)
            rewind(home, "s", {(TOPIC, 0): 25})
        assert len(head(home).passes) == 1, "once, however often it was asked for"
        again = (SourceRange(TOPIC, 0, 25, 65),)
        run_batch(open_driver(home, [0], query="second"), 0, again, "second")
        assert visible_rows(home) == expected_rows(first) + expected_rows(again)
        MemoryStore.drop(name)
        if not dying.crashed:
            assert moved == {False, True}
            return
    raise AssertionError("the call never ran through")


# -- a foreign checkpoint ----------------------------------------------------------------------


@pytest.mark.parametrize("done", [2, 3], ids=["a batch is logged", "between batches"])
def test_a_foreign_checkpoint_is_refused_until_it_is_adopted_and_then_goes_on_exactly_there(
    home: TableHome, tmp_path: Path, done: int
) -> None:
    spark = look_at_spark(spark_directory(tmp_path / "c", equal_batches(3), done=done))
    driver = open_driver(home)
    with pytest.raises(InvalidInput, match="batches before 2 went to another table") as refused:
        run_batch(driver, 2, ranges_of(2))
    assert "--adopt" in str(refused.value)
    assert "empty checkpoint directory" in str(refused.value)
    adopted = adopt(home, "s", spark, by="ann", reason="meant")
    assert adopted.record is not None
    at = 40 if done == 2 else 60
    assert [(one.before, one.after) for one in adopted.moves] == [(None, at), (None, at)]
    assert adopt(home, "s", spark).record is None, "twice equals once"
    found = standing(head(home), spark)
    assert found.state == ("spark ahead" if done == 2 else "aligned")
    driver = open_driver(home)
    with pytest.raises(InvalidInput, match="goes back to 0"):
        run_batch(driver, 0, ranges_of(0), "another")
    run_batch(driver, done, ranges_of(done))
    check_exactly_once(home, ranges_of(done))
    assert late_beginning(CommitLog(home.records, "s", home.uri).beginning(), head(home)) is None


def test_what_cannot_be_adopted_is_told_before_anything_is_written(home: TableHome, tmp_path: Path) -> None:
    nothing = look_at_spark(SparkCheckpoint(str(tmp_path / "none")))
    first = look_at_spark(spark_directory(tmp_path / "first", equal_batches(1), done=0))
    for spark, why in ((nothing, "No readable Spark checkpoint"), (first, "may start at any offset")):
        with pytest.raises(InvalidInput, match=why):
            adopt(home, "s", spark)
    assert not list(home.store.list(""))


def test_a_checkpoint_without_kafka_is_adopted_from_wherever_it_stands(home: TableHome, tmp_path: Path) -> None:
    put(tmp_path / "c", "metadata", json.dumps({"id": QUERY}))
    for number in range(3):
        put(tmp_path / "c", f"offsets/{number}", f'v1\n{META}\n{{"logOffset":{number}}}')
        put(tmp_path / "c", f"commits/{number}", 'v1\n{"nextBatchWatermarkMs":0}')
    spark = look_at_spark(SparkCheckpoint(str(tmp_path / "c")))
    sources = BatchSources(opaque=(OpaqueRange("0", '{"logOffset":2}', '{"logOffset":3}'),))
    assert isinstance(decide_batch(empty("s").head, QUERY, 3, sources, lambda topic, partition: 0), Refusal)
    assert adopt(home, "s", spark).record is not None
    assert standing(head(home), spark).state == "aligned"
    assert isinstance(decide_batch(head(home), QUERY, 3, sources, lambda topic, partition: 0), Write)


# -- Spark's checkpoint --------------------------------------------------------------------------


def test_the_old_spark_checkpoint_no_longer_goes_with_the_stream_and_is_rebuilt(
    home: TableHome, tmp_path: Path
) -> None:
    streamed(home)
    checkpoint = spark_directory(tmp_path / "c", equal_batches(BATCHES), done=BATCHES)
    assert standing(head(home), look_at_spark(checkpoint)).state == "aligned"
    rewind(home, "s", {(TOPIC, 0): 20, (TOPIC, 1): 20})
    found = standing(head(home), look_at_spark(checkpoint))
    assert (found.state, found.needs_rebuild) == ("lost", True)
    assert "rewound the stream" in found.why
    old_copy = spark_directory(tmp_path / "old", equal_batches(1), done=1)
    assert standing(head(home), look_at_spark(old_copy)).needs_rebuild, "its next batch has a number that is taken"
    assert check_rebuildable(home, head(home), checkpoint)
    query = rebuild(home, "s", checkpoint, open_store(str(tmp_path / "c"))).query_id
    assert standing(head(home), look_at_spark(checkpoint)).state == "aligned"
    assert not check_rebuildable(home, head(home), checkpoint)
    assert look_at_spark(checkpoint).kafka_ends() == {(TOPIC, 0): 20, (TOPIC, 1): 20}
    run_batch(open_driver(home, query=query), BATCHES, ranges_of(1), query)
    assert head(home).ends == {(TOPIC, 0): 40, (TOPIC, 1): 40}


def test_a_checkpoint_that_cannot_be_rebuilt_is_told_before_anything_is_written(
    home: TableHome, tmp_path: Path
) -> None:
    streamed(home)
    checkpoint = spark_directory(tmp_path / "c", equal_batches(BATCHES), done=BATCHES)
    put(tmp_path / "c", "state/0/0/1.delta", "remembered")
    planned = head_after(head(home), plan_rewind(head(home), {(TOPIC, 0): 20}))
    with pytest.raises(InvalidInput, match="cannot be rebuilt"):
        check_rebuildable(home, planned, checkpoint)
    assert check_rebuildable(home, planned, SparkCheckpoint(str(tmp_path / "none")))


# -- those who read the log -----------------------------------------------------------------------


def test_fsck_accepts_the_discontinuity_that_is_on_record_and_no_other(tmp_path: Path) -> None:
    table = make(tmp_path / "table")
    end = open_stream(table).head.ends[TOPIC, 0]
    done = rewind(table.home, "s", {(TOPIC, 0): end - 20, (TOPIC, 1): end - 20})
    assert done.record is not None
    driver = open_stream(table, "second")
    run_batch(driver, 0, ranges_of(end // 20 - 1), "second")
    run_batch(driver, 1, ranges_of(end // 20), "second")
    assert check_table(table.home, table.shard_ids()).findings == ()
    checkpoint = take(table.home, table.shard_ids(), name="after")
    assert table_checkpoint.decode(table_checkpoint.encode(checkpoint)) == checkpoint
    assert checkpoint.streams["s"].rewound == done.record
    log = Path(table.home.records.uri.removeprefix("file://")) / "streams/s/log"
    file = log / f"{done.record.sequence:020d}.json"
    other = replace(done.record, offsets=(OffsetMove(TOPIC, 0, end, end - 40), OffsetMove(TOPIC, 1, end, end - 20)))
    file.write_bytes(codec.encode(other))
    codes = {one.code for one in check_table(table.home, table.shard_ids()).findings}
    assert codes == {"log-offsets-jump"}, "the batch after it starts elsewhere"
    wrong = replace(done.record, offsets=(OffsetMove(TOPIC, 0, end - 1, end - 20), OffsetMove(TOPIC, 1, end, end - 20)))
    file.write_bytes(codec.encode(wrong))
    codes = {one.code for one in check_table(table.home, table.shard_ids()).findings}
    assert codes == {"log-offsets-jump"}, "it says that the stream stood elsewhere"
