"""The state of a table's streams: what they have committed, and their lag behind Kafka. Reads only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from headgate.checkpoints.log.commit_log import read_head
from headgate.checkpoints.log.names import list_streams
from headgate.checkpoints.log.records import BatchRecord
from headgate.checkpoints.log.state import Head
from headgate.connectors.kafka.options import ConsumerConfig
from headgate.connectors.kafka.reading import offsets
from headgate.table.table import Table

Consumer = Callable[[str], ConsumerConfig]
"""How to reach a topic."""


@dataclass(frozen=True)
class PartitionStatus:
    """One partition of a topic as read by a stream."""

    topic: str
    partition: int
    committed: int | None
    """The next batch's start; None if the stream has not read the partition yet."""
    end: int | None = None
    """The end offset in Kafka for a reader of committed records; None if Kafka was not asked."""
    lag: int | None = None
    """Offsets that are in Kafka, but not in the table."""


@dataclass(frozen=True)
class StreamStatus:
    """One stream."""

    head: Head
    partitions: tuple[PartitionStatus, ...]

    @property
    def lag(self) -> int | None:
        """Over all partitions; None if Kafka was not asked."""
        known = [part.lag for part in self.partitions if part.lag is not None]
        return sum(known) if known else None


def heads_of(table: Table) -> tuple[Head, ...]:
    """The commit log head of every stream, by name."""
    home = table.home
    return tuple(read_head(home, name) for name in list_streams(home.records))


def stream_statuses(table: Table, consumer: Consumer | None = None) -> tuple[StreamStatus, ...]:
    """Every stream of the table, by name. With `consumer`, Kafka is asked for the ends of its topics.

    Raises NotFound for a missing topic, Transient, PermissionDenied.
    """
    return tuple(StreamStatus(head, _partitions(head, consumer)) for head in heads_of(table))


def _partitions(head: Head, consumer: Consumer | None) -> tuple[PartitionStatus, ...]:
    if consumer is None:
        return tuple(PartitionStatus(topic, number, end) for (topic, number), end in sorted(head.ends.items()))
    found = []
    for topic in sorted({topic for topic, _ in head.ends}):
        for number, (first, end) in sorted(offsets(consumer(topic), topic).items()):
            committed = head.ends.get((topic, number))
            lag = max(0, end - (first if committed is None else committed))
            found.append(PartitionStatus(topic, number, committed, end, lag))
    return tuple(found)


def instant_text(milliseconds: int) -> str:
    """An instant as Kafka counts it, for people and programs."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")


def batch_value(record: BatchRecord) -> dict[str, Any]:
    """One committed batch as plain values."""
    return {
        "stream": record.stream,
        "batch": record.batch_id,
        "sequence": record.sequence,
        "query": record.query_id,
        "mode": record.mode,
        "rows": record.rows,
        "bytes": record.nbytes,
        "dead_letters": sum(part.rows for part in record.dead_letters.values()),
        "record_times": [instant_text(time) for time in record.record_times or ()],
        "positions": {name: list(part.positions) for name, part in record.shards.items()},
        "offsets": [
            {"topic": part.topic, "partition": part.partition, "from": part.start, "until": part.until}
            for part in record.sources
            if part.until > part.start
        ],
    }
