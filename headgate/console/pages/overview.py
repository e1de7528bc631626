"""The first page: every table and stream with its verdict and the reasons."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from headgate import clock
from headgate.console.pages.charts import Spark, sparkline
from headgate.console.pages.words import seconds
from headgate.console.watch.now import StreamNow, TableNow
from headgate.console.watch.verdict import SHOWN, WORST_FIRST, Verdict
from headgate.console.watch.watcher import Watcher

TABLES_SHOWN = 30
"""Tables per page."""


@dataclass(frozen=True)
class StreamLine:
    """One stream on the first page."""

    name: str
    verdict: Verdict
    rows_per_second: float
    lag_rows: int | None
    lag_seconds: float | None
    lag_note: str
    """How long rows wait, or why the lag is unknown."""
    committed: datetime | None
    batch: int | None
    unflushed: int | None
    chart: Spark


@dataclass(frozen=True)
class TableLine:
    """One table on the first page."""

    key: str
    place: str
    verdict: Verdict
    streams: tuple[StreamLine, ...]
    shards: int


def overview(watcher: Watcher, page: int) -> dict[str, Any]:
    """The values of the page."""
    now, monotonic = clock.now(), clock.monotonic()
    tables = [_table(one, now, monotonic) for one in watcher.now()]
    words = Counter(stream.verdict.word for table in tables for stream in table.streams)
    words.update(table.verdict.word for table in tables if not table.streams)
    tables.sort(key=lambda one: (WORST_FIRST.index(one.verdict.word), one.key))
    first = (page - 1) * TABLES_SHOWN
    return {
        "tables": tables[first : first + TABLES_SHOWN],
        "total": len(tables),
        "page": page,
        "pages": max(1, -(-len(tables) // TABLES_SHOWN)),
        "words": [(word, SHOWN[word], words[word]) for word in WORST_FIRST if words[word]],
        "errors": watcher.errors(),
        "rows_per_second": sum(one.rows_per_second for table in tables for one in table.streams),
    }


def stream_line(table: TableNow, stream: StreamNow, now: datetime, monotonic: float) -> StreamLine:
    """The figures of one stream."""
    log, lag, waited = stream.log, table.lag(stream), table.lag_seconds(stream, monotonic)
    return StreamLine(
        stream.name,
        table.verdict(stream, now, monotonic),
        log.rows_per_second(now),
        sum(lag.values()) if lag else None,
        waited,
        seconds(waited) if waited else "" if lag else table.why_no_lag(stream),
        log.last_at,
        None if log.last is None else log.last.batch_id,
        table.unflushed_bytes(stream),
        sparkline(log.history(now)),
    )


def _table(table: TableNow, now: datetime, monotonic: float) -> TableLine:
    verdict, _ = table.verdicts(now, monotonic)
    streams = tuple(stream_line(table, one, now, monotonic) for _, one in sorted(table.streams.items()))
    return TableLine(table.key, table.place.shown, verdict, streams, len(table.shard_ids))
