"""ShardSink: what `writeStream.foreachBatch` calls, once per micro-batch, exactly once in effect."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog
from structlog.contextvars import bound_contextvars

from headgate.checkpoints.gc.collect import Collection
from headgate.checkpoints.jobs.columns import gained, stream_schema
from headgate.checkpoints.jobs.flush import Flushed, FlushJob, run_here
from headgate.checkpoints.log.decisions import BatchSources, Skip, Write
from headgate.checkpoints.log.records import Batch, BatchRecord
from headgate.checkpoints.log.state import Head
from headgate.checkpoints.snapshots.checkpoint import TableCheckpoint
from headgate.checkpoints.spark.directory import SparkCheckpoint
from headgate.checkpoints.spark.recover import check_startable
from headgate.checkpoints.stream.checkpoint import FinalCompaction, checkpoint_stream, stop_stream
from headgate.checkpoints.stream.driver import StreamDriver
from headgate.connectors.kafka.options import ConsumerConfig
from headgate.errors import Fenced, HeadgateError, InvalidInput
from headgate.shards.sharding import ByPartition
from headgate.steps import step
from headgate.streaming.decode.contract import Decoder, TableDecoder, decoder_of
from headgate.streaming.decode.provenance import provenance_value
from headgate.streaming.kafka import offsets as topic_offsets
from headgate.streaming.kafka.source import KafkaSource
from headgate.streaming.maintenance.flush import flush
from headgate.streaming.maintenance.spark import maintenance_on, schedule_of, tasks_on
from headgate.streaming.maintenance.state import MaintenanceState
from headgate.streaming.maintenance.threads import Maintenance
from headgate.streaming.observe.reporting import Reporting
from headgate.streaming.observe.timers import Phases
from headgate.streaming.options import DEFAULT_STREAM, SinkOptions, sink_options
from headgate.streaming.spark import checks as frame_checks
from headgate.streaming.spark.exit import exit_after_native_calls
from headgate.streaming.spark.query import QueryFacts, is_untouched, query_facts
from headgate.streaming.write.job import BatchJob, Written
from headgate.streaming.write.plan import decided, shard_names, write_plan
from headgate.streaming.write.routing import Ranges, shards_of, shards_of_made_rows
from headgate.streaming.write.task import WritePlan
from headgate.table.table import Table, open_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_log = structlog.get_logger("headgate.streaming")


@dataclass(frozen=True)
class _Run:
    """One start of the query: what cannot change between its batches, found out and checked at the first of them."""

    facts: QueryFacts
    options: SinkOptions
    checkpoint: SparkCheckpoint
    query_id: str
    consumer: ConsumerConfig | None
    """For tasks that read Kafka themselves."""
    group: ConsumerConfig | None
    """The cluster that is told how far the stream is; None: nobody asked for that."""
    session: SparkSession
    """Of its batches; maintenance runs its jobs there."""

    @property
    def key(self) -> str:
        """Where Spark does not tell a run from the next one, what they share."""
        return self.facts.run_id or self.query_id

    @property
    def stream(self) -> str:
        """The stream's name in the table."""
        return self.options.stream or self.facts.name or DEFAULT_STREAM


