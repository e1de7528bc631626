"""`headgate dead-letters …`: the records that could not become rows. Only with --apply is anything written or sent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import click
import pyarrow.compute as pc

from headgate.checkpoints.log.dead_letters import read_dead_letters
from headgate.checkpoints.log.names import check_stream
from headgate.cli.options.decoder import decoder_for, decoder_options
from headgate.cli.options.kafka import kafka_option, servers_option
from headgate.cli.options.table import apply_option, storage_option, table_argument
from headgate.cli.output import Column, Output, not_applied, output_option
from headgate.connectors.extras import needs
from headgate.streaming.letters import LetterGroup, dead_letter_summary
from headgate.streaming.replay import replay_dead_letters
from headgate.table.table import Table, open_table

SHOWN_BYTES = 120
"""Bytes of a key or value that are shown. Enough to recognise a record; --full shows all."""

_COLUMNS = (
    Column("stream", 12),
    Column("topic", 16),
    Column("partition", 9, right=True),
    Column("offset", 10, right=True),
    Column("replayed", 8),
    Column("error", 50),
    Column("key", 12),
    Column("value", 0),
)


_SUMMARY = (
    Column("letters", 8, right=True),
    Column("waiting", 8, right=True),
    Column("stream", 12),
    Column("topic", 16),
    Column("partition", 9, right=True),
    Column("field", 14),
    Column("reason", 40),
    Column("example", 0, text=lambda one: f"offset {one['offset']}: {one['error']}"),
)


@click.group()
def dead_letters() -> None:
    """Show, count, forward and replay records that could not be decoded into rows. Only --apply writes or sends."""


@dead_letters.command(
    short_help="List dead letters.",
    epilog="""\b
Example:
  headgate dead-letters show ./orders --limit 20
  headgate dead-letters show ./orders --stream orders --full --output json
""",
)
@table_argument
@click.option("--stream", metavar="NAME", help="Only of this stream.")
@click.option("--waiting", is_flag=True, help="Only those that were not replayed yet.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Stop after N of them.")
@click.option("--full", is_flag=True, help=f"Show whole keys and values, not only their first {SHOWN_BYTES} bytes.")
@storage_option
@output_option
def show(
    uri: str,
    stream: str | None,
    waiting: bool,
    limit: int | None,
    full: bool,
    storage_options: dict[str, str],
    output: Output,
) -> None:
    """List the committed dead letters of TABLE: topic and offset of each record, why it was refused, and its bytes.

    Bytes that are not UTF-8 are escaped.
    """
    table = open_table(uri, storage_options=storage_options or None)
    if stream is not None:
        check_stream(table.home.records, stream, table.uri)
    output.rows(_COLUMNS, _letters(table, stream, waiting, limit, None if full else SHOWN_BYTES))


@dead_letters.command(
    short_help="Count dead letters by reason.",
    epilog="""\b
Example:
  headgate dead-letters summary ./orders
  headgate dead-letters summary ./orders --stream orders --output json
""",
)
@table_argument
@click.option("--stream", metavar="NAME", help="Only of this stream.")
@storage_option
@output_option
def summary(uri: str, stream: str | None, storage_options: dict[str, str], output: Output) -> None:
    """Count the committed dead letters of a TABLE by partition, reason and field, with the first of each as an example.

    In reasons, values are … and numbers N. `waiting` are those that no replay has made rows of.
    """
    groups = dead_letter_summary(open_table(uri, storage_options=storage_options or None), stream=stream)
    output.rows(_SUMMARY, map(_group, groups))


@dead_letters.command(
    short_help="Send dead letters to a Kafka topic.",
    epilog="""\b
Example:
  headgate dead-letters forward ./orders --stream orders --servers localhost:9092 --topic orders-dead
  headgate dead-letters forward ./orders --stream orders --servers localhost:9092 --topic orders-dead --apply
