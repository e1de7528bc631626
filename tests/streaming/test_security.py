"""A stream over SASL and TLS: by our own client and by Spark's; the password is in nothing that either leaves."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

import headgate
from headgate.dev.broker import LocalBroker, Ports
from headgate.dev.ports import free_port
from tests.support.runs import Topic

pytestmark = [pytest.mark.deep, pytest.mark.spark, pytest.mark.kafka]

JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="ann" password="{}";'

DRIVER = """
import json, sys, traceback
from pathlib import Path
import headgate
from headgate.errors import HeadgateError
from headgate.streaming.spark.session import local_session

told = json.loads(sys.stdin.read())
headgate.configure_logs("json", level="DEBUG")
spark = local_session(2, log_file=Path(told["log"]))
decode = headgate.decode.json("id bigint not null, note string, amount double")

def run(path, options):
    source = headgate.kafka.source(told["servers"], told["topic"], 40, **options)
    direct = {"source": source} if path == "direct" else {}
    table = headgate.create_table(f"{told['folder']}/{path}", decode.schema, sharding=headgate.by_partition())
    sink = headgate.ShardSink(table, decode=decode, stream="s", commit_to_kafka=f"group-{path}", **direct)
    print("sink:", source, sink.options, flush=True)
    writer = source.read(spark).writeStream.foreachBatch(sink).option("checkpointLocation", f"{table.uri}-checkpoint")
    try:
        writer.trigger(availableNow=True).start().awaitTermination()
    except Exception as error:
        traceback.print_exc()
        print("failed:", path, type(sink.error or error).__name__, sink.error, flush=True)
    sink.close()

for path in ("direct", "arrow"):
    run(path, told["options"])
try:
    from headgate.connectors.kafka.reading import offsets
    offsets(headgate.kafka.source(told["servers"], told["topic"], **told["wrong"]).consumer, told["topic"])
except HeadgateError as error:
    traceback.print_exc()
    print("failed: wrong", type(error).__name__, flush=True)
spark.stop()
"""


@dataclass
class Guarded:
    """A broker with a listener for clients with a password that believe its certificate."""

    broker: LocalBroker
    servers: str
    password: str
    certificate: Path

    def options(self, password: str) -> dict[str, str]:
        """As Spark's Kafka source takes them."""
        return {
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": "PLAIN",
            "kafka.sasl.jaas.config": JAAS.format(password),
            "kafka.ssl.truststore.type": "PEM",
            "kafka.ssl.truststore.location": str(self.certificate),
        }


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    folder, password = tmp_path / "broker", f"pw-{secrets.token_hex(12)}"
    folder.mkdir()
    store, certificate, store_password = folder / "store.p12", folder / "certificate.pem", "changeit"
    keytool("-genkeypair", "-alias", "broker", "-keyalg", "RSA", "-dname", "CN=localhost", "-validity", "30",
            "-ext", "san=dns:localhost,ip:127.0.0.1", "-storetype", "PKCS12", "-keystore", str(store),
            "-storepass", store_password)  # fmt: skip
    keytool("-exportcert", "-rfc", "-alias", "broker", "-file", str(certificate), "-keystore", str(store),
            "-storepass", store_password)  # fmt: skip
    ports, port = Ports(free_port(), free_port()), free_port()
    (folder / "ports.json").write_text(json.dumps(asdict(ports)))
    plain = f"PLAINTEXT://127.0.0.1:{ports.client}"
    config = {
        "listeners": f"{plain},SASL_SSL://127.0.0.1:{port},CONTROLLER://127.0.0.1:{ports.controller}",
        "advertised.listeners": f"{plain},SASL_SSL://localhost:{port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL,CONTROLLER:PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": JAAS.format("x").replace(";", f' user_ann="{password}";'),
        "listener.name.sasl_ssl.ssl.keystore.type": "PKCS12",
        "listener.name.sasl_ssl.ssl.keystore.location": str(store),
        "listener.name.sasl_ssl.ssl.keystore.password": store_password,
    }
    with LocalBroker(folder, config=config) as broker:
        yield Guarded(broker, f"localhost:{port}", password, certificate)


def keytool(*arguments: str) -> None:
    done = subprocess.run(["keytool", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_rows_come_over_sasl_and_tls_by_both_clients_and_the_password_is_nowhere(
    guarded: Guarded, tmp_path: Path
) -> None:
    guarded.broker.create_topic("orders", 2)
    topic = Topic(guarded.broker.servers, "orders", 2)
    topic.put_numbers(range(100))
    folder, wrong = tmp_path / "lake", f"wrong-{secrets.token_hex(12)}"
    folder.mkdir()
    told: dict[str, Any] = {
        "servers": guarded.servers,
        "topic": "orders",
        "folder": str(folder),
        "log": str(folder / "spark.log"),
        "options": guarded.options(guarded.password),
        "wrong": guarded.options(wrong),
    }
    done = subprocess.run(
        [sys.executable, "-c", DRIVER], input=json.dumps(told), capture_output=True, text=True, timeout=300
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-5000:]
    assert "failed: wrong PermissionDenied" in said
    assert "failed: direct" not in said
    assert "failed: arrow" not in said
    for path in ("direct", "arrow"):
        rows = headgate.open_table(str(folder / path)).scan(columns=["id"]).read_all()["id"].to_pylist()
        assert sorted(rows) == list(range(100)), path
    assert said.count('"event": "batch committed"') >= 6
    left = [path for path in folder.rglob("*") if path.is_file()]
    assert folder / "spark.log" in left
    for secret in (guarded.password, wrong):
        assert secret not in said
        assert [str(path) for path in left if secret.encode() in path.read_bytes()] == []
