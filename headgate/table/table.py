"""Table: a Lance dataset, its shards and headgate's records, for use without Spark.

A table exists from the moment its base has the table's id. The id is random, shard ids are derived from it, and
table.json is stored under it. So files of an earlier table at the same URI are never read again.
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
from headgate.checkpoints.snapshots.shards import names_in_logs
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
    """A table, from `open_table` or `create_table`. Picklable and thread-safe; as a context manager it closes the
    writers that `upsert` opened.

    Its reads cache immutable objects, see `cache`; a copy with other columns starts with an empty cache.
    """

    home: TableHome
    schema: pa.Schema
    record: TableRecord
    storage_options: Mapping[str, str] | None = field(default=None, repr=False)
    at: TableCheckpoint | None = field(default=None, repr=False)
    """The checkpoint it was opened at; it is then read-only."""
    cache: TableCache = field(default_factory=TableCache, init=False, repr=False)
    """Cache of reads, mostly WAL tails, within the budget of `headgate.set_cache_bytes`."""
    _writers: RoutedWriters = field(default_factory=RoutedWriters, repr=False)
    """Writers of `upsert` and `delete`, shared with copies that have other columns."""

    @property
    def uri(self) -> str:
        """The table's URI, without credentials."""
        return self.home.uri

    @property
    def table_id(self) -> uuid.UUID:
        """The random id, made at creation."""
        return self.record.table_id

    @property
    def primary_key(self) -> tuple[str, ...]:
        """Key columns in column order; empty for a table without a primary key."""
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
        """Vector columns, see `nearest`."""
        return self.record.vectors

    def shards(self, *, names: Sequence[str] = ()) -> list[ShardInfo]:
        """Every shard that the sharding defines, and every other shard that was ever claimed, by name. Costs one LIST,
        and per claimed shard a LIST and a manifest.

        With `by_partition` the shards are those that were claimed, and their names are read from the streams' logs;
        `names` are more names to recognise. Raises Corrupt for an unreadable manifest.
        """
        known, native = self._shard_names(names), self.record.wal_uri is None and not self.record.wal_undecided
        ids = list(self.shard_ids())
        pinned = {} if self.at is None else {shard_id: self.at.shards[shard_id].manifest for shard_id in ids}
        found = parallel.each("shards", lambda one: pinned.get(one) or Shard(self.home, one).manifests.latest(), ids)
        claimed = {one: manifest for one, manifest in zip(ids, found, strict=True) if manifest is not None}
        if claimed.keys() - known.keys():
            known = names_in_logs(self.home) | known
        defined = {self.home.shard(name).id for name in self.sharding.known_names()}
        shards = [
            ShardInfo.of(one, known.get(one), claimed.get(one), is_native_wal=native) for one in {*claimed, *defined}
        ]
        return sorted(shards, key=lambda info: (info.name is None, info.name or "", info.id))

    def shard(self, shard: uuid.UUID | str) -> Shard:
        """A shard by name or id, even if it was never written. Raises InvalidInput for an invalid name."""
        return self.home.known_shard(shard)

    def writer(self, shard: uuid.UUID | str, config: WriterConfig = WriterConfig()) -> ShardWriter:  # noqa: B008
        """Open a shard for writing. THIS WRITES, AND IT FENCES AN EARLIER WRITER. See ShardWriter.open.

        Unlike `upsert` it does not route rows. On a table with a key, a key must always go to the same shard: a key in
        two shards is shown twice. The writer of a bucket refuses keys of another bucket; with `by_partition` the caller
        must choose the right shard.
        """
        self._check_now("write")
        return ShardWriter.open(current_home(self.home), self.shard(shard).id, config)

    def landed(self, entry_id: str) -> bool:
        """True if an entry with unknown outcome is durable: True means visible, False means that it never will be. Ask
        after the next open of its shard. See `ShardWriter.take_pending` and `shards.wal.pending.landed`. Writes
        nothing.

        Raises InvalidInput while the request may still arrive, and Expired if garbage collection has deleted the
        entry's position.
        """
        return landed(self.home, entry_id)

    def upsert(self, rows: Rows) -> None:
        """Write rows durably to the shards of their keys. Each row replaces the row with its key; of equal keys the
        last one counts.

        Opens a writer per shard at the first call and keeps it until `close`: THAT FENCES AN EARLIER WRITER. A call
        over several shards is not one commit; after an error repeat the call. Raises InvalidInput before anything is
        written if the table has no key, a stream owns a shard (R16), or rows do not contain their shard
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
        """Delete the rows with these keys; keys as in `get`, everything else as in `upsert`."""
        self._check_now("write")
        self._writers.write(self.home, current_home, lambda schema: schema.stored_deletes(key_rows(schema, keys)))

    def close(self) -> None:
        """Close the writers of `upsert` and `delete`; reads still work, and the next `upsert` opens new writers.

        Raises the first error that a writer met; acknowledged rows are safe either way.
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
        """The same table with its current columns, which may have changed since it was opened."""
        self._check_now("refresh")
        return replace(self, home=current_home(self.home), schema=plain_schema(self.home))

    def retrying(self, retry: Retry) -> Table:
        """The same table with another retry policy for its stores."""
        return replace(self, home=self.home.retrying(retry))

    def add_column(self, column: pa.Field | str) -> Table:
        """Add a nullable column; streams and writers may run. Returns the table with it.

        `column` is a pyarrow Field, or Spark DDL: "channel string".
        """
        self._check_now("be changed")
        add_column(self.home, arrow_field(column) if isinstance(column, str) else column)
        return self.refreshed()

    def rename_column(self, name: str, to: str) -> Table:
        """Rename a column that is not part of key, sharding or an index. Returns the table with the new name."""
        self._check_now("be changed")
        rename_column(self.home, name, to, self._bound_columns())
        return self.refreshed()

    def drop_column(self, name: str) -> Table:
        """Drop a column that is not part of key, sharding or an index. Returns the table without it."""
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
        """Name the current state of the table, and keep it until the checkpoint is dropped or expires. `expires` is
        seconds, a timedelta, or "7d".

        "durable" records the current state: it flushes nothing and fences nobody. "all" flushes everything and leaves
        no gap in the WALs. Use it only on a stopped table: IT FENCES EVERY WRITER AND STREAM (a running stream takes
        its own checkpoints, see ShardSink; writers of this table's `upsert` are closed first). The result's `note` says
        what was not possible. Raises InvalidInput, and as `take` and `checkpoint_stopped` do.
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
        """All checkpoints, including expired ones that are not collected yet, oldest first. Raises Corrupt."""
        return CheckpointStore(self.home.records, self.uri).list()

    def drop_checkpoint(self, name: str) -> TableCheckpoint:
        """Drop a checkpoint: garbage collection may then delete files that only it held. Raises NotFound."""
        self._check_now("drop a checkpoint")
        return drop(self.home, name)

    def backlog(self) -> list[ShardBacklog]:
        """The shards with SSTables that are not in the base yet, and their owners. Writes nothing."""
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
        """Copy a named checkpoint, or the current table, to `uri`, fresh rows included.

        Fences nobody. A shallow clone reads this table's files, which a tag protects; `deep` copies them. The WAL store
        is not inherited: set it with `wal_uri`, or let the clone's first writer choose one (see `open_table`). It is
        reached with `wal_storage_options`, else with this table's options. `names` are shard names that no log
        contains. After a crash the same call completes it. See `checkpoints.clone.clone.clone_table`.
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
        """Raises InvalidInput if the table was opened at a checkpoint."""
        if self.at is not None:
            raise InvalidInput(
                f"The table was opened at checkpoint {self.at.name!r}, which is read-only: it cannot {what}.",
                table=self.uri,
                advice="open the table without a checkpoint; nothing was written",
            )

    def _snapshot(self) -> TableView:
        if self.at is not None:
            return read_checkpoint(self.home, self.at)
        return read_snapshot(self.home, self.shard_ids, cache=self.cache)

    def __repr__(self) -> str:
        columns = [f"{one.name} {one.type}{'' if one.nullable else ' not null'}" for one in self.schema]
        text = f", full_text={list(self.full_text)}" if self.full_text else ""
        text += f", vector={ {one.column: one.metric for one in self.vectors} }" if self.vectors else ""
        key = f", primary_key={list(self.primary_key)}" if self.primary_key else ""
        at = f", checkpoint={self.at.name!r}" if self.at is not None else ""
        return f"Table({self.uri!r}, {columns}{key}, sharding={self.sharding}{text}{at})"

    def _repr_html_(self) -> str:
        """The columns as HTML for notebooks. Reads nothing."""
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
    """Open a table; writes nothing. `wal_uri` is optional: table.json has it.

    A separate WAL store is reached with `wal_storage_options`, or with entries of `storage_options` whose names begin
    with `wal.`; without any, with the table's options.

    With `checkpoint` you get exactly the state of that checkpoint, read-only.

    A table or clone without a separate WAL store moves to the given one when a writer opens a shard, except a clone
    whose first writer has already opened it without one. See `shards.wal.moved`.

    Raises NotFound if the dataset or checkpoint does not exist, InvalidInput if it is not a headgate table,
    WalStoreMismatch if `wal_uri` differs from the recorded one.
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
    """The table itself, or the one at a URI."""
    return table if isinstance(table, Table) else open_table(table, storage_options=storage_options)


def _seconds(expires: str | float | timedelta) -> float:
    try:
        seconds = seconds_of(expires)
    except (ValueError, OverflowError):
        seconds = 0.0
    if not seconds:
        raise InvalidInput(f"expires must be {ALLOWED}, above 0, got {expires!r}.")
    return seconds
