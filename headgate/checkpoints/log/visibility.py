"""Which entries of a table's WALs count: the one rule, over all streams of the table.

Promises:
1. An entry without an attempt id is visible. A tagged one is visible only if a commit record of some stream lists its
   shard, its position and (above the log's fold) its attempt.
2. `visible_entries` never skips a loss: a listed position that is absent, or whose entry is not the listed one, is
   DataLoss.

Read the manifests first, then the logs, then the WALs: then every listed entry is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from headgate.checkpoints.log.positions import is_visible
from headgate.checkpoints.log.records import Span
from headgate.checkpoints.log.state import LogState, ShardPositions, merged
from headgate.errors import Corrupt, DataLoss, InvalidInput
from headgate.shards.manifest.model import Manifest
from headgate.shards.memtable.replay import ReplayedEntry, uncovered
from headgate.shards.shard import Shard
from headgate.shards.wal.tailer import WalEntry


@dataclass(frozen=True)
class Visible:
    """Entries that the logs of a table's streams list, per shard."""

    shards: Mapping[UUID, ShardPositions]
    table: str | None = None

    @classmethod
    def of(cls, states: Iterable[LogState], table: str | None = None) -> Visible:
        """From the states of all streams of a table. A shard may have changed its owner."""
        shards: dict[UUID, ShardPositions] = {}
        for state in states:
            for shard_id, positions in state.shards.items():
                before = shards.get(shard_id)
                shards[shard_id] = positions if before is None else _joined(before, positions)
        return cls(shards, table)

    def __call__(self, shard_id: UUID, position: int, attempt_id: str | None) -> bool:
        """True if the entry at that position with that attempt is visible."""
        return is_visible(attempt_id, position, self.shards.get(shard_id))

    def covers(self, shard_id: UUID, replay_after: int) -> bool:
        """True if the logs know everything above `replay_after`.

        False means that the manifest was read before a flush and the log after it was folded:
        read the manifest again (R11).
        """
        positions = self.shards.get(shard_id)
        return positions is None or positions.known_above <= max(replay_after, 0)

    def runs(self, shard_id: UUID, start: int = 0, stop: int | None = None) -> Iterator[Span]:
        """The listed positions in [start, stop), as runs."""
        positions = self.shards.get(shard_id)
        for first, last in () if positions is None else positions.runs():
            first, last = max(first, start), last if stop is None else min(last, stop - 1)
            if first <= last:
                yield first, last

    def visible_entries(
        self, shard_id: UUID, entries: Iterable[WalEntry], start: int, stop: int | None = None
    ) -> Iterator[WalEntry]:
        """The visible entries with rows among the given ones, which must be those of [start, stop) in order.

        `start` is replay_after + 1; without `stop` the entries end at the tip. Raises DataLoss for a listed position
        that is absent or differs, InvalidInput if `covers` is false.
        """
        if not self.covers(shard_id, start - 1):
            raise InvalidInput(
                "The commit log was folded after this reader read the manifest.",
                table=self.table,
                shard=str(shard_id),
                position=start,
                advice="read the manifest again, then the log",
            )
        listed = _Expected(self.runs(shard_id, start, stop))
        for found in entries:
            header = found.entry.header
            if (missing := listed.first_below(found.position)) is not None:
                raise self._loss("absent", shard_id, missing)
            if listed.take(found.position) and (
                header.tags.attempt_id is None or not self(shard_id, found.position, header.tags.attempt_id)
            ):
                raise self._loss("of another attempt", shard_id, found.position, found=header.tags.attempt_id)
            if not header.barrier and self(shard_id, found.position, header.tags.attempt_id):
                yield found
        if (missing := listed.first_below(None)) is not None:
            raise self._loss("absent", shard_id, missing)

    def tail(
        self, shard: Shard, manifest: Manifest, entries: Iterable[WalEntry], stop: int | None = None
    ) -> Iterator[ReplayedEntry]:
        """The visible rows of [replay_after + 1, stop) that no SSTable has, from these entries. Takes and raises the
        same as `visible_entries`.
        """
        start = manifest.replay_after + 1
        return uncovered(shard, manifest, self.visible_entries(shard.id, entries, start, stop))

    def _loss(self, how: str, shard_id: UUID, position: int, **detail: Any) -> DataLoss:
        return DataLoss(
            f"The entry at position {position}, which a commit record lists, is {how}.",
            table=self.table,
            shard=str(shard_id),
            position=position,
            **detail,
        )


class _Expected:
    """The listed positions that were not met yet, as runs."""

    def __init__(self, runs: Iterator[Span]) -> None:
        self._runs = runs
        self._run = next(runs, None)

    def first_below(self, position: int | None) -> int | None:
        """The lowest remaining position, if it is below `position` (None: the lowest at all)."""
        if self._run is None or (position is not None and self._run[0] >= position):
            return None
        return self._run[0]

    def take(self, position: int) -> bool:
        """True if the position is the next one; it is then met."""
        if self._run is None or self._run[0] != position:
            return False
        first, last = self._run
        self._run = (first + 1, last) if first < last else next(self._runs, None)
        return True


def _joined(a: ShardPositions, b: ShardPositions) -> ShardPositions:
    """Joins the positions of two streams that owned the shard one after the other."""
    for position in a.attempts.keys() & b.attempts.keys():
        if a.attempts[position] != b.attempts[position]:
            raise Corrupt(
                "Two streams list the same position with different attempts.", shard=a.shard, position=position
            )
    return replace(
        a,
        attempts={**a.attempts, **b.attempts},
        folded=tuple(merged(sorted((*a.folded, *b.folded)))),
        known_above=max(a.known_above, b.known_above),
        last=max(a.last, b.last),
    )
