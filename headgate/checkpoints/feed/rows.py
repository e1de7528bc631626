"""Rows of committed batches as a consumer of the log sees them: the entries' rows, and where they come from.

On a table with a key, a row is the newest one of its key at that point of the log; `_deleted` means that the key was
deleted, and then only the key columns are set. Writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pyarrow as pa

from headgate.checkpoints.feed.offsets import LogPart, LogPiece
from headgate.errors import DataLoss, Expired, HeadgateError, InvalidInput, NotFound
from headgate.parallel import Pool, in_order
from headgate.shards.rows.schema import TOMBSTONE, RowSchema
from headgate.shards.shard import Shard, TableHome
from headgate.shards.wal.decoder import decode_entry
from headgate.shards.wal.entry import Entry

READERS = 4
"""Entries read concurrently: a task has one core, and this hides the store's latency."""

LOG_COLUMNS: Mapping[str, pa.DataType] = {
    "_stream": pa.string(),
    "_sequence": pa.int64(),
    "_shard": pa.string(),
    "_position": pa.int64(),
    "_row": pa.int32(),
    "_deleted": pa.bool_(),
}
"""Columns that a consumer sees beside the table's. `_row` is the row's place in its entry: with `_position` it orders
the rows of a shard.
"""


def log_schema(schema: RowSchema) -> pa.Schema:
    """The table's columns (all nullable if a key can be deleted) and those of the log. Raises InvalidInput."""
    if taken := sorted(set(schema.logical.names) & LOG_COLUMNS.keys()):
        raise InvalidInput(
            f"The table has a column {taken[0]!r}, which is also the name of a column of the commit log.",
            advice="rename the column; nothing was read",
        )
    own = [pa.field(field.name, field.type) for field in schema.logical]
    return pa.schema([*own, *(pa.field(name, kind) for name, kind in LOG_COLUMNS.items())])


def log_batches(home: TableHome, part: LogPart) -> Iterator[pa.RecordBatch]:
    """The rows of one part in the order of their positions, in `log_schema`. Raises Expired, DataLoss, Corrupt."""
    shard, result = Shard(home, part.shard_id), log_schema(home.schema)
    wanted = [(piece, position) for piece in part.pieces for position in piece.positions]
    sizes = {piece.positions: piece.nbytes // len(piece.positions) for piece in part.pieces}
    pool = Pool("log", READERS)
    try:
        entries = in_order(pool, lambda one: _entry(shard, *one), wanted, lambda one: sizes[one[0].positions])
        for (piece, position), entry in zip(wanted, entries, strict=True):
            first = 0
            for batch in entry.batches:
                yield _with_place(_adopted(home.schema, shard, position, batch), result, part, piece, position, first)
                first += batch.num_rows
    finally:
        # Does not wait: an abandoned generator ends wherever the garbage collector runs.
        pool.shutdown(wait=False, cancel_futures=True)


def _entry(shard: Shard, piece: LogPiece, position: int) -> Entry:
    try:
        entry = decode_entry(shard.wal.get(shard.wal_key(position)))
    except NotFound as error:
        raise Expired(
            f"Entry {position} was deleted before it was read: the consumer's pin expired.",
            **shard.where(),
            stream=piece.stream,
            sequence=piece.sequence,
            position=position,
            advice="start the query again: the error then names a checkpoint to start from",
        ) from error
    except HeadgateError as error:
        raise shard.at_position(error, position)  # noqa: B904 - the same error, told where
    if entry.header.tags.attempt_id != piece.attempt_id:
        raise DataLoss(
            f"The entry at position {position} belongs to another attempt than the one in the commit record.",
            **shard.where(),
            position=position,
        )
    return entry


def _adopted(schema: RowSchema, shard: Shard, position: int, batch: pa.RecordBatch) -> pa.RecordBatch:
    try:
        return schema.adopted(batch)
    except HeadgateError as error:
        raise shard.at_position(error, position)  # noqa: B904 - the same error, told where


def _with_place(
    rows: pa.RecordBatch, result: pa.Schema, part: LogPart, piece: LogPiece, position: int, first: int
) -> pa.RecordBatch:
    count = rows.num_rows
    places: dict[str, Callable[[], pa.Array]] = {
        "_stream": lambda: pa.repeat(piece.stream, count),
        "_sequence": lambda: pa.repeat(pa.scalar(piece.sequence, pa.int64()), count),
        "_shard": lambda: pa.repeat(part.shard, count),
        "_position": lambda: pa.repeat(pa.scalar(position, pa.int64()), count),
        "_row": lambda: pa.array(np.arange(first, first + count, dtype=np.int32)),
        "_deleted": lambda: rows.column(TOMBSTONE),
    }
    columns = [places[name]() if name in places else rows.column(name) for name in result.names]
    return pa.RecordBatch.from_arrays(columns, schema=result)
