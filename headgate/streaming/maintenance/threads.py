"""Maintenance of a running stream: flushes, checkpoints, compactions and garbage collections, in threads beside its
batches.

Promises:
1. No batch waits for a job, with two exceptions that the state shows: the budget of unflushed bytes, and the limit of
   SSTables. (With one Spark core, a batch also waits for the running task.)
2. A failed job never fails the stream: it is retried after a growing pause, and the state shows the failure.
3. One thread works on the shards (flush, checkpoint, fold), one on the base (compaction, tidying, indexing), one
   collects garbage. A long compaction or collection delays no flush, unless there are fewer than three cores, where a
   core for batches comes first. Garbage collection uses no Spark cores.
4. A fenced driver starts no more maintenance; the next batch detects the fence by itself.
5. If the stream's table was dropped and re-created, the stream ends: the current or next batch raises Fenced (R23). No
   other check ends a stream.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import structlog

from headgate import clock, parallel
from headgate.checkpoints.jobs.state import Delayed, MaintenanceState, seconds_since, timestamp
from headgate.checkpoints.snapshots.checkpoint import TableCheckpoint
from headgate.checkpoints.stream.driver import StreamDriver
from headgate.errors import Transient
from headgate.streaming.maintenance.board import Board
from headgate.streaming.maintenance.chores import BaseUpkeep, GarbageUpkeep, ShardUpkeep, TableLook
from headgate.streaming.maintenance.loop import IDLE_SECONDS, Chore, Loop
from headgate.streaming.maintenance.rules import Delay, delay
from headgate.streaming.maintenance.schedule import Jobs, Schedule

COMPLAIN_SECONDS = 30.0
"""A waiting batch logs a warning at once, then once per interval."""

_log = structlog.get_logger("headgate.streaming")


class Maintenance:
    """The threads of one driver. `start` them once; `stop` ends them."""

    def __init__(
        self,
        driver: StreamDriver,
        jobs: Jobs,
        schedule: Schedule,
        *,
        follows: bool = False,
        is_active: Callable[[], bool] = lambda: True,
        report: Callable[[MaintenanceState], None] = lambda state: None,
        before: MaintenanceState | None = None,
    ) -> None:
        """`follows` is true if batches adopt columns that a check finds changed. `is_active` returns whether the query
        still runs. `report` gets the state when it changes. `before` is the state that an earlier driver of the stream
        reported last.
        """
        self._driver = driver
        self._schedule = schedule
        self._is_active = is_active
        since = before.collects_since if before is not None else ""
        state = MaintenanceState(
            driver.stream,
            collected=None if before is None else before.collected,
            collects_since=timestamp() if seconds_since(since) is None else since,
        )
        self._board = board = Board(driver, state, report)
        self._shards = ShardUpkeep(driver, jobs, schedule, board)
        self._look = TableLook(driver, schedule, board, follows)
        self._loops: list[Loop] = []
        self._threads: list[threading.Thread] = []
        flushing = self._add("shards", [*self._shards.chores(), self._look.chore()], is_active)
        if schedule.memtables:
            base = BaseUpkeep(driver, jobs, schedule, board).chores()
            # A flush makes compactions due, also the last one, which may end after the query.
            self._add("base", base, lambda: is_active() or flushing.is_alive())
        if jobs.collect is not None:
            self._add("garbage", GarbageUpkeep(jobs.collect, schedule, board).chores(), is_active)

    def _add(self, name: str, chores: Sequence[Chore], is_active: Callable[[], bool]) -> threading.Thread:
        loop = Loop(chores, self._driver, self._board, is_active)
        thread = parallel.thread(name, loop)
        self._loops.append(loop)
        self._threads.append(thread)
        return thread

    def start(self) -> Maintenance:
        self._board.see_ages()
        for thread in self._threads:
            thread.start()
        return self

    def stop(self, *, wait: bool = True) -> None:
        """Start no further job. With `wait`, wait for the running ones."""
        self._board.stop()
        for thread in self._threads if wait else ():
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join()

    @property
    def state(self) -> MaintenanceState:
        """The current state."""
        return self._board.state

    # -- for batches -----------------------------------------------------------------

    def wait_for_room(self) -> None:
        """Called before a batch: waits until the budget has room. Usually returns at once, and reads nothing.

        Raises Fenced if a successor has the stream or the table was re-created, Transient if the query was stopped
        while waiting.
        """
        self.check_table()
        if not self._schedule.memtables or (found := self._delay()) is None:
            return
        began, complained = clock.monotonic(), float("-inf")
        self._note_delay(found)
        try:
            while (found := self._delay()) is not None:
                if clock.monotonic() - complained >= COMPLAIN_SECONDS:
                    complained = clock.monotonic()
                    failing = [one.error for one in self.state.failures]
                    _log.warning(
                        "a batch waits for maintenance",
                        stream=self._driver.stream,
                        why=str(found),
                        seconds=round(complained - began),
                        failing=failing or None,
                    )
                self._wait_a_little()
        finally:
            self._note_delay(None)

    def batch_done(self) -> None:
        """Note a committed batch, and wake the threads."""
        self._board.see_ages()
        self._shards.batch_done()
        self._board.wake()

    def check_table(self) -> None:
        """Raises Fenced if a check found that the table was re-created (R23). Reads nothing."""
        self._look.check_table()

    def saw_other_columns(self) -> bool:
        """True if a check since the last call found columns that differ from those that the driver writes: the process
        that changed them died before it told the streams, or was native Lance (R22). Reads nothing.
        """
        return self._look.saw_other_columns()

    def checkpoint_now(self, take: Callable[[], TableCheckpoint]) -> TableCheckpoint:
        """Take a checkpoint in this thread, once no job works on the shards."""
        return self._shards.checkpoint_now(take)

    def wait_until_idle(self, timeout: float | None = None) -> bool:
        """Wait until nothing runs or is due, except jobs that pause after a failure. False after `timeout` seconds."""
        end = None if timeout is None else clock.monotonic() + timeout
        while not self._is_idle():
            if end is not None and clock.monotonic() >= end:
                return False
            with self._board.changed:
                self._board.changed.notify_all()
                self._board.changed.wait(0.05)
        return True

    def _is_idle(self) -> bool:
        if self._board.is_over() or not any(thread.is_alive() for thread in self._threads):
            return not self._board.is_busy
        return not self._board.is_busy and all(loop.next() is None for loop in self._loops)

    def _delay(self) -> Delay | None:
        return delay(self._driver.loads(), self._schedule.limits)

    def _wait_a_little(self) -> None:
        board = self._board
        with board.changed:
            if board.fenced is not None:
                raise board.fenced
            board.changed.notify_all()
            board.changed.wait(IDLE_SECONDS)
            stopping = board.stopping
        if stopping or not self._is_active():
            raise Transient(
                "The query was stopped while a batch waited for maintenance.",
                table=self._driver.home.uri,
                stream=self._driver.stream,
                advice="start the query again; the batch was not written",
            )

    def _note_delay(self, found: Delay | None) -> None:
        self._board.update(delayed=None if found is None else Delayed(found.reason, str(found), timestamp()))
        self._board.report()
