"""What the process that runs a stream knows of it, so that its console need not ask the store."""

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
    """When it was committed, in seconds since 1970."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """By phase: plan, wait, tasks, commit and total are wall time, decode and append summed over the tasks."""
    retries: Mapping[str, int] = field(default_factory=dict)
    """What was tried again."""


@dataclass(frozen=True, slots=True)
class ShardHeld:
    """What one shard holds beside the base, as its driver knows it."""

    name: str
    unflushed_bytes: int
    sstables: int


class LiveStream(Protocol):
    """A stream of this process. Every answer is from memory; any thread may ask."""

    def head(self) -> Head | None:
        """Where it stands; None before its first batch."""

    def held(self) -> Sequence[ShardHeld]:
        """What its shards hold."""

    def maintenance(self) -> MaintenanceState | None:
        """How its maintenance stands; None where none runs."""

    def batches(self) -> Sequence[BatchTiming]:
        """Its last batches, oldest first."""

    def lag(self) -> Mapping[tuple[str, int], int]:
        """Per topic and partition what Kafka has and no commit record, as far as Spark has said."""

    def lag_seconds(self) -> float | None:
        """Since when something is behind in Kafka; 0: nothing is; None: not known."""

    def failure(self) -> str | None:
        """What stopped it: the class of the error and its sentence."""
