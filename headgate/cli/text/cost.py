"""S3 requests and dollars per month of a stream, computed from the protocol. Pure functions.

A batch costs one PUT per entry and one for its commit record; no GET, no LIST. Everything else runs on a schedule. The
requests of a flush, compaction or checkpoint were counted on an S3 server, for both clients, and rounded up
(`tests/s3/test_cost_requests.py` counts again). No discount or region is assumed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Literal

from headgate.checkpoints.log.fold import FOLD_EVERY
from headgate.checkpoints.stream.backlog import MAX_ENTRIES
from headgate.errors import InvalidInput
from headgate.streaming.options import SinkOptions

MONTH = 730 * 3600
"""Seconds: 730 hours, as AWS counts."""

DAY = 86400

Sharding = Literal["by_partition", "bucket"]


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests by price class: HEAD costs as GET, a multipart POST as PUT, DELETE is free."""

    put: float = 0.0
    get: float = 0.0
    list: float = 0.0

    def __add__(self, other: Requests) -> Requests:
        return Requests(self.put + other.put, self.get + other.get, self.list + other.list)

    def times(self, number: float) -> Requests:
        return Requests(self.put * number, self.get * number, self.list * number)


@dataclass(frozen=True)
class Prices:
    """Dollars. The defaults are S3 Standard's list prices in us-east-1; pass your own."""

    put_per_1000: float = 0.005
    get_per_1000: float = 0.0004
    list_per_1000: float = 0.005
    gb_month: float = 0.023

    def of(self, requests: Requests) -> float:
        return (
            requests.put * self.put_per_1000 + requests.get * self.get_per_1000 + requests.list * self.list_per_1000
        ) / 1000


# -- what one job costs, counted ------------------------------------------------------

TIDY_SECONDS = INDEX_SECONDS = 600.0
COLUMNS_SECONDS = 60.0
"""Seconds, from the stream's schedule."""

ENTRY = RECORD = Requests(put=1)
FOLD = Requests(put=1, list=2)
"""Old records are deleted, which is free."""
FLUSH = Requests(put=7, get=5, list=7)
"""For one shard, plus a GET per entry: the SSTable's own files, then the shard's manifest and its hint."""
TIDYING = Requests(put=1, get=5, list=7)
LOOK = Requests(get=1, list=1)
"""One check of the table's columns, or of its indexes."""


def opening(shards: int) -> Requests:
    """A start: claims, barriers, tips, the open record."""
    return Requests(put=1, get=1, list=2) + Requests(put=2, get=5, list=4).times(shards)


def compaction(shards: int, sstables: int) -> Requests:
    """One round that takes so many SSTables of each shard. Large ones are read in more pieces."""
    per_shard = Requests(put=2, get=3, list=4) + Requests(get=2, list=1).times(sstables)
    return Requests(put=3, get=9, list=4) + per_shard.times(shards)


def checkpoint(shards: int) -> Requests:
    """Without the flushes that it brings about: those are counted as flushes."""
    return Requests(put=3, get=12, list=7) + Requests(get=3, list=6).times(shards)


def collection(shards: int) -> Requests:
    """One look, beside a GET per WAL entry that goes."""
    return Requests(get=2, list=8) + Requests(get=5, list=2).times(shards)


_SINK = SinkOptions()
"""Its defaults."""


