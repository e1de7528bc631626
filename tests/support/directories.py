"""Checkpoint directories as Spark 4.2 leaves them, for queries that never ran."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from headgate.checkpoints.spark.directory import SparkCheckpoint
from headgate.shards.wal.entry import SourceRange
from tests.support.life import QUERY, TOPIC, ranges_of

META = '{"batchWatermarkMs":0,"batchTimestampMs":1794797264108,"conf":{"spark.sql.shuffle.partitions":"1"}}'


def spark_directory(
    root: Path, batches: Sequence[Sequence[SourceRange]], done: int, query: str = QUERY
) -> SparkCheckpoint:
    """A query of one Kafka source that has logged these batches and is done with the first `done` of them."""
    put(root, "metadata", json.dumps({"id": query}))
    if batches:
        put(root, "sources/0/0", "\0v1\n" + offsets({(r.topic, r.partition): r.start for r in batches[0]}))
    for number, ranges in enumerate(batches):
        ends = offsets({(r.topic, r.partition): r.until for r in ranges})
        put(root, f"offsets/{number}", f"v1\n{META}\n{ends}")
        if number < done:
            put(root, f"commits/{number}", 'v1\n{"nextBatchWatermarkMs":0}')
    return SparkCheckpoint(str(root))


def equal_batches(count: int) -> list[tuple[SourceRange, ...]]:
    """The first batches of the topic that the tests' streams read."""
    return [ranges_of(number) for number in range(count)]


def offsets(ends: dict[tuple[str, int], int]) -> str:
    """Kafka's offsets as Spark writes them."""
    topics: dict[str, dict[str, int]] = {}
    for (topic, partition), end in ends.items():
        topics.setdefault(topic, {})[str(partition)] = end
    return json.dumps(topics)


def put(root: Path, name: str, content: str) -> None:
    """One file, with the checksum file that Hadoop puts beside it."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    (path.parent / f".{path.name}.crc").write_bytes(b"crc\0\0\0\x02\0")


__all__ = ["META", "TOPIC", "equal_batches", "offsets", "put", "spark_directory"]
