"""`--servers` and `--kafka-option`, for commands that read topics; `--source`, for those that rebuild a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from headgate.cli.options.pairs import key_value_option

F = TypeVar("F")


def kafka_option(command: F) -> F:
    """Options of Spark's Kafka source, many times; the command gets a dict as its argument `kafka_options`."""
    return key_value_option(
        "--kafka-option",
        "kafka_options",
        "An option of Spark's Kafka source (startingOffsets, kafka.security.protocol …); may be repeated.",
    )(command)


def servers_option(why: str = ".", *, required: bool = False) -> Callable[[F], F]:
    """`--servers`; `why` goes on with its help."""
    help = f"Kafka's bootstrap addresses{why}"
    return click.option("--servers", required=required, metavar="HOST:PORT", help=help)  # type: ignore[return-value]


def source_option(command: Any) -> Any:
    """Topics by source of a query, many times; the command gets them as its argument `sources`."""
    return click.option(
        "--source",
        "sources",
        multiple=True,
        metavar="TOPIC,…",
        callback=lambda _, __, given: tuple(tuple(filter(None, one.split(","))) for one in given),
        help="The topics of one Kafka source of the query; repeat it in the query's order where it has several "
        "sources.",
    )(command)
