"""Requests that wait for one another: the longest chain of each step, not the sum. See `benchmarks.requests`.

Steps of the protocol run on a memory store, and what goes through Lance behind a proxy in front of versitygw; both
answer after 30 ms while a step is measured. `--trace WORD` shows the chain of the steps whose name has the word.
"""

from __future__ import annotations

import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa

import headgate
from benchmarks.report import output_option, show
from benchmarks.requests import DELAY, Request, Requests, SlowMemory, SlowProxy, chain
from headgate import parallel
from headgate.checkpoints.jobs import flush
from headgate.checkpoints.jobs.flush import Flushed, FlushJob
from headgate.checkpoints.log.records import Batch, ShardPart
from headgate.checkpoints.stream.checkpoint import checkpoint_stream, stop_stream
from headgate.checkpoints.stream.driver import StreamDriver
from headgate.connectors.objects.memory import MemoryStore
from headgate.shards.config import WriterConfig
from headgate.shards.rows.schema import RowSchema
from headgate.shards.shard import TableHome
from headgate.shards.wal.appender import WalAppender
from headgate.shards.wal.entry import SourceRange, Tags
from headgate.shards.writer import ShardWriter
from headgate.table.table import Table

SCHEMA = pa.schema([pa.field("id", pa.int64(), False), pa.field("note", pa.string())])
WAL_ONLY = WriterConfig(enable_memtable=False)
BUCKET, SECRETS = "benchmark", ("benchmark", "benchmark-secret")

Line = dict[str, Any]


@click.command()
@click.option("--only", default="", help="Steps whose name has this word.")
@click.option("--trace", default="", help="Show the chain of the steps whose name has this word.")
@click.option(
    "--delay", default=DELAY, show_default=True, help="Seconds of each answer; more counts better beside others."
)
@click.option("--shards", default=1024, show_default=True, help="Of the stream that is opened.")
@output_option
def main(only: str, trace: str, delay: float, shards: int, output: str) -> None:
    """Round trips of each step, and how many are wanted; exits 1 where there are more."""
    lines: list[Line] = []

    def measured(step: str, requests: Requests, call: Callable[[], object], wanted: int | None = None) -> None:
        if only not in step:
            call()
            return
        requests.clear()
        requests.delay = delay
        began, used = time.perf_counter(), time.process_time()
        call()
        requests.delay = 0.0
        took, used, made = time.perf_counter() - began, time.process_time() - used, list(requests.made)
        longest = chain(made)
        lines.append({"step": step, "round trips": len(longest), "wanted": wanted, "requests": len(made)})
        lines[-1] |= {"s": took, "CPU s": used}
        if trace and trace in step:
            _show(longest)

    _protocol(measured, shards)
    with _versitygw() as (options, requests):
        for step in (_reads, _streams):
            step(measured, options, requests)
    title = f"Round trips of a store that answers after {delay * 1000:.0f} ms: counts, which hold on a busy machine"
    show(title, lines, output)
    if missed := [line["step"] for line in lines if line["wanted"] and line["round trips"] > line["wanted"]]:
        click.echo(f"More than wanted: {'; '.join(missed)}.", err=True)
        sys.exit(1)


Measure = Callable[..., None]


def _protocol(measured: Measure, shards: int) -> None:
    """Steps that go through no Lance."""
    name = uuid.uuid4().hex
    home, few = (_home(f"memory://{one}") for one in (name, f"{name}-few"))
    requests = SlowMemory.requests
    requests.delay = 0.0
    many = [f"partition:t:{number}" for number in range(shards)]
    for what in ("first", "again"):
        measured(f"open a stream of {shards} shards, {what}", requests, lambda: StreamDriver.open(home, "s", "q", many))
    driver = StreamDriver.open(few, "s", "q", many[:16])
    measured("batch of 16 shards", requests, lambda: _batch(driver, many[:16], 0), 2)
    measured("open a stream of 16 shards, again", requests, lambda: StreamDriver.open(few, "s", "q", many[:16]))
    measured("open a shard as a writer of its own", requests, lambda: WalAppender.open(few.shard(uuid.UUID(int=7))))
    MemoryStore.drop(name)
    MemoryStore.drop(f"{name}-few")


def _home(uri: str) -> TableHome:
    store = SlowMemory(uri)
    return TableHome(RowSchema.of(SCHEMA), store, store, uuid.uuid4())


