"""One run of a query: from the batch that claims the stream to the end of all its jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from headgate.checkpoints.gc.report import Collection
from headgate.checkpoints.jobs.columns import gained, stream_schema
from headgate.checkpoints.jobs.flush import Flushed, FlushJob, run_here
from headgate.checkpoints.jobs.state import MaintenanceState
from headgate.checkpoints.log.decisions import BatchSources, Skip, Write
from headgate.checkpoints.log.records import Batch, BatchRecord
from headgate.checkpoints.log.state import Head
from headgate.checkpoints.snapshots.checkpoint import TableCheckpoint
from headgate.checkpoints.stream.batches import free_of_batches
from headgate.checkpoints.stream.checkpoint import FinalCompaction, checkpoint_stream, stop_stream
from headgate.checkpoints.stream.driver import StreamDriver
from headgate.errors import Fenced, HeadgateError
from headgate.steps import step
from headgate.streaming.decode.contract import Decoder, TableDecoder
from headgate.streaming.decode.provenance import provenance_value
from headgate.streaming.maintenance.flush import flush
from headgate.streaming.maintenance.spark import maintenance_on, tasks_on
from headgate.streaming.reporting import Reporting
from headgate.streaming.setup import Setup
from headgate.streaming.write import checks
from headgate.streaming.write.deletes import marked
from headgate.streaming.write.job import BatchJob, Written
from headgate.streaming.write.ordering import ORDER
from headgate.streaming.write.plan import batch_decision, shard_names, write_plan
from headgate.streaming.write.routing import shards_of, shards_of_made_rows
from headgate.streaming.write.task import WritePlan
from headgate.streaming.write.timers import Phases
from headgate.table.table import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_log = structlog.get_logger("headgate.streaming")


@dataclass(frozen=True)
class MicroBatch:
    """A batch from Spark."""

    frame: DataFrame
    number: int
    sources: BatchSources
    bare: bool
    """True if it contains Kafka's records unchanged."""


@dataclass(frozen=True)
class Outcome:
    """The result of a batch."""

    record: BatchRecord
    skipped: bool
    """True if the log had the batch already."""


