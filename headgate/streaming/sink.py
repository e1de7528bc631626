"""ShardSink: what `writeStream.foreachBatch` calls, once per micro-batch, exactly once in effect."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import structlog

from headgate.checkpoints.decisions import BatchSources, Refuse, Skip, Write, decide_batch
from headgate.checkpoints.log_state import Head
from headgate.checkpoints.records import Batch, BatchRecord
from headgate.checkpoints.spark_checkpoint import SparkCheckpoint
from headgate.connectors.kafka.options import ConsumerConfig
from headgate.errors import HeadgateError, InvalidInput
from headgate.shards.appender import Pause, no_pause
from headgate.shards.config import WriterConfig
from headgate.shards.entry import Compression
from headgate.shards.sharding import ByPartition
from headgate.streaming import frame_checks, topic_offsets
from headgate.streaming.batch_job import BatchJob, Written
from headgate.streaming.decode import Decoder
from headgate.streaming.driver import StreamDriver
from headgate.streaming.flush import flush
from headgate.streaming.kafka_source import KafkaSource
from headgate.streaming.routing import Ranges, check_routing, shards_of, shards_of_made_rows
from headgate.streaming.rows import RowMaker
from headgate.streaming.spark_query import QueryFacts, query_facts
from headgate.streaming.task import WritePlan
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
        self._run: str | None = None
        self._scattered = False
        self._lock = threading.Lock()
        self.last: BatchRecord | None = None
        """The record of the last batch, for metrics."""
        self.task_operations: Mapping[str, int] = {}
        """What the tasks of the last batch asked of the store, by verb."""
        self.error: HeadgateError | None = None
        """What stopped the query, as it was raised: Spark wraps it into an error of its own."""

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
                self.error = error
                error.located(batch=batch_id)
                self._driver = None  # The next start, if there is one, opens the stream anew.
                raise

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        del state["_lock"]
        return {**state, "_driver": None, "_run": None, "last": None, "error": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()

    # -- one batch -----------------------------------------------------------------

    def _write(self, frame: DataFrame, batch_id: int) -> None:
        self._pause("batch")
        facts = query_facts(frame)
        self._check(frame, facts)
        checkpoint = self._checkpoint(facts)
        sources = checkpoint.sources(batch_id)
        query_id = facts.query_id or checkpoint.query_id()
        decide = partial(self._decided, facts, query_id, batch_id, sources)
        if self._driver is None or self._run != (facts.run_id or query_id):
            self._open(facts, query_id, sources, decide)
        driver = self._driver
        assert driver is not None
        decision = decide(driver.head)
        if isinstance(decision, Skip):
            self.last = decision.record
            _log.info("batch was committed before", batch=batch_id, sequence=decision.record.sequence)
            return
        plan, written = self._append(frame, driver, decision, facts)
        shards, dead = written.parts(plan)
        self.task_operations = written.operations
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
            self._flush(frame, driver)

    def _decided(
        self, facts: QueryFacts, query_id: str, batch_id: int, sources: BatchSources, head: Head
    ) -> Skip | Write:
        """What to do with the batch where the stream stands so. Raises InvalidInput for one that does not continue."""
        decision = decide_batch(head, query_id, batch_id, sources, partial(self._earliest, facts))
        if isinstance(decision, Refuse):
            raise decision.error
        if isinstance(decision, Write):
            now = [(part.topic, part.partition) for part in decision.ranges]
            check_routing(self.table.sharding, bool(self.table.primary_key), head.ends.keys(), now)
        return decision

    def _open(self, facts: QueryFacts, query_id: str, sources: BatchSources, decide: Callable[[Head], object]) -> None:
        """Every start of the query takes the stream over: another driver may have run it since the last one."""
        name = self.options.stream or facts.name or DEFAULT_STREAM
        sharding = self.table.sharding
        if isinstance(sharding, ByPartition):
            names = {sharding.shard_name(topic, partition) for topic, partition in sources.partitions()}
        else:
            names = set(sharding.known_names())
        self._driver = StreamDriver.open(self.table.home, name, query_id, names, accept=decide, pause=self._pause)
        self._run = facts.run_id or query_id

    def _append(
        self, frame: DataFrame, driver: StreamDriver, decision: Write, facts: QueryFacts
    ) -> tuple[WritePlan, Written]:
        sources = self._shards(decision, facts)
        plan = self._plan(driver, sources, decision.ranges)
        if not sources:
            return plan, Written()
        self._pause("tasks")
        job = BatchJob(frame, plan, facts.cores)
        try:
            shuffled = self._scattered or self._shares_shards
            written = job.run(shuffled=shuffled)
            if written.out_of_place is not None and not shuffled:
                # Spark cut a topic partition in two, or the frame was shuffled: meet again, now and from now on.
                self._scattered = True
                written = job.run(shuffled=True)
        except HeadgateError:
            raise
        except Exception as error:
            self._explain(facts, decision.ranges, error)
            raise
        return plan, written

    def _flush(self, frame: DataFrame, driver: StreamDriver) -> None:
        """The batch is committed: what fails here costs nothing but memory of readers, and is tried again."""
        try:
            while jobs := driver.flush_jobs(self.options.max_memtable_size):
                driver.flushed(flush(frame.sparkSession, jobs))
        except Exception as error:
            _log.warning(
                "a flush failed; it is tried again after the next batch", stream=driver.stream, error=str(error)
            )

    # -- what a batch is made of -----------------------------------------------------

    @property
    def _shares_shards(self) -> bool:
        """Spark may give partitions that share a shard to different tasks; our own reading never does."""
        sharding = self.table.sharding
        return self._source is None and isinstance(sharding, ByPartition) and sharding.max_shards is not None

    def _shards(self, decision: Write, facts: QueryFacts) -> dict[str, Ranges]:
        sharding = self.table.sharding
        if decision.opaque and isinstance(sharding, ByPartition):
            raise InvalidInput(
                "by_partition needs Kafka partitions, and this query has another source.",
                advice="shard the table by bucket() or single()",
            )
        if facts.bare_kafka:
            return shards_of(sharding, decision.ranges)
        return shards_of_made_rows(sharding, decision.ranges)

    def _plan(self, driver: StreamDriver, sources: Mapping[str, Ranges], ranges: Ranges) -> WritePlan:
        planned = driver.plan(sources)
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

    def _check(self, frame: DataFrame, facts: QueryFacts) -> None:
        frame_checks.check_query(facts)
        if self._source is not None:
            assert self._decode is not None
            frame_checks.check_direct(facts, self._source)
            frame_checks.check_decoder(self._decode, self.table)
        elif self._decode is not None:
            frame_checks.check_decoded(frame.columns, self._decode, self.table)
        else:
            frame_checks.check_typed(frame.columns, self.options.sequence_by, self.table)

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
        return topic_offsets.earliest(self._consumer(facts), topic, partition)

    def _explain(self, facts: QueryFacts, ranges: Ranges, cause: Exception) -> None:
        """A job failed. Where Kafka no longer has what the batch should read, that is why. Raises DataLoss."""
        try:
            consumer = self._consumer(facts)
        except InvalidInput:
            # Spark's client may understand options that ours does not.
            return
        lost = topic_offsets.loss(consumer, ranges) if consumer is not None else None
        if lost is not None:
            raise lost from cause
