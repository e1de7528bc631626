"""Writes the offsets of a consumer group without joining it: for lag tools, never for reading rows.

Kafka rejects the offsets if the group has active members; other clients are not disturbed. This uses a plain consumer:
with the call of the admin client, the process died in a test that kills the broker, for unknown reasons.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from headgate.connectors.kafka.consumers import Lent, lend
from headgate.connectors.kafka.options import ConsumerConfig
from headgate.errors import HeadgateError, InvalidInput, PermissionDenied, Transient

_MEMBERS = (
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.NON_EMPTY_GROUP,
    KafkaError.REBALANCE_IN_PROGRESS,
)
_FORBIDDEN = (
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
)


def commit_group(config: ConsumerConfig, group: str, ends: Mapping[tuple[str, int], int]) -> None:
    """Write the next offset of each topic and partition. Raises an error unless all were written; idempotent.

    Waits for the group's coordinator as long as the client does: call it in a background thread. Raises InvalidInput
    if the group has members, PermissionDenied, Transient if nobody answers.
    """
    if not ends:
        return
    parts = [TopicPartition(topic, partition, end) for (topic, partition), end in sorted(ends.items())]
    with lend(_of_group(config, group)) as lent:
        try:
            done = lent.consumer.commit(offsets=parts, asynchronous=False)
        except KafkaException as error:
            raise _group_error(error.args[0], lent, config, group) from None
        _check(done or (), lent, config, group)


def _of_group(config: ConsumerConfig, group: str) -> ConsumerConfig:
    return replace(config, properties=tuple(sorted({**config.librdkafka(), "group.id": group}.items())))


def _check(parts: Iterable[TopicPartition], lent: Lent, config: ConsumerConfig, group: str) -> None:
    for part in parts:
        if part.error is not None:
            raise _group_error(part.error, lent, config, group).with_context(topic=part.topic, partition=part.partition)


def _group_error(reason: KafkaError, lent: Lent, config: ConsumerConfig, group: str) -> HeadgateError:
    """Uses the error's name only: its text may contain credentials."""
    where: dict[str, Any] = {"group": group, "servers": config.servers}
    lent.consumer.poll(0)  # calls `error_cb`
    if reason.code() in _MEMBERS:
        return InvalidInput(
            f"The consumer group {group!r} has active members.",
            **where,
            advice="use a group that no consumer joins",
        )
    if lent.refused() or reason.code() in _FORBIDDEN:
        return PermissionDenied(f"Kafka rejected the offsets of group {group!r}: {reason.name()}.", **where)
    what = f"Writing the offsets of group {group!r} to Kafka failed: {reason.name()}."
    return Transient(what, **where, advice=config.reach)
