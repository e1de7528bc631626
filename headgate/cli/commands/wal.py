"""`headgate wal …`: the entries of a shard's write-ahead log.

`tail` reads only and fences nobody. It does not open the base dataset, so it works even if the base is damaged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from typing import Any

import click

from headgate import clock
from headgate.cli.commands.expire import expire
from headgate.cli.options.table import storage_option, table_argument
from headgate.cli.output import Column, Output, output_option
from headgate.errors import DataLoss, NotFound
from headgate.shards.shard import Shard
from headgate.shards.wal.decoder import decode_entry
from headgate.shards.wal.listing import has_entry, positions
from headgate.shards.wal.tailer import WalEntry, WalTailer
from headgate.table.look import find_shard, open_place

POLL_SECONDS = 0.5
"""Seconds that `--follow` sleeps at the tip. Each poll is one HEAD."""


def _sources(sources: list[dict[str, Any]]) -> str:
    return ", ".join(f"{part['topic']}/{part['partition']} [{part['start']}, {part['until']})" for part in sources)


_COLUMNS = (
    Column("position", 10, right=True),
    Column("epoch", 6, right=True),
    Column("kind", 7),
    Column("rows", 9, right=True),
    Column("bytes", 12, right=True),
    Column("attempt", 36),
    Column("sources", 0, text=_sources),
)


@click.group()
def wal() -> None:
    """Show a shard's write-ahead log, or expire old rows of WAL-only streams."""


wal.add_command(expire)


@wal.command(short_help="List the entries of a shard's WAL.")
@table_argument
@click.argument("shard")
@click.option(
    "--from",
    "start",
    type=click.IntRange(min=0),
    metavar="N",
    help="First position. Default: the first one not covered by an SSTable.",
)
@click.option("--follow", is_flag=True, help="At the tip wait for more entries, until Ctrl-C.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Stop after N entries.")
@storage_option
@output_option
def tail(
    uri: str,
    shard: str,
    start: int | None,
    follow: bool,
    limit: int | None,
    storage_options: dict[str, str],
    output: Output,
) -> None:
    """List the entries of SHARD (its id, or its name in a headgate table) of TABLE, up to the tip.

    Every entry is read and checked. A missing or damaged entry ends the list with exit code 6.

    \b
    Example:
      headgate wal tail ./orders bucket-00000 --from 0 --limit 20
      headgate wal tail ./orders bucket-00000 --follow --output json
    """
    entries = entries_of(find_shard(open_place(uri, storage_options), shard), start, follow)
    output.rows(_COLUMNS, (row_of(found) for found in islice(entries, limit)))


def entries_of(shard: Shard, start: int | None, follow: bool) -> Iterator[WalEntry]:
    """Entries from `start` (None: replay_after + 1) to the tip, and on from there with `follow`."""
    position = replay_start(shard) if start is None else start
    while True:
        for found in _to_the_tip(shard, position):
            yield found
            position = found.position + 1
        if not follow:
            return
        while not has_entry(shard, position):
            clock.sleep(POLL_SECONDS)


def replay_start(shard: Shard) -> int:
    """The first position not covered by an SSTable."""
    manifest = shard.manifests.latest()
    return manifest.replay_after + 1 if manifest else 0


def row_of(found: WalEntry) -> dict[str, Any]:
    """One entry, for an Output."""
    header = found.entry.header
    return {
        "position": found.position,
        "epoch": header.epoch,
        "kind": "barrier" if header.barrier else "rows",
        "rows": found.entry.rows,
        "bytes": found.entry.nbytes,
        "generation": header.generation,
        "entry": header.entry_id,
        "attempt": header.tags.attempt_id,
        "sources": [asdict(source) for source in header.tags.sources],
    }


def _to_the_tip(shard: Shard, start: int) -> Iterator[WalEntry]:
    """Entries up to the tip. Positions covered by SSTables may be garbage collected, so missing ones are skipped there;
    later ones must exist.
    """
    uncovered = replay_start(shard)
    if start < uncovered:
        yield from _covered(shard, range(start, uncovered))
    position = max(start, uncovered)
    try:
        for found in WalTailer(shard).read(position):
            yield found
            position = found.position + 1
    except DataLoss as error:
        moved = replay_start(shard)
        if error.position is None or error.position >= moved:
            raise
        # A flush covered it and its entry was collected while we read.
        yield from _to_the_tip(shard, max(moved, position))


def _covered(shard: Shard, wanted: range) -> Iterator[WalEntry]:
    for position in sorted(found for found in positions(shard) if found in wanted):
        try:
            data = shard.wal.get(shard.wal_key(position))
        except NotFound:
            continue
        try:
            entry = decode_entry(data)
        except DataLoss as error:
            raise shard.at_position(error, position)  # noqa: B904 - the same error, told where
        yield WalEntry(position, entry)
