"""In real containers, of images that are built here: the fixtures of other tests, and docker-compose.yml as it stands.

Where no Docker daemon answers and none can be started, these are skipped: the same services run as processes in
test_compose.py, and the fixtures' servers as processes everywhere.
"""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import headgate
from headgate.connectors.kafka.topics import create_topic
from tests.project.composed import ROOT, compose, services
from tests.project.test_compose import send
from tests.project.test_dockerfile import steps
from tests.support.containers import (
    BASE,
    KAFKA,
    MINIO,
    build_base,
    build_image,
    build_kafka,
    build_minio,
    daemon,
    why_no_daemon,
)
from tests.support.runs import SCHEMA, Stream, Topic, check_table
from tests.support.servers import SOURCES, s3_container
from tests.support.services import S3_SECRETS, create_bucket, kafka_container, s3_options_for

if TYPE_CHECKING:
    from docker import DockerClient
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.docker, pytest.mark.deep, pytest.mark.spark, pytest.mark.kafka, pytest.mark.s3]

PATIENCE = 300.0
NOT_HERE = {"grafana"}
"""Services whose program can be had neither as a package nor as a Go module: their image alone is missing."""


@pytest.fixture(scope="module")
def docker_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DockerClient]:
    """A daemon with the images of this module's tests. testcontainers and docker compose find it too."""
    if reason := why_no_daemon():
        pytest.skip(reason)
    if missing := [name for name in ("minio", "prometheus", "compose") if SOURCES[name].binary is None]:
        pytest.skip(f"not there to build images of, and make test-deep builds it where Go is: {', '.join(missing)}")
    import docker

    folder = tmp_path_factory.mktemp("docker")
    with pytest.MonkeyPatch.context() as patch, daemon(folder) as address:
        from testcontainers.core.config import testcontainers_config

        patch.setenv("DOCKER_HOST", address)
        # Who cleans up is an image that would have to be pulled; the daemon ends with the test.
        patch.setattr(testcontainers_config, "ryuk_disabled", True)
        with closing(docker.DockerClient(address, timeout=900)) as client:
            build_base(client)
            build_kafka(client, folder / "kafka")
            build_minio(client, folder / "minio")
            yield client


def test_a_stream_from_a_broker_in_a_container_into_a_table_on_a_store_in_a_container(
    docker_client: DockerClient, spark: SparkSession, tmp_path: Path
) -> None:
    with kafka_container(KAFKA) as servers, s3_container("minio", S3_SECRETS, MINIO) as endpoint:
        create_bucket(endpoint, "lake")
        create_topic(servers, "orders", 2)
        topic = Topic(servers, "orders", 2)
        topic.put_orders(500)
        sharding = headgate.by_partition(key_is_partitioned=True)
        options = s3_options_for(endpoint)
        table = headgate.create_table(
            "s3://lake/orders", SCHEMA, primary_key="id", sharding=sharding, storage_options=options
        )
        Stream(spark, table, [topic], tmp_path / "checkpoint", max_offsets=200).run().close()
        check_table(table, topic)


def test_docker_compose_up_streams_stops_cleanly_and_goes_on(docker_client: DockerClient, tmp_path: Path) -> None:
    command = compose()
    assert command is not None
    build_services(docker_client, tmp_path)
    composed = Composed([*command, "--project-directory", str(ROOT), "--project-name", "headgate-test"])
    wanted = sorted(set(services()) - NOT_HERE)
    try:
        for number in range(2):
            composed("up", "--detach", "--no-build", "--pull", "never", *wanted)
            send("127.0.0.1:29092", range(100 * number, 100 * number + 100))
            until(lambda: rows_by_prometheus() > 0)
            until(partial(has_rows, 100 * number + 100))
            told = composed("exec", "-T", "headgate", "headgate", "status", "s3://lake/orders", "--output", "json")
            assert json.loads(told)["streams"]
            composed("stop", "headgate")
            (ended,) = docker_client.containers.list(all=True, filters={"name": "headgate-test-headgate"})
            assert ended.attrs["State"]["ExitCode"] == 0, ended.logs()[-3000:]
    finally:
        composed("down", "--volumes", "--timeout", "5")


class Composed:
    """docker compose for the project of this test."""

    def __init__(self, command: list[str]) -> None:
        self._command = command

    def __call__(self, *words: str) -> str:
        done = subprocess.run([*self._command, *words], capture_output=True, text=True, stdin=subprocess.DEVNULL)
        assert done.returncode == 0, f"{words}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout


def build_services(client: DockerClient, folder: Path) -> None:
    """Under the names that the file has: what it builds, by the Dockerfile; what it pulls, of what is here."""
    named = {name: service["image"] for name, service in services().items()}
    (base,) = [step.text for step in steps() if step.kind == "FROM"]
    client.images.get(BASE).tag(base)
    client.images.get(MINIO).tag(named["minio"])
    start = "/etc/confluent/docker/configure && exec /etc/confluent/docker/launch"
    build_image(client, folder / "kafka", named["kafka"], f'FROM {KAFKA}\nCMD ["sh", "-c", "{start}"]\n')
    prometheus = SOURCES["prometheus"].binary
    assert prometheus is not None
    text = f'FROM {BASE}\nCOPY prometheus /bin/prometheus\nENTRYPOINT ["/bin/prometheus"]\n'
    build_image(client, folder / "prometheus", named["prometheus"], text, prometheus)
    client.images.build(path=str(ROOT), tag=named["headgate"], rm=True, network_mode="host")


def until(holds: Callable[[], Any]) -> None:
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.5)


def rows_by_prometheus() -> float:
    """Rows that Prometheus has seen in the stream's own numbers."""
    url = "http://127.0.0.1:9090/api/v1/query?query=headgate_rows_total"
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            found = json.load(answer)["data"]["result"]
    except OSError:
        return 0.0
    return sum(float(one["value"][1]) for one in found)


def has_rows(count: int) -> bool:
    """Whether the table has the ids 0, 1, … so many, each once; read from outside the containers."""
    told = services()["headgate"]["environment"]
    options = {
        "aws_access_key_id": told["AWS_ACCESS_KEY_ID"],
        "aws_secret_access_key": told["AWS_SECRET_ACCESS_KEY"],
        "aws_endpoint": "http://127.0.0.1:9000",
        "aws_region": told["AWS_REGION"],
        "allow_http": "true",
    }
    found = (
        headgate.open_table("s3://lake/orders", storage_options=options)
        .scan(columns=["id"])
        .read_all()["id"]
        .to_pylist()
    )
    return sorted(found) == list(range(count))