""",
)
@table_argument
@click.option("--stream", required=True, metavar="NAME", help="Whose dead letters.")
@servers_option(required=True)
@click.option("--topic", required=True, help="Where they go; it must be there, and be none that the stream reads.")
@kafka_option
@apply_option()
@storage_option
@output_option
def forward(
    uri: str,
    stream: str,
    servers: str,
    topic: str,
    kafka_options: dict[str, str],
    apply: bool,
    storage_options: dict[str, str],
    output: Output,
) -> None:
    """Send the dead letters of a TABLE's stream to a Kafka topic, from where the last run ended.

    At least once: a run that dies may send some again, with the same header `headgate.id`. Streams run on beside it.
    """
    table = open_table(uri, storage_options=storage_options or None)
    with needs():
        from headgate.streaming.forward import forward_dead_letters
    report = forward_dead_letters(
        table, stream=stream, topic=topic, servers=servers, kafka_options=kafka_options, apply=apply
    )
    title = f"{'Forwarded' if apply else 'Would forward'} dead letters of stream {stream} of {table.uri}"
    output.record(title if apply else not_applied(title), report.to_dict())


@dead_letters.command(
    short_help="Turn dead letters into rows.",
    epilog="""\b
Example:
  headgate dead-letters replay ./orders --stream orders              show what would become rows
  headgate dead-letters replay ./orders --stream orders --apply
  headgate dead-letters replay ./orders --stream cdc --decode debezium --apply --output json
""",
)
@table_argument
@click.option("--stream", required=True, metavar="NAME", help="The stream whose dead letters are replayed.")
@decoder_options
@click.option(
    "--overwrite", is_flag=True, help="Also replay records whose key is in the table already; they overwrite the row."
)
@apply_option()
@storage_option
@output_option
def replay(
    uri: str,
    stream: str,
    decode_as: str,
    registry: str | None,
    registry_auth: str | None,
    metadata: tuple[str, ...],
    coerce: tuple[str, ...],
    overwrite: bool,
    apply: bool,
    storage_options: dict[str, str],
    output: Output,
) -> None:
    """Decode a stream's dead letters again, and write those that are valid now: after you added a column, changed the
    decoder, or fixed the registry.

    Exactly once: a replayed record is never replayed again; a record that is refused again stays a dead letter. The
    command takes over the stream: a query that still runs is fenced and stops. Start it again afterwards; it continues
    where it was.
    """
    table = open_table(uri, storage_options=storage_options or None)
    decoder = decoder_for(table, decode_as, registry, registry_auth, metadata, coerce)
    report = replay_dead_letters(table, stream=stream, decode=decoder, apply=apply, overwrite=overwrite)
    title = f"{'Replayed' if report.applied else 'Would replay'} dead letters of stream {stream} of {table.uri}"
    title = title if report.applied or apply else not_applied(title)
    output.record(title, {**asdict(report), "examples": [dict(one) for one in report.examples]})


def _letters(
    table: Table, stream: str | None, waiting: bool, limit: int | None, most: int | None
) -> Iterator[dict[str, Any]]:
    left = limit
    for found in read_dead_letters(table.home, stream):
        rows = found.filter(pc.invert(found.column("replayed"))) if waiting else found
        chosen = rows if left is None else rows.slice(0, left)
        for row in chosen.to_pylist():
            value = row["value"]
            yield {
                **row,
                "key": _escaped(row["key"], most),
                "value": _escaped(value, most),
                "value_bytes": None if value is None else len(value),
                "timestamp": row["timestamp"] and row["timestamp"].isoformat(),
                "headers": row["headers"]
                and [{**one, "value": _escaped(one["value"], most)} for one in row["headers"]],
            }
        if left is not None:
            left -= chosen.num_rows
            if left == 0:
                return


def _group(group: LetterGroup) -> dict[str, Any]:
    example = group.example
    shown = {name: _escaped(example[name], SHOWN_BYTES) for name in ("key", "value")}
    return {**asdict(group), "example": {**example, **shown}}


def _escaped(data: bytes | None, most: int | None) -> str | None:
    if data is None:
        return None
    cut = most is not None and len(data) > most
    return data[:most].decode(errors="backslashreplace") + ("…" if cut else "")
