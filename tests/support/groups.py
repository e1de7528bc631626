"""The offsets of a consumer group, read without joining it."""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka import Consumer, TopicPartition

from headgate.connectors.kafka.options import ConsumerConfig
from headgate.connectors.kafka.topics import QUIET


def group_offsets(
    config: ConsumerConfig, group: str, partitions: Iterable[tuple[str, int]], *, deadline: float = 60.0
) -> dict[tuple[str, int], int]:
    """The group's offsets of these partitions, without those that have none. Raises KafkaException."""
    consumer = Consumer({**config.librdkafka(), "group.id": group}, logger=QUIET)
    try:
        found = consumer.committed([TopicPartition(*place) for place in sorted(partitions)], timeout=deadline)
    finally:
        consumer.close()
    assert all(part.error is None for part in found), found
    return {(part.topic, part.partition): part.offset for part in found if part.offset >= 0}
