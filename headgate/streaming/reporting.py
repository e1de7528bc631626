"""A sink's outputs besides the table: metrics, Prometheus, Kafka's consumer group, a ledger. They never fail a batch.

Nothing listens and no thread runs before the first batch of a run; everything runs in the sink's process. Picklable
like a sink: without its threads, and with counters at zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import structlog

from headgate.checkpoints.jobs.state import MaintenanceState
from headgate.checkpoints.log.records import BatchRecord
from headgate.checkpoints.stream.driver import StreamDriver
from headgate.connectors.extras import needs
from headgate.connectors.kafka.options import ConsumerConfig
from headgate.shards.wal.entry import SourceRange
from headgate.streaming.delta.ledger import Ledger
from headgate.streaming.delta.tables import DeltaName, check_delta
from headgate.streaming.observe.group import KafkaProgress
from headgate.streaming.observe.listener import listen
from headgate.streaming.observe.metrics import StreamMetrics
from headgate.streaming.options import SinkOptions
from headgate.streaming.write.job import Written
from headgate.table.table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headgate.streaming.observe.server import Serving

_log = structlog.get_logger("headgate.streaming")


class Reporting:
    """Reporting of one sink, over all its runs."""

    def __init__(self) -> None:
        self.metrics = StreamMetrics()
        self._progress: KafkaProgress | None = None
        self._serving: Serving | None = None
        self._ledger: Ledger | None = None
        self._unlisten: Callable[[], None] | None = None

    @staticmethod
    def check(options: SinkOptions, session: SparkSession) -> None:
        """Before anything is claimed. Raises InvalidInput if a package is missing or a name is invalid."""
        if options.metrics_port is not None:
            from headgate.streaming.observe.server import check_installed

            check_installed()
        if options.ledger is not None:
            DeltaName(options.ledger, "ledger")
            check_delta(session, "ledger=")
        if options.commit_to_kafka is not None:
            with needs():
                import confluent_kafka  # noqa: F401 - the thread that writes offsets would only warn

    def begin(
        self,
        session: SparkSession,
        table: Table,
        driver: StreamDriver,
        options: SinkOptions,
        maintenance: Callable[[], MaintenanceState | None],
        group: ConsumerConfig | None,
        run: Any,
    ) -> None:
        """Start reporting of a run. `run` is Spark's object for it, None if unknown."""
        opened = driver.head.opened
        query = None if opened is None else opened.query_id
        if group is not None:
            self._progress = KafkaProgress(group, str(options.commit_to_kafka), driver.stream, query)
            self._progress.update(driver.head.ends)
        if options.ledger is not None:
            self._ledger = Ledger(session, table, driver.stream, DeltaName(options.ledger, "ledger"), query)
            self._ledger.update(driver.head.sequence)
        self.metrics.watch(
            driver.home.uri,
            driver,
            maintenance,
            kafka_failures=self._kafka_failures,
            ledger=lambda: self._ledger,
        )
        if options.metrics_port is not None:
            from headgate.streaming.observe.server import serve

            if run is not None:
                self._unlisten = _listening(run, self.metrics)
            if self._serving is None:
                self._serving = serve(self.metrics, options.metrics_host, options.metrics_port)

    def planned(self, ranges: Iterable[SourceRange]) -> None:
        """A batch begins. Its offsets count as lag only if Spark also reports Kafka's end offsets."""
        if self._unlisten is not None:
            self.metrics.planned(ranges)

    def written(self, written: Written) -> None:
        self.metrics.tasks(written.operations, written.retries)

    def committed(self, driver: StreamDriver, record: BatchRecord) -> None:
        self.metrics.committed(record)
        if self._progress is not None:
            self._progress.update(driver.head.ends)
        if self._ledger is not None:
            self._ledger.update(record.sequence)

    @property
    def ledger(self) -> Ledger | None:
        """The run's ledger."""
        return self._ledger

    @property
    def port(self) -> int | None:
        """The port for Prometheus; None if there is no server."""
        return None if self._serving is None else self._serving.port

    def end_run(self, *, wait: bool) -> None:
        """End reporting of a run. With `wait`, wait some time until Kafka and the ledger are up to date."""
        followers = [one for one in (self._progress, self._ledger) if one is not None]
        self._progress = self._ledger = None
        for follower in followers:
            follower.stop(wait=wait)
        unlisten, self._unlisten = self._unlisten, None
        if unlisten is not None:
            unlisten()

    def close(self) -> None:
        """End all reporting."""
        self.end_run(wait=True)
        serving, self._serving = self._serving, None
        if serving is not None:
            serving.close()

    def __reduce__(self) -> Any:
        return Reporting, ()

    def _kafka_failures(self) -> int:
        return 0 if self._progress is None else self._progress.failures


def _listening(run: Any, metrics: StreamMetrics) -> Callable[[], None] | None:
    """Add the listener. None if Spark does not accept one; then only its metrics are missing."""
    try:
        return listen(run, metrics.progress)
    except Exception as error:
        _log.warning("adding a Spark listener failed: lag and triggers are not shown", error=type(error).__name__)
        return None
