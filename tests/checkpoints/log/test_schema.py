"""A change of columns tells every stream by a record in its log: nobody is fenced, and nobody misses it (R22)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from headgate.checkpoints.feed.feed import LogFeed
from headgate.checkpoints.gc.collect import collect
from headgate.checkpoints.jobs.columns import add_column, gained
from headgate.checkpoints.log import codec
from headgate.checkpoints.log.commit_log import CommitLog
from headgate.checkpoints.log.fold import tidy
from headgate.checkpoints.log.records import BatchRecord, OffsetMove, SchemaRecord
from headgate.checkpoints.log.state import empty, fold, replayed, unfolded
from headgate.checkpoints.spark.rewind import rewind
from headgate.connectors.objects.port import ObjectStore
from headgate.errors import Fenced, InvalidInput
from headgate.shards.rows.schema import RowSchema
from headgate.steps import watching
from headgate.table.fsck import fsck
from headgate.table.table import open_table
from tests.support.logs import AT_ONCE, CLAIMS, batch, batch_record, log, open_record
from tests.support.stores import Crash, Fault, FaultyStore
from tests.support.tables import copied, faulty, ids, make, open_stream, run_batch, through
from tests.support.tables import of_batches as rows_of

MORE = pa.field("more", pa.int64())


def schema_record(sequence: int) -> SchemaRecord:
    return SchemaRecord(record_id=f"s{sequence}", sequence=sequence, stream="orders", changed_at="2026-11-18")


# -- pure ----------------------------------------------------------------------------------


def test_a_schema_record_moves_nothing_but_the_sequence_and_a_fold_remembers_it() -> None:
    state = replayed(empty("orders"), [open_record(), batch_record(2, 0, 1), schema_record(3)])
    before = replayed(empty("orders"), [open_record(), batch_record(2, 0, 1)])
    assert state.head == replace(before.head, sequence=3, changed=3)
    folded = codec.decode_fold(codec.encode(fold(state, {})))
    assert unfolded(folded).head.changed == 3
    assert "changed" not in json.loads(codec.encode(fold(before, {})))


def test_it_has_a_format_of_its_own_so_that_older_releases_stop_instead_of_misreading_it() -> None:
    record = schema_record(3)
    assert codec.decode_record(codec.encode(record)) == record
    assert json.loads(codec.encode(record))["format"] == 3
    assert json.loads(codec.encode(batch_record(2, 0, 1)))["format"] == 1


def test_columns_are_gained_by_name_and_by_field_id() -> None:
    def schema(**ids: int) -> RowSchema:
        return RowSchema.of(pa.schema([(name, pa.int64()) for name in ids]), list(ids.values()))

    then = schema(a=0, b=1)
    for now, yes in (
        (schema(a=0, b=1), False),
        (schema(a=0), False),
        (schema(a=0, b=1, c=2), True),
        (schema(a=0, c=1), True),
        (schema(a=0, b=2), True),
    ):
        assert gained(then, now) is yes


# -- the log -------------------------------------------------------------------------------


def test_a_driver_steps_over_it_by_one_and_is_told_once(store: ObjectStore) -> None:
    opened = log(store).open("q", CLAIMS)
    opened.commit(batch(0, 0, 10, 1), {})
    told: list[object] = []
    opened.on_record = told.append
    first, second = log(store).put_schema_record(), log(store).put_schema_record()
    assert (first.sequence, second.sequence) == (3, 4)
    again = batch(1, 10, 20, 2)
    assert [opened.commit(again, {}), opened.commit(again, {})] == [None, None]
    record = opened.commit(again, {})
    assert isinstance(record, BatchRecord)
    assert (record.sequence, opened.head.changed) == (5, 4)
    assert told == [first, second, record]
    assert log(store).read().head == opened.head
    third = log(store).put_schema_record()
    opened.extend(CLAIMS)
    assert (opened.record.sequence, opened.head.changed) == (7, third.sequence)
    log(store).put_schema_record()
    assert opened.rewind((OffsetMove("t", 0, 20, 5),)).sequence == 9


def test_a_predecessor_behind_it_is_fenced_by_the_open_record_that_follows(store: ObjectStore) -> None:
    zombie = log(store).open("q", CLAIMS)
    log(store).put_schema_record()
    log(store).open("q", CLAIMS)
    assert zombie.commit(batch(0, 0, 10, 1), {}) is None
    with pytest.raises(Fenced):
        zombie.commit(batch(0, 0, 10, 1), {})


def test_one_that_comes_while_the_log_is_opened_belongs_to_it(store: ObjectStore) -> None:
    put: dict[str, SchemaRecord] = {}

    def meanwhile(step: str) -> None:
        if step in ("open record", "prove") and step not in put:
            put[step] = log(store).put_schema_record()

    with watching(meanwhile):
        opened = log(store).open("q", CLAIMS)
    assert (opened.record.sequence, opened.head.sequence) == (2, 3), "its slot was taken, and one came after it"
    assert opened.head.changed == put["prove"].sequence == 3
    assert opened.commit(batch(0, 0, 10, 1), {}) is not None


def test_one_that_lies_in_a_collected_slot_is_put_once_more(store: ObjectStore) -> None:
    live = log(store).open("q", CLAIMS)
    steps: list[str] = []

    def meanwhile(step: str) -> None:
        steps.append(step)
        if steps == ["log end", "schema record"]:
            for n in range(4):
                live.commit(batch(n, n * 10, n * 10 + 10, n + 1), {})
            log(store).put_fold(fold(log(store).read(), {}))
            for sequence in (2, 3, 4):
                store.delete(f"{log(store).folder}/log/{sequence:020d}.json")

    with watching(meanwhile):
        record = log(store).put_schema_record()
    assert isinstance(log(store).record(2), SchemaRecord), "where no driver comes to it"
    assert record.sequence == 6
    assert live.commit(batch(4, 40, 50, 5), {}) is None


def test_its_lost_response_is_no_second_record_and_a_lost_commit_is_found_behind_one(store: ObjectStore) -> None:
    live = log(store).open("q", CLAIMS)
    lossy = FaultyStore(store)
    lossy.script("put_if_absent", Fault.LOST)
    record = log(lossy).put_schema_record()
    assert log(store).read().sequence == record.sequence == 2
    assert live.commit(batch(0, 0, 10, 1), {}) is None
    live.log._store = lossy.retrying(AT_ONCE)
    lossy.script("put_if_absent", Fault.LOST)
    stored = live.commit(batch(0, 0, 10, 1), {})
    assert stored is not None
    assert log(store).record(3) == stored


def test_folds_and_collections_keep_it_and_the_last_batch_record(store: ObjectStore) -> None:
    live = log(store).open("q", CLAIMS)
    for n in range(3):
        live.commit(batch(n, n * 10, n * 10 + 10, n + 1), {})
    log(store).put_schema_record()
    log(store).put_schema_record()
    log(store).put_fold(fold(log(store).read(), {}))
    log(store).put_fold(fold(replayed(log(store).read(), [schema_record(7)]), {}))  # a newer one: the first may be used
    assert tidy(store, log(store)) == [2, 3]
    assert log(store).sequences() == {1, 4, 5, 6}


# -- a table -------------------------------------------------------------------------------


def test_a_stream_goes_on_after_a_change_and_every_reader_of_the_log_knows_the_record(tmp_path: Path) -> None:
    table = make(tmp_path)
    driver = open_stream(table)
    run_batch(driver, 0)
    changed = table.add_column(MORE)
    assert table.add_column(MORE).schema.names == changed.schema.names, "twice equals once"
    with pytest.raises(InvalidInput, match="cannot be changed to string"):
        table.add_column(pa.field("more", pa.string()))
    assert run_batch(driver, 1).sequence == 5
    rewind(table.home, "s", {("orders", 0): 60})
    table.rename_column("more", "other")
    driver = open_stream(table)
    assert driver.head.changed == CommitLog(table.home.records, "s", table.uri).read().head.changed > 5
    driver.fold()
    assert ids(changed) == rows_of(range(2))
    assert fsck(table.uri).findings == ()
    feed = LogFeed(table.home, table.shard_ids, "consumer")
    parts = feed.plan(feed.start("earliest"), feed.tips())
    assert {piece.sequence for part in parts for piece in part.pieces} == {2, 5}
    clone = table.clone(str(tmp_path / "clone"))
    assert ids(clone) == ids(changed)
    assert collect(table.home, table.shard_ids(), apply=True).kept == ()


def test_a_crash_after_any_step_of_a_change_leaves_a_table_that_the_same_call_completes(tmp_path: Path) -> None:
    whole = make(tmp_path)
    for stream, partition in (("s", 0), ("t", 1)):
        open_stream(whole, [partition], stream=stream)
    log_of = [f"/{stream}/log/" for stream in ("s", "t")]
    told_by_crash: set[int] = set()
    for number in range(1, 200):
        table = copied(whole, tmp_path / str(number))
        dying = faulty(table, crash_after=number)
        try:
            add_column(through(table, dying).home, MORE)
        except Crash:
            there = "more" in open_table(table.uri).schema.names
            told = [info.key for info in dying.inner.list("") if any(one in info.key for one in log_of)]
            assert there or len(told) == 2, "the base comes first"
            told_by_crash.add(len(told))
            add_column(table.home, MORE)
        heads = [CommitLog(table.home.records, stream, table.uri).read().head for stream in ("s", "t")]
        assert all(head.changed for head in heads), f"after operation {number} a stream was not told"
        run_batch(open_stream(table, [0]), 0, partitions=(0,))
        assert open_table(table.uri).schema.names == ["id", "note", "more"]
        if not dying.crashed:
            assert told_by_crash == {2, 3, 4}
            return
    raise AssertionError("the call never ran through")
