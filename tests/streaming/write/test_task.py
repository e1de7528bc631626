"""Tasks: any number of attempts of one task, at once or one after the other, and only the listed one counts."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from headgate.checkpoints.log.dead_letters import read_dead_letters
from headgate.connectors.objects.port import ObjectStore
from headgate.errors import InvalidInput, Poisoned, from_json
from headgate.shards.sharding import Bucket, Sharding, Single
from headgate.shards.wal.entry import SourceRange
from headgate.shards.wal.tailer import WalTailer
from headgate.streaming.write import task
from headgate.streaming.write.task import WritePlan
from tests.support.closing import Background
from tests.support.life import (
    TOPIC,
    batch_of,
    check_exactly_once,
    home_of,
    lines_of,
    open_driver,
    ranges_of,
    records,
    run_batch,
    run_task,
    value_at,
    visible_dead,
    visible_rows,
    write_plan,
    written,
)
from tests.support.stores import PATIENCE, Fault, FaultyStore

ONE = ranges_of(0, partitions=[0])


def test_every_attempt_appends_and_only_the_committed_one_is_visible(store: ObjectStore) -> None:
    home = home_of(store)
    driver = open_driver(home)
    plan = write_plan(driver, ONE)
    attempts = [run_task(plan, ONE) for _ in range(3)]
    positions = [output[0]["positions"] for output in attempts]
    assert positions == [[1], [2], [3]], "each one steps over those before it"
    assert len({output[0]["attempt"] for output in attempts}) == 3
    assert visible_rows(home) == {}
    driver.commit(batch_of(plan, written(attempts[1]), 0, ONE))
    check_exactly_once(home, ONE)
    run_batch(driver, 1, ranges_of(1, partitions=[0]))
    check_exactly_once(home, [*ONE, *ranges_of(1, partitions=[0])])


def test_two_attempts_of_one_task_at_once_make_two_entries_and_one_counts(store: ObjectStore) -> None:
    home = home_of(store)
    driver = open_driver(home)
    slow_store = FaultyStore(store)
    plan = write_plan(driver, ONE)
    slow_plan = through(plan, slow_store)
    stall = slow_store.stall("put_if_absent", "/wal/")
    slow = Background(lambda: run_task(slow_plan, ONE))
    stall.wait()
    quick = run_task(plan, ONE)
    stall.release()
    other = slow.result()
    assert quick[0]["positions"] != other[0]["positions"]
    driver.commit(batch_of(plan, written(other), 0, ONE))
    check_exactly_once(home, ONE)


def through(plan: WritePlan, store: ObjectStore) -> WritePlan:
    """The same plan for a task that reaches the shards by way of another store."""
    home = home_of(store)
    claims = {name: replace(claim, shard=home.shard(claim.shard.id)) for name, claim in plan.claims.items()}
    return replace(plan, claims=claims)


def test_a_straggler_that_writes_after_the_commit_is_never_visible(store: ObjectStore) -> None:
    home = home_of(store)
    driver = open_driver(home)
    plan = write_plan(driver, ONE)
    driver.commit(batch_of(plan, written(run_task(plan, ONE)), 0, ONE))
    run_task(plan, ONE)
    check_exactly_once(home, ONE)
    run_batch(driver, 1, ranges_of(1, partitions=[0]))
    run_task(plan, ONE)
    check_exactly_once(home, [*ONE, *ranges_of(1, partitions=[0])])


@pytest.mark.parametrize("limit", [1, 2000, 1 << 30])
def test_rows_above_the_entry_size_become_several_entries_of_one_attempt(store: ObjectStore, limit: int) -> None:
    home = home_of(store)
    driver = open_driver(home)
    ranges = [SourceRange(TOPIC, 0, start, start + 20) for start in range(0, 200, 20)]
    plan = write_plan(driver, ranges, max_entry_bytes=limit)
    output = run_task(plan, ranges)
    rows = next(line for line in output if line.get("shard") and not line["dead"])
    count = len(rows["positions"])
    assert count == {1: 10, 1 << 30: 1}.get(limit, count)
    assert 1 <= count <= 10
    assert rows["positions"] == list(range(rows["positions"][0], rows["positions"][0] + count))
    driver.commit(batch_of(plan, written(output), 0, ranges))
    check_exactly_once(home, ranges)


def test_a_bad_record_costs_no_other_row_and_is_kept_with_its_place_and_bytes(store: ObjectStore) -> None:
    home = home_of(store)
    driver = open_driver(home)
    run_batch(driver, 0, ranges_of(0))
    letters = pa.concat_tables(read_dead_letters(home)).to_pylist()
    assert [(one["topic"], one["partition"], one["offset"]) for one in letters] == [
        (TOPIC, p, o) for p in (0, 1) for o in (9, 19)
    ]
    assert {one["value"] for one in letters} == {value_at(p, o) for p in (0, 1) for o in (9, 19)}
    assert all(one["error"].startswith("not a JSON object") for one in letters)
    assert {one["stream"] for one in letters} == {"s"}


def test_fail_on_bad_record_names_the_first_one_and_commits_nothing(store: ObjectStore) -> None:
    home = home_of(store)
    plan = write_plan(open_driver(home), ONE, fail_on_bad_record=True)
    (line,) = run_task(plan, ONE)
    error = from_json(line["error"])
    assert isinstance(error, InvalidInput)
    assert error.detail == {"topic": TOPIC, "partition": 0, "offset": 9}
    assert "on_bad_record='dead_letter'" in str(error)
    assert visible_rows(home) == {}
    assert visible_dead(home) == {}


def test_a_row_for_a_shard_that_was_not_planned_is_refused(store: ObjectStore) -> None:
    plan = write_plan(open_driver(home_of(store)), ONE)
    (line,) = run_task(plan, ranges_of(0, partitions=[1]))
    assert "shard 'partition:orders:1', which is not in this batch's plan" in line["error"]["what"]


def test_an_error_that_another_try_may_mend_is_raised_to_spark(store: ObjectStore) -> None:
    home = home_of(store)
    plan = through(write_plan(open_driver(home), ONE), FaultyStore(store, lambda operation: Fault.FAIL))
    with pytest.raises(Poisoned, match="may be stored or not"):
        run_task(plan, ONE)


def test_no_thread_is_left_whatever_ends_a_task(store: ObjectStore) -> None:
    before = set(threading.enumerate())
    home = home_of(store)
    driver = open_driver(home)
    plan = write_plan(driver, ONE)
    run_task(plan, ONE)
    failing = write_plan(driver, ranges_of(0), fail_on_bad_record=True, max_entry_bytes=1)
    (line,) = run_task(failing, [SourceRange(TOPIC, 0, 0, 5), SourceRange(TOPIC, 1, 5, 20)])
    assert "error" in line
    assert [thread.name for thread in set(threading.enumerate()) - before if thread.name == "headgate-wal"] == []


def test_a_task_tells_what_it_asked_of_the_store(store: ObjectStore) -> None:
    driver = open_driver(home_of(store))
    plan = write_plan(driver, ranges_of(0))
    store.reset_operations()
    output = run_task(plan, ranges_of(0))
    assert output[-1]["operations"] == {"put": 4}
    assert output[-1]["retries"] == {"store": 0, "task": 0}
    assert set(output[-1]["seconds"]) == {"decode", "append"}


def test_a_shard_that_is_slow_does_not_hold_up_the_others_of_its_task(store: ObjectStore) -> None:
    driver = open_driver(home_of(store))
    plan, slow = write_plan(driver, ranges_of(0)), FaultyStore(store)
    first, second = (claim.shard.wal_key(claim.next_position) for claim in plan.claims.values())
    stall = slow.stall("put_if_absent", first)
    running = Background(lambda: run_task(through(plan, slow), ranges_of(0)))
    stall.wait()
    end = time.monotonic() + PATIENCE
    while not any(one.key == second for one in store.list("")):
        assert time.monotonic() < end, "the second shard waits for the first"
        time.sleep(0.01)
    stall.release()
    driver.commit(batch_of(plan, written(running.result()), 0, ranges_of(0)))
    check_exactly_once(home_of(store), ranges_of(0))


# -- shuffled batches ------------------------------------------------------------------


@pytest.mark.parametrize("sharding", [Bucket("id", 3), Single()])
def test_payloads_in_any_order_are_written_in_the_order_of_the_topic(store: ObjectStore, sharding: Sharding) -> None:
    home = home_of(store)
    driver = open_driver(home, sharding=sharding)
    ranges = [SourceRange(TOPIC, p, start, start + 30) for p in (0, 1) for start in (0, 30, 60)]
    plan = write_plan(driver, [SourceRange(TOPIC, p, 0, 90) for p in (0, 1)], sharding)
    payloads = [p for part in ranges for p in task.prepare_kafka(plan, [records(part)])]
    output = lines_of(task.write_payloads(plan, reversed(payloads)))
    driver.commit(batch_of(plan, written(output), 0, [SourceRange(TOPIC, p, 0, 90) for p in (0, 1)]))
    check_exactly_once(home, ranges)
    for name in plan.claims:
        ids = [
            row
            for one in WalTailer(home.shard(name)).read(1)
            for batch in one.entry.batches
            for row in batch.column("id").to_pylist()
        ]
        assert ids == sorted(ids), "partition by partition, each in the order of its offsets"
        assert ids


def test_an_error_before_the_shuffle_is_told_by_the_task_behind_it(store: ObjectStore) -> None:
    sharding = Bucket("id", 2)
    plan = write_plan(open_driver(home_of(store), sharding=sharding), ONE, sharding)
    good = task.prepare_kafka(plan, [records(ONE[0])])
    bad = task.prepare_typed(replace(plan, maker=replace(plan.maker, decode=None)), [pa.record_batch({"extra": [1]})])
    payloads = [*good, *bad]
    (line,) = lines_of(task.write_payloads(plan, payloads))
    error = from_json(line["error"])
    assert isinstance(error, InvalidInput)
    assert "Column 'extra' not found" in str(error)


def test_rows_that_come_out_of_order_are_told(store: ObjectStore) -> None:
    driver = open_driver(home_of(store))
    plan = write_plan(driver, ONE)
    halves = [SourceRange(TOPIC, 0, 10, 20), SourceRange(TOPIC, 0, 0, 10)]
    output = run_task(plan, halves)
    assert written(output).out_of_place == f"partition:{TOPIC}:0"
    assert written(run_task(plan, reversed(halves))).out_of_place is None


def test_a_shard_that_two_tasks_wrote_to_is_told(store: ObjectStore) -> None:
    driver = open_driver(home_of(store))
    plan = write_plan(driver, ONE)
    both = written(run_task(plan, [SourceRange(TOPIC, 0, 0, 5)]), run_task(plan, [SourceRange(TOPIC, 0, 5, 9)]))
    assert both.out_of_place == f"partition:{TOPIC}:0"
    with pytest.raises(Poisoned, match="are in several tasks"):
        batch_of(plan, both, 0, ONE)


# -- memory ----------------------------------------------------------------------------

MEASURED = r"""
import json, resource, sys, uuid
import pyarrow as pa
from tests.support.life import SCHEMA, home_of, open_driver, lines_of, write_plan
from headgate.connectors.objects import open_store
from headgate.shards.wal.entry import SourceRange
from headgate.shards.sharding import Bucket
from headgate.streaming.write import task

