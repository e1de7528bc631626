"""What a sink knows of its stream, for the console of the same process: from memory, no request to any store."""

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
    """Of one sink, over all its runs. Any thread may ask."""

    def __init__(self, metrics: StreamMetrics) -> None:
        self._metrics = metrics
        self._lock = threading.Lock()
        self._driver: StreamDriver | None = None
        self._maintenance: Callable[[], MaintenanceState | None] = lambda: None
        self._batches: OrderedDict[int, BatchTiming] = OrderedDict()
        """By batch id, the last ones."""
        self._retries: Mapping[str, int] = {}
        self._failure: str | None = None

    # -- telling ---------------------------------------------------------------------

    def watch(self, driver: StreamDriver, maintenance: Callable[[], MaintenanceState | None]) -> None:
        """A run has its stream."""
        with self._lock:
            self._driver, self._maintenance, self._failure = driver, maintenance, None

    def written(self, retries: Mapping[str, int]) -> None:
        """The tasks of a batch are done."""
        with self._lock:
            self._retries = dict(retries)

    def committed(self, record: BatchRecord) -> None:
        """A batch has its record."""
        with self._lock:
            self._batches[record.batch_id] = BatchTiming(record.sequence, clock.wall(), {}, self._retries)
            self._retries = {}
            while len(self._batches) > RECENT:
                self._batches.popitem(last=False)

    def took(self, batch_id: int, seconds: Mapping[str, float]) -> None:
        """What a batch took by phase."""
        self._add(batch_id, seconds)

    def progress(self, reported: Mapping[str, Any]) -> None:
        """Spark's progress of a trigger: what is left of it beside the sink is Spark's own."""
        took = reported.get("durationMs") or {}
        if "triggerExecution" in took and "addBatch" in took:
            self._add(reported.get("batchId"), {"spark": max(0, took["triggerExecution"] - took["addBatch"]) / 1000})

    def failed(self, error: BaseException) -> None:
        """A batch ended with an error; the text of one that is not ours might hold a credential."""
        kind = type(error).__name__
        with self._lock:
            self._failure = f"{kind}: {error.what}" if isinstance(error, HeadgateError) else f"{kind}: see Spark's log"

    def _add(self, batch_id: object, seconds: Mapping[str, float]) -> None:
        with self._lock:
            known = self._batches.get(batch_id) if isinstance(batch_id, int) else None
            if known is not None and isinstance(batch_id, int):
                self._batches[batch_id] = replace(known, seconds={**known.seconds, **seconds})

    # -- asking ----------------------------------------------------------------------

    def head(self) -> Head | None:
        """Where it stands; None before its first batch."""
        driver = self._driver
        return None if driver is None else driver.head

    def held(self) -> Sequence[ShardHeld]:
        """What its shards hold."""
        driver = self._driver
        loads = [] if driver is None else driver.loads()
        return [ShardHeld(one.name, one.nbytes, one.sstables) for one in loads]

    def maintenance(self) -> MaintenanceState | None:
        """How its maintenance stands; None where none runs."""
        return self._maintenance()

    def batches(self) -> Sequence[BatchTiming]:
        """Its last batches, oldest first."""
        with self._lock:
            return list(self._batches.values())

    def lag(self) -> Mapping[tuple[str, int], int]:
        """What Kafka has and no commit record, as far as Spark has said."""
        return {(topic, int(partition)): rows for (topic, partition), rows in self._metrics.behind().items()}

    def lag_seconds(self) -> float | None:
        """Since when something is behind; 0: nothing is."""
        return self._metrics.behind_seconds()

    def failure(self) -> str | None:
        """What stopped it: the class of the error and its sentence."""
        with self._lock:
            return self._failure
