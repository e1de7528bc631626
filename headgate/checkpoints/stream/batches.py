"""Batch writes of a table: one stream of their own, which holds its shards no longer than a job runs.

A job is one batch with one commit record. An id that its caller gave is a source of the record, so that the log,
including its folds, knows it forever. Promises:
1. A job counts whole or not at all; of several jobs with one id, whenever they run, one counts.
2. After a job has let go, the rows are in SSTables, no shard has an owner, and native may open it. The next stream or
   job lets go of what a job that died still holds.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

from headgate import parallel
from headgate.checkpoints.jobs.flush import RunJobs, run_here
from headgate.checkpoints.log.commit_log import CommitLog, read_head
from headgate.checkpoints.log.decisions import has_batch
from headgate.checkpoints.log.names import BATCH_STREAM
from headgate.checkpoints.log.opened_log import OpenedLog
from headgate.checkpoints.log.records import OpenRecord
from headgate.checkpoints.snapshots.checkpoint import TableCheckpoint
from headgate.checkpoints.stream.checkpoint import FinalCompaction, stop_stream
from headgate.checkpoints.stream.driver import StreamDriver
from headgate.shards.shard import Shard, TableHome
from headgate.steps import step

MAX_BYTES = 64 << 20
"""Maximum size of one SSTable: memory holds one."""

KEEP = 2
"""Number of the batch stream's own checkpoints that are kept."""


def begin(
    home: TableHome, batch_id: str | None, names: Iterable[str], *, decoder: Mapping[str, Any] | None = None
) -> tuple[StreamDriver | None, bool]:
    """Take over the batch writes of the table for one job. Returns its driver, and True if the log has the id. THIS
    WRITES, AND IT FENCES AN EARLIER JOB. Without a driver, the log has the id, and nothing was written.

    1. read the log: if it has the id, end here.
    2. claims, barriers, open record, see `StreamDriver.open`: no other job commits from here on. A shard that a stream
       owns is refused first.
    3. look for the id again: another job may have committed it meanwhile.

    `let_go` ends the job, also one whose id the log has. Raises InvalidInput, Fenced, DataLoss, Transient.
    """
    step("look for the id")
    if has_batch(read_head(home, BATCH_STREAM), batch_id):
        return None, True
    step("take over")
    driver = StreamDriver.open(home, BATCH_STREAM, f"{BATCH_STREAM}-{uuid.uuid4()}", names, decoder=decoder)
    return driver, _is_written_now(driver, batch_id)


def _is_written_now(driver: StreamDriver, batch_id: str | None) -> bool:
    step("ask again")
    return has_batch(driver.head, batch_id)


def held_by_batches(home: TableHome) -> list[str]:
    """The shards that batch writes hold: a job runs, or died. One LIST if there never was a batch write. Writes
    nothing.
    """
    opened = CommitLog(home.records, BATCH_STREAM, home.uri).read().head.opened
    claims = {} if opened is None else {name: one.shard_id for name, one in opened.shards.items()}
    manifests = parallel.each("claim", lambda one: Shard(home, one).manifests.latest(), claims.values())
    return [name for name, one in zip(claims, manifests, strict=True) if one is not None and one.owner == BATCH_STREAM]


def free_of_batches(
    home: TableHome, shard_ids: Iterable[UUID], run: RunJobs = run_here, found: Iterable[str] = ()
) -> list[str]:
    """Let go of what batch writes hold, for a stream that starts. THIS FENCES A JOB THAT STILL RUNS. Returns the
    shards.

    `found` are shards whose manifests say so: a job that died between its claims and its open record is in no log.
    Idempotent. Raises as `stop_stream` does.
    """
    if held := sorted({*held_by_batches(home), *found}):
        driver = StreamDriver.open(home, BATCH_STREAM, f"release-{uuid.uuid4()}", held)
        let_go(driver, shard_ids, run)
    return held


def let_go(
    driver: StreamDriver,
    shard_ids: Iterable[UUID],
    run: RunJobs = run_here,
    compaction: FinalCompaction | None = None,
) -> TableCheckpoint:
    """End a job: flush, pin, unseal, and let any stream or writer have the shards. Raises as `stop_stream` does."""
    return stop_stream(driver, shard_ids, run, max_bytes=MAX_BYTES, keep=KEEP, compaction=compaction, forget_owner=True)


def resumed(home: TableHome, opened: OpenRecord) -> StreamDriver | None:
    """The driver that put the open record, in another process; None if a successor has taken over."""
    log = CommitLog(home.records, BATCH_STREAM, home.uri)
    state = log.read()
    if state.head.opened is None or state.head.opened.record_id != opened.record_id:
        return None
    return StreamDriver.resume(home, BATCH_STREAM, OpenedLog(log, state.head.opened, state))
