"""From what a task is given to rows of shards: decode, split off bad records, turn tombstones into deletes, route.

Pure on Arrow batches; knows no store and no Spark. Promises:
1. Every record ends as a row, a tombstone or a dead letter of exactly one shard.
2. Within a shard the order of the input is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.errors import InvalidInput
from headgate.shards.bucket import bucket_ids
from headgate.shards.schema import RowSchema
from headgate.shards.sharding import Bucket, ByPartition, Sharding
from headgate.streaming.dead_letters import SCHEMA as DEAD_LETTERS
from headgate.streaming.decode import Decoded, Decoder
from headgate.streaming.keys import decode_keys

ORDER = ("_topic", "_partition", "_offset")
"""Where a row came from, in frames of typed rows. By these a shuffle's disorder is undone."""


@dataclass(frozen=True)
class Routed:
    """Rows of one shard in storage form, or its dead letters, in order."""

    shard: str
    rows: pa.RecordBatch
    dead: bool
    order: pa.RecordBatch | None = None
    """Per row, what to sort by after a shuffle."""


@dataclass(frozen=True)
class RowMaker:
    """How the records of one stream become rows. Picklable."""

    schema: RowSchema
    sharding: Sharding
    decode: Decoder | None = None
    """None: the frame's columns are the table's."""
    sequence_by: str | None = None
    topic: str | None = None
    """The one topic of the batch, where the frame leaves the column out."""

    def from_kafka(self, batch: pa.RecordBatch) -> Iterator[Routed]:
        """Records as Kafka has them: value, partition, offset, and key and topic where they matter."""
        assert self.decode is not None
        values = batch.column("value")
        decoded = self.decode.decode(values)
        rows, indices, bad = self._without_null_keys(decoded)
        parts = [(stored, indices) for stored in self.schema.stored_rows(rows)]
        if len(decoded.nulls):
            deletes, where, more = self._deletes(batch, decoded.nulls)
            parts += [(stored, where) for stored in deletes]
            bad = bad + more
        topics = self._topics(batch)
        if parts:
            stored, positions = _interleaved(parts)
            yield from self._route(stored, batch, topics, positions)
        if bad:
            yield from self._dead(batch, topics, bad)

    def from_typed(self, batch: pa.RecordBatch) -> Iterator[Routed]:
        """Rows as the table has them, with their origin beside them where the frame kept it."""
        names = [name for name in batch.schema.names if name not in ORDER]
        if self.sequence_by is not None and self.sequence_by not in self.schema.logical.names:
            names.remove(self.sequence_by)
        columns = [_fitted(batch.column(name), self.schema, name) for name in names]
        for stored in self.schema.stored_rows(pa.RecordBatch.from_arrays(columns, names=names)):
            origin = _renamed(batch) if "_partition" in batch.schema.names else None
            yield from self._route(stored, origin, self._topics(batch), np.arange(batch.num_rows), batch)

    # -- decoding ----------------------------------------------------------------

    def _without_null_keys(self, decoded: Decoded) -> tuple[pa.RecordBatch, np.ndarray, list[tuple[int, str]]]:
        """Rows whose required columns are all there; the others are bad records."""
        rows, indices = decoded.rows, decoded.indices.to_numpy()
        bad = list(zip(decoded.bad.indices.to_pylist(), decoded.bad.errors.to_pylist(), strict=True))
        required = [f.name for f in self.schema.logical if not f.nullable or f.name in self.schema.primary_key]
        for name in required:
            if name in rows.schema.names and rows.column(name).null_count:
                missing = pc.is_null(rows.column(name)).to_numpy(zero_copy_only=False)
                bad += [(int(i), f"column {name!r} may not be null") for i in indices[missing]]
                rows, indices = rows.filter(pa.array(~missing)), indices[~missing]
        return rows, indices, bad

    def _deletes(
        self, batch: pa.RecordBatch, nulls: pa.Array
    ) -> tuple[list[pa.RecordBatch], np.ndarray, list[tuple[int, str]]]:
        at = nulls.to_numpy()
        if not self.schema.primary_key:
            return [], at[:0], [(int(i), "the record has no value, and the table no key to delete by") for i in at]
        keys = decode_keys(batch.column("key").take(nulls), self.schema)
        bad = zip(keys.bad.indices.to_pylist(), keys.bad.errors.to_pylist(), strict=True)
        stored = self.schema.stored_deletes(keys.rows)
        return stored, at[keys.indices.to_numpy()], [(int(at[i]), error) for i, error in bad]

    def _topics(self, batch: pa.RecordBatch) -> pa.Array | str | None:
        for name in ("topic", "_topic"):
            if self.topic is None and name in batch.schema.names:
                return batch.column(name)
        return self.topic

    # -- routing -----------------------------------------------------------------

    def _route(
        self,
        stored: pa.RecordBatch,
        origin: pa.RecordBatch | None,
        topics: pa.Array | str | None,
        positions: np.ndarray,
        frame: pa.RecordBatch | None = None,
    ) -> Iterator[Routed]:
        order = self._order(origin, topics, positions, frame)
        if isinstance(self.sharding, Bucket):
            ids = bucket_ids(stored.column(self.sharding.column), self.sharding.n).to_numpy()
            names = {i: self.sharding.shard_name(int(i)) for i in np.unique(ids)}
            yield from _split(stored, order, ids, names, dead=False)
        elif isinstance(self.sharding, ByPartition):
            if origin is None or topics is None:
                raise InvalidInput(
                    "by_partition needs to know where each row came from.",
                    advice=f"keep the columns {', '.join(ORDER)} in the frame, or shard by bucket() or single()",
                )
            ids, names = self._partitions(origin, topics, positions)
            yield from _split(stored, order, ids, names, dead=False)
        else:
            yield Routed(self.sharding.shard_name(), stored, False, order)

    def _partitions(
        self, origin: pa.RecordBatch, topics: pa.Array | str, positions: np.ndarray
    ) -> tuple[np.ndarray, dict[int, str]]:
        """Per row a number, per number a shard."""
        assert isinstance(self.sharding, ByPartition)
        partitions = origin.column("partition").to_numpy()[positions]
        if isinstance(topics, str):
            return partitions, {int(p): self.sharding.shard_name(topics, int(p)) for p in np.unique(partitions)}
        encoded = topics.take(pa.array(positions)).dictionary_encode()
        ids = encoded.indices.to_numpy().astype(np.int64) << 32 | partitions
        known = encoded.dictionary.to_pylist()
        return ids, {int(i): self.sharding.shard_name(known[i >> 32], int(i & 0xFFFFFFFF)) for i in np.unique(ids)}

    def _order(
        self,
        origin: pa.RecordBatch | None,
        topics: pa.Array | str | None,
        positions: np.ndarray,
        frame: pa.RecordBatch | None,
    ) -> pa.RecordBatch | None:
        """What to sort by after a shuffle: only buckets are shuffled."""
        if not isinstance(self.sharding, Bucket):
            return None
        at = pa.array(positions)
        if self.sequence_by is not None and frame is not None:
            return pa.RecordBatch.from_arrays([frame.column(self.sequence_by).take(at)], names=["_sequence"])
        if origin is None:
            return None
        topic = pa.repeat(topics, len(positions)) if isinstance(topics, str) else topics.take(at)  # type: ignore[union-attr]
        columns = [topic, origin.column("partition").take(at), origin.column("offset").take(at)]
        return pa.RecordBatch.from_arrays(columns, names=list(ORDER))

    # -- dead letters --------------------------------------------------------------

    def _dead(
        self, batch: pa.RecordBatch, topics: pa.Array | str | None, bad: Sequence[tuple[int, str]]
    ) -> Iterator[Routed]:
        errors: Mapping[int, str] = dict(bad)
        at = np.array(sorted(errors), np.int64)
        where = pa.array(at)
        topic = pa.repeat(topics, len(at)) if isinstance(topics, str) else topics.take(where)  # type: ignore[union-attr]
        missing = pa.nulls(len(at), pa.binary())
        rows = pa.RecordBatch.from_arrays(
            [
                topic.cast(pa.string()),
                batch.column("partition").take(where).cast(pa.int32()),
                batch.column("offset").take(where),
                pa.array([errors[int(i)] for i in at], pa.string()),
                batch.column("key").take(where).cast(pa.binary()) if "key" in batch.schema.names else missing,
                batch.column("value").take(where).cast(pa.binary()),
            ],
            names=DEAD_LETTERS.logical.names,
        )
        (stored,) = DEAD_LETTERS.stored_rows(rows)
        if isinstance(self.sharding, ByPartition):
            assert topics is not None
            ids, names = self._partitions(batch, topics, at)
        elif isinstance(self.sharding, Bucket):
            ids = batch.column("partition").to_numpy()[at] % self.sharding.n
            names = {int(i): self.sharding.shard_name(int(i)) for i in np.unique(ids)}
        else:
            ids, names = np.zeros(len(at), np.int64), {0: self.sharding.shard_name()}
        order = pa.RecordBatch.from_arrays(list(rows.columns[:3]), names=list(ORDER))
        yield from _split(stored, order if isinstance(self.sharding, Bucket) else None, ids, names, dead=True)


