"""Dead letters: records that could not become rows, also exactly once: value, error and place, the key if the table has
one, and what else the stream read of the record.

Each stream has one log per shard below `dead_letters/` in the table's records, in the format of a WAL. An entry counts
only if a commit record lists it, so it needs no fence of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.checkpoints.log.commit_log import CommitLog
from headgate.checkpoints.log.names import ROOT, list_streams, stream_folder
from headgate.checkpoints.log.records import DEAD_LETTERS, Span
from headgate.checkpoints.log.state import LogState
from headgate.checkpoints.log.visibility import Visible
from headgate.connectors.objects.folder import FolderStore
from headgate.records import understood
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
            pa.field("timestamp", pa.timestamp("us", "UTC")),
            pa.field("headers", pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))),
        ]
    )
)


def dead_letter_home(home: TableHome, stream: str) -> TableHome:
    """The home of one stream's dead letters."""
    store = FolderStore(home.records, f"dead_letters/{stream_folder(stream).removeprefix(ROOT)}")
    return replace(home, schema=SCHEMA, store=store, wal_store=store)


def dead_letter_shard(home: TableHome, stream: str, shard: str) -> Shard:
    """The dead-letter log of a shard. Its id belongs to the stream: a shard may change its owner."""
    return dead_letter_home(home, stream).shard(f"{dead_letter_name(shard)} of {stream}")


def dead_letter_name(shard: str) -> str:
    """The name of a shard's dead-letter log in commit records."""
    return f"{PREFIX}{shard}"


@dataclass(frozen=True)
class ReplayProgress:
    """How far the replays of one dead-letter log are: which letters became rows, as text in a replay's record.

    A letter is identified by the position of its entry and its number in the entry. Everything below `next` was
    processed; `left` names those of its letters that could not become rows, by position as spans of numbers. All others
    were replayed, and never are again.
    """

    next: int = 0
    left: Mapping[int, tuple[Span, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, text: str | None) -> ReplayProgress:
        """The progress in a record's text; None before the first replay. Raises Corrupt."""
        if text is None:
            return cls()
        with understood("The replay state of a dead-letter log"):
            told = json.loads(text)
            left = {int(at): tuple((int(a), int(b)) for a, b in spans) for at, spans in told["left"].items()}
            return cls(int(told["next"]), left)

    @property
    def text(self) -> str:
        """The progress as text for a record."""
        left = {str(at): [list(span) for span in spans] for at, spans in sorted(self.left.items())}
        return json.dumps({"next": self.next, "left": left}, separators=(",", ":"))

    def waiting(self, position: int, letters: int) -> npt.NDArray[np.bool_]:
        """For each letter of an entry, True if it is still to be replayed."""
        if position >= self.next:
            return np.ones(letters, bool)
        found = np.zeros(letters, bool)
        for first, last in self.left.get(position, ()):
            found[first : last + 1] = True
        return found

    def after(self, position: int, refused: npt.NDArray[np.bool_]) -> ReplayProgress:
        """The progress after an entry was replayed, except for the letters that were refused."""
        left = {at: spans for at, spans in self.left.items() if at != position}
        if refused.any():
            left[position] = _spans(np.flatnonzero(refused))
        return ReplayProgress(max(self.next, position + 1), left)


@dataclass(frozen=True)
class DeadEntry:
    """The dead letters of one entry: those of one batch in one shard."""

    stream: str
    log: str
    """Name of the log in commit records."""
    position: int
    rows: pa.Table
    waiting: np.ndarray
    """For each letter, True if it is still to be replayed."""


def dead_entries(home: TableHome, state: LogState) -> Iterator[DeadEntry]:
    """The committed dead letters of one stream, log by log, in order. `state` is its whole commit log."""
    visible = Visible.of([state], home.uri)
    for shard_id, log in _logs(state):
        for first, last in visible.runs(shard_id):
            yield from _entries(home, state, visible, shard_id, log, first, last)


def newest_entries(home: TableHome, state: LogState, start: tuple[str, int] | None = None) -> Iterator[DeadEntry]:
    """The same entries one by one: those of the newest batches first, then log by log, the last one first. `start`, the
    log and position of an entry, is where to begin. An entry is read when the caller asks for it.
    """
    visible = Visible.of([state], home.uri)
    logs = dict(_logs(state))
    for shard_id, position in _newest_first(state, visible, logs):
        if start is None or (logs[shard_id], position) == start:
            start = None
            yield from _entries(home, state, visible, shard_id, logs[shard_id], position, position)


def _logs(state: LogState) -> Iterator[tuple[UUID, str]]:
    return ((one, positions.shard) for one, positions in state.shards.items() if positions.shard.startswith(PREFIX))


def _newest_first(state: LogState, visible: Visible, logs: Mapping[UUID, str]) -> Iterator[tuple[UUID, int]]:
    met: dict[UUID, set[int]] = {}
    for record in reversed([*state.head.recent.values()]):
        for part in record.dead_letters.values():
            met.setdefault(part.shard_id, set()).update(part.positions)
            yield from ((part.shard_id, position) for position in reversed(part.positions))
    for shard_id in logs:
        known = met.get(shard_id, set())
        for first, last in reversed([*visible.runs(shard_id)]):
            yield from ((shard_id, position) for position in range(last, first - 1, -1) if position not in known)


def _entries(
    home: TableHome, state: LogState, visible: Visible, shard_id: UUID, log: str, first: int, last: int
) -> Iterator[DeadEntry]:
    replayed = ReplayProgress.of(state.head.opaque_ends.get(log))
    entries = WalTailer(Shard(dead_letter_home(home, state.stream), shard_id)).read(first, last + 1)
    for found in visible.visible_entries(shard_id, entries, first, last + 1):
        rows = pa.Table.from_batches([SCHEMA.adopted(batch) for batch in found.entry.batches])
        waiting = replayed.waiting(found.position, rows.num_rows)
        yield DeadEntry(state.stream, log, found.position, rows.drop_columns([TOMBSTONE]), waiting)


def read_dead_letters(home: TableHome, stream: str | None = None) -> Iterator[pa.Table]:
    """The committed dead letters, stream by stream, in order. The first column is the stream's name, the last says
    whether a replay made a row of the letter.
    """
    for name in list_streams(home.records) if stream is None else (stream,):
        state = CommitLog(home.records, name, home.uri).read()
        for entry in dead_entries(home, state):
            named = entry.rows.add_column(0, "stream", _repeated(name, entry.rows.num_rows))
            yield named.append_column("replayed", pa.array(~entry.waiting))


def _repeated(text: str, times: int) -> pa.Array:
    return pa.repeat(pa.scalar(text, pa.string()), times)


def _spans(numbers: npt.NDArray[np.int64]) -> tuple[Span, ...]:
    cuts = np.flatnonzero(np.diff(numbers) > 1) + 1
    return tuple((int(part[0]), int(part[-1])) for part in np.split(numbers, cuts))
