"""Which shard a row belongs to: on a table with a key, one key lives in one shard. Pure."""

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
    """What all rows of a shard have in common: the bucket of a key column."""

    column: str
    n: int
    bucket: int

    def strangers(self, rows: pa.RecordBatch) -> np.ndarray:
        """Of each row that belongs to another shard its bucket."""
        ids = bucket_ids(rows.column(self.column), self.n).to_numpy()
        found: np.ndarray = ids[ids != self.bucket]
        return found


def bucket_of(shard: Shard) -> OneBucket | None:
    """None: any row may be here. So it is without a key, where a row is shown once wherever it is, and in a shard that
    is none of the table's buckets.
    """
    home = shard.home
    if not isinstance(home.sharding, Bucket) or home.sharding.column not in home.schema.primary_key:
        return None
    for number, name in enumerate(home.sharding.known_names()):
        if home.shard(name).id == shard.id:
            return OneBucket(home.sharding.column, home.sharding.n, number)
    return None


def check_placed(shard: Shard, own: OneBucket, stored: Iterable[pa.RecordBatch]) -> None:
    """Raises InvalidInput for rows that belong to another shard."""
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
    """By the name of their shard the rows that belong there, in the order they came. Raises InvalidInput if only a
    stream knows.
    """
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
