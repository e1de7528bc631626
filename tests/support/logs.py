"""Small records and batches, for tests that need some and do not care which."""

from __future__ import annotations

import uuid
from collections.abc import Mapping

from headgate.checkpoints.log.commit_log import CommitLog
from headgate.checkpoints.log.records import Batch, BatchRecord, OpaqueRange, OpenRecord, ShardClaim, ShardPart
from headgate.connectors.objects.port import ObjectStore
from headgate.retry import Retry
from headgate.shards.wal.entry import SourceRange

SHARD = uuid.UUID(int=1)
OTHER = uuid.UUID(int=2)
DEAD = uuid.UUID(int=3)
AT_ONCE = Retry(attempts=3, base=0)
CLAIMS = {"s0": ShardClaim(SHARD, 1, "claim", 0)}


def log(store: ObjectStore, stream: str = "orders") -> CommitLog:
    """The log of a stream, with retries that do not wait."""
    return CommitLog(store.retrying(AT_ONCE), stream, "memory://table")


def part(*positions: int, shard: uuid.UUID = SHARD, attempt: str | None = None, rows: int = 10) -> ShardPart:
    """What a batch wrote to a shard; the attempt is new unless given."""
    return ShardPart(shard, attempt or uuid.uuid4().hex, positions, rows, rows * 100)


def batch(number: int, start: int, until: int, *positions: int, query: str = "q", attempt: str | None = None) -> Batch:
    """A batch of topic t, partition 0, with one entry per position; without positions a batch without rows."""
    shards = {"s0": part(*positions, attempt=attempt)} if positions else {}
    return Batch(query_id=query, batch_id=number, sources=(SourceRange("t", 0, start, until),), shards=shards)


def open_record(sequence: int = 1, claims: Mapping[str, ShardClaim] = CLAIMS, record_id: str = "o1") -> OpenRecord:
    return OpenRecord(record_id=record_id, sequence=sequence, stream="orders", query_id="q", shards=dict(claims))


def batch_record(sequence: int, number: int, *positions: int, open_id: str = "o1", attempt: str = "a") -> BatchRecord:
    """Batch `number` reads [10·number, 10·number + 10)."""
    return BatchRecord(
        record_id=f"r{sequence}",
        sequence=sequence,
        stream="orders",
        open_id=open_id,
        query_id="q",
        batch_id=number,
        sources=(SourceRange("t", 0, number * 10, number * 10 + 10),),
        shards={"s0": part(*positions, attempt=attempt)} if positions else {},
    )


def full_record() -> BatchRecord:
    """A record with something in every field."""
    return BatchRecord(
        record_id="r7",
        sequence=7,
        stream="Bestellungen 🛒",
        open_id="o1",
        query_id="q",
        batch_id=3,
        sources=(SourceRange("t", 0, 5, 9), SourceRange("t", 1, 0, 0)),
        opaque=(OpaqueRange("1", None, '{"logOffset":0}'),),
        shards={"s0": part(4, 5, 9, attempt="a"), "s1": part(2, shard=OTHER, attempt="b")},
        dead_letters={"s0": part(1, shard=DEAD, attempt="c", rows=1)},
        mode="memtable",
        record_times=(1_700_000_000_000, 1_700_000_000_250),
    )
