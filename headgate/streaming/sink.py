"""ShardSink: the function for `writeStream.foreachBatch`. Each micro-batch takes effect exactly once."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Unpack

from structlog.contextvars import bound_contextvars

from headgate.checkpoints.jobs.state import MaintenanceState
from headgate.checkpoints.log.records import BatchRecord
from headgate.checkpoints.snapshots.checkpoint import TableCheckpoint
from headgate.checkpoints.spark.directory import SparkCheckpoint
from headgate.checkpoints.spark.recover import check_startable
from headgate.errors import HeadgateError, InvalidInput
from headgate.shards.home.stores import Place, place
from headgate.steps import step
from headgate.streaming.arguments import SinkArguments
from headgate.streaming.decode.contract import Decoder, TableDecoder
from headgate.streaming.kafka.source import KafkaSource
from headgate.streaming.options import sink_options, stream_name
from headgate.streaming.reporting import Reporting
from headgate.streaming.run import MicroBatch, Run
from headgate.streaming.setup import Setup
from headgate.streaming.spark.exit import exit_after_native_calls
from headgate.streaming.spark.query import query_facts
from headgate.streaming.write.timers import Phases
from headgate.table.table import Table, open_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class ShardSink:
    """`frame.writeStream.foreachBatch(ShardSink(table, decode=…))`. Picklable; it opens nothing before its first call.

    The first batch of a query takes the stream over: THIS FENCES AN EARLIER DRIVER of the same stream.
    """

    def __init__(
        self,
        table: Table | Place,
        *,
        decode: Decoder | TableDecoder | None = None,
        source: KafkaSource | None = None,
        **options: Unpack[SinkArguments],
    ) -> None:
        """`table` is a Table or its URI. `decode` turns Kafka values into rows; `decode.json()` without a schema
        follows the table's columns, even if they change while the stream runs. Without `decode` the frame must have the
        table's columns. With `source` the tasks read Kafka themselves: pass `source.read(spark)`, unchanged, to the
        query. All other arguments are fields of SinkOptions; defaults can come from the session (`spark.headgate.…`).
        """
        self.options = sink_options(options)
        """The given options; from the first batch on with the session's defaults."""
        self._given = options
        if source is not None and decode is None:
            raise InvalidInput("source= needs a decoder.", advice="pass decode=headgate.decode.json(…)")
        if decode is not None and self.options.delete_when is not None:
            raise InvalidInput(
                "delete_when= works only for typed frames, not with a decoder.",
                advice="with a decoder, a record without a value deletes its key, and decode.debezium handles delete "
                "events",
            )
        self._table = table
        self._decode = decode
        self._source = source
        self._run: Run | None = None
        self._ended: Run | None = None
        """The last finished run: `close` waits for its jobs, and can still end its stream cleanly."""
        self._lock = threading.Lock()
        self.reporting = Reporting()
        """Metrics and their server."""
        self.last: BatchRecord | None = None
        """The record of the last batch."""
        self.skipped = False
        """True if the log had that batch already."""
        self.error: HeadgateError | None = None
        """The error that stopped the query; Spark wraps it into its own error."""

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Write one micro-batch.

        1. read the batch's offsets from Spark's own checkpoint, not from its rows.
        2. decide: skip a batch that the log has; refuse a batch that does not continue it.
        3. plan: every attempt of a shard starts at the same position.
        4. tasks append; the driver gets positions.
        5. one commit record makes all of it visible.

        Raises Fenced if another driver runs the stream or the table was re-created, InvalidInput if the offsets do not
        continue the table's, DataLoss if Kafka no longer has an offset; then nothing of the batch is visible.
        """
        with self._lock:
            phases = Phases()
            try:
                with phases.in_phase("total"):
                    self._write(frame, batch_id, phases)
                self.reporting.took(batch_id, phases.seconds)
            except BaseException as error:
                self.reporting.failed(error)
                # If Spark ended the batch, the driver is still valid. The next start, if any, opens the stream again.
                self._end_run(may_stop=not isinstance(error, HeadgateError))
                if isinstance(error, HeadgateError):
                    self.reporting.end_run(wait=False)
                    self.error = error.with_context(batch=batch_id)
                raise

    def check(self, checkpoint: Place, query_name: str | None = None) -> None:
        """Check that Spark can start from this checkpointLocation and the stream continue where the table is. Reads
        only.

        Call it before `start()`: a power cut may leave Spark's own files empty, and Spark reads them before it calls
        any sink. `query_name` is the query's name, if it names the stream. Raises InvalidInput that says what is
        damaged and which command rebuilds it.
        """
        stream = stream_name(self.options.stream, query_name)
        check_startable(self.table.home, stream, SparkCheckpoint(place(checkpoint), self.options.storage_options))

    def checkpoint(self) -> TableCheckpoint | None:
        """Take a checkpoint of scope all now, between two batches, as the stream does automatically every
        `checkpoint_interval`. None if no batch has arrived yet. Raises Fenced, DataLoss, Transient.
        """
        with self._lock:
            if (run := self._run) is None:
                return None
            with bound_contextvars(query=run.setup.query_id, stream=run.setup.stream):
                return run.checkpoint()

    def wait_for_maintenance(self, timeout: float | None = None) -> bool:
        """Wait until no flush, compaction, indexing or checkpoint runs or is due. False after the timeout."""
        run = self._run
        return run is None or run.wait_for_maintenance(timeout)

    def close(self) -> TableCheckpoint | None:
        """End the stream cleanly: flush everything, merge it into the base as far as `stop_timeout` allows (the
        checkpoint's note says what is left), take a checkpoint, and unseal the shards for native Lance. Call it after
        `query.stop()`; a later batch takes over the stream again.

        None if no batch has arrived, or if another driver has the stream. Idempotent. Raises DataLoss, Transient,
        Poisoned: committed rows stay, the shards stay sealed; call it again.
        """
        with self._lock:
            self._end_run(may_stop=True)
            if (run := self._ended) is not None:
                run.end(wait=True)
            self.reporting.close()
            if run is None or not run.may_stop:
                return None
            with bound_contextvars(query=run.setup.query_id, stream=run.setup.stream):
                return run.stop()

    def __getstate__(self) -> dict[str, Any]:
        state = {**self.__dict__, "_table": self._table if self._run is None else self._run.table}
        del state["_lock"]
        return {**state, **dict.fromkeys(("_run", "_ended", "last", "error"))}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()

    @property
    def table(self) -> Table:
        """The table, opened on first use."""
        if (run := self._run) is not None:
            return run.table
        if not isinstance(self._table, Table):
            self._table = open_table(self._table, storage_options=dict(self.options.storage_options or {}) or None)
        return self._table

    @property
    def maintenance(self) -> MaintenanceState | None:
        """The state of flushes, compactions and checkpoints, and whether batches wait for them; None before a batch."""
        run = self._run
        return None if run is None else run.maintenance

    @property
    def stream(self) -> str | None:
        """The stream's name, once a batch has arrived."""
        run = self._run
        return self.options.stream if run is None else run.driver.stream

    @property
    def open_record(self) -> str | None:
        """The id of the open record under which its batches commit; None before a batch."""
        run = self._run
        opened = None if run is None else run.driver.head.opened
        return None if opened is None else opened.record_id

    # -- runs ----------------------------------------------------------------------

    def _write(self, frame: DataFrame, batch_id: int, phases: Phases) -> None:
        step("batch")
        setup = self._set_up(frame)
        with bound_contextvars(query=setup.query_id, batch=batch_id, stream=setup.stream):
            with phases.in_phase("plan"):
                bare = setup.is_bare(frame)
                batch = MicroBatch(frame, batch_id, setup.checkpoint.sources(batch_id), bare)
                run = self._run or self._begin(setup, batch)
            outcome = run.write(batch, phases)
        self.last, self.skipped = outcome.record, outcome.skipped

    def _set_up(self, frame: DataFrame) -> Setup:
        """The setup of the batch's run. All checks here happen before anything is claimed."""
        run = self._run
        if run is not None and run.setup.facts.is_of(frame):
            return run.setup
        exit_after_native_calls()
        facts = query_facts(frame)
        self.options = sink_options(self._given, facts.settings)
        setup = Setup.of(frame, facts, self.options, self.table, self._decode, self._source)
        if run is not None and run.setup.key == setup.key:
            run.renew(setup)
            return setup
        self._end_run(may_stop=False)
        self.reporting.end_run(wait=False)
        self._table, self.error = setup.table, None
        return setup

    def _begin(self, setup: Setup, batch: MicroBatch) -> Run:
        if self._ended is not None:
            # The new run takes over its stream.
            self._ended.may_stop = False
        self._run = Run.claim(setup, batch, self.reporting)
        self._run.start()
        return self._run

    def _end_run(self, *, may_stop: bool) -> None:
        """End the run: start no more jobs. With `may_stop`, `close` may still end the stream cleanly."""
        if (run := self._run) is not None:
            run.end(wait=False)
            run.may_stop = may_stop
            self._run, self._ended, self._table = None, run, run.table
