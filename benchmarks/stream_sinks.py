"""The sinks that `benchmarks.stream` compares: one function each, from a bench to a query that can be started.

Each counts what it stored, so that a run that lost rows, or asked the store for more than it may, is no figure.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import headgate
from headgate.shards.sharding import Sharding
from headgate.steps import watching
from headgate.streaming.kafka.source import KafkaSource
from headgate.streaming.sink import ShardSink
from headgate.table.table import Table

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("customer", pa.string()),
        pa.field("amount", pa.float64()),
        pa.field("note", pa.string()),
    ]
)
DDL = "id BIGINT, customer STRING, amount DOUBLE, note STRING"

MEMTABLE_BYTES = 16 << 20
"""Small, so that flushes fall into a run."""


@dataclass(frozen=True)
class Bench:
    """What every sink is given."""

    spark: SparkSession
    servers: str
    topic: str
    folder: Path
    """Empty, and emptied after the run."""
    batch_rows: int

    def frame(self) -> DataFrame:
        """The bare source."""
        return headgate.kafka.read(self.spark, self.servers, self.topic, max_offsets_per_trigger=self.batch_rows)

    def typed(self) -> DataFrame:
        """Rows by Spark's own parser."""
        parsed = f.from_json(f.col("value").cast("string"), DDL).alias("row")
        return self.frame().select(parsed).select("row.*")


@dataclass
class Batch:
    """What one batch asked of the store, beside the entries that it lists."""

    operations: Counter[str]
    entries: int
    """Of rows and of dead letters."""
    opened: bool
    """It took the stream over, which costs more."""

    @property
    def holds(self) -> bool:
        """One PUT per entry, one for the commit record, nothing else."""
        return self.operations == Counter(put=self.entries + 1)


@dataclass
class Prepared:
    """A query that is ready to start, and how to see afterwards what it did."""

    writer: Any
    stored: Callable[[], int] | None = None
    """Rows and dead letters that are there; None where nothing is kept."""
    batches: list[Batch] = field(default_factory=list)
    """By the store's own count, where the sink has one."""
    files: Callable[[], int] | None = None
    """Files that were stored, where the sink does not count: each took a PUT at least."""
    phases: Callable[[], dict[str, float]] | None = None
    """Where the sink says it: mean milliseconds of a batch, by phase."""
    end: Callable[[], object] = lambda: None
    """Called after the time was taken, before rows are counted."""


Sink = Callable[[Bench], Prepared]


def noop(bench: Bench) -> Prepared:
    """Kafka's bytes into nothing: what reading alone costs."""
    return Prepared(bench.frame().writeStream.format("noop"))


def from_json_noop(bench: Bench) -> Prepared:
    """Rows by Spark's own parser, into nothing."""
    return Prepared(bench.typed().writeStream.format("noop"))


def shards(bench: Bench, sharding: Sharding, *, direct: bool = True, memtable: bool = False, **more: Any) -> Prepared:
    """headgate, decoding in its tasks; `more` are options of its sink."""
    table = headgate.create_table(str(bench.folder / "table"), SCHEMA, sharding=sharding)
    source = headgate.kafka.source(bench.servers, bench.topic, max_offsets_per_trigger=bench.batch_rows)
    options: dict[str, Any] = {"enable_memtable": memtable, "max_memtable_size": MEMTABLE_BYTES, **more}
    frame = source.read(bench.spark) if direct else bench.frame()
    counted = _Counted(table, source if direct else None, options)
    return Prepared(
        frame.writeStream.foreachBatch(counted),
        lambda: counted.rows,
        counted.batches,
        phases=counted.phases,
        end=counted.end,
    )