def in_order(parts: Sequence[tuple[pa.RecordBatch, pa.RecordBatch | None]], schema: pa.Schema) -> pa.Table:
    """Rows of one shard that came out of a shuffle in any order, put right."""
    rows = pa.Table.from_batches([rows for rows, _ in parts], schema=schema)
    orders = [order for _, order in parts if order is not None]
    if len(orders) < len(parts) or not orders:
        return rows
    keys = pa.Table.from_batches(orders)
    return rows.take(pc.sort_indices(keys, [(name, "ascending") for name in keys.column_names]))


def _split(
    stored: pa.RecordBatch, order: pa.RecordBatch | None, ids: np.ndarray, names: Mapping[int, str], *, dead: bool
) -> Iterator[Routed]:
    """By shard; a batch that belongs to one shard as a whole, the usual case, is passed on as it is."""
    shards: dict[str, list[int]] = {}
    for number, name in names.items():
        shards.setdefault(name, []).append(number)
    if len(shards) == 1:
        yield Routed(next(iter(shards)), stored, dead, order)
        return
    for name, numbers in shards.items():
        chosen = pa.array(np.isin(ids, numbers))
        yield Routed(name, stored.filter(chosen), dead, order.filter(chosen) if order is not None else None)


def _interleaved(parts: Sequence[tuple[pa.RecordBatch, np.ndarray]]) -> tuple[pa.RecordBatch, np.ndarray]:
    """Rows and tombstones in the order in which their records came."""
    if len(parts) == 1:
        return parts[0]
    positions = np.concatenate([at for _, at in parts])
    order = np.argsort(positions, kind="stable")
    rows = pa.concat_batches([rows for rows, _ in parts])
    return rows.take(pa.array(order)), positions[order]


def _renamed(batch: pa.RecordBatch) -> pa.RecordBatch:
    names = [name for name in batch.schema.names if name in ORDER]
    return pa.RecordBatch.from_arrays([batch.column(name) for name in names], names=[name[1:] for name in names])


def _fitted(column: pa.Array, schema: RowSchema, name: str) -> pa.Array:
    """Spark's Arrow types in the table's: the same values, or InvalidInput."""
    if name not in schema.logical.names:
        return column
    kind = schema.logical.field(name).type
    if column.type == kind:
        return column
    try:
        return column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidInput(f"Column {name!r} is {column.type} in the frame and cannot become {kind}.") from error
