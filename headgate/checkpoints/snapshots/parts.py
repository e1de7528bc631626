"""One part of a read, in whatever process it runs: the rows of its layer that no newer layer hides.

On a table with a key a part needs the keys of the newer layers: of the shard's tail and newer SSTables, for the base of
all shards. They are read where they are needed, and kept for the next part of the same read in this process. Memory
holds them and, for a tail with a key, its rows; never the base. Writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from uuid import UUID

import pyarrow as pa

from headgate import clock
from headgate.checkpoints.log.state import unfolded
from headgate.checkpoints.log.visibility import Visible
from headgate.checkpoints.snapshots.at_checkpoint import tail_batches
from headgate.checkpoints.snapshots.checkpoint import CheckpointStore
from headgate.checkpoints.snapshots.splits import BasePart, ReadPart, ReadPlan, SsTablePart, TailPart, has_tail
from headgate.connectors.lance.filters import Filter, check_filter, filtered
from headgate.errors import Corrupt, DataLoss, Expired, NotFound, StoreError, Transient
from headgate.shards.manifest.model import SsTable
from headgate.shards.rows.dedup import KeySet, living, newest_rows
from headgate.shards.rows.schema import TOMBSTONE
from headgate.shards.rows.sstable import open_base, open_sstable
from headgate.shards.rows.view import batch_rows, result_schema, shown
from headgate.shards.shard import Shard


def part_batches(
    plan: ReadPlan, part: ReadPart, columns: Sequence[str] | None = None, filter: Filter | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of a part that count, and that a filter lets through.

    Raises InvalidInput for a column or filter that cannot be, Expired where the instant was collected, DataLoss,
    Transient.
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
            "What this read was planned on has been collected: it was not held any more.",
            table=plan.home.uri,
            checkpoint=plan.at.name,
            advice="load the table again; hold it longer by the option pinFor",
        ) from error


def _base(plan: ReadPlan, part: BasePart, result: pa.Schema, filter: Filter | None) -> Iterator[pa.RecordBatch]:
    key = plan.home.schema.primary_key
    hidden = _keys_of(plan).all_fresh() if key else KeySet(key)
    wanted = list(dict.fromkeys([*result.names, *(key if len(hidden) else ())]))
    stored = open_base(plan.home, plan.at.base_version)
    for batch in stored.batches(wanted, filter, batch_rows(hidden), part.fragments):
        yield from shown(hidden.unseen(pa.Table.from_batches([batch])), result)


def _sstable(plan: ReadPlan, part: SsTablePart, result: pa.Schema, filter: Filter | None) -> Iterator[pa.RecordBatch]:
    key = plan.home.schema.primary_key
    hidden = KeySet(key)
    if key:
        keys = _keys_of(plan)
        hidden.add(keys.of_tail(part.shard_id))
        for newer in part.newer:
            hidden.add(keys.of_sstable(part.shard_id, newer))
    wanted = list(dict.fromkeys([*result.names, *key, TOMBSTONE]))
    stored = open_sstable(Shard(plan.home, part.shard_id), part.sstable)
    for batch in stored.batches(wanted, filter, batch_rows(hidden)):
        yield from shown(living(hidden.unseen(pa.Table.from_batches([batch]))), result)


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


class _Keys:
    """The keys of a read's fresh layers, as far as this process has met them."""

    def __init__(self, plan: ReadPlan) -> None:
        self.read = plan.at.checkpoint_id
        self._plan = plan
        self._found: dict[tuple[UUID, str], pa.Table] = {}
        self._all: KeySet | None = None

    def of_tail(self, shard_id: UUID) -> pa.Table:
        if (shard_id, "") not in self._found:
            pinned = self._plan.at.shards[shard_id]
            there = has_tail(self._plan.at, shard_id)
            batches = tail_batches(self._plan.home, pinned, _visible(self._plan)) if there else iter(())
            self._found[shard_id, ""] = self._distinct(batches)
        return self._found[shard_id, ""]

    def of_sstable(self, shard_id: UUID, sstable: SsTable) -> pa.Table:
        if (shard_id, sstable.path) not in self._found:
            stored = open_sstable(Shard(self._plan.home, shard_id), sstable)
            self._found[shard_id, sstable.path] = self._distinct(stored.batches(self._key, None))
        return self._found[shard_id, sstable.path]

    def all_fresh(self) -> KeySet:
        if self._all is None:
            found = KeySet(self._key)
            for delta in self._plan.deltas:
                found.add(self.of_tail(delta.shard.id))
                for sstable in delta.sstables:
                    found.add(self.of_sstable(delta.shard.id, sstable))
            self._all = found
        return self._all

    @property
    def _key(self) -> list[str]:
        return list(self._plan.home.schema.primary_key)

    def _distinct(self, batches: Iterator[pa.RecordBatch]) -> pa.Table:
        """Copied, so that the other columns of a batch can go."""
        schema = pa.schema([self._plan.home.schema.storage.field(name) for name in self._key])
        parts = [
            pa.Table.from_batches([batch]).select(self._key).group_by(self._key, use_threads=False).aggregate([])
            for batch in batches
        ]
        return pa.concat_tables([schema.empty_table(), *(part.cast(schema) for part in parts)])


_last: list[_Keys] = []
"""Of the read that this process served last."""


def _keys_of(plan: ReadPlan) -> _Keys:
    if not _last or _last[0].read != plan.at.checkpoint_id:
        _last[:] = [_Keys(plan)]
    return _last[0]


def _visible(plan: ReadPlan) -> Visible:
    return Visible.of(map(unfolded, plan.at.streams.values()), plan.home.uri)


def _is_held(plan: ReadPlan) -> bool:
    """Whether what is missing should be there."""
    if not plan.pinned:
        return False
    try:
        stored = CheckpointStore(plan.home.records, plan.home.uri).get(plan.at.name)
    except NotFound:
        return False
    return stored.checkpoint.checkpoint_id == plan.at.checkpoint_id and not stored.expired(clock.now())
