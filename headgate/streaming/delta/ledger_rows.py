"""A commit record as rows of a ledger: which WAL positions may hold which offsets. Pure: no store, no clock.

Promises:
1. Every batch record has at least one row, and the same record always makes the same rows.
2. Every offset that a record read is in the range of a row; its rows name every shard that may hold it, with the
   batch's positions there. `candidates` is the number of these shards: with more than one, the row's own columns decide
   (bucket).
3. `row_count`, `byte_count` and `dead_letters` of a shard are set in the shard's first row of the batch and null in its
   others, so that sums are correct.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeAlias
from uuid import UUID

import pyarrow as pa

from headgate.checkpoints.log.records import DEAD_LETTERS, BatchRecord
from headgate.shards.sharding import ByPartition, Sharding
from headgate.shards.wal.entry import SourceRange

TopicPartition: TypeAlias = tuple[str, int]

_TIME = pa.timestamp("us", tz="UTC")

LEDGER: Mapping[str, tuple[pa.DataType, str]] = {
    "table_id": (pa.string(), "The table's id: one ledger may serve several tables."),
    "table_uri": (pa.string(), "The table's URI."),
    "stream": (pa.string(), "The stream."),
    "sequence": (pa.int64(), "The commit record's number in the stream's log."),
    "kind": (
        pa.string(),
        "batch; replay (of dead letters); folded: records up to this one were deleted before the ledger read them.",
    ),
    "batch": (pa.int64(), "Spark's id of the micro-batch."),
    "query": (pa.string(), "Spark's id of the query."),
    "mode": (pa.string(), "wal or memtable."),
    "committed_at": (_TIME, "When the record was stored, by the store's clock."),
    "opened_at": (_TIME, "When the driver that committed it took over the stream, by its clock."),
    "shard": (pa.string(), "The shard; null if the range has neither rows nor dead letters."),
    "shard_id": (pa.string(), "The shard's folder below _mem_wal/; null if it has dead letters only."),
    "epoch": (pa.int64(), "The driver's epoch."),
    "first_position": (pa.int64(), "The first WAL position of the batch in the shard."),
    "last_position": (pa.int64(), "The last WAL position, inclusive."),
    "positions": (pa.list_(pa.int64()), "All WAL positions: dead entries may lie between."),
    "topic": (pa.string(), "The topic; null if the rows did not come from Kafka."),
    "partition": (pa.int32(), "Its partition."),
    "from_offset": (pa.int64(), "The first offset of the batch; null if unknown (folded)."),
    "until_offset": (pa.int64(), "The end offset, exclusive."),
    "candidates": (pa.int32(), "How many shards may hold rows of this range; 1 is exact."),
    "row_count": (pa.int64(), "Rows of the batch in the shard; in the shard's first row of the batch, else null."),
    "byte_count": (pa.int64(), "Bytes of the batch's entries; counted as row_count."),
    "dead_letters": (pa.int64(), "Dead letters of the batch; counted as row_count."),
    "dead_positions": (pa.list_(pa.int64()), "Their positions in the shard's log of dead letters."),
}
"""The columns, and what they mean."""

LEDGER_SCHEMA = pa.schema([pa.field(name, kind) for name, (kind, _) in LEDGER.items()])


@dataclass(frozen=True)
class LedgerRecord:
    """A batch record, with facts that it does not contain."""

    record: BatchRecord
    committed_at: datetime
    opened_at: datetime | None = None
    epochs: Mapping[UUID, int] = field(default_factory=dict)
    """The committing driver's epoch per shard."""


