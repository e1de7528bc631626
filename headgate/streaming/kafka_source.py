"""headgate.kafka: reading topics with sound defaults.

`read` is Spark's own Kafka source. `source` makes the same frame and is also passed to ShardSink,
whose tasks then read their offset ranges themselves: Spark still plans, schedules and checkpoints,
but the rows never pass through the JVM.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headgate.connectors.kafka.options import ConsumerConfig
from headgate.errors import InvalidInput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MAX_OFFSETS_PER_TRIGGER = 200_000
"""Bounds a batch after a pause: about a second of work per core."""

_DEFAULTS = {
    "kafka.isolation.level": "read_committed",
    "failOnDataLoss": "true",
    "startingOffsets": "earliest",
}


@dataclass(frozen=True)
class KafkaSource:
    """A topic as Spark and the tasks read it. Options may hold credentials: they are not shown."""

    topic: str
    options: Mapping[str, str] = field(repr=False)

    def read(self, spark: SparkSession) -> DataFrame:
        """The streaming frame of Spark's own Kafka source. With `ShardSink(source=…)` pass it on unchanged."""
        return spark.readStream.format("kafka").options(**self.options).load()

    @property
    def consumer(self) -> ConsumerConfig:
        """The same for the tasks' own client. Raises InvalidInput for an option it cannot honour."""
        return ConsumerConfig.from_spark(self.options)


def source(
    servers: str, topic: str, max_offsets_per_trigger: int | None = MAX_OFFSETS_PER_TRIGGER, **options: str
) -> KafkaSource:
    """A topic (or several, separated by commas) to be read directly by the tasks.

    Further options are those of Spark's Kafka source; dotted names go in as `**{"kafka.security.protocol": "SSL"}`.
    Raises InvalidInput for an option that the direct reader cannot honour.
    """
    made = KafkaSource(topic, _merged(servers, topic, max_offsets_per_trigger, options))
    made.consumer  # noqa: B018 - refuses options before anything runs
    return made


def read(
    spark: SparkSession,
    servers: str,
    topic: str,
    max_offsets_per_trigger: int | None = MAX_OFFSETS_PER_TRIGGER,
    **options: str,
) -> DataFrame:
    """A streaming frame of a topic (or several, separated by commas), with sound defaults.

    Committed transactions only, an error where offsets are gone, a bounded batch, from the earliest offset.
    """
    return KafkaSource(topic, _merged(servers, topic, max_offsets_per_trigger, options)).read(spark)


def _merged(servers: str, topic: str, max_offsets: int | None, options: Mapping[str, str]) -> dict[str, str]:
    """Given options over our defaults. Spark takes names in any case, so one that is given replaces its default."""
    named = {"kafka.bootstrap.servers": servers, "subscribe": topic}
    if max_offsets is not None:
        named["maxOffsetsPerTrigger"] = str(max_offsets)
    taken = {name.lower() for name in named}
    if twice := [name for name in options if name.lower() in taken]:
        raise InvalidInput(f"The option {twice[0]!r} has an argument of its own.", advice="leave the option out")
    given = {name.lower() for name in options}
    defaults = {name: value for name, value in _DEFAULTS.items() if name.lower() not in given}
    return {**defaults, **options, **named}
