"""Sends records to a topic. Before a call returns, every in-sync replica has acknowledged each record."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from headgate.connectors.kafka.options import ConsumerConfig
from headgate.connectors.kafka.topics import QUIET
from headgate.errors import HeadgateError, InvalidInput, NotFound, PermissionDenied, Transient

DEADLINE = 60.0
"""Seconds for one record from its first try to its acknowledgement."""

_OF_CONSUMERS = (
    "isolation.level",
    "check.crcs",
    "group.id",
    "fetch.min.bytes",
    "fetch.max.bytes",
    "fetch.wait.max.ms",
    "max.partition.fetch.bytes",
)
_FORBIDDEN = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED)
_LASTING = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG, KafkaError.INVALID_MSG_SIZE)


@dataclass(frozen=True)
class OutRecord:
    """One record to send."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int | None = None
    """None means the time of sending."""


def check_topic(config: ConsumerConfig, topic: str) -> None:
    """Raises NotFound if the topic does not exist (it is not created), PermissionDenied, Transient."""
    try:
        found = _producer(config).list_topics(topic, timeout=DEADLINE / 4).topics[topic]
    except KafkaException as error:
        raise _told(error.args[0], config, topic) from None
    if found.error is not None:
        raise _told(found.error, config, topic)


def send(config: ConsumerConfig, topic: str, records: Iterable[OutRecord]) -> int:
    """Send records in order and wait until all are acknowledged. Returns how many.

    At least once: after an error some records may have arrived. Raises NotFound, PermissionDenied, InvalidInput (a
    record is too large for the topic), Transient.
    """
    producer, failed, sent = _producer(config), [], 0

    def done(error: KafkaError | None, _: object) -> None:
        if error is not None:
            failed.append(error)

    try:
        for record in records:
            while not failed:
                try:
                    producer.produce(
                        topic,
                        record.value,
                        record.key,
                        headers=list(record.headers),
                        on_delivery=done,
                        timestamp=record.timestamp_ms or 0,
                    )
                    sent += 1
                    break
                except BufferError:
                    producer.poll(0.05)
            producer.poll(0)
        left = producer.flush(DEADLINE + 5)
    except KafkaException as error:
        raise _told(error.args[0], config, topic) from None
    if failed:
        raise _told(failed[0], config, topic)
    if left:
        raise _unanswered(config, topic)
    return sent


def _producer(config: ConsumerConfig) -> Producer:
    own = {name: value for name, value in config.librdkafka().items() if name not in _OF_CONSUMERS}
    # Idempotence: a retry neither duplicates nor reorders records. It implies acks=all.
    given = {"enable.idempotence": True, "linger.ms": 20, "delivery.timeout.ms": int(DEADLINE * 1000)}
    return Producer({**own, **given}, logger=QUIET)


def _told(reason: KafkaError, config: ConsumerConfig, topic: str) -> HeadgateError:
    """Uses the error's name only: its text may contain credentials."""
    where: dict[str, Any] = {"topic": topic, "servers": config.servers}
    if reason.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
        return NotFound(f"Kafka has no topic {topic!r}.", **where, advice="create it; headgate creates no topics")
    if reason.code() in _FORBIDDEN:
        return PermissionDenied(f"Kafka refused a write to {topic!r}: {reason.name()}.", **where)
    if reason.code() in _LASTING:
        advice = "raise max.message.bytes of the topic"
        return InvalidInput(f"Kafka did not take a record for {topic!r}: {reason.name()}.", **where, advice=advice)
    return Transient(f"Kafka did not take the records for {topic!r}: {reason.name()}.", **where, advice=config.reach)


def _unanswered(config: ConsumerConfig, topic: str) -> Transient:
    return Transient(
        f"Kafka did not acknowledge all records for {topic!r} in time.",
        topic=topic,
        servers=config.servers,
        advice=config.reach,
    )
