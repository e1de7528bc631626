"""The setup of a query's run, checked at its first batch. Nothing is claimed or written yet."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from headgate.caches import set_cache_bytes
from headgate.checkpoints.jobs.columns import stream_schema
from headgate.checkpoints.spark.directory import SparkCheckpoint
from headgate.connectors.kafka.options import ConsumerConfig
from headgate.errors import InvalidInput
from headgate.shards.sharding import ByPartition
from headgate.streaming.decode.contract import Decoder, TableDecoder, decoder_of
from headgate.streaming.kafka import offsets as topic_offsets
from headgate.streaming.kafka.source import KafkaSource
from headgate.streaming.maintenance.spark import schedule_of
from headgate.streaming.options import SinkOptions, stream_name
from headgate.streaming.reporting import Reporting
from headgate.streaming.spark.query import QueryFacts, is_untouched
from headgate.streaming.write import checks, deletes
from headgate.streaming.write.routing import Ranges
from headgate.table.table import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class Setup:
    """One start of the query: what does not change between its batches."""

    facts: QueryFacts
    options: SinkOptions
    table: Table
    """The table at the start of the run."""
    decode: Decoder | TableDecoder | None
    decoder: Decoder | None
    """For the columns of `table`."""
    source: KafkaSource | None
    """The Kafka source that the tasks read; None if they get Spark's rows."""
    checkpoint: SparkCheckpoint
    query_id: str
    group: ConsumerConfig | None
    """The cluster of the consumer group that follows the stream; None if there is none."""
    session: SparkSession
    """The session of the run's batches; maintenance jobs use it too."""

    @classmethod
    def of(
        cls,
        frame: DataFrame,
        facts: QueryFacts,
        options: SinkOptions,
        table: Table,
        decode: Decoder | TableDecoder | None,
        source: KafkaSource | None,
    ) -> Setup:
        """The setup for the query of this batch. Raises InvalidInput for unsupported combinations, and Fenced if the
        table was re-created (R23).
        """
        # The columns may have changed since the table was opened; a start uses the current ones.
        table = table.retrying(options.retry)
        options.retry.run_steps(partial(stream_schema, table.home))
        table = options.retry.run_steps(table.refreshed)
        decoder = decoder_of(decode, table)
        checks.check_query(facts)
        if source is None:
            if options.delete_when is not None:
                deletes.check_condition(frame, options.delete_when)
            checks.check_columns(frame.columns, decoder, options.sequence_by, table, delete_when=options.delete_when)
        else:
            assert decoder is not None
            checks.check_direct(facts, source)
            checks.check_decoder(decoder, table)
        schedule_of(options)
        if options.cache_bytes is not None:
            set_cache_bytes(options.cache_bytes)
        Reporting.check(options, frame.sparkSession)
        checkpoint = _checkpoint(facts, options)
        query_id = checkpoint.query_id() if options.checkpoint_location or facts.query_id is None else facts.query_id
        checks.check_checkpoint(facts, query_id, checkpoint.uri)
        group = None if options.commit_to_kafka is None else _cluster(facts, source)
        return cls(facts, options, table, decode, decoder, source, checkpoint, query_id, group, frame.sparkSession)

    @property
    def key(self) -> str:
        """The run's id; or the query's, if Spark does not report one."""
        return self.facts.run_id or self.query_id

    @property
    def stream(self) -> str:
        """The stream's name in the table."""
        return stream_name(self.options.stream, self.facts.name)

    @property
    def consumer(self) -> ConsumerConfig | None:
        """The Kafka client settings for tasks that read Kafka themselves."""
        return None if self.source is None else self.source.consumer

    @property
    def shares_shards(self) -> bool:
        """True if different tasks may get partitions that share a shard; with direct reading never."""
        sharding = self.table.sharding
        return self.source is None and isinstance(sharding, ByPartition) and sharding.max_shards is not None

    def is_bare(self, frame: DataFrame) -> bool:
        """True if the batch contains Kafka's records unchanged. Checked for every batch, since the caller may change a
        batch.
        """
        bare = bool(self.facts.bare_kafka) and is_untouched(frame)
        if self.source is not None:
            checks.check_bare(bare)
        return bare

    def earliest(self, topic: str, partition: int) -> int:
        """The first offset that Kafka still has."""
        return topic_offsets.earliest(self._reader(), topic, partition)

    def explain(self, ranges: Ranges, cause: Exception) -> None:
        """Called after a failed job. Raises DataLoss if Kafka no longer has the batch's offsets."""
        try:
            consumer = self._reader()
        except InvalidInput:
            # Spark's client may understand options that ours does not.
            return
        lost = topic_offsets.loss(consumer, ranges) if consumer is not None else None
        if lost is not None:
            raise lost from cause

    def _reader(self) -> ConsumerConfig | None:
        if self.source is not None:
            return self.source.consumer
        return None if self.facts.kafka_options is None else ConsumerConfig.from_spark(self.facts.kafka_options)


def _checkpoint(facts: QueryFacts, options: SinkOptions) -> SparkCheckpoint:
    location = options.checkpoint_location or facts.checkpoint
    if location is None:
        raise InvalidInput(
            "The query's checkpoint location is unknown.",
            advice="pass checkpoint_location= to ShardSink (Spark Connect does not expose it)",
        )
    return SparkCheckpoint(location, options.storage_options)


def _cluster(facts: QueryFacts, source: KafkaSource | None) -> ConsumerConfig:
    """The cluster for `commit_to_kafka`. Raises InvalidInput if unknown."""
    if source is not None:
        return source.consumer
    if facts.cluster_options is None:
        raise InvalidInput(
            "commit_to_kafka= needs the Kafka cluster, which the query does not expose.",
            advice="read the topic with headgate.kafka.source(…) and pass source=, or leave out commit_to_kafka=",
        )
    return ConsumerConfig.from_spark(facts.cluster_options)
