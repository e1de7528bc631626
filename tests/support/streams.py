"""A stream that writes to a table without Spark: the driver and the tasks are the real ones, called in turn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa

from headgate.checkpoints.log.dead_letters import dead_letter_name
from headgate.checkpoints.log.records import Batch, BatchRecord, ShardPart, WriteMode
from headgate.checkpoints.stream.driver import StreamDriver
from headgate.shards.config import WriterConfig
from headgate.shards.wal.entry import SourceRange
from headgate.streaming.decode.api import json as json_decoder
from headgate.streaming.decode.contract import Decoder
from headgate.streaming.decode.metadata import KAFKA
from headgate.streaming.write.routing import shards_of
from headgate.streaming.write.rows import RowMaker
from headgate.streaming.write.task import Attempt, WritePlan
from headgate.table.table import Table

COLUMNS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("note", pa.string())])
QUERY = "5b3a5c1e-0000-4000-8000-000000000001"


@dataclass(frozen=True)
class Record:
    """One record of a topic."""

    partition: int
    offset: int
    value: bytes | None
    key: bytes | None = None
    timestamp: datetime | None = None
    headers: Sequence[Mapping[str, Any]] | None = None


class Stream:
    """A stream in the hands of this process."""

    def __init__(
        self,
        table: Table,
        topic: str,
        partitions: int = 1,
        name: str | None = None,
        mode: WriteMode = "wal",
        decode: Decoder | None = None,
        decoder: Mapping[str, Any] | None = None,
    ) -> None:
        """`decoder` is what it records of how it decodes; nothing, as older releases did."""
        self._table = table
        self._decode = json_decoder(table.schema) if decode is None else decode
        self._mode = mode
        self._topic = topic
        names = [table.sharding.shard_name(topic, number) for number in range(partitions)]  # type: ignore[call-arg, arg-type]
        self._driver = StreamDriver.open(table.home, name or topic, QUERY, names, decoder=decoder)
        self._batch = 0

    @property
    def driver(self) -> StreamDriver:
        """Its driver."""
        return self._driver

    def commit(self, ranges: Sequence[tuple[int, int, int]], records: Iterable[Record]) -> BatchRecord:
        """A batch that says it read these (partition, from, until), with the rows of these records."""
        sources = tuple(SourceRange(self._topic, *part) for part in ranges)
        shards = shards_of(self._table.sharding, sources)
        planned = self._driver.plan(shards)
        maker = RowMaker(self._table.home.schema, self._table.sharding, self._decode, topic=self._topic)
        plan = WritePlan(
            maker=maker,
            claims=planned.claims,
            dead_letters=planned.dead_letters,
            sources=shards,
            writer=WriterConfig(enable_memtable=False),
            max_entry_bytes=1 << 28,
        )
        written: dict[str, ShardPart] = {}
        dead: dict[str, ShardPart] = {}
        with Attempt(plan) as attempt:
            for part in maker.from_kafka(_as_kafka_gives(records)):
                attempt.add(part)
            for told in attempt.finish():
                if "shard" in told:
                    claim = (planned.dead_letters if told["dead"] else planned.claims)[told["shard"]]
                    name = dead_letter_name(told["shard"]) if told["dead"] else told["shard"]
                    (dead if told["dead"] else written)[name] = ShardPart(
                        claim.shard.id, told["attempt"], tuple(told["positions"]), told["rows"], told["nbytes"]
                    )
        self._batch += 1
        return self._driver.commit(
            Batch(
                query_id=QUERY,
                batch_id=self._batch - 1,
                sources=sources,
                shards=written,
                dead_letters=dead,
                mode=self._mode,
            )
        )


def _as_kafka_gives(records: Iterable[Record]) -> pa.RecordBatch:
    rows = list(records)
    return pa.record_batch(
        {
            "key": pa.array([row.key for row in rows], pa.binary()),
            "value": pa.array([row.value for row in rows], pa.binary()),
            "partition": pa.array([row.partition for row in rows], pa.int32()),
            "offset": pa.array([row.offset for row in rows], pa.int64()),
            **_beside(rows),
        }
    )


def _beside(rows: Sequence[Record]) -> dict[str, pa.Array]:
    """What few streams read."""
    if all(row.timestamp is None for row in rows):
        return {}
    return {
        name: pa.array([getattr(row, name) for row in rows], KAFKA.field(name).type)
        for name in ("timestamp", "headers")
    }
