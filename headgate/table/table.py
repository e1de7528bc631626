"""Table: a Lance dataset, its shards and our records, for people without Spark.

A table exists from the moment its base names the table's id, and is known by that id:
it is random, shard ids are made of it, and the record is filed under it. So whatever
an earlier table left in the same place is never met again.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from importlib import import_module
from types import TracebackType
from typing import Any

import pyarrow as pa

from headgate import parallel
from headgate.checkpoints.clone.build import CloneTarget
from headgate.checkpoints.clone.clone import CloneSource, clone_table
from headgate.checkpoints.clone.copy import Progress, no_progress
from headgate.checkpoints.gc.collect import MIN_AGE, Collection, collect
from headgate.checkpoints.jobs.columns import add_column, current_home, drop_column, plain_schema, rename_column
from headgate.checkpoints.jobs.policy import BasePolicy, CompactLimits
from headgate.checkpoints.offline.checkpoint import ToFlush, checkpoint_stopped, to_flush
from headgate.checkpoints.offline.compact import Compacted, Waiting, compact_stopped, waiting
from headgate.checkpoints.snapshots.at_checkpoint import open_at, read_checkpoint
from headgate.checkpoints.snapshots.cache import Kept
from headgate.checkpoints.snapshots.checkpoint import CheckpointStore, Scope, StoredCheckpoint, TableCheckpoint
from headgate.checkpoints.snapshots.snapshot import read_snapshot
from headgate.checkpoints.snapshots.take import check_name, drop, take
from headgate.checkpoints.table_record import TableRecord, read_record, record_bytes, record_key, shard_folders
from headgate.connectors.lance import dataset as lance_connector
from headgate.connectors.lance.dataset import Base
from headgate.connectors.lance.filters import Filter
from headgate.connectors.objects import ObjectStore
from headgate.connectors.objects.wal_options import joined_options
from headgate.durations import ALLOWED, seconds_of
from headgate.errors import Corrupt, HeadgateError, InvalidInput, NotFound
from headgate.search.build.build import IndexBuild, build_index
from headgate.search.build.plan import Limits
from headgate.search.build.upkeep import index_base
from headgate.search.finalize.finalize import Report, no_report
from headgate.search.query.searcher import Searcher, searcher_of
from headgate.shards.config import WriterConfig
from headgate.shards.names import parse_uuid
from headgate.shards.routed import RoutedWriters
from headgate.shards.rows.schema import Rows, RowSchema
from headgate.shards.rows.view import View
from headgate.shards.shard import TABLE_ID, Shard, TableHome
from headgate.shards.sharding import Sharding, sharding_to_json
from headgate.shards.text.ranking import Match
from headgate.shards.wal.pending import landed
from headgate.shards.writer import ShardWriter
from headgate.steps import step
from headgate.table.stores import open_wal, table_store, wal_store_of


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """One shard as its latest manifest shows it."""

    name: str | None
    """None where it cannot be told from the id: native's shards, and those of partitions."""
    id: uuid.UUID
    epoch: int
    replay_after: int
    last_seen: int
    generation: int
    sstables: int
    owner: str | None
    sealed: bool
    native_safe: bool
    """Whether native Lance may open it: no stream owns it, and its WAL lies where native looks."""


