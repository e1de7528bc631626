"""Driver processes as tests hold them: started, listened to, killed with everything they started."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

PATIENCE = 240.0
"""Seconds until a test that waits for a process gives up."""


class Child:
    """A process with a Spark of its own, which tells what it does in JSON lines. Its JVM and its workers are found by
    what they are.
    """

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> None:
        self.log = log
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
                env=None if environment is None else {**os.environ, **environment},
            )
        self._lines: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._seen: list[dict[str, Any]] = []
        self._family: set[psutil.Process] = set()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                self._lines.put(json.loads(line))
        self._lines.put(None)

    def wait_for(self, fact: str) -> Any:
        """The next line that tells this. Fails where the process ends before it."""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"the driver never told {fact!r}, only {self._seen}; see {self.log}") from None
            if line is None:
                raise AssertionError(f"the driver ended before it told {fact!r}: {self._seen}; {self.tail()}")
            self._seen.append(line)
            if fact in line:
                return line[fact]

    def finish(self) -> int:
        """Until it ends by itself; its exit code."""
        self._note_family()
        code = self.process.wait(PATIENCE)
        self.end_family()
        return code

    def kill(self) -> None:
        """kill -9 of the driver's own process; what it started notices, or not."""
        self._note_family()
        self.process.kill()
        self.process.wait()

    def end_family(self) -> None:
        """Everything that the driver started is gone afterwards."""
        self._note_family()
        for one in self._family:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        with suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()

    def jvm(self) -> psutil.Process:
        """The JVM of the driver."""
        return next(one for one in self._children() if _name(one) == "java")

    def workers(self) -> list[psutil.Process]:
        """The Python processes that run its tasks now."""
        found = [one for one in self._children() if "pyspark.daemon" in " ".join(_command(one))]
        return [one for one in found if _parent(one) in {other.pid for other in found}]

    def pause(self) -> None:
        """SIGSTOP of the driver and its JVM; nothing of them runs when this returns."""
        for pid in (self.process.pid, self.jvm().pid):
            os.kill(pid, signal.SIGSTOP)
            end = time.monotonic() + PATIENCE
            while not _stands_still(pid):
                assert time.monotonic() < end, f"process {pid} goes on"
                time.sleep(0.01)

    def wake(self) -> None:
        """What was paused goes on."""
        for pid in (self.jvm().pid, self.process.pid):
            os.kill(pid, signal.SIGCONT)

    def tail(self) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-3000:]

    def _children(self) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            return list(psutil.Process(self.process.pid).children(recursive=True))
        return []

    def _note_family(self) -> None:
        self._family |= set(self._children())


def _stands_still(pid: int) -> bool:
    """Whether every thread is stopped: the signal reaches them one by one."""
    stats = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.Error:
        return ""


def _parent(process: psutil.Process) -> int | None:
    try:
        return process.ppid()
    except psutil.Error:
        return None


def _command(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


class Driver(Child):
    """A driver process: `driver.py`, or another module, told what to do."""

    def __init__(self, told: dict[str, Any], module: str = "tests.support.driver", python: Path | None = None) -> None:
        """`python` of an environment with another Spark."""
        super().__init__([str(python or sys.executable), "-m", module, json.dumps(told)], Path(told["log"]))


@contextmanager
def driver(told: dict[str, Any], *, python: Path | None = None, **more: Any) -> Iterator[Driver]:
    """A driver process that is gone, with all it started, when the block ends."""
    one = Driver({**told, **more}, python=python)
    try:
        yield one
    finally:
        one.end_family()
