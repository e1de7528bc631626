"""ShardSink: what `writeStream.foreachBatch` calls, once per micro-batch, exactly once in effect."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import structlog

from headgate.checkpoints.decisions import BatchSources, Refuse, Skip, Write, decide_batch
from headgate.checkpoints.records import Batch, BatchRecord, ShardPart
from headgate.checkpoints.spark_checkpoint import SparkCheckpoint
from headgate.connectors.kafka.options import ConsumerConfig
from headgate.connectors.kafka.reader import offsets
from headgate.errors import DataLoss, HeadgateError, InvalidInput, Poisoned, from_json
from headgate.shards.appender import Pause, no_pause
from headgate.shards.config import WriterConfig
from headgate.shards.entry import Compression, SourceRange
from headgate.shards.sharding import Bucket, ByPartition, Single
from headgate.streaming import task
from headgate.streaming.dead_letters import dead_letter_name
from headgate.streaming.decode import Decoder
from headgate.streaming.driver import Planned, StreamDriver
from headgate.streaming.flush import flush
from headgate.streaming.kafka_source import KafkaSource
from headgate.streaming.routing import balanced, check_routing, shards_of, size, task_count
from headgate.streaming.rows import ORDER, RowMaker
from headgate.streaming.spark_query import KAFKA_COLUMNS, QueryFacts, query_facts
from headgate.streaming.task import PAYLOAD, RESULT, WritePlan
from headgate.table import Table, open_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_log = structlog.get_logger("headgate.streaming")

DEFAULT_STREAM = "default"


@dataclass(frozen=True)
class SinkOptions:
    """How a stream writes. One value, merged once."""

    stream: str | None = None
    """Its name in the table; the query's name, or "default", where none is given."""
    enable_memtable: bool = True
    """Whether maintenance flushes the stream's shards to SSTables. The entries are the same either way."""
    on_bad_record: Literal["dead_letter", "fail"] = "dead_letter"
    sequence_by: str | None = None
    """For typed frames on tables with a key: the column that orders rows of one key."""
    checkpoint_location: str | None = None
    """Spark's checkpoint, where the session does not tell it (Spark Connect)."""
    storage_options: Mapping[str, str] | None = field(default=None, repr=False)
    compression: Compression | None = None
    max_memtable_size: int = 256 << 20
    """With enable_memtable: a shard is flushed to an SSTable when its unflushed entries pass this size."""
    max_entry_bytes: int = 256 << 20
    """A shard's rows of one batch become one entry up to this size."""

    def __post_init__(self) -> None:
        if self.on_bad_record not in ("dead_letter", "fail"):
            raise InvalidInput(f"on_bad_record is 'dead_letter' or 'fail', not {self.on_bad_record!r}.")
        if self.max_entry_bytes <= 0:
            raise InvalidInput(f"max_entry_bytes must be above zero, got {self.max_entry_bytes}.")


