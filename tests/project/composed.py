"""docker-compose.yml as it is written, and its services as processes of this machine.

A process gets the service's own command line and environment. Only what a machine without containers must change is
changed: a host name becomes 127.0.0.1, a port a free one, a volume a folder.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from headgate.connectors.jars.lists import kafka_classpath
from headgate.connectors.kafka.topics import admin_client
from headgate.dev.ports import free_port
from tests.support.servers import SOURCES, LocalServer

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "docker-compose.yml"

HEADGATE = (sys.executable, "-c", "from headgate.cli import main; main(prog_name='headgate')")
"""The command `headgate` of this checkout."""

_VARIABLE = re.compile(r"\$\{(\w+):-([^}]*)\}")
_ADDRESS = re.compile(r"(?P<host>[a-z][a-z0-9.-]*|0\.0\.0\.0)?:(?P<port>[0-9]{4,5})\b")
_DEFAULT_PORTS = {"prometheus": 9090, "grafana": 3000}
"""Where those listen that no option tells."""


def compose() -> list[str] | None:
    """The command docker compose: Docker's own plugin, else the one on PATH or built; None where there is neither."""
    if shutil.which("docker") and subprocess.run(["docker", "compose", "version"], capture_output=True).returncode == 0:
        return ["docker", "compose"]
    return None if (binary := SOURCES["compose"].binary) is None else [str(binary)]


def services() -> dict[str, Any]:
    """Every service, with the defaults of its variables."""
    found: dict[str, Any] = document()["services"]
    return found


def document() -> dict[str, Any]:
    """The whole file."""
    text = _VARIABLE.sub(lambda one: one[2], FILE.read_text())
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def listens(name: str) -> set[int]:
    """The ports on which a service listens, as its own settings say."""
    service = services()[name]
    told = " ".join(service.get("command", []))
    ports = [int(port) for port in re.findall(r"(?:address :|--metrics-port=)(\d+)", told)]
    ports += [int(port) for port in re.findall(r":(\d+)", service.get("environment", {}).get("KAFKA_LISTENERS", ""))]
    return {*ports, *([_DEFAULT_PORTS[name]] if name in _DEFAULT_PORTS else [])}


def addresses(text: str) -> set[tuple[str, int]]:
    """Every service and port that a text names."""
    hosts = set(services())
    return {(one["host"], int(one["port"])) for one in _ADDRESS.finditer(text) if one["host"] in hosts}


