"""Who runs the jobs of maintenance, and how often."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TypeAlias

from headgate.checkpoints.gc.base import RunMerge
from headgate.checkpoints.gc.report import Collection
from headgate.checkpoints.jobs.compact import RunCompaction
from headgate.checkpoints.jobs.flush import RunJobs, run_here
from headgate.checkpoints.jobs.policy import BasePolicy, CompactLimits
from headgate.checkpoints.snapshots.checkpoint import TableCheckpoint
from headgate.search.build.jobs import Runner, in_process
from headgate.search.build.plan import Limits
from headgate.streaming.maintenance.cores import at_once
from headgate.streaming.maintenance.rules import DEFAULTS, MaintenanceLimits

Collect: TypeAlias = Callable[[Callable[[int, int], None]], Collection]
"""Collects the table's garbage. Calls the given function after each deleted object; the function raises to stop
early.
"""


@dataclass(frozen=True)
class Jobs:
    """The functions that do the work; by default in this process, without Spark."""

    flush: RunJobs = run_here
    compact: RunCompaction | None = None
    merge: RunMerge | None = None
    index: Runner = in_process
    checkpoint: Callable[[], TableCheckpoint] | None = None
    """Takes a checkpoint of scope all; None if none is taken while the stream runs."""
    collect: Collect | None = None
    """None if the stream collects no garbage."""
    turn: Callable[[Callable[[], bool]], AbstractContextManager[None]] = at_once
    """Waits until a job may run beside the batches. Raises CalledOff if maintenance ends first. A waiting job holds no
    shard, and its time counts from its turn."""


@dataclass(frozen=True)
class Schedule:
    """How often jobs run, and how much they do at once."""

    limits: MaintenanceLimits = field(default_factory=MaintenanceLimits)
    rounds: CompactLimits = field(default_factory=CompactLimits)
    base: BasePolicy = field(default_factory=BasePolicy)
    segments: Limits = field(default_factory=Limits)
    """Limits of index segments."""
    checkpoint_seconds: float = DEFAULTS.checkpoint_seconds
    tidy_seconds: float = 600.0
    """Seconds between two cleanups of the base's fragments and versions."""
    index_seconds: float = 600.0
    """Seconds between two checks for rows that the base's indexes miss, besides the one after every compaction: other
    writers may have added rows."""
    gc_seconds: float = DEFAULTS.gc_seconds
    """Seconds between two garbage collections, across restarts."""
    columns_seconds: float = 60.0
    """Seconds between two checks if the table was re-created or its columns changed."""
    memtables: bool = True
    """False for a WAL-only stream, which is neither flushed nor compacted."""