class ShardSink:
    """`frame.writeStream.foreachBatch(ShardSink(table, decode=…))`. Picklable; opens nothing before its first call.

    The first batch of a query takes the stream over: THIS FENCES AN EARLIER DRIVER of the same stream.
    """

    def __init__(
        self,
        table: Table | str,
        *,
        decode: Decoder | None = None,
        source: KafkaSource | None = None,
        pause: Pause = no_pause,
        **options: Any,
    ) -> None:
        """`table` is a Table or its URI. `decode` turns Kafka's values into rows; without it the frame's
        columns are the table's. `source` reads Kafka in the tasks themselves: pass its own frame, unchanged.
        The rest are the fields of SinkOptions.
        """
        try:
            self.options = SinkOptions(**options)
        except TypeError as error:
            raise InvalidInput(f"{error}; the options are {', '.join(SinkOptions.__dataclass_fields__)}.") from error
        if source is not None and decode is None:
            raise InvalidInput("Reading Kafka directly needs a decoder.", advice="pass decode=headgate.decode.json(…)")
        self._table = table
        self._decode = decode
        self._source = source
        self._pause = pause
        self._driver: StreamDriver | None = None
        self._query: str | None = None
        self._shuffle = False
        self._lock = threading.Lock()
        self.last: BatchRecord | None = None
        """The record of the last batch, for metrics."""

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Write one micro-batch.

        1. what the batch reads, from Spark's own offsets; not what its rows say.
        2. decide: skip what the log has; refuse what does not continue it.
        3. plan: every attempt of a shard starts at the same position.
        4. tasks append; the driver gets positions.
        5. one commit record makes all of it visible.

        Raises Fenced where a successor runs the stream, InvalidInput where the offsets do not continue
        the table's, DataLoss where Kafka no longer has an offset; nothing of the batch is visible then.
        """
        with self._lock:
            try:
                self._write(frame, batch_id)
            except HeadgateError as error:
                error.located(batch=batch_id)
                self._driver = None  # The next start, if there is one, opens the stream anew.
                raise

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        for name in ("_driver", "_query", "_lock", "last"):
            del state[name]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._driver, self._query, self.last, self._lock = None, None, None, threading.Lock()

    # -- one batch -----------------------------------------------------------------

    def _write(self, frame: DataFrame, batch_id: int) -> None:
        facts = query_facts(frame)
        self._check_frame(frame, facts)
        sources = self._checkpoint(facts).sources(batch_id)
        earliest = partial(self._earliest, facts)
        query_id = facts.query_id or self._checkpoint(facts).query_id()
        driver = self._opened(facts, query_id, sources)
        decision = decide_batch(driver.head, query_id, batch_id, sources, earliest)
        if isinstance(decision, Skip):
            self.last = decision.record
            _log.info("batch was committed before", batch=batch_id, sequence=decision.record.sequence)
            return
        if isinstance(decision, Refuse):
            raise decision.error
        shards, dead = self._append(frame, driver, decision, facts)
        batch = Batch(
            query_id=query_id,
            batch_id=batch_id,
            sources=decision.ranges,
            opaque=decision.opaque,
            shards=shards,
            dead_letters=dead,
            mode="memtable" if self.options.enable_memtable else "wal",
        )
        self.last = driver.commit(batch)
        _log.info(
            "batch committed",
            stream=driver.stream,
            batch=batch_id,
            sequence=self.last.sequence,
            rows=self.last.rows,
            bytes=self.last.nbytes,
            dead_letters=sum(part.rows for part in dead.values()),
        )
        if self.options.enable_memtable:
            while jobs := driver.flush_jobs(self.options.max_memtable_size):
                driver.flushed(flush(frame.sparkSession, jobs))

    def _append(
        self, frame: DataFrame, driver: StreamDriver, decision: Write, facts: QueryFacts
    ) -> tuple[dict[str, ShardPart], dict[str, ShardPart]]:
        table = self.table
        sources = self._shards(decision)
        if not sources:
            return {}, {}
        known = driver.head.ends.keys()
        check_routing(table.sharding, bool(table.primary_key), known, [(r.topic, r.partition) for r in decision.ranges])
        planned = driver.plan(sources)
        plan = self._plan(planned, sources, decision.ranges)
        self._pause("tasks")
        try:
            results = self._run(frame, plan, sources, facts)
            if _split_shard(results) is not None:
                # Spark cut a topic partition in two (minPartitions): meet again by a shuffle, now and from now on.
                self._shuffle = True
                results = self._run(frame, plan, sources, facts)
        except HeadgateError:
            raise
        except Exception as error:
            self._explain_loss(facts, decision.ranges, error)
            raise
        return _parts(results, planned)

    def _shards(self, decision: Write) -> dict[str, tuple[SourceRange, ...]]:
        sharding = self.table.sharding
        if decision.opaque and not isinstance(sharding, ByPartition):
            return dict.fromkeys(sharding.known_names(), ())
        if decision.opaque:
            raise InvalidInput(
                "by_partition needs Kafka partitions, and this query has another source.",
                advice="shard the table by bucket() or single()",
            )
        return shards_of(sharding, decision.ranges)

    def _plan(
        self, planned: Planned, sources: Mapping[str, tuple[SourceRange, ...]], ranges: tuple[SourceRange, ...]
    ) -> WritePlan:
        topics = {part.topic for part in ranges}
        maker = RowMaker(
            schema=self.table.home.schema,
            sharding=self.table.sharding,
            decode=self._decode,
            sequence_by=self.options.sequence_by,
            topic=next(iter(topics)) if len(topics) == 1 and self._decode is not None else None,
        )
        return WritePlan(
            maker=maker,
            claims=planned.claims,
            dead_letters=planned.dead_letters,
            sources=sources,
            writer=WriterConfig(enable_memtable=False, compression=self.options.compression),
            max_entry_bytes=self.options.max_entry_bytes,
            columns=(
                "value",
                "partition",
                "offset",
                *(("key",) if maker.schema.primary_key else ()),
                *(("topic",) if maker.topic is None else ()),
            ),
            fail_on_bad_record=self.options.on_bad_record == "fail",
            consumer=self._source.consumer if self._source is not None else None,
        )

    def _run(
        self, frame: DataFrame, plan: WritePlan, sources: Mapping[str, tuple[SourceRange, ...]], facts: QueryFacts
    ) -> list[dict[str, Any]]:
        """The Spark job of the batch: one stage where rows stay with their partition, two where they are shuffled."""
        sharding = self.table.sharding
        rows = size({part for parts in sources.values() for part in parts})
        frame, write, prepare = self._frame_and_tasks(frame, plan, sources, rows, facts)
        if isinstance(sharding, Bucket) or (isinstance(sharding, ByPartition) and self._needs_shuffle(sharding)):
            from pyspark.sql import functions as f

            tasks = task_count(rows or facts.cores * 10**6, facts.cores, len(plan.claims))
            numbers = {name: index % tasks for index, name in enumerate(sorted(plan.claims))}
            number = f.create_map(*[f.lit(item) for pair in numbers.items() for item in pair])[f.col("shard")]
            prepared = frame.mapInArrow(prepare, PAYLOAD).repartitionById(tasks, number)
            return _results(prepared.mapInArrow(partial(task.write_payloads, plan), RESULT))
        return _results(frame.mapInArrow(write, RESULT))

    def _needs_shuffle(self, sharding: ByPartition) -> bool:
        """Spark may give the partitions that share a shard to different tasks; our own reading never does."""
        return self._source is None and (sharding.max_shards is not None or self._shuffle)

    def _frame_and_tasks(
        self,
        frame: DataFrame,
        plan: WritePlan,
        sources: Mapping[str, tuple[SourceRange, ...]],
        rows: int,
        facts: QueryFacts,
    ) -> tuple[DataFrame, Callable[[Any], Any], Callable[[Any], Any]]:
        sharding = self.table.sharding
        groups: Mapping[str, tuple[SourceRange, ...]] = sources
        if isinstance(sharding, Bucket):
            groups = shards_of(ByPartition(), next(iter(sources.values())))
        tasks = 1 if isinstance(sharding, Single) else task_count(rows, facts.cores, len(groups))
        if self._source is not None:
            shares = balanced(groups, tasks)
            numbers = frame.sparkSession.range(0, len(shares), 1, len(shares))
            return numbers, partial(task.write_ranges, plan, shares), partial(task.prepare_ranges, plan, shares)
        if self._decode is not None:
            frame = frame.select(*plan.columns)
            return frame.coalesce(tasks), partial(task.write_kafka, plan), partial(task.prepare_kafka, plan)
        if isinstance(sharding, Single):
            frame = frame.coalesce(1)
        return frame, partial(task.write_typed, plan), partial(task.prepare_typed, plan)

    # -- what a batch needs to know ------------------------------------------------

    @property
    def table(self) -> Table:
        """The table, opened on first use."""
        if isinstance(self._table, str):
            self._table = open_table(self._table, dict(self.options.storage_options or {}) or None)
        return self._table

    @property
    def stream(self) -> str | None:
        """The stream's name, once a batch has arrived."""
        return self._driver.stream if self._driver is not None else self.options.stream

    def _opened(self, facts: QueryFacts, query_id: str, sources: BatchSources) -> StreamDriver:
        if self._driver is None or self._query != query_id:
            name = self.options.stream or facts.name or DEFAULT_STREAM
            sharding = self.table.sharding
            if isinstance(sharding, ByPartition):
                names = {sharding.shard_name(topic, partition) for topic, partition in sources.partitions()}
            else:
                names = set(sharding.known_names())
            self._driver = StreamDriver.open(self.table.home, name, query_id, names, pause=self._pause)
            self._query = query_id
        return self._driver

    def _checkpoint(self, facts: QueryFacts) -> SparkCheckpoint:
        location = self.options.checkpoint_location or facts.checkpoint
        if location is None:
            raise InvalidInput(
                "The query's checkpoint location is not known here.",
                advice="pass checkpoint_location= to ShardSink (Spark Connect does not tell it)",
            )
        return SparkCheckpoint(location, self.options.storage_options)

    def _consumer(self, facts: QueryFacts) -> ConsumerConfig | None:
        if self._source is not None:
            return self._source.consumer
        if facts.kafka_options is not None:
            return ConsumerConfig.from_spark(facts.kafka_options)
        return None

    def _earliest(self, facts: QueryFacts, topic: str, partition: int) -> int:
        consumer = self._consumer(facts)
        if consumer is None:
            raise InvalidInput(
                f"Partition {partition} of {topic!r} is new, and where it starts is not known here.",
                advice="read the topic with headgate.kafka.source(…) and pass source= to ShardSink",
            )
        return offsets(consumer, topic)[partition][0]

    def _explain_loss(self, facts: QueryFacts, ranges: tuple[SourceRange, ...], cause: Exception) -> None:
        """A job failed. Where Kafka no longer has what the batch should read, that is why. Raises DataLoss."""
        consumer = self._consumer(facts)
        if consumer is None:
            return
        for part in ranges:
            if part.until > part.start:
                try:
                    first, end = offsets(consumer, part.topic)[part.partition]
                except (HeadgateError, KeyError):
                    return
                if first > part.start or end < part.until:
                    until = min(first, part.until) if first > part.start else part.until
                    raise DataLoss(
                        "Kafka no longer has offsets that this batch should read.",
                        topic=part.topic,
                        partition=part.partition,
                        lost=f"[{part.start if first > part.start else max(end, part.start)}, {until})",
                        advice="restore the topic, or rewind the stream deliberately; nothing of the batch is visible",
                    ) from cause

    def _check_frame(self, frame: DataFrame, facts: QueryFacts) -> None:
        columns = frame.columns
        if self._source is not None:
            if not facts.bare_kafka:
                raise InvalidInput(
                    "Reading Kafka directly takes the bare source, and this frame has something on top of it.",
                    advice="pass source.read(spark) itself to writeStream, or leave out source=",
                )
            return
        if self._decode is not None:
            missing = [name for name in ("value", "partition", "offset", "topic", "key") if name not in columns]
            if missing:
                raise InvalidInput(
                    f"A decoder takes the frame of Spark's Kafka source, and this one lacks {missing}.",
                    advice=f"keep the columns {', '.join(KAFKA_COLUMNS)}, or leave out decode= for typed rows",
                )
            return
        table = self.table
        hidden = {*ORDER, self.options.sequence_by}
        unknown = [name for name in columns if name not in table.schema.names and name not in hidden]
        if unknown:
            hint = "pass decode=headgate.decode.json(…) for Kafka's own frame" if "value" in unknown else None
            raise InvalidInput(f"The table has no column {unknown[0]!r}; it has {table.schema.names}.", advice=hint)
        ordered = all(name in columns for name in ORDER) or (self.options.sequence_by in columns)
        if table.primary_key and not ordered:
            raise InvalidInput(
                "On a table with a key the order of rows with one key must be known.",
                advice=f"keep the columns {', '.join(ORDER)} in the frame, or name sequence_by=",
            )


