"""Servers for the tests: built once, bounded in time, and a build that cannot be is one line; which one is taken, and
that the run says so.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from headgate.connectors.objects import open_store
from headgate.errors import AlreadyExists
from tests.support import services
from tests.support.servers import SOURCES, s3_container
from tests.support.services import S3_SECRETS, S3_SERVERS, create_bucket, s3_options_for, why_no_container

MAKES = """
case "$1" in list) exit 0;; esac
mkdir -p "$GOBIN"; printf "#!/bin/sh\\n" > "$GOBIN/versitygw"; chmod +x "$GOBIN/versitygw"
"""


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A PATH with nothing but a shell's commands."""
    (tmp_path / "bin").mkdir()
    for name in ("sh", "mkdir", "chmod", "printf", "sleep", "nice"):
        found = next(Path(folder) / name for folder in ("/bin", "/usr/bin") if (Path(folder) / name).exists())
        (tmp_path / "bin" / name).symlink_to(found)
    return tmp_path


def go(machine: Path, script: str) -> None:
    """A `go` that does as it is told."""
    (machine / "bin" / "go").write_text(f"#!/bin/sh\n{script}\n")
    (machine / "bin" / "go").chmod(0o755)


def build(machine: Path, **environment: str) -> str:
    """What the build of versitygw prints; it never fails."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.servers", "versitygw"],
        env={**os.environ, "PATH": str(machine / "bin"), "HEADGATE_CACHE": str(machine / "cache"), **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_a_server_is_built_once(machine: Path) -> None:
    go(machine, MAKES)
    assert build(machine).startswith("Building versitygw v1.8.0")
    assert (machine / "cache" / "servers" / "versitygw-v1.8.0" / "versitygw").exists()
    assert build(machine) == ""


def test_a_machine_without_go_is_told_in_one_line(machine: Path) -> None:
    assert build(machine) == "versitygw is not there for the tests: Go is not on PATH.\n"


@pytest.mark.parametrize("step", ["list", "install"])
def test_a_proxy_or_compiler_that_fails_is_told_in_one_line(machine: Path, step: str) -> None:
    go(machine, f'case "$1" in {step}) echo "go: downloading x" >&2; echo "go: no such host" >&2; exit 1;; esac')
    told = build(machine).splitlines()
    what = {"list": "the module proxy", "install": "go install"}[step]
    assert told[1:] == [f"versitygw is not there for the tests: {what} failed: go: no such host."]
    assert not (machine / "cache" / "servers" / "versitygw-v1.8.0" / "versitygw").exists()


def test_a_build_that_takes_too_long_is_ended_with_its_compilers(machine: Path) -> None:
    go(machine, 'case "$1" in list) exit 0;; esac\nsleep 60 & echo $! > "$HEADGATE_CACHE/pid"; wait')
    start = time.monotonic()
    assert "took more than 5 s" in build(machine, HEADGATE_BUILD_SECONDS="5")
    assert time.monotonic() - start < 50
    stat = Path("/proc") / (machine / "cache" / "pid").read_text().strip() / "stat"
    end = time.monotonic() + 30
    with suppress(OSError):
        while " Z " not in stat.read_text():
            assert time.monotonic() < end, "a compiler goes on"
            time.sleep(0.05)


def test_a_server_on_path_is_taken(machine: Path) -> None:
    (machine / "bin" / "versitygw").symlink_to("/bin/true")
    assert build(machine) == ""


def test_s3_is_the_server_on_path_else_the_built_one_else_a_container_else_moto_alone(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(machine / "bin"))
    monkeypatch.setenv("HEADGATE_CACHE", str(machine / "cache"))
    source, place = SOURCES["versitygw"], services.s3_place.__wrapped__
    monkeypatch.setattr(services, "s3_place", place)
    monkeypatch.setattr(services, "why_no_container", lambda image="": "there is no Docker daemon")
    assert place("versitygw") == (None, "no versitygw")
    told = services.pytest_report_header()[1]
    assert told.startswith("s3: moto only (")
    assert told.endswith("there is no Go to build it)")

    monkeypatch.setattr(services, "why_no_container", lambda image="": None if image == source.image else "no image")
    assert place("versitygw") == ("container", f"versitygw (a container of {source.image})")
    source.built.parent.mkdir(parents=True)
    source.built.touch()
    assert (source.binary, place("versitygw")) == (source.built, ("process", f"versitygw {source.version}"))
    (machine / "bin" / "versitygw").symlink_to("/bin/true")
    assert (source.binary, place("versitygw")) == (machine / "bin" / "versitygw", ("process", "versitygw (PATH)"))
    assert services.pytest_report_header()[1] == "s3: moto, versitygw (PATH)"


@pytest.mark.parametrize("there", [False, True], ids=["moto only", "versitygw"])
def test_a_run_on_moto_alone_says_so_at_its_beginning_and_at_its_end(machine: Path, there: bool) -> None:
    if there:
        (machine / "bin" / "versitygw").symlink_to("/bin/true")
    (machine / "test_one.py").write_text("import pytest\n\n@pytest.mark.s3\ndef test_one():\n    pass\n")
    (machine / "pytest.ini").write_text("[pytest]\nmarkers =\n    s3: as here\n")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "tests.support.services",
            "-p",
            "no:cacheprovider",
            str(machine / "test_one.py"),
        ],
        env={
            **os.environ,
            "PATH": str(machine / "bin"),
            "HEADGATE_CACHE": str(machine / "cache"),
            "DOCKER_HOST": "tcp://127.0.0.1:1",
        },
        cwd=machine,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert ("s3: moto only (" in done.stdout) is not there
    assert ("S3 tests ran on moto only (" in done.stdout) is not there
    assert ("s3: moto, versitygw (PATH)" in done.stdout) is there


@pytest.mark.docker
@pytest.mark.s3
@pytest.mark.parametrize("name", S3_SERVERS)
def test_where_there_is_docker_a_container_serves_s3(name: str) -> None:
    image = SOURCES[name].image
    assert image is not None
    if reason := why_no_container(image):
        pytest.skip(reason)
    with s3_container(name, S3_SECRETS) as endpoint:
        create_bucket(endpoint, "bucket")
        store = open_store("s3://bucket/t", s3_options_for(endpoint))
        store.put_if_absent("one", b"first")
        with pytest.raises(AlreadyExists):
            store.put_if_absent("one", b"second")
        assert bytes(store.get("one")) == b"first"
