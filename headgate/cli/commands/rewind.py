"""`headgate rewind`: let a stream read again what it has read, or skip what it has not. Deliberately, on record."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import click

from headgate.checkpoints.log.commit_log import read_head
from headgate.checkpoints.log.decisions import starting_offsets
from headgate.checkpoints.log.records import OffsetMove
from headgate.checkpoints.log.state import Head
from headgate.checkpoints.spark.compare import look_at_spark
from headgate.checkpoints.spark.directory import SparkCheckpoint
from headgate.checkpoints.spark.recover import Rebuilt, check_rebuildable, rebuild
from headgate.checkpoints.spark.rewind import Rewound, stream_head
from headgate.checkpoints.spark.rewind import adopt as adopt_checkpoint
from headgate.checkpoints.spark.rewind import rewind as rewind_stream
from headgate.checkpoints.spark.rewind_plan import (
    EARLIEST,
    LATEST,
    Place,
    check_held,
    head_after,
    is_there,
    moving,
    parse_offsets,
    plan_adoption,
    plan_rewind,
)
from headgate.cli.options.kafka import kafka_option, servers_option, source_option
from headgate.cli.options.table import apply_option, storage_option, table_argument
from headgate.cli.output import Output, not_applied, output_option
from headgate.cli.text.rewind import moves_value
from headgate.connectors.objects import open_store
from headgate.errors import InvalidInput
from headgate.table.table import Table, open_table


@click.command(
    epilog="""\b
Example:
  headgate rewind ./orders --stream orders --to-offsets '{"orders":{"0":1200}}'          what it would do
  headgate rewind ./orders --stream orders --to-offsets '{"orders":{"0":1200}}' \\
      --spark-checkpoint checkpoints/orders --reason 'decoder fixed' --apply
  headgate rewind ./orders --stream orders --to-timestamp 2026-11-16T00:00:00Z --servers 127.0.0.1:9092
  headgate rewind ./orders --stream orders --adopt --spark-checkpoint checkpoints/orders       the table was made anew
