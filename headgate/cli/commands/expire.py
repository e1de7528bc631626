"""`headgate wal expire`: retention of WAL-only streams, whose rows exist only in the write-ahead log."""

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
    short_help="Remove old rows of WAL-only streams for good.",
    epilog="""\b
Example:
  headgate wal expire ./orders --older-than 30d                     show what would go
  headgate wal expire ./orders --older-than 30d --stream orders --apply
  headgate wal expire ./orders --before-checkpoint before-migration --apply
  headgate wal expire ./orders --before-position 4200 --shard bucket-00000 --apply --output json
""",
)
@table_argument
@click.option(
    "--before-position",
    type=click.IntRange(min=0),
    metavar="N",
    help="Expire entries before this position; with --shard.",
)
@click.option("--older-than", type=DURATION, metavar="AGE", help="Expire entries older than this: 12h, 30d.")
@click.option("--before-checkpoint", metavar="NAME", help="Expire entries older than this checkpoint of the table.")
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
    """Remove old rows of WAL-only streams: THESE ROWS ARE NO LONGER PART OF THE TABLE.

    Without --stream or --shard: all WAL-only streams. The command takes over each stream: a query that still runs is
    fenced and stops. A permanent record notes what was removed; `headgate gc` deletes the entries later, unless a
    checkpoint pins them.
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
    """The limit that was given. Raises InvalidInput unless there is exactly one."""
    given: list[Before] = []
    if position is not None:
        given.append(BeforePosition(position))
    if age is not None:
        given.append(OlderThan(age))
    if checkpoint is not None:
        given.append(BeforeCheckpoint(checkpoint))
    if len(given) != 1:
        raise InvalidInput(
            "Give exactly one of --before-position, --older-than and --before-checkpoint.",
            advice="see `headgate wal expire --help`",
        )
    return given[0]
