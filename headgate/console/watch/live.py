"""What the process that runs a stream knows about it, so that its console need not read the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from headgate.checkpoints.jobs.state import MaintenanceState
from headgate.checkpoints.log.state import Head


@dataclass(frozen=True, slots=True)
class BatchTiming:
    """One batch as its driver saw it."""

    sequence: int
    at: float
    """Time of the commit, in seconds since 1970."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """By phase: plan, wait, tasks, commit and total are wall time, decode and append are summed over the tasks."""
    retries: Mapping[str, int] = field(default_factory=dict)
    """Number of retries, by operation."""


@dataclass(frozen=True, slots=True)
class ShardHeld:
    """What one shard holds besides the base, as its driver knows it."""

    name: str
    unflushed_bytes: int
    sstables: int


class LiveStream(Protocol):
    """A stream of this process. Every method returns values from memory; any thread may call it."""

    def head(self) -> Head | None:
        """The head of its commit log; None before its first batch."""

    def held(self) -> Sequence[ShardHeld]:
        """What its shards hold."""

    def maintenance(self) -> MaintenanceState | None:
        """The state of its maintenance; None if none runs."""

    def batches(self) -> Sequence[BatchTiming]:
        """Its last batches, oldest first."""

    def lag(self) -> Mapping[tuple[str, int], int]:
        """Per topic and partition how many offsets in Kafka no commit record covers, as last reported by Spark."""

    def lag_seconds(self) -> float | None:
        """For how long rows have been waiting in Kafka; 0 if none wait, None if unknown."""

    def failure(self) -> str | None:
        """The error that stopped it: its class and sentence."""