"""
)
@table_argument
@click.option("--stream", required=True, metavar="NAME", help="The stream to send elsewhere.")
@click.option("--to-offsets", metavar="JSON", help="Where to go on, as Spark's startingOffsets; others stay.")
@click.option("--to-timestamp", metavar="TIME", help="Go on at the first records since then. Needs --servers.")
@click.option("--adopt", is_flag=True, help="Go on where --spark-checkpoint stands, made for another table.")
@servers_option(": then the offsets are looked for.")
@click.option("--spark-checkpoint", metavar="DIR", help="The query's checkpointLocation: rebuilt for the new offsets.")
@source_option
@click.option("--reason", default="", metavar="TEXT", help="Why. It is kept in the record.")
@apply_option("Do it. This fences a query that still runs the stream.")
@kafka_option
@storage_option
@output_option
def rewind(
    uri: str,
    stream: str,
    to_offsets: str | None,
    to_timestamp: str | None,
    adopt: bool,
    servers: str | None,
    spark_checkpoint: str | None,
    sources: tuple[tuple[str, ...], ...],
    reason: str,
    apply: bool,
    kafka_options: dict[str, str],
    storage_options: dict[str, str],
    output: Output,
) -> None:
    """Send a stream of a TABLE to other offsets: back, to read again; or forward, to skip.

    Nothing of the table is taken back. On a table without a key, rows that are read again are there twice. On one with
    a key they replace themselves; until the stream has caught up, a key may show an older value. What is skipped is
    never read. Stop the query first; one that still runs is fenced.

    The commit log keeps a record for ever: who, when, why, and the offsets before and after. Spark's own checkpoint no
    longer goes with the stream: with --spark-checkpoint it is rebuilt, and the old one is moved aside; otherwise start
    the query with an empty directory and the startingOffsets that this prints. Without --apply nothing is written.

    With --adopt the stream goes on where the checkpoint DIR stands, and DIR is left as it is: for a checkpoint that was
    made for another table, such as one that was dropped. What it has read until now will not be in this table.
    """
    if (to_offsets is not None) + (to_timestamp is not None) + adopt != 1:
        raise InvalidInput(
            "Say --to-offsets, --to-timestamp or --adopt, one of them.", advice="see `headgate rewind --help`"
        )
    table = open_table(uri, storage_options=storage_options or None)
    if adopt:
        if spark_checkpoint is None:
            raise InvalidInput("--adopt needs --spark-checkpoint: it says where to go on.", advice="name the directory")
        _adopt(table, stream, SparkCheckpoint(spark_checkpoint, storage_options or None), reason, apply, output)
        return
    head = stream_head(table.home, stream)
    there = None if servers is None else _KafkaOffsets(servers, kafka_options, head)
    wanted = _wanted(to_offsets, to_timestamp, there)
    moves = plan_rewind(head, wanted)
    if there is not None:
        check_held(moves, there.offsets)
    spark = None if spark_checkpoint is None else SparkCheckpoint(spark_checkpoint, storage_options or None)
    if spark is not None:
        check_rebuildable(table.home, head_after(head, moves), spark, sources=sources)
    done: Rewound | None = None
    rebuilt: Rebuilt | None = None
    if apply:
        done = rewind_stream(table.home, stream, wanted, by=_who(), reason=reason)
        if spark is not None and check_rebuildable(table.home, done.head, spark, sources=sources):
            target = open_store(spark.location, storage_options or None)
            rebuilt = rebuild(table.home, stream, spark, target, sources=sources)
        moves = done.moves
    after = head_after(head, moves) if done is None else done.head
    output.record(
        _title(table, stream, moves, done, rebuilt),
        _value(table, after, moves, done, rebuilt, spark, checked=there is not None),
    )


def _adopt(table: Table, stream: str, spark: SparkCheckpoint, reason: str, apply: bool, output: Output) -> None:
    look = look_at_spark(spark)
    head = read_head(table.home, stream)
    moves = plan_adoption(head, look)
    there = is_there(head, moves)
    done = adopt_checkpoint(table.home, stream, look, by=_who(), reason=reason) if apply else None
    moves, after = (moves, head if there else head_after(head, moves)) if done is None else (done.moves, done.head)
    title = _title(table, stream, moves, done, None)
    if head.last is None and not there:
        title = f"Adopt {spark.uri} for stream {stream!r} of {table.uri}"
        title = title if apply else not_applied(title)
    value = _value(table, after, moves, done, None, spark, checked=False)
    output.record(title, value)


# -- where to ------------------------------------------------------------------------


class _KafkaOffsets:
    """What Kafka has of the topics that a stream reads. Asked once, when it is needed."""

    def __init__(self, servers: str, options: Mapping[str, str], head: Head) -> None:
        from headgate.streaming.kafka.source import source

        self._names = sorted({topic for topic, _ in head.next_starts()})
        self._consumers = {
            name: source(servers, name, max_offsets_per_trigger=None, **options).consumer for name in self._names
        }
        self._offsets: dict[Place, tuple[int, int]] | None = None

    @property
    def offsets(self) -> dict[Place, tuple[int, int]]:
        """Per partition the earliest offset and the end."""
        from headgate.connectors.kafka.reader import offsets

        if self._offsets is None:
            found = {topic: offsets(consumer, topic) for topic, consumer in self._consumers.items()}
            self._offsets = {(topic, number): ends for topic, parts in found.items() for number, ends in parts.items()}
        return self._offsets

    def since(self, instant_ms: int) -> dict[Place, int]:
        """Per partition the first offset of that instant or later."""
        from headgate.connectors.kafka.reader import offsets_at

        found = {topic: offsets_at(consumer, topic, instant_ms) for topic, consumer in self._consumers.items()}
        return {(topic, number): at for topic, parts in found.items() for number, at in parts.items()}


def _wanted(to_offsets: str | None, to_timestamp: str | None, there: _KafkaOffsets | None) -> dict[Place, int]:
    if to_timestamp is not None:
        if there is None:
            raise InvalidInput(
                "--to-timestamp needs --servers: only Kafka knows which offsets are of that time.",
                advice="add --servers HOST:PORT; nothing was written",
            )
        return there.since(_instant_ms(to_timestamp))
    assert to_offsets is not None
    wanted = parse_offsets(to_offsets)
    if there is None:
        return wanted
    return {place: _resolved(place, at, there) for place, at in wanted.items()}


def _resolved(place: Place, at: int, there: _KafkaOffsets) -> int:
    if at >= 0:
        return at
    first, end = there.offsets.get(place, (EARLIEST, LATEST))
    return first if at == EARLIEST else end


def _instant_ms(text: str) -> int:
    """ISO 8601 with a zone, or milliseconds since 1970. Raises InvalidInput."""
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        instant = datetime.fromisoformat(text)
    except ValueError as error:
        advice = "write it such as 2026-11-16T08:00:00Z, or as milliseconds since 1970"
        raise InvalidInput(f"{text!r} is no time.", advice=advice) from error
    if instant.tzinfo is None:
        raise InvalidInput(f"The time {text!r} has no zone.", advice=f"write {text}Z for UTC, or {text}+01:00")
    return int(instant.astimezone(UTC).timestamp() * 1000)


def _who() -> str:
    """User and host, for the record; empty where the machine does not say."""
    with suppress(OSError, KeyError, ImportError):
        return f"{getpass.getuser()}@{socket.gethostname()}"
    return ""


# -- telling -------------------------------------------------------------------------


def _title(
    table: Table, stream: str, moves: Iterable[OffsetMove], done: Rewound | None, rebuilt: Rebuilt | None
) -> str:
    if not moving(moves):
        what = "nothing was written" if rebuilt is None else "its Spark checkpoint was rebuilt"
        return f"Stream {stream!r} of {table.uri} stands there already; {what}"
    if done is None:
        return not_applied(f"Rewind of stream {stream!r} of {table.uri}")
    return f"Rewound stream {stream!r} of {table.uri}"


def _value(
    table: Table,
    head: Head,
    moves: Sequence[OffsetMove],
    done: Rewound | None,
    rebuilt: Rebuilt | None,
    spark: SparkCheckpoint | None,
    *,
    checked: bool,
) -> dict[str, Any]:
    again, skipped = sum(one.again for one in moves), sum(one.skipped for one in moves)
    record = None if done is None else done.record
    # Of the topics that the query reads now: Spark refuses others.
    offsets = starting_offsets(replace(head, ends=head.next_starts()))
    return {
        "applied": record is not None,
        "stream": head.stream,
        "offsets_again": again,
        "offsets_skipped": skipped,
        "means": _means(table, again, skipped, [one for one in moves if one.before is None]),
        "checked_with_kafka": checked,
        "starting_offsets": offsets,
        "next": _next(done is not None, rebuilt, spark, offsets, _of_ingest(table, head.stream)),
        "record": record and record.sequence,
        "by": record and record.by,
        "reason": record and record.reason,
        "rebuilt": rebuilt
        and {"checkpoint": spark and spark.uri, "query": rebuilt.query_id, "old_directory": rebuilt.moved_to},
        "offsets": moves_value(moves),
    }


def _means(table: Table, again: int, skipped: int, new: Sequence[OffsetMove]) -> str:
    said = []
    if again and table.primary_key:
        said.append(f"{again:,} offsets come again and replace their rows; until then keys may show older values.")
    elif again:
        said.append(f"{again:,} offsets come again: the table has no key, so THEIR ROWS WILL BE THERE TWICE.")
    if skipped:
        said.append(f"{skipped:,} offsets are skipped: THEIR ROWS WILL NEVER BE IN THE TABLE.")
    if new:
        named = ", ".join(f"{one.topic}/{one.partition} at {one.after}" for one in new)
        said.append(f"Partitions that the stream has not read yet begin there: {named}; NOTHING OF BEFORE IS READ.")
    return " ".join(said) or "Nothing moves."


def _next(applied: bool, rebuilt: Rebuilt | None, spark: SparkCheckpoint | None, offsets: str, own: str | None) -> str:
    if rebuilt is not None:
        old = "" if rebuilt.moved_to is None else f" The old directory is {rebuilt.moved_to}."
        return f"start the query with this checkpoint directory; it goes on at the new offsets.{old}"
    if spark is not None:
        done = "start the query" if applied else "stop the query, then run this again with --apply"
        return f"{done}; the checkpoint directory {'goes' if applied else 'will go'} with the new offsets"
    fresh = f"start the query with an empty checkpoint directory and .option('startingOffsets', '{offsets}')"
    if own is not None:
        fresh = f"run this with --spark-checkpoint {own}, which `headgate ingest` uses; or {fresh}"
    return fresh if applied else f"stop the query, run this again with --apply, then {fresh}"


def _of_ingest(table: Table, stream: str) -> str | None:
    """The directory that `headgate ingest` has made for the stream beside the table, if it did."""
    from headgate.cli.commands.ingest import default_checkpoint

    with suppress(InvalidInput):
        place = default_checkpoint(table, stream)
        return place if os.path.isdir(place) else None
    return None
