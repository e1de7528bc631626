"""State of a stream's maintenance: values, and a hint in the table's records from which `headgate
status` shows them.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import ClassVar

from headgate import clock
from headgate.checkpoints.log.names import folder_name
from headgate.connectors.objects import ObjectStore
from headgate.errors import HeadgateError
from headgate.records import decode, encode

ROOT = "maintenance/"
"""Below the folder of the table's own records."""


@dataclass(frozen=True, slots=True)
class JobFailure:
    """A job that failed and is retried."""

    job: str
    times: int
    """Consecutive failures."""
    error: str
    since: str
    next_try: str


@dataclass(frozen=True, slots=True)
class JobProgress:
    """How far a running job is."""

    job: str
    since: str
    done: int = 0
    total: int = 0
    """0 if unknown."""


@dataclass(frozen=True, slots=True)
class Delayed:
    """Batches are being delayed."""

    reason: str
    """"unflushed bytes" or "sstables"."""
    detail: str
    since: str


@dataclass(frozen=True, slots=True)
class Collected:
    """Result of a garbage collection."""

    at: str
    objects: int
    nbytes: int
    kept: tuple[str, ...] = ()
    """What could not be judged or must not be deleted, and why."""


@dataclass(frozen=True)
class MaintenanceState:
    """Counts start when the driver took over the stream; times are the driver's, for people."""

    UNSEALED: ClassVar = True
    stream: str
    flushes: int = 0
    sstables_compacted: int = 0
    compactions: int = 0
    checkpoints: int = 0
    indexed: int = 0
    """Segments of full-text indexes."""
    collected: Collected | None = None
    """The last collection of garbage, by this driver or an earlier one."""
    collects_since: str = ""
    """Start of the wait for the next collection."""
    unflushed_bytes: int = 0
    sstables: int = 0
    """SSTables of the shard that has most."""
    base_since: str | None = None
    """Since when rows have been waiting that plain Lance readers do not see yet, as far as this driver knows; None if
    none wait.
    """
    running: tuple[str, ...] = ()
    progress: tuple[JobProgress, ...] = ()
    """Of the running jobs."""
    failures: tuple[JobFailure, ...] = ()
    delayed: Delayed | None = None
    cached_bytes: int | None = None
    """Bytes held by the caches of the driver's process; None if unknown."""
    cache_limit: int | None = None
    notes: tuple[str, ...] = ()
    """What the operator should do, such as a restart for new columns."""
    at: str = field(default="")


def timestamp(ago: float = 0.0) -> str:
    """The current time, or the time that many seconds ago, for people."""
    return (clock.now() - timedelta(seconds=ago)).isoformat(timespec="seconds")


def seconds_since(time: str) -> float | None:
    """Seconds since that time, by this machine's clock; None if it is not a valid time."""
    try:
        return max(0.0, (clock.now() - datetime.fromisoformat(time)).total_seconds())
    except (ValueError, TypeError):
        return None


def put_state(records: ObjectStore, state: MaintenanceState) -> None:
    """Write the hint. Errors are ignored."""
    with suppress(HeadgateError):
        records.put_overwrite(_key(state.stream), encode(state))


def read_state(records: ObjectStore, stream: str) -> MaintenanceState | None:
    """The hint of a stream; None if it is missing or unreadable."""
    try:
        return decode(MaintenanceState, records.get(_key(stream)), "The maintenance state")
    except HeadgateError:
        return None


def _key(stream: str) -> str:
    return f"{ROOT}{folder_name(stream, 'stream')}.json"