@dataclass(frozen=True)
class Workload:
    """What a stream does. The defaults of its options are the sink's own."""

    partitions: int
    trigger: float
    """Seconds between batches."""
    shards: int
    rows_per_day: float | None = None
    """None: every batch has rows for every shard, and sizes are not known."""
    row_bytes: int = 200
    """As they are stored in an entry."""
    memtable: bool = True
    flush_bytes: int = _SINK.max_memtable_size
    flush_seconds: float = _SINK.memtable_seconds
    compact_sstables: int = _SINK.compact_sstables
    checkpoint_seconds: float = _SINK.checkpoint_seconds
    max_entry_bytes: int = _SINK.max_entry_bytes
    starts_per_month: float = 10.0
    gc_per_day: float = 86_400 / _SINK.gc_seconds
    keep_days: float = 30.0
    """How long the rows of a day are stored."""

    def __post_init__(self) -> None:
        free = ("starts_per_month", "gc_per_day", "keep_days", "rows_per_day")
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(value, int | float) and not isinstance(value, bool) and (value < 0 or not value):
                if one.name in free and value == 0:
                    continue
                raise InvalidInput(f"{one.name.replace('_', ' ')} must be above zero, got {value}.")

    @property
    def batches(self) -> float:
        """Per month. Spark runs none without new rows."""
        most = MONTH / self.trigger
        return most if self.rows_per_day is None else min(most, self.rows_per_day * MONTH / DAY)

    @property
    def rows_per_batch(self) -> float | None:
        """None: not known."""
        return None if self.rows_per_day is None or not self.batches else self.rows_per_day * MONTH / DAY / self.batches

    def entries_per_batch(self) -> float:
        """One per shard with rows, more if a shard's rows exceed one entry. Rows are spread evenly."""
        rows = self.rows_per_batch
        if rows is None:
            return float(self.shards)
        taken = self.shards * (1 - float((1 - 1 / self.shards) ** rows))
        size = rows * self.row_bytes / self.shards
        return max(min(rows, 1.0), taken) * max(1.0, -(-size // self.max_entry_bytes))


@dataclass(frozen=True, slots=True)
class Line:
    """One kind of work: how often per month, and its requests."""

    what: str
    times: float
    requests: Requests


def monthly(work: Workload) -> list[Line]:
    """All requests of a stream in a month."""
    batches = work.batches
    entries = work.entries_per_batch() * batches
    collections = work.gc_per_day * MONTH / DAY
    read = Requests(get=entries if work.memtable and collections else 0)
    checkpoints = min(MONTH / work.checkpoint_seconds, batches)
    lines = [
        Line("entries of batches", entries, ENTRY.times(entries)),
        Line("commit records", batches, RECORD.times(batches)),
        _line("folds of the log", batches / FOLD_EVERY, FOLD),
        _line("checkpoints", checkpoints, checkpoint(work.shards)),
        _line("checks of the columns", MONTH / COLUMNS_SECONDS, LOOK),
        _line("starts", work.starts_per_month, opening(work.shards)),
        Line("garbage collections", collections, collection(work.shards).times(collections) + read),
    ]
    return [*lines, *_flushing(work, entries)] if work.memtable else lines


def _line(what: str, times: float, each: Requests) -> Line:
    return Line(what, times, each.times(times))


def _flushing(work: Workload, entries: float) -> Iterator[Line]:
    """A shard is flushed when it is large, old or has many entries, and by checkpoints; never more often than rows
    arrive.
    """
    per_shard = entries / work.shards
    by_age = MONTH / min(work.flush_seconds, work.checkpoint_seconds)
    by_count = per_shard / MAX_ENTRIES
    by_size = 0.0
    if work.rows_per_day is not None:
        by_size = work.rows_per_day * work.row_bytes * MONTH / DAY / work.shards / work.flush_bytes
    flushes = work.shards * min(per_shard, max(by_age, by_count, by_size))
    # Every entry is read once, to become an SSTable.
    yield Line("flushes", flushes, FLUSH.times(flushes) + Requests(get=entries))
    rounds = flushes / work.shards / work.compact_sstables
    yield _line("compactions", rounds, compaction(work.shards, work.compact_sstables))
    yield _line("cleanup of the base", min(rounds, MONTH / TIDY_SECONDS), TIDYING)
    yield _line("checks of the indexes", rounds + MONTH / INDEX_SECONDS, LOOK)


def stored_gb(work: Workload) -> float | None:
    """Gigabytes at the end of the first `keep_days`; None where rows are not known."""
    return None if work.rows_per_day is None else work.rows_per_day * work.row_bytes * work.keep_days / 1e9
