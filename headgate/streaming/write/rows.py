"""Turns a task's input into rows of shards: decodes, separates bad records, turns tombstones into deletes, routes.

Pure on Arrow batches; knows no store and no Spark. Promises:
1. Every record becomes a row, a tombstone or a dead letter of exactly one shard.
2. Within a shard, rows keep the order of the input.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.checkpoints.log.dead_letters import SCHEMA as DEAD_LETTERS
from headgate.errors import InvalidInput
from headgate.shards.bucket import bucket_ids
from headgate.shards.rows.schema import RowSchema
from headgate.shards.sharding import Bucket, ByPartition, Sharding
from headgate.streaming.decode.cast import cast_column
from headgate.streaming.decode.contract import Decoded, Decoder, KeyDecoder
from headgate.streaming.decode.keys import decode_keys
from headgate.streaming.decode.metadata import WithMetadata
from headgate.streaming.write.deletes import are_gone, column_of
from headgate.streaming.write.ordering import ORDER, SEQUENCE, STAYS


@dataclass(frozen=True)
class Routed:
    """Rows of one shard in storage form, or its dead letters, in order."""

    shard: str
    rows: pa.RecordBatch
    dead: bool
    order: pa.RecordBatch | None = None
    """The ordering columns of each row: see `ordering`. None if the order is unknown."""


@dataclass(frozen=True)
class MadeRows:
    """Routed rows, and the bad records among the input."""

    parts: tuple[Routed, ...]
    bad: Mapping[int, str]
    """The reason of each bad record, by its position in the batch."""


@dataclass(frozen=True)
class RowMaker:
    """Makes rows of the records of one stream. Picklable."""

    schema: RowSchema
    sharding: Sharding
    decode: Decoder | None = None
    """None if the frame has the table's columns."""
    sequence_by: str | None = None
    topic: str | None = None
    """The batch's only topic, if the frame has no topic column."""
    of_letters: bool = False
    """True if the records are dead letters, which may lack Kafka's columns."""

    def from_kafka(self, batch: pa.RecordBatch) -> Iterator[Routed]:
        """Rows and dead letters of Kafka records: value, partition, offset, and key and topic if needed."""
        made = self.make(batch)
        yield from made.parts
        if made.bad:
            yield from self._dead(batch, self._origin(batch), made.bad)

    def make(self, batch: pa.RecordBatch) -> MadeRows:
        """The same, but returns the reasons of bad records instead of dead letters."""
        assert self.decode is not None
        decoded = self.decode.decode(batch.column("value"))
        if isinstance(own := self.decode, WithMetadata):
            missing = own.not_kept(batch, has_keys=bool(self.schema.primary_key)) if self.of_letters else None
            decoded = own.filled(decoded, batch, self.topic, missing)
        rows, indices, bad = self._without_null_keys(decoded)
        parts = [(stored, indices) for stored in self.schema.stored_rows(rows)]
        if decoded.deletes is not None and decoded.deleted is not None and decoded.deletes.num_rows:
            parts += [(stored, decoded.deleted.to_numpy()) for stored in self.schema.stored_deletes(decoded.deletes)]
        if len(decoded.nulls):
            deletes, where, more = self._deletes(batch, decoded.nulls)
            parts += [(stored, where) for stored in deletes]
            bad = bad + more
        routed: list[Routed] = []
        if parts:
            stored, positions = _interleaved(parts)
            routed = list(self._route(stored, self._origin(batch).at(positions)))
        return MadeRows(tuple(routed), dict(bad))

    def from_typed(self, batch: pa.RecordBatch) -> Iterator[Routed]:
        """Rows with the table's columns, deleted rows as tombstones. The columns of ORDER or `sequence_by`, if present,
        give the order.
        """
        known = self.schema.logical.names
        mark = column_of(batch.schema.names, known)
        gone = None if mark is None else are_gone(batch.column(mark), mark)
        origin = _typed_origin(batch, self.sequence_by, gone)
        beside = {*ORDER, mark, *({self.sequence_by} - set(known))}
        names = [name for name in batch.schema.names if name not in beside]
        if gone is None:
            parts = [(stored, np.arange(batch.num_rows)) for stored in self._typed(batch, names)]
        else:
            parts = []
            for mask, columns, deleted in ((pc.invert(gone), names, False), (gone, self.schema.primary_key, True)):
                at = np.flatnonzero(mask.to_numpy(zero_copy_only=False))
                parts += [(stored, at) for stored in self._typed(batch.filter(mask), columns, deleted=deleted)]
        if parts:
            yield from self._route(_interleaved(parts)[0], origin)

    def _typed(self, batch: pa.RecordBatch, names: Sequence[str], *, deleted: bool = False) -> list[pa.RecordBatch]:
        """The named columns in storage form, as rows or as tombstones; empty if there are no rows."""
        rows = pa.RecordBatch.from_arrays(
            [cast_column(batch.column(name), self.schema, name) for name in names], names=list(names)
        )
        return self.schema.stored_deletes(rows) if deleted else self.schema.stored_rows(rows)

    def _origin(self, batch: pa.RecordBatch) -> _Origin:
        topics = batch.column("topic") if self.topic is None else self.topic
        return _Origin(topics, batch.column("partition"), batch.column("offset"))

    # -- decoding ----------------------------------------------------------------

    def _without_null_keys(self, decoded: Decoded) -> tuple[pa.RecordBatch, np.ndarray, list[tuple[int, str]]]:
        """Rows whose required columns are not null; the others become bad records."""
        rows, indices = decoded.rows, decoded.indices.to_numpy()
        bad = list(zip(decoded.bad.indices.to_pylist(), decoded.bad.errors.to_pylist(), strict=True))
        required = [f.name for f in self.schema.logical if not f.nullable or f.name in self.schema.primary_key]
        for name in required:
            if name in rows.schema.names and rows.column(name).null_count:
                missing = pc.is_null(rows.column(name)).to_numpy(zero_copy_only=False)
                bad += [(int(i), f"column {name!r} must not be null") for i in indices[missing]]
                rows, indices = rows.filter(pa.array(~missing)), indices[~missing]
        return rows, indices, bad

    def _deletes(
        self, batch: pa.RecordBatch, nulls: pa.Array
    ) -> tuple[list[pa.RecordBatch], np.ndarray, list[tuple[int, str]]]:
        at = nulls.to_numpy()
        if not self.schema.primary_key:
            return [], at[:0], [(int(i), "the record has no value, and the table has no key to delete by") for i in at]
        named = batch.column("key").take(nulls)
        own = self.decode.decoder if isinstance(self.decode, WithMetadata) else self.decode
        keys = own.decode_keys(named, self.schema) if isinstance(own, KeyDecoder) else decode_keys(named, self.schema)
        bad = zip(keys.bad.indices.to_pylist(), keys.bad.errors.to_pylist(), strict=True)
        stored = self.schema.stored_deletes(keys.rows)
        return stored, at[keys.indices.to_numpy()], [(int(at[i]), error) for i, error in bad]

    # -- routing -----------------------------------------------------------------

    def _route(self, stored: pa.RecordBatch, origin: _Origin) -> Iterator[Routed]:
        if isinstance(self.sharding, Bucket):
            ids = bucket_ids(stored.column(self.sharding.column), self.sharding.n).to_numpy()
            names = {i: self.sharding.shard_name(int(i)) for i in np.unique(ids)}
            yield from _split(stored, origin.order, ids, names, dead=False)
        elif isinstance(self.sharding, ByPartition):
            ids, names = origin.shards(self.sharding)
            yield from _split(stored, origin.order, ids, names, dead=False)
        else:
            yield Routed(self.sharding.shard_name(), stored, False, origin.order)

    # -- dead letters --------------------------------------------------------------

    def _dead(self, batch: pa.RecordBatch, source: _Origin, errors: Mapping[int, str]) -> Iterator[Routed]:
        at = np.array(sorted(errors), np.int64)
        where = pa.array(at)
        origin = source.at(at)
        found = {"topic": origin.topic_column(), "error": pa.array([errors[int(i)] for i in at], pa.string())}
        for field in DEAD_LETTERS.logical:
            if field.name not in found and field.name in batch.schema.names:
                found[field.name] = batch.column(field.name).take(where).cast(field.type)
        rows = pa.RecordBatch.from_pydict(found)
        (stored,) = DEAD_LETTERS.stored_rows(rows)
        if isinstance(self.sharding, ByPartition):
            ids, names = origin.shards(self.sharding)
        elif isinstance(self.sharding, Bucket):
            ids = batch.column("partition").to_numpy()[at] % self.sharding.n
            names = {int(i): self.sharding.shard_name(int(i)) for i in np.unique(ids)}
        else:
            ids, names = np.zeros(len(at), np.int64), {0: self.sharding.shard_name()}
        yield from _split(stored, origin.order, ids, names, dead=True)


