from __future__ import annotations

import pickle

import pytest
from confluent_kafka import Consumer

from headgate.connectors.kafka.options import ConsumerConfig
from headgate.connectors.kafka.reading import offsets
from headgate.errors import InvalidInput, Transient

SERVERS = {"kafka.bootstrap.servers": "one:9092,two:9092"}
PLAIN = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="ann" password="hunter2";'
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required\n password='hunter2' username=ann ;"
SASL = {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "PLAIN"}


def translated(**options: object) -> dict[str, str]:
    return ConsumerConfig.from_spark({**SERVERS, **options}).librdkafka()


def added(options: dict[str, object]) -> dict[str, str]:
    """What the options add to a configuration, or change in it."""
    before = translated()
    return {name: value for name, value in translated(**options).items() if before.get(name) != value}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {}),
        ({"kafka.isolation.level": "read_committed"}, {"isolation.level": "read_committed"}),
        ({"KAFKA.Isolation.Level": "read_committed"}, {"isolation.level": "read_committed"}),
        ({"kafka.fetch.max.wait.ms": 250}, {"fetch.wait.max.ms": "250"}),
        ({"kafka.request.timeout.ms": "9000"}, {"socket.timeout.ms": "9000"}),
        ({"kafka.fetch.max.bytes": "1000"}, {"fetch.max.bytes": "1000"}),
        ({"kafka.max.partition.fetch.bytes": "1000"}, {"max.partition.fetch.bytes": "1000"}),
        ({"kafka.receive.buffer.bytes": "-1"}, {"socket.receive.buffer.bytes": "0"}),
        ({"kafka.receive.buffer.bytes": "65536"}, {"socket.receive.buffer.bytes": "65536"}),
        ({"kafka.check.crcs": False}, {"check.crcs": "false"}),
        ({"kafka.group.id": "mine"}, {"group.id": "mine"}),
        ({"kafka.max.poll.records": "7", "kafka.session.timeout.ms": "7"}, {}),
        ({"subscribe": "t", "startingOffsets": "earliest", "maxOffsetsPerTrigger": 7, "failOnDataLoss": True}, {}),
        (
            {**SASL, "kafka.sasl.jaas.config": PLAIN},
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "PLAIN",
                "sasl.username": "ann",
                "sasl.password": "hunter2",
            },
        ),
        (
            {**SASL, "kafka.sasl.mechanism": "SCRAM-SHA-512", "kafka.sasl.jaas.config": SCRAM},
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.username": "ann",
                "sasl.password": "hunter2",
            },
        ),
        (
            {**SASL, "kafka.sasl.jaas.config": PLAIN.replace("hunter2", r"a\"b;c=d\\")},
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "PLAIN",
                "sasl.username": "ann",
                "sasl.password": 'a"b;c=d\\',
            },
        ),
        (
            {"kafka.ssl.truststore.type": "PEM", "kafka.ssl.truststore.location": "/ca.pem"},
            {"ssl.ca.location": "/ca.pem"},
        ),
        (
            {"kafka.ssl.truststore.type": "PEM", "kafka.ssl.truststore.certificates": "PEM TEXT"},
            {"ssl.ca.pem": "PEM TEXT"},
        ),
        (
            {"kafka.ssl.keystore.type": "PEM", "kafka.ssl.keystore.location": "/me.pem", "kafka.ssl.key.password": "p"},
            {"ssl.certificate.location": "/me.pem", "ssl.key.location": "/me.pem", "ssl.key.password": "p"},
        ),
        (
            {
                "kafka.ssl.keystore.type": "PEM",
                "kafka.ssl.keystore.certificate.chain": "CHAIN",
                "kafka.ssl.keystore.key": "KEY",
            },
            {"ssl.certificate.pem": "CHAIN", "ssl.key.pem": "KEY"},
        ),
        (
            {
                "kafka.ssl.keystore.type": "PKCS12",
                "kafka.ssl.keystore.location": "/me.p12",
                "kafka.ssl.keystore.password": "p",
            },
            {"ssl.keystore.location": "/me.p12", "ssl.keystore.password": "p"},
        ),
        ({"kafka.ssl.endpoint.identification.algorithm": ""}, {"ssl.endpoint.identification.algorithm": "none"}),
    ],
)
def test_options_become_what_librdkafka_calls_them(options: dict[str, object], expected: dict[str, str]) -> None:
    assert added(options) == expected


def test_what_is_not_given_is_as_in_sparks_client() -> None:
    plain = translated()
    assert (plain["isolation.level"], plain["check.crcs"]) == ("read_uncommitted", "true")


