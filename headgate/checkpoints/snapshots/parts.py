"""One part of a read, in any process: the rows of its layer that no newer layer hides.

On a table with a key, a part needs the keys of the newer layers: for an SSTable, those of the shard's tail and newer
SSTables; for the base, those of all shards. The process reads them when needed, and keeps them for the next part of the
same read. Memory holds them and, for a tail with a key, its rows; never the base. Writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import pyarrow as pa

from headgate import clock
from headgate.caches import Cache
from headgate.checkpoints.log.state import unfolded
from headgate.checkpoints.log.visibility import Visible
from headgate.checkpoints.snapshots.at_checkpoint import tail_batches
from headgate.checkpoints.snapshots.checkpoint import CheckpointStore
from headgate.checkpoints.snapshots.splits import BasePart, ReadPart, ReadPlan, SsTablePart, TailPart, has_tail
from headgate.connectors.lance.filters import Filter, check_filter, filtered
from headgate.errors import Corrupt, DataLoss, Expired, NotFound, StoreError, Transient
from headgate.shards.manifest.model import SsTable
from headgate.shards.rows.dedup import KeySet, living, newest_rows
from headgate.shards.rows.sstable import open_base, open_sstable
from headgate.shards.rows.view import result_schema, shown, stored_rows
from headgate.shards.shard import Shard


def part_batches(
    plan: ReadPlan, part: ReadPart, columns: Sequence[str] | None = None, filter: Filter | None = None
) -> Iterator[pa.RecordBatch]:
    """The visible rows of a part that pass the filter.

    Raises InvalidInput for an invalid column or filter, Expired if the instant was collected, DataLoss, Transient.
    """
    result = result_schema(plan.home.schema, columns)
    if filter is not None:
        check_filter(plan.home.schema.logical, filter)
    try:
        if isinstance(part, BasePart):
            yield from _base(plan, part, result, filter)
        elif isinstance(part, SsTablePart):
            yield from _sstable(plan, part, result, filter)
        else:
            yield from _tail(plan, part, result, filter)
    except (Corrupt, Transient):
        raise
    except (DataLoss, StoreError) as error:
        if _is_held(plan):
            raise
        raise Expired(
            "Files that this read needs were deleted: its hold had expired.",
            table=plan.home.uri,
            checkpoint=plan.at.name,
            advice="start the read again; raise the option pinFor to hold files longer",
        ) from error


def _base(plan: ReadPlan, part: BasePart, result: pa.Schema, filter: Filter | None) -> Iterator[pa.RecordBatch]:
    stored = open_base(plan.home, plan.at.base_version)
    return stored_rows(stored, _keys_of_shards(plan), result, filter, part.fragments)


def _sstable(plan: ReadPlan, part: SsTablePart, result: pa.Schema, filter: Filter | None) -> Iterator[pa.RecordBatch]:
    shard = Shard(plan.home, part.shard_id)
    hidden = KeySet(plan.home.schema.primary_key)
    for keys in _keys_of(plan, shard, part.newer):
        hidden.add(keys)
    return stored_rows(open_sstable(shard, part.sstable), hidden, result, filter)


def _tail(plan: ReadPlan, part: TailPart, result: pa.Schema, filter: Filter | None) -> Iterator[pa.RecordBatch]:
    batches = tail_batches(plan.home, plan.at.shards[part.shard_id], _visible(plan))
    key = plan.home.schema.primary_key
    if key:
        rows = newest_rows(pa.Table.from_batches(batches, schema=plan.home.schema.storage), key)
        yield from shown(filtered(living(rows), filter), result)
        return
    for batch in batches:
        yield from shown(filtered(living(pa.Table.from_batches([batch])), filter), result)


# -- keys of newer layers --------------------------------------------------------------

_keys: Cache[pa.Table] = Cache("read_keys", lambda keys: int(keys.nbytes))
"""Keys of a tail by read, of an SSTable by its path, which is never reused."""
_hidden: Cache[KeySet] = Cache("read_key_sets", lambda keys: keys.nbytes)
"""Keys of all tails and SSTables, by read."""


def _keys_of_shards(plan: ReadPlan) -> KeySet:
    def made() -> KeySet:
        found = KeySet(plan.home.schema.primary_key)
        for delta in plan.deltas:
            for keys in _keys_of(plan, delta.shard, delta.sstables):
                found.add(keys)
        return found

    return _hidden.get_or_make(plan.at.checkpoint_id, made)


def _keys_of(plan: ReadPlan, shard: Shard, sstables: Sequence[SsTable]) -> Iterator[pa.Table]:
    """Keys of a shard's tail and of some of its SSTables; nothing if the table has no key."""
    key = plan.home.schema.primary_key
    if not key:
        return
    if has_tail(plan.at, shard.id):
        pinned = plan.at.shards[shard.id]
        tail = partial(tail_batches, plan.home, pinned, _visible(plan))
        yield _keys.get_or_make((plan.at.checkpoint_id, shard.id), lambda: _distinct(plan, tail()))
    for sstable in sstables:
        place = (plan.home.uri, shard.id, sstable.path, key)
        stored = partial(open_sstable, shard, sstable)
        yield _keys.get_or_make(place, lambda stored=stored: _distinct(plan, stored().batches(key, None)))  # type: ignore[misc]


def _distinct(plan: ReadPlan, batches: Iterator[pa.RecordBatch]) -> pa.Table:
    """The distinct keys of the batches; copied, so that the other columns of a batch can be freed."""
    key = list(plan.home.schema.primary_key)
    schema = pa.schema([plan.home.schema.storage.field(name) for name in key])
    parts = [
        pa.Table.from_batches([batch]).select(key).group_by(key, use_threads=False).aggregate([]).cast(schema)
        for batch in batches
    ]
    return pa.concat_tables([schema.empty_table(), *parts])


def _visible(plan: ReadPlan) -> Visible:
    return Visible.of(map(unfolded, plan.at.streams.values()), plan.home.uri)


def _is_held(plan: ReadPlan) -> bool:
    """True if the read's checkpoint still holds what is missing."""
    if not plan.pinned:
        return False
    try:
        stored = CheckpointStore(plan.home.records, plan.home.uri).get(plan.at.name)
    except NotFound:
        return False
    return stored.checkpoint.checkpoint_id == plan.at.checkpoint_id and not stored.expired(clock.now())
