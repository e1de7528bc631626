"""`headgate clone`: an independent copy of a table, fresh rows included."""

from __future__ import annotations

from typing import Any

import click

from headgate.cli.options.table import storage_option
from headgate.cli.output import Output, output_option
from headgate.table.table import Table, open_table


@click.command(
    epilog="""\b
Example:
  headgate clone ./orders ./orders-copy
  headgate clone s3://bucket/orders s3://archive/orders --checkpoint before-migration --deep \\
      --wal-uri s3://archive/orders-wal --storage-option region=eu-west-1
"""
)
@click.argument("source", metavar="TABLE")
@click.argument("target", metavar="TARGET")
@click.option("--checkpoint", metavar="NAME", help="Clone this checkpoint. Default: the current state.")
@click.option(
    "--deep", is_flag=True, help="Copy the base's files too. Without --deep the clone shares them with TABLE."
)
@click.option(
    "--wal-uri",
    metavar="URI",
    help="A separate store for the clone's write-ahead logs; TABLE's WAL store is not reused.",
)
@click.option(
    "--shard-name",
    "shard_names",
    multiple=True,
    metavar="NAME",
    help="Name of a shard that no stream wrote to, such as partition:orders:0; may be repeated.",
)
@storage_option
@output_option
def clone(
    source: str,
    target: str,
    checkpoint: str | None,
    deep: bool,
    wal_uri: str | None,
    shard_names: tuple[str, ...],
    storage_options: dict[str, str],
    output: Output,
) -> None:
    """Copy TABLE to TARGET: base, SSTables, write-ahead logs, streams and dead letters.

    Writers and streams of TABLE keep running. Afterwards the two tables are independent; a stream started on TARGET
    continues from the same offsets. TARGET must be empty. After a crash, run the same command again to complete the
    clone. Without --deep the clone needs TABLE's files: a tag on TABLE protects them while the clone exists.
    """
    table = open_table(source, storage_options=storage_options or None)
    made = table.clone(target, checkpoint=checkpoint, deep=deep, wal_uri=wal_uri, names=shard_names)
    output.record(f"Cloned {table.uri}", _described(table, made, checkpoint, deep))


def _described(source: Table, made: Table, checkpoint: str | None, deep: bool) -> dict[str, Any]:
    return {
        "uri": made.uri,
        "table_id": str(made.table_id),
        "source": source.uri,
        "source_id": str(source.table_id),
        "checkpoint": checkpoint,
        "deep": deep,
        "source_tag": None if deep else f"headgate-clone-{made.table_id}",
        "wal_uri": made.record.wal_uri,
        "shards": sum(one.claimed for one in made.shards()),
    }
