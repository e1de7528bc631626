"""Tasks that misbehave once, for tests of indexing on Spark. Workers import it; flag files say what happened."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

from headgate.errors import DataLoss
from headgate.search.build.jobs import Job, Runner
from headgate.search.finalize.finalize import Report, no_report
from headgate.search.finalize.segment import Segment
from headgate.steps import watching


@dataclass(frozen=True)
class Unsteady:
    """The first attempt that comes to `step` does what `how` says:

    raise; kill (this worker); fork (fail, while a child goes on with the attempt to its end).
    """

    step: str
    how: str
    folder: Path

    def __call__(self, step: str) -> None:
        if step == "cleaned" and os.getpid() in self._children():
            (self.folder / "outlived").touch()
            os._exit(0)
        if step != self.step or not self._is_first():
            return
        if self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.how == "fork" and os.fork() == 0:
            (self.folder / f"child-{os.getpid()}").touch()
            return
        raise RuntimeError("a task that fails once")

    def _children(self) -> set[int]:
        return {int(path.name.removeprefix("child-")) for path in self.folder.glob("child-*")}

    def _is_first(self) -> bool:
        try:
            (self.folder / "first").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


@dataclass(frozen=True)
class WatchedJob:
    """A job whose steps are watched where it runs: in a task."""

    job: Job
    watcher: Unsteady

    @property
    def fragments(self) -> tuple[int, ...]:
        return self.job.fragments

    def run(self, *, report: Report = no_report) -> Segment:
        with watching(self.watcher):
            return self.job.run(report=report)


def watched(runner: Runner, watcher: Unsteady) -> Runner:
    """The runner, with every job watched."""
    return lambda jobs, report: runner([WatchedJob(job, watcher) for job in jobs], report)


@dataclass(frozen=True)
class LostJob:
    """Finds that something is lost, as no other attempt would find otherwise; counts the attempts."""

    fragments: tuple[int, ...]
    folder: Path

    def run(self, *, report: Report = no_report) -> Segment:
        (self.folder / f"attempt-{os.getpid()}-{os.urandom(4).hex()}").touch()
        raise DataLoss("staging/part_0_docs.lance is missing.", index="some id")
