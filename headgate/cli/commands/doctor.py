"""`headgate doctor`: check this machine, a table's store and Kafka, and say what to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from headgate.cli.options.kafka import kafka_option, servers_option
from headgate.cli.options.table import storage_option
from headgate.cli.output import Column, Output, TextOutput, output_option
from headgate.doctor.machine import Check, check_machine
from headgate.errors import HeadgateError, InvalidInput

if TYPE_CHECKING:
    from headgate.connectors.kafka.options import ConsumerConfig

KAFKA_SECONDS = 10.0
"""How long Kafka may take to answer."""

_COLUMNS = (Column("state", 5), Column("area", 13), Column("check", 20), Column("seen", 0))


@click.command(
    epilog="""\b
Example:
  headgate doctor
  headgate doctor --table s3://bucket/orders --storage-option region=eu-west-1 --servers 127.0.0.1:9092 --topic orders
  headgate doctor --store s3://bucket/new-prefix --output json
"""
)
@click.option("--table", "uri", metavar="TABLE", help="Check that this table opens, and what its store allows.")
@click.option("--store", "prefix", metavar="URI", help="Check what the store allows at a place without a table.")
@servers_option(": check that Kafka answers.")
@click.option("--topic", "topics", multiple=True, help="With --servers: a topic that must exist; may be repeated.")
@kafka_option
@storage_option
@output_option
def doctor(
    uri: str | None,
    prefix: str | None,
    servers: str | None,
    topics: tuple[str, ...],
    kafka_options: dict[str, str],
    storage_options: dict[str, str],
    output: Output,
) -> None:
    """Check Python, packages, Java, jars and disk space; with --table or --store the store; with --servers Kafka.

    Each line is ok, a warning or bad, with what to do. The store check puts, reads, lists and deletes one small object
    below `_headgate/`; if writing is not allowed, it only reads. Exits 1 if something is bad. The output contains no
    credentials.
    """
    if servers is None and (topics or kafka_options):
        raise InvalidInput("--topic and --kafka-option need --servers.", advice="add --servers HOST:PORT")
    checks = list(_checks(uri, prefix, servers, topics, kafka_options, storage_options))
    counts = Counter(check.state for check in checks)
    if isinstance(output, TextOutput):
        output.rows(_COLUMNS, (_line(one) for one in checks))
        fit = "Fit" if not counts["bad"] else "Problems found, see the lines marked bad"
        click.echo(f"{fit}: {counts['ok']} ok, {counts['warn']} warnings, {counts['bad']} bad")
    else:
        output.record(
            "doctor",
            {
                "fit": not counts["bad"],
                **{state: counts[state] for state in ("ok", "warn", "bad")},
                "checks": [one.value() for one in checks],
            },
        )
    click.get_current_context().exit(1 if counts["bad"] else 0)


def _line(one: Check) -> dict[str, str]:
    return {**one.value(), "seen": f"{one.what} → {one.do}" if one.do else one.what}


def _checks(
    uri: str | None,
    prefix: str | None,
    servers: str | None,
    topics: tuple[str, ...],
    kafka_options: dict[str, str],
    storage_options: dict[str, str],
) -> Iterator[Check]:
    yield from check_machine()
    if uri is None and prefix is None and servers is None:
        return
    # Loads Lance and obstore, which must not be loaded before processes are made.
    from headgate.doctor.store import check_prefix, check_table

    if uri is not None:
        yield from check_table(uri, storage_options)
    if prefix is not None:
        yield from check_prefix(prefix, storage_options)
    if servers is not None:
        yield from check_kafka(servers, topics, kafka_options)


def check_kafka(servers: str, topics: tuple[str, ...], options: dict[str, str]) -> Iterator[Check]:
    """Check that Kafka answers and has the topics."""
    try:
        from headgate.connectors.kafka.reader import cluster, offsets
        from headgate.streaming.kafka.source import source
    except ImportError:
        yield Check("kafka", "client", "bad", "confluent-kafka is not installed", "pip install 'headgate[kafka]'")
        return
    try:
        consumer: ConsumerConfig = source(
            servers, topics[0] if topics else "any", max_offsets_per_trigger=None, **options
        ).consumer
        brokers, known = cluster(consumer, deadline=KAFKA_SECONDS)
    except HeadgateError as error:
        yield Check("kafka", "reach", "bad", error.what, error.advice or error.next_step)
        return
    yield Check("kafka", "reach", "ok", f"{brokers} brokers, {known} topics at {consumer.servers}")
    for topic in topics:
        try:
            found = offsets(consumer, topic, deadline=KAFKA_SECONDS)
        except HeadgateError as error:
            yield Check("kafka", topic, "bad", error.what, error.advice or error.next_step)
            continue
        total = sum(end - first for first, end in found.values())
        yield Check("kafka", topic, "ok", f"{len(found)} partitions, {total:,} offsets")
