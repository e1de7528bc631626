"""Table: a Lance dataset, its shards and our records, for people without Spark.

A table exists from the moment its base names the table's id, and is known by that id:
it is random, shard ids are made of it, and the record is filed under it. So whatever
an earlier table left in the same place is never met again.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from types import TracebackType

import pyarrow as pa

from headgate import parallel
from headgate.checkpoints.clone.clone import CloneSource, clone_table
from headgate.checkpoints.jobs.columns import add_column, current_home, drop_column, plain_schema, rename_column
from headgate.checkpoints.offline.checkpoint import checkpoint_stopped
from headgate.checkpoints.offline.compact import ShardBacklog, backlog
from headgate.checkpoints.snapshots.at_checkpoint import open_at, read_checkpoint
from headgate.checkpoints.snapshots.cache import TableCache
from headgate.checkpoints.snapshots.checkpoint import CheckpointStore, Scope, StoredCheckpoint, TableCheckpoint
from headgate.checkpoints.snapshots.snapshot import read_snapshot
from headgate.checkpoints.snapshots.take import check_name, drop, take
from headgate.connectors.lance import dataset as lance_connector
from headgate.connectors.objects.wal_options import joined_options
from headgate.durations import ALLOWED, seconds_of
from headgate.errors import HeadgateError, InvalidInput, NotFound
from headgate.progress import Progress, shown
from headgate.retry import Retry
from headgate.shards.config import WriterConfig
from headgate.shards.home.home import recorded_home
from headgate.shards.home.record import TableRecord, shard_folders
from headgate.shards.home.stores import Place, place, table_store
from headgate.shards.routed import RoutedWriters
from headgate.shards.rows.schema import Rows
from headgate.shards.rows.view import TableView
from headgate.shards.shard import Shard, TableHome
from headgate.shards.sharding import Sharding
from headgate.shards.vectors import VectorColumn
from headgate.shards.wal.pending import landed
from headgate.shards.writer import ShardWriter
from headgate.table.ddl import arrow_field
from headgate.table.html import as_html
from headgate.table.keys import Keys, key_rows
from headgate.table.reads import Reads
from headgate.table.shards import ShardInfo
from headgate.table.target import clone_target
from headgate.table.upkeep import Upkeep


@dataclass(frozen=True, eq=False)
class Table(Reads, Upkeep):
    """A table that exists. Picklable and thread-safe; a context manager that closes what `upsert` opened.
    Make one with `open_table`.

    Its reads keep what the next read would read again, see `cache`; a copy with other columns begins anew.
    """

    home: TableHome
    schema: pa.Schema
    record: TableRecord
    storage_options: Mapping[str, str] | None = field(default=None, repr=False)
    at: TableCheckpoint | None = field(default=None, repr=False)
    """The checkpoint it was opened at: it shows that instant, and nothing can be written to it."""
    cache: TableCache = field(default_factory=TableCache, init=False, repr=False)
    """What reads keep in memory, WAL tails above all, within the budget of `headgate.set_cache_bytes`."""
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
        """Columns with a full-text index, see `index_name`."""
        return self.record.full_text

    @property
    def vectors(self) -> tuple[VectorColumn, ...]:
        """Columns of vectors, see `nearest`."""
        return self.record.vectors

    def shards(self, *, names: Sequence[str] = ()) -> list[ShardInfo]:
        """Every shard that the sharding defines, claimed or not, and every other one that was claimed, by name. Reads
        one LIST, and per claimed shard a LIST and a manifest.

        Under `by_partition` the shards are those that were claimed; `names` are further names to recognise.
        Raises Corrupt where a manifest cannot be read.
        """
        known, native = self._shard_names(names), self.record.wal_uri is None and not self.record.wal_undecided
        ids = list(self.shard_ids())
        pinned = {} if self.at is None else {shard_id: self.at.shards[shard_id].manifest for shard_id in ids}
        found = parallel.each("shards", lambda one: pinned.get(one) or Shard(self.home, one).manifests.latest(), ids)
        claimed = {one: manifest for one, manifest in zip(ids, found, strict=True) if manifest is not None}
        defined = {self.home.shard(name).id for name in self.sharding.known_names()}
        shards = [
            ShardInfo.of(one, known.get(one), claimed.get(one), is_native_wal=native) for one in {*claimed, *defined}
        ]
        return sorted(shards, key=lambda info: (info.name is None, info.name or "", info.id))

    def shard(self, shard: uuid.UUID | str) -> Shard:
        """A shard by name or id, whether it was ever written or not. Raises InvalidInput for a name it cannot have."""
        return self.home.known_shard(shard)

    def writer(self, shard: uuid.UUID | str, config: WriterConfig = WriterConfig()) -> ShardWriter:  # noqa: B008
        """Open a shard for writing. THIS WRITES, AND IT FENCES AN EARLIER WRITER. See ShardWriter.open.

        Rows are not routed, as `upsert` does: on a table with a key a key must be in one and the same shard always,
        because a key that is in two shards is shown twice. The writer of a bucket refuses keys of another one; under
        `by_partition` the caller must see to it.
        """
        self._check_now("write")
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
        self._check_now("write")
        if not self.primary_key:
            what = "The table has no primary key, so upsert cannot replace rows."
            raise InvalidInput(
                what, table=self.uri, advice="append with table.writer(SHARD).put(rows); nothing was written"
            )
        self._writers.write(self.home, current_home, lambda schema: schema.stored_rows(rows))

    def delete(self, keys: Keys) -> None:
        """Delete the rows with these keys, given as to `get`, in the shards of the keys. Otherwise as `upsert`."""
        self._check_now("write")
        self._writers.write(self.home, current_home, lambda schema: schema.stored_deletes(key_rows(schema, keys)))

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
        self._check_now("refresh")
        return replace(self, home=current_home(self.home), schema=plain_schema(self.home))

    def retrying(self, retry: Retry) -> Table:
        """The same table, its stores under another policy."""
        return replace(self, home=self.home.retrying(retry))

    def add_column(self, column: pa.Field | str) -> Table:
        """Add a column that may be null, also while streams and writers run; the table with it. See `columns`.

        `column` is a pyarrow Field, or as Spark writes it: "channel string".
        """
        self._check_now("be changed")
        add_column(self.home, arrow_field(column) if isinstance(column, str) else column)
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
        routed = getattr(self.sharding, "column", None)
        return {*self.full_text, *(one.column for one in self.vectors), *([routed] if routed else [])}

    def checkpoint(
        self,
        scope: Scope = "durable",
        *,
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

    def backlog(self) -> list[ShardBacklog]:
        """The shards whose SSTables wait to be taken into the base, and who owns them. Writes nothing."""
        return backlog(self.home, self.shard_ids(), self._shard_names())

    def clone(
        self,
        uri: Place,
        *,
        checkpoint: str | None = None,
        deep: bool = False,
        wal_uri: Place | None = None,
        wal_storage_options: Mapping[str, str] | None = None,
        names: Sequence[str] = (),
        progress: Progress | None = None,
    ) -> Table:
        """Make a table of its own at `uri`, of a named checkpoint or of this table as it is; fresh rows included.

        Fences nobody. Shallow: the base reads this table's files, which a tag on it holds; `deep` copies them. The
        WAL store is not inherited: `wal_uri` names one, without it the clone's first writer may still choose one (see
        `open_table`); it is reached with `wal_storage_options`, else as this table's is. `names` are names of shards
        that only the caller knows. After a crash the same call completes it. See `checkpoints.clone.clone.clone_table`.
        """
        options = joined_options(self.storage_options, wal_storage_options)
        target = clone_target(
            self.record,
            place(uri),
            self.storage_options,
            None if wal_uri is None else place(wal_uri),
            options,
            deep=deep,
        )
        unlisted = bool(self.primary_key) and not self.sharding.known_names()
        source = CloneSource(self.home, self.shard_ids, (*self.sharding.known_names(), *names), unlisted)
        at = self.at.name if checkpoint is None and self.at is not None else checkpoint
        with shown(progress) as report:
            clone_table(source, target, checkpoint=at, progress=report)
        return open_table(uri, storage_options=options)

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
                f"The table was opened at checkpoint {self.at.name!r}, which is read-only: it cannot {what}.",
                table=self.uri,
                advice="open the table without a checkpoint; nothing was written",
            )

    def _snapshot(self) -> TableView:
        if self.at is not None:
            return read_checkpoint(self.home, self.at)
        return read_snapshot(self.home, self.shard_ids(), cache=self.cache)

    def __repr__(self) -> str:
        columns = [f"{one.name} {one.type}{'' if one.nullable else ' not null'}" for one in self.schema]
        text = f", full_text={list(self.full_text)}" if self.full_text else ""
        text += f", vector={ {one.column: one.metric for one in self.vectors} }" if self.vectors else ""
        key = f", primary_key={list(self.primary_key)}" if self.primary_key else ""
        at = f", checkpoint={self.at.name!r}" if self.at is not None else ""
        return f"Table({self.uri!r}, {columns}{key}, sharding={self.sharding}{text}{at})"

    def _repr_html_(self) -> str:
        """Its columns, for a notebook. Reads nothing."""
        roles = {"key": self.primary_key, "full text": self.full_text, "vector": [one.column for one in self.vectors]}
        return as_html(self.uri, self.schema, roles, str(self.sharding))


def open_table(
    uri: Place,
    *,
    checkpoint: str | None = None,
    wal_uri: Place | None = None,
    storage_options: Mapping[str, str] | None = None,
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
    store = table_store(place(uri), storage_options)
    base = lance_connector.look(store.uri, storage_options)
    if base is None:
        raise NotFound(f"No table found at {store.uri}.", advice="check the URI, or create the table first")
    home, record = recorded_home(store, base, storage_options, wal_uri)
    table = Table(home, base.schema, record, dict(storage_options) if storage_options else None)
    if checkpoint is None:
        return table
    then, schema, pinned = open_at(home, checkpoint)
    return replace(table, home=then, schema=schema, at=pinned)


def as_table(table: Table | Place, storage_options: Mapping[str, str] | None = None) -> Table:
    """The table itself, or the one at a place."""
    return table if isinstance(table, Table) else open_table(table, storage_options=storage_options)


def _seconds(expires: str | float | timedelta) -> float:
    try:
        seconds = seconds_of(expires)
    except (ValueError, OverflowError):
        seconds = 0.0
    if not seconds:
        raise InvalidInput(f"expires must be {ALLOWED}, above 0, got {expires!r}.")
    return seconds
