"""`rewind`: move a stream to other offsets, to read records again or skip some. The commit log keeps a record of it."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from headgate.checkpoints.log.commit_log import read_head
from headgate.checkpoints.log.decisions import starting_offsets
from headgate.checkpoints.log.records import OffsetMove
from headgate.checkpoints.log.state import Head
from headgate.checkpoints.spark.compare import look_at_spark
from headgate.checkpoints.spark.directory import SparkCheckpoint, default_checkpoint
from headgate.checkpoints.spark.recover import Rebuilt, check_rebuildable, rebuild
from headgate.checkpoints.spark.rewind import Rewound, stream_head
from headgate.checkpoints.spark.rewind import adopt as adopt_checkpoint
from headgate.checkpoints.spark.rewind import rewind as rewind_stream
from headgate.checkpoints.spark.rewind_plan import (
    EARLIEST,
    LATEST,
    Partition,
    check_held,
    head_after,
    is_there,
    moves_value,
    moving,
    parse_offsets,
    plan_adoption,
    plan_rewind,
)
from headgate.connectors.objects import open_store
from headgate.errors import InvalidInput
from headgate.results import Result
from headgate.shards.home.stores import Place, place
from headgate.table.table import Table, as_table


@dataclass(frozen=True, repr=False)
class Rewind(Result):
    """What a rewind did, or would do."""

    table: Table
    head: Head
    """The stream's state after the rewind."""
    moves: tuple[OffsetMove, ...]
    done: Rewound | None
    """None if it was not applied."""
    rebuilt: Rebuilt | None
    """Spark's checkpoint, rebuilt for the new offsets."""
    spark: SparkCheckpoint | None
    checked: bool
    """True if Kafka confirmed these offsets."""
    adopts: bool = False
    """True if the stream is new in this table and continues from a checkpoint."""

    @property
    def moves_anything(self) -> bool:
        """False if the stream is at these offsets already."""
        return bool(moving(self.moves))

    def to_dict(self) -> dict[str, Any]:
        again, skipped = sum(one.again for one in self.moves), sum(one.skipped for one in self.moves)
        record = None if self.done is None else self.done.record
        # Only of topics that the query reads now: Spark refuses others.
        offsets = starting_offsets(replace(self.head, ends=self.head.next_starts()))
        own = _of_ingest(self.table, self.head.stream)
        rebuilt = self.rebuilt
        return {
            "applied": record is not None,
            "stream": self.head.stream,
            "offsets_again": again,
            "offsets_skipped": skipped,
            "means": _means(self.table, again, skipped, [one for one in self.moves if one.before is None]),
            "checked_with_kafka": self.checked,
            "starting_offsets": offsets,
            "next": _next(self.done is not None, rebuilt, self.spark, offsets, own),
            "record": record and record.sequence,
            "by": record and record.by,
            "reason": record and record.reason,
            "rebuilt": rebuilt
            and {
                "checkpoint": self.spark and self.spark.uri,
                "query": rebuilt.query_id,
                "old_directory": rebuilt.moved_to,
            },
            "offsets": moves_value(self.moves),
        }