@dataclass
class Machine:
    """The services on this machine, below one folder."""

    folder: Path
    headgate: Sequence[str] = HEADGATE
    ports: dict[int, int] = field(default_factory=dict)
    """Of a service's port, the one that it has here."""
    extra: dict[str, str] = field(default_factory=dict)
    """What processes of the headgate image get as well."""

    def port(self, port: int) -> int:
        """A service's port here."""
        return self.ports.setdefault(port, free_port())

    def here(self, text: str, service: str | None = None) -> str:
        """A text of the file, for this machine."""
        known = {port for name in services() for port in listens(name)}

        def local(found: re.Match[str]) -> str:
            port = int(found["port"])
            return f"127.0.0.1:{self.port(port)}" if port in known else found[0]

        text = _ADDRESS.sub(local, text)
        text = re.sub(r"--metrics-port=(\d+)", lambda one: f"--metrics-port={self.port(int(one[1]))}", text)
        text = text.replace("--metrics-host=0.0.0.0", "--metrics-host=127.0.0.1")
        for volume in services()[service].get("volumes", []) if service else []:
            name, _, rest = volume.partition(":")
            target = rest.removesuffix(":ro")
            text = re.sub(rf"(?<![\w/.]){re.escape(target)}(?![\w.])", str(self.folder / "volumes" / name), text)
        return text

    def command(self, service: str) -> list[str]:
        """What a service runs, after its image's own entry point."""
        return [self.here(word, service) for word in services()[service].get("command", [])]

    def environment(self, service: str) -> dict[str, str]:
        """A service's own, and of ours what a process of this machine cannot do without."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "KAFKA_", "MINIO_"))}
        given = services()[service].get("environment", {})
        return kept | {name: self.here(value, service) for name, value in given.items()}

    def start(self, service: str) -> subprocess.Popen[str]:
        """A service of the headgate image."""
        return subprocess.Popen(
            [*self.headgate, *self.command(service)],
            env=self.environment(service) | self.extra,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def kafka(self) -> LocalServer:
        """The broker, set up by the class that the image's entry point runs. Not started yet."""
        return Kafka(self)

    def minio(self, binary: Path) -> LocalServer:
        """MinIO by its entry point and command. Not started yet."""
        service = services()["minio"]
        environment = self.environment("minio") | {"PATH": f"{binary.parent}{os.pathsep}{os.environ['PATH']}"}
        environment |= {"MINIO_UPDATE": "off"}
        command = [*service["entrypoint"], *self.command("minio")]
        return LocalServer(command, self.folder / "minio.log", self.port(9000), environment)

    def prometheus(self, binary: Path) -> Prometheus:
        """Prometheus by its command and its files. Not started yet."""
        for volume in services()["prometheus"]["volumes"]:
            source, _, _ = volume.partition(":")
            if (mounted := ROOT / source).is_file():
                here = self.folder / "volumes" / source
                here.parent.mkdir(parents=True, exist_ok=True)
                here.write_text(self.here(mounted.read_text()))
        port = self.port(_DEFAULT_PORTS["prometheus"])
        command = [str(binary), *self.command("prometheus"), f"--web.listen-address=127.0.0.1:{port}"]
        return Prometheus(command, self.folder / "prometheus.log", port, self.environment("prometheus"))


class Prometheus(LocalServer):
    """Who scrapes and evaluates."""

    def ready(self) -> bool:
        """Whether it answers questions: it speaks HTTP before."""
        try:
            urllib.request.urlopen(f"{self.endpoint}/-/ready", timeout=5).close()
        except OSError:
            return False
        return True

    def ask(self, what: str, **parameters: str) -> Any:
        """What its HTTP interface answers, as `data` of the answer."""
        told = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self.endpoint}/api/v1/{what}?{told}", timeout=10) as answer:
            return json.load(answer)["data"]


class Kafka(LocalServer):
    """As in the image: its wrapper makes server.properties of the environment and formats, then the broker starts."""

    def __init__(self, machine: Machine) -> None:
        default, final = machine.folder / "default", machine.folder / "config"
        for folder in (default, final):
            folder.mkdir(parents=True)
        # The image brings these; ours says less.
        for name in ("log4j2.yaml", "tools-log4j2.yaml"):
            (default / name).write_text(_QUIET)
        (default / "server.properties").write_text("")
        java = ["java", "-Xmx512m", "-XX:+UseSerialGC", f"-Dlog4j2.configurationFile={default / 'log4j2.yaml'}"]
        java += ["-cp", kafka_classpath()]
        self._setup = [*java, "kafka.docker.KafkaDockerWrapper", "setup"]
        self._setup += ["-D", str(default), "-M", str(machine.folder / "mounted"), "-F", str(final)]
        self._environment = machine.environment("kafka")
        super().__init__(
            [*java, "kafka.Kafka", str(final / "server.properties")],
            machine.folder / "kafka.log",
            machine.port(9092),
            self._environment,
        )
        self.servers = f"127.0.0.1:{self.port}"

    def start(self) -> LocalServer:
        """Set up, then start."""
        done = subprocess.run(self._setup, env=self._environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return super().start()

    def ready(self) -> bool:
        """Whether a client gets its metadata."""
        from confluent_kafka import KafkaException

        try:
            return bool(admin_client(self.servers).list_topics(timeout=1.0).brokers)
        except KafkaException:
            return False


_QUIET = """\
Configuration:
  Appenders:
    Console:
      name: STDOUT
      PatternLayout: {pattern: "%d %p %c{1}: %m%n"}
  Loggers:
    Root: {level: WARN, AppenderRef: [{ref: STDOUT}]}
"""
