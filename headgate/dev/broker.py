"""A real Kafka broker of one node, run from the jars on loopback ports, for tests, the demo and trying things out.

Configuration, data and log are in one directory. Data and port survive stop, kill and restart. The JVM ends with the
process that started it, however that ends; only an unguarded one stays (see `detached`).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from headgate import clock
from headgate.connectors.jars.lists import kafka_classpath
from headgate.connectors.kafka.topics import admin_client, create_topic, grow_topic
from headgate.dev.ports import free_port, is_free
from headgate.errors import HeadgateError, InvalidInput

START_SECONDS = 60.0
"""A start takes about 4 s on an idle machine; a loaded one has been seen to take 20."""
STOP_SECONDS = 15.0
"""A clean stop takes 1 to 2 s. After this time the broker is killed; its data survives that too."""
_TAIL_LINES = 20
_GUARD = 'read -r pid && { read -r _; kill -9 "$pid"; }'
"""Reads from a pipe whose writing end closes when the owner ends, in whatever way, and then kills the JVM."""

_LOGGING = """\
status=error
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d{HH:mm:ss} %p %c{1}: %m%n%throwable{short}
rootLogger.level=WARN
rootLogger.appenderRef.out.ref=out
"""


class BrokerFailed(HeadgateError):
    """The local broker did not start or is not running. The field `log_tail` has the end of its log."""

    next_step = "read the end of the broker's log above; the whole log is in its directory"


@dataclass(frozen=True, slots=True)
class Ports:
    """The broker's ports on 127.0.0.1: for clients, for its own controller, and for connections from a proxy."""

    client: int
    controller: int
    behind: int | None = None