def rewind(
    table: Table | Place,
    *,
    stream: str,
    to_offsets: str | Mapping[str, Mapping[int, int]] | None = None,
    to_timestamp: str | int | datetime | None = None,
    adopt: bool = False,
    servers: str | None = None,
    kafka_options: Mapping[str, str] | None = None,
    spark_checkpoint: Place | None = None,
    sources: Sequence[Iterable[str]] = (),
    reason: str = "",
    apply: bool = False,
    storage_options: Mapping[str, str] | None = None,
) -> Rewind:
    """Move a stream to other offsets: back to read records again, or forward to skip some. No row is removed from the
    table.

    Without `apply` nothing is written. With it THIS FENCES A DRIVER THAT STILL RUNS THE STREAM, and the commit log
    keeps a record: who, when, why, and the offsets before and after.

    Give exactly one target: `to_offsets`, as Spark's startingOffsets or `{"orders": {0: 1200}}`; `to_timestamp`, the
    first records since then, which needs `servers`; or `adopt`, to continue where `spark_checkpoint` is, which was made
    for another table. Without `adopt` the directory `spark_checkpoint` is rebuilt for the new offsets; `sources` are
    the topics of each Kafka source of the query, if it has several. With `servers` Kafka is asked if it has the
    offsets. Raises InvalidInput, and as `checkpoints.spark.rewind.rewind` and `recover.rebuild` do.
    """
    if (to_offsets is not None) + (to_timestamp is not None) + adopt != 1:
        raise InvalidInput("Give exactly one of to_offsets, to_timestamp and adopt.")
    table = as_table(table, storage_options)
    options = table.storage_options
    spark = None if spark_checkpoint is None else SparkCheckpoint(place(spark_checkpoint), options)
    if adopt:
        return _adopted(table, stream, spark, reason, apply)
    head = stream_head(table.home, stream)
    there = None if servers is None else _KafkaOffsets(servers, kafka_options or {}, head)
    wanted = _wanted(to_offsets, to_timestamp, there)
    moves = plan_rewind(head, wanted)
    if there is not None:
        check_held(moves, there.offsets)
    if spark is not None:
        check_rebuildable(table.home, head_after(head, moves), spark, sources=sources)
    if not apply:
        return Rewind(table, head_after(head, moves), moves, None, None, spark, there is not None)
    done = rewind_stream(table.home, stream, wanted, by=_who(), reason=reason)
    rebuilt = None
    if spark is not None and check_rebuildable(table.home, done.head, spark, sources=sources):
        target = open_store(spark.location, options)
        rebuilt = rebuild(table.home, stream, spark, target, sources=sources)
    return Rewind(table, done.head, done.moves, done, rebuilt, spark, there is not None)


def _adopted(table: Table, stream: str, spark: SparkCheckpoint | None, reason: str, apply: bool) -> Rewind:
    if spark is None:
        raise InvalidInput(
            "adopt needs spark_checkpoint: the stream continues from there.",
            advice="name the query's checkpoint directory",
        )
    look = look_at_spark(spark)
    head = read_head(table.home, stream)
    moves = plan_adoption(head, look)
    there = is_there(head, moves)
    adopts = head.last is None and not there
    if not apply:
        return Rewind(table, head if there else head_after(head, moves), moves, None, None, spark, False, adopts)
    done = adopt_checkpoint(table.home, stream, look, by=_who(), reason=reason)
    return Rewind(table, done.head, done.moves, done, None, spark, False, adopts)


# -- target offsets ------------------------------------------------------------------


class _KafkaOffsets:
    """Kafka's offsets of a stream's topics. Fetched once, when needed."""

    def __init__(self, servers: str, options: Mapping[str, str], head: Head) -> None:
        from headgate.streaming.kafka.source import source

        self._names = sorted({topic for topic, _ in head.next_starts()})
        self._consumers = {
            name: source(servers, name, max_offsets_per_trigger=None, **options).consumer for name in self._names
        }
        self._offsets: dict[Partition, tuple[int, int]] | None = None

    @property
    def offsets(self) -> dict[Partition, tuple[int, int]]:
        """Earliest and end offset per partition."""
        from headgate.connectors.kafka.reader import offsets

        if self._offsets is None:
            found = {topic: offsets(consumer, topic) for topic, consumer in self._consumers.items()}
            self._offsets = {(topic, number): ends for topic, parts in found.items() for number, ends in parts.items()}
        return self._offsets

    def since(self, instant_ms: int) -> dict[Partition, int]:
        """The first offset at or after a time, per partition."""
        from headgate.connectors.kafka.reader import offsets_at

        found = {topic: offsets_at(consumer, topic, instant_ms) for topic, consumer in self._consumers.items()}
        return {(topic, number): at for topic, parts in found.items() for number, at in parts.items()}


