"""`headgate gc`: list files that nothing needs any more, and delete them with --apply."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import click

from headgate.checkpoints.gc.report import Collection
from headgate.cli.options.age import check_age, nothing_else_runs_option
from headgate.cli.options.duration import DURATION
from headgate.cli.options.table import apply_option, storage_option, table_argument
from headgate.cli.output import Output, not_applied, output_option
from headgate.table.table import open_table

SHOWN = 1000
"""Maximum objects listed one by one; the totals count all of them."""


@click.command(
    epilog="""\b
Example:
  headgate gc ./orders                 show what would be deleted, and why
  headgate gc ./orders --apply
  headgate gc s3://bucket/orders --min-age 7d --apply --output json
"""
)
@table_argument
@click.option(
    "--min-age",
    type=DURATION,
    default="1h",
    show_default=True,
    metavar="AGE",
    help="Keep garbage younger than this: 90m, 12h, 7d.",
)
@nothing_else_runs_option
@apply_option("Delete it. Without --apply nothing is deleted.")
@storage_option
@output_option
def gc(
    uri: str, min_age: timedelta, nothing_else_runs: bool, apply: bool, storage_options: dict[str, str], output: Output
) -> None:
    """Find files of TABLE that no reader, checkpoint, fence or recovery can need any more.

    Fence barriers, open records and the tips of logs always stay: they stop writes of a stalled writer.
    """
    check_age("--min-age", min_age, nothing_else_runs)
    table = open_table(uri, storage_options=storage_options)
    done = table.collect_garbage(min_age=min_age, apply=apply)
    title = f"{'Deleted from' if apply else 'Garbage of'} {table.uri}"
    output.record(title if apply else not_applied(title, "deleted"), _value(done))


def _value(done: Collection) -> dict[str, object]:
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
