"""One flush of a stream's shard: visible, decided rows of its WAL become one SSTable, which the manifest then names.

Promises:
1. replay_after moves to the last row of the SSTable and no further (R1), in the same write that names the SSTable.
2. A flush that dies anywhere leaves a folder that nothing names; the flush is simply done again.
3. Rows of entries that no record lists are never in it; rows without a stream, below the owner's barrier, are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from headgate.checkpoints.jobs.columns import schema_of
from headgate.checkpoints.log.state import ShardPositions
from headgate.checkpoints.log.visibility import Visible
from headgate.connectors.lance.datasets import open_dataset
from headgate.errors import HeadgateError
from headgate.shards.manifest.commit import commit_generation
from headgate.shards.manifest.model import Manifest, SsTable
from headgate.shards.memtable.memtable import MemTable
from headgate.shards.rows.sstable import write_sstable
from headgate.shards.shard import Claim, Shard
from headgate.shards.wal.appender import read_header
from headgate.shards.wal.tailer import WalTailer


@dataclass(frozen=True)
class FlushJob:
    """One shard, and which of its rows become the next SSTable. Picklable."""

    name: str
    claim: Claim
    manifest: Manifest
    visible: ShardPositions
    """Visible entries above replay_after."""
    last: int
    """Last position to read. Everything up to it is decided."""
    max_bytes: int
    """The SSTable ends with the entry that passes this size; the rest is for the next one."""


@dataclass(frozen=True)
class FlushOutput:
    """What a job has written; nothing names it yet."""

    sstable: SsTable | None
    """None if there was no row."""
    last_position: int
    """Position of the last row in it."""
    complete: bool
    """True if no row is left up to the job's `last`."""


@dataclass(frozen=True)
class Flushed:
    """A finished job, with the current manifest."""

    manifest: Manifest
    complete: bool
    """True if no row is left up to the job's `last`."""


RunJobs: TypeAlias = Callable[[Sequence[FlushJob]], Mapping[str, Flushed]]
"""Runs jobs of different shards and commits their output; results by name. If a job fails, raises after the others."""


def run_here(jobs: Sequence[FlushJob]) -> dict[str, Flushed]:
    """Run the jobs in this process, one after the other, so that memory holds one SSTable at a time."""
    done: dict[str, Flushed] = {}
    for job in jobs:
        try:
            done[job.name] = commit(job, make(job))
        except HeadgateError as error:
            raise error.with_context(**job.claim.shard.where(), name=job.name)  # noqa: B904 - the same error, told where
    return done


def make(job: FlushJob) -> FlushOutput:
    """Write the SSTable, durably. Raises DataLoss if a listed entry is missing or another one is in its place,
    Transient.
    """
    # Uses the base's current columns: a predecessor may have written more columns than the planner knows.
    home = job.claim.shard.home
    base = open_dataset(home.store)
    shard, start = Shard(replace(home, schema=schema_of(home, base)), job.claim.shard.id), job.manifest.replay_after + 1
    table = MemTable(shard.home.schema, job.manifest.generation, job.manifest.replay_after)
    visible = Visible({shard.id: job.visible}, shard.home.uri)
    entries = WalTailer(shard).read(start, job.last + 1)
    complete, reach = True, None
    for part in visible.tail(shard, job.manifest, entries, job.last + 1):
        if table.nbytes >= job.max_bytes:
            # Entries after the SSTable that note this generation would be skipped: see
            # `headgate.shards.memtable.notes`.
            reach = _noted_reach(job, shard, part.position) if reach is None else reach
            if part.position > reach:
                complete = False
                break
        table.add(part.batches, part.position)
    sstable = write_sstable(replace(job.claim, shard=shard), (), table, base) if table.rows else None
    return FlushOutput(sstable, table.last_position, complete)


def _noted_reach(job: FlushJob, shard: Shard, start: int) -> int:
    """The last position from `start` on that notes the job's generation; -1 if none does.

    Native's entries lie below the claim's barrier, and no record lists them, so other headers are not read.
    """
    for position in range(min(job.last, job.claim.next_position - 1), start - 1, -1):
        if not job.visible.lists(position):
            header = read_header(shard, position)
            if header.generation == job.manifest.generation:
                return position
    return -1


def commit(job: FlushJob, made: FlushOutput) -> Flushed:
    """Commit the SSTable to the manifest, however long the flush took (R20). Raises Fenced, Transient."""
    if made.sstable is None:
        return Flushed(job.manifest, made.complete)
    manifest = commit_generation(
        job.claim.shard.manifests,
        job.claim,
        made.sstable,
        started_from=job.manifest.replay_after,
        last_position=made.last_position,
    )
    return Flushed(manifest, made.complete)
