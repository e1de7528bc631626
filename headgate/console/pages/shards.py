"""Shards: who owns each, what its WAL holds, and a picture of one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

from headgate import clock
from headgate.checkpoints.log.records import BatchRecord
from headgate.checkpoints.snapshots.snapshot import visible_now
from headgate.console.watch.now import ShardNow
from headgate.console.watch.watcher import WatchedTable
from headgate.errors import HeadgateError, NotFound
from headgate.shards.names import parse_uuid
from headgate.shards.wal.appender import read_header
from headgate.shards.wal.listing import WalListing, list_wal

SHARDS_SHOWN = 25
"""Shards per page: 75 requests if none of them was read yet."""
FRESH, LIVE = 10.0, 60.0
"""Seconds after which a shard is read again: if a person opens the page, and if the page updates itself."""
CELLS = 480
"""Positions in the picture of a WAL."""
HEADERS = 24
"""Maximum entries in no commit record that are read, newest first, to distinguish barriers from dead entries."""

Kind = Literal["data", "barrier", "dead", "unlisted", "flushed", "collected", "missing"]

KIND_TEXT: dict[Kind, str] = {
    "data": "committed rows, in the WAL alone",
    "flushed": "covered by an SSTable or the base",
    "barrier": "fence barrier of a writer",
    "dead": "written and never committed",
    "unlisted": "in no commit record; not looked into",
    "collected": "collected as garbage",
    "missing": "MISSING",
}


@dataclass(frozen=True)
class Cell:
    """One position of the picture, or several equal neighbours."""

    first: int
    last: int
    kind: Kind
    nbytes: int

    @property
    def told(self) -> str:
        """The tooltip."""
        where = f"position {self.first:,}" if self.first == self.last else f"positions {self.first:,} to {self.last:,}"
        return f"{where}: {KIND_TEXT[self.kind]}, {self.nbytes:,} bytes"


def shards_page(table: WatchedTable, page: int, *, live: bool) -> dict[str, Any]:
    """One page of shards; those that were not read recently are read now."""
    table.opened()
    if not table.now.shard_ids:
        table.see_all_names()
    ids = table.now.shard_ids
    first = (page - 1) * SHARDS_SHOWN
    wanted = ids[first : first + SHARDS_SHOWN]
    table.see_shards(wanted, LIVE if live else FRESH)
    now = table.now
    lines = [_line(now.shards[one]) for one in wanted if one in now.shards]
    return {
        "shards": lines,
        "total": len(ids),
        "page": page,
        "pages": max(1, -(-len(ids) // SHARDS_SHOWN)),
        "largest": max((one["unflushed_bytes"] for one in lines), default=0),
    }


def shard_page(table: WatchedTable, name: str) -> dict[str, Any]:
    """One shard with the picture of its WAL. Raises NotFound."""
    opened = table.opened()
    if not table.now.shard_ids:
        table.see_all_names()
    shard_id = parse_uuid(name)
    if shard_id is None or shard_id not in table.now.shard_ids:
        raise NotFound("The table has no such shard.", advice="go back to the list of its shards")
    table.see_shards([shard_id], FRESH)
    seen = table.now.shards.get(shard_id)
    if seen is None:
        raise HeadgateError(table.now.error or "The shard could not be looked at.")
    shard = opened.home.shard(shard_id)
    listing = list_wal(shard)
    cells = _picture(table, seen, listing)
    kinds = dict.fromkeys(cell.kind for cell in cells)
    recent = [
        (stream.name, one.record, part)
        for stream in table.now.streams.values()
        for one in reversed(stream.log.batches)
        if isinstance(one.record, BatchRecord)
        for part in one.record.shards.values()
        if part.shard_id == shard_id
    ]
    return {
        "shard": _line(seen),
        "sstables": seen.look.value()["sstables"],
        "manifest": seen.look.manifest,
        "cells": cells,
        "legend": [(kind, KIND_TEXT[kind]) for kind in KIND_TEXT if kind in kinds],
        "batches": recent[:20],
    }


def _line(seen: ShardNow) -> dict[str, Any]:
    value = seen.look.value()
    replay_after = value["replay_after"] or 0
    # The share of all positions since the WAL began that is covered, that is up to replay_after.
    span = max(1, value["tip"])
    return {
        **value,
        "shown": value["name"] or value["shard"],
        "gap": max(0, value["tip"] - 1 - replay_after),
        "covered": min(1.0, (replay_after + 1) / span) if value["tip"] else 0.0,
        "seen": clock.monotonic() - seen.at,
    }


def _picture(table: WatchedTable, seen: ShardNow, listing: WalListing) -> list[Cell]:
    """The last CELLS positions of the WAL, one cell for each."""
    tip = seen.look.wal.tip
    first = max(0, tip - CELLS)
    shard, manifest = seen.look.shard, seen.look.manifest
    replay_after = manifest.replay_after if manifest is not None else -1
    visible = visible_now(table.opened().home)
    listed: set[int] = set()
    for low, high in visible.runs(shard.id, first, tip):
        listed.update(range(low, high + 1))
    sizes = {
        int(position): int(nbytes)
        for position, nbytes in zip(listing.positions, listing.sizes, strict=True)
        if position >= first
    }
    covered = visible.covers(shard.id, replay_after)
    cells = [
        Cell(position, position, _kind(position, replay_after, listed, sizes), sizes.get(position, 0))
        for position in range(first, max(tip, first))
    ]
    return _looked_into(table, shard.id, cells) if covered else cells


def _kind(position: int, replay_after: int, listed: set[int], sizes: dict[int, int]) -> Kind:
    if position not in sizes:
        return "collected" if position <= replay_after else "missing"
    if position <= replay_after:
        return "flushed"
    return "data" if position in listed else "unlisted"


def _looked_into(table: WatchedTable, shard_id: UUID, cells: list[Cell]) -> list[Cell]:
    """Reads entries in no commit record, to see if each is a barrier, rows of a direct writer, or dead."""
    shard = table.opened().home.shard(shard_id)
    asked = [one for one in reversed(cells) if one.kind == "unlisted"][:HEADERS]
    told: dict[int, Kind] = {}
    for cell in asked:
        try:
            header = read_header(shard, cell.first)
        except HeadgateError:
            continue
        told[cell.first] = "barrier" if header.barrier else "data" if header.tags.attempt_id is None else "dead"
    return [Cell(one.first, one.last, told.get(one.first, one.kind), one.nbytes) for one in cells]