def _results(frame: DataFrame) -> list[dict[str, Any]]:
    """What the tasks say they wrote. Raises the error that one of them met."""
    results = [json.loads(row[0]) for row in frame.collect()]
    for result in results:
        if "error" in result:
            raise from_json(result["error"])
    return results


def _split_shard(results: list[dict[str, Any]]) -> str | None:
    """A shard that two tasks wrote to, None where each has one: only one attempt of a shard may count."""
    seen: set[tuple[str, bool]] = set()
    for result in results:
        place = (result["shard"], result["dead"])
        if place in seen:
            return str(result["shard"])
        seen.add(place)
    return None


def _parts(results: list[dict[str, Any]], planned: Planned) -> tuple[dict[str, ShardPart], dict[str, ShardPart]]:
    """What a commit record lists: shards, and dead-letter logs."""
    if (name := _split_shard(results)) is not None:
        raise Poisoned(f"Two tasks of one batch wrote to shard {name!r}, after a shuffle as well.", shard=name)
    shards: dict[str, ShardPart] = {}
    dead: dict[str, ShardPart] = {}
    for result in results:
        name = result["shard"]
        claim = (planned.dead_letters if result["dead"] else planned.claims)[name]
        part = ShardPart(
            claim.shard.id, result["attempt"], tuple(result["positions"]), result["rows"], result["nbytes"]
        )
        if result["dead"]:
            dead[dead_letter_name(name)] = part
        else:
            shards[name] = part
    return shards, dead
