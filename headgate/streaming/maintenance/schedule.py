"""Who does the jobs of maintenance, and how often they are done."""

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
"""Collects the table's garbage, and calls what it is given after each object that went: it raises to end it early."""


@dataclass(frozen=True)
class Jobs:
    """Who does the work. Without Spark: this process."""

    flush: RunJobs = run_here
    compact: RunCompaction | None = None
    merge: RunMerge | None = None
    index: Runner = in_process
    checkpoint: Callable[[], TableCheckpoint] | None = None
    """Takes a checkpoint of scope all; None where none is taken while the stream runs."""
    collect: Collect | None = None
    """None where the stream collects no garbage."""
    turn: Callable[[Callable[[], bool]], AbstractContextManager[None]] = at_once
    """Waits until a job may run beside the batches; raises CalledOff where it is over before. Nobody holds a shard
    while it waits, and a job's time counts from its turn on."""


@dataclass(frozen=True)
class Schedule:
    """How often, and how much at once."""

    limits: MaintenanceLimits = field(default_factory=MaintenanceLimits)
    rounds: CompactLimits = field(default_factory=CompactLimits)
    base: BasePolicy = field(default_factory=BasePolicy)
    segments: Limits = field(default_factory=Limits)
    """Of indexes."""
    checkpoint_seconds: float = DEFAULTS.checkpoint_seconds
    tidy_seconds: float = 600.0
    """Between two looks at the base's fragments and versions."""
    index_seconds: float = 600.0
    """Between two looks for rows of the base that its indexes miss, besides one after every compaction:
    others may have put them there."""
    gc_seconds: float = DEFAULTS.gc_seconds
    """Between two collections of garbage, over restarts."""
    columns_seconds: float = 60.0
    """Between two looks whether it is still the same table, and whether somebody has changed its columns."""
    memtables: bool = True
    """False: a WAL-only stream, which is neither flushed nor compacted."""
