"""Counters of a running stream: plain values, and the table of metric names.

Counting needs no other package and opens nothing. `server` serves the values to Prometheus; the dashboard and the alert
rules in `ops/` use only these names (a test checks this).
"""

from __future__ import annotations

import json
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Protocol

from headgate import clock
from headgate.caches import cache_usage
from headgate.checkpoints.jobs.state import MaintenanceState
from headgate.checkpoints.log.records import BatchRecord
from headgate.checkpoints.stream.driver import StreamDriver
from headgate.errors import Fenced
from headgate.retry import retries
from headgate.shards.wal.entry import SourceRange

MetricKind = Literal["counter", "gauge", "histogram"]

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
"""Seconds: from a commit on local disk to a batch that waited for maintenance."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A name, and what it means. Every series also has the labels `table` and `stream`."""

    name: str
    kind: MetricKind
    doc: str
    labels: tuple[str, ...] = ()


METRICS = {
    metric.name: metric
    for metric in (
        Metric("headgate_batches_total", "counter", "Batches: committed, skipped (in the log), failed.", ("outcome",)),
        Metric("headgate_rows_total", "counter", "Rows of committed batches."),
        Metric("headgate_bytes_total", "counter", "Bytes of the entries of committed batches."),
        Metric("headgate_dead_letters_total", "counter", "Records that became dead letters."),
        Metric(
            "headgate_batch_seconds",
            "histogram",
            "Seconds of a batch by phase. wait (for maintenance), plan, tasks, commit and total are wall time; decode "
            "(reading and routing included) and append are summed over the tasks.",
            ("phase",),
        ),
        Metric("headgate_last_commit_timestamp_seconds", "gauge", "When the last batch was committed."),
        Metric("headgate_sequence", "gauge", "Sequence of the last record in the commit log."),
        Metric(
            "headgate_lag_rows",
            "gauge",
            "Offsets in Kafka that are not committed to the table yet.",
            ("topic", "partition"),
        ),
        Metric(
            "headgate_lag_seconds", "gauge", "Seconds since the stream was last caught up with Kafka; 0 while it is."
        ),
        Metric(
            "headgate_freshness_seconds",
            "histogram",
            "Age of the oldest and newest record of a batch, by Kafka's timestamp, at the commit.",
            ("record",),
        ),
        Metric(
            "headgate_newest_record_timestamp_seconds",
            "gauge",
            "Kafka timestamp of the newest record in the table. time() minus this is the age of the table.",
        ),
        Metric("headgate_trigger_seconds", "gauge", "Seconds of Spark's last trigger by part.", ("part",)),
        Metric("headgate_unflushed_bytes", "gauge", "Bytes of WAL entries that are not flushed yet.", ("shard",)),
        Metric("headgate_sstables", "gauge", "SSTables that are not compacted into the base yet.", ("shard",)),
        Metric(
            "headgate_base_lag_seconds",
            "gauge",
            "Age of the oldest row that is not in the base yet, since this driver first saw it; 0: none. With "
            "MemTables.",
        ),
        Metric("headgate_epoch", "gauge", "The driver's epoch.", ("shard",)),
        Metric("headgate_fences_total", "counter", "How often another driver took over the stream."),
        Metric("headgate_retries_total", "counter", "Retries by kind: store, task, kafka or ledger.", ("what",)),
        Metric("headgate_ledger_behind", "gauge", "Commit records that are not in the ledger yet."),
        Metric(
            "headgate_store_operations_total",
            "counter",
            "Requests to the object store, by verb; where: the driver, or the tasks of batches.",
            ("verb", "where"),
        ),
        Metric("headgate_flushes_total", "counter", "Flushes of a shard to an SSTable."),
        Metric("headgate_compactions_total", "counter", "Compactions into the base."),
        Metric("headgate_checkpoints_total", "counter", "Table checkpoints taken by the stream."),
        Metric("headgate_failing_jobs", "gauge", "Maintenance jobs whose last try failed."),
        Metric("headgate_delayed", "gauge", "1 while batches wait for maintenance."),
        Metric("headgate_cache_bytes", "gauge", "Bytes that a cache of the process holds.", ("cache",)),
        Metric("headgate_cache_limit_bytes", "gauge", "Bytes that all caches of the process may hold together."),
    )
}