path, how, megabytes = sys.argv[1], sys.argv[2], int(sys.argv[3])
ROWS = 5_000

def batches(count):
    for number in range(count):
        values = [b'{"id": %d, "note": "%s"}' % (number * ROWS + i, b"x" * 200) for i in range(ROWS)]
        offsets = range(number * ROWS, (number + 1) * ROWS)
        yield pa.record_batch(
            [pa.array(values, pa.binary()), pa.array([0] * ROWS, pa.int32()), pa.array(offsets, pa.int64())],
            names=["value", "partition", "offset"])

def run(number, count):
    sharding = Bucket("id", 1) if how == "shuffled" else None
    home = home_of(open_store(f"{path}/{number}"))
    ranges = [SourceRange("orders", 0, 0, count * ROWS)]
    driver = open_driver(home, [0], **({"sharding": sharding} if sharding else {}))
    plan = write_plan(driver, ranges, *([sharding] if sharding else []), max_entry_bytes=1 << 40)
    if how == "shuffled":
        payloads = task.prepare_kafka(plan, batches(count))
        return lines_of(task.write_payloads(plan, payloads))
    return lines_of(task.write_kafka(plan, batches(count)))

def peak():
    return int(next(l for l in open("/proc/self/status") if l.startswith("VmHWM")).split()[1]) << 10

run(0, 1)
idle = peak()
lines = run(1, megabytes * (1 << 20) // (ROWS * 213))
print(json.dumps({"peak": peak() - idle, "entry": lines[0]["nbytes"], "entries": len(lines[0]["positions"])}))
"""


def measured(path: Path, how: str, megabytes: int) -> None:
    command = [sys.executable, "-c", MEASURED, str(path), how, str(megabytes)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["entries"] == 1
    assert found["entry"] > megabytes * 900_000, "the entry is as large as it was meant to be"
    assert found["peak"] < 3 * found["entry"] + (64 << 20), found


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
@pytest.mark.parametrize("megabytes", [8, 64, pytest.param(256, marks=pytest.mark.deep)])
@pytest.mark.parametrize("how", ["stays", "shuffled"])
def test_a_task_holds_less_than_three_entries_and_64_mb(tmp_path: Path, how: str, megabytes: int) -> None:
    measured(tmp_path, how, megabytes)
