"""`headgate rewind`: let a stream read again what it has read, or skip what it has not. Deliberately, on record."""

from __future__ import annotations

import click

from headgate.cli.options.kafka import kafka_option, servers_option, source_option
from headgate.cli.options.table import apply_option, storage_option, table_argument
from headgate.cli.output import Output, not_applied, output_option
from headgate.errors import InvalidInput
from headgate.streaming.rewind import Rewind
from headgate.streaming.rewind import rewind as rewind_stream


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
    if adopt and spark_checkpoint is None:
        raise InvalidInput("--adopt needs --spark-checkpoint: it says where to go on.", advice="name the directory")
    if to_timestamp is not None and servers is None:
        raise InvalidInput(
            "--to-timestamp needs --servers: only Kafka knows which offsets are of that time.",
            advice="add --servers HOST:PORT; nothing was written",
        )
    done = rewind_stream(
        uri,
        stream=stream,
        to_offsets=to_offsets,
        to_timestamp=to_timestamp,
        adopt=adopt,
        servers=servers,
        kafka_options=kafka_options,
        spark_checkpoint=spark_checkpoint,
        sources=sources,
        reason=reason,
        apply=apply,
        storage_options=storage_options or None,
    )
    output.record(_title(done), done.to_dict())


def _title(done: Rewind) -> str:
    stream, uri = done.head.stream, done.table.uri
    if done.adopts and done.spark is not None:
        title = f"Adopt {done.spark.uri} for stream {stream!r} of {uri}"
        return title if done.done is not None else not_applied(title)
    if not done.moves_anything:
        what = "nothing was written" if done.rebuilt is None else "its Spark checkpoint was rebuilt"
        return f"Stream {stream!r} of {uri} stands there already; {what}"
    if done.done is None:
        return not_applied(f"Rewind of stream {stream!r} of {uri}")
    return f"Rewound stream {stream!r} of {uri}"
