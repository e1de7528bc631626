"""A driver in a process of its own, which tests stop, kill and wake: `python -m tests.support.driver '{…}'`.

It tells what it does, one JSON line each: {"pid": …}, {"batch": …}, {"stands": step}, {"error": class, "text": …}.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any


def tell(**fact: Any) -> None:
    """One line, at once."""
    print(json.dumps(fact), flush=True)


class Stand:
    """Stands at a step of a batch, counted from this start, until the file `go` is there; without one, for ever."""

    def __init__(self, step: str | None, batch: int, go: str | None) -> None:
        self.step = step
        self.batch = batch
        self.go = go
        self.now = -1

    def __call__(self, step: str) -> None:
        if step == "batch":
            self.now += 1
        if step == self.step and self.now == self.batch:
            tell(stands=step)
            while self.go is None or not Path(self.go).exists():
                time.sleep(0.05)


def main(told: dict[str, Any]) -> None:
    """Run the stream until it ends or is ended."""
    import headgate
    from headgate.steps import watching
    from headgate.streaming.spark.s3a import reaches
    from headgate.streaming.spark.session import local_session
    from tests.support.runs import SCHEMA
    from tests.support.standing import standing_store

    spark = local_session(2, log_file=Path(told["log"]), settings=reaches(told["checkpoint"]))
    tell(pid=os.getpid())
    table = headgate.open_table(told["table"])
    if "armed" in told:
        store = wal = standing_store(table.uri, Path(told["armed"]))
        if table.home.wal_store is not table.home.store:
            wal = standing_store(table.home.wal_store.uri, Path(told["armed"]))
        table = replace(table, home=replace(table.home, store=store, wal_store=wal))
    source = headgate.kafka.source(told["servers"], told["topic"], max_offsets_per_trigger=told.get("max_offsets", 500))
    stand = Stand(told.get("step"), told.get("batch", 0), told.get("go"))
    sink = headgate.ShardSink(
        table,
        source=source if told.get("path", "direct") == "direct" else None,
        stream="s",
        decode=headgate.decode.json(SCHEMA),
        enable_memtable=told.get("memtable", False),
        max_memtable_size=told.get("max_memtable_size", 16 << 10),
    )

    def batch(frame: Any, number: int) -> None:
        try:
            with watching(stand):
                sink(frame, number)
        except Exception as error:
            tell(error=type(error).__name__, text=str(error)[:2000])
            raise
        assert sink.last is not None
        tell(batch=number, sequence=sink.last.sequence, rows=sink.last.rows)

    writer = source.read(spark).writeStream.foreachBatch(batch).option("checkpointLocation", told["checkpoint"])
    query = writer.trigger(**told.get("trigger", {"availableNow": True})).start()
    query.awaitTermination()
    sink.wait_for_maintenance(60)
    if "search" in told:
        found = headgate.search_df(spark, table.uri, told["search"], k=1000).collect()
        tell(found=sorted(row["id"] for row in found))
        try:
            headgate.register(spark)
            read = spark.read.format("headgate").load(table.uri)
            tell(read=sorted(row["id"] for row in read.collect()))
        except headgate.errors.InvalidInput as error:
            tell(read=error.what)
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
