"""Checks of a batch's offsets in Kafka: a partition's first offset, and lost ranges."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from headgate import clock
from headgate.connectors.kafka.options import LOSS_SECONDS, READ_UNCOMMITTED, ConsumerConfig
from headgate.connectors.kafka.reading import offsets
from headgate.errors import DataLoss, HeadgateError, InvalidInput, NotFound, Transient
from headgate.shards.wal.entry import SourceRange

_LOOK_AGAIN = 0.5
"""Seconds between two checks of a log that seems to end too early."""
_PASS_SOURCE = "read the topic with headgate.kafka.source(…) and pass source= to ShardSink"


def earliest(consumer: ConsumerConfig | None, topic: str, partition: int, *, advice: str = _PASS_SOURCE) -> int:
    """The earliest offset that a partition still has. Raises InvalidInput if there is no client to ask, Transient."""
    if consumer is None:
        raise InvalidInput(
            f"Partition {partition} of {topic!r} is new, and its first offset is unknown here.",
            advice=advice,
        )
    there, cause = {}, None
    try:
        there = offsets(consumer, topic)
    except NotFound as error:
        cause = error
    if partition not in there:
        # A broker may learn of a new partition later than the one that Spark asked; one that has just come back may
        # not know the topic.
        raise Transient(
            f"Kafka does not have partition {partition} of {topic!r} yet.",
            topic=topic,
            partition=partition,
            servers=consumer.servers,
            advice=f"start again; if it persists, check the topic at {consumer.servers}",
        ) from cause
    return there[partition][0]


def wait_for_topics(
    consumer: ConsumerConfig,
    topics: Iterable[str],
    is_known: Callable[[str], bool],
    is_over: Callable[[], bool] = lambda: False,
    patience: float = LOSS_SECONDS,
) -> None:
    """Wait until Kafka reports the end of each topic. Returns early if the wait is cancelled.

    A missing topic is an error at once, unless `is_known`: a broker that has just restarted may not know its topics
    yet. Raises NotFound, Transient, PermissionDenied, and what `is_known` raises.
    """
    for topic in topics:
        until: float | None = None
        while not is_over():
            try:
                offsets(consumer, topic, is_over=is_over)
                break
            except Transient:
                if not is_over():
                    raise
            except NotFound:
                if until is None:
                    until = clock.monotonic() + (patience if is_known(topic) else 0.0)
                if clock.monotonic() >= until:
                    raise
                clock.sleep(_LOOK_AGAIN)


def loss(consumer: ConsumerConfig, ranges: Sequence[SourceRange], patience: float = LOSS_SECONDS) -> DataLoss | None:
    """The first range that Kafka does not have completely; None if all exist or Kafka does not say.

    A broker that has just restarted may not know the topic's end yet: a log must end too early for `patience` seconds.
    """
    until = clock.monotonic() + patience
    while True:
        lost = _look(consumer, ranges)
        if lost is None or lost.detail["earliest"] > lost.detail["lost_from"] or clock.monotonic() >= until:
            return lost
        clock.sleep(_LOOK_AGAIN)


def _look(consumer: ConsumerConfig, ranges: Iterable[SourceRange]) -> DataLoss | None:
    everything = consumer.with_isolation(READ_UNCOMMITTED)
    for part in ranges:
        if part.until == part.start:
            continue
        try:
            first, end = offsets(everything, part.topic, deadline=5.0).get(part.partition, (0, 0))
        except NotFound:
            first, end = 0, 0
        except HeadgateError:
            return None
        if first > part.start or end < part.until:
            gone = (part.start, min(first, part.until)) if first > part.start else (max(end, part.start), part.until)
            return DataLoss(
                f"Kafka no longer has offsets [{gone[0]},{gone[1]}) of {part.topic!r} partition {part.partition}.",
                topic=part.topic,
                partition=part.partition,
                range=f"[{part.start},{part.until})",
                lost_from=gone[0],
                lost_until=gone[1],
                earliest=first,
                advice="restore the topic, or skip the lost offsets on purpose with `headgate rewind`",
            )
    return None
