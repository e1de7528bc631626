"""`headgate wal expire`: retention of WAL-only streams, whose rows are in the write-ahead log alone."""

from __future__ import annotations

import click

from headgate.checkpoints.offline.retention import Before, BeforeCheckpoint, BeforePosition, OlderThan, plan_expiry
from headgate.checkpoints.offline.retention import expire as expire_entries
from headgate.cli.options.table import apply_option, storage_option, table_argument
from headgate.cli.output import Output, not_applied, output_option
from headgate.durations import timedelta_of
from headgate.table.table import open_table


@click.command(
    epilog="""\b
Example:
  headgate wal expire ./events --before 30d                     what would go
  headgate wal expire ./events --before 30d --stream clicks --apply
  headgate wal expire ./events --before 4200 --shard partition:clicks:0 --apply --output json
"""
)
@table_argument
@click.option(
    "--before",
    required=True,
    metavar="POSITION|CHECKPOINT|AGE",
    help="A number is a position of --shard, a number with a unit (12h, 30d) an age, anything else a checkpoint.",
)
@click.option("--stream", metavar="NAME", help="Only the shards of this stream.")
@click.option("--shard", metavar="NAME|ID", help="Only this shard.")
@apply_option()
@storage_option
@output_option
def expire(
    uri: str,
    before: str,
    stream: str | None,
    shard: str | None,
    apply: bool,
    storage_options: dict[str, str],
    output: Output,
) -> None:
    """Let old entries go where the write-ahead log is all there is: THEIR ROWS ARE NO LONGER PART OF THE TABLE.

    For streams that write WAL only (without names: all of those). Each stream is taken over for it: one that still
    runs is fenced and stops. What goes is noted in a record that stays; `headgate gc` deletes the entries later,
    unless a checkpoint pins them.
    """
    table = open_table(uri, storage_options)
    wanted = None if shard is None else table.shard(shard).id
    names = {table.home.shard(name).id: name for name in (*table.sharding.known_names(), *([shard] if shard else ()))}
    call = expire_entries if apply else plan_expiry
    gone = call(table.home, table.shard_ids(), parse_before(before), stream=stream, shard=wanted, names=names)
    value = {
        "applied": apply,
        "entries": sum(one.entries for one in gone),
        "bytes": sum(one.nbytes for one in gone),
        "shards": [one.to_json() for one in gone],
    }
    title = f"{'Expired from' if apply else 'Would expire from'} {table.uri}"
    output.record(title if apply else not_applied(title), value)


def parse_before(text: str) -> Before:
    """What --before says."""
    if text.strip().isdecimal():
        return BeforePosition(int(text))
    try:
        return OlderThan(timedelta_of(text))
    except ValueError:
        return BeforeCheckpoint(text)
