"""Docker for tests: the daemon that answers, else one started here, and images built of what this machine has.

A daemon of our own needs root, `dockerd` and `debootstrap` (Debian: docker.io, debootstrap); it keeps all that it has
below one folder and ends with the test. No image is pulled: the base is Debian, made by debootstrap and kept in the
cache directory; Kafka's jars and MinIO's binary are the ones that other tests run as processes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from headgate.connectors.jars.lists import cache_directory, kafka_classpath
from tests.support.servers import SOURCES

if TYPE_CHECKING:
    from docker import DockerClient

START_SECONDS = 60.0
PACKAGES = ("openjdk-17-jre-headless", "procps", "ca-certificates", "python3", "python3-pip")
BASE, KAFKA, MINIO = "headgate-test/debian:bookworm", "headgate-test/kafka:8.0.0", "headgate-test/minio:local"
"""Names of what is built. testcontainers reads Kafka's tag as a version of Confluent's image."""

_QUIET = """\
Configuration:
  Appenders:
    Console: {name: STDOUT, PatternLayout: {pattern: "%d %p %c{1}: %m%n"}}
  Loggers:
    Root: {level: INFO, AppenderRef: [{ref: STDOUT}]}
"""
_JAVA = "java -Xmx512m -Dlog4j2.configurationFile=/etc/kafka/default/log4j2.yaml -cp '/opt/kafka/libs/*'"
_KAFKA = {
    # What testcontainers calls of Confluent's image, by Kafka's own classes.
    "confluent/bash-config": "true\n",
    "confluent/configure": f"""#!/bin/sh
set -e
mkdir -p /etc/kafka/made /etc/kafka/mounted
{_JAVA} kafka.docker.KafkaDockerWrapper setup -D /etc/kafka/default -M /etc/kafka/mounted -F /etc/kafka/made
cp /etc/kafka/made/server.properties /etc/kafka/kafka.properties
""",
    "confluent/launch": f"#!/bin/sh\nexec {_JAVA} kafka.Kafka /etc/kafka/kafka.properties\n",
    "bin/kafka-storage": f'#!/bin/sh\nexec {_JAVA} kafka.tools.StorageTool "$@"\n',
    "default/log4j2.yaml": _QUIET,
    "default/tools-log4j2.yaml": _QUIET,
    "default/server.properties": "",
    "Dockerfile": f"""FROM {BASE}
COPY libs /opt/kafka/libs
COPY default /etc/kafka/default
COPY confluent /etc/confluent/docker
COPY bin /usr/local/bin
""",
}


def why_no_daemon() -> str | None:
    """None where a daemon answers or can be started, else the reason."""
    if _answers(None):
        return None
    if os.geteuid():
        return "no Docker daemon answers, and only root can start one"
    missing = [name for name in ("dockerd", "debootstrap") if shutil.which(name) is None]
    return f"no Docker daemon answers, and {' and '.join(missing)} to start one with is not there" if missing else None


@contextmanager
def daemon(folder: Path) -> Iterator[str]:
    """The address of a daemon: of the one that answers, else of one of our own, which ends here."""
    if _answers(None):
        yield os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
        return
    address = f"unix://{folder / 'docker.sock'}"
    command = ["dockerd", "--data-root", str(folder / "data"), "--exec-root", str(folder / "exec")]
    command += ["--pidfile", str(folder / "pid"), "--host", address]
    with (folder / "dockerd.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        end = time.monotonic() + START_SECONDS
        while not _answers(address):
            told = (folder / "dockerd.log").read_text(errors="replace")[-2000:]
            assert process.poll() is None, f"dockerd ended:\n{told}"
            assert time.monotonic() < end, f"dockerd did not answer within {START_SECONDS:.0f} s:\n{told}"
            time.sleep(0.2)
        yield address
    finally:
        process.terminate()
        process.wait(60)
        # What it leaves mounted, so that the folder can go.
        subprocess.run(["umount", str(folder / "exec" / "netns" / "default")], capture_output=True)


def _answers(address: str | None) -> bool:
    import docker
    from docker.errors import DockerException

    try:
        client = docker.from_env(timeout=10) if address is None else docker.DockerClient(address, timeout=10)
        with closing(client):
            return bool(client.ping())
    except DockerException:
        return False


# -- images ----------------------------------------------------------------------------


def build_base(client: DockerClient) -> None:
    """Debian with Java and Python, from the cache directory; made there the first time, in some minutes."""
    tar = cache_directory() / "servers" / "debian-bookworm.tar"
    if not tar.exists():
        tar.parent.mkdir(parents=True, exist_ok=True)
        root, made = tar.with_suffix(".root"), tar.with_suffix(".made")
        shutil.rmtree(root, ignore_errors=True)
        command = ["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", "bookworm", str(root)]
        _run(command)
        # As in the images of Python: its names, and pip may install for everybody.
        (root / "usr/local/bin/python").symlink_to("/usr/bin/python3")
        for mark in root.glob("usr/lib/python3*/EXTERNALLY-MANAGED"):
            mark.unlink()
        # Whom this machine trusts, so that a build reaches what the machine reaches.
        for trust in ("etc/ssl/certs/ca-certificates.crt", "etc/ssl/certs/java/cacerts"):
            if (own := Path("/") / trust).exists():
                shutil.copy(own, root / trust)
        _run(["tar", "--create", "--file", str(made), "--directory", str(root), "."])
        made.rename(tar)
        shutil.rmtree(root)
    name, _, tag = BASE.partition(":")
    client.api.import_image_from_file(str(tar), repository=name, tag=tag)


def build_kafka(client: DockerClient, folder: Path) -> None:
    """A broker in the form that testcontainers expects."""
    for name, text in _KAFKA.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    shutil.copytree(Path(kafka_classpath()).parent, folder / "libs")
    client.images.build(path=str(folder), tag=KAFKA, rm=True)


def build_minio(client: DockerClient, folder: Path) -> None:
    """MinIO's binary, called as its own image calls it."""
    binary = SOURCES["minio"].binary
    assert binary is not None
    text = f'FROM {BASE}\nCOPY minio /usr/bin/minio\nENTRYPOINT ["minio"]\n'
    build_image(client, folder, MINIO, text, binary)


def build_image(client: DockerClient, folder: Path, tag: str, dockerfile: str, *files: Path) -> None:
    """An image of a Dockerfile and of programs, which it finds by their names."""
    folder.mkdir(parents=True)
    (folder / "Dockerfile").write_text(dockerfile)
    for file in files:
        shutil.copy(file, folder)
    client.images.build(path=str(folder), tag=tag, rm=True)


def _run(command: list[str]) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
