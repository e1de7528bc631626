"""`headgate wal expire`: retention of WAL-only streams, whose rows are in the write-ahead log alone."""

from __future__ import annotations

from datetime import timedelta

import click

from headgate.checkpoints.offline.retention import Before, BeforeCheckpoint, BeforePosition, OlderThan, plan_expiry
from headgate.checkpoints.offline.retention import expire as expire_entries
from headgate.cli.options.duration import DURATION
from headgate.cli.options.table import apply_option, storage_option, table_argument
from headgate.cli.output import Output, not_applied, output_option
from headgate.errors import InvalidInput
from headgate.table.table import open_table


@click.command(
    epilog="""\b
Example:
  headgate wal expire ./orders --older-than 30d                     what would go
  headgate wal expire ./orders --older-than 30d --stream orders --apply
  headgate wal expire ./orders --before-checkpoint before-migration --apply
  headgate wal expire ./orders --before-position 4200 --shard bucket-00000 --apply --output json
"""
)
@table_argument
@click.option("--before-position", type=click.IntRange(min=0), metavar="N", help="What lies before it; with --shard.")
@click.option("--older-than", type=DURATION, metavar="AGE", help="What is older: 12h, 30d.")
@click.option("--before-checkpoint", metavar="NAME", help="What is older than this checkpoint of the table.")
@click.option("--stream", metavar="NAME", help="Only the shards of this stream.")
@click.option("--shard", metavar="NAME|ID", help="Only this shard.")
@apply_option()
@storage_option
@output_option
def expire(
    uri: str,
    before_position: int | None,
    older_than: timedelta | None,
    before_checkpoint: str | None,
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
    before = _before(before_position, older_than, before_checkpoint)
    table = open_table(uri, storage_options=storage_options)
    wanted = None if shard is None else table.shard(shard).id
    names = {table.home.shard(name).id: name for name in (*table.sharding.known_names(), *([shard] if shard else ()))}
    call = expire_entries if apply else plan_expiry
    gone = call(table.home, table.shard_ids(), before, stream=stream, shard=wanted, names=names)
    value = {
        "applied": apply,
        "entries": sum(one.entries for one in gone),
        "bytes": sum(one.nbytes for one in gone),
        "shards": [one.to_json() for one in gone],
    }
    title = f"{'Expired from' if apply else 'Would expire from'} {table.uri}"
    output.record(title if apply else not_applied(title), value)


def _before(position: int | None, age: timedelta | None, checkpoint: str | None) -> Before:
    """What goes, by the one of the three that was given. Raises InvalidInput."""
    given: list[Before] = []
    if position is not None:
        given.append(BeforePosition(position))
    if age is not None:
        given.append(OlderThan(age))
    if checkpoint is not None:
        given.append(BeforeCheckpoint(checkpoint))
    if len(given) != 1:
        raise InvalidInput(
            "Say --before-position, --older-than or --before-checkpoint, one of them.",
            advice="see `headgate wal expire --help`",
        )
    return given[0]