class ShardSink:
    """`frame.writeStream.foreachBatch(ShardSink(table, decode=…))`. Picklable; opens nothing before its first call.

    The first batch of a query takes the stream over: THIS FENCES AN EARLIER DRIVER of the same stream.
    """

    def __init__(
        self,
        table: Table | str,
        *,
        decode: Decoder | TableDecoder | None = None,
        source: KafkaSource | None = None,
        **options: Any,
    ) -> None:
        """`table` is a Table or its URI. `decode` turns Kafka's values into rows, `decode.json()` by the columns that
        the table has, also after somebody changed them while the stream runs; without it the frame's columns are the
        table's. `source` reads Kafka in the tasks themselves: pass its own frame, unchanged.
        The rest are the fields of SinkOptions; what is left out, the session may say (`spark.headgate.…`).
        """
        self.options = sink_options(options)
        """As given here; from the first batch on, with the session's defaults."""
        self._given = options
        if source is not None and decode is None:
            raise InvalidInput("Reading Kafka directly needs a decoder.", advice="pass decode=headgate.decode.json(…)")
        self._table = table
        self._decode = decode
        self._decoder: Decoder | None = None
        """As it is for the columns that the table has."""
        self._columns_at = 0
        """The schema record that these columns were read after."""
        self._source = source
        self._driver: StreamDriver | None = None
        self._run: _Run | None = None
        self._stopped: tuple[StreamDriver, _Run] | None = None
        self._maintenance: Maintenance | None = None
        self._ending: Maintenance | None = None
        self._scattered = False
        self._lock = threading.Lock()
        self.reporting = Reporting()
        """What it counts and tells the outside."""
        self.last: BatchRecord | None = None
        """The record of the last batch, for metrics."""
        self.skipped = False
        """Whether the log had that batch before this sink came to it."""
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

        Raises Fenced where a successor runs the stream or the table was made anew, InvalidInput where the offsets do
        not continue the table's, DataLoss where Kafka no longer has an offset; nothing of the batch is visible then.
        """
        with self._lock:
            phases = Phases()
            try:
                with phases.in_phase("total"):
                    self._write(frame, batch_id, phases)
                self.reporting.metrics.took(phases.seconds)
            except BaseException as error:
                self.reporting.metrics.failed(error)
                if self._driver and self._run and not isinstance(error, HeadgateError):
                    # Spark ended the batch, and the driver is what it was: `close` may still use it.
                    self._stopped = self._driver, self._run
                # The next start, if there is one, opens the stream anew.
                self._drop_maintenance(wait=False)
                self._driver = self._run = None
                if isinstance(error, HeadgateError):
                    self.reporting.end_run(wait=False)
                    self.error = error.located(batch=batch_id)
                raise

    def check(self, checkpoint: str, query_name: str | None = None) -> None:
        """Whether Spark can start from this checkpointLocation and the stream go on where the table stands. Reads only.

        Call it before `start()`: a power cut may leave Spark's own files empty, and Spark reads them before it calls
        any sink. `query_name` is the query's, where it names the stream. Raises InvalidInput with what is damaged and
        the command that rebuilds it.
        """
        stream = self.options.stream or query_name or DEFAULT_STREAM
        check_startable(self.table.home, stream, SparkCheckpoint(checkpoint, self.options.storage_options))

    def checkpoint(self) -> TableCheckpoint | None:
        """Take a checkpoint of scope all now, between two batches, as the stream does by itself every
        `checkpoint_interval`. None where no batch has arrived yet. Raises Fenced, DataLoss, Transient.
        """
        with self._lock:
            if self._driver is None or self._run is None:
                return None
            take = partial(self._take, self._driver, self._run)
            with bound_contextvars(query=self._run.query_id, stream=self._run.stream):
                return take() if self._maintenance is None else self._maintenance.checkpoint_now(take)

    def wait_for_maintenance(self, timeout: float | None = None) -> bool:
        """Until no flush, compaction, indexing or checkpoint runs or is due. False: not within so many seconds."""
        maintenance = self._maintenance
        return True if maintenance is None else maintenance.wait_until_idle(timeout)

    def close(self) -> TableCheckpoint | None:
        """End the stream cleanly: everything is flushed, taken into the base as far as `stop_timeout` allows (the
        checkpoint's note says what is left) and pinned, and native may open the shards. Call it after `query.stop()`;
        the next batch, if there is one, takes the stream over again.

        None where no batch has arrived, or where another driver has the stream: it is left alone. Twice equals once.
        Raises DataLoss, Transient, Poisoned: what was committed stays, the shards stay sealed; call it again.
        """
        with self._lock:
            self._drop_maintenance(wait=True)
            self.reporting.close()
            held = (self._driver, self._run) if self._driver and self._run else self._stopped
            self._driver, self._run, self._stopped = None, None, held
            if held is None:
                return None
            driver, run = held
            with bound_contextvars(query=run.query_id, stream=run.stream):
                taken = self._stop(driver, run)
            self._stopped = None
            return taken

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        del state["_lock"]
        dropped = ("_driver", "_run", "_stopped", "_maintenance", "_ending", "last", "error")
        return {**state, **dict.fromkeys(dropped)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()

    def _stop(self, driver: StreamDriver, run: _Run) -> TableCheckpoint | None:
        try:
            return stop_stream(
                driver,
                self.table.shard_ids(),
                partial(_flushed_anyhow, run),
                max_bytes=run.options.max_memtable_size,
                keep=run.options.keep_checkpoints,
                compaction=FinalCompaction(run.options.stop_seconds) if run.options.compact_on_stop else None,
            )
        except Fenced as error:
            _log.info("the stream was taken over before its clean stop", error=str(error))
            return None

    # -- one batch -----------------------------------------------------------------

    def _write(self, frame: DataFrame, batch_id: int, phases: Phases) -> None:
        step("batch")
        run = self._begun(frame)
        with bound_contextvars(query=run.query_id, batch=batch_id, stream=run.stream):
            self._batch(frame, batch_id, run, phases)

    def _batch(self, frame: DataFrame, batch_id: int, run: _Run, phases: Phases) -> None:
        metrics = self.reporting.metrics
        with phases.in_phase("plan"):
            bare = self._is_bare(frame, run)
            sources = run.checkpoint.sources(batch_id)
            decide = partial(self._decided, run, batch_id, sources)
            if self._driver is None or self._maintenance is None:
                self._driver = self._open(run, sources, decide, bare)
                self._read_columns(self._driver, run)
                self._maintenance = self._maintained(self._driver, run)
                self.reporting.begin(
                    run.session,
                    self.table,
                    self._driver,
                    run.options,
                    lambda: self.maintenance,
                    run.group,
                    run.facts.run,
                )
            driver, maintenance = self._driver, self._maintenance
            if maintenance.saw_other_columns() or driver.head.changed != self._columns_at:
                self._read_columns(driver, run)
            decision = decide(driver.head)
        if isinstance(decision, Skip):
            self.last, self.skipped = decision.record, True
            metrics.skipped()
            _log.info("batch was committed before", stream=driver.stream, sequence=decision.record.sequence)
            return
        self.reporting.planned(decision.ranges)
        with phases.in_phase("wait"):
            maintenance.wait_for_room()

        def written() -> Batch:
            return self._written(frame, batch_id, driver, decision, run, bare, phases)

        def again() -> Batch | None:
            if not self._read_columns(driver, run):
                return None
            _log.info("columns were added: the batch is written again", stream=driver.stream)
            return written()

        batch = written()
        with phases.in_phase("commit"):
            maintenance.check_table()
            self.last, self.skipped = driver.commit(batch, again), False
        self.reporting.committed(driver, self.last)
        _log.info(
            "batch committed",
            stream=driver.stream,
            shards={name: part.rows for name, part in self.last.shards.items()},
            sequence=self.last.sequence,
            rows=self.last.rows,
            bytes=self.last.nbytes,
            dead_letters=sum(part.rows for part in self.last.dead_letters.values()),
            seconds={phase: round(took, 3) for phase, took in phases.seconds.items()},
        )
        if not run.options.checkpoint_seconds:
            self._checkpoint_each(maintenance, driver, run)
        maintenance.batch_done()

    def _written(
        self, frame: DataFrame, batch_id: int, driver: StreamDriver, decision: Write, run: _Run, bare: bool, to: Phases
    ) -> Batch:
        """The batch as the tasks have written it, under attempts of its own, with the columns that are known now."""
        with to.in_phase("tasks"):
            plan, written = self._append(frame, driver, decision, run, bare)
        to.add(written.seconds)
        self.reporting.written(written)
        shards, dead = written.parts(plan)
        self.task_operations = written.operations
        return Batch(
            query_id=run.query_id,
            batch_id=batch_id,
            sources=decision.ranges,
            opaque=decision.opaque,
            shards=shards,
            dead_letters=dead,
            mode="memtable" if run.options.enable_memtable else "wal",
        )

    def _read_columns(self, driver: StreamDriver, run: _Run) -> bool:
        """Take over the table's columns, where the decoder follows them: after the open record, and wherever the driver
        has stepped over a schema record (R22). Whether there is one that what was written before lacks.

        Raises Fenced where another table is in its place, InvalidInput for a column that the decoder cannot fill.
        """
        self._columns_at = driver.head.changed
        if not isinstance(self._decode, TableDecoder):
            return False
        before = self.table.home.schema
        now = run.options.retry.run(partial(stream_schema, self.table.home))
        if now == before:
            return False
        table = run.options.retry.run(self.table.refreshed)
        decoder = self._decode.of(table)
        frame_checks.check_decoder(decoder, table)
        self._table, self._decoder = table, decoder
        driver.use_columns(table.home.schema)
        return gained(before, table.home.schema)

    def _checkpoint_each(self, maintenance: Maintenance, driver: StreamDriver, run: _Run) -> None:
        """After every batch, as was asked for: the next one waits for it. What fails is tried after the next one."""
        try:
            maintenance.checkpoint_now(partial(self._take, driver, run))
        except Exception as error:
            _log.warning("a checkpoint failed; a later one is tried", stream=driver.stream, error=str(error))

    def _decided(self, run: _Run, batch_id: int, sources: BatchSources, head: Head) -> Skip | Write:
        earliest = partial(self._earliest, run.facts)
        return decided(self.table, head, run.query_id, batch_id, sources, earliest)

    def _open(self, run: _Run, sources: BatchSources, decide: Callable[[Head], object], bare: bool) -> StreamDriver:
        """Every start of the query takes the stream over: another driver may have run it since the last one."""
        names = shard_names(self.table.sharding, sources)
        self._stopped = None
        return StreamDriver.open(
            self.table.home,
            run.stream,
            run.query_id,
            names,
            accept=decide,
            decoder=self._recorded(bare),
            retry=run.options.retry,
        )

    def _recorded(self, bare: bool) -> dict[str, Any]:
        return provenance_value(self._decoder, self.table.home.schema, changed=not bare)

    def _append(
        self, frame: DataFrame, driver: StreamDriver, decision: Write, run: _Run, bare: bool
    ) -> tuple[WritePlan, Written]:
        meant = (shards_of if bare else shards_of_made_rows)(self.table.sharding, decision.ranges)
        driver.describe(self._recorded(bare))
        planned = driver.plan(meant)
        while driver.head.changed != self._columns_at:
            # An open record, for a new shard or decoder, stepped over a schema record.
            self._read_columns(driver, run)
            driver.describe(self._recorded(bare))
            planned = driver.plan(meant)
        plan = write_plan(
            self.table,
            run.options,
            self._decoder,
            planned,
            meant,
            decision.ranges,
            consumer=run.consumer,
            tries=run.facts.task_tries,
        )
        if not meant:
            return plan, Written()
        step("tasks")
        job = BatchJob(frame, plan, run.facts.cores)
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
            self._explain(run.facts, decision.ranges, error)
            raise
        return plan, written

    def _maintained(self, driver: StreamDriver, run: _Run) -> Maintenance:
        """Threads that flush, compact, checkpoint and collect garbage beside the batches from now on."""
        take = partial(self._take, driver, run, tasks_on(run.session, run.options, run.facts))
        follows = isinstance(self._decode, TableDecoder)
        maintenance = maintenance_on(run.session, driver, run.options, run.facts, take, self._collect, follows=follows)
        return maintenance.start()

    def _collect(self, progress: Callable[[int, int], None]) -> Collection:
        return self.table.collect_garbage(apply=True, progress=progress)

    def _drop_maintenance(self, *, wait: bool) -> None:
        """No further job; `wait` for those that run, also those of a run that ended before."""
        if self._maintenance is not None:
            self._ending, self._maintenance = self._maintenance, None
        if self._ending is not None:
            self._ending.stop(wait=wait)

    def _take(self, driver: StreamDriver, run: _Run, tasks: int | None = None) -> TableCheckpoint:
        """A checkpoint whose flush has at most so many tasks at once; None where no batch is beside it."""
        return checkpoint_stream(
            driver,
            self.table.shard_ids(),
            partial(flush, run.session, tasks=tasks),
            max_bytes=run.options.max_memtable_size,
            keep=run.options.keep_checkpoints,
        )

    @property
    def _shares_shards(self) -> bool:
        """Spark may give partitions that share a shard to different tasks; our own reading never does."""
        sharding = self.table.sharding
        return self._source is None and isinstance(sharding, ByPartition) and sharding.max_shards is not None

    # -- what a batch needs to know ------------------------------------------------

    @property
    def table(self) -> Table:
        """The table, opened on first use."""
        if isinstance(self._table, str):
            self._table = open_table(self._table, dict(self.options.storage_options or {}) or None)
        return self._table

    @property
    def maintenance(self) -> MaintenanceState | None:
        """How flushes, compactions and checkpoints stand, and whether batches wait for them; None before a batch."""
        maintenance = self._maintenance
        return None if maintenance is None else maintenance.state

    @property
    def stream(self) -> str | None:
        """The stream's name, once a batch has arrived."""
        return self._driver.stream if self._driver is not None else self.options.stream

    @property
    def open_record(self) -> str | None:
        """The id of the open record under which its batches commit; None before a batch."""
        opened = None if self._driver is None else self._driver.head.opened
        return None if opened is None else opened.record_id

    def _begun(self, frame: DataFrame) -> _Run:
        """The run that the batch belongs to. Whatever is refused here is refused before anything is claimed."""
        before = self._run
        if before is not None and before.facts.is_of(frame):
            return before
        exit_after_native_calls()
        facts = query_facts(frame)
        options = self.options = sink_options(self._given, facts.settings)
        # Somebody may have changed the columns since the table was opened: a start takes them as they are.
        options.retry.run(partial(stream_schema, self.table.home))  # another table in its place: Fenced (R23)
        self._table = options.retry.run(self.table.refreshed)
        self._decoder = decoder_of(self._decode, self._table)
        self._check(frame, facts, options)
        schedule_of(options)
        Reporting.check(options, frame.sparkSession)
        checkpoint = self._checkpoint(facts, options)
        query_id = checkpoint.query_id() if options.checkpoint_location or facts.query_id is None else facts.query_id
        frame_checks.check_checkpoint(facts, query_id, checkpoint.uri)
        consumer = None if self._source is None else self._source.consumer
        group = None if options.commit_to_kafka is None else self._cluster(facts)
        self._run = run = _Run(facts, options, checkpoint, query_id, consumer, group, frame.sparkSession)
        if before is None or before.key != run.key:
            self._drop_maintenance(wait=False)
            self.reporting.end_run(wait=False)
            self._driver = self.error = None
        return run

    def _check(self, frame: DataFrame, facts: QueryFacts, options: SinkOptions) -> None:
        frame_checks.check_query(facts)
        if self._source is not None:
            assert self._decoder is not None
            frame_checks.check_direct(facts, self._source)
            frame_checks.check_decoder(self._decoder, self.table)
        else:
            frame_checks.check_columns(frame.columns, self._decoder, options.sequence_by, self.table)

    def _is_bare(self, frame: DataFrame, run: _Run) -> bool:
        """Asked for every batch: what the query passes on is known, what its caller does to a batch is not."""
        bare = bool(run.facts.bare_kafka) and is_untouched(frame)
        if self._source is not None:
            frame_checks.check_bare(bare)
        return bare

    def _checkpoint(self, facts: QueryFacts, options: SinkOptions) -> SparkCheckpoint:
        location = options.checkpoint_location or facts.checkpoint
        if location is None:
            raise InvalidInput(
                "The query's checkpoint location is not known here.",
                advice="pass checkpoint_location= to ShardSink (Spark Connect does not tell it)",
            )
        return SparkCheckpoint(location, options.storage_options)

    def _consumer(self, facts: QueryFacts) -> ConsumerConfig | None:
        if self._source is not None:
            return self._source.consumer
        if facts.kafka_options is not None:
            return ConsumerConfig.from_spark(facts.kafka_options)
        return None

    def _cluster(self, facts: QueryFacts) -> ConsumerConfig:
        """Where the offsets of `commit_to_kafka` go. Raises InvalidInput where that is not known here."""
        if self._source is not None:
            return self._source.consumer
        if facts.cluster_options is None:
            raise InvalidInput(
                "commit_to_kafka= needs to know the cluster, and the query does not tell it.",
                advice="read the topic with headgate.kafka.source(…) and pass source=, or leave out commit_to_kafka=",
            )
        return ConsumerConfig.from_spark(facts.cluster_options)

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


def _flushed_anyhow(run: _Run, jobs: Sequence[FlushJob]) -> Mapping[str, Flushed]:
    """On executors, or here where Spark has gone: a stop is a good time for that."""
    try:
        return flush(run.session, jobs)
    except HeadgateError:
        raise
    except Exception as error:
        _log.info("the last flush runs in this process: Spark does not take it", error=type(error).__name__)
        return run_here(jobs)
