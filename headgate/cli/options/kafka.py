"""`--servers` and `--kafka-option`, for commands that read topics; `--source`, for those that rebuild a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from headgate.cli.options.pairs import key_value_option

if TYPE_CHECKING:
    from headgate.connectors.kafka.options import ConsumerConfig
    from headgate.table.status import Consumer

F = TypeVar("F")


def kafka_option(command: F) -> F:
    """Options of Spark's Kafka source, repeatable; the command gets a dict as its argument `kafka_options`."""
    return key_value_option(
        "--kafka-option",
        "kafka_options",
        "An option of Spark's Kafka source (startingOffsets, kafka.security.protocol …); may be repeated.",
    )(command)


def servers_option(why: str = ".", *, required: bool = False) -> Callable[[F], F]:
    """`--servers`; `why` is appended to its help."""
    help = f"Kafka's bootstrap addresses{why}"
    return click.option("--servers", required=required, metavar="HOST:PORT", help=help)  # type: ignore[return-value]


def source_option(command: Any) -> Any:
    """Topics of each Kafka source of a query, repeatable; the command gets them as its argument `sources`."""
    return click.option(
        "--source",
        "sources",
        multiple=True,
        metavar="TOPIC,…",
        callback=lambda _, __, given: tuple(tuple(filter(None, one.split(","))) for one in given),
        help="The topics of one Kafka source of the query. For several sources, repeat it in the query's order.",
    )(command)


def consumer_of(servers: str | None, options: Mapping[str, str]) -> Consumer | None:
    """How to reach topics, from --servers and --kafka-option; None without servers."""
    if servers is None:
        return None
    # Loads what `doctor` must not load before it has made processes.
    from headgate.streaming.kafka.source import source

    address = servers

    def consumer(topic: str) -> ConsumerConfig:
        return source(address, topic, max_offsets_per_trigger=None, **options).consumer

    return consumer
