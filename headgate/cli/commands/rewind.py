"""`headgate rewind`: move a stream back to read records again, or forward to skip some. The commit log keeps a record
of it.
"""

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
  headgate rewind ./orders --stream orders --to-offsets '{"orders":{"0":1200}}'          show what it would do
  headgate rewind ./orders --stream orders --to-offsets '{"orders":{"0":1200}}' \\
      --spark-checkpoint checkpoints/orders --reason 'decoder fixed' --apply
  headgate rewind ./orders --stream orders --to-timestamp 2026-11-16T00:00:00Z --servers 127.0.0.1:9092
  headgate rewind ./orders --stream orders --adopt --spark-checkpoint checkpoints/orders       for a re-created table
"""
)
@table_argument
@click.option("--stream", required=True, metavar="NAME", help="The stream to rewind.")
@click.option(
    "--to-offsets",
    metavar="JSON",
    help="New offsets, in the form of Spark's startingOffsets; partitions not named stay where they are.",
)
@click.option("--to-timestamp", metavar="TIME", help="Continue at the first records since this time. Needs --servers.")
@click.option("--adopt", is_flag=True, help="Continue where --spark-checkpoint is, which was made for another table.")
@servers_option(", for --to-timestamp.")
@click.option("--spark-checkpoint", metavar="DIR", help="The query's checkpointLocation; rebuilt for the new offsets.")
@source_option
@click.option("--reason", default="", metavar="TEXT", help="The reason, kept in the record.")
@apply_option("Do it. Fences a query that still runs the stream.")
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
    """Move a stream of TABLE to other offsets: back to read records again, or forward to skip some.

    No row is removed from the table. Without a primary key, rows that are read again become duplicates. With a key they
    replace themselves; until the stream has caught up, a key may show an older value. Skipped records are never read.
    Stop the query first; if it still runs, it is fenced.

    The commit log keeps a permanent record: who, when, why, and the offsets before and after. Spark's own checkpoint no
    longer matches the stream: --spark-checkpoint rebuilds it and moves the old one aside. Otherwise start the query
    with an empty directory and the startingOffsets that this command prints. Without --apply nothing is written.

    With --adopt the stream continues where the checkpoint DIR is, and DIR stays as it is. Use it for a checkpoint of
    another table, such as a dropped one. Records that DIR has read so far will not be in this table.
    """
    if (to_offsets is not None) + (to_timestamp is not None) + adopt != 1:
        raise InvalidInput(
            "Give exactly one of --to-offsets, --to-timestamp and --adopt.", advice="see `headgate rewind --help`"
        )
    if adopt and spark_checkpoint is None:
        raise InvalidInput(
            "--adopt needs --spark-checkpoint: the stream continues from there.", advice="name the directory"
        )
    if to_timestamp is not None and servers is None:
        raise InvalidInput(
            "--to-timestamp needs --servers: Kafka finds the offsets of that time.",
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
        return f"Stream {stream!r} of {uri} is at these offsets already; {what}"
    if done.done is None:
        return not_applied(f"Rewind of stream {stream!r} of {uri}")
    return f"Rewound stream {stream!r} of {uri}"
