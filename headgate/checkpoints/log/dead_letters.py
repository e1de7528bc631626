"""Dead letters: records that could not become rows, exactly once as well: value, error and place,
and the key where the table has one.

Each stream has one log per shard below `dead_letters/` in the table's records, in the format of a WAL.
An entry counts only where a commit record lists it, so it needs no fence of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from headgate.checkpoints.log.commit_log import CommitLog
from headgate.checkpoints.log.names import ROOT, list_streams, stream_folder
from headgate.checkpoints.log.records import DEAD_LETTERS
from headgate.checkpoints.log.replayed import Replayed
from headgate.checkpoints.log.state import LogState
from headgate.checkpoints.log.visibility import Visible
from headgate.connectors.objects.folder import FolderStore
from headgate.shards.rows.schema import TOMBSTONE, RowSchema
from headgate.shards.shard import Shard, TableHome
from headgate.shards.wal.tailer import WalTailer

PREFIX = DEAD_LETTERS

SCHEMA = RowSchema.of(
    pa.schema(
        [
            pa.field("topic", pa.string()),
            pa.field("partition", pa.int32()),
            pa.field("offset", pa.int64()),
            pa.field("error", pa.string()),
            pa.field("key", pa.binary()),
            pa.field("value", pa.binary()),
        ]
    )
)


def dead_letter_home(home: TableHome, stream: str) -> TableHome:
    """Where the dead letters of one stream live."""
    store = FolderStore(home.records, f"dead_letters/{stream_folder(stream).removeprefix(ROOT)}")
    return replace(home, schema=SCHEMA, store=store, wal_store=store)


def dead_letter_shard(home: TableHome, stream: str, shard: str) -> Shard:
    """The log that takes the bad records of a shard. Its id is the stream's own: a shard may change its owner."""
    return dead_letter_home(home, stream).shard(f"{dead_letter_name(shard)} of {stream}")


def dead_letter_name(shard: str) -> str:
    """What commit records call the log that takes the bad records of a shard."""
    return f"{PREFIX}{shard}"


@dataclass(frozen=True)
class DeadEntry:
    """The dead letters of one entry: what one batch left of one shard."""

    stream: str
    log: str
    """As commit records call it."""
    position: int
    rows: pa.Table
    waiting: np.ndarray
    """For each of them whether it is still to be replayed."""


def dead_entries(home: TableHome, state: LogState) -> Iterator[DeadEntry]:
    """The committed dead letters of one stream, log by log, in order. `state` is its whole commit log."""
    visible = Visible.of([state], home.uri)
    dead = dead_letter_home(home, state.stream)
    for shard_id, positions in state.shards.items():
        if not positions.shard.startswith(PREFIX):
            continue
        replayed = Replayed.of(state.head.opaque_ends.get(positions.shard))
        for first, last in visible.runs(shard_id):
            entries = WalTailer(Shard(dead, shard_id)).read(first, last + 1)
            for found in visible.visible_entries(shard_id, entries, first, last + 1):
                rows = pa.Table.from_batches([SCHEMA.adopted(batch) for batch in found.entry.batches])
                waiting = replayed.waiting(found.position, rows.num_rows)
                yield DeadEntry(state.stream, positions.shard, found.position, rows.drop_columns([TOMBSTONE]), waiting)


def read_dead_letters(home: TableHome, stream: str | None = None) -> Iterator[pa.Table]:
    """The committed dead letters, stream by stream, in order, with the stream's name as first column, and last whether
    a replay made rows of them.
    """
    for name in list_streams(home.records) if stream is None else (stream,):
        state = CommitLog(home.records, name, home.uri).read()
        for entry in dead_entries(home, state):
            named = entry.rows.add_column(0, "stream", _repeated(name, entry.rows.num_rows))
            yield named.append_column("replayed", pa.array(~entry.waiting))


def _repeated(text: str, times: int) -> pa.Array:
    return pa.repeat(pa.scalar(text, pa.string()), times)
