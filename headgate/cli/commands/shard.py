"""`headgate shard …`: show who owns a shard and what it holds.

`show` reads only and fences nobody. It does not open the base dataset, so it works even if the base is damaged.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from headgate import errors
from headgate.cli.commands.release import release
from headgate.cli.errors import exit_code
from headgate.cli.options.table import storage_option, table_argument
from headgate.cli.output import Column, Output, output_option
from headgate.table.look import ShardLook, find_shard, look_at, open_place, shards_of

_COLUMNS = (
    Column("shard", 36),
    Column("name", 10),
    Column("epoch", 5, right=True),
    Column("owner", 12),
    Column("native_safe", 11),
    Column("replay_after", 12, right=True),
    Column("sstable_count", 13, right=True),
    Column("tip", 8, right=True),
    Column("unflushed_entries", 17, right=True),
    Column("unflushed_bytes", 15, right=True),
    Column("problems", 0, text=lambda problems: " ".join(problem["what"] for problem in problems)),
)


@click.group()
def shard() -> None:
    """Show shards, who owns them and what they hold; release them."""


shard.add_command(release)


@shard.command()
@table_argument
@click.argument("shard", required=False)
@storage_option
@output_option
def show(uri: str, shard: str | None, storage_options: dict[str, str], output: Output) -> None:
    """Show one shard of TABLE, or all of them.

    SHARD is its id, or its name in a headgate table. Without it, every shard is one row. If entries are missing or
    manifests damaged, the command lists them and exits 6.

    \b
    Example:
      headgate shard show ./orders
      headgate shard show ./orders bucket-00000 --output json
    """
    place = open_place(uri, storage_options)
    code = 0
    if shard is not None:
        look = look_at(place, find_shard(place, shard))
        output.record(f"Shard {look.shard.id} of {place.home.uri}", look_value(look))
        code = code_of(look)
    else:

        def looks() -> Iterator[dict[str, Any]]:
            nonlocal code
            for each in shards_of(place):
                look = look_at(place, each)
                code = code or code_of(look)
                yield look_value(look)

        output.rows(_COLUMNS, looks())
    click.get_current_context().exit(code)


def code_of(look: ShardLook) -> int:
    """The exit code: 0 if there are no problems."""
    return max((exit_code(getattr(errors, one.error)) for one in look.problems), default=0)


def look_value(look: ShardLook) -> dict[str, Any]:
    """A shard's state for an Output: each problem with its exit code."""
    problems = [{"error": one.error, "what": one.what, "exit_code": code_of(look)} for one in look.problems]
    return {**look.value(), "problems": problems}
