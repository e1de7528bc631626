"""headgate.kafka: reading topics with safe defaults.

`read` is Spark's own Kafka source. `source` makes the same frame and is also passed to ShardSink,
whose tasks then read their offset ranges themselves: Spark still plans, schedules and checkpoints,
but the rows never pass through the JVM.

Topics are one name, a list of names, or a pattern (a Java regular expression over whole names; topics that appear later
are read from their earliest offset). `start` says where a stream without a checkpoint begins: "earliest", "latest", or
a time. Options for security (`kafka.security.protocol`, `kafka.sasl.…`, `kafka.ssl.…`) are Spark's; headgate translates
them for its own client, and never shows their values in a repr, a log or an error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, TypeAlias

from headgate.connectors.kafka.options import ConsumerConfig
from headgate.errors import InvalidInput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MAX_OFFSETS_PER_TRIGGER = 200_000
"""Limits a batch after a pause: about a second of work per core."""

Topics: TypeAlias = "str | Sequence[str]"
"""A name, several separated by commas, or a list of names."""

Start: TypeAlias = "str | datetime"
"""Where a new stream begins: "earliest", "latest", or the first records at or after a time (with time zone)."""

_DEFAULTS = {
    "kafka.isolation.level": "read_committed",
    "failOnDataLoss": "true",
    "startingOffsets": "earliest",
}
_STARTS = ("startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")


@dataclass(frozen=True)
class KafkaSource:
    """Topics to read, for Spark and for the tasks. Options may hold credentials, so they are not shown."""

    topic: str
    """The names, separated by commas, or the pattern."""
    options: Mapping[str, str] = field(repr=False)

    def read(self, spark: SparkSession) -> DataFrame:
        """The streaming frame of Spark's own Kafka source. With `ShardSink(source=…)` pass it on unchanged."""
        return spark.readStream.format("kafka").options(**self.options).load()

    @property
    def consumer(self) -> ConsumerConfig:
        """The same for the tasks' own client. Raises InvalidInput for an unsupported option."""
        return ConsumerConfig.from_spark(self.options)

    @property
    def topics(self) -> tuple[str, ...]:
        """The names; empty for a pattern."""
        return tuple(self.topic.split(",")) if "subscribe" in self.options else ()


def source(
    servers: str,
    topic: Topics | None = None,
    *,
    max_offsets_per_trigger: int | None = MAX_OFFSETS_PER_TRIGGER,
    pattern: str | None = None,
    start: Start | None = None,
    **options: str,
) -> KafkaSource:
    """Topics that the tasks read directly, by `topic` or `pattern`.

    Other options are those of Spark's Kafka source; pass dotted names as `**{"kafka.security.protocol": "SSL"}`. Raises
    InvalidInput for an option that direct reading does not support.
    """
    made = _made(servers, topic, max_offsets_per_trigger, pattern, start, options)
    made.consumer  # noqa: B018 - refuses options before anything runs
    return made


def read(
    spark: SparkSession,
    servers: str,
    topic: Topics | None = None,
    *,
    max_offsets_per_trigger: int | None = MAX_OFFSETS_PER_TRIGGER,
    pattern: str | None = None,
    start: Start | None = None,
    **options: str,
) -> DataFrame:
    """A streaming frame of topics, with safe defaults.

    Committed transactions only, an error if offsets are lost, bounded batches, from the earliest offset.
    """
    return _made(servers, topic, max_offsets_per_trigger, pattern, start, options).read(spark)


def _made(
    servers: str,
    topic: Topics | None,
    max_offsets: int | None,
    pattern: str | None,
    start: Start | None,
    options: Mapping[str, str],
) -> KafkaSource:
    """The given options over the defaults, compared without case, as Spark does."""
    subscription = _subscription(topic, pattern)
    named = {"kafka.bootstrap.servers": servers, **subscription, **_starting(start)}
    if max_offsets is not None:
        named["maxOffsetsPerTrigger"] = str(max_offsets)
    taken = {name.lower() for name in named} | {"subscribe", "subscribepattern"}
    if start is not None:
        taken |= set(_STARTS)
    if twice := [name for name in options if name.lower() in taken]:
        raise InvalidInput(f"The option {twice[0]!r} must be given as its own argument.", advice="leave the option out")
    given = {name.lower() for name in options} | {name.lower() for name in named}
    # Spark accepts only one option that says where to begin.
    without = {"startingoffsets"} if given & set(_STARTS) else set()
    defaults = {name: value for name, value in _DEFAULTS.items() if name.lower() not in given | without}
    return KafkaSource(next(iter(subscription.values())), {**defaults, **options, **named})


def _subscription(topic: Topics | None, pattern: str | None) -> dict[str, str]:
    if (topic is None) == (pattern is None):
        raise InvalidInput("Give either topic= or pattern=.", advice="pass topic=… or pattern=…; nothing was read")
    if pattern is not None:
        if not pattern.strip():
            raise InvalidInput("pattern must not be empty.")
        return {"subscribePattern": pattern}
    assert topic is not None
    names = [name.strip() for name in (topic.split(",") if isinstance(topic, str) else topic)]
    if wrong := [name for name in names if not _NAME.fullmatch(name)]:
        raise InvalidInput(f"Invalid topic name {wrong[0]!r}.", advice="separate several names by commas")
    if len(set(names)) < len(names) or not names:
        raise InvalidInput(f"topic must name at least one topic, each once, got {names}.")
    return {"subscribe": ",".join(names)}


def _starting(start: Start | None) -> dict[str, str]:
    if start is None:
        return {}
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise InvalidInput("start must have a time zone.", advice="add one, such as timezone.utc")
        # A partition without a record since then starts at its end, instead of failing the query.
        return {
            "startingTimestamp": str(round(start.timestamp() * 1000)),
            "startingOffsetsByTimestampStrategy": "latest",
        }
    if start not in ("earliest", "latest"):
        raise InvalidInput(f"start must be 'earliest', 'latest' or a datetime, got {start[:40]!r}.")
    return {"startingOffsets": start}