@dataclass(frozen=True, slots=True)
class Sample:
    """One value. A histogram's is (bounds with counts so far, sum)."""

    metric: Metric
    labels: tuple[str, ...]
    value: float | tuple[tuple[tuple[str, float], ...], float]


class Behind(Protocol):
    """A follower of the stream that may fall behind."""

    failures: int

    @property
    def behind(self) -> int:
        """Commit records that it does not have yet."""


class _Histogram:
    """Counts by bucket."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BUCKETS) + 1)
        self._sum = 0.0

    def see(self, seconds: float) -> None:
        self._counts[bisect_left(BUCKETS, seconds)] += 1
        self._sum += seconds

    def reported(self) -> tuple[tuple[tuple[str, float], ...], float]:
        found, so_far = [], 0
        for bound, count in zip((*map(str, BUCKETS), "+Inf"), self._counts, strict=True):
            so_far += count
            found.append((bound, float(so_far)))
        return tuple(found), self._sum


class StreamMetrics:
    """The counters of one sink since its creation. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, tuple[str, ...]]] = Counter()
        self._phases: dict[str, _Histogram] = {}
        self._ages: dict[str, _Histogram] = {}
        self._newest: int | None = None
        self._lag: dict[tuple[str, str], int] = {}
        self._in_flight: dict[tuple[str, str], int] = {}
        self._caught_up: float | None = None
        self._trigger: dict[str, float] = {}
        self._committed_at: float | None = None
        self._driver: StreamDriver | None = None
        self._maintenance: Callable[[], MaintenanceState | None] = lambda: None
        self._kafka_failures: Callable[[], int] = lambda: 0
        self._ledger: Callable[[], Behind | None] = lambda: None
        self.table = ""
        self.stream = ""

    # -- counting ------------------------------------------------------------------

    def watch(
        self,
        table: str,
        driver: StreamDriver,
        maintenance: Callable[[], MaintenanceState | None],
        kafka_failures: Callable[[], int],
        ledger: Callable[[], Behind | None] = lambda: None,
    ) -> None:
        """Set the driver whose shards and maintenance are shown."""
        with self._lock:
            self.table, self.stream = table, driver.stream
            self._driver, self._maintenance, self._kafka_failures = driver, maintenance, kafka_failures
            self._ledger = ledger
            # This run plans an earlier run's batch again, or the log has it.
            self._in_flight = {}

    def planned(self, ranges: Iterable[SourceRange]) -> None:
        """A batch with these offsets begins; they count as lag until it is committed."""
        with self._lock:
            if not any(self._behind().values()):
                self._caught_up = clock.wall()
            self._in_flight = {(one.topic, str(one.partition)): one.until - one.start for one in ranges}

    def committed(self, record: BatchRecord) -> None:
        """Count a committed batch."""
        with self._lock:
            taken, self._in_flight = self._in_flight, {}
            self._left(self._lag | {place: max(0, self._lag.get(place, 0) - rows) for place, rows in taken.items()})
            self._add("headgate_batches_total", 1, "committed")
            self._add("headgate_rows_total", record.rows)
            self._add("headgate_bytes_total", record.nbytes)
            self._add("headgate_dead_letters_total", sum(part.rows for part in record.dead_letters.values()))
            self._committed_at = clock.wall()
            if record.record_times is not None:
                for which, time in zip(("oldest", "newest"), record.record_times, strict=True):
                    self._ages.setdefault(which, _Histogram()).see(max(0.0, self._committed_at - time / 1000))
                self._newest = max(record.record_times[1], self._newest or 0)

    def skipped(self) -> None:
        """Count a skipped batch."""
        with self._lock:
            self._in_flight = {}
            self._add("headgate_batches_total", 1, "skipped")

    def failed(self, error: BaseException) -> None:
        """Count a failed batch."""
        with self._lock:
            self._add("headgate_batches_total", 1, "failed")
            if isinstance(error, Fenced):
                self._add("headgate_fences_total", 1)

    def took(self, seconds: Mapping[str, float]) -> None:
        """Add the seconds of a batch, by phase."""
        with self._lock:
            for phase, took in seconds.items():
                self._phases.setdefault(phase, _Histogram()).see(took)

    def tasks(self, operations: Mapping[str, int], again: Mapping[str, int]) -> None:
        """Add the tasks' store requests and retries."""
        with self._lock:
            for verb, times in operations.items():
                self._add("headgate_store_operations_total", times, verb, "tasks")
            for what, times in again.items():
                self._add("headgate_retries_total", times, what)

    def progress(self, reported: Mapping[str, Any]) -> None:
        """Spark's progress of a trigger, as its JSON has it; see `listener`."""
        behind = lag_of(reported.get("sources") or ())
        with self._lock:
            self._trigger = {part: ms / 1000 for part, ms in (reported.get("durationMs") or {}).items()}
            if behind is not None:
                self._left(behind)

    def _left(self, lag: Mapping[tuple[str, str], int]) -> None:
        """Offsets left in Kafka after the last batch, for all partitions that are read."""
        self._lag = dict(lag)
        if lag and (self._caught_up is None or not any(self._lag.values())):
            self._caught_up = clock.wall()

    def _behind(self) -> dict[tuple[str, str], int]:
        """The lag: what the last batch left in Kafka, or what the current batch reads, whichever is more."""
        places = dict.fromkeys([*self._lag, *self._in_flight])
        return {place: max(self._lag.get(place, 0), self._in_flight.get(place, 0)) for place in places}

    def _add(self, name: str, value: float, *labels: str) -> None:
        self._counts[name, labels] += value  # type: ignore[assignment]

    # -- values --------------------------------------------------------------------

    def behind(self) -> dict[tuple[str, str], int]:
        """Offsets in Kafka that are not committed yet, per topic and partition."""
        with self._lock:
            return self._behind()

    def behind_seconds(self) -> float | None:
        """Seconds since the stream was last caught up; 0 if it is, None if Spark has not reported."""
        with self._lock:
            if self._caught_up is None:
                return None
            return clock.wall() - self._caught_up if any(self._behind().values()) else 0.0

    def samples(self) -> Iterator[Sample]:
        """All current values. Sends no request, and reads nothing of the table."""
        with self._lock:
            counts = dict(self._counts)
            phases = {phase: one.reported() for phase, one in self._phases.items()}
            ages, newest = {which: one.reported() for which, one in self._ages.items()}, self._newest
            lag, trigger = self._behind(), dict(self._trigger)
            driver, maintenance, kafka = self._driver, self._maintenance(), self._kafka_failures()
            caught_up, committed_at, ledger = self._caught_up, self._committed_at, self._ledger()
        for name in ("rows", "bytes", "dead_letters", "fences"):
            counts.setdefault((f"headgate_{name}_total", ()), 0)
        for outcome in ("committed", "skipped", "failed"):
            counts.setdefault(("headgate_batches_total", (outcome,)), 0)
        again = Counter({"store": retries(), "task": 0, "kafka": kafka, "ledger": ledger.failures if ledger else 0})
        for what in again:
            again[what] += counts.pop(("headgate_retries_total", (what,)), 0)
            counts["headgate_retries_total", (what,)] = again[what]
        for (name, labels), count in counts.items():
            yield Sample(METRICS[name], labels, float(count))
        for phase, value in phases.items():
            yield Sample(METRICS["headgate_batch_seconds"], (phase,), value)
        for which, value in ages.items():
            yield Sample(METRICS["headgate_freshness_seconds"], (which,), value)
        if newest is not None:
            yield Sample(METRICS["headgate_newest_record_timestamp_seconds"], (), newest / 1000)
        for (topic, partition), rows in lag.items():
            yield Sample(METRICS["headgate_lag_rows"], (topic, partition), float(rows))
        if caught_up is not None:
            behind = clock.wall() - caught_up if any(lag.values()) else 0.0
            yield Sample(METRICS["headgate_lag_seconds"], (), behind)
        for part, seconds in trigger.items():
            yield Sample(METRICS["headgate_trigger_seconds"], (part,), seconds)
        if committed_at is not None:
            yield Sample(METRICS["headgate_last_commit_timestamp_seconds"], (), committed_at)
        if ledger is not None:
            yield Sample(METRICS["headgate_ledger_behind"], (), float(ledger.behind))
        if driver is not None:
            yield from _of_driver(driver)
        if maintenance is not None:
            yield from _of_maintenance(maintenance)
        usage = cache_usage()
        for name, nbytes in usage.nbytes.items():
            yield Sample(METRICS["headgate_cache_bytes"], (name,), float(nbytes))
        yield Sample(METRICS["headgate_cache_limit_bytes"], (), float(usage.limit))


