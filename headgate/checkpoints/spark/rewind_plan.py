"""The plan of a rewind: where each partition continues, what is read again, what is skipped. Pure functions.

An adoption is a rewind to the offsets of a Spark checkpoint that was made for another table (R23).

A rewind names offsets for some partitions of the topics that the stream reads. The others stay where they are; the plan
has them all, so that the record says where the whole stream was and where it continues.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from headgate.checkpoints.log.records import OffsetMove, OpenRecord, RewindRecord
from headgate.checkpoints.log.state import Head
from headgate.checkpoints.spark.compare import SparkLook
from headgate.errors import InvalidInput

Partition: TypeAlias = tuple[str, int]
"""Topic and partition."""

EARLIEST, LATEST = -2, -1
"""Spark's numbers for the ends of a partition, which only Kafka can turn into offsets."""

_FORM = """write them as Spark does, such as {"orders":{"0":1200,"1":980}}; nothing was written"""


def parse_offsets(given: str | Mapping[str, Mapping[int, int]]) -> dict[Partition, int]:
    """Offsets as Spark writes them in `startingOffsets`, or the same as a dict. Raises InvalidInput."""
    try:
        topics = json.loads(given) if isinstance(given, str) else given
        found = {(topic, int(number)): at for topic, parts in topics.items() for number, at in parts.items()}
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidInput("The given offsets are invalid.", advice=_FORM) from error
    for (topic, number), at in found.items():
        if number < 0 or type(at) is not int or at < EARLIEST:
            raise InvalidInput(f"Invalid offset {at!r} of {topic}/{number}.", advice=_FORM)
    if not found:
        raise InvalidInput("No offsets were given.", advice=_FORM)
    return found


def plan_rewind(head: Head, wanted: Mapping[Partition, int]) -> tuple[OffsetMove, ...]:
    """Every partition that the stream reads: where it is, and where it would continue.

    A partition that the stream has not read yet may be named if its topic is one of the stream's (R17: a jump needs an
    explicit record). Raises InvalidInput if the stream has no batch yet, or no Kafka source, or not that topic.
    """
    stands = head.next_starts()
    if not stands:
        raise InvalidInput(
            f"Stream {head.stream!r} has committed no Kafka offsets, so there is nothing to rewind.",
            advice="start the query where you want it to begin: .option('startingOffsets', …); nothing was written",
        )
    topics = sorted({topic for topic, _ in stands})
    if strange := sorted({topic for topic, _ in wanted if topic not in topics}):
        raise InvalidInput(
            f"Stream {head.stream!r} does not read the topic {strange[0]!r}.",
            topics=", ".join(topics),
            advice="name a topic that its last batch has; nothing was written",
        )
    if unknown := sorted(place for place, at in wanted.items() if at < 0):
        topic, partition = unknown[0]
        raise InvalidInput(
            f"First and last offset of {topic}/{partition} are unknown without Kafka.",
            advice="add --servers, to ask Kafka; or give an offset of 0 or more",
        )
    return tuple(
        OffsetMove(*place, head.ends.get(place), wanted.get(place, stands.get(place, 0)))
        for place in sorted({*stands, *wanted})
    )


def plan_adoption(head: Head, spark: SparkLook) -> tuple[OffsetMove, ...]:
    """The stream as it would continue from a Spark checkpoint's offsets, whichever table that one was for (R23).

    A source that is not Kafka is taken from wherever the checkpoint has it, if the stream has no batch here yet. Raises
    InvalidInput for a directory that is unreadable, or that needs no adoption.
    """
    if not spark.is_there or spark.faults or spark.query_id is None:
        raise InvalidInput(
            "No readable Spark checkpoint found.",
            checkpoint=spark.uri,
            found=" ".join(spark.faults) or None,
            advice="name the query's checkpointLocation; nothing was written",
        )
    if not spark.planned and head.last is None:
        raise InvalidInput(
            "The Spark checkpoint has no earlier batch. A stream's first batch may start at any offset, so "
            "nothing must be adopted.",
            checkpoint=spark.uri,
            advice="start the query; nothing was written",
        )
    if head.last is not None and any(one.kafka is None for one in spark.layout):
        raise InvalidInput(
            f"Stream {head.stream!r} has batches in this table, and the checkpoint has a source other than Kafka.",
            checkpoint=spark.uri,
            advice="give the query its own stream; nothing was written",
        )
    stands, wanted = head.next_starts(), spark.next_starts()
    return tuple(
        OffsetMove(*place, head.ends.get(place), wanted.get(place, stands.get(place, 0)))
        for place in sorted({*stands, *wanted})
    )


def moving(moves: Iterable[OffsetMove]) -> tuple[OffsetMove, ...]:
    """The partitions that do not stay where they are."""
    return tuple(one for one in moves if one.before != one.after)


def is_there(head: Head, moves: Iterable[OffsetMove]) -> bool:
    """True if the stream is already at these offsets, so that no record is needed. A stream without a batch needs a
    record.
    """
    return not moving(moves) and (head.last is not None or head.rewound is not None)


def check_held(moves: Iterable[OffsetMove], there: Mapping[Partition, tuple[int, int]]) -> None:
    """Check that Kafka has the offsets where the stream would continue. `there` has each partition's earliest offset
    and end.

    Raises InvalidInput: at an offset that is gone, or does not exist yet, the stream would only stop.
    """
    for one in moving(moves):
        first, end = there.get((one.topic, one.partition), (0, 0))
        if not first <= one.after <= end:
            raise InvalidInput(
                f"Kafka has offsets [{first}, {end}) of {one.topic}/{one.partition}, but the stream would "
                f"continue at {one.after}.",
                advice="give an offset in this range; nothing was written",
            )


def head_after(head: Head, moves: tuple[OffsetMove, ...]) -> Head:
    """The head after the rewind, for checks before anything is written."""
    if head.opened is None:
        first = head.sequence + 1
        head = head.after(OpenRecord(record_id="planned", sequence=first, stream=head.stream, query_id="", shards={}))
    assert head.opened is not None
    record = RewindRecord(
        record_id="planned",
        sequence=head.sequence + 1,
        stream=head.stream,
        open_id=head.opened.record_id,
        query_id=head.opened.query_id,
        offsets=moves,
    )
    return head.after(record)


def rewind_value(record: RewindRecord) -> dict[str, Any]:
    """The record as plain values."""
    return {
        "stream": record.stream,
        "record": record.sequence,
        "rewound_at": record.rewound_at,
        "by": record.by,
        "reason": record.reason,
        "offsets_again": sum(one.again for one in record.offsets),
        "offsets_skipped": sum(one.skipped for one in record.offsets),
        "offsets": moves_value(record.offsets),
    }


def moves_value(moves: Iterable[OffsetMove]) -> list[dict[str, Any]]:
    """Per partition, where it was and where it continues, and the ranges that are read again or skipped."""
    return [
        {
            "topic": one.topic,
            "partition": one.partition,
            "before": one.before,
            "after": one.after,
            "again": f"[{one.after}, {one.before})" if one.again else None,
            "skipped": f"[{one.before}, {one.after})" if one.skipped else None,
        }
        for one in moves
    ]
