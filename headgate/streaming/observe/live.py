"""The state of a sink's stream for the console of the same process: from memory, without any request to a store."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from headgate import clock
from headgate.checkpoints.jobs.state import MaintenanceState
from headgate.checkpoints.log.records import BatchRecord
from headgate.checkpoints.log.state import RECENT, Head
from headgate.checkpoints.stream.driver import StreamDriver
from headgate.console.watch.live import BatchTiming, ShardHeld
from headgate.errors import HeadgateError
from headgate.streaming.observe.metrics import StreamMetrics


class LiveSink:
    """The state of one sink, over all its runs. Thread-safe."""

    def __init__(self, metrics: StreamMetrics) -> None:
        self._metrics = metrics
        self._lock = threading.Lock()
        self._driver: StreamDriver | None = None
        self._maintenance: Callable[[], MaintenanceState | None] = lambda: None
        self._batches: OrderedDict[int, BatchTiming] = OrderedDict()
        """The last batches, by batch id."""
        self._retries: Mapping[str, int] = {}
        self._failure: str | None = None

    # -- updates from the sink -------------------------------------------------------

    def watch(self, driver: StreamDriver, maintenance: Callable[[], MaintenanceState | None]) -> None:
        """Set the driver of a run that took over the stream."""
        with self._lock:
            self._driver, self._maintenance, self._failure = driver, maintenance, None

    def written(self, retries: Mapping[str, int]) -> None:
        """Note the retries of a batch whose tasks have ended."""
        with self._lock:
            self._retries = dict(retries)

    def committed(self, record: BatchRecord) -> None:
        """Note a committed batch."""
        with self._lock:
            self._batches[record.batch_id] = BatchTiming(record.sequence, clock.wall(), {}, self._retries)
            self._retries = {}
            while len(self._batches) > RECENT:
                self._batches.popitem(last=False)

    def took(self, batch_id: int, seconds: Mapping[str, float]) -> None:
        """Note the seconds of a batch, by phase."""
        self._add(batch_id, seconds)

    def progress(self, reported: Mapping[str, Any]) -> None:
        """Note Spark's own time of a trigger: its total without the sink's batch."""
        took = reported.get("durationMs") or {}
        if "triggerExecution" in took and "addBatch" in took:
            self._add(reported.get("batchId"), {"spark": max(0, took["triggerExecution"] - took["addBatch"]) / 1000})

    def failed(self, error: BaseException) -> None:
        """Note the error of a failed batch. Only headgate's own texts are kept: others may contain credentials."""
        kind = type(error).__name__
        with self._lock:
            self._failure = f"{kind}: {error.what}" if isinstance(error, HeadgateError) else f"{kind}: see Spark's log"

    def _add(self, batch_id: object, seconds: Mapping[str, float]) -> None:
        with self._lock:
            known = self._batches.get(batch_id) if isinstance(batch_id, int) else None
            if known is not None and isinstance(batch_id, int):
                self._batches[batch_id] = replace(known, seconds={**known.seconds, **seconds})

    # -- for the console -------------------------------------------------------------

    def head(self) -> Head | None:
        """The stream's head; None before the first batch."""
        driver = self._driver
        return None if driver is None else driver.head

    def held(self) -> Sequence[ShardHeld]:
        """Unflushed bytes and SSTables of each shard."""
        driver = self._driver
        loads = [] if driver is None else driver.loads()
        return [ShardHeld(one.name, one.nbytes, one.sstables) for one in loads]

    def maintenance(self) -> MaintenanceState | None:
        """The state of maintenance; None if none runs."""
        return self._maintenance()

    def batches(self) -> Sequence[BatchTiming]:
        """The last batches, oldest first."""
        with self._lock:
            return list(self._batches.values())

    def lag(self) -> Mapping[tuple[str, int], int]:
        """Offsets in Kafka that are not committed yet, per partition, as far as Spark has reported."""
        return {(topic, int(partition)): rows for (topic, partition), rows in self._metrics.behind().items()}

    def lag_seconds(self) -> float | None:
        """Seconds since the stream was last caught up; 0 if it is, None if Spark has not reported."""
        return self._metrics.behind_seconds()

    def failure(self) -> str | None:
        """The error that stopped it: class and first sentence."""
        with self._lock:
            return self._failure