class _Counted:
    """A sink, and what each of its batches cost. A fold of the log, every 32 records and beside the batches, is none
    of a batch's requests: it is waited for before one begins. With MemTables, flushes go on beside them and count.
    """

    def __init__(self, table: Table, source: KafkaSource | None, options: dict[str, Any]) -> None:
        decode = headgate.decode.json(SCHEMA)
        self._sink = ShardSink(table, decode=decode, source=source, **options)
        self._store = table.home.store
        self._memtable = options["enable_memtable"]
        self._until_commit = Counter[str]()
        self.batches: list[Batch] = []
        self.rows = 0

    def _at(self, step: str) -> None:
        if step == "committed":
            self._until_commit = Counter(self._store.operations())

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        if not self._memtable:
            self._sink.wait_for_maintenance()
        self._store.reset_operations()
        before = self._task_operations()
        with watching(self._at):
            self._sink(frame, batch_id)
        record = self._sink.last
        assert record is not None
        logs = [part for _, part in record.parts()]
        own = Counter(self._store.operations()) if self._memtable else self._until_commit
        spent = own + (self._task_operations() - before)
        self.batches.append(Batch(spent, sum(len(part.positions) for part in logs), opened=not self.batches))
        self.rows += sum(part.rows for part in logs)

    def _task_operations(self) -> Counter[str]:
        samples = self._sink.reporting.metrics.samples()
        counted = [one for one in samples if one.metric.name == "headgate_store_operations_total"]
        return Counter({one.labels[0]: int(one.value) for one in counted if one.labels[1] == "tasks"})

    def end(self) -> None:
        """End its console, if it has one."""
        self._sink.reporting.close()

    def phases(self) -> dict[str, float]:
        """As the sink's own metrics have them. `decode` and `append` add up what tasks took side by side."""
        found: dict[str, float] = {}
        for sample in self._sink.reporting.metrics.samples():
            if sample.metric.name == "headgate_batch_seconds" and isinstance(sample.value, tuple):
                counts, seconds = sample.value
                found[sample.labels[0]] = 1000 * seconds / counts[-1][1]
        return found


def delta(bench: Bench) -> Prepared:
    """Delta append, with the options that make a repeated batch count once."""
    path, app = bench.folder / "delta", uuid.uuid4().hex

    def write(frame: DataFrame, batch_id: int) -> None:
        options = {"txnAppId": app, "txnVersion": str(batch_id)}
        frame.write.format("delta").mode("append").options(**options).save(str(path))

    def stored() -> int:
        return bench.spark.read.format("delta").load(str(path)).count()

    return Prepared(bench.typed().writeStream.foreachBatch(write), stored, files=partial(_files, path))


def lance_fragments(bench: Bench) -> Prepared:
    """Lance's own way: tasks write fragments, the driver commits them as one version per batch."""
    import lance

    path = bench.folder / "lance"
    lance.write_dataset(SCHEMA.empty_table(), str(path))

    def write(frame: DataFrame, batch_id: int) -> None:
        made = frame.select("value").mapInArrow(partial(_fragments, str(path)), "fragment string").collect()
        parts = [lance.FragmentMetadata.from_json(row[0]) for row in made]
        version = lance.dataset(str(path)).version
        lance.LanceDataset.commit(str(path), lance.LanceOperation.Append(parts), read_version=version)

    def stored() -> int:
        return int(lance.dataset(str(path)).count_rows())

    return Prepared(bench.frame().writeStream.foreachBatch(write), stored, files=partial(_files, path))


def _fragments(uri: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import lance

    decode = headgate.decode.json(SCHEMA)
    rows = [decode.decode(batch.column("value")).rows for batch in batches]
    written = []
    if rows:
        reader = pa.RecordBatchReader.from_batches(SCHEMA, rows)
        written = [json.dumps(part.to_json()) for part in lance.fragment.write_fragments(reader, uri, schema=SCHEMA)]
    yield pa.record_batch({"fragment": pa.array(written, pa.string())})


def _files(folder: Path) -> int:
    """Without the checksums that Hadoop puts beside files on local disk only."""
    return sum(path.is_file() and path.suffix != ".crc" for path in folder.rglob("*"))


RAW, PARSED = "raw → noop", "from_json → noop"
DIRECT, ARROW = "headgate WAL-only, direct", "headgate WAL-only, mapInArrow"
BUCKET, MEMTABLE = "headgate WAL-only, bucket(4)", "headgate MemTable, direct"
DELTA, LANCE = "Delta append", "Lance fragments + commit"

SINKS: dict[str, Sink] = {
    RAW: noop,
    PARSED: from_json_noop,
    DIRECT: partial(shards, sharding=headgate.by_partition()),
    ARROW: partial(shards, sharding=headgate.by_partition(), direct=False),
    BUCKET: partial(shards, sharding=headgate.bucket("id", 4)),
    MEMTABLE: partial(shards, sharding=headgate.by_partition(), memtable=True),
    DELTA: delta,
    LANCE: lance_fragments,
}

GROWTH = (1, 4, 16, 64)
"""Shards of one table, over a topic of as many partitions as the last of these."""


def growing(kind: str, number: int) -> Sink:
    """headgate over so many shards."""
    sharding = headgate.bucket("id", number) if kind == "bucket" else headgate.by_partition(number)
    return partial(shards, sharding=sharding)
