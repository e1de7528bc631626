"""`headgate shard release`: hand the shards of a stopped stream to native Lance or another writer."""

from __future__ import annotations

from typing import Any

import click

from headgate.checkpoints.offline.checkpoint import nothing_to_release
from headgate.checkpoints.offline.checkpoint import release as release_stream
from headgate.cli.options.table import apply_option, storage_option, table_argument
from headgate.cli.output import Output, not_applied, output_option
from headgate.errors import InvalidInput, NotFound
from headgate.table.shards import ShardInfo
from headgate.table.table import Table, open_table


@click.command(
    short_help="Give up a shard, for native Lance or another stream.",
    epilog="""\b
Example:
  headgate shard release ./orders --stream orders            show what it would do
  headgate shard release ./orders --stream orders --apply
  headgate shard release ./orders bucket-00003 --forget-owner --apply --output json
""",
)
@table_argument
@click.argument("shard", required=False)
@click.option("--stream", metavar="NAME", help="All shards of this stream.")
@click.option("--forget-owner", is_flag=True, help="Also allow any other headgate stream or writer to open them.")
@apply_option()
@storage_option
@output_option
def release(
    uri: str,
    shard: str | None,
    stream: str | None,
    forget_owner: bool,
    apply: bool,
    storage_options: dict[str, str],
    output: Output,
) -> None:
    """Flush the stream that owns SHARD (its id or name), or --stream, of TABLE, and unseal the shards.

    The command takes over the stream: a query that still runs is fenced and stops. It takes a checkpoint of scope all,
    which expires after seven days. Afterwards native Lance may open the shards. The stream seals them again at its next
    start, unless --forget-owner was given and another writer has them.
    """
    if (shard is None) == (stream is None):
        raise InvalidInput("Give either a SHARD or --stream.", advice="see `headgate shard release --help`")
    table = open_table(uri, storage_options=storage_options)
    chosen = _of_stream(table, stream) if stream is not None else [_named(table, str(shard))]
    owner = chosen[0].owner
    assert owner is not None
    value = {
        "applied": apply,
        "stream": owner,
        "forgets_owner": forget_owner,
        "shards": [_value(one) for one in chosen],
    }
    if not apply:
        output.record(not_applied(f"Stream {owner} of {table.uri}", "released"), value)
        return
    only = None if shard is None else [chosen[0].id]
    names = {table.home.shard(name).id: name for name in table.sharding.known_names()}
    taken = release_stream(table.home, table.shard_ids(), owner, only, names=names, forget_owner=forget_owner)
    after = {one.id: one for one in table.shards()}
    value |= {"checkpoint": taken.name, "shards": [_value(after[one.id]) for one in chosen]}
    output.record(f"Released stream {owner} of {table.uri}", value)


def _of_stream(table: Table, stream: str) -> list[ShardInfo]:
    if found := [one for one in table.shards() if one.owner == stream]:
        return found
    raise nothing_to_release(table.home, stream)


def _named(table: Table, shard: str) -> ShardInfo:
    wanted = table.shard(shard).id
    found = next((one for one in table.shards() if one.id == wanted), None)
    if found is None:
        advice = f"`headgate shard show {table.uri}` lists the shards"
        raise NotFound(f"The table has no shard {shard!r}.", table=table.uri, shard=str(wanted), advice=advice)
    if found.owner is None:
        raise InvalidInput(
            f"Shard {shard!r} belongs to no stream, so there is nothing to release.",
            table=table.uri,
            shard=str(wanted),
            advice="native Lance can open it as it is; nothing was written",
        )
    return found


def _value(one: ShardInfo) -> dict[str, Any]:
    return {
        "shard": str(one.id),
        "name": one.name,
        "owner": one.owner,
        "epoch": one.epoch,
        "sealed": one.sealed,
        "native_safe": one.native_safe,
        "replay_after": one.replay_after,
        "sstables": one.sstables,
    }