@dataclass(frozen=True)
class _Origin:
    """Topic, partition and offset of a batch's rows, as far as known."""

    topics: pa.Array | str | None = None
    """One per row, or one for all rows."""
    partitions: pa.Array | None = None
    offsets: pa.Array | None = None
    sequence: pa.Array | None = None
    stays: pa.Array | None = None
    """False for deleted rows; only with a sequence, in frames that delete."""

    def at(self, positions: np.ndarray) -> _Origin:
        """The origin of the records at these positions, which must be ascending."""
        if self.offsets is not None and len(positions) == len(self.offsets):
            return self
        where = pa.array(positions)
        return _Origin(*(value.take(where) if isinstance(value, pa.Array) else value for value in self._fields()))

    @property
    def order(self) -> pa.RecordBatch | None:
        """The ordering columns; None if unknown."""
        if self.sequence is not None:
            columns = {SEQUENCE: self.sequence} | ({} if self.stays is None else {STAYS: self.stays})
            return pa.RecordBatch.from_pydict(columns)
        if self.partitions is None or self.offsets is None:
            return None
        if isinstance(self.topics, pa.Array):
            return pa.RecordBatch.from_arrays([self.topics, self.partitions, self.offsets], names=list(ORDER))
        return pa.RecordBatch.from_arrays([self.partitions, self.offsets], names=list(ORDER[1:]))

    def shards(self, sharding: ByPartition) -> tuple[np.ndarray, dict[int, str]]:
        """A number per row, and the shard of each number. Raises InvalidInput if topic or partition is unknown."""
        if self.topics is None or self.partitions is None:
            raise InvalidInput(
                "by_partition needs the topic and partition of each row.",
                advice=f"keep the columns {', '.join(ORDER)} in the frame, or shard by bucket() or single()",
            )
        partitions = self.partitions.to_numpy()
        if isinstance(self.topics, str):
            return partitions, {int(p): sharding.shard_name(self.topics, int(p)) for p in np.unique(partitions)}
        encoded = self.topics.dictionary_encode()
        ids = encoded.indices.to_numpy().astype(np.int64) << 32 | partitions
        known = encoded.dictionary.to_pylist()
        return ids, {int(i): sharding.shard_name(known[i >> 32], int(i & 0xFFFFFFFF)) for i in np.unique(ids)}

    def topic_column(self) -> pa.Array:
        assert self.topics is not None
        assert self.offsets is not None
        if isinstance(self.topics, str):
            return pa.repeat(pa.scalar(self.topics, pa.string()), len(self.offsets))
        return self.topics.cast(pa.string())

    def _fields(self) -> tuple[pa.Array | str | None, ...]:
        return self.topics, self.partitions, self.offsets, self.sequence, self.stays


