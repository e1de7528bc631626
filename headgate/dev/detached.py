"""Local brokers that outlive the command that started them. A pid file in its directory identifies each."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from headgate import clock
from headgate.dev.broker import START_SECONDS, STOP_SECONDS, LocalBroker
from headgate.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Detached:
    """A broker's pid and port, as in its pid file."""

    pid: int
    port: int

    @property
    def servers(self) -> str:
        """The bootstrap address."""
        return f"127.0.0.1:{self.port}"


def start_detached(directory: Path, port: int | None = None, seconds: float = START_SECONDS) -> tuple[Detached, bool]:
    """The broker of the directory, and True if this call started it. Writes the pid file.

    Raises BrokerFailed, JarsMissing; InvalidInput if it already runs on another port.
    """
    with _alone(directory):
        running = find_detached(directory)
        if running is not None and port not in (None, running.port):
            raise InvalidInput(
                f"A broker already runs in {directory}, on port {running.port}.",
                pid=running.pid,
                advice="use that one, stop it first, or name another directory",
            )
        if running is not None:
            return running, False
        broker = LocalBroker(directory, port=port)
        started = Detached(broker.start_unguarded(seconds), broker.port)
        _pid_file(directory).write_text(json.dumps(asdict(started)) + "\n")
        return started, True


def find_detached(directory: Path) -> Detached | None:
    """The broker of the directory if it is running, else None."""
    try:
        found = Detached(**json.loads(_pid_file(directory).read_text()))
    except (OSError, ValueError, TypeError):
        return None
    # Another process may have the pid by now.
    return found if str(directory.absolute() / "server.properties") in _command_line(found.pid) else None


def stop_detached(directory: Path, seconds: float = STOP_SECONDS) -> Detached | None:
    """SIGTERM, then SIGKILL after `seconds`. Returns the stopped broker, None if none was running."""
    running = find_detached(directory)
    if running is None:
        return None
    os.kill(running.pid, signal.SIGTERM)
    kill_at = clock.monotonic() + seconds
    while find_detached(directory) is not None:
        if clock.monotonic() > kill_at:
            os.kill(running.pid, signal.SIGKILL)
        clock.sleep(0.05)
    _pid_file(directory).unlink(missing_ok=True)
    return running


def _pid_file(directory: Path) -> Path:
    return directory / "broker.json"


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Lock the directory: of two commands that start a broker at the same time, the second finds the first's."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "start.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _command_line(pid: int) -> str:
    """The process's arguments; empty if it does not exist or is a zombie."""
    if Path("/proc/self/cmdline").exists():
        try:
            return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            return ""
    return subprocess.run(["ps", "-ww", "-o", "args=", "-p", str(pid)], capture_output=True, text=True).stdout
