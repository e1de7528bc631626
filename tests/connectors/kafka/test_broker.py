from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner

from headgate.cli.commands.kafka import kafka
from headgate.connectors.jars.lists import JarsMissing, kafka_classpath, spark_jars
from headgate.connectors.kafka.options import ConsumerConfig
from headgate.connectors.kafka.reader import offsets, read_range
from headgate.dev.broker import BrokerFailed, LocalBroker, Ports
from headgate.dev.detached import find_detached, start_detached, stop_detached
from headgate.dev.ports import free_port
from headgate.errors import InvalidInput, PermissionDenied, Transient
from tests.support.producing import config_for, numbered, produce, values_of
from tests.support.services import kafka_container, why_no_container

pytestmark = pytest.mark.kafka

JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="ann" password="{}";'


@pytest.fixture(scope="module")
def sasl_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, sasl_port: int) -> Iterator[LocalBroker]:
    """A broker that these tests may kill, with a second listener that asks for a password."""
    directory = tmp_path_factory.mktemp("own-kafka")
    ports = Ports(free_port(), free_port())
    (directory / "ports.json").write_text(json.dumps(asdict(ports)))
    listeners = f"PLAINTEXT://127.0.0.1:{ports.client},SASL_PLAINTEXT://127.0.0.1:{sasl_port}"
    config = {
        "listeners": f"{listeners},CONTROLLER://127.0.0.1:{ports.controller}",
        "advertised.listeners": listeners,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": JAAS.format("x").replace(";", ' user_ann="hunter2";'),
    }
    with LocalBroker(directory, config=config) as broker:
        yield broker


class TestLife:
    def test_a_killed_broker_is_transient_and_its_data_is_there_after_a_restart(self, broker: LocalBroker) -> None:
        broker.create_topic("survives", 2)
        produce(broker.servers, "survives", numbered(100))
        config, port = config_for(broker.servers), broker.port
        assert values_of(list(read_range(config, "survives", 0, 0, 50))) == numbered(50)
        pid = broker.pid
        assert pid is not None
        broker.kill()
        assert broker.pid is None
        assert not psutil.pid_exists(pid)
        with pytest.raises(Transient, match=r"127\.0\.0\.1"):
            list(read_range(config, "survives", 0, 0, 100, deadline=1.0))
        with pytest.raises(Transient, match=r"127\.0\.0\.1"):
            offsets(config, "survives", deadline=0.5)
        broker.start()
        assert broker.port == port
        assert values_of(list(read_range(config, "survives", 0, 50, 100))) == numbered(50, 50)

    def test_a_read_goes_on_when_the_broker_comes_back_in_time(self, broker: LocalBroker) -> None:
        broker.create_topic("interrupted")
        produce(broker.servers, "interrupted", numbered(60_000))
        reader = read_range(config_for(broker.servers), "interrupted", 0, 0, 60_000, max_rows=100)
        first = next(reader)
        broker.stop()
        broker.start()
        assert values_of([first, *reader]) == numbered(60_000)

    def test_a_broker_is_started_once(self, broker: LocalBroker) -> None:
        with pytest.raises(InvalidInput, match="started before"):
            broker.start()

    def test_a_broker_ends_with_its_owner_however_that_ends(self, tmp_path: Path) -> None:
        script = f"""
import time
from headgate.dev.broker import LocalBroker
broker = LocalBroker({str(tmp_path)!r}).start()
print(broker.pid, flush=True)
time.sleep(600)
"""
        with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as owner:
            assert owner.stdout is not None
            pid = int(owner.stdout.readline())
            assert psutil.pid_exists(pid)
            owner.send_signal(signal.SIGKILL)
        assert gone(pid)
        assert not left_behind(tmp_path)


