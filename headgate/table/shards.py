"""The shards of a table, as `Table.shards` returns them."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from headgate.shards.manifest.model import Manifest


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """One shard as its latest manifest shows it; one without a manifest was never opened."""

    name: str | None
    """None if unknown: shards of native Lance, and of partitions that no log names."""
    id: UUID
    epoch: int
    """How often it was claimed; 0: nobody has opened it for writing yet."""
    replay_after: int
    last_seen: int
    generation: int
    sstables: int
    owner: str | None
    sealed: bool
    native_safe: bool
    """True if native Lance may open it: no stream owns it, and its WAL is in the table's folder."""

    @property
    def claimed(self) -> bool:
        """True if a writer or a stream has opened it."""
        return self.epoch > 0

    @classmethod
    def of(cls, shard_id: UUID, name: str | None, manifest: Manifest | None, *, is_native_wal: bool) -> ShardInfo:
        """The info from a manifest, if there is one; `is_native_wal`: the table's WALs are in its own folder."""
        manifest = manifest or Manifest(version=0, epoch=0, shard_id=shard_id)
        return cls(
            name=name,
            id=shard_id,
            epoch=manifest.epoch,
            replay_after=manifest.replay_after,
            last_seen=manifest.last_seen,
            generation=manifest.generation,
            sstables=len(manifest.sstables),
            owner=manifest.owner,
            sealed=manifest.sealed,
            native_safe=not manifest.sealed and is_native_wal,
        )
