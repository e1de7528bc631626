"""Make the golden tables of this release's format: `python -m tests.golden.make`. Run it once per format, and keep what
it wrote for ever: every later release must read it.

Two small tables with all that a release writes, and what they must show. The rows follow from a model here, never from
a read of the table.
- *orders* has a key: WAL entries, SSTables, a base with a full-text index, deletes, dead letters, dead attempts, open,
  batch, rewind and schema records, a fold, a checkpoint, a direct writer.
- *logs* has none and writes WAL only: entries that expired, a rewind that lets rows come twice, a change of columns, a
  fold of both, a consumer's pin.
"""

from __future__ import annotations

import json
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

import headgate
from headgate.checkpoints.feed.feed import LogFeed
from headgate.checkpoints.jobs.flush import run_here
from headgate.checkpoints.log.commit_log import CommitLog
from headgate.checkpoints.log.records import BatchRecord, WriteMode
from headgate.checkpoints.offline.retention import BeforePosition, expire
from headgate.checkpoints.spark.rewind import rewind
from headgate.checkpoints.stream.driver import StreamDriver
from headgate.records import FORMAT, release
from headgate.shards.sharding import ByPartition
from headgate.shards.wal.entry import SourceRange
from headgate.streaming.write import task
from headgate.table.create import create_table
from headgate.table.table import Table
from tests.support.life import QUERY, SCHEMA, TOPIC, batch_of, lines_of, records, write_plan, written

HERE = Path(__file__).parent
STREAM = "s"
WORDS = ("red apple", "green pear", "blue plum", "red cherry")
PARTITIONS = (0, 1)
DIRECT = "partition:direct:0"
KEPT = "kept"
YEARS = 100 * 365 * 86400.0
"""So long holds the consumer's pin: the archive may be unpacked late."""


# -- the topic, a function of partition and offset -----------------------------------------


def key_at(partition: int, offset: int) -> int:
    """Fifteen keys a partition."""
    return partition * 1000 + offset % 15


def note_at(offset: int) -> str:
    return f"{WORDS[offset % 4]} {offset}"


def is_bad(offset: int) -> bool:
    return offset % 10 == 9


def is_delete(offset: int) -> bool:
    return offset % 13 == 12


def change_at(partition: int, offset: int, keyed: bool) -> tuple[int, str | None] | None:
    """What a record does: sets or deletes a key; None: it is a dead letter."""
    if is_bad(offset) or (is_delete(offset) and not keyed):
        return None
    return key_at(partition, offset), None if is_delete(offset) else note_at(offset)


def values_of(part: SourceRange) -> dict[str, list[bytes | None]]:
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    for offset in range(part.start, part.until):
        key = key_at(part.partition, offset)
        good = None if is_delete(offset) else json.dumps({"id": key, "note": note_at(offset)}).encode()
        keys.append(b"%d" % key)
        values.append(b"bad %d" % offset if is_bad(offset) else good)
    return {"key": keys, "value": values}


# -- a stream without Spark ------------------------------------------------------------------


def open_stream(table: Table, query: str = QUERY) -> StreamDriver:
    """Takes the stream over."""
    return StreamDriver.open(table.home, STREAM, query, [ByPartition().shard_name(TOPIC, p) for p in PARTITIONS])


def run(
    driver: StreamDriver, number: int, ranges: Iterable[SourceRange], mode: WriteMode, query: str = QUERY
) -> BatchRecord:
    """One batch, as the sink writes it."""
    ranges = tuple(ranges)
    plan = write_plan(driver, ranges, columns=("value", "partition", "offset", "key"))
    lines = [
        lines_of(task.write_kafka(plan, (records(part, **values_of(part)) for part in parts)))
        for parts in plan.sources.values()
    ]
    return driver.commit(replace(batch_of(plan, written(*lines), number, ranges, query), mode=mode))


def equal(start: int, until: int) -> list[SourceRange]:
    return [SourceRange(TOPIC, partition, start, until) for partition in PARTITIONS]


def changes(ranges: Iterable[SourceRange], keyed: bool) -> Iterator[tuple[int, str | None]]:
    for part in ranges:
        for offset in range(part.start, part.until):
            change = change_at(part.partition, offset, keyed)
            if change is not None:
                yield change


def dead(ranges: Iterable[SourceRange], keyed: bool) -> list[list[int]]:
    return [
        [part.partition, offset]
        for part in ranges
        for offset in range(part.start, part.until)
        if change_at(part.partition, offset, keyed) is None
    ]


# -- the two tables ---------------------------------------------------------------------------


