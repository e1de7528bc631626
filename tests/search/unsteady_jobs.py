"""Tasks that misbehave once, for tests of indexing on Spark. Workers import it; flag files say what happened."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

from headgate.errors import DataLoss
from headgate.search.finalize.finalize import Report, no_report
from headgate.search.finalize.segment import Segment
from headgate.shards.wal.appender import Pause, no_pause


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
class LostJob:
    """Finds that something is lost, as no other attempt would find otherwise; counts the attempts."""

    fragments: tuple[int, ...]
    folder: Path

    def run(self, *, report: Report = no_report, pause: Pause = no_pause) -> Segment:
        (self.folder / f"attempt-{os.getpid()}-{os.urandom(4).hex()}").touch()
        raise DataLoss("staging/part_0_docs.lance is missing.", index="some id")