def test_librdkafka_knows_every_name() -> None:
    options: dict[str, object] = {
        **SASL,
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.jaas.config": PLAIN,
        "kafka.client.id": "c",
        "kafka.client.rack": "r",
        "kafka.client.dns.lookup": "use_all_dns_ips",
        "kafka.fetch.min.bytes": "1",
        "kafka.fetch.max.bytes": "52428800",
        "kafka.fetch.max.wait.ms": "10",
        "kafka.max.partition.fetch.bytes": "1048576",
        "kafka.metadata.max.age.ms": "300000",
        "kafka.connections.max.idle.ms": "60000",
        "kafka.reconnect.backoff.ms": "50",
        "kafka.reconnect.backoff.max.ms": "500",
        "kafka.retry.backoff.ms": "100",
        "kafka.retry.backoff.max.ms": "1000",
        "kafka.socket.connection.setup.timeout.ms": "10000",
        "kafka.request.timeout.ms": "30000",
        "kafka.receive.buffer.bytes": "-1",
        "kafka.send.buffer.bytes": "-1",
        "kafka.ssl.endpoint.identification.algorithm": "https",
    }
    Consumer(translated(**options)).close()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"kafka.bootstrap.servers": ""}, "kafka.bootstrap.servers"),
        ({"kafka.isolation.level": "hunter2"}, "kafka.isolation.level"),
        ({"kafka.interceptor.classes": "hunter2"}, "kafka.interceptor.classes"),
        ({"kafka.auto.offset.reset": "hunter2"}, "kafka.auto.offset.reset"),
        ({"kafka.fetch.max.byte": "hunter2"}, "Did you mean 'fetch.max.bytes'"),
        ({"kafka.ssl.cipher.suites": "hunter2"}, "kafka.ssl.cipher.suites"),
        ({"kafka.ssl.truststore.password": "hunter2"}, "kafka.ssl.truststore.password"),
        ({"kafka.ssl.truststore.location": "/hunter2.jks"}, "kafka.ssl.truststore.type"),
        (
            {"kafka.ssl.truststore.location": "/hunter2", "kafka.ssl.truststore.type": "JKS"},
            "kafka.ssl.truststore.type",
        ),
        ({"kafka.ssl.keystore.location": "/hunter2"}, "kafka.ssl.keystore.type"),
        ({"kafka.ssl.keystore.type": "PEM", "kafka.ssl.keystore.key": "hunter2"}, "kafka.ssl.keystore.type"),
        ({"kafka.ssl.endpoint.identification.algorithm": "hunter2"}, "identification.algorithm"),
        ({"kafka.sasl.kerberos.service.name": "hunter2"}, "kafka.sasl.kerberos.service.name"),
        ({"kafka.security.protocol": "SASL_SSL"}, "kafka.sasl.mechanism"),
        ({**SASL, "kafka.sasl.mechanism": "GSSAPI"}, "kafka.sasl.mechanism"),
        ({**SASL}, "kafka.sasl.jaas.config"),
        ({**SASL, "kafka.sasl.jaas.config": SCRAM}, "kafka.sasl.jaas.config"),
        ({**SASL, "kafka.sasl.jaas.config": PLAIN.rstrip(";")}, "kafka.sasl.jaas.config"),
        ({**SASL, "kafka.sasl.jaas.config": PLAIN.replace("username", "user")}, "kafka.sasl.jaas.config"),
        ({**SASL, "kafka.sasl.jaas.config": PLAIN.replace('"hunter2"', '"hunter2')}, "kafka.sasl.jaas.config"),
        ({"failOnDataLoss": "false"}, "failOnDataLoss"),
        ({"startingOfsets": "hunter2"}, "Did you mean 'startingoffsets'"),
    ],
)
def test_what_cannot_be_translated_is_refused_by_name_and_never_by_value(
    options: dict[str, object], named: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        translated(**options)
    assert named in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_configuration_is_a_key_that_travels_and_shows_no_secret() -> None:
    options = {**SERVERS, **SASL, "kafka.sasl.jaas.config": PLAIN}
    config = ConsumerConfig.from_spark(options)
    assert pickle.loads(pickle.dumps(config)) == config
    assert {config: 1}[ConsumerConfig.from_spark(dict(reversed(options.items())))] == 1
    assert config.with_isolation("read_committed") != config
    for text in (repr(config), str(config), f"{config}"):
        assert "one:9092" in text
        assert "hunter2" not in text
        assert "ann" not in text


def test_the_next_step_after_kafka_did_not_answer_names_its_address() -> None:
    nobody = ConsumerConfig.from_spark({"kafka.bootstrap.servers": "127.0.0.1:1"})
    with pytest.raises(Transient) as caught:
        offsets(nobody, "orders", deadline=0.1)
    assert "check that Kafka at 127.0.0.1:1 is reachable" in str(caught.value)
    assert "the store" not in str(caught.value)
