"""One shard on S3: append, fence, replay, crashes after every operation, kill -9 of the writer and of the server."""

from __future__ import annotations

import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pyarrow as pa
import pytest

from headgate.connectors.objects import ObjectStore, open_store
from headgate.errors import Fenced, HeadgateError
from headgate.retry import Retry
from headgate.shards.config import WriterConfig
from headgate.table.create import create_table
from headgate.table.table import open_table
from tests.faults.test_hostile import LARGE
from tests.support.closing import WAL_ONLY, closing_checks, fenced, home_of, open_writer, rows, visible
from tests.support.datasets import KEYED, batch, pairs
from tests.support.killing import kill_again_and_again
from tests.support.services import S3Server, create_bucket, s3_options_for
from tests.support.stores import Crash, FaultyStore

pytestmark = [pytest.mark.s3, pytest.mark.real_s3]

SHARD = uuid.UUID(int=9)


@pytest.fixture
def store(bucket: str, s3_options: dict[str, str]) -> ObjectStore:
    return open_store(f"s3://{bucket}/tables/t", s3_options)


def test_an_append_is_one_put_and_nothing_else(store: ObjectStore) -> None:
    with open_writer(store, SHARD) as writer:
        store.reset_operations()
        for number in range(5):
            writer.put(rows(number))
        assert store.operations() == {"put": 5}
    closing_checks(store, SHARD, range(5), range(5))


def test_a_successor_fences_at_the_very_next_append_and_nothing_of_it_shows(store: ObjectStore) -> None:
    first = open_writer(store, SHARD)
    first.put(rows(1))
    second = open_writer(store, SHARD)
    told = fenced(lambda: first.put(rows(2)).wait())
    assert told.stored_epoch == second.claim.epoch
    second.put(rows(3))
    closing_checks(store, SHARD, [1, 3], [1, 2, 3], [first, second])
    assert 2 not in visible(home_of(store).shard(SHARD))


def test_of_openers_at_once_the_last_one_writes_and_the_others_are_fenced(store: ObjectStore) -> None:
    barrier = threading.Barrier(4)

    def work(number: int) -> set[int]:
        acked = set()
        barrier.wait()
        try:
            writer = open_writer(store, SHARD)
            for row in range(100 * number, 100 * number + 20):
                writer.put(rows(row))
                acked.add(row)
        except Fenced:
            pass
        return acked

    with ThreadPoolExecutor(4) as pool:
        acked = set().union(*pool.map(work, range(1, 5)))
    tried = [row for number in range(1, 5) for row in range(100 * number, 100 * number + 20)]
    closing_checks(store, SHARD, acked, tried)


def test_a_crash_after_every_operation_of_open_and_append_loses_no_acknowledged_row(store: ObjectStore) -> None:
    acked: set[int] = set()
    tried: set[int] = set()
    crash_after, crashes = 1, 0
    while True:
        faulty = FaultyStore(store, crash_after=crash_after)
        try:
            writer = open_writer(faulty, SHARD)
            for row in range(10 * crash_after, 10 * crash_after + 2):
                tried.add(row)
                writer.put(rows(row))
                acked.add(row)
            break
        except (Crash, HeadgateError):
            crashes += 1
        crash_after += 1
        assert crash_after < 60
    assert crashes > 4
    closing_checks(store, SHARD, acked, tried)


def test_memtables_are_rebuilt_from_the_wal_and_flushed(bucket: str, s3_options: dict[str, str]) -> None:
    uri = f"s3://{bucket}/t"
    table = create_table(uri, KEYED, primary_key="id", storage_options=s3_options)
    first = table.writer("single")
    first.put(batch([(1, "a"), (2, "b")]))
    first.flush_memtable()
    first.put(batch([(2, "new"), (3, "c")]))
    second = open_table(uri, storage_options=s3_options).writer("single")
    with pytest.raises(Fenced):
        first.put(batch([(9, "zombie")])).wait()
    wanted = [(1, "a"), (2, "new"), (3, "c")]
    assert pairs(second.scan()) == wanted
    second.delete(pa.record_batch({"id": pa.array([1], pa.int64())}))
    second.flush_memtable()
    second.close()
    assert pairs(open_table(uri, storage_options=s3_options).scan()) == wanted[1:]


@pytest.mark.usefixtures("s3_environment")
def test_three_rounds_of_kill_9_of_the_writer_lose_no_acknowledged_row(bucket: str) -> None:
    kill_again_and_again(f"s3://{bucket}/t", 3)


@pytest.mark.deep
@pytest.mark.usefixtures("s3_environment")
def test_fifty_rounds_of_kill_9_of_the_writer_lose_no_acknowledged_row(bucket: str) -> None:
    kill_again_and_again(f"s3://{bucket}/t", 50)


def test_kill_9_of_the_server_is_outlasted_and_loses_no_acknowledged_row(s3_server: S3Server) -> None:
    if s3_server.process is None:
        pytest.skip(f"{s3_server.name} is no process that can be killed")
    name = f"bucket-{uuid.uuid4().hex[:12]}"
    create_bucket(s3_server.endpoint, name)
    store = open_store(f"s3://{name}/t", s3_options_for(s3_server.endpoint))
    writer = open_writer(store, SHARD, replace(WAL_ONLY, retry=Retry(attempts=8, base=0.2)))
    acked, done = [], threading.Event()

    def write() -> None:
        number = 0
        while not done.is_set():
            writer.put(rows(number))
            acked.append(number)
            number += 1

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        try:
            for _ in range(2):
                before = len(acked)
                while len(acked) < before + 20 and not writing.done():
                    done.wait(0.01)
                s3_server.process.kill()
                done.wait(0.3)
                s3_server.process.start()
        finally:
            done.set()
        writing.result(60)
    assert len(acked) > 40
    closing_checks(store, SHARD, acked, [*acked, len(acked)], [writer])


def test_a_durable_group_is_one_entry(store: ObjectStore) -> None:
    config = WriterConfig(enable_memtable=False, durable_write=False, max_wal_flush_interval=3600.0)
    with open_writer(store, SHARD, config) as writer:
        store.reset_operations()
        for number in range(50):
            writer.put(rows(number))
        writer.flush()
        assert store.operations() == {"put": 1}
    closing_checks(store, SHARD, range(50), range(50))


@pytest.mark.deep
@pytest.mark.usefixtures("s3_environment")
def test_an_entry_of_a_gigabyte_is_written_read_and_flushed_in_bounded_memory(
    bucket: str, record_property: Callable[[str, object], None]
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LARGE, f"s3://{bucket}/t"], capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr[-3000:]
    record_property("told", f"an entry of 1 GB on S3: {int(done.stdout)} MB at most")
    assert int(done.stdout) < 6 * 1024, f"{done.stdout} MB: more than six times the entry"
