"""What a failed writer has not made durable: its rows are given back, and nothing is reported that may turn out wrong.

Promises:
1. Rows of `failed` are not visible and never will be: no request was sent for them, or their slot was read and holds
   another entry (R24). They are safe to put again.
2. Rows of `unknown` may be visible. `landed` tells once their slot is taken, which the next open of the shard ensures:
   True means that they are visible, False that they never will be. If neither can be proven, it raises.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

import pyarrow as pa

from headgate.errors import Expired, InvalidInput, NotFound
from headgate.shards.shard import Shard, TableHome
from headgate.shards.wal.appender import read_header
from headgate.shards.wal.entry import Tags


@dataclass(frozen=True)
class PendingPut:
    """A put that is not known to be durable."""

    number: int
    """Its number in error messages."""
    batches: tuple[pa.RecordBatch, ...]
    """Its rows and tombstones in storage form, as `ShardWriter.append` takes them."""
    tags: Tags


@dataclass(frozen=True)
class UnknownEntry:
    """An entry whose request was not answered, with its puts: all of them landed, or none."""

    entry_id: str
    """For `Table.landed`: contains shard, position and entry."""
    position: int
    """The only position at which it can be."""
    puts: tuple[PendingPut, ...]


@dataclass(frozen=True)
class Pending:
    """What `ShardWriter.take_pending` gives back, oldest first."""

    failed: tuple[PendingPut, ...] = ()
    unknown: tuple[UnknownEntry, ...] = ()


def entry_name(shard: str, position: int, entry_id: str) -> str:
    """The entry id as callers get it: it contains the entry's place."""
    return f"{shard}:{position}:{entry_id}"


def landed(home: TableHome, entry_id: str) -> bool:
    """True if an entry of unknown outcome is durable, by what its slot holds. One read; writes nothing.

    1. the slot holds the entry: True, also before the next open.
    2. it holds another entry, such as the barrier of the next opener: False, forever. The slot stays taken (R5), or is
       collected below replay_after, where no replay reads what might still arrive.
    3. it is free above replay_after: nobody has opened the shard since, and the request may still arrive: InvalidInput.
    4. it is free at or below replay_after: its entry was flushed and collected, this one or another: Expired.

    Also raises InvalidInput for an invalid entry id or one of another table, Corrupt, Transient.
    """
    shard, position, stored_id = _parsed(home, entry_id)
    try:
        return read_header(shard, position).entry_id == stored_id
    except NotFound:
        manifest = shard.manifests.latest()
    if manifest is None:
        raise InvalidInput(
            "Shard not found in the table.", **shard.where(), advice="use the table that the rows were written to"
        )
    if position <= manifest.replay_after:
        raise Expired(
            "Garbage collection has deleted the entry at this position, so its id is unknown.",
            **shard.where(),
            position=position,
            replay_after=manifest.replay_after,
            advice="look for the rows in the table; next time ask sooner than the min-age of `headgate gc`",
        )
    raise InvalidInput(
        "The entry's position is still free: the request may still arrive.",
        **shard.where(),
        position=position,
        advice="open the shard for writing, which decides it, then ask again; nothing was written",
    )


def _parsed(home: TableHome, entry_id: str) -> tuple[Shard, int, str]:
    shard_id, _, rest = entry_id.partition(":")
    position, _, stored_id = rest.partition(":")
    try:
        if not (stored_id and position.isascii() and position.isdecimal()):
            raise ValueError
        return Shard(home, UUID(shard_id)), int(position), stored_id
    except ValueError:
        raise InvalidInput(
            f"Invalid entry id {entry_id[:200]!r}.",
            table=home.uri,
            advice="pass UnknownEntry.entry_id or the error's unknown_entry unchanged",
        ) from None
