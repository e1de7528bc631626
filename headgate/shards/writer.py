"""ShardWriter: the one write path into a shard.

Direct writers `open` a shard and own it; Spark tasks and flush jobs `attach` to another process's claim. Both append
with WalAppender, and nothing else does.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType

import pyarrow as pa
import structlog

from headgate.connectors.lance import datasets
from headgate.connectors.lance.base.damage import settle_base
from headgate.connectors.lance.filters import Filter
from headgate.errors import DataLoss, HeadgateError, InvalidInput
from headgate.shards.config import WriterConfig
from headgate.shards.home.home import home_at
from headgate.shards.manifest.model import Manifest
from headgate.shards.memtable.memtable import MemTableStats
from headgate.shards.memtable.memtables import MemTables
from headgate.shards.memtable.replay import IsVisible, WalScan, generation_notes, replay, scan_wal, untagged
from headgate.shards.placement import bucket_of, check_placed
from headgate.shards.rows.base import check_own
from headgate.shards.rows.schema import Rows
from headgate.shards.rows.sstable import kept_indexes, write_sstable
from headgate.shards.rows.view import ShardDelta, TableView
from headgate.shards.shard import Claim, Shard, TableHome, TableLike
from headgate.shards.wal.appender import WalAppender
from headgate.shards.wal.encoder import decode_rows, encode_rows
from headgate.shards.wal.entry import Tags
from headgate.shards.wal.flusher import WalFlusher
from headgate.shards.wal.pending import Pending, PendingPut, UnknownEntry, entry_name
from headgate.shards.wal.puts import FlusherStats, NoRows, Put
from headgate.steps import step

_log = structlog.get_logger("headgate.shards")


@dataclass(frozen=True, slots=True)
class WriterStats:
    """Counts of a writer. Available at any time, also after close."""

    shard: str
    epoch: int
    next_position: int
    retries: int
    pipeline: FlusherStats


class ShardWriter:
    """Writes rows to one shard, durably and in order. Thread-safe; a context manager that closes."""

    def __init__(
        self,
        appender: WalAppender,
        config: WriterConfig,
        *,
        owns: bool,
        tables: MemTables | None = None,
    ) -> None:
        """Use `open` or `attach`."""
        self.config = config
        self._appender = appender
        self._owns = owns
        self._tables = tables
        self._flusher = WalFlusher(appender, config, tables)
        # A stream routes rows before it attaches.
        self._bucket = bucket_of(appender.shard) if owns else None

    @classmethod
    def open(
        cls,
        table: TableLike | TableHome | str | os.PathLike[str],
        shard: uuid.UUID | str,
        config: WriterConfig = WriterConfig(),  # noqa: B008
        *,
        storage_options: Mapping[str, str] | None = None,
        visible: IsVisible = untagged,
    ) -> ShardWriter:
        """Claim the shard and return a writer for it. THIS WRITES, AND IT FENCES AN EARLIER WRITER.

        `table` is a Table, its URI, or its home; `shard` an id, or a name in a headgate table.

        1. check the configuration; on local disk, set aside what a power cut left of the base's newest versions, and
           sync the base (see `connectors.lance.base.damage`). Then scan_wal: manifest and WAL end once, and in MemTable
           mode read every entry up to that end. An open that is refused, or finds a hole or a damaged entry, fences
           nobody. scan_wal is bounded, so a busy earlier writer cannot block it forever.
        2. claim, tip, barrier, re-read: see WalAppender.open.
        3. in MemTable mode, replay what is visible between replay_after and the barrier; MemTables that are full are
           flushed on the way. An entry missing there is DataLoss while the claim holds, otherwise Fenced. From here on
           a put is exactly one PUT.

        After 2 the base must still have this table's id (R23): if another table is created at the URI from now on, it
        does not use this shard. The writer then ends with Fenced at its next put on a local disk, and otherwise at a
        put within a minute (see `shards.home.presence`).

        Raises InvalidInput, Fenced (another opener came later), DataLoss, Corrupt, Transient.
        """
        check_config(config)
        if isinstance(table, str | os.PathLike):
            given = home_at(os.fspath(table), storage_options).known_shard(shard)
        else:
            given = table.shard(shard)
        place = given.retrying(config.retry)
        settle_base(place.home.store)
        if not config.enable_memtable:
            appender = WalAppender.open(place)
            _check_table(place.home)
            return cls(appender, config, owns=True)
        if config.maintained_indexes:
            _check_indexes(place.home, config.maintained_indexes)
        scan = scan_wal(place, config.max_memtable_size)
        step("looked")
        appender = WalAppender.open(place, known_tip=scan.stop)
        _check_table(place.home)
        step("replay")
        tables = _replayed(appender, config, scan, visible)
        return cls(appender, config, owns=True, tables=tables)

    @classmethod
    def attach(cls, claim: Claim, config: WriterConfig) -> ShardWriter:
        """A WAL-only writer that uses the caller's claim. It claims, reads and writes nothing by itself."""
        check_config(config)
        if config.enable_memtable:
            raise InvalidInput("An attached writer has no MemTable: pass WriterConfig(enable_memtable=False).")
        place = replace(claim, shard=claim.shard.retrying(config.retry))
        return cls(WalAppender.with_claimed_epoch(place), config, owns=False)

    # -- writing -------------------------------------------------------------

    def put(self, rows: Rows, tags: Tags = Tags()) -> Put:  # noqa: B008
        """Add rows. With durable_write they are durable when this returns, and the result has their positions;
        otherwise the result is a handle to wait for.

        Raises InvalidInput (also for rows of another bucket, if the table has a key) or Closed: nothing was queued;
        Fenced or Poisoned (the rows are not durable and never will be), OutcomeUnknown (they may be). `take_pending`
        returns the rows.
        """
        return self._submit(self.shard.home.schema.stored_rows(rows), tags)

    def delete(self, keys: Rows, tags: Tags = Tags()) -> Put:  # noqa: B008
        """Delete rows by key; otherwise as `put`."""
        return self._submit(self.shard.home.schema.stored_deletes(keys), tags)

    def append(self, stored: Sequence[pa.RecordBatch], tags: Tags = Tags()) -> Put:  # noqa: B008
        """Add rows and tombstones in storage form, in this order; otherwise as `put`."""
        return self._submit([batch for batch in stored if batch.num_rows], tags)

    def flush(self) -> None:
        """Wait until every put made before this call is durable. Raises the pipeline's error."""
        self._flusher.flush()

    def close(self) -> None:
        """Make every put durable, note the tip for the next writer, and stop.

        Frozen MemTables are flushed; the active one stays only in the WAL, for the next writer to replay. Raises the
        stored error of pipeline or flush, immediately if the writer is fenced, and again at every later call.
        Acknowledged rows are safe either way, except after DataLoss: the table was dropped, and they with it.
        """
        first = not self._flusher.closed
        try:
            self._flusher.close()
        except HeadgateError:
            if self._tables is not None:
                self._tables.abandon()
            raise
        if self._tables is not None:
            self._tables.close()
        if first and self._owns:
            self._note_tip()

    def take_pending(self) -> Pending:
        """The rows that a failed writer did not make durable: `failed` rows are safe to write again with `append`; for
        `unknown` rows ask `Table.landed` after the next open. Returned once; empty after a clean close.

        Waits for an append in flight, up to the retry deadline. Raises InvalidInput if the writer has not failed.
        """
        left = self._flusher.take_unfinished()
        unknown: tuple[UnknownEntry, ...] = ()
        if left.sent is not None:
            position, shard = left.sent.position, str(self.shard.id)
            name = entry_name(shard, position, left.sent.entry_id)
            unknown = (UnknownEntry(name, position, tuple(map(self._given_back, left.unknown))),)
        return Pending(tuple(map(self._given_back, left.failed)), unknown)

    def _given_back(self, put: Put) -> PendingPut:
        assert put.chunk is not None
        return PendingPut(put.number, decode_rows(self.shard.home.schema, put.chunk), put.tags)

    def _submit(self, batches: list[pa.RecordBatch], tags: Tags) -> Put:
        if not batches:
            self._flusher.check_open()
            return NoRows()
        if self._tables is not None and tags.attempt_id is not None:
            raise InvalidInput(
                "A MemTable would show rows of an attempt before a commit record lists them.",
                **self.shard.where(),
                advice="use a WAL-only writer for a stream's attempts; nothing was written",
            )
        if self._bucket is not None:
            check_placed(self.shard, self._bucket, batches)
        chunk = encode_rows(batches, self.config.compression, keep=self._tables is not None)
        put = self._flusher.submit(chunk, tags)
        if self.config.durable_write:
            put.wait()
        return put

    def _note_tip(self) -> None:
        """Saves the next writer a search; nothing depends on it."""
        last = self._appender.next_position - 1

        def noted(manifest: Manifest) -> Manifest:
            return replace(manifest, last_seen=max(manifest.last_seen, last))

        try:
            manifests = self.shard.manifests
            manifests.commit_update(self._appender.claim_id, self._appender.epoch, noted)
        except DataLoss:
            if self._flusher.stats().rows:
                raise
        except HeadgateError as error:
            _log.debug("the tip was not noted", error=str(error), **self.shard.where())

    # -- properties -------------------------------------------------------------

    @property
    def shard(self) -> Shard:
        """The shard that it writes to."""
        return self._appender.shard

    @property
    def claim(self) -> Claim:
        """Epoch, claim id and next position, for `attach` elsewhere."""
        return self._appender.claim

    def stats(self) -> WriterStats:
        """Counts and positions; next_position is never 0 on a shard with history."""
        return WriterStats(
            shard=str(self.shard.id),
            epoch=self._appender.epoch,
            next_position=self._appender.next_position,
            retries=self._appender.retries,
            pipeline=self._flusher.stats(),
        )

    # -- MemTable mode -----------------------------------------------------------

    def scan(self, columns: Sequence[str] | None = None, filter: Filter | None = None) -> pa.RecordBatchReader:
        """The base, this shard's SSTables and its MemTables, frozen ones included: newest row per key, deletes applied.
        A put is visible when it is durable, or at once without durable_write. Not available in WAL-only mode.
        """
        self._memtables("scan")
        return self._view().scan(columns, filter)

    def get(self, keys: Rows) -> pa.Table:
        """The visible rows with these keys (batches of the key columns). Not available in WAL-only mode."""
        self._memtables("get")
        return self._view().get(keys)

    def _view(self) -> TableView:
        """The shard and the base at one instant. Raises the stored error: a fenced writer returns no rows."""
        assert self._tables is not None
        schema = self.shard.home.schema
        while True:
            self._flusher.check_open()
            with self._flusher.paused() as pending:
                snapshot = self._tables.snapshot()
            tables = list(snapshot.tables)
            if pending and not self.config.durable_write:
                tables.append(pa.Table.from_batches(pending, schema=schema.storage))
            view = TableView.of(
                self.shard.home, [ShardDelta(self.shard, snapshot.generation, snapshot.sstables, tuple(tables))]
            )
            if view is not None:
                return view
            # Only the holder of a shard compacts it, so someone has claimed it.
            self.shard.manifests.check_fenced(self._appender.epoch, self._appender.claim_id)

    def memtable_stats(self) -> tuple[MemTableStats, ...]:
        """Frozen MemTables, oldest first, then the active one. Not available in WAL-only mode."""
        return self._memtables("memtable_stats").stats()

    def active_memtable(self) -> pa.Table:
        """The rows of the active MemTable as they were put, tombstones included. Not available in WAL-only mode."""
        return self._memtables("active_memtable").snapshot().tables[-1]

    def flush_memtable(self) -> None:
        """Flush all earlier puts to SSTables. Not available in WAL-only mode."""
        tables = self._memtables("flush_memtable")
        self._flusher.check_open()
        self._flusher.flush()
        tables.flush()

    def _memtables(self, what: str) -> MemTables:
        if self._tables is None:
            raise InvalidInput(
                f"{what}() needs a MemTable, but this writer is in WAL-only mode.",
                **self.shard.where(),
                advice="open the writer with enable_memtable=True, or read the WAL with WalTailer",
            )
        return self._tables

    # -- context manager -------------------------------------------------------

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except HeadgateError:
            if kind is None:
                raise


