"""Which shard a row belongs to: on a table with a key, one key is in one shard. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from headgate.errors import InvalidInput
from headgate.shards.bucket import bucket_ids
from headgate.shards.shard import Shard, TableHome
from headgate.shards.sharding import Bucket, Single


@dataclass(frozen=True)
class OneBucket:
    """The bucket of a key column to which all rows of a shard belong."""

    column: str
    n: int
    bucket: int

    def strangers(self, rows: pa.RecordBatch) -> np.ndarray:
        """The bucket of each row that belongs to another shard."""
        ids = bucket_ids(rows.column(self.column), self.n).to_numpy()
        found: np.ndarray = ids[ids != self.bucket]
        return found


def bucket_of(shard: Shard) -> OneBucket | None:
    """The bucket of a shard's rows. None if any row may be here: on a table without a key, where a row is shown once
    wherever it is, and in a shard that is not one of the table's buckets.
    """
    home = shard.home
    if not isinstance(home.sharding, Bucket) or home.sharding.column not in home.schema.primary_key:
        return None
    for number, name in enumerate(home.sharding.known_names()):
        if home.shard(name).id == shard.id:
            return OneBucket(home.sharding.column, home.sharding.n, number)
    return None


def check_placed(shard: Shard, own: OneBucket, stored: Iterable[pa.RecordBatch]) -> None:
    """Raises InvalidInput if a row belongs to another shard."""
    for batch in stored:
        if len(strangers := own.strangers(batch)):
            raise InvalidInput(
                f"By key column {own.column!r}, {len(strangers)} of {batch.num_rows} rows belong to other "
                f"buckets, the first to bucket {strangers[0]}; this writer is for bucket {own.bucket}.",
                **shard.where(),
                primary_key=list(shard.home.schema.primary_key),
                advice="call table.upsert or table.delete, which route rows to their shards; nothing was written",
            )


def routed(home: TableHome, stored: Iterable[pa.RecordBatch]) -> Mapping[str, list[pa.RecordBatch]]:
    """The rows by the name of their shard, in their order. Raises InvalidInput if only a stream can route them."""
    sharding = home.sharding
    if isinstance(sharding, Single):
        batches = list(stored)
        return {sharding.shard_name(): batches} if batches else {}
    if not isinstance(sharding, Bucket):
        raise InvalidInput(
            "This table shards rows by their topic partition, which the given rows do not contain.",
            table=home.uri,
            advice="write with the stream, or write each key to the shard of its partition with "
            "table.writer('partition:TOPIC:N'); nothing was written",
        )
    parts: dict[str, list[pa.RecordBatch]] = {}
    for batch in stored:
        ids = bucket_ids(batch.column(sharding.column), sharding.n).to_numpy()
        order = np.argsort(ids, kind="stable")
        numbers, starts = np.unique(ids[order], return_index=True)
        together = batch.take(pa.array(order))
        for number, (start, stop) in zip(numbers, pairwise([*starts.tolist(), len(ids)]), strict=True):
            parts.setdefault(sharding.shard_name(int(number)), []).append(together.slice(start, stop - start))
    return parts