class TestFailedStart:
    def test_the_end_of_the_log_says_what_the_broker_did_not_like(self, tmp_path: Path) -> None:
        with pytest.raises(BrokerFailed, match=r"num\.partitions") as caught:
            LocalBroker(tmp_path, config={"num.partitions": "many"}).start()
        assert "broker.log" in str(caught.value)
        assert not left_behind(tmp_path)

    def test_a_broker_that_ends_while_it_starts_shows_its_log(self, tmp_path: Path) -> None:
        (tmp_path / "data").mkdir()
        # Data of another node: a format would not look at it again, the broker itself does.
        (tmp_path / "data" / "meta.properties").write_text("version=1\ncluster.id=AAAAAAAAAAAAAAAAAAAAAA\nnode.id=2\n")
        with pytest.raises(BrokerFailed, match=r"(?s)ended with exit code 1 .*node id 2") as caught:
            LocalBroker(tmp_path).start()
        assert "broker.log" in str(caught.value)
        assert not left_behind(tmp_path)

    def test_a_taken_port_is_named(self, tmp_path: Path) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            with pytest.raises(BrokerFailed, match=f"Port {port}"):
                LocalBroker(tmp_path, port=port).start()

    def test_a_machine_without_java_is_told_so(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("JAVA_HOME", str(tmp_path))
        with pytest.raises(BrokerFailed, match="Java 17"):
            LocalBroker(tmp_path / "kafka").start()

    def test_missing_jars_say_make_setup(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert len(spark_jars()) > 10
        assert kafka_classpath()
        monkeypatch.setenv("HEADGATE_CACHE", str(tmp_path))
        for ask in (kafka_classpath, spark_jars, LocalBroker(tmp_path / "kafka").start):
            with pytest.raises(JarsMissing, match="make setup"):
                ask()


class TestCredentials:
    def test_a_password_opens_the_topic(self, broker: LocalBroker, sasl_port: int) -> None:
        broker.create_topic("guarded")
        produce(broker.servers, "guarded", numbered(3))
        assert values_of(list(read_range(self.config(sasl_port, "hunter2"), "guarded", 0, 0, 3))) == numbered(3)

    def test_a_wrong_one_is_refused_at_once_and_not_shown(self, sasl_port: int, broker: LocalBroker) -> None:
        config = self.config(sasl_port, "swordfish")
        for ask in (lambda: list(read_range(config, "guarded", 0, 0, 3)), lambda: offsets(config, "guarded")):
            with pytest.raises(PermissionDenied, match="credentials") as caught:
                ask()
            assert "swordfish" not in str(caught.value)
            assert "ann" not in str(caught.value)

    @staticmethod
    def config(port: int, password: str) -> ConsumerConfig:
        return config_for(
            f"127.0.0.1:{port}",
            **{
                "kafka.security.protocol": "SASL_PLAINTEXT",
                "kafka.sasl.mechanism": "PLAIN",
                "kafka.sasl.jaas.config": JAAS.format(password),
            },
        )


class TestCommand:
    def test_start_leaves_a_broker_that_stop_ends(self, tmp_path: Path) -> None:
        directory = tmp_path / "broker"
        nothing = run("stop", "--dir", str(directory))
        assert nothing["was_running"] is False
        started = run("start", "--dir", str(directory))
        try:
            assert started["already_running"] is False
            pid = int(started["pid"])
            produce_to = started["servers"]
            again = run("start", "--dir", str(directory))
            assert (again["already_running"], again["servers"]) == (True, produce_to)
            with pytest.raises(InvalidInput, match="already runs"):
                start_detached(directory, port=free_port())
            assert psutil.pid_exists(pid)
        finally:
            stopped = run("stop", "--dir", str(directory))
        assert stopped["was_running"] is True
        assert gone(pid)
        assert find_detached(directory) is None
        assert not left_behind(directory)

    def test_a_start_that_fails_shows_the_log_as_lines(self, tmp_path: Path) -> None:
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "meta.properties").write_text("version=1\ncluster.id=AAAAAAAAAAAAAAAAAAAAAA\nnode.id=2\n")
        result = CliRunner().invoke(kafka, ["start", "--dir", str(tmp_path)])
        assert isinstance(result.exception, BrokerFailed)
        assert "log_tail" not in result.exception.fields()
        assert any("node id 2" in line for line in result.stderr.splitlines())

    def test_a_pid_that_is_another_process_by_now_is_left_alone(self, tmp_path: Path) -> None:
        (tmp_path / "broker.json").write_text(json.dumps({"pid": os.getpid(), "port": 1}))
        assert find_detached(tmp_path) is None
        assert stop_detached(tmp_path) is None

    @pytest.mark.parametrize("command", [["start"], ["stop"]])
    def test_help_has_an_example(self, command: list[str]) -> None:
        result = CliRunner().invoke(kafka, [*command, "--help"])
        assert result.exit_code == 0
        assert f"headgate kafka {command[0]} --dir" in result.output


@pytest.mark.docker
def test_a_container_serves_as_well() -> None:
    if (reason := why_no_container()) is not None:
        pytest.skip(reason)
    with kafka_container() as servers:
        from headgate.connectors.kafka.topics import create_topic

        create_topic(servers, "in-a-container")
        produce(servers, "in-a-container", numbered(10))
        assert values_of(list(read_range(config_for(servers), "in-a-container", 0, 0, 10))) == numbered(10)


def run(*arguments: str) -> dict[str, Any]:
    """The command in a process of its own, since a detached broker must outlive that."""
    code = "from headgate.cli.commands.kafka import kafka; kafka()"
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments, "--output", "json"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, object] = json.loads(done.stdout)
    return result


def gone(pid: int) -> bool:
    for _ in range(200):
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.05)
    return False


def left_behind(directory: Path) -> list[int]:
    """Processes that still work in the directory."""
    return [p.pid for p in psutil.process_iter(["cmdline"]) if str(directory) in " ".join(p.info["cmdline"] or [])]