@dataclass(frozen=True)
class Folded:
    """Missing records up to `sequence`, and their offsets: [from, until) per partition."""

    sequence: int
    ranges: Mapping[TopicPartition, tuple[int | None, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class LedgerKey:
    """Table and stream of the rows."""

    table_id: str
    table_uri: str
    stream: str


def ledger_table(key: LedgerKey, sharding: Sharding, parts: Iterable[LedgerRecord | Folded]) -> pa.Table:
    """The rows of records, in `LEDGER_SCHEMA`."""
    common = {"table_id": key.table_id, "table_uri": key.table_uri, "stream": key.stream}
    found: list[dict[str, Any]] = []
    for part in parts:
        rows = _of_folded(part) if isinstance(part, Folded) else _of_record(part, sharding)
        found += [{**common, **row} for row in rows]
    return pa.Table.from_pylist(found, schema=LEDGER_SCHEMA)


def placements(record: BatchRecord, sharding: Sharding) -> list[tuple[str | None, SourceRange | None]]:
    """Which shard may hold rows or dead letters of which range; None if no shard.

    A shard of a partition has that partition's ranges; other shards share all of them. Rows that Spark computed from
    earlier batches (such as a closing window) may be in a shard whose partition this batch did not read.
    """
    shards = sorted({*record.shards, *(name.removeprefix(DEAD_LETTERS) for name in record.dead_letters)})
    ranges = [part for part in record.sources if part.until > part.start]
    pairs: list[tuple[str | None, SourceRange | None]] = []
    for shard in shards:
        own = [(shard, part) for part in ranges if _may_feed(sharding, part, shard)]
        pairs += own or [(shard, None)]
    fed = {part for _, part in pairs}
    pairs += [(None, part) for part in ranges if part not in fed]
    return pairs or [(None, None)]


def rows_of(record: BatchRecord) -> int:
    """Maximum rows made from the record."""
    return max(1, len(record.sources)) * max(1, len(record.shards) + len(record.dead_letters))


def _may_feed(sharding: Sharding, part: SourceRange, shard: str) -> bool:
    return not isinstance(sharding, ByPartition) or sharding.shard_name(part.topic, part.partition) == shard


def _of_record(dated: LedgerRecord, sharding: Sharding) -> Iterator[dict[str, Any]]:
    record = dated.record
    pairs = placements(record, sharding)
    common = {
        "sequence": record.sequence,
        "kind": "replay" if record.is_replay else "batch",
        "batch": record.batch_id,
        "query": record.query_id,
        "mode": record.mode,
        "committed_at": dated.committed_at,
        "opened_at": dated.opened_at,
    }
    seen: set[str | None] = set()
    for shard, part in pairs:
        candidates = None if part is None else sum(one is not None and other == part for one, other in pairs)
        source = {} if part is None else _range(part.topic, part.partition, part.start, part.until)
        yield {
            **common,
            **source,
            "candidates": candidates,
            **_of_shard(dated, shard, first=shard not in seen),
        }
        seen.add(shard)


def _of_shard(dated: LedgerRecord, shard: str | None, *, first: bool) -> dict[str, Any]:
    record = dated.record
    if shard is None:
        return {"row_count": 0, "byte_count": 0, "dead_letters": 0}
    part, dead = record.shards.get(shard), record.dead_letters.get(f"{DEAD_LETTERS}{shard}")
    found: dict[str, Any] = {"shard": shard, "dead_positions": dead and list(dead.positions)}
    if part is not None:
        found |= {
            "shard_id": str(part.shard_id),
            "epoch": dated.epochs.get(part.shard_id),
            "first_position": part.positions[0],
            "last_position": part.positions[-1],
            "positions": list(part.positions),
        }
    if first:
        found |= {
            "row_count": part.rows if part else 0,
            "byte_count": part.nbytes if part else 0,
            "dead_letters": dead.rows if dead else 0,
        }
    return found


def _of_folded(gone: Folded) -> Iterator[dict[str, Any]]:
    common = {"sequence": gone.sequence, "kind": "folded"}
    for (topic, partition), (start, until) in sorted(gone.ranges.items()):
        yield {**common, **_range(topic, partition, start, until)}
    if not gone.ranges:
        yield common


def _range(topic: str, partition: int, start: int | None, until: int) -> dict[str, Any]:
    return {"topic": topic, "partition": partition, "from_offset": start, "until_offset": until}