class LocalBroker:
    """One broker process and its directory. A context manager that starts it and stops it."""

    def __init__(
        self,
        directory: Path | str,
        *,
        port: int | None = None,
        config: Mapping[str, str] | None = None,
        heap_mb: int = 512,
        proxy_port: int | None = None,
    ) -> None:
        """Starts nothing. `port` None: the directory's earlier port, else a free one. `config` adds broker settings.

        `proxy_port` is the port of a proxy on 127.0.0.1. The broker has a second listener for it, `behind`, and
        advertises the proxy's address to clients that connect through it. Clients of `servers` do not get it.
        """
        self.directory = Path(directory).absolute()
        self.log_file = self.directory / "broker.log"
        self._settings = self.directory / "server.properties"
        self._state = self.directory / "ports.json"
        self._wanted_port = port
        self._config = dict(config or {})
        self._heap_mb = heap_mb
        self._proxy_port = proxy_port
        self._ports: Ports | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    # -- life ----------------------------------------------------------------

    def start(self, seconds: float = START_SECONDS) -> LocalBroker:
        """Start the broker and return when a client has its metadata. The JVM ends with this process.

        Raises BrokerFailed with the end of the log, JarsMissing.
        """
        if self._process is not None:
            raise InvalidInput("This broker was started before.", advice="stop it first")
        guard = subprocess.Popen(["/bin/sh", "-c", _GUARD], stdin=subprocess.PIPE, start_new_session=True)
        self._guard = guard
        try:
            self._process = self._launch()
            assert guard.stdin is not None
            guard.stdin.write(b"%d\n" % self._process.pid)
            guard.stdin.flush()
            self._wait_until_ready(self._process, seconds)
        except BaseException:
            self.kill()
            raise
        return self

    def start_unguarded(self, seconds: float = START_SECONDS) -> int:
        """Start the broker so that it outlives this process. Returns its pid. See `detached`."""
        process = self._launch()
        try:
            self._wait_until_ready(process, seconds)
        except BaseException:
            process.kill()
            process.wait()
            raise
        # Nothing waits for the process any more; without this, Popen warns when it is garbage-collected.
        process.returncode = 0
        return process.pid

    def stop(self, seconds: float = STOP_SECONDS) -> None:
        """SIGTERM, then SIGKILL after `seconds`. Does nothing if the broker is not running."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(seconds)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._reap()

    def kill(self) -> None:
        """SIGKILL, like a crash. Does nothing if the broker is not running."""
        if self._process is not None:
            self._process.kill()
        self._reap()

    def __enter__(self) -> LocalBroker:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    # -- facts and topics ------------------------------------------------------

    @property
    def port(self) -> int:
        """The port for clients; known after the first start."""
        if self._ports is None:
            raise InvalidInput("The broker has no port before its first start.")
        return self._ports.client

    @property
    def behind(self) -> int:
        """The port that a proxy passes connections on to; known after the first start with a `proxy_port`."""
        if self._ports is None or self._ports.behind is None:
            raise InvalidInput("The broker has no listener behind a proxy.", advice="give it a proxy_port and start it")
        return self._ports.behind

    @property
    def servers(self) -> str:
        """The bootstrap address."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int | None:
        """The JVM's process id while it runs."""
        running = self._process is not None and self._process.poll() is None
        return self._process.pid if self._process is not None and running else None

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        """Create a topic. Raises InvalidInput if it exists."""
        create_topic(self.servers, name, partitions, config)

    def grow_topic(self, name: str, partitions: int) -> None:
        """Raise a topic's number of partitions to `partitions`."""
        grow_topic(self.servers, name, partitions)

    def log_tail(self) -> str:
        """The last lines of the broker's log."""
        try:
            return "\n".join(self.log_file.read_text(errors="replace").splitlines()[-_TAIL_LINES:])
        except FileNotFoundError:
            return ""

    # -- steps of a start --------------------------------------------------------

    def _launch(self) -> subprocess.Popen[bytes]:
        """Start the JVM: 1. java and jars are there; 2. ports; 3. configuration; 4. format once; 5. the process."""
        java, classpath = _java(), kafka_classpath()
        self.directory.mkdir(parents=True, exist_ok=True)
        self._ports = self._choose_ports()
        self._write_configuration(self._ports)
        self._format(java, classpath)
        with self.log_file.open("ab") as log:
            return subprocess.Popen(
                [*_jvm(java, classpath, self.directory, self._heap_mb), "kafka.Kafka", str(self._settings)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
                # Ctrl-C must reach only the owner, which stops the broker in order.
                start_new_session=True,
            )

    def _choose_ports(self) -> Ports:
        """The directory's earlier ports, because its data names the controller's; else free ones."""
        known = Ports(**json.loads(self._state.read_text())) if self._state.exists() else None
        client = self._wanted_port or (known.client if known else free_port())
        behind = None
        if self._proxy_port is not None:
            behind = known.behind if known and known.behind else free_port()
        ports = Ports(client, known.controller if known else free_port(), behind)
        for port in (ports.client, ports.controller, ports.behind):
            if port is not None and not is_free(port):
                raise BrokerFailed(
                    f"Port {port} on 127.0.0.1 is taken.", port=port, advice="stop what listens there, or name another"
                )
        self._state.write_text(json.dumps(asdict(ports)) + "\n")
        return ports

    def _write_configuration(self, ports: Ports) -> None:
        listeners = {"PLAINTEXT": ports.client, "CONTROLLER": ports.controller}
        advertised = {"PLAINTEXT": ports.client}
        if ports.behind is not None and self._proxy_port is not None:
            listeners["PROXIED"], advertised["PROXIED"] = ports.behind, self._proxy_port
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{ports.controller}",
            "listeners": _places(listeners),
            "advertised.listeners": _places(advertised),
            "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in listeners),
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": str(self._data),
            # One node: Kafka's own topics have one replica instead of three.
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "4",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "4",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            # Automatic creation would hide a typing error in a topic's name.
            "auto.create.topics.enable": "false",
            **self._config,
        }
        lines = (f"{name}={value}\n" for name, value in settings.items())
        self._settings.write_text("".join(lines).replace("\\", "\\\\"))
        (self.directory / "log4j2.properties").write_text(_LOGGING)

    def _format(self, java: str, classpath: str) -> None:
        """Format the data directory, once. An interrupted format is repeated from the start."""
        marker = self._data / "meta.properties"
        if marker.exists():
            return
        shutil.rmtree(self._data, ignore_errors=True)
        jvm = [*_jvm(java, classpath, self.directory, heap_mb=128), "-XX:TieredStopAtLevel=1"]
        command = [*jvm, "kafka.tools.StorageTool", "format", "-t", _cluster_id(), "-c", str(self._settings)]
        with self.log_file.open("ab") as log:
            result = subprocess.run(
                [*command, "--standalone"], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
        if result.returncode != 0:
            raise self._failure(f"Kafka could not format its data directory (exit code {result.returncode}).")

    def _wait_until_ready(self, process: subprocess.Popen[bytes], seconds: float) -> None:
        """Return when a client gets metadata from this broker; another one might listen on the port."""
        until = clock.monotonic() + seconds
        client = admin_client(self.servers)
        while process.poll() is None:
            if self._answers(client):
                return
            if clock.monotonic() > until:
                raise self._failure(f"The broker gave no metadata within {seconds:.0f} s.")
            clock.sleep(0.05)
        raise self._failure(f"The broker ended with exit code {process.returncode} while it started.")

    def _answers(self, client: AdminClient) -> bool:
        try:
            metadata = client.list_topics(timeout=1.0)
        except KafkaException:
            return False
        own = f"cluster.id={metadata.cluster_id}"
        return bool(metadata.brokers) and own in (self._data / "meta.properties").read_text().splitlines()

    def _failure(self, what: str) -> BrokerFailed:
        return BrokerFailed(what, log=str(self.log_file), log_tail=f"\n{self.log_tail()}\n")

    def _reap(self) -> None:
        # End the guard first: it must not kill another process that gets the JVM's pid.
        if self._guard is not None:
            self._guard.kill()
            self._guard.wait()
            assert self._guard.stdin is not None
            self._guard.stdin.close()
            self._guard = None
        if self._process is not None:
            self._process.wait()
            self._process = None

    @property
    def _data(self) -> Path:
        return self.directory / "data"


def _java() -> str:
    """The java that Spark would use too: JAVA_HOME's, else the one on PATH."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home) / "bin") if home else None)
    if java is None:
        raise BrokerFailed(
            "Kafka needs Java 17 or newer, and found none.", advice="install it, or point JAVA_HOME at it"
        )
    return java


def _jvm(java: str, classpath: str, directory: Path, heap_mb: int) -> list[str]:
    logging = directory / "log4j2.properties"
    return [java, f"-Xmx{heap_mb}m", "-XX:+UseSerialGC", f"-Dlog4j2.configurationFile={logging}", "-cp", classpath]


def _places(ports: Mapping[str, int]) -> str:
    return ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items())


def _cluster_id() -> str:
    return urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode().replace("-", "A")
