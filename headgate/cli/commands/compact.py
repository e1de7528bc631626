"""`headgate compact`: merge the SSTables of a stopped table into its base."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import click

from headgate.checkpoints.jobs.policy import BasePolicy
from headgate.checkpoints.offline.checkpoint import ToFlush
from headgate.checkpoints.offline.compact import Compacted, ShardBacklog
from headgate.cli.options.age import check_age, nothing_else_runs_option
from headgate.cli.options.duration import DURATION
from headgate.cli.options.table import apply_option, storage_option, table_argument
from headgate.cli.output import Output, not_applied, output_option
from headgate.table.table import open_table


@click.command(
    epilog="""\b
Example:
  headgate compact ./orders                    show what would be merged, and who would be fenced
  headgate compact ./orders --apply
  headgate compact ./orders --flush --apply    also rows that are only in write-ahead logs
  headgate compact s3://bucket/orders --keep-versions 7d --apply --output json
"""
)
@table_argument
@click.option("--flush", is_flag=True, help="Flush every shard first. Fences all writers and streams of the table.")
@click.option(
    "--keep-versions",
    type=DURATION,
    default="1d",
    show_default=True,
    metavar="AGE",
    help="90m, 12h, 7d: remove base versions replaced longer ago than this; pinned ones stay.",
)
@nothing_else_runs_option
@apply_option("Do it. Without --apply nothing is written, and nobody is fenced.")
@storage_option
@output_option
def compact(
    uri: str,
    flush: bool,
    keep_versions: timedelta,
    nothing_else_runs: bool,
    apply: bool,
    storage_options: dict[str, str],
    output: Output,
) -> None:
    """Merge the SSTables of TABLE into its base. Also merge the base's small fragments, remove its old versions, and
    extend its full-text indexes to the new rows.

    A running stream does this by itself. This command takes over the shards: it fences every writer or stream that
    holds a shard with SSTables, which stops at its next write. Without --apply it only lists them. With --flush it
    fences all writers and streams except WAL-only streams, which have no SSTables; without --apply, `flush` shows what
    each write-ahead log holds and what would be done with it.
    """
    check_age("--keep-versions", keep_versions, nothing_else_runs)
    table = open_table(uri, storage_options=storage_options or None)
    if not apply:
        found = [_waiting(one) for one in table.backlog()]
        value = {"applied": False, "sstables": sum(one["sstables"] for one in found), "shards": found}
        if flush:
            value["flush"] = [_to_flush(one) for one in table.to_flush()]
        what = "flushed or compacted" if flush else "compacted"
        output.record(not_applied(table.uri, what), value)
        return
    note = table.flush() if flush else ""
    done = table.compact(policy=BasePolicy(keep_versions=keep_versions))
    output.record(f"Compacted {table.uri}", {"applied": True, **_value(done), "note": note or None})


def _waiting(one: ShardBacklog) -> dict[str, Any]:
    return {
        "shard": str(one.shard_id),
        "name": one.name,
        "sstables": one.sstables,
        "rows": one.rows,
        "bytes": one.nbytes,
        "owner": one.owner,
        "fences": _fences(one.owner),
    }


def _to_flush(one: ToFlush) -> dict[str, Any]:
    return {
        "shard": str(one.shard_id),
        "name": one.name,
        "wal_entries": one.entries,
        "does": "none: its stream is WAL-only" if one.wal_only else "flush" if one.entries else "nothing to flush",
        "fences": None if one.wal_only else _fences(one.owner),
    }


def _fences(owner: str | None) -> str:
    return f"stream {owner!r}" if owner else "its writer, if one runs"


def _value(done: Compacted) -> dict[str, Any]:
    tidied = done.tidied
    assert tidied is not None
    return {
        "sstables": done.sstables,
        "bytes": done.nbytes,
        "rows": done.rows,
        "deleted": done.deleted,
        "rounds": done.rounds,
        "fragments_before": tidied.fragments_before,
        "fragments": tidied.fragments,
        "versions_removed": tidied.versions_removed,
        "bytes_removed": tidied.bytes_removed,
        "index_segments": done.indexed,
    }
