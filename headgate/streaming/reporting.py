"""A sink's outputs besides the table: metrics, Prometheus, a console, Kafka's consumer group, a ledger. They never fail
a batch.

Nothing listens and no thread runs before the first batch of a run; everything runs in the sink's process. Picklable
like a sink: without its threads, and with counters at zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
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
from headgate.streaming.observe.live import LiveSink
from headgate.streaming.observe.metrics import StreamMetrics
from headgate.streaming.options import SinkOptions
from headgate.streaming.write.job import Written
from headgate.table.table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headgate.streaming.observe.console import Showing
    from headgate.streaming.observe.server import Serving

_log = structlog.get_logger("headgate.streaming")


class Reporting:
    """Reporting of one sink, over all its runs."""

    def __init__(self) -> None:
        self.metrics = StreamMetrics()
        self.live = LiveSink(self.metrics)
        """The stream's state for the console of this process."""
        self._showing: Showing | None = None
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
        if options.ui_port is not None:
            from headgate.streaming.observe.console import check_address

            check_address(options.ui_host, options.ui_port)
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
        self.live.watch(driver, maintenance)
        if run is not None and not (options.metrics_port is None and options.ui_port is None):
            self._unlisten = _listening(run, self._progressed)
        if options.metrics_port is not None and self._serving is None:
            from headgate.streaming.observe.server import serve

            self._serving = serve(self.metrics, options.metrics_host, options.metrics_port)
        self.show(table, driver.stream, options)

    def show(self, table: Table, stream: str, options: SinkOptions) -> str | None:
        """Open the console if one is configured; it shows the stream even before its first batch. Returns its
        address.
        """
        if options.ui_port is not None and self._showing is None:
            from headgate.streaming.observe.console import show

            self._showing = show(table, stream, self.live, options.ui_host, options.ui_port)
        return None if self._showing is None else self._showing.url

    def planned(self, ranges: Iterable[SourceRange]) -> None:
        """Note the offsets of a batch that begins. They count as lag only if Spark also reports Kafka's end offsets."""
        if self._unlisten is not None:
            self.metrics.planned(ranges)

    def written(self, written: Written) -> None:
        self.metrics.tasks(written.operations, written.retries)
        self.live.written(written.retries)

    def committed(self, driver: StreamDriver, record: BatchRecord) -> None:
        self.metrics.committed(record)
        self.live.committed(record)
        if self._showing is not None:
            self._showing.changed()
        if self._progress is not None:
            self._progress.update(driver.head.ends)
        if self._ledger is not None:
            self._ledger.update(record.sequence)

    def took(self, batch_id: int, seconds: Mapping[str, float]) -> None:
        """Add the seconds of a batch, by phase."""
        self.metrics.took(seconds)
        self.live.took(batch_id, seconds)

    def failed(self, error: BaseException) -> None:
        """Report a failed batch."""
        self.metrics.failed(error)
        self.live.failed(error)

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
        showing, self._showing = self._showing, None
        if showing is not None:
            showing.close()

    def __reduce__(self) -> Any:
        return Reporting, ()

    def _progressed(self, reported: Mapping[str, Any]) -> None:
        self.metrics.progress(reported)
        self.live.progress(reported)

    def _kafka_failures(self) -> int:
        return 0 if self._progress is None else self._progress.failures


def _listening(run: Any, progress: Callable[[Mapping[str, Any]], None]) -> Callable[[], None] | None:
    """Add the listener. None if Spark does not accept one; then only its metrics are missing."""
    try:
        return listen(run, progress)
    except Exception as error:
        _log.warning("adding a Spark listener failed: lag and triggers are not shown", error=type(error).__name__)
        return None
