"""The entries of a shard that a stream's driver knows to be visible and in no SSTable yet. Plain values, no store."""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

from headgate.checkpoints.log.positions import flush_limit
from headgate.checkpoints.log.records import ShardPart, Span
from headgate.checkpoints.log.state import LogState, ShardPositions

MAX_ENTRIES = 512
"""This many small entries make replay slow, whatever their size."""


@dataclass
class Unflushed:
    """Visible entries of a shard that no SSTable covers, as far as its driver knows."""

    attempts: dict[int, str]
    folded: tuple[Span, ...] = ()
    sizes: dict[int, int] = field(default_factory=dict)
    """Sizes of the entries in `attempts`, as far as the log has them."""

    @classmethod
    def of(cls, state: LogState, shard_id: UUID) -> Unflushed:
        """Entries that the log lists; a due flush finds out which of them are flushed already."""
        listed = state.shards.get(shard_id)
        if listed is None:
            return cls({})
        held = cls({}, listed.folded)
        for record in state.head.recent.values():
            for part in record.shards.values():
                if part.shard_id == shard_id:
                    held.add(part)
        held.attempts = dict(listed.attempts)
        held.sizes = {position: size for position, size in held.sizes.items() if position in held.attempts}
        return held

    @property
    def last(self) -> int | None:
        """The highest position; None without entries."""
        return flush_limit(self.attempts, self.folded)

    def positions(self, name: str) -> ShardPositions:
        """The positions, for a flush."""
        return ShardPositions(name, dict(self.attempts), self.folded)

    def add(self, part: ShardPart) -> None:
        """Add the entries of a batch."""
        self.attempts.update(dict.fromkeys(part.positions, part.attempt_id))
        self.sizes.update(dict.fromkeys(part.positions, part.nbytes // len(part.positions)))

    def forget(self, replay_after: int) -> None:
        """Remove entries up to `replay_after`, which SSTables cover."""
        self.attempts = {position: attempt for position, attempt in self.attempts.items() if position > replay_after}
        self.sizes = {position: size for position, size in self.sizes.items() if position > replay_after}
        self.folded = tuple((max(a, replay_after + 1), b) for a, b in self.folded if b > replay_after)

    @property
    def nbytes(self) -> int:
        """Bytes of the entries whose size is known."""
        return sum(self.sizes.values())

    @property
    def entries(self) -> int:
        """Number of entries known one by one."""
        return len(self.attempts)

    @property
    def is_known(self) -> bool:
        """True if every entry is known with its size."""
        return len(self.sizes) == len(self.attempts) and not self.folded

    def is_due(self, max_bytes: int) -> bool:
        """True if a flush is due: the entries are large or many, or their size is unknown."""
        return not self.is_known or self.entries >= MAX_ENTRIES or self.nbytes >= max_bytes
