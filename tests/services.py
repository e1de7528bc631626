"""The servers that tests use: a broker, and an S3 endpoint.

The broker is the first of these that is there, and the header of the run says which:

1. one named in the environment, HEADGATE_TEST_KAFKA=host:port;
2. a container, where a Docker daemon answers and has the image (HEADGATE_TEST_KAFKA_IMAGE; nothing is pulled);
3. a process of this machine, from the jars that `make setup` fetched.

Topics and buckets get names of their own per test, so that all tests of a run share one server of each kind.
"""

from __future__ import annotations

import logging
import os
import urllib.request
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

S3_SECRETS = ("AKIAKNOWNTOTEST", "the-secret-of-this-test")
"""Key and secret of the S3 server: what must never be written or printed."""


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


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """An S3 server on loopback, in a thread of this process. All of them share one state: see `bucket`."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def make_bucket(s3_endpoint: str) -> Callable[[], str]:
    """Makes a fresh bucket of that server and returns its name."""

    def make() -> str:
        name = f"bucket-{uuid.uuid4().hex[:12]}"
        urllib.request.urlopen(urllib.request.Request(f"{s3_endpoint}/{name}", method="PUT")).close()
        return name

    return make


@pytest.fixture
def bucket(make_bucket: Callable[[], str]) -> str:
    """A fresh bucket."""
    return make_bucket()


@pytest.fixture
def s3_options(s3_endpoint: str) -> dict[str, str]:
    """What reaches the server."""
    return s3_options_for(s3_endpoint)


def s3_options_for(endpoint: str) -> dict[str, str]:
    """Storage options for a server without TLS."""
    key, secret = S3_SECRETS
    return {
        "aws_access_key_id": key,
        "aws_secret_access_key": secret,
        "aws_endpoint": endpoint,
        "aws_region": "us-east-1",
        "allow_http": "true",
    }


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