def _reads(measured: Measure, options: Mapping[str, str], requests: Requests) -> None:
    """Of a table with 8 SSTables and a tail, in one shard."""
    uri = f"s3://{BUCKET}/reads"
    made = headgate.create_table(uri, SCHEMA, primary_key="id", storage_options=options)
    with made.writer("single") as writer:
        for number in range(8):
            writer.put(_rows(number * 1000, 1000))
            writer.flush_memtable()
    with made.writer("single", WAL_ONLY) as writer:
        writer.put(_rows(7500, 1000))
    table: Table | None = None

    def opened() -> None:
        nonlocal table
        table = headgate.open_table(uri, storage_options=options)

    def read(call: Callable[[Table], object]) -> Callable[[], object]:
        def run() -> object:
            assert table is not None
            return call(table)

        return run

    measured("open a table", requests, opened)
    measured("table.scan, 8 SSTables, first", requests, read(lambda one: one.to_arrow()))
    measured("table.scan, 8 SSTables, again", requests, read(lambda one: one.to_arrow()), 6)
    opened()
    measured("table.get, 8 SSTables, first", requests, read(lambda one: one.get(7600)))
    measured("table.get, 8 SSTables, again", requests, read(lambda one: one.get(7700)), 4)
    measured("table.get of a row in an SSTable, again", requests, read(lambda one: one.get(10)), 4)


def _streams(measured: Measure, options: Mapping[str, str], requests: Requests) -> None:
    """Checkpoints and stops of streams of several shards."""
    for shards in (1, 4, 16):
        names = [f"partition:t:{number}" for number in range(shards)]
        table = headgate.create_table(
            f"s3://{BUCKET}/stream-{shards}", SCHEMA, sharding=headgate.by_partition(), storage_options=options
        )
        driver = StreamDriver.open(table.home, "s", "q", names)
        ids = table.shard_ids()
        take = partial(checkpoint_stream, driver, ids, _side_by_side, max_bytes=64 << 20, keep=2)
        for number in range(2):
            _batch(driver, names, number)
            take()
        _batch(driver, names, 2)
        measured(f"checkpoint of {shards} shards", requests, take)
        measured(f"checkpoint of {shards} shards, nothing new", requests, take)
        stop = partial(stop_stream, driver, ids, _side_by_side, max_bytes=64 << 20, keep=2)
        measured(f"clean stop of {shards} shards, no compaction", requests, stop, 20 if shards == 16 else None)


def _side_by_side(jobs: Sequence[FlushJob]) -> dict[str, Flushed]:
    """As Spark's tasks do."""
    made = parallel.each("flush", flush.make, jobs)
    done = parallel.each("flush", flush.commit, jobs, made)
    return {job.name: one for job, one in zip(jobs, done, strict=True)}


def _batch(driver: StreamDriver, names: Sequence[str], number: int) -> None:
    """One batch, its tasks side by side."""
    claims = driver.plan(names).claims

    def task(name: str) -> ShardPart:
        attempt = uuid.uuid4().hex
        with ShardWriter.attach(claims[name], WAL_ONLY) as writer:
            put = writer.put(_rows(number * 100, 100), Tags(attempt, ()))
        return ShardPart(claims[name].shard.id, attempt, tuple(put.positions), put.rows, put.nbytes)

    parts = dict(zip(claims, parallel.each("task", task, claims), strict=True))
    source = SourceRange("t", 0, number, number + 1)
    driver.commit(Batch(query_id="q", batch_id=number, sources=(source,), shards=parts, mode="memtable"))


def _rows(first: int, count: int) -> pa.RecordBatch:
    ids = np.arange(first, first + count)
    return pa.record_batch([pa.array(ids), pa.array([f"waits at gate {one}" for one in ids])], schema=SCHEMA)


@contextmanager
def _versitygw() -> Iterator[tuple[dict[str, str], Requests]]:
    """A bucket behind a slow proxy: the options to reach it."""
    from tests.support.servers import s3_server

    with (
        tempfile.TemporaryDirectory() as folder,
        s3_server("versitygw", Path(folder), SECRETS) as server,
        SlowProxy(server.port) as proxy,
    ):
        (Path(folder) / "data" / BUCKET).mkdir()
        options = {
            "aws_access_key_id": SECRETS[0],
            "aws_secret_access_key": SECRETS[1],
            "aws_endpoint": proxy.endpoint,
            "aws_region": "us-east-1",
            "allow_http": "true",
        }
        proxy.requests.delay = 0.0
        yield options, proxy.requests


def _show(requests: Sequence[Request]) -> None:
    first = requests[0].begin if requests else 0.0
    for one in requests:
        click.echo(f"{(one.begin - first) * 1000:8.0f} ms  {one.what}", err=True)


if __name__ == "__main__":
    main()
