"""Servers that tests start as processes of this machine: versitygw and MinIO (S3), toxiproxy (faults of the network),
Prometheus (who scrapes); and docker-compose, for the tests that have a Docker daemon.

A server is the one on PATH, else the one that was built into the cache directory, else (S3) a container of a local
image. `python -m tests.support.servers NAME …` builds what is on neither with `go install`; `make test` and
`make test-deep` call it. A build that cannot be is one line that says why, and never a failure: the tests go on without
that server. Nothing is built while tests run.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from headgate.connectors.jars.lists import cache_directory
from headgate.dev.ports import free_port

FETCH_SECONDS = 90.0
"""Until a module proxy that does not answer is given up."""
BUILD_SECONDS = float(os.environ.get("HEADGATE_BUILD_SECONDS", 900))
"""Of one server. What Go compiled until then it keeps, so that a second run goes on from there."""
START_SECONDS = 120.0
"""A broker on a loaded machine has been seen to take 20."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a server comes from. The version is of the build; one on PATH is taken as it is."""

    name: str
    package: str
    version: str
    on_path: str
    image: str | None = None
    inside: bool = False
    """Built inside its own module: its go.mod replaces others', which `go install` refuses."""

    @property
    def module(self) -> str:
        """What the module proxy is asked for."""
        return f"{self.package.partition('/cmd')[0]}@{self.version}"

    @property
    def built(self) -> Path:
        """Where the build is, once there is one."""
        return cache_directory() / "servers" / f"{self.name}-{self.version}" / self.name

    @property
    def binary(self) -> Path | None:
        """What to run: from PATH, else built; None where there is neither."""
        if found := shutil.which(self.on_path):
            return Path(found)
        return self.built if self.built.exists() else None


SOURCES = {
    one.name: one
    for one in (
        Source(
            "versitygw",
            "github.com/versity/versitygw/cmd/versitygw",
            "v1.8.0",
            on_path="versitygw",
            image="versity/versitygw:v1.8.0",
        ),
        Source(
            "minio",
            "github.com/minio/minio",
            "v0.0.0-20260212201848-7aac2a2c5b7c",
            on_path="minio",
            image="minio/minio:latest",
        ),
        Source("toxiproxy", "github.com/Shopify/toxiproxy/v2/cmd/server", "v2.5.0", on_path="toxiproxy-server"),
        # As a Go module, 3.5.0 is 0.305.0.
        Source(
            "prometheus",
            "github.com/prometheus/prometheus/cmd/prometheus",
            "v0.305.0",
            on_path="prometheus",
            inside=True,
        ),
        Source("compose", "github.com/docker/compose/v2/cmd", "v2.39.4", on_path="docker-compose", inside=True),
    )
}


# -- building ------------------------------------------------------------------


def build(source: Source) -> str | None:
    """Make the server's binary, unless there is one. None, or one line that says why there is none.

    1. no Go: say so. 2. ask for the module, within FETCH_SECONDS. 3. compile it beside its place, within BUILD_SECONDS,
    behind everybody else's work. 4. it takes its name.
    """
    if source.binary is not None:
        return None
    go = shutil.which("go")
    if go is None:
        return "Go is not on PATH"
    source.built.parent.mkdir(parents=True, exist_ok=True)
    with (source.built.parent / "lock").open("w") as lock:
        # Two checkouts may share one cache; the second waits, and then finds the work done.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if source.binary is not None:
            return None
        staging = source.built.parent / "staging"
        print(f"Building {source.name} {source.version} for the tests, some minutes the first time", flush=True)
        settings = {"GOBIN": str(staging), "GOTOOLCHAIN": os.environ.get("GOTOOLCHAIN", "local")}
        failed = _run([go, "list", "-m", source.module], FETCH_SECONDS, settings, "the module proxy")
        if source.inside:
            failed = failed or _build_inside(go, source, staging, settings)
        else:
            package = f"{source.package}@{source.version}"
            failed = failed or _run([go, "install", package], BUILD_SECONDS, settings, "go install")
        if failed:
            return failed
        (made,) = staging.iterdir()
        made.rename(source.built)
        staging.rmdir()
    return None


def _build_inside(go: str, source: Source, staging: Path, settings: dict[str, str]) -> str | None:
    staging.mkdir(parents=True, exist_ok=True)
    fetched = subprocess.run(
        [go, "mod", "download", "-json", source.module], capture_output=True, text=True, env={**os.environ, **settings}
    )
    if fetched.returncode:
        return "go mod download failed"
    folder, package = json.loads(fetched.stdout)["Dir"], source.package.removeprefix(source.module.partition("@")[0])
    command = [go, "-C", folder, "build", "-o", str(staging / source.name), f".{package}"]
    return _run(command, BUILD_SECONDS, settings, "go build")


