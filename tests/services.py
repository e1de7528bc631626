"""The broker that tests use. The first of these that is there, and the header of the run says which:

1. one named in the environment, HEADGATE_TEST_KAFKA=host:port;
2. a container, where a Docker daemon answers and has the image (HEADGATE_TEST_KAFKA_IMAGE; nothing is pulled);
3. a process of this machine, from the jars that `make setup` fetched.

Topics get a name of their own per test, so that all tests of a run share one broker.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from headgate.connectors.kafka.broker import LocalBroker
from headgate.connectors.kafka.topics import create_topic

IMAGE = os.environ.get("HEADGATE_TEST_KAFKA_IMAGE", "confluentinc/cp-kafka:7.6.0")

MakeTopic = Callable[..., str]


def pytest_report_header() -> str:
    return f"kafka: {_choice()[1]}"


@pytest.fixture(scope="session")
def kafka_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The bootstrap address of the run's broker."""
    kind, _ = _choice()
    if kind == "environment":
        yield os.environ["HEADGATE_TEST_KAFKA"]
    elif kind == "container":
        with kafka_container() as servers:
            yield servers
    else:
        with LocalBroker(tmp_path_factory.mktemp("kafka")) as broker:
            yield broker.servers


@pytest.fixture
def make_topic(kafka_servers: str, request: pytest.FixtureRequest) -> MakeTopic:
    """Makes a topic with a name of its own and returns the name."""

    def make(partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        name = f"{request.node.name.partition('[')[0][:60]}-{uuid.uuid4().hex[:8]}"
        create_topic(kafka_servers, name, partitions, config)
        return name

    return make


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[LocalBroker]:
    """A local broker of one test, which may stop and kill it."""
    with LocalBroker(tmp_path / "kafka") as broker:
        yield broker


@contextmanager
def kafka_container() -> Iterator[str]:
    """A broker in a container, of the local image."""
    from testcontainers.kafka import KafkaContainer

    with KafkaContainer(IMAGE).with_kraft() as container:
        yield container.get_bootstrap_server()


@cache
def why_no_container() -> str | None:
    """None where a container can be started, else the reason."""
    if not os.environ.get("DOCKER_HOST") and not Path("/var/run/docker.sock").exists():
        return "there is no Docker daemon"
    import docker
    from docker.errors import DockerException

    try:
        client = docker.from_env(timeout=5)
        client.ping()
    except DockerException:
        return "no Docker daemon answers"
    try:
        client.images.get(IMAGE)
    except DockerException:
        return f"Docker does not have the image {IMAGE}"
    return None


def _choice() -> tuple[str, str]:
    """The kind of broker, and how the header says it."""
    if servers := os.environ.get("HEADGATE_TEST_KAFKA"):
        return "environment", f"{servers} (HEADGATE_TEST_KAFKA)"
    reason = why_no_container()
    if reason is None:
        return "container", f"a container of {IMAGE}"
    return "process", f"a local process ({reason})"
