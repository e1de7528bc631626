"""Requests of a writer: one PUT per append, nothing else. Counted by the store itself; exits 1 where it is not so."""

from __future__ import annotations

import sys
import tempfile
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import click
import pyarrow as pa

from benchmarks.objects import s3_store
from benchmarks.report import output_option, show
from benchmarks.rows import SCHEMA, event_rows
from headgate.connectors.objects import ObjectStore, open_store
from headgate.connectors.objects.memory import MemoryStore
from headgate.shards.config import WriterConfig
from headgate.shards.rows.schema import RowSchema
from headgate.shards.shard import TableHome
from headgate.shards.writer import ShardWriter

WAYS = 8


@click.command()
@click.option("--puts", default=200, show_default=True)
@click.option("--kilobytes", default=20, show_default=True, help="Of one put.")
@click.option("--root", type=click.Path(file_okay=False), default=None, help="Directory for the local store.")
@click.option("--s3/--no-s3", default=True, show_default=True, help="Count on moto's S3 server too.")
@output_option
def main(puts: int, kilobytes: int, root: str | None, s3: bool, output: str) -> None:
    """Requests per appended entry, for single puts, group commit and a pipeline with a flush."""
    batches = [event_rows(kilobytes * 1000, seed) for seed in range(puts)]
    rows: list[dict[str, Any]] = []
    MemoryStore.drop("requests")
    with tempfile.TemporaryDirectory(dir=root) as folder, s3_store(s3) as bucket:
        stores = {"local": open_store(folder), "memory": open_store("memory://requests")}
        if bucket is not None:
            stores["s3 (moto)"] = bucket
        for store_name, store in stores.items():
            for way, (durable, put_all) in WAYS_TO_PUT.items():
                rows.append({"store": store_name, "puts by": way, **counted(store, durable, put_all, batches)})
    show("Requests between the first put and the last acknowledgement", rows, output)
    if not all(row["holds"] for row in rows):
        click.echo("An append took more than its one PUT.", err=True)
        sys.exit(1)


def one_by_one(writer: ShardWriter, batches: list[pa.RecordBatch]) -> None:
    """Each put waits for its own entry."""
    for batch in batches:
        writer.put(batch)


def at_once(writer: ShardWriter, batches: list[pa.RecordBatch]) -> None:
    """Putters that share entries."""
    with ThreadPoolExecutor(WAYS) as pool:
        list(pool.map(writer.put, batches))


def queued(writer: ShardWriter, batches: list[pa.RecordBatch]) -> None:
    """Nobody waits before the end."""
    one_by_one(writer, batches)
    writer.flush()


WAYS_TO_PUT: dict[str, tuple[bool, Callable[[ShardWriter, list[pa.RecordBatch]], None]]] = {
    "one putter, durable": (True, one_by_one),
    f"{WAYS} putters, durable": (True, at_once),
    "pipeline, then flush": (False, queued),
}


def counted(
    store: ObjectStore,
    durable: bool,
    put_all: Callable[[ShardWriter, list[pa.RecordBatch]], None],
    batches: list[pa.RecordBatch],
) -> dict[str, Any]:
    """What the store was asked for while the puts were made; opening and closing are left out."""
    home = TableHome.in_store(store, RowSchema.of(SCHEMA))
    with ShardWriter.open(home, uuid.uuid4(), WriterConfig(enable_memtable=False, durable_write=durable)) as writer:
        store.reset_operations()
        put_all(writer, batches)
        asked = dict(store.operations())
        done = writer.stats()
    put = asked.pop("put", 0)
    others = sum(asked.values())
    stored = done.pipeline.rows == sum(batch.num_rows for batch in batches)
    return {
        "puts": len(batches),
        "entries": done.pipeline.entries,
        "PUT": put,
        "other requests": others,
        "requests per entry": (put + others) / done.pipeline.entries,
        "holds": stored and put == done.pipeline.entries and others == 0,
    }


if __name__ == "__main__":
    main()
