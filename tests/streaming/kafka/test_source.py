from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

import headgate
from headgate.errors import InvalidInput
from headgate.streaming.datasource.settings import Settings
from headgate.streaming.options import sink_options

SECRET: dict[str, Any] = {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "PLAIN"}
JAAS = 'PlainLoginModule required username="ann" password="hunter2";'


def test_topics_are_a_name_a_list_or_a_pattern_and_a_start_is_one_of_sparks_options() -> None:
    source = headgate.kafka.source
    assert source("h:1", "a, b").options["subscribe"] == "a,b"
    assert source("h:1", ["a", "b"]).topics == ("a", "b")
    named = source("h:1", pattern="a.*", start="latest")
    assert (named.options["subscribePattern"], named.topics, named.options["startingOffsets"]) == ("a.*", (), "latest")
    instant = source("h:1", "a", start=datetime(2026, 1, 1, tzinfo=UTC)).options
    assert instant["startingTimestamp"] == "1767225600000"
    assert instant["startingOffsetsByTimestampStrategy"] == "latest"
    assert "startingOffsets" not in instant
    assert "startingOffsets" not in source("h:1", "a", startingTimestamp="5").options


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "either topic= or pattern="),
        ({"topic": "a", "pattern": "b"}, "either topic= or pattern="),
        ({"topic": ["a", "a"]}, "each once"),
        ({"topic": []}, "at least one topic"),
        ({"topic": "a b"}, "Invalid topic name 'a b'"),
        ({"topic": "a", "start": "sometime"}, "earliest"),
        ({"topic": "a", "start": datetime(2026, 1, 1)}, "zone"),
        ({"topic": "a", "start": "latest", "startingTimestamp": "5"}, "its own argument"),
        ({"topic": "a", "subscribePattern": "b"}, "its own argument"),
    ],
)
def test_what_cannot_be_read_is_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        headgate.kafka.source("h:1", **arguments)


def test_security_options_reach_both_clients_and_no_text() -> None:
    source = headgate.kafka.source("h:1", "a", **{**SECRET, "kafka.sasl.jaas.config": JAAS})
    assert source.options["kafka.sasl.jaas.config"] == JAAS
    assert source.consumer.librdkafka()["sasl.password"] == "hunter2"
    sink = headgate.ShardSink("t", source=source, decode=headgate.decode.raw(), commit_to_kafka="g")
    for text in map(repr, (source, source.consumer, sink.options)):
        assert "hunter2" not in text
        assert "ann" not in text


def test_a_group_needs_a_name_and_a_sink_that_lives_beside_the_stream() -> None:
    with pytest.raises(InvalidInput, match="consumer group"):
        sink_options({"commit_to_kafka": " "})
    given = {"path": "/t", "checkpointlocation": "/c", "committokafka": "g"}
    with pytest.raises(InvalidInput, match="ShardSink"):
        Settings.of(given, {})