def check_config(config: WriterConfig) -> None:
    """Check the configuration for the mode, before anything is claimed."""
    if not config.enable_memtable and config.maintained_indexes:
        raise InvalidInput(
            f"WAL-only mode has no indexes, but maintained_indexes is {list(config.maintained_indexes)}.",
            advice="leave maintained_indexes empty, or use enable_memtable=True",
        )


def _check_table(home: TableHome) -> None:
    """Raises InvalidInput if another table was created at this URI, whose readers would list the shard."""
    if home.table_id is not None:
        check_own(home, datasets.open_dataset(home.store))


def _check_indexes(home: TableHome, names: Sequence[str]) -> None:
    """Raises InvalidInput if the base does not have an index."""
    known = {index.name for index in kept_indexes(home, datasets.open_dataset(home.store), ())}
    missing = [name for name in names if name not in known]
    if missing:
        raise InvalidInput(f"The table has no full-text index {missing[0]!r}.", table=home.uri, known=sorted(known))


def _replayed(appender: WalAppender, config: WriterConfig, scan: WalScan, visible: IsVisible) -> MemTables:
    """MemTables with the rows that are in the WAL but in no SSTable; the appender has put its barrier."""
    assert appender.opened is not None
    shard = appender.shard
    claim = appender.claim
    write = partial(write_sstable, claim, config.maintained_indexes)
    tables = MemTables(claim, appender.opened, config, write, visible)
    barrier = appender.next_position - 1
    parts = replay(
        shard,
        appender.opened,
        barrier,
        epoch=appender.epoch,
        visible=visible,
        scan=scan,
    )
    try:
        notes = generation_notes(shard, appender.opened, barrier, scan=scan)
        tables.restore(parts, notes)
    except BaseException as error:
        tables.abandon()
        if isinstance(error, DataLoss):
            # The missing entries may be flushed by a successor, and collected.
            shard.manifests.check_fenced(appender.epoch, appender.claim_id)
        raise
    return tables
