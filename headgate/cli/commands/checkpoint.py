"""`headgate checkpoint …`: named, pinned states of a table."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import click

from headgate import clock
from headgate.checkpoints.snapshots.checkpoint import CheckpointStore, Scope, StoredCheckpoint, TableCheckpoint
from headgate.cli.options.duration import DURATION
from headgate.cli.options.table import apply_option, storage_option, table_argument
from headgate.cli.output import Column, Output, not_applied, output_option
from headgate.table.table import Table, open_table

_COLUMNS = (
    Column("name", 28),
    Column("scope", 7),
    Column("taken_at", 19),
    Column("expires_at", 19),
    Column("base_version", 12, right=True),
    Column("shards", 6, right=True),
    Column("unflushed_entries", 17, right=True),
    Column("note", 0),
)


@click.group()
def checkpoint() -> None:
    """Name the current state of a table, and keep all its files until the name is dropped."""


@checkpoint.command(
    epilog="""\b
Example:
  headgate checkpoint create ./orders --name before-migration --expires 7d
  headgate checkpoint create ./orders --scope all            show what it would fence
  headgate checkpoint create ./orders --scope all --apply --output json
"""
)
@table_argument
@click.option("--name", metavar="NAME", help="Name of the checkpoint. Default: the current time.")
@click.option(
    "--scope",
    type=click.Choice(["durable", "all"]),
    default="durable",
    show_default=True,
    help="durable: record the current state. all: flush everything first, which fences every writer and stream.",
)
@click.option("--expires", type=DURATION, metavar="AGE", help="How long it is kept: 90m, 12h, 7d.")
@click.option("--note", default="", metavar="TEXT", help="For people.")
@apply_option("With --scope all: do it, and fence writers and streams.")
@storage_option
@output_option
def create(
    uri: str,
    name: str | None,
    scope: Scope,
    expires: timedelta | None,
    note: str,
    apply: bool,
    storage_options: dict[str, str],
    output: Output,
) -> None:
    """Take a checkpoint of TABLE.

    A running stream takes its own checkpoints (checkpointInterval). --scope all is for stopped tables: it fences any
    stream that still runs. If it could fence one, it does nothing without --apply.
    """
    table = open_table(uri, storage_options=storage_options)
    fenced = [] if scope == "durable" or apply else _fenced(table)
    if fenced:
        value = {"applied": False, "scope": scope, "would_fence": fenced}
        output.record(f"Nothing was done to {table.uri}: this would fence its writers. Add --apply to do it", value)
        return
    taken = table.checkpoint(scope, name=name, expires=expires, note=note)
    output.record(f"Checkpoint {taken.name} of {table.uri}", {"applied": True, **_described(taken)})


@checkpoint.command(
    "list",
    epilog="""\b
Example:
  headgate checkpoint list ./orders --output json
""",
)
@table_argument
@storage_option
@output_option
def list_(uri: str, storage_options: dict[str, str], output: Output) -> None:
    """List the checkpoints of TABLE, oldest first. The next `headgate gc` removes expired ones."""

    def rows() -> Iterator[dict[str, Any]]:
        for one in open_table(uri, storage_options=storage_options).checkpoints():
            yield _row(one)

    output.rows(_COLUMNS, rows())


@checkpoint.command(
    short_help="Show what a checkpoint holds.",
    epilog="""\b
Example:
  headgate checkpoint show ./orders before-migration
""",
)
@table_argument
@click.argument("name")
@storage_option
@output_option
def show(uri: str, name: str, storage_options: dict[str, str], output: Output) -> None:
    """Show what checkpoint NAME of TABLE holds: base version, shards, streams and their offsets."""
    table = open_table(uri, storage_options=storage_options)
    stored = CheckpointStore(table.home.records, table.uri).get(name)
    output.record(f"Checkpoint {name} of {table.uri}", {**_times(stored), **_described(stored.checkpoint)})


@checkpoint.command(
    epilog="""\b
Example:
  headgate checkpoint drop ./orders before-migration            show what it holds
  headgate checkpoint drop ./orders before-migration --apply
"""
)
@table_argument
@click.argument("name")
@apply_option("Drop it. Without --apply nothing is written.")
@storage_option
@output_option
def drop(uri: str, name: str, apply: bool, storage_options: dict[str, str], output: Output) -> None:
    """Drop checkpoint NAME of TABLE. Garbage collection may then delete files that only it held."""
    table = open_table(uri, storage_options=storage_options)
    if not apply:
        pinned = CheckpointStore(table.home.records, table.uri).get(name).checkpoint
        title = not_applied(f"Checkpoint {name} of {table.uri}", "dropped")
        output.record(title, {"applied": False, **_described(pinned)})
        return
    output.record(f"Dropped {name} of {table.uri}", {"applied": True, **_described(table.drop_checkpoint(name))})


def _fenced(table: Table) -> list[dict[str, Any]]:
    """Every shard that was ever claimed: from outside, nobody can tell whether its writer still runs."""
    return [
        {"shard": str(one.id), "name": one.name, "stream": one.owner, "epoch": one.epoch}
        for one in table.shards()
        if one.claimed
    ]


def _row(stored: StoredCheckpoint) -> dict[str, Any]:
    taken = stored.checkpoint
    return {
        "name": taken.name,
        "scope": taken.scope,
        **_times(stored),
        "base_version": taken.base_version,
        "shards": len(taken.shards),
        "unflushed_entries": sum(one.end - 1 - one.manifest.replay_after for one in taken.shards.values()),
        "note": taken.note,
    }


def _times(stored: StoredCheckpoint) -> dict[str, Any]:
    expires = stored.expires_at
    return {
        "taken_at": f"{stored.taken_at:%Y-%m-%d %H:%M:%S}",
        "expires_at": None if expires is None else f"{expires:%Y-%m-%d %H:%M:%S}",
        "expired": stored.expired(clock.now()),
    }


def _described(taken: TableCheckpoint) -> dict[str, Any]:
    return {
        "name": taken.name,
        "checkpoint_id": taken.checkpoint_id,
        "scope": taken.scope,
        "note": taken.note,
        "base_version": taken.base_version,
        "tag": taken.tag,
        "expires_after": taken.expires_after,
        "shards": [
            {
                "shard": str(shard_id),
                "name": one.name,
                "epoch": one.manifest.epoch,
                "replay_after": one.manifest.replay_after,
                "end": one.end,
                "sstables": len(one.manifest.sstables),
                "owner": one.manifest.owner,
            }
            for shard_id, one in taken.shards.items()
        ],
        "streams": [
            {
                "stream": name,
                "sequence": fold.sequence,
                "query": fold.last and fold.last.query_id,
                "batch": fold.last and fold.last.batch_id,
                "ends": ", ".join(f"{topic}/{partition} {end}" for topic, partition, end in fold.ends),
            }
            for name, fold in taken.streams.items()
        ],
    }
