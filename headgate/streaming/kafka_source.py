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
    given = {**_DEFAULTS, **options, "kafka.bootstrap.servers": servers, "subscribe": topic}
    if max_offsets_per_trigger is not None:
        given["maxOffsetsPerTrigger"] = str(max_offsets_per_trigger)
    made = KafkaSource(topic, given)
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
    given = {**_DEFAULTS, **options, "kafka.bootstrap.servers": servers, "subscribe": topic}
    if max_offsets_per_trigger is not None:
        given["maxOffsetsPerTrigger"] = str(max_offsets_per_trigger)
    return KafkaSource(topic, given).read(spark)