def _typed_origin(batch: pa.RecordBatch, sequence_by: str | None, gone: pa.Array | None) -> _Origin:
    there = {name: batch.column(name) for name in ORDER if name in batch.schema.names}
    for name, column in there.items():
        if column.null_count:
            raise InvalidInput(
                f"Column {name!r} must not be null, but {column.null_count} rows lack it: it gives each row's place "
                "in Kafka."
            )
    sequence = None if sequence_by is None else batch.column(sequence_by)
    topics, partitions, offsets = map(there.get, ORDER)
    return _Origin(topics, partitions, offsets, sequence, None if gone is None else pc.invert(gone))


def _split(
    stored: pa.RecordBatch, order: pa.RecordBatch | None, ids: np.ndarray, names: Mapping[int, str], *, dead: bool
) -> Iterator[Routed]:
    """Split rows by shard. If all belong to one shard, the usual case, the batch is passed on unchanged.

    Otherwise the rows are sorted by shard once, in their order within each shard, and sliced without copying.
    """
    shards = list(dict.fromkeys(names.values()))
    if len(shards) == 1:
        yield Routed(shards[0], stored, dead, order)
        return
    numbers = np.array(list(names))
    places = np.array([shards.index(name) for name in names.values()])
    sorter = np.argsort(numbers)
    of_rows = places[sorter[np.searchsorted(numbers, ids, sorter=sorter)]]
    if (np.diff(of_rows) < 0).any():
        together = np.argsort(of_rows, kind="stable")
        where, of_rows = pa.array(together), of_rows[together]
        stored = stored.take(where)
        order = None if order is None else order.take(where)
    ends = np.searchsorted(of_rows, np.arange(len(shards) + 1))
    for place, (start, end) in enumerate(pairwise(ends.tolist())):
        part = None if order is None else order.slice(start, end - start)
        yield Routed(shards[place], stored.slice(start, end - start), dead, part)


def _interleaved(parts: Sequence[tuple[pa.RecordBatch, np.ndarray]]) -> tuple[pa.RecordBatch, np.ndarray]:
    """Rows and tombstones in the order of their records, and their positions."""
    if len(parts) == 1:
        return parts[0]
    positions = np.concatenate([at for _, at in parts])
    order = np.argsort(positions, kind="stable")
    rows = pa.concat_batches([rows for rows, _ in parts])
    return rows.take(pa.array(order)), positions[order]
