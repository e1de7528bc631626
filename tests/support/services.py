"""The servers that tests use: a broker, and an S3 endpoint.

The broker is the first of these that is there, and the header of the run says which:

1. one named in the environment, HEADGATE_TEST_KAFKA=host:port;
2. a container, where a Docker daemon answers and has the image (HEADGATE_TEST_KAFKA_IMAGE; nothing is pulled);
3. a process of this machine, from the jars that `make setup` fetched.

S3 is moto, and what `servers.py` finds of versitygw and MinIO:

| test | in `make test` | in `make test-deep` |
|---|---|---|
| uses `s3_endpoint` | the first real server, else moto | moto and the other real servers |
| marked `real_s3` as well | the first real server, else moto | the other real servers |
| marked `deep` as well | – | every real server, else moto |

Topics and buckets get names of their own per test, so that all tests of a run share one server of each kind.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import pytest

from headgate.connectors.kafka.topics import create_topic
from headgate.dev.broker import LocalBroker
from tests.support.servers import SOURCES, START_SECONDS, LocalServer, s3_container
from tests.support.servers import s3_server as s3_process

T = TypeVar("T")

IMAGE = os.environ.get("HEADGATE_TEST_KAFKA_IMAGE", "confluentinc/cp-kafka:7.6.0")

MakeTopic = Callable[..., str]

MOTO = "moto"
S3_SERVERS = ("versitygw", "minio")
"""The real ones, the first that is there is preferred."""

S3_SECRETS = ("AKIAKNOWNTOTEST", "the-secret-of-this-test")
"""Key and secret of the S3 server: what must never be written or printed."""


def pytest_report_header() -> list[str]:
    return [f"kafka: {_choice()[1]}", f"s3: {_s3_told()}"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that uses S3 runs once per server; see the table above."""
    if "s3_server" not in metafunc.fixturenames:
        return
    marker = metafunc.definition.get_closest_marker
    real = [name for name in S3_SERVERS if s3_place(name)[0]]
    if marker("deep"):
        chosen = [pytest.param(name) for name in real or [MOTO]]
    else:
        first, *others = real if marker("real_s3") and real else [*real, MOTO]
        chosen = [pytest.param(first), *(pytest.param(name, marks=pytest.mark.deep) for name in others)]
    metafunc.parametrize("s3_server", chosen, indirect=True, scope="session")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Where S3 tests had no real server, the run says so at its end."""
    if any(s3_place(name)[0] for name in S3_SERVERS):
        return
    reports = [one for each in terminalreporter.stats.values() for one in each if isinstance(one, pytest.TestReport)]
    if any(one.when == "call" and "s3" in one.keywords for one in reports):
        terminalreporter.write_sep("=", f"S3 tests ran on {_s3_told()}", yellow=True)


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


@dataclass(frozen=True, slots=True)
class S3Server:
    """An S3 server that runs."""

    name: str
    endpoint: str
    process: LocalServer | None = None
    """Where it is one, which tests may kill and start again."""


@pytest.fixture(scope="session")
def s3_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """The server that this test talks to, on loopback; one per kind and run. See `pytest_generate_tests`."""
    name: str = request.param
    if name == MOTO:
        with moto_server() as endpoint:
            yield S3Server(name, endpoint)
    elif s3_place(name)[0] == "container":
        with s3_container(name, S3_SECRETS) as endpoint:
            yield S3Server(name, endpoint)
    else:
        with s3_process(name, tmp_path_factory.mktemp(name), S3_SECRETS) as process:
            yield S3Server(name, process.endpoint, process)


@pytest.fixture(scope="session")
def s3_endpoint(s3_server: S3Server) -> str:
    """Where the S3 server answers."""
    return s3_server.endpoint


def one_at_a_time(call: Callable[..., T]) -> Callable[..., T]:
    """The call, by one thread at a time."""
    lock = threading.Lock()

    def alone(*args: Any, **options: Any) -> T:
        with lock:
            return call(*args, **options)

    return alone


@contextmanager
def moto_server() -> Iterator[str]:
    """moto in a thread of this process. All of them share one state: see `bucket`."""
    from moto.s3.responses import S3Response
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    # It looks whether the name is free and then stores, each request in a thread of its own: two could win.
    with mock.patch.object(S3Response, "put_object", one_at_a_time(S3Response.put_object)):
        server.start()
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
        server.stop()


@pytest.fixture
def make_bucket(s3_endpoint: str) -> Callable[[], str]:
    """Makes a fresh bucket of that server and returns its name."""

    def make() -> str:
        name = f"bucket-{uuid.uuid4().hex[:12]}"
        create_bucket(s3_endpoint, name)
        return name

    return make


@contextmanager
def passing_bucket(endpoint: str, name: str) -> Iterator[None]:
    """One of moto's that is gone afterwards, with all in it: a name that others use as well."""
    from moto.s3.models import s3_backends

    create_bucket(endpoint, name)
    try:
        yield
    finally:
        for account in s3_backends.values():
            if (bucket := account["aws"].buckets.get(name)) is not None:
                bucket.keys.clear()
                account["aws"].delete_bucket(name)


