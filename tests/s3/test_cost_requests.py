"""What `headgate cost` takes one job to cost, against the requests that an S3 server really gets, of both clients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

import headgate
from headgate.checkpoints.gc.base import tidy_base
from headgate.checkpoints.gc.collect import collect
from headgate.checkpoints.jobs.columns import current_schema
from headgate.checkpoints.jobs.flush import run_here
from headgate.checkpoints.jobs.policy import BasePolicy, CompactLimits
from headgate.checkpoints.stream.checkpoint import checkpoint_stream
from headgate.checkpoints.stream.driver import StreamDriver
from headgate.cli.text import cost as cost_model
from headgate.cli.text.cost import Requests
from headgate.search.build.plan import Limits
from headgate.search.build.upkeep import neglected
from headgate.shards.sharding import ByPartition
from tests.s3.recorded_s3 import RecordedS3, Request, recorded_s3
from tests.support.life import QUERY, SCHEMA, batch_of, ranges_of, run_task, write_plan, written
from tests.support.services import create_bucket, s3_options_for

pytestmark = pytest.mark.s3

ENTRIES = 3
"""Per shard and flush."""


@contextmanager
def counting(server: RecordedS3, found: dict[str, Requests], name: str) -> Iterator[None]:
    """The requests that come meanwhile by what they cost, put down under a name."""
    before = len(server.requests)
    yield
    came = Counter(map(_kind, server.requests[before:]))
    found[name] = Requests(came["put"], came["get"], came["list"])


def _kind(request: Request) -> str:
    if request.lists:
        return "list"
    if request.verb == "POST" and "delete" in request.query:
        return "free"
    return {"PUT": "put", "POST": "put", "HEAD": "get", "GET": "get"}.get(request.verb, "free")


@pytest.fixture(scope="module")
def server() -> Iterator[RecordedS3]:
    with recorded_s3() as made:
        yield made


def jobs(server: RecordedS3, shards: int, sstables: int) -> dict[str, Requests]:
    """One of each, on a table with so many shards; the compaction takes so many SSTables of each."""
    bucket = f"cost-{shards}-{sstables}"
    create_bucket(server.endpoint, bucket)
    table = headgate.create_table(
        f"s3://{bucket}/t",
        SCHEMA,
        primary_key="id",
        sharding=headgate.by_partition(key_is_partitioned=True),
        storage_options=s3_options_for(server.endpoint),
    )
    parts = range(shards)
    names = [ByPartition().shard_name("orders", part) for part in parts]
    found: dict[str, Requests] = {}

    def batches(first: int) -> int:
        """A flush's worth, and how many entries of dead letters."""
        dead = 0
        for number in range(first, first + ENTRIES):
            ranges = ranges_of(number, size=9, partitions=parts)
            plan = write_plan(driver, ranges)
            done = written(*(run_task(plan, some) for some in plan.sources.values()))
            batch = driver.commit(replace(batch_of(plan, done, number, ranges), mode="memtable"))
            dead += len(batch.dead_letters)
        return dead

    def flush() -> None:
        driver.flushed(run_here(driver.flush_jobs(1 << 28, names)))

    StreamDriver.open(table.home, "s", QUERY, names)
    with counting(server, found, "open"):
        driver = StreamDriver.open(table.home, "s", QUERY, names)
    with counting(server, found, "batches"):
        dead = batches(0)
    found["batches"] += Requests(put=-dead)
    with counting(server, found, "fold"):
        driver.fold()
    with counting(server, found, "flush"):
        flush()
    for number in range(1, sstables):
        batches(ENTRIES * number)
        flush()
    with counting(server, found, "compaction"):
        assert driver.compact(CompactLimits()) is not None
    with counting(server, found, "tidying"):
        tidy_base(table.home, BasePolicy())
    with counting(server, found, "look at indexes"):
        neglected(table.home, Limits())
    with counting(server, found, "look"):
        current_schema(table.home)
    with counting(server, found, "checkpoint"):
        checkpoint_stream(driver, table.shard_ids(), run_here, max_bytes=1 << 28, keep=2)
    with counting(server, found, "gc"):
        collect(table.home, table.shard_ids())
    return found


def test_what_the_model_takes_one_job_to_cost_is_what_the_server_gets(server: RecordedS3) -> None:
    shards, sstables = 3, 2
    seen = jobs(server, shards, sstables)
    model = {
        "open": cost_model.opening(shards),
        "batches": (cost_model.ENTRY.times(shards) + cost_model.RECORD).times(ENTRIES),
        "fold": cost_model.FOLD,
        "flush": (cost_model.FLUSH + Requests(get=ENTRIES)).times(shards),
        "compaction": cost_model.compaction(shards, sstables),
        "tidying": cost_model.TIDYING,
        "look at indexes": cost_model.LOOK,
        "look": cost_model.LOOK,
        "checkpoint": cost_model.checkpoint(shards),
        "gc": cost_model.collection(shards),
    }
    assert seen.keys() == model.keys()
    told = {name: (one, model[name]) for name, one in seen.items()}
    assert seen["batches"] == model["batches"], "a PUT per entry and one for the record, no GET, no LIST"
    assert [name for name, (one, wanted) in told.items() if one.put != wanted.put] == [], told
    far = [name for name, (one, wanted) in told.items() if not _near(one.get, wanted.get, one.list, wanted.list)]
    assert far == [], told


def _near(*pairs: float) -> bool:
    """Reads are no promise: a fifth more or less, or one, is the same."""
    return all(abs(a - b) <= max(1, 0.2 * b) for a, b in zip(pairs[::2], pairs[1::2], strict=True))
