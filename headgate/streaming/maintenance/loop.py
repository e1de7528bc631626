"""A thread of maintenance: runs its chores one after another, and retries those that fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import structlog
from structlog.contextvars import bind_contextvars

from headgate import clock
from headgate.checkpoints.jobs.state import JobFailure, timestamp
from headgate.checkpoints.stream.driver import StreamDriver
from headgate.errors import Fenced, HeadgateError
from headgate.streaming.maintenance.board import Board
from headgate.streaming.maintenance.cores import CalledOff
from headgate.streaming.maintenance.rules import pause_after
from headgate.streaming.spark.jobs import following

IDLE_SECONDS = 1.0
"""How often a thread checks for due jobs, the end of the query and a stop."""

_log = structlog.get_logger("headgate.streaming")


@dataclass
class Chore:
    """One kind of job of a thread."""

    name: str
    is_due: Callable[[], bool]
    run: Callable[[], None]
    quiet: bool = False
    """True if its runs are not reported."""
    failures: int = 0
    """Consecutive failures."""
    since: str = ""
    not_before: float = float("-inf")


@dataclass(frozen=True)
class Loop:
    """The work of one thread. It ends when nothing is due and `is_active` says that nothing more comes."""

    chores: Sequence[Chore]
    """By priority: if two are due, the earlier one runs first."""
    driver: StreamDriver
    board: Board
    is_active: Callable[[], bool]

    def __call__(self) -> None:
        opened = self.driver.head.opened
        bind_contextvars(stream=self.driver.stream, query=None if opened is None else opened.query_id)
        board = self.board
        while not board.is_over():
            active = self.is_active()
            if (chore := self.next()) is not None:
                self._run(chore)
            elif not active:
                return
            else:
                with board.changed:
                    if not board.stopping:
                        board.changed.wait(IDLE_SECONDS)

    def next(self) -> Chore | None:
        """The first chore that is due and not pausing after a failure."""
        return next((one for one in self.chores if one.not_before <= clock.monotonic() and one.is_due()), None)

    def _run(self, chore: Chore) -> None:
        self.board.began(chore.name)
        failed = bool(chore.failures)
        if not chore.quiet:
            self.board.report()
        try:
            with following(partial(self.board.moved, chore.name)):
                chore.run()
        except CalledOff:
            _log.debug("the stream stopped: due maintenance is left for the next run", stream=self.driver.stream)
        except Fenced as error:
            _log.info("maintenance ends: another driver runs the stream", stream=self.driver.stream, error=error.what)
            self.board.fence(error)
        except Exception as error:
            self._note_failure(chore, error)
        else:
            if chore.failures:
                _log.info("a maintenance job works again", stream=self.driver.stream, job=chore.name)
            chore.failures, chore.not_before = 0, float("-inf")
            self.board.failed(chore.name, None)
        finally:
            self.board.ended(chore.name)
            if not chore.quiet or failed or chore.failures:
                self.board.report()

    def _note_failure(self, chore: Chore, error: Exception) -> None:
        chore.failures += 1
        pause = pause_after(chore.failures)
        chore.not_before = clock.monotonic() + pause
        chore.since = chore.since if chore.failures > 1 else timestamp()
        # Error texts of Spark or Lance may quote options, and so credentials.
        why = str(error) if isinstance(error, HeadgateError) else type(error).__name__
        self.board.failed(chore.name, JobFailure(chore.name, chore.failures, why, chore.since, f"in {pause:.0f} s"))
        _log.warning(
            "a maintenance job failed; it is retried",
            stream=self.driver.stream,
            job=chore.name,
            times=chore.failures,
            seconds=pause,
            error=why,
        )
