"""A table at a checkpoint: exactly the rows of that instant, whatever was flushed, compacted or collected since.

Reads only what the record names: the SSTables of its manifests, the WAL from replay_after to its end (visible as the
folds say), and the base at its version. Writes nothing, fences nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa

from headgate import clock, parallel
from headgate.checkpoints.log.state import unfolded
from headgate.checkpoints.log.visibility import Visible
from headgate.checkpoints.snapshots.checkpoint import CheckpointStore, PinnedShard, TableCheckpoint
from headgate.connectors.lance.datasets import field_ids, open_dataset
from headgate.connectors.objects.read_only import ReadOnlyStore
from headgate.errors import Corrupt, DataLoss, InvalidInput
from headgate.shards.memtable.replay import ReplayedEntry
from headgate.shards.rows.schema import RowSchema
from headgate.shards.rows.view import ShardDelta, TableView
from headgate.shards.shard import Shard, TableHome
from headgate.shards.wal.tailer import WalTailer


def read_checkpoint(home: TableHome, checkpoint: TableCheckpoint) -> TableView:
    """The rows of the checkpoint. Memory holds the tails of its WALs, never the base.

    Raises DataLoss if something that the checkpoint names is gone: it was dropped, has expired, or was not respected;
    Corrupt.
    """
    visible = Visible.of(map(unfolded, checkpoint.streams.values()), home.uri)

    def delta(pinned: PinnedShard) -> ShardDelta:
        parts = [*_tail(home, pinned, visible)]
        batches = [batch for part in parts for batch in part.batches]
        rows = pa.Table.from_batches(batches, schema=home.schema.storage)
        entries = tuple((part.position, part.rows) for part in parts)
        return ShardDelta.of(Shard(home, pinned.shard_id), pinned.manifest, rows, entries=entries)

    return _view(home, checkpoint, delta)


def without_tails(home: TableHome, checkpoint: TableCheckpoint) -> TableView:
    """The base and the SSTables of the checkpoint alone; reads no rows. Raises DataLoss, Corrupt."""
    return _view(home, checkpoint, lambda pinned: ShardDelta.of(Shard(home, pinned.shard_id), pinned.manifest))


def open_at(home: TableHome, name: str) -> tuple[TableHome, pa.Schema, TableCheckpoint]:
    """The table's home and columns at a checkpoint, read-only.

    Raises NotFound if there is no such checkpoint, InvalidInput if it has expired, DataLoss.
    """
    stored = CheckpointStore(home.records, home.uri).get(name)
    checkpoint = stored.checkpoint
    if stored.expired(clock.now()):
        raise InvalidInput(
            f"Checkpoint {name!r} expired at {stored.expires_at:%Y-%m-%d %H:%M:%S}; its files may be deleted.",
            table=home.uri,
            advice="open another checkpoint; `headgate checkpoint list` shows them",
        )
    return *home_at(home, checkpoint), checkpoint


def home_at(home: TableHome, checkpoint: TableCheckpoint) -> tuple[TableHome, pa.Schema]:
    """The table's home and columns at a checkpoint, read-only. Raises DataLoss."""
    dataset = base_at(home, checkpoint)
    then = replace(home, schema=RowSchema.of(dataset.schema, tuple(field_ids(dataset))))
    why = f"The table was opened at checkpoint {checkpoint.name!r}, which is read-only."
    return for_reading(then, why), dataset.schema


def base_at(home: TableHome, checkpoint: TableCheckpoint) -> Any:
    """The base at a checkpoint's version. Raises DataLoss if that version is gone, Transient."""
    try:
        return open_dataset(home.store, version=checkpoint.base_version)
    except DataLoss as error:
        what = f"Version {checkpoint.base_version} of the base, which checkpoint {checkpoint.name!r} names,"
        raise DataLoss(
            f"{what} failed to open.",
            table=home.uri,
            checkpoint=checkpoint.name,
            advice="the table itself is not affected: drop this checkpoint and use another one; `headgate fsck` tells "
            "more",
        ) from error


def for_reading(home: TableHome, why: str) -> TableHome:
    """The same table home, read-only. A write attempt fails with the message `why`."""
    store = ReadOnlyStore(home.store, why)
    wal_store = store if home.wal_store is home.store else ReadOnlyStore(home.wal_store, why)
    return replace(home, store=store, wal_store=wal_store)


def tail_batches(home: TableHome, pinned: PinnedShard, visible: Visible) -> Iterator[pa.RecordBatch]:
    """The rows of a pinned shard that are in no SSTable, in storage form and in order; read lazily."""
    for part in _tail(home, pinned, visible):
        yield from part.batches


def _tail(home: TableHome, pinned: PinnedShard, visible: Visible) -> Iterator[ReplayedEntry]:
    shard, manifest = Shard(home, pinned.shard_id), pinned.manifest
    entries = WalTailer(shard).read(manifest.replay_after + 1, pinned.end)
    return visible.tail(shard, manifest, entries, pinned.end)


def _view(home: TableHome, checkpoint: TableCheckpoint, delta: Callable[[PinnedShard], ShardDelta]) -> TableView:
    try:
        deltas = parallel.each("checkpoint", delta, checkpoint.shards.values())
        view = TableView.of(home, deltas, checkpoint.base_version)
    except DataLoss as error:
        error.with_context(table=home.uri, checkpoint=checkpoint.name)
        raise
    if view is None:
        raise Corrupt("The checkpoint's base contains later flushes than its manifests list.", table=home.uri)
    return view
