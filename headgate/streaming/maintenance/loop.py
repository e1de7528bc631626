"""A thread of maintenance: its chores one after the other, each tried again where it failed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog
from structlog.contextvars import bind_contextvars

from headgate import clock
from headgate.checkpoints.jobs.state import JobFailure, timestamp
from headgate.checkpoints.stream.driver import StreamDriver
from headgate.errors import Fenced, HeadgateError
from headgate.streaming.maintenance.board import Board
from headgate.streaming.maintenance.cores import CalledOff
from headgate.streaming.maintenance.rules import pause_after

IDLE_SECONDS = 1.0
"""How soon an age that has passed, the end of the query or a stop is noticed."""

_log = structlog.get_logger("headgate.streaming")


@dataclass
class Chore:
    """One kind of job of a thread."""

    name: str
    is_due: Callable[[], bool]
    run: Callable[[], None]
    quiet: bool = False
    """Nobody wants to know when it runs."""
    failures: int = 0
    """In a row."""
    since: str = ""
    not_before: float = float("-inf")


@dataclass(frozen=True)
class Loop:
    """What one thread does. A query that ended leaves nothing due."""

    chores: Sequence[Chore]
    """Of two that are due the first comes first."""
    driver: StreamDriver
    board: Board
    is_active: Callable[[], bool]
    """True if the query runs."""

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
        """What is due, unless it pauses after a failure."""
        return next((one for one in self.chores if one.not_before <= clock.monotonic() and one.is_due()), None)

    def _run(self, chore: Chore) -> None:
        self.board.began(chore.name)
        failed = bool(chore.failures)
        if not chore.quiet:
            self.board.report()
        try:
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
        # What Spark or Lance says may quote options, hence credentials.
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
