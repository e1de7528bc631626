"""checkpoint(all) of a stream through its driver: everything decided is flushed, no gap is left, the log is folded.

Promises:
1. If one flush fails, the checkpoint fails: no shard's replay_after passes its gap, and there is no record.
2. A crash anywhere leaves a table that is the same to every reader, and taking it again completes it.
3. A WAL-only stream makes no SSTables: it is recorded and pinned as it is, and the note says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from uuid import UUID

import structlog

from headgate import clock, parallel
from headgate.checkpoints.jobs.compact import RunCompaction
from headgate.checkpoints.jobs.flush import RunJobs
from headgate.checkpoints.jobs.policy import CompactLimits
from headgate.checkpoints.log.commit_log import CommitLog
from headgate.checkpoints.log.fold import put_fold, tidy
from headgate.checkpoints.snapshots.checkpoint import TableCheckpoint
from headgate.checkpoints.snapshots.take import drop_older, own_name, take
from headgate.checkpoints.stream.driver import StreamDriver
from headgate.errors import Fenced, HeadgateError
from headgate.shards.shard import TableHome
from headgate.steps import step

WAL_ONLY = "{} WAL only: rows stay in the WAL, which the checkpoint pins; nothing was flushed"
"""Text of the note if one or several streams have no SSTables."""


STOP_ROUND = CompactLimits(max_bytes=64 << 20)
"""Limits of the last compaction: no round starts after its time is over, so rounds are short."""

_log = structlog.get_logger("headgate.checkpoints")


@dataclass(frozen=True)
class FinalCompaction:
    """The compaction of a clean stop."""

    seconds: float
    """No round starts after this many seconds."""
    take_in: RunCompaction | None = None
    """Runs the work; None: this process does."""

    def run(self, driver: StreamDriver) -> str:
        """Take the stream's SSTables into the base, round by round. Returns a note about what is left, or "".

        Raises only Fenced: a stop does not fail because the base lags.
        """
        end, why = clock.monotonic() + self.seconds, ""
        try:
            while self._left(driver) and clock.monotonic() < end:
                driver.compact(STOP_ROUND, self.take_in)
        except Fenced:
            raise
        except Exception as error:
            # Errors of Spark or Lance may quote options, and so credentials.
            why = f" ({str(error) if isinstance(error, HeadgateError) else type(error).__name__})"
        if not (left := self._left(driver)):
            return ""
        note = (
            f"{left} SSTables are not in the base yet, so plain Lance readers do not see them{why}; the next "
            "run or `headgate compact --apply` merges them"
        )
        _log.warning("the clean stop left SSTables", stream=driver.stream, note=note)
        return note

    @staticmethod
    def _left(driver: StreamDriver) -> int:
        return sum(load.sstables for load in driver.loads())


def checkpoint_stream(
    driver: StreamDriver,
    shard_ids: Iterable[UUID],
    run: RunJobs,
    *,
    max_bytes: int,
    keep: int,
) -> TableCheckpoint:
    """Take a checkpoint of a running stream, between two of its batches. Fences nobody.

    1. flush everything decided; 2. let replay_after pass the gaps; 3. fold the log, and beside it 4. pin the table, see
    `take`; 5. drop the stream's own checkpoints but the newest `keep`.

    `run` runs the flushes. Shards of other streams and writers are included as they are. Raises InvalidInput if another
    thread runs maintenance, Fenced, DataLoss, Transient.
    """
    with driver.maintenance("a checkpoint"):
        if not _is_wal_only(driver):
            driver.close_gaps(driver.settle(run, max_bytes))
        taken = _pinned(driver, shard_ids)
        _drop(driver, keep)
        return taken


def stop_stream(
    driver: StreamDriver,
    shard_ids: Iterable[UUID],
    run: RunJobs,
    *,
    max_bytes: int,
    keep: int,
    compaction: FinalCompaction | None = None,
    forget_owner: bool = False,
) -> TableCheckpoint:
    """The same for a stream that ends here; native may open its shards afterwards. The driver cannot be used any more.

    Before the steps of `checkpoint_stream` every shard is claimed again: a stalled task of this very driver must not
    write above the last barrier, where native would replay its rows. Before the table is pinned, `compaction` takes the
    SSTables into the base, where plain Lance readers see their rows; it never fails the stop, and the note says what it
    left. After them the shards are unsealed. A WAL-only stream stays sealed: native cannot know which entries of its
    WAL are visible. With `forget_owner` any other stream or writer may open the shards.

    Nobody would retry it later, so each step is retried as long as the stream waits for its store.
    """
    shard_ids = tuple(shard_ids)
    pinned = partial(_pinned, driver, shard_ids)
    patiently = driver.home.retry.run_steps
    with driver.maintenance("a clean stop"):
        if _is_wal_only(driver):
            taken = patiently(pinned)
            patiently(partial(_drop, driver, keep))
            return taken
        step("renew")
        driver.renew()
        patiently(lambda: driver.close_gaps(driver.settle(run, max_bytes)))
        step("compact")
        left = "" if compaction is None else compaction.run(driver)
        taken = patiently(partial(pinned, note=left))
        with parallel.beside("drop", near=driver.home.store.is_near, workers=1) as begin:
            dropped = begin(patiently, partial(_drop, driver, keep))
            step("unseal")
            driver.unseal(forget_owner=forget_owner)
            dropped()
        return taken


def checkpoint_wal_only(home: TableHome, shard_ids: Iterable[UUID], stream: str, *, keep: int) -> TableCheckpoint:
    """The same for a WAL-only stream without its driver: fold its log, pin the table. Anyone may call it."""
    step("fold")
    log = CommitLog(home.records, stream, home.uri)
    state = log.read()
    put_fold(log, state, {})
    tidy(home.records, log)
    note, name = WAL_ONLY.format(f"stream {stream!r} is"), own_name(stream, state.sequence)
    taken = take(home, shard_ids, scope="all", name=name, note=note)
    step("drop")
    drop_older(home, stream, keep)
    return taken


def _pinned(driver: StreamDriver, shard_ids: Iterable[UUID], note: str = "") -> TableCheckpoint:
    step("fold")
    note = WAL_ONLY.format(f"stream {driver.stream!r} is") if _is_wal_only(driver) else note
    name = own_name(driver.stream, driver.head.sequence)
    names = {claim.shard.id: name for name, claim in driver.claims.items()}
    with parallel.beside("fold", near=driver.home.store.is_near, workers=1) as begin:
        folded = begin(driver.fold)
        taken = take(driver.home, shard_ids, scope="all", name=name, note=note, names=names, cache=driver.cache)
        folded()
    return taken


def _drop(driver: StreamDriver, keep: int) -> None:
    step("drop")
    drop_older(driver.home, driver.stream, keep)


def _is_wal_only(driver: StreamDriver) -> bool:
    return driver.mode == "wal"