def _wanted(
    to_offsets: str | Mapping[str, Mapping[int, int]] | None,
    to_timestamp: str | int | datetime | None,
    there: _KafkaOffsets | None,
) -> dict[Partition, int]:
    if to_timestamp is not None:
        if there is None:
            raise InvalidInput(
                "to_timestamp needs servers: Kafka finds the offsets of that time.",
                advice="pass Kafka's bootstrap addresses; nothing was written",
            )
        return there.since(_instant_ms(to_timestamp))
    assert to_offsets is not None
    wanted = parse_offsets(to_offsets)
    if there is None:
        return wanted
    return {place: _resolved(place, at, there) for place, at in wanted.items()}


def _resolved(place: Partition, at: int, there: _KafkaOffsets) -> int:
    if at >= 0:
        return at
    first, end = there.offsets.get(place, (EARLIEST, LATEST))
    return first if at == EARLIEST else end


def _instant_ms(given: str | int | datetime) -> int:
    """A datetime or ISO 8601 with a time zone, or milliseconds since 1970. Raises InvalidInput."""
    if isinstance(given, int) or (isinstance(given, str) and given.isascii() and given.isdigit()):
        return int(given)
    try:
        instant = datetime.fromisoformat(given) if isinstance(given, str) else given
    except ValueError as error:
        advice = "write it such as 2026-11-16T08:00:00Z, or as milliseconds since 1970"
        raise InvalidInput(f"{given!r} is not a valid time.", advice=advice) from error
    if instant.tzinfo is None:
        raise InvalidInput(
            f"The time {str(given)!r} has no time zone.", advice=f"write {given}Z for UTC, or {given}+01:00"
        )
    return int(instant.astimezone(UTC).timestamp() * 1000)


def _who() -> str:
    """User and host, for the record; empty if unknown."""
    with suppress(OSError, KeyError, ImportError):
        return f"{getpass.getuser()}@{socket.gethostname()}"
    return ""


# -- texts ---------------------------------------------------------------------------


def _means(table: Table, again: int, skipped: int, new: Sequence[OffsetMove]) -> str:
    said = []
    if again and table.primary_key:
        said.append(f"{again:,} offsets are read again and replace their rows; until then keys may show older values.")
    elif again:
        said.append(f"{again:,} offsets are read again: the table has no key, so THEIR ROWS WILL BE DUPLICATED.")
    if skipped:
        said.append(f"{skipped:,} offsets are skipped: THEIR ROWS WILL NEVER BE IN THE TABLE.")
    if new:
        named = ", ".join(f"{one.topic}/{one.partition} at {one.after}" for one in new)
        said.append(f"Partitions that the stream has not read yet start there: {named}; EARLIER RECORDS ARE NOT READ.")
    return " ".join(said) or "Nothing moves."


def _next(applied: bool, rebuilt: Rebuilt | None, spark: SparkCheckpoint | None, offsets: str, own: str | None) -> str:
    if rebuilt is not None:
        old = "" if rebuilt.moved_to is None else f" The old directory is {rebuilt.moved_to}."
        return f"start the query with this checkpoint directory; it continues at the new offsets.{old}"
    if spark is not None:
        done = "start the query" if applied else "stop the query, then run this again with --apply"
        return f"{done}; the checkpoint directory {'matches' if applied else 'will match'} the new offsets"
    fresh = f"start the query with an empty checkpoint directory and .option('startingOffsets', '{offsets}')"
    if own is not None:
        fresh = f"run this with --spark-checkpoint {own}, which `headgate ingest` uses; or {fresh}"
    return fresh if applied else f"stop the query, run this again with --apply, then {fresh}"


def _of_ingest(table: Table, stream: str) -> str | None:
    """The stream's default checkpoint directory of `headgate ingest`, if it exists."""
    with suppress(InvalidInput):
        made = default_checkpoint(table.home, stream)
        return made if os.path.isdir(made) else None
    return None