def make_orders(path: Path) -> dict[str, Any]:
    """The table with a key, and what it must show."""
    sharding = headgate.by_partition(key_is_partitioned=True)
    table = create_table(str(path), SCHEMA, primary_key="id", sharding=sharding, full_text="note")
    done: list[SourceRange] = []
    model: dict[int, str] = {}

    def batch(driver: StreamDriver, number: int, ranges: list[SourceRange], query: str = QUERY) -> None:
        run(driver, number, ranges, "memtable", query)
        done.extend(ranges)
        apply(model, changes(ranges, keyed=True))

    driver = open_stream(table)
    batch(driver, 0, equal(0, 20))
    flush(driver)
    batch(driver, 1, equal(20, 30))
    flush(driver)
    table.compact()
    table.build_index("note")
    driver = open_stream(table)
    run_dead(driver, equal(30, 35))
    driver = open_stream(table)
    batch(driver, 2, equal(30, 40))
    driver.fold()
    flush(driver)
    changed = change_columns(table)
    batch(driver, 3, equal(40, 50))
    with table.writer(DIRECT) as writer:
        writer.put(rows([(9001, "direct fig"), (9002, "direct fig")]))
        writer.delete(pa.record_batch({"id": [9002]}, schema=pa.schema([SCHEMA.field("id")])))
        writer.flush_memtable()
        writer.put(rows([(9003, "direct date")]))
    apply(model, [(9001, "direct fig"), (9003, "direct date")])
    table.checkpoint(name=KEPT)
    kept = as_rows(model)
    sent = rewind(table.home, STREAM, {(TOPIC, 0): 40}, by="ann@host", reason="golden")
    assert sent.record is not None
    second = [SourceRange(TOPIC, 0, 40, 55), SourceRange(TOPIC, 1, 50, 55)]
    batch(open_stream(table, "second"), 0, second, "second")
    words = {"red", "pear", "direct"}
    return {
        "rows": as_rows(model),
        "search": {word: sorted(key for key, note in model.items() if word in note.split()) for word in sorted(words)},
        "checkpoints": {KEPT: kept},
        "dead_letters": sorted(dead(done, keyed=True)),
        "ends": {"0": 55, "1": 55},
        "rewind": {"record": sent.record.sequence, "by": "ann@host", "reason": "golden"},
        "changed": changed,
    }


def make_logs(path: Path) -> dict[str, Any]:
    """The table without one."""
    table = create_table(str(path), SCHEMA, sharding=headgate.by_partition())
    driver = open_stream(table)
    first, later = equal(0, 10), equal(10, 25)
    run(driver, 0, first, "wal")
    run(driver, 1, later, "wal")
    for claim in driver.claims.values():
        before = BeforePosition(driver.head.listed[claim.shard.id])
        assert expire(table.home, table.shard_ids(), before, shard=claim.shard.id)
    LogFeed(table.home, table.shard_ids, "mirror", hold=YEARS).start("earliest")
    sent = rewind(table.home, STREAM, {(TOPIC, 1): 15}, by="ann@host", reason="twice")
    assert sent.record is not None
    again = [SourceRange(TOPIC, 0, 25, 30), SourceRange(TOPIC, 1, 15, 30)]
    changed = change_columns(table)
    driver = open_stream(table, "second")
    run(driver, 0, again, "wal", "second")
    driver.fold()
    left = [*changes([*later, *again], keyed=False)]
    return {
        "rows": sorted([key, str(note)] for key, note in left),
        "search": {},
        "checkpoints": {},
        "dead_letters": sorted(dead([*first, *later, *again], keyed=False)),
        "ends": {"0": 30, "1": 30},
        "rewind": {"record": sent.record.sequence, "by": "ann@host", "reason": "twice"},
        "changed": changed,
    }


def change_columns(table: Table) -> int:
    """A column comes and goes. The sequence of the last schema record."""
    table.add_column(pa.field("extra", pa.int64())).drop_column("extra")
    return CommitLog(table.home.records, STREAM, table.uri).read().head.changed


def flush(driver: StreamDriver) -> None:
    driver.flushed(run_here(driver.flush_jobs(1 << 28, list(driver.claims))))


def run_dead(driver: StreamDriver, ranges: list[SourceRange]) -> None:
    """What a task leaves whose driver never commits."""
    plan = write_plan(driver, ranges, columns=("value", "partition", "offset", "key"))
    lines_of(task.write_kafka(plan, (records(part, **values_of(part)) for part in ranges)))


def rows(pairs: list[tuple[int, str]]) -> pa.RecordBatch:
    return pa.record_batch({"id": [key for key, _ in pairs], "note": [note for _, note in pairs]}, schema=SCHEMA)


def apply(model: dict[int, str], made: Iterable[tuple[int, str | None]]) -> None:
    for key, note in made:
        if note is None:
            model.pop(key, None)
        else:
            model[key] = note


def as_rows(model: dict[int, str]) -> list[list[Any]]:
    return sorted([key, note] for key, note in model.items())


def main() -> None:
    """Write the archive and what it must show. Refuses to replace one."""
    name = f"tables-format-{FORMAT}"
    archive, told = HERE / f"{name}.tar.gz", HERE / f"{name}.json"
    if archive.exists():
        raise SystemExit(
            f"{archive.name} is there: a golden table is never made again. Remove it if it was never kept."
        )
    with tempfile.TemporaryDirectory(prefix="golden-") as folder:
        root = Path(folder)
        expected = {"orders": make_orders(root / "orders"), "logs": make_logs(root / "logs")}
        for path in root.rglob("*"):
            if path.is_file() and folder.encode() in path.read_bytes():
                raise SystemExit(f"{path.relative_to(root)} holds the path of its own table: it cannot be moved.")
        with tarfile.open(archive, "w:gz", compresslevel=9) as tar:
            for table in expected:
                tar.add(root / table, table, filter=_anonymous)
    told.write_text(json.dumps({"release": release(), "tables": expected}, indent=1) + "\n")
    print(f"{archive.name}: {archive.stat().st_size:,} bytes; {told.name}: {told.stat().st_size:,} bytes")


def _anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    return info


if __name__ == "__main__":
    main()
