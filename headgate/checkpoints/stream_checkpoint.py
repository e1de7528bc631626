"""checkpoint(all) of a stream through its driver: everything decided is flushed, no gap is left, the log is folded.

Promises:
1. One failing flush fails it whole: no shard's replay_after passes its gap, and there is no record.
2. A crash anywhere leaves a table that is the same to every reader, and taking it again completes it.
3. A stream that writes WAL only has no SSTables to make: it is recorded and pinned as it is, and the note says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from uuid import UUID

from headgate.checkpoints.commit_log import CommitLog
from headgate.checkpoints.flush_job import RunJobs
from headgate.checkpoints.folding import put_fold, tidy
from headgate.checkpoints.stream_driver import StreamDriver
from headgate.checkpoints.table_checkpoint import TableCheckpoint
from headgate.checkpoints.taking import drop_older, own_name, take
from headgate.shards.appender import Pause, no_pause
from headgate.shards.shard import TableHome

WAL_ONLY = "{} WAL only: rows stay in the WAL, which is pinned as it is; nothing was flushed"
"""Of the note, where a stream or several have no SSTables."""


def checkpoint_stream(
    driver: StreamDriver,
    shard_ids: Iterable[UUID],
    run: RunJobs,
    *,
    max_bytes: int,
    keep: int,
    pause: Pause = no_pause,
) -> TableCheckpoint:
    """Take a checkpoint of a running stream, between two of its batches. Fences nobody.

    1. flush everything decided; 2. let replay_after pass the gaps; 3. fold the log; 4. pin the table, see `take`;
    5. drop the stream's own checkpoints but the newest `keep`.

    `run` runs the flushes. Shards of other streams and writers are in it as they are. Raises InvalidInput where
    another thread is at it, Fenced, DataLoss, Transient.
    """
    with driver.maintenance("a checkpoint"):
        if not _is_wal_only(driver):
            driver.close_gaps(driver.settle(run, max_bytes))
        return _pinned(driver, shard_ids, keep, pause)


def stop_stream(
    driver: StreamDriver,
    shard_ids: Iterable[UUID],
    run: RunJobs,
    *,
    max_bytes: int,
    keep: int,
    pause: Pause = no_pause,
) -> TableCheckpoint:
    """The same for a stream that ends here, and native may open its shards afterwards. The driver is used up.

    Before the steps of `checkpoint_stream` every shard is claimed anew: a task of this very driver that stalls
    somewhere must not write behind the last barrier, where native would take its rows for good. After them the
    shards are unsealed. A WAL-only stream stays sealed: native knows nothing of what counts in its WAL.

    Nobody would try it again later, so that each step is tried as long as the stream waits for its store.
    """
    shard_ids = tuple(shard_ids)
    pinned = partial(_pinned, driver, shard_ids, keep, pause)
    patiently = driver.retry.run_steps
    with driver.maintenance("a clean stop"):
        if _is_wal_only(driver):
            return patiently(pinned)
        pause("renew")
        driver.renew()
        patiently(lambda: driver.close_gaps(driver.settle(run, max_bytes)))
        taken = patiently(pinned)
        pause("unseal")
        driver.unseal()
        return taken


def checkpoint_wal_only(
    home: TableHome, shard_ids: Iterable[UUID], stream: str, *, keep: int, pause: Pause = no_pause
) -> TableCheckpoint:
    """The same for a WAL-only stream whose driver is not at hand: fold its log, pin the table. Anyone may."""
    pause("fold")
    log = CommitLog(home.records, stream, home.uri)
    state = log.read()
    put_fold(log, state, {})
    tidy(home.records, log)
    note, name = WAL_ONLY.format(f"stream {stream!r} is"), own_name(stream, state.sequence)
    taken = take(home, shard_ids, scope="all", name=name, note=note, pause=pause)
    pause("drop")
    drop_older(home, stream, keep)
    return taken


def _pinned(driver: StreamDriver, shard_ids: Iterable[UUID], keep: int, pause: Pause) -> TableCheckpoint:
    pause("fold")
    driver.fold()
    note = WAL_ONLY.format(f"stream {driver.stream!r} is") if _is_wal_only(driver) else ""
    name = own_name(driver.stream, driver.head.sequence)
    names = {claim.shard.id: name for name, claim in driver.claims.items()}
    taken = take(driver.home, shard_ids, scope="all", name=name, note=note, names=names, pause=pause)
    pause("drop")
    drop_older(driver.home, driver.stream, keep)
    return taken


def _is_wal_only(driver: StreamDriver) -> bool:
    return driver.mode == "wal"