def create_bucket(endpoint: str, name: str, secrets: tuple[str, str] = S3_SECRETS) -> None:
    """A bucket, by a signed request: nothing else here can make one. A server that has just begun may be busy."""
    from botocore.auth import S3SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    request = AWSRequest("PUT", f"{endpoint}/{name}", data=b"")
    S3SigV4Auth(Credentials(*secrets), "s3", "us-east-1").add_auth(request)
    signed = urllib.request.Request(request.url, method="PUT", headers=dict(request.headers.items()))
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            urllib.request.urlopen(signed).close()
            return
        except urllib.error.HTTPError as error:
            if error.code != 503 or time.monotonic() > end:
                raise
        time.sleep(0.1)


@pytest.fixture
def bucket(make_bucket: Callable[[], str]) -> str:
    """A fresh bucket."""
    return make_bucket()


@pytest.fixture
def s3_options(s3_endpoint: str) -> dict[str, str]:
    """What reaches the server."""
    return s3_options_for(s3_endpoint)


@pytest.fixture
def s3_environment(s3_options: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
    """Credentials in the environment, of this process and of those that it starts. What was set."""
    settings = {
        "AWS_ACCESS_KEY_ID": s3_options["aws_access_key_id"],
        "AWS_SECRET_ACCESS_KEY": s3_options["aws_secret_access_key"],
        "AWS_ENDPOINT": s3_options["aws_endpoint"],
        "AWS_ENDPOINT_URL": s3_options["aws_endpoint"],
        "AWS_REGION": s3_options["aws_region"],
        "AWS_ALLOW_HTTP": "true",
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none"),
        "AWS_CONFIG_FILE": str(tmp_path / "none"),
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    return settings


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
def kafka_container(image: str = IMAGE) -> Iterator[str]:
    """A broker in a container, of the local image."""
    from testcontainers.community.kafka import KafkaContainer

    with KafkaContainer(image).with_kraft() as container:
        yield container.get_bootstrap_server()


@cache
def s3_place(name: str) -> tuple[str | None, str]:
    """How a real S3 server is there ("process", "container", None: not), and how the header says it."""
    source = SOURCES[name]
    if source.binary is not None:
        return "process", f"{name} {source.version if source.binary == source.built else '(PATH)'}"
    reason = why_no_container(source.image or "")
    return (None, f"no {name}") if reason else ("container", f"{name} (a container of {source.image})")


def _s3_told() -> str:
    real = [told for place, told in map(s3_place, S3_SERVERS) if place]
    if real:
        return ", ".join([MOTO, *real])
    build = "make test builds it" if shutil.which("go") else "there is no Go to build it"
    return f"moto only (neither versitygw nor MinIO is on PATH or in the cache directory: {build})"


@cache
def why_no_container(image: str = IMAGE) -> str | None:
    """None where a container of that image can be started, else the reason."""
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
        client.images.get(image)
    except DockerException:
        return f"Docker does not have the image {image}"
    return None


def _choice() -> tuple[str, str]:
    """The kind of broker, and how the header says it."""
    if servers := os.environ.get("HEADGATE_TEST_KAFKA"):
        return "environment", f"{servers} (HEADGATE_TEST_KAFKA)"
    reason = why_no_container()
    if reason is None:
        return "container", f"a container of {IMAGE}"
    return "process", f"a local process ({reason})"
