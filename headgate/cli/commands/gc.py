"""`headgate gc`: what nobody can need any more, listed, and with --apply deleted."""

from __future__ import annotations

from collections import Counter

import click

from headgate.checkpoints.gc.collect import MIN_AGE, Collection
from headgate.cli.options.duration import duration
from headgate.cli.options.table import storage_option
from headgate.cli.output import Output, output_option
from headgate.cli.progress import bars
from headgate.errors import InvalidInput
from headgate.table.table import open_table

SHOWN = 1000
"""Objects that are listed one by one; the sums count all of them."""


@click.command(
    epilog="""\b
Example:
  headgate gc ./orders                 what would be deleted, why, and how many bytes
  headgate gc ./orders --apply
  headgate gc s3://bucket/orders --min-age 7d --apply --output json
"""
)
@click.argument("uri")
@click.option("--min-age", default="1h", show_default=True, metavar="AGE", help="90m, 12h, 7d: younger garbage stays.")
@click.option("--nothing-else-runs", is_flag=True, help="Allow an age below 1h: no writer, stream or job runs.")
@click.option("--apply", is_flag=True, help="Delete it. Without this nothing is written.")
@storage_option
@output_option
def gc(
    uri: str, min_age: str, nothing_else_runs: bool, apply: bool, storage_options: dict[str, str], output: Output
) -> None:
    """Find what no reader, checkpoint, fence or recovery of the table at URI can need any more.

    Fence barriers, open records and the tips of logs always stay: they refuse what a stalled writer may still try.
    """
    age = duration("--min-age", min_age)
    if age < MIN_AGE and not nothing_else_runs:
        raise InvalidInput(
            f"Somebody who reads now may need what became garbage less than {MIN_AGE} ago.",
            advice="use --min-age 1h or more, or say --nothing-else-runs; nothing was deleted",
        )
    table = open_table(uri, storage_options)
    with bars() as progress:
        bar = progress.add_task("Collecting", total=None)
        done = table.collect_garbage(
            min_age=age, apply=apply, progress=lambda count, total: progress.update(bar, completed=count, total=total)
        )
    title = f"{'Deleted from' if apply else 'Garbage of'} {table.uri}"
    output.record(title + ("" if apply else " (nothing was deleted; --apply does it)"), _told(done))


def _told(done: Collection) -> dict[str, object]:
    kinds = Counter(one.kind for one in done.found)
    return {
        "applied": done.applied,
        "objects": len(done.found),
        "bytes": done.nbytes,
        "kinds": dict(sorted(kinds.items())),
        "kept": list(done.kept),
        "not_listed": max(len(done.found) - SHOWN, 0),
        "found": [
            {"kind": one.kind, "bytes": one.nbytes, "key": one.key, "why": one.why} for one in done.found[:SHOWN]
        ],
    }