@dataclass(frozen=True, eq=False)
class Table:
    """A table that exists. Picklable and thread-safe; a context manager that closes what `upsert` opened.
    Make one with `open_table`.

    Its reads keep what the next read would read again, see `kept`; a copy with other columns begins anew.
    """

    home: TableHome
    schema: pa.Schema
    record: TableRecord
    storage_options: Mapping[str, str] | None = field(default=None, repr=False)
    at: TableCheckpoint | None = field(default=None, repr=False)
    """The checkpoint it was opened at: it shows that instant, and nothing can be written to it."""
    kept: Kept = field(default_factory=Kept, init=False, repr=False)
    """What reads keep in memory, WAL tails of up to 256 MB above all; `table.kept.resize(nbytes)` changes that."""
    _writers: RoutedWriters = field(default_factory=RoutedWriters, repr=False)
    """Of `upsert` and `delete`; those of a copy with other columns too."""

    @property
    def uri(self) -> str:
        """Where it is, without credentials."""
        return self.home.uri

    @property
    def table_id(self) -> uuid.UUID:
        """Its own random id, made at creation."""
        return self.record.table_id

    @property
    def primary_key(self) -> tuple[str, ...]:
        """Key columns in column order; empty for a table that is only appended to."""
        return self.home.schema.primary_key

    @property
    def sharding(self) -> Sharding:
        """How rows are spread over shards."""
        return self.record.sharding

    @property
    def full_text(self) -> tuple[str, ...]:
        """Columns with a full-text index, see `full_text_index`."""
        return self.record.full_text

    def shards(self, names: Sequence[str] = ()) -> list[ShardInfo]:
        """Every shard that was ever claimed, by name. Reads one LIST and per shard a LIST and a manifest.

        `names` are further names to recognise, such as those of a stream's partitions.
        Raises Corrupt where a manifest cannot be read.
        """
        known = self._shard_names(names)
        ids = self.shard_ids()
        found = parallel.each("shards", lambda shard_id: self._shard_info(shard_id, known.get(shard_id)), ids)
        return sorted((info for info in found if info), key=lambda info: (info.name is None, info.name or "", info.id))

    def shard(self, shard: uuid.UUID | str) -> Shard:
        """A shard by name or id, whether it was ever written or not. Raises InvalidInput for a name it cannot have."""
        if isinstance(shard, str) and parse_uuid(shard) is None:
            try:
                self.sharding.check_name(shard)
            except InvalidInput as error:
                error.located(table=self.uri)
                raise
        return self.home.shard(shard)

    def writer(self, shard: uuid.UUID | str, config: WriterConfig = WriterConfig()) -> ShardWriter:  # noqa: B008
        """Open a shard for writing. THIS WRITES, AND IT FENCES AN EARLIER WRITER. See ShardWriter.open.

        Rows are not routed, as `upsert` does: on a table with a key a key must be in one and the same shard always,
        because a key that is in two shards is shown twice. The writer of a bucket refuses keys of another one; under
        `by_partition` the caller must see to it.
        """
        self._check_now("be written to")
        return ShardWriter.open(current_home(self.home), self.shard(shard).id, config)

    def landed(self, entry_id: str) -> bool:
        """Whether an entry that a writer named unknown is durable: True is visible, False never will be. Ask after the
        next open of its shard. See `ShardWriter.take_pending` and `shards.wal.pending.landed`. Writes nothing.

        Raises InvalidInput while the request may still arrive, Expired where the entry's place was collected meanwhile.
        """
        return landed(self.home, entry_id)

    def upsert(self, rows: Rows) -> None:
        """Put rows into the shards of their keys, durably: each replaces the row of its key, the last one counts.

        Opens a writer per shard at the first call and keeps it until `close`: THAT FENCES AN EARLIER WRITER. Over
        several shards it is not one commit; after an error the same call again is right. Raises InvalidInput, before
        anything is written, where the table has no key, a stream owns a shard (R16), or rows do not tell their shard
        (`by_partition`); Fenced and Poisoned until the table is closed, DataLoss, Corrupt, Transient.
        """
        self._check_now("be written to")
        if not self.primary_key:
            what = "The table has no primary key, so that there is nothing to replace."
            raise InvalidInput(
                what, table=self.uri, advice="append by table.writer(SHARD).put(rows); nothing was written"
            )
        self._writers.write(self.home, current_home, lambda schema: schema.stored_rows(rows))

    def delete(self, keys: Rows) -> None:
        """Delete the rows with these keys, given as batches of the key columns, in the shards of the keys. Otherwise as
        `upsert`.
        """
        self._check_now("be written to")
        self._writers.write(self.home, current_home, lambda schema: schema.stored_deletes(keys))

    def close(self) -> None:
        """Close the writers of `upsert` and `delete`; reads go on, and the next `upsert` opens writers anew.

        Raises the first error that a writer met; what was acknowledged is safe either way.
        """
        self._writers.close()

    def __enter__(self) -> Table:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except HeadgateError:
            if kind is None:
                raise

    def refreshed(self) -> Table:
        """The same table with the columns it has now: somebody may have changed them since it was opened."""
        self._check_now("be looked at anew")
        return replace(self, home=current_home(self.home), schema=plain_schema(self.home))

    def add_column(self, column: pa.Field) -> Table:
        """Add a column that may be null, also while streams and writers run; the table with it. See `columns`."""
        self._check_now("be changed")
        add_column(self.home, column)
        return self.refreshed()

    def rename_column(self, name: str, to: str) -> Table:
        """Rename a column that rows are neither keyed, routed nor indexed by; the table with it. See `columns`."""
        self._check_now("be changed")
        rename_column(self.home, name, to, self._bound_columns())
        return self.refreshed()

    def drop_column(self, name: str) -> Table:
        """Drop a column that rows are neither keyed, routed nor indexed by; the table without it. See `columns`."""
        self._check_now("be changed")
        drop_column(self.home, name, self._bound_columns())
        return self.refreshed()

    def _bound_columns(self) -> set[str]:
        routed = sharding_to_json(self.sharding).get("column")
        return {*self.full_text, *([routed] if routed else [])}

    def checkpoint(
        self,
        scope: Scope = "durable",
        name: str | None = None,
        expires: str | float | timedelta | None = None,
        note: str = "",
    ) -> TableCheckpoint:
        """Name the table as it is now, and keep all of it until the checkpoint is dropped or expires: seconds, a
        timedelta, or "7d".

        "durable" records what is: it flushes nothing and fences nobody. "all" flushes everything and leaves no gap in
        the WALs; on a table that nobody runs only: IT FENCES EVERY WRITER AND STREAM (a running stream takes its own,
        see ShardSink; writers of this table's `upsert` are closed first). The result's `note` says what could not be
        done. Raises InvalidInput, and as `take` and `checkpoint_stopped` do.
        """
        self._check_now("take a checkpoint")
        if name is not None:
            check_name(name)
        if scope not in ("all", "durable"):
            raise InvalidInput(f"scope must be 'all' or 'durable', got {scope!r}.")
        after = None if expires is None else _seconds(expires)
        if scope == "all":
            self.close()
        taken = checkpoint_stopped if scope == "all" else take
        home = current_home(self.home) if scope == "all" else self.home
        return taken(home, self.shard_ids(), name=name, expires_after=after, note=note, names=self._shard_names())

    def checkpoints(self) -> list[StoredCheckpoint]:
        """All checkpoints, expired ones too until they are collected, oldest first. Raises Corrupt."""
        return CheckpointStore(self.home.records, self.uri).list()

    def drop_checkpoint(self, name: str) -> TableCheckpoint:
        """Drop a checkpoint: garbage collection may take what only it named. Raises NotFound."""
        self._check_now("drop a checkpoint")
        return drop(self.home, name)

    def scan(self, columns: Sequence[str] | None = None, filter: Filter | None = None) -> pa.RecordBatchReader:
        """Every visible row at one instant, as an Arrow reader: newest row per key, deletes applied.

        `filter` is one condition in SQL as Lance takes it, or a pyarrow.compute.Expression. Reads as it is asked to;
        writes nothing. Raises InvalidInput for a column or filter that cannot be, DataLoss, Corrupt, Transient.
        """
        return self._snapshot().scan(columns, filter)

    def get(self, keys: Rows) -> pa.Table:
        """The rows with these keys, given as batches of the key columns; keys that are not there are left out."""
        return self._snapshot().get(keys)

    def search(
        self,
        text: str,
        column: str | None = None,
        k: int = 10,
        filter: Filter | None = None,
        columns: Sequence[str] | None = None,
        *,
        match: Match = "any",
    ) -> pa.Table:
        """The k rows that fit a text best, best first, with `_score`: over base, SSTables and the visible tail.

        Hits and scores are those of one native index over the rows that a scan shows now. `column` may be left out
        where one column has a full-text index. `match`: any of the words, all of them, or the phrase, which needs an
        index with positions. `filter`, as in `scan`, chooses among the hits; it changes no score.

        Writes nothing. Raises InvalidInput for what cannot be, DataLoss, Corrupt, Transient.
        """
        return self.searcher().search(text, column, k, match=match, filter=filter, columns=columns)

    def searcher(self) -> Searcher:
        """The table as it is now, for many searches of the same instant. See `search`."""
        return searcher_of(self._snapshot())

    def flush(self) -> str:
        """Let SSTables cover everything in the WALs of a table that nobody runs: IT FENCES EVERY WRITER AND STREAM.

        Says what could not be done: WAL-only streams have no SSTables. Raises as `checkpoint` of scope "all" does.
        """
        taken = self.checkpoint("all", expires=MIN_AGE, note="a flush, which drops it")
        self.drop_checkpoint(taken.name)
        return taken.note.removeprefix("a flush, which drops it").removeprefix("; ")

    def to_flush(self) -> list[ToFlush]:
        """The shards that `flush` would open, what waits in their WALs, and whom it would fence. Writes nothing."""
        return to_flush(self.home, self.shard_ids(), self._shard_names())

    def compact(
        self,
        *,
        limits: CompactLimits = CompactLimits(),  # noqa: B008
        policy: BasePolicy = BasePolicy(),  # noqa: B008
        progress: Callable[[int, int], None] = lambda done, total: None,
        report: Report = no_report,
    ) -> Compacted:
        """Take all SSTables into the base, tidy it (small fragments merged, old versions removed by policy), and let
        its full-text indexes cover what is new, in this process; `report` is told of their stages.

        Of a table that nobody runs (a running stream does it by itself): IT FENCES THE WRITERS AND STREAMS of every
        shard that has SSTables. Rows in the WALs alone stay there; `flush` first. A crash anywhere, then again: the
        same table. See `compact_stopped`, `index_base`.
        """
        self._check_now("be compacted")
        self.close()
        done = compact_stopped(
            self.home,
            self.shard_ids(),
            limits=limits,
            policy=policy,
            names=self._shard_names(),
            progress=progress,
        )
        step("index")
        try:
            return replace(done, indexed=index_base(self.home.store, report=report).segments)
        except HeadgateError as error:
            told = "the SSTables are in the base, and its full-text index is not complete"
            error.located(compacted=told, advice="compact again, or build the index by `headgate index build`")
            raise

    def waiting(self) -> list[Waiting]:
        """The shards whose SSTables wait to be taken into the base, and who owns them. Writes nothing."""
        return waiting(self.home, self.shard_ids(), self._shard_names())

    def collect_garbage(
        self,
        *,
        min_age: timedelta = MIN_AGE,
        apply: bool = False,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> Collection:
        """What no reader, checkpoint, fence or recovery can need any more; with `apply` it is deleted. See `collect`.

        A `min_age` below MIN_AGE may take what somebody who reads without a checkpoint still needs.
        """
        return collect(self.home, self.shard_ids(), min_age=min_age, apply=apply, progress=progress)

    def build_index(
        self,
        column: str,
        spark: Any = None,
        *,
        parameters: Mapping[str, Any] | None = None,
        rebuild: bool = False,
        limits: Limits | None = None,
        report: Report = no_report,
    ) -> IndexBuild:
        """Cover the base's rows by the column's full-text index, in this process or on the executors of a SparkSession.

        What is covered already is left alone. See `search.build.build.build_index`.
        """
        self._check_now("be indexed")
        runner = None
        if spark is not None:
            # Named, not imported: who has no Spark has no use for that room, and it stands above this one.
            job = import_module("headgate.streaming.maintenance.index")
            runner, limits = job.on_spark(spark, self.uri), limits or job.limits_on(spark)
        return build_index(
            self.home.store,
            column,
            full_text_index(column),
            parameters=parameters,
            rebuild=rebuild,
            runner=runner,
            limits=limits,
            report=report,
        )

    def clone(
        self,
        uri: str,
        *,
        checkpoint: str | None = None,
        deep: bool = False,
        wal_uri: str | None = None,
        wal_storage_options: Mapping[str, str] | None = None,
        names: Sequence[str] = (),
        progress: Progress = no_progress,
    ) -> Table:
        """Make a table of its own at `uri`, of a named checkpoint or of this table as it is; fresh rows included.

        Fences nobody. Shallow: the base reads this table's files, which a tag on it holds; `deep` copies them. The
        WAL store is not inherited: `wal_uri` names one, without it the clone's first writer may still choose one (see
        `open_table`); it is reached with `wal_storage_options`, else as this table's is. `names` are names of shards
        that only the caller knows. After a crash the same call completes it. See `checkpoints.clone.clone.clone_table`.
        """
        store = table_store(uri, self.storage_options)
        options = joined_options(self.storage_options, wal_storage_options)
        wal_store = wal_store_of(store, wal_uri, options)

        def record(table_id: uuid.UUID) -> tuple[str, bytes]:
            own = None if wal_store is store else wal_store.uri
            made = replace(
                self.record,
                table_id=table_id,
                wal_uri=own,
                wal_undecided=wal_uri is None,
                leftover_shards=frozenset(),
            )
            return record_key(table_id), record_bytes(made)

        unlisted = bool(self.primary_key) and not self.sharding.known_names()
        source = CloneSource(self.home, self.shard_ids, (*self.sharding.known_names(), *names), unlisted)
        target = CloneTarget(store, wal_store, deep, TABLE_ID, record)
        at = self.at.name if checkpoint is None and self.at is not None else checkpoint
        clone_table(source, target, checkpoint=at, progress=progress)
        return open_table(uri, options)

    def shard_ids(self) -> frozenset[uuid.UUID]:
        """Every shard that has an object. One LIST."""
        if self.at is not None:
            return frozenset(self.at.shards)
        return shard_folders(self.home.store) - self.record.leftover_shards

    def _shard_names(self, names: Sequence[str] = ()) -> dict[uuid.UUID, str]:
        return {self.home.shard(name).id: name for name in (*self.sharding.known_names(), *names)}

    def _check_now(self, what: str) -> None:
        """Raises InvalidInput where the table is that of a checkpoint."""
        if self.at is not None:
            raise InvalidInput(
                f"The table was opened at checkpoint {self.at.name!r}, which is for reading: it cannot {what}.",
                table=self.uri,
                advice="open the table without a checkpoint; nothing was written",
            )

    def _snapshot(self) -> View:
        if self.at is not None:
            return read_checkpoint(self.home, self.at)
        return read_snapshot(self.home, self.shard_ids(), kept=self.kept)

    def __repr__(self) -> str:
        return f"Table({self.uri!r}, id={str(self.table_id)!r}, sharding={self.sharding}, key={list(self.primary_key)})"

    def _shard_info(self, shard_id: uuid.UUID, name: str | None) -> ShardInfo | None:
        manifest = self.at.shards[shard_id].manifest if self.at else Shard(self.home, shard_id).manifests.latest()
        if manifest is None:
            return None
        return ShardInfo(
            name=name,
            id=shard_id,
            epoch=manifest.epoch,
            replay_after=manifest.replay_after,
            last_seen=manifest.last_seen,
            generation=manifest.generation,
            sstables=len(manifest.sstables),
            owner=manifest.owner,
            sealed=manifest.sealed,
            native_safe=not manifest.sealed and self.record.wal_uri is None and not self.record.wal_undecided,
        )


def open_table(
    uri: str,
    storage_options: Mapping[str, str] | None = None,
    wal_uri: str | None = None,
    checkpoint: str | None = None,
    *,
    wal_storage_options: Mapping[str, str] | None = None,
) -> Table:
    """The table at a place; writes nothing. `wal_uri` may be left out: it is in the record.

    A separate WAL store is reached with `wal_storage_options`, which may also stand in `storage_options` under names
    that begin with `wal.`; without any, with the options of the table.

    With `checkpoint`, exactly as that checkpoint has it, whatever came since; writers are refused.

    A table or clone that was made without a WAL store takes the given one from the moment a writer opens a shard. A
    clone that its first writer left without one stays so. See `shards.wal.moved`.

    Raises NotFound where there is no dataset or checkpoint, InvalidInput where it is not a table (yet, or any more),
    WalStoreMismatch where `wal_uri` is another one than recorded.
    """
    storage_options = joined_options(storage_options, wal_storage_options)
    store = table_store(uri, storage_options)
    base = lance_connector.look(store.uri, storage_options)
    if base is None:
        raise NotFound(f"There is no table at {store.uri}.", advice="check the URI, or create the table first")
    record = read_record(store, _table_id(store, base))
    _check_own_mem_wal(store, base, record)
    record, wal_store = open_wal(store, record, storage_options, wal_uri)
    spec_id = base.mem_wal.spec_id if base.mem_wal else 0
    home = TableHome(
        RowSchema.of(base.schema, base.field_ids), store, wal_store, record.table_id, spec_id, record.sharding
    )
    table = Table(home, base.schema, record, dict(storage_options) if storage_options else None)
    if checkpoint is None:
        return table
    then, schema, pinned = open_at(home, checkpoint)
    return replace(table, home=then, schema=schema, at=pinned)


def full_text_index(column: str) -> str:
    """The name of a column's full-text index on the base, and on every SSTable."""
    return f"{column}_idx"


def _seconds(expires: str | float | timedelta) -> float:
    try:
        seconds = seconds_of(expires)
    except (ValueError, OverflowError):
        seconds = 0.0
    if not seconds:
        raise InvalidInput(f"expires must be {ALLOWED} above 0, got {expires!r}.")
    return seconds


# -- where a table stands ------------------------------------------------------


def _table_id(store: ObjectStore, base: Base) -> uuid.UUID:
    """The id of a table that exists. Raises InvalidInput for one that does not."""
    named = base.config.get(TABLE_ID)
    if named is None:
        what = f"The Lance dataset at {store.uri} is no headgate table, or its creation was not finished."
        raise InvalidInput(what, advice="create the table first; the same create_table call completes a creation")
    if not named or base.mem_wal is None:
        raise InvalidInput(
            f"The table at {store.uri} was overwritten by native Lance, which dropped its MemWAL.",
            advice="call create_table again: the base's rows stay, and a new id keeps the old shards away",
        )
    try:
        return uuid.UUID(named)
    except ValueError:
        raise Corrupt(f"The base of {store.uri} names {named[:80]!r}, which is no table id.") from None


def _check_own_mem_wal(store: ObjectStore, base: Base, record: TableRecord) -> None:
    """Raises InvalidInput where someone overwrote the base and initialised MemWAL anew: old shards would come back.

    Ours always names the indexes it maintains; native's default is all of them. (Columns
    are not compared: they may have been renamed.)
    """
    if base.mem_wal is None or base.mem_wal.maintained != tuple(map(full_text_index, record.full_text)):
        raise InvalidInput(
            f"MemWAL of the table at {store.uri} was initialised anew by native Lance: {base.mem_wal}.",
            advice="drop the index __lance_mem_wal with native Lance, then call create_table again",
        )