def _run(command: list[str], seconds: float, settings: dict[str, str], what: str) -> str | None:
    """None where the command ended well in time, else a line."""
    process = subprocess.Popen(
        ["nice", "-n", "10", *command] if shutil.which("nice") else command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **settings},
        start_new_session=True,
    )
    try:
        _, told = process.communicate(timeout=seconds)
    except BaseException as error:
        # Compilers are children of `go`: its whole session ends.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        return f"{what} took more than {seconds:.0f} s"
    lines = [line for line in told.splitlines() if line.strip() and not line.startswith("go: downloading")]
    return f"{what} failed: {lines[-1].strip()[:160] if lines else 'it said nothing'}" if process.returncode else None


# -- running -------------------------------------------------------------------


class LocalServer:
    """A process that ends with this one, at the latest. `kill` is SIGKILL; `start` again uses the same port."""

    # The shell holds the server and waits on standard input, which ends when this process closes it or dies.
    _HELD = '"$@" </dev/null & read -r _; kill -9 $!; wait $!'

    def __init__(self, command: Sequence[str], log: Path, port: int, environment: dict[str, str] | None = None) -> None:
        self.command, self.log, self.port = list(command), log, port
        self.environment = environment or {}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        """Where it answers HTTP."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def holder(self) -> int | None:
        """The process whose one child it is, while it runs."""
        return None if self._process is None else self._process.pid

    def start(self) -> LocalServer:
        """Start it, and return when it answers."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", self._HELD, "sh", *self.command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.environment},
            )
        end = time.monotonic() + START_SECONDS
        while not self.ready():
            if time.monotonic() > end:
                self.kill()
                told = self.log.read_text(errors="replace")[-2000:]
                raise AssertionError(f"{self.command[0]} did not start within {START_SECONDS:.0f} s:\n{told}")
            time.sleep(0.05)
        return self

    def ready(self) -> bool:
        """Whether it answers."""
        return answers(self.endpoint)

    def kill(self) -> None:
        """SIGKILL. One that is not running is fine."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait()
            self._process = None

    def __enter__(self) -> LocalServer:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.kill()


def answers(endpoint: str) -> bool:
    """Whether HTTP is spoken there; any status will do."""
    try:
        urllib.request.urlopen(endpoint, timeout=5).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


def s3_server(name: str, directory: Path, secrets: tuple[str, str]) -> LocalServer:
    """A server that keeps its buckets in the directory, not started yet."""
    binary = SOURCES[name].binary
    assert binary is not None
    port, data = free_port(), directory / "data"
    data.mkdir(parents=True, exist_ok=True)
    key, secret = secrets
    if name == "versitygw":
        command = [str(binary), "--port", f"127.0.0.1:{port}", "--quiet", "posix", str(data)]
        environment = {"ROOT_ACCESS_KEY": key, "ROOT_SECRET_KEY": secret}
    else:
        command = [str(binary), "server", str(data), "--address", f"127.0.0.1:{port}", "--quiet"]
        environment = {"MINIO_ROOT_USER": key, "MINIO_ROOT_PASSWORD": secret}
        environment |= {"MINIO_BROWSER": "off", "MINIO_UPDATE": "off"}
    return LocalServer(command, directory / f"{name}.log", port, environment)


@contextmanager
def s3_container(name: str, secrets: tuple[str, str], image: str | None = None) -> Iterator[str]:
    """A server in a container of the local image: its endpoint."""
    from testcontainers.core.container import DockerContainer

    key, secret = secrets
    image = image or SOURCES[name].image
    assert image is not None
    if name == "versitygw":
        one = DockerContainer(image).with_env("ROOT_ACCESS_KEY", key).with_env("ROOT_SECRET_KEY", secret)
        port, command = 7070, "--port :7070 posix /tmp"
    else:
        one = DockerContainer(image).with_env("MINIO_ROOT_USER", key).with_env("MINIO_ROOT_PASSWORD", secret)
        port, command = 9000, "server /data"
    with one.with_exposed_ports(port).with_command(command) as running:
        endpoint = f"http://{running.get_container_host_ip()}:{running.get_exposed_port(port)}"
        end = time.monotonic() + START_SECONDS
        while not answers(endpoint):
            assert time.monotonic() < end, f"the container of {image} never answered"
            time.sleep(0.1)
        yield endpoint


def main(names: Sequence[str]) -> None:
    for name in names:
        if reason := build(SOURCES[name]):
            print(f"{name} is not there for the tests: {reason}.", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
