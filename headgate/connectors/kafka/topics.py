"""Creates topics and adds partitions, on any cluster. For tests, the demo and trying things out."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

from headgate import clock
from headgate.connectors.kafka.options import reach
from headgate.errors import InvalidInput, Transient

QUIET = logging.getLogger("headgate.kafka.client")
"""librdkafka's log goes here, not to the terminal: silent until somebody adds a handler."""
QUIET.addHandler(logging.NullHandler())
QUIET.propagate = False

_SECONDS = 30.0


def admin_client(servers: str) -> AdminClient:
    """An admin client of `servers` that prints nothing and reconnects to a lost broker quickly."""
    return AdminClient(
        {"bootstrap.servers": servers, "reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 250}, logger=QUIET
    )


def create_topic(
    servers: str, name: str, partitions: int = 1, config: Mapping[str, str] | None = None, *, replication: int = 1
) -> None:
    """Create a topic, and wait until brokers know it. Raises InvalidInput if it exists or is invalid, Transient if the
    broker is unreachable.
    """
    topic = NewTopic(name, num_partitions=partitions, replication_factor=replication, config=dict(config or {}))
    client = admin_client(servers)  # must live until the answer arrives: without it the request is dropped
    with _told(f"The topic {name!r} was not created", servers):
        client.create_topics([topic], operation_timeout=_SECONDS)[name].result(_SECONDS + 5)
        _wait_until_known(client, name, partitions)


def ensure_topic(servers: str, name: str, partitions: int = 1, *, replication: int = 1) -> bool:
    """Create a topic unless it exists with any number of partitions. Returns whether it was created. Raises as
    `create_topic`.
    """
    try:
        create_topic(servers, name, partitions, replication=replication)
    except InvalidInput as error:
        reason = error.__cause__
        if isinstance(reason, KafkaException) and reason.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
            return False
        raise
    return True


def grow_topic(servers: str, name: str, partitions: int) -> None:
    """Raise the number of partitions to `partitions`. Raises InvalidInput if that is not more than there are."""
    client = admin_client(servers)
    with _told(f"The topic {name!r} did not grow to {partitions} partitions", servers):
        growth = NewPartitions(name, partitions)
        client.create_partitions([growth], operation_timeout=_SECONDS)[name].result(_SECONDS + 5)
        _wait_until_known(client, name, partitions)


def _wait_until_known(client: AdminClient, name: str, partitions: int) -> None:
    """The controller has created the topic, but other brokers may report it as unknown for a moment."""
    end = clock.monotonic() + _SECONDS
    while clock.monotonic() < end:
        there = client.list_topics(name, timeout=_SECONDS).topics[name].partitions
        if len(there) == partitions and all(one.leader >= 0 for one in there.values()):
            return
        clock.sleep(0.05)


@contextmanager
def _told(failure: str, servers: str) -> Iterator[None]:
    try:
        yield
    except KafkaException as error:
        reason = error.args[0]
        kind = Transient if reason.retriable() or reason.code() < 0 else InvalidInput
        advice = reach(servers) if kind is Transient else None
        raise kind(f"{failure}: {reason.name()}.", servers=servers, advice=advice) from error