def lag_of(sources: Any) -> dict[tuple[str, str], int] | None:
    """Offsets in Kafka after those that the trigger took, per topic and partition. None if no source is Kafka."""
    found: dict[tuple[str, str], int] | None = None
    for source in sources:
        latest, end = _offsets(source.get("latestOffset")), _offsets(source.get("endOffset"))
        if latest is None or end is None:
            continue
        found = found or {}
        for topic, partitions in latest.items():
            for partition, last in partitions.items():
                found[topic, partition] = max(0, last - end.get(topic, {}).get(partition, 0))
    return found


def _offsets(reported: Any) -> dict[str, dict[str, int]] | None:
    """Kafka's offsets as Spark reports them: as JSON, or as a text that contains JSON."""
    if isinstance(reported, str):
        try:
            reported = json.loads(reported)
        except ValueError:
            return None
    if not isinstance(reported, dict) or not all(isinstance(one, dict) for one in reported.values()):
        return None
    return reported


def _of_driver(driver: StreamDriver) -> Iterator[Sample]:
    yield Sample(METRICS["headgate_sequence"], (), float(driver.head.sequence))
    for name, claim in driver.claims.items():
        yield Sample(METRICS["headgate_epoch"], (name,), float(claim.epoch))
    for load in driver.loads():
        yield Sample(METRICS["headgate_unflushed_bytes"], (load.name,), float(load.nbytes))
        yield Sample(METRICS["headgate_sstables"], (load.name,), float(load.sstables))
    home = driver.home
    stores = {id(store.counting): store.counting for store in (home.store, home.wal_store, home.records)}
    asked = sum((Counter(store.operations()) for store in stores.values()), Counter[str]())
    for verb, times in asked.items():
        yield Sample(METRICS["headgate_store_operations_total"], (verb, "driver"), float(times))


def _of_maintenance(state: MaintenanceState) -> Iterator[Sample]:
    since = None if state.base_since is None else datetime.fromisoformat(state.base_since)
    lag = 0.0 if since is None else (clock.now() - since).total_seconds()
    yield Sample(METRICS["headgate_base_lag_seconds"], (), lag)
    yield Sample(METRICS["headgate_flushes_total"], (), float(state.flushes))
    yield Sample(METRICS["headgate_compactions_total"], (), float(state.compactions))
    yield Sample(METRICS["headgate_checkpoints_total"], (), float(state.checkpoints))
    yield Sample(METRICS["headgate_failing_jobs"], (), float(len(state.failures)))
    yield Sample(METRICS["headgate_delayed"], (), float(state.delayed is not None))
