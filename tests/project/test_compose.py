"""docker-compose.yml: whole, and every service of it runs as a process by its own command line."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from confluent_kafka import Producer

import headgate
from headgate.cli import main
from tests.project.composed import (
    FILE,
    ROOT,
    Kafka,
    Machine,
    Prometheus,
    addresses,
    compose,
    document,
    listens,
    services,
)
from tests.support.servers import SOURCES
from tests.support.servers import s3_server as s3_process
from tests.support.services import create_bucket, moto_server
from tests.support.tables import claimed

TOP = {"name", "services", "volumes"}
SERVICE = {
    *("build", "command", "depends_on", "entrypoint", "environment", "image", "init", "ports", "restart"),
    *("stop_grace_period", "volumes"),
}
"""Of the words of the compose specification those that the file uses: another one is a slip, or belongs here."""
CONDITIONS = {"service_started", "service_completed_successfully"}

PATIENCE = 240.0


def test_the_file_is_whole_and_says_nothing_that_there_is_not() -> None:
    whole = document()
    assert {name for name in whole if not name.startswith("x-")} == TOP
    taken: list[str] = []
    named: set[str] = set()
    for name, service in whole["services"].items():
        assert set(service) <= SERVICE, name
        # What is pulled has a version; what is built here has a Dockerfile.
        assert ("build" in service) != (":" in service["image"]), name
        assert all(isinstance(value, str) for value in service.get("environment", {}).values()), name
        assert all(isinstance(word, str) for word in service.get("command", [])), name
        assert service.get("restart", "no") in {"no", "on-failure"}, name
        for other, how in service.get("depends_on", {}).items():
            assert how["condition"] in CONDITIONS, name
            assert other in whole["services"], name
        for port in service.get("ports", []):
            address, outside, inside = port.split(":")
            assert address == "127.0.0.1", "only this machine may come in"
            assert int(inside) in listens(name), port
            taken.append(outside)
        for volume in service.get("volumes", []):
            source, target, *mode = volume.split(":")
            assert target.startswith("/"), volume
            if source.startswith("./"):
                assert (ROOT / source).is_file(), volume
                assert mode == ["ro"], volume
            else:
                named.add(source)
    assert len(taken) == len(set(taken))
    assert named == set(whole["volumes"])
    told = FILE.read_text() + "".join(path.read_text() for path in (ROOT / "ops").rglob("*.yml"))
    found = addresses(told)
    assert {("kafka", 9092), ("minio", 9000), ("headgate", 9464), ("prometheus", 9090)} <= found
    for host, port in found:
        assert port in listens(host), f"{host} does not listen on {port}"


def test_headgate_takes_the_command_of_each_service_of_its_image() -> None:
    found = [service["command"] for service in services().values() if service["image"] == "headgate"]
    assert found
    for words in found:
        context = click.Context(main, info_name="headgate")
        name, command, arguments = main.resolve_command(context, list(words))
        assert command is not None
        while isinstance(command, click.Group):
            context = click.Context(command, info_name=name, parent=context)
            name, command, arguments = command.resolve_command(context, arguments)
            assert command is not None
        command.make_context(name, arguments, parent=context).close()


def test_docker_compose_takes_the_file() -> None:
    command = compose()
    if command is None:
        pytest.skip("docker compose is neither on PATH nor built; the test before this one looks at the file")
    done = _says([*command, "--file", str(FILE), "config", "--format", "json"])
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)["services"]) == set(services())


def _says(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)


def mounted(service: str, target: str) -> Path:
    """The file of this repository that a service sees at a place."""
    volumes = [volume.split(":") for volume in services()[service]["volumes"]]
    (source,) = [volume[0] for volume in volumes if volume[1] == target]
    return ROOT / source


def test_prometheus_and_grafana_are_set_up_with_what_is_mounted() -> None:
    (config,) = [word.partition("=")[2] for word in services()["prometheus"]["command"] if "config.file" in word]
    prometheus = yaml.safe_load(mounted("prometheus", config).read_text())
    for rules in prometheus["rule_files"]:
        assert yaml.safe_load(mounted("prometheus", str(Path(config).parent / rules)).read_text())["groups"]
    data = next(word.partition("=")[2] for word in services()["prometheus"]["command"] if "tsdb.path" in word)
    assert any(volume.endswith(f":{data}") for volume in services()["prometheus"]["volumes"])

    made = "/etc/grafana/provisioning"
    (source,) = yaml.safe_load(mounted("grafana", f"{made}/datasources/headgate.yml").read_text())["datasources"]
    assert (source["type"], source["isDefault"], source["url"]) == ("prometheus", True, "http://prometheus:9090")
    (provider,) = yaml.safe_load(mounted("grafana", f"{made}/dashboards/headgate.yml").read_text())["providers"]
    home = services()["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert str(Path(home).parent) == provider["options"]["path"]
    dashboard = json.loads(mounted("grafana", home).read_text())
    variables = {one["name"]: one for one in dashboard["templating"]["list"]}
    used = set(re.findall(r'"uid": "([^"]+)"', json.dumps([dashboard["panels"], dashboard["templating"]])))
    assert used == {"${datasource}"}, "the dashboard takes the default source, by its variable"
    assert variables["datasource"]["query"] == source["type"]


# -- as processes ----------------------------------------------------------------------


@contextmanager
def object_store(machine: Machine) -> Iterator[str]:
    """MinIO by its own command where it is there, else the first of versitygw and moto: what serves."""
    environment = machine.environment("minio")
    secrets = environment["MINIO_ROOT_USER"], environment["MINIO_ROOT_PASSWORD"]
    if (binary := SOURCES["minio"].binary) is not None:
        with machine.minio(binary):
            yield "minio"
    elif SOURCES["versitygw"].binary is not None:
        with s3_process("versitygw", machine.folder / "versitygw", secrets) as server:
            machine.ports[9000] = server.port
            create_bucket(server.endpoint, "lake", secrets)
            yield "versitygw"
    else:
        with moto_server() as endpoint:
            machine.ports[9000] = int(endpoint.rpartition(":")[2])
            create_bucket(endpoint, "lake", secrets)
            yield "moto"


def run_the_services(machine: Machine, starts: int, look: Callable[[Machine], None] = lambda machine: None) -> str:
    """Broker, store, topic and stream: rows that are sent are in the table, and where Prometheus looks it sees them.

    `look` is called while the stream runs, after the rows have come. What served S3.
    """
    broker = machine.kafka()
    assert isinstance(broker, Kafka)
    with broker, object_store(machine) as store:
        for said in ("Topic made", "already"):
            made = machine.start("topic")
            out, err = made.communicate(timeout=PATIENCE)
            assert (made.returncode, err) == (0, "")
            assert said in out
        send(broker.servers, range(100))
        for number in range(1, starts + 1):
            # A second run of the same command goes on where the first one stopped.
            stream = machine.start("headgate")
            try:
                send(broker.servers, range(100 * number, 100 * number + 100))
                wait_for_rows(machine, stream)
                look(machine)
                stream.send_signal(signal.SIGTERM)
                _, err = stream.communicate(timeout=PATIENCE)
                assert stream.returncode == 0, err
                assert any(json.loads(line)["event"] == "batch committed" for line in err.splitlines())
            finally:
                stream.kill()
        told = machine.environment("headgate")
        secrets = {name.lower(): told[name] for name in told if name.startswith("AWS_")}
        secrets["allow_http"] = secrets.pop("aws_allow_http")
        del secrets["aws_endpoint_url"]
        table = headgate.open_table("s3://lake/orders", storage_options=secrets)
        assert sorted(table.scan(columns=["id"]).read_all()["id"].to_pylist()) == list(range(100 * starts + 100))
        assert len(claimed(table)) == 4
    return store


def send(servers: str, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": servers})
    for number in numbers:
        producer.produce("orders", json.dumps({"id": number, "note": f"note {number}", "amount": number / 4}))
    assert producer.flush(60) == 0


def wait_for_rows(machine: Machine, stream: subprocess.Popen[str]) -> None:
    """Until what Prometheus would scrape shows rows, and nothing left behind."""
    (job,) = yaml.safe_load((ROOT / "ops" / "prometheus.yml").read_text())["scrape_configs"]
    (target,) = job["static_configs"][0]["targets"]
    url = f"http://{machine.here(target)}{job['metrics_path']}"
    end = time.monotonic() + PATIENCE
    while True:
        assert stream.poll() is None, stream.communicate()
        shown = scraped(url)
        rows, lag = shown.get("headgate_rows_total", 0.0), shown.get("headgate_lag_rows")
        if rows > 0 and lag == 0:
            return
        assert time.monotonic() < end, f"no rows at {url}: {shown}"
        time.sleep(0.2)


def scraped(url: str) -> dict[str, float]:
    """The sum of every series by its name; nothing where nobody listens yet."""
    from prometheus_client.parser import text_string_to_metric_families

    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            text = answer.read().decode()
    except (OSError, urllib.error.URLError):
        return {}
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


@pytest.mark.spark
@pytest.mark.kafka
@pytest.mark.s3
@pytest.mark.deep
def test_each_service_runs_by_its_own_command_line(tmp_path: Path, record_property: Any) -> None:
    store = run_the_services(Machine(tmp_path), starts=1)
    record_property("told", f"docker-compose.yml: its commands ran as processes, S3 by {store}")


def watched_by_prometheus(machine: Machine) -> None:
    """Prometheus by its own command line: it scrapes the stream, answers all that the dashboard asks, and evaluates
    every alert rule.
    """
    binary = SOURCES["prometheus"].binary
    assert binary is not None
    dashboard = json.loads((ROOT / "ops" / "grafana-dashboard.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    known = {"$__rate_interval": "1m", "$table": ".+", "$stream": ".+"}
    for name, value in known.items():
        asked = [expr.replace(name, value) for expr in asked]
    rules = yaml.safe_load((ROOT / "ops" / "prometheus-alerts.yml").read_text())["groups"][0]["rules"]
    with machine.prometheus(binary) as server:
        assert isinstance(server, Prometheus)
        end = time.monotonic() + PATIENCE
        while True:
            without = [expr for expr in asked if not server.ask("query", query=expr)["result"]]
            evaluated = [rule for group in server.ask("rules")["groups"] for rule in group["rules"]]
            bad = [rule["name"] for rule in evaluated if rule["health"] == "err"]
            assert bad == []
            if not without and [rule["health"] for rule in evaluated] == ["ok"] * len(rules):
                return
            assert time.monotonic() < end, f"no answer to {without}; rules {evaluated}"
            time.sleep(1)


@pytest.mark.deep
@pytest.mark.spark
@pytest.mark.kafka
@pytest.mark.s3
def test_prometheus_answers_all_that_the_dashboard_asks_and_evaluates_every_rule(tmp_path: Path) -> None:
    if SOURCES["prometheus"].binary is None:
        pytest.skip("prometheus is neither on PATH nor built; other tests look for every name in what a stream shows")
    run_the_services(Machine(tmp_path), starts=1, look=watched_by_prometheus)
