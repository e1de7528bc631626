"""The ledger of a stream: its commit log as rows of a Delta table, to find the position of an offset with Spark SQL.

Promises:
1. Off the hot path: a batch only notes that there is a new record; a separate thread reads it from the commit log and
   writes the rows. A failed write is retried, and never fails, delays or stops a batch.
2. The commit log is authoritative. A ledger has the rows of each record exactly once, after any crash: it continues
   after the last sequence in the Delta table. From a ledger's first run on, records are archived before they leave the
   log (see `ledger_feed`), so that a dropped ledger, or deleted rows, can be rebuilt exactly.
3. Records that were folded before the first ledger started are shown as rows of kind `folded`; every offset that the
   stream has read is in some row.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import structlog

from headgate.connectors.objects import scrubbed
from headgate.errors import Fenced, HeadgateError, Transient
from headgate.streaming.delta.ledger_feed import LedgerFeed, LedgerPin, LogChunk
from headgate.streaming.delta.ledger_rows import LedgerKey, ledger_table
from headgate.streaming.delta.ledger_table import LedgerTable
from headgate.streaming.delta.tables import DeltaName, check_delta
from headgate.streaming.observe.follower import Follower
from headgate.table.table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = structlog.get_logger("headgate.streaming")

CHUNK = 1000
"""Maximum records per Delta transaction while a ledger catches up or is rebuilt; see `LedgerFeed.read`."""


class Ledger(Follower[int]):
    """Follows one stream. `update` takes the sequence of the last record."""

    patience = 30.0

    def __init__(
        self, spark: SparkSession, table: Table, stream: str, name: DeltaName, query: str | None = None
    ) -> None:
        facts = {"stream": stream, "query": query, "ledger": name.shown}
        super().__init__("ledger", self._catch_up, self._log_try, facts)
        self._table = table
        self._stream = stream
        self._rows = LedgerTable(spark, name, _key(table, stream))
        self._feed = LedgerFeed(table.home, stream)
        self._pin = LedgerPin(table.home, stream, name.shown)
        self._at: int | None = None
        self._fresh = True

    @property
    def behind(self) -> int:
        """Commit records that it does not have yet."""
        return max(0, (self._wanted or 0) - (self._at or 0))

    def stop(self, *, wait: bool = True) -> bool:
        """Stop the thread; logs what is left."""
        current = super().stop(wait=wait)
        if wait and not current:
            _log.warning(
                "the stream stopped before its ledger was complete; the next start continues it",
                behind=self.behind,
                **self._facts,
            )
        if current and self._at is not None:
            with suppress(HeadgateError):
                self._pin.move(self._at, now=True)
        return current

    def _catch_up(self, sequence: int) -> None:
        try:
            if self._at is None:
                self._pin.take()
                self._rows.create()
                self._at = self._rows.stands_at()
            while self._at < sequence and not self.is_stopped:
                self._at = self._put(self._at)
            self._fresh = False
            self._pin.move(self._at)
        except Fenced as error:
            _log.info("another run writes the ledger now", error=str(error))
            self.give_up()

    def _put(self, at: int) -> int:
        chunk = self._feed.read(at, lambda: self._rows.ends(at), CHUNK)
        if chunk.parts:
            rows = _rows_of(self._table, self._stream, chunk)
            # The first catch-up of a run replaces existing rows: rows may have been deleted from the ledger, and Delta
            # would ignore a repeated `put` of rows that it already recorded.
            (self._rows.replace if self._fresh else self._rows.put)(rows, at, chunk.upto)
        self._pin.move(chunk.upto)
        return chunk.upto

    def _log_try(self, failed: Exception | None, first: bool) -> None:
        if failed is None:
            if self.is_failing:
                _log.info("the ledger has caught up again", sequence=self._at)
        else:
            why = short(failed)
            if first:
                _log.warning("writing the ledger failed; it is retried", behind=self.behind, error=why)
            with suppress(HeadgateError):
                self._pin.complain(why)


@dataclass(frozen=True)
class LedgerRebuild:
    """What a rebuild did, or would do."""

    stream: str
    ledger: str
    applied: bool
    records: int
    """Commit records in the log or its archive."""
    rows: int
    """Rows made from them."""
    replaced: int
    """Rows of the ledger that they replace."""
    kept: int
    """Rows whose records are in neither the log nor its archive: the ledger is their only copy."""
    lost_upto: int
    """The last sequence that is in neither the log, its archive, nor the ledger; 0: none."""


def rebuild_ledger(
    spark: SparkSession, table: Table, *, stream: str, ledger: str, apply: bool = False
) -> LedgerRebuild:
    """Rewrite a stream's rows in a ledger from its commit log and the log's archive. Without `apply` it only reports
    what it would do.

    Rows of records that were deleted before the archive existed are kept. It writes Delta transactions of CHUNK records
    each: readers see either the old or the new rows of a record; after a crash, run it again. The stream may keep
    running. Raises InvalidInput, Corrupt, Transient, and what Spark raises.
    """
    check_delta(spark, "A ledger")
    name = DeltaName(ledger, "ledger")
    rows, feed = LedgerTable(spark, name, _key(table, stream)), LedgerFeed(table.home, stream)
    there = name.exists(spark)
    if apply:
        # First of all: from here on no record is deleted before it is archived, except those that a running collection
        # has checked already.
        feed.archive.begin()
    gone = feed.lost_upto()
    above = rows.stands_at(gone) if there and gone else 0
    # Read before the log: rows that a running stream writes later are above both.
    top, all_rows, replaced = (rows.stands_at(), rows.count(), rows.count(above)) if there else (0, 0, 0)
    if apply:
        rows.create()
    ends = dict(rows.ends(above)) if there and above else {}
    records, made, at, more = 0, 0, above, True
    while more:
        chunk = feed.read(at, ends.copy, CHUNK)
        if there and chunk.lost_upto > gone:
            raise Transient(
                "Commit log records were deleted during the rebuild, and the ledger may be the only copy of them.",
                table=table.uri,
                stream=stream,
                advice="run it again; the ledger rows of these records were not changed",
            )
        new, more = _rows_of(table, stream, chunk), chunk.more
        if apply:
            rows.replace(new, at, chunk.upto if more else max(chunk.upto, top))
        records, made, at = records + chunk.records, made + new.num_rows, chunk.upto
        ends |= chunk.ends()
    lost = gone if gone > above else 0
    return LedgerRebuild(stream, name.shown, apply, records, made, replaced, all_rows - replaced, lost)


def short(error: Exception) -> str:
    """An error in one line, without credentials."""
    if isinstance(error, HeadgateError):
        return str(error)
    lines = [line.strip(": ") for line in str(error).splitlines() if line.strip(": ")] or [""]
    # The first line names the call; the JVM's message follows it.
    line = lines[min(1, len(lines) - 1)] if type(error).__name__ == "Py4JJavaError" else lines[0]
    return scrubbed(f"{type(error).__name__}: {line}")[:300]


def _key(table: Table, stream: str) -> LedgerKey:
    return LedgerKey(str(table.table_id), table.uri, stream)


def _rows_of(table: Table, stream: str, chunk: LogChunk) -> pa.Table:
    return ledger_table(_key(table, stream), table.sharding, chunk.parts)
