"""Decides if a batch is written, and plans its tasks: used by ShardSink and by `format("headgate")`. No Spark."""

from __future__ import annotations

from collections.abc import Mapping

from headgate.checkpoints.log.decisions import BatchSources, Earliest, Refusal, Skip, Write, decide_batch
from headgate.checkpoints.log.state import Head
from headgate.checkpoints.stream.driver import Planned
from headgate.connectors.kafka.options import ConsumerConfig
from headgate.errors import InvalidInput
from headgate.shards.config import WriterConfig
from headgate.shards.sharding import ByPartition, Sharding
from headgate.streaming.decode.contract import Decoder
from headgate.streaming.decode.metadata import WithMetadata
from headgate.streaming.options import SinkOptions
from headgate.streaming.write.routing import Ranges, check_routing
from headgate.streaming.write.rows import RowMaker
from headgate.streaming.write.task import WritePlan
from headgate.table.table import Table


def batch_decision(
    table: Table, head: Head, query_id: str, batch_id: int, sources: BatchSources, earliest: Earliest
) -> Skip | Write:
    """Write or skip the batch, given the stream's head. Called before anything is claimed, and again afterwards.

    Raises InvalidInput for a batch that does not continue the log (R8), or whose rows have no shard (R17).
    """
    decision = decide_batch(head, query_id, batch_id, sources, earliest)
    if isinstance(decision, Refusal):
        raise decision.error
    if isinstance(decision, Write):
        shard_names(table.sharding, sources)
        check_routing(table.sharding, bool(table.primary_key), head.ends, sources.partitions())
    return decision


def shard_names(sharding: Sharding, sources: BatchSources) -> set[str]:
    """The shards that the batch may write to. Raises InvalidInput for by_partition if the source is not Kafka."""
    if not isinstance(sharding, ByPartition):
        return set(sharding.known_names())
    if sources.opaque:
        raise InvalidInput(
            "by_partition needs Kafka partitions, but this query has another source.",
            advice="shard the table by bucket() or single()",
        )
    return {sharding.shard_name(topic, partition) for topic, partition in sources.partitions()}


def write_plan(
    table: Table,
    options: SinkOptions,
    decode: Decoder | None,
    planned: Planned,
    sources: Mapping[str, Ranges],
    ranges: Ranges,
    consumer: ConsumerConfig | None = None,
    tries: int | None = None,
) -> WritePlan:
    """The plan that the batch's tasks get."""
    topics = {part.topic for part in ranges}
    beside = decode.reads if isinstance(decode, WithMetadata) else frozenset()
    maker = RowMaker(
        schema=table.home.schema,
        sharding=table.sharding,
        decode=decode,
        sequence_by=options.sequence_by if decode is None else None,
        topic=topics.pop() if len(topics) == 1 and decode is not None else None,
    )
    return WritePlan(
        maker=maker,
        claims=planned.claims,
        dead_letters=planned.dead_letters,
        sources=sources,
        writer=WriterConfig(enable_memtable=False, compression=options.compression, retry=options.retry),
        max_entry_bytes=options.max_entry_bytes,
        columns=(
            "value",
            "partition",
            "offset",
            *(("key",) if table.primary_key or "key" in beside else ()),
            *(("topic",) if maker.topic is None else ()),
            *(name for name in ("timestamp", "headers") if name in beside),
        ),
        fail_on_bad_record=options.on_bad_record == "fail",
        consumer=consumer,
        tries=tries,
    )