class Run:
    """Made once, by `claim`; `start` it, `write` its batches, `end` it; `stop` is the clean end of its stream."""

    def __init__(self, setup: Setup, driver: StreamDriver, reporting: Reporting) -> None:
        """Use `claim`."""
        self.setup = setup
        self.driver = driver
        self.table: Table = setup.table
        """The table with the columns of current batches."""
        self.may_stop = True
        """True if `stop` may flush, checkpoint and release the driver's shards."""
        self._decoder: Decoder | None = setup.decoder
        self._columns_at = 0
        """The schema record that the columns were read after."""
        self._shuffles = setup.shares_shards
        self._reporting = reporting
        self._ended = False
        take = partial(self._take, tasks_on(setup.session, setup.options, setup.facts))
        self._maintenance = maintenance_on(
            setup.session, driver, setup.options, setup.facts, take, self._collect, follows=self._follows
        )

    @classmethod
    def claim(cls, setup: Setup, batch: MicroBatch, reporting: Reporting) -> Run:
        """Take over the stream, unless the batch is refused: another driver may have run it since the last run. THIS
        WRITES, AND IT FENCES AN EARLIER DRIVER.
        """
        driver = StreamDriver.open(
            setup.table.home,
            setup.stream,
            setup.query_id,
            shard_names(setup.table.sharding, batch.sources),
            accept=partial(_accept, setup, batch),
            free=partial(_free, setup),
            decoder=provenance_value(setup.decoder, setup.table.home.schema, changed=not batch.bare),
        )
        return cls(setup, driver, reporting)

    def start(self) -> None:
        """Start the jobs beside the batches: flushes, compactions, checkpoints, garbage collection, reporting."""
        self._read_columns()
        self._maintenance.start()
        setup = self.setup
        self._reporting.begin(
            setup.session,
            self.table,
            self.driver,
            setup.options,
            lambda: self.maintenance,
            setup.group,
            setup.facts.run,
        )

    def renew(self, setup: Setup) -> None:
        """Update the setup for the next batch, if Spark does not distinguish runs."""
        self.setup, self.table, self._decoder = setup, setup.table, setup.decoder

    def write(self, batch: MicroBatch, phases: Phases) -> Outcome:
        """Write one batch; see `ShardSink.__call__`."""
        driver, maintenance, metrics = self.driver, self._maintenance, self._reporting.metrics
        with phases.in_phase("plan"):
            if maintenance.saw_other_columns() or driver.head.changed != self._columns_at:
                self._read_columns()
            decision = _decision(self.setup, self.table, batch, driver.head)
        if isinstance(decision, Skip):
            metrics.skipped()
            _log.info("batch was already committed", stream=driver.stream, sequence=decision.record.sequence)
            return Outcome(decision.record, True)
        self._reporting.planned(decision.ranges)
        with phases.in_phase("wait"):
            maintenance.wait_for_room()

        def written() -> Batch:
            return self._written(batch, decision, phases)

        def again() -> Batch | None:
            if not self._read_columns():
                return None
            _log.info("columns were added: writing the batch again", stream=driver.stream)
            return written()

        first = written()
        with phases.in_phase("commit"):
            maintenance.check_table()
            record = driver.commit(first, again)
        self._reporting.committed(driver, record)
        _log.info(
            "batch committed",
            stream=driver.stream,
            shards={name: part.rows for name, part in record.shards.items()},
            sequence=record.sequence,
            rows=record.rows,
            bytes=record.nbytes,
            dead_letters=sum(part.rows for part in record.dead_letters.values()),
            seconds={phase: round(took, 3) for phase, took in phases.seconds.items()},
        )
        if not self.setup.options.checkpoint_seconds:
            self._checkpoint_each()
        maintenance.batch_done()
        return Outcome(record, False)

    def checkpoint(self) -> TableCheckpoint:
        """Take a checkpoint of scope all, once the shards are free. Not while a batch runs."""
        return self._maintenance.checkpoint_now(self._take)

    def wait_for_maintenance(self, timeout: float | None) -> bool:
        """Wait until no job runs or is due. False after the timeout."""
        return self._maintenance.wait_until_idle(timeout)

    @property
    def maintenance(self) -> MaintenanceState | None:
        """The state of maintenance; None after the end of the run."""
        return None if self._ended else self._maintenance.state

    def end(self, *, wait: bool) -> None:
        """Start no more maintenance jobs; with `wait`, wait for running ones. Idempotent."""
        self._ended = True
        self._maintenance.stop(wait=wait)

    def stop(self) -> TableCheckpoint | None:
        """Flush, compact, checkpoint and release the stream, after `end`. None if another driver has it. Can be
        repeated after an error.
        """
        options = self.setup.options
        try:
            taken = stop_stream(
                self.driver,
                self.table.shard_ids(),
                self._flush_anyhow,
                max_bytes=options.max_memtable_size,
                keep=options.keep_checkpoints,
                compaction=FinalCompaction(options.stop_seconds) if options.compact_on_stop else None,
            )
        except Fenced as error:
            _log.info("another driver took over the stream before its clean stop", error=str(error))
            taken = None
        self.may_stop = False
        return taken

    # -- one batch -----------------------------------------------------------------

    def _written(self, batch: MicroBatch, decision: Write, phases: Phases) -> Batch:
        """Write the batch with new attempts and the current columns."""
        with phases.in_phase("tasks"):
            plan, written = self._append(batch, decision)
        phases.add(written.seconds)
        self._reporting.written(written)
        shards, dead = written.parts(plan)
        return Batch(
            query_id=self.setup.query_id,
            batch_id=batch.number,
            sources=decision.ranges,
            opaque=decision.opaque,
            shards=shards,
            dead_letters=dead,
            mode="memtable" if self.setup.options.enable_memtable else "wal",
            record_times=written.times,
        )

    def _append(self, batch: MicroBatch, decision: Write) -> tuple[WritePlan, Written]:
        driver, setup = self.driver, self.setup
        sources = (shards_of if batch.bare else shards_of_made_rows)(self.table.sharding, decision.ranges)
        driver.describe(self._recorded(batch))
        planned = driver.plan(sources)
        while driver.head.changed != self._columns_at:
            # An open record, for a new shard or decoder, stepped over a schema record.
            self._read_columns()
            driver.describe(self._recorded(batch))
            planned = driver.plan(sources)
        plan = write_plan(
            self.table,
            setup.options,
            self._decoder,
            planned,
            sources,
            decision.ranges,
            consumer=setup.consumer,
            tries=setup.facts.task_tries,
        )
        if not sources:
            return plan, Written()
        step("tasks")
        job = BatchJob(self._frame(batch), plan, setup.facts.cores)
        try:
            written = job.run(shuffled=self._shuffles)
            if written.out_of_place is not None and not self._shuffles:
                # Spark split a topic partition, or the frame was shuffled: shuffle this batch again, and all later
                # ones.
                self._shuffles = True
                written = job.run(shuffled=True)
        except HeadgateError:
            raise
        except Exception as error:
            setup.explain(decision.ranges, error)
            raise
        return plan, written

    def _frame(self, batch: MicroBatch) -> DataFrame:
        options = self.setup.options
        if options.delete_when is None:
            return batch.frame
        return marked(batch.frame, options.delete_when, self.table.schema.names, (*ORDER, options.sequence_by or ""))

    def _recorded(self, batch: MicroBatch) -> dict[str, Any]:
        return provenance_value(self._decoder, self.table.home.schema, changed=not batch.bare)

    @property
    def _follows(self) -> bool:
        return isinstance(self.setup.decode, TableDecoder)

    def _read_columns(self) -> bool:
        """Read the table's columns, if the decoder follows them: after the open record, and when the driver has skipped
        a schema record (R22). Returns whether written rows lack a new column.

        Raises Fenced if the table was re-created, InvalidInput for a column that the decoder cannot fill.
        """
        self._columns_at = self.driver.head.changed
        decode, retry = self.setup.decode, self.setup.options.retry
        if not isinstance(decode, TableDecoder):
            return False
        before = self.table.home.schema
        if retry.run_steps(partial(stream_schema, self.table.home)) == before:
            return False
        table = retry.run_steps(self.table.refreshed)
        decoder = decode.of(table)
        checks.check_decoder(decoder, table)
        self.table, self._decoder = table, decoder
        self.driver.use_columns(table.home.schema)
        return gained(before, table.home.schema)

    # -- beside the batches ----------------------------------------------------------

    def _checkpoint_each(self) -> None:
        """Checkpoint after every batch, as configured: the next batch waits for it. After an error it is tried after
        the next batch.
        """
        try:
            self.checkpoint()
        except Exception as error:
            _log.warning(
                "a checkpoint failed; the next one is tried later", stream=self.driver.stream, error=str(error)
            )

    def _take(self, tasks: int | None = None) -> TableCheckpoint:
        """Take a checkpoint; its flush runs at most this many tasks at once, None for no limit."""
        return checkpoint_stream(
            self.driver,
            self.table.shard_ids(),
            partial(flush, self.setup.session, tasks=tasks),
            max_bytes=self.setup.options.max_memtable_size,
            keep=self.setup.options.keep_checkpoints,
        )

    def _collect(self, progress: Callable[[int, int], None]) -> Collection:
        return self.table.collect_garbage(apply=True, progress=lambda _, done, total: progress(done, total))

    def _flush_anyhow(self, jobs: Sequence[FlushJob]) -> Mapping[str, Flushed]:
        """Flush on executors, or in this process if Spark has ended."""
        try:
            return flush(self.setup.session, jobs)
        except HeadgateError:
            raise
        except Exception as error:
            _log.info("the last flush runs in this process: Spark did not accept the job", error=type(error).__name__)
            return run_here(jobs)


def _accept(setup: Setup, batch: MicroBatch, head: Head) -> None:
    """Called right before the claims: check the batch, and release shards that batch writes hold."""
    _decision(setup, setup.table, batch, head)
    _free(setup)


def _free(setup: Setup, found: Iterable[str] = ()) -> None:
    free_of_batches(setup.table.home, setup.table.shard_ids(), partial(flush, setup.session), found)


def _decision(setup: Setup, table: Table, batch: MicroBatch, head: Head) -> Skip | Write:
    return batch_decision(table, head, setup.query_id, batch.number, batch.sources, setup.earliest)
